//! The target's machine: [`LoginPhase`] until a connection is let in, then a [`Session`] with its
//! [`Connection`]s. No I/O, no clock: frames and time come in, events are polled, output waits in
//! each connection's `Output`.
//!
//! What belongs to whom: command order (CmdSN), the tasks and what was agreed on are the
//! session's; statuses (StatSN), what is kept until it is acknowledged, and digests are the
//! connection's. Each task knows the connection that its data and status go to.

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
