//! The target's machine against a script: one rule of RFC 7143 a test, in virtual time.

mod rig;
mod login;
mod read;
mod write;
mod waiting;
mod order;
mod management;
mod bursts;
mod text;
mod upkeep;
mod connections;
mod recovery;
mod reassign;
mod terminated;
