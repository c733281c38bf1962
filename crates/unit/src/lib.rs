//! Where a command becomes a call on storage.

mod tokens;
mod unit;
mod identity;
mod limits;
mod sense;
mod store;
mod attention;
mod ownership;
mod reservation;
mod medium;
mod modes;
mod timestamp;
mod identifying;
mod mode_pages;
mod space;
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
pub use store::{Record, Saving, Store};
pub use tokens::Rod;
pub use unit::{Completion, LogicalUnit, Neighbours, Nexus, Task, TaskAttribute, TaskManagement};
