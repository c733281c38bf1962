//! The target's machine: [`LoginPhase`] until a connection is let in, then a [`Session`] that its
//! [`Connection`]s share. No I/O, no clock: frames and time come in, events are polled, output
//! waits in each connection's `Output`.
//!
//! What belongs to whom: command order (CmdSN), the tasks and what was agreed on are the
//! session's; statuses (StatSN), data transfers and digests are the connection's.

mod settings;
mod event;
mod exchange;
mod task;
mod session;
mod connection;
mod respond;
mod command;
mod management;
mod text;
mod receive;
mod login;

pub use connection::{Connection, Counters, Error};
pub use event::{Admission, Command, Event, ManagementRequest, Outcome, SendTargets};
pub use login::{Admitted, LoginPhase, LoginProgress};
pub use session::Session;
pub use settings::Settings;
