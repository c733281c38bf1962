//! Where a command becomes a call on storage.

mod tokens;
mod identity;
mod unit;
mod sense;
mod store;
mod primary;
mod block;

pub use self::tokens::Rod;
pub use block::{BlockUnit, NotDropped, Settings, Share, Sharer};
pub use identity::UnitIdentity;
pub use store::{Saving, UnitRecordKind, UnitStore};
pub use unit::{
    Completion, LogicalUnit, Neighbours, Nexus, Task, TaskAttribute, TaskManagement, UnitReply,
};
