//! The session state machines of both ends in full feature phase.

pub mod initiator;
pub mod target;
