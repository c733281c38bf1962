//! The session state machine of the initiator in full feature phase (RFC 7143, 3.2, 4.2): it sends
//! commands and returns their outcomes.
//!
//! An [`InitiatorSession`] has one command window and several connections. Each command goes to the
//! connection with the least load and stays there. Lost PDUs are requested again (error recovery
//! level 1). The tasks of a failed connection continue on another connection (level 2), or are
//! returned to the application. Logins, sockets and reconnects are up to the caller.

mod window;
mod gather;
mod task;
mod burst;
mod statuses;
mod commands;
mod connection;
mod snack;
mod control;
mod receive;
mod lost;
mod session;
mod recovery;

use std::time::Duration;

use bytes::Bytes;
use scsi::{Lun, Sense};

pub use connection::InitiatorPduCounters;
pub use recovery::MOST_PATIENCE;
pub use session::{CommandDistribution, ConnectionLoad, InitiatorSession, JoinedConnection};
pub use task::{CommandFailure, CommandRequest, DataPhase, InitiatorCommandOutcome};
pub use window::InitiatorCommandWindow;

use crate::{
    Cid, codec,
    pdu::{ParseError, RejectReason},
};

/// The timers of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTiming {
    /// A ping is sent after this time without a PDU from the target.
    pub ping_after: Duration,
    /// The connection fails after this time without a PDU since the ping, unless bytes that the
    /// answer has to wait for were transferred meanwhile ([`InitiatorSession::note_carried`]).
    pub ping_time_out: Duration,
    /// The longest wait for the answer to a task management function or a logout.
    pub abort_time_out: Duration,
    /// While commands are in flight, a ping is sent after this time without a PDU, so that losses
    /// are detected. The time doubles with each answer that brings no news, up to `ping_after`. Not
    /// used if a loss could not be repaired: at error recovery level 0 with one connection.
    pub probe_after: Duration,
    /// If a ping takes longer than this, and longer than four times the recent pings, the other
    /// connections of the session are pinged. A connection fails if it is then the only silent one,
    /// and if no bytes were transferred on it ([`InitiatorSession::note_carried`]).
    pub stall_time_out: Duration,
}

impl Default for ConnectionTiming {
    /// Returns a ping after 5 s and its time-out of 5 s (the values of open-iscsi), and 5 s for
    /// ABORT TASK. A connection that stalls while others work fails after a third of a second,
    /// since its commands may delay those on the others: 50 ms, and 300 ms, which is longer than
    /// TCP's shortest retransmission time-out of 200 ms.
    fn default() -> Self {
        let five = Duration::from_secs(5);
        Self {
            ping_after: five,
            ping_time_out: five,
            abort_time_out: five,
            probe_after: Duration::from_millis(50),
            stall_time_out: Duration::from_millis(300),
        }
    }
}

/// An event for the application.
#[derive(Debug)]
pub enum InitiatorEvent {
    Completed {
        /// The tag of the [`CommandRequest`].
        tag: u64,
        result: Result<InitiatorCommandOutcome, CommandFailure>,
    },
    /// These commands ended with their connection, in the order of submission. The target will no
    /// longer execute them, and it is unknown if it has executed them. The application must submit
    /// them again.
    Returned(Vec<CommandRequest>),
    /// The complete answer to [`InitiatorSession::text`].
    Text(Bytes),
    /// The target requested a logout of a connection. No more commands are sent on it. The logout
    /// follows when the commands in flight have ended, or when the target's time is over.
    LogoutRequested { cid: Cid },
    /// A connection has failed: close its socket, and call [`InitiatorSession::close`].
    Closed { cid: Cid, error: InitiatorSessionError },
    /// The logout of the session was answered: close all connections.
    LoggedOut {
        /// Seconds to wait before a reconnect.
        time2wait: u16,
    },
    /// A SCSI asynchronous event.
    Sense(Lun, Option<Sense>),
}

/// The reason why a connection failed. The session ends with it if the error [`ends
/// it`](InitiatorSessionError::ends_session) or if no connection is left;
/// [`InitiatorSession::take_unanswered`] then returns the unanswered commands. At error recovery
/// level 2, a session without connections waits for a login.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InitiatorSessionError {
    /// The socket was closed or failed.
    #[error("the connection was closed")]
    Closed,
    /// The byte stream cannot be decoded.
    #[error(transparent)]
    Codec(#[from] codec::CodecError),
    /// A header is invalid.
    #[error("invalid PDU: {0}")]
    Parse(#[from] ParseError),
    #[error("data digest error")]
    DataDigest,
    /// The target violated the protocol.
    #[error("the target sent {0}")]
    Protocol(&'static str),
    /// The target rejected a PDU that it must accept.
    #[error("the target rejected a PDU: {0:?}")]
    Rejected(RejectReason),
    /// The target announced that it closes the connection.
    #[error("the target dropped the connection")]
    Dropped {
        /// Seconds to wait before a reconnect.
        time2wait: u16,
    },
    /// The target announced that it closes the session.
    #[error("the target dropped the session")]
    SessionDropped {
        /// Seconds to wait before a reconnect.
        time2wait: u16,
    },
    /// The connection was logged out.
    #[error("logged out")]
    LoggedOut {
        /// Seconds to wait before a reconnect.
        time2wait: u16,
    },
    /// No PDU has arrived since a ping.
    #[error("no answer to NOP-Out")]
    Silent,
    /// No PDU has arrived since a ping, although the other connections of the session receive PDUs.
    #[error(
        "connection stalled: no answer to NOP-Out while other connections of the session receive PDUs"
    )]
    Stalled,
    /// A request (named) was not answered in time, or its answer shows that it failed.
    #[error("no answer to {0}")]
    Unanswered(&'static str),
}

impl InitiatorSessionError {
    /// Returns true if the other connections of the session cannot be used either: the target says
    /// so, or its PDUs cannot be trusted (RFC 7143, 7.7).
    #[must_use]
    pub fn ends_session(&self) -> bool {
        matches!(self, Self::Parse(_) | Self::Protocol(_) | Self::SessionDropped { .. })
    }

    /// Returns the seconds to wait before a reconnect, if the target stated them.
    #[must_use]
    pub fn time2wait(&self) -> Option<u16> {
        match self {
            Self::Dropped { time2wait }
            | Self::SessionDropped { time2wait }
            | Self::LoggedOut { time2wait } => Some(*time2wait),
            _ => None,
        }
    }
}
