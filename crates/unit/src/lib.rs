//! Where a command becomes a call on storage.

mod tokens;
mod unit;
mod identity;
mod limits;
mod sense;
mod attention;
mod description;
mod order;
mod claim;
mod copies;
mod access;
mod sanitize;
mod block;

pub use block::BlockUnit;
pub use identity::Identity;
pub use limits::Settings;
pub use tokens::Rod;
pub use unit::{Completion, LogicalUnit, Neighbours, Nexus, Task, TaskAttribute, TaskManagement};
