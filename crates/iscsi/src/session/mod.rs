//! The two machines in full feature phase.

pub mod initiator;
pub mod target;
