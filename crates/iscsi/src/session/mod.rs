//! The state machines of a session in full feature phase, at the initiator and at the target.

pub mod initiator;
pub mod target;
