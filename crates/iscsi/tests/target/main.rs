//! Tests the target session in virtual time. The test plays the initiator; each test covers one
//! rule of RFC 7143.

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
mod sense;
mod terminated;
