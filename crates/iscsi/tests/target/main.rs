//! The target session with a scripted initiator in virtual time: one rule of RFC 7143 per test.

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
