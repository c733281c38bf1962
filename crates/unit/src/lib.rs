//! Where a command becomes a call on storage.

mod tokens;
mod unit;
mod identity;
mod limits;
mod sense;
mod patience;
mod store;
mod attention;
mod image;
mod ownership;
mod sharing;
mod reservation;
mod medium;
mod modes;
mod timestamp;
mod identifying;
mod mode_pages;
mod space;
mod description;
mod order;
mod gate;
mod claim;
mod copies;
mod access;
mod sanitize;
mod block;

pub use self::tokens::Rod;
pub use block::{BlockUnit, NotDropped};
pub use identity::UnitIdentity;
pub use limits::{Settings, Share};
pub use sharing::Sharer;
pub use store::{Saving, UnitRecordKind, UnitStore};
pub use unit::{
    Completion, LogicalUnit, Neighbours, Nexus, Task, TaskAttribute, TaskManagement, UnitReply,
};
