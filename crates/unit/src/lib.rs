//! Where a command becomes a call on storage.

mod unit;

pub use unit::{Completion, LogicalUnit, Nexus, Task, TaskAttribute, TaskManagement};
