//! Logical units, which check SCSI commands and perform them as calls on a volume.

mod tokens;
mod identity;
mod abilities;
mod unit;
mod sense;
mod store;
mod primary;
pub mod gate;
mod block;

pub use self::tokens::Rod;
pub use abilities::{
    ClaimedUnit, CopyMember, FlushedUnit, HeldUnit, MovableUnit, NotDropped, Sharer, UnitAbilities,
    UnitFuture,
};
pub use block::{BlockUnit, Settings, Share};
pub use identity::UnitIdentity;
pub use primary::{
    DeviceCommand, DeviceModes, DeviceType, Modes, PrimaryCommandInput, PrimaryUnit,
    ReservationEffect, TaskTurn, check_parameter_list,
};
pub use store::{Saving, UnitRecordKind, UnitStore};
pub use unit::{
    AttentionChange, Completion, LogicalUnit, Neighbours, Nexus, Task, TaskAttribute,
    TaskManagement, UnitReply,
};
