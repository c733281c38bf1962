//! Where a command becomes a call on storage.

mod unit;
mod identity;
mod limits;
mod sense;
mod attention;
mod description;
mod order;
mod claim;
mod access;
mod block;

pub use block::BlockUnit;
pub use identity::Identity;
pub use limits::Settings;
pub use unit::{Completion, LogicalUnit, Nexus, Task, TaskAttribute, TaskManagement};
