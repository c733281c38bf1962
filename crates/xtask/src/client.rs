//! A small iSCSI initiator of our own for measuring and for breaking things: one thread for a
//! session or for a crowd of them, as many commands as the depth allows in each write, answers taken
//! in bulk.
//!
//! It shares no code with the house, so that both ends cannot share one mistake.

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
