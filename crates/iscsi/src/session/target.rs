//! The session state machine of the target: [`LoginPhase`] until a connection has logged in, then a
//! [`Session`] with its [`Connection`]s. No I/O, no clock: the driver passes frames and the time,
//! polls for events, and sends the output of each connection.
//!
//! | state | owner |
//! | --- | --- |
//! | command order (CmdSN), tasks, negotiated parameters | session |
//! | statuses (StatSN), statuses and data kept until they are acknowledged, digests | connection |
//!
//! Each task has the connection to which its data and status belong (connection allegiance).

mod settings;
mod event;
mod exchange;
mod waiting;
mod task;
mod order;
mod writes;
mod pending_functions;
mod response;
mod retained;
mod connection;
mod session;
mod solicit;
mod respond;
mod gathering;
mod abort;
mod postponed;
mod command;
mod loss;
mod reassign;
mod management;
mod snack;
mod text;
mod logout;
mod time;
mod receive;
mod login;

pub use connection::{Connection, TargetPduCounters, TargetSessionError};
pub use event::{
    ManagementRequest, ReceivedCommand, SendTargets, TargetCommandOutcome, TargetEvent,
    WriteAdmission,
};
pub use login::{LoginPhase, LoginProgress, NotJoined};
pub use session::Session;
pub use settings::Settings;
