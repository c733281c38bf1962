//! An iSCSI initiator that makes load, and that tests use to examine faults. One thread drives one session or many
//! connections. One system call sends as many commands as the depth allows, and one receives all responses that have
//! arrived.
//!
//! It depends on no other crate of the workspace, so that both ends of a test cannot share one mistake.

pub mod login;
pub mod request;
pub mod wire;
pub mod crowd;
pub mod session;
pub mod stamp;

pub use crowd::Crowd;
pub use login::ClientLogin;
pub use request::ClientScsiCommand;
pub use session::{ClientResponse, ClientSession, ClientSlotAction, ClientWorkload};
