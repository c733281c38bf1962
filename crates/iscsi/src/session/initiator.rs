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

#[derive(Clone, Copy, Debug)]
pub struct ConnectionTiming {
    /// The initiator sends a ping when it has received no PDU from the target for this time.
    pub ping_after: Duration,
    /// The connection fails after this time without a PDU since the ping was sent, unless bytes
    /// that the answer must wait for were transferred meanwhile
    /// ([`InitiatorSession::note_carried`]).
    pub ping_time_out: Duration,
    /// The longest wait for the answer to a task management function or a logout.
    pub abort_time_out: Duration,
    /// While commands are in flight, a ping is sent after this time without a PDU, so that lost
    /// PDUs are detected. The time doubles with each answered ping, up to `ping_after`. Not used if
    /// a loss could not be repaired: at error recovery level 0 with one connection.
    pub probe_after: Duration,
    /// If the answer to a ping takes longer than this, and longer than four times the average of
    /// recent pings, the other connections of the session are pinged, too. If they receive answers,
    /// the connection that stays silent fails, unless bytes were transferred on it
    /// ([`InitiatorSession::note_carried`]).
    pub stall_time_out: Duration,
}

impl Default for ConnectionTiming {
    /// Returns the default times. Pings, their time-out and ABORT TASK use 5 s, as open-iscsi does.
    /// A connection that stalls while others work fails after about a third of a second, since its
    /// commands may delay commands on the other connections: 50 ms to the ping, then 300 ms, which
    /// is longer than the shortest retransmission time-out of TCP (200 ms).
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

#[derive(Debug)]
pub enum InitiatorEvent {
    Completed {
        /// The number with which the application marked the command in its [`CommandRequest`].
        tag: u64,
        result: Result<InitiatorCommandOutcome, CommandFailure>,
    },
    /// These commands ended because their connection ended; they are in the order of submission.
    /// The target no longer executes them, but may have executed them already. The application must
    /// submit them again.
    Returned(Vec<CommandRequest>),
    /// The complete answer of the target to [`InitiatorSession::text`].
    Text(Bytes),
    /// The target requested a logout of a connection. The session sends no more commands on it. It
    /// sends the logout when the commands in flight have ended, or shortly before the time that the
    /// target allowed is over.
    LogoutRequested { cid: Cid },
    /// A connection of the session has failed: close its socket, and call [`InitiatorSession::close`].
    Closed { cid: Cid, error: InitiatorSessionError },
    /// The logout of the session was answered: close all connections.
    LoggedOut {
        /// Seconds to wait before a reconnect.
        time2wait: u16,
    },
    /// The target has reported a SCSI event of this unit in an asynchronous message, with this sense data.
    Sense(Lun, Option<Sense>),
}

/// The reason why a connection failed. The session ends, too, if the error [`ends
/// it`](InitiatorSessionError::ends_session) or if no other connection is left;
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
    #[error("invalid PDU: {0}")]
    Parse(#[from] ParseError),
    #[error("data digest error")]
    DataDigest,
    #[error("the target sent {0}")]
    Protocol(&'static str),
    /// The target has rejected a PDU that it must accept, for this reason.
    #[error("the target rejected a PDU: {0:?}")]
    Rejected(RejectReason),
    /// The target has announced that it closes this connection.
    #[error("the target dropped the connection")]
    Dropped {
        /// Seconds to wait before a reconnect.
        time2wait: u16,
    },
    /// The target has announced that it closes all connections of the session.
    #[error("the target dropped the session")]
    SessionDropped {
        /// Seconds to wait before a reconnect.
        time2wait: u16,
    },
    /// The initiator or the target has requested a logout of this connection, which is complete.
    #[error("logged out")]
    LoggedOut {
        /// Seconds to wait before a reconnect.
        time2wait: u16,
    },
    /// No PDU has arrived since a ping was sent, within `ping_time_out`.
    #[error("no answer to NOP-Out")]
    Silent,
    /// No PDU has arrived since a ping, although the other connections of the session receive PDUs.
    #[error(
        "connection stalled: no answer to NOP-Out while other connections of the session receive PDUs"
    )]
    Stalled,
    /// The named request was not answered in time, or its answer shows that it failed.
    #[error("no answer to {0}")]
    Unanswered(&'static str),
}

impl InitiatorSessionError {
    /// Returns true if the error also makes the other connections of the session unusable: the
    /// target says so, or its PDUs cannot be trusted (RFC 7143, 7.7).
    #[must_use]
    pub fn ends_session(&self) -> bool {
        matches!(self, Self::Parse(_) | Self::Protocol(_) | Self::SessionDropped { .. })
    }

    /// Returns the seconds to wait before a reconnect, if the target has stated a time.
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
