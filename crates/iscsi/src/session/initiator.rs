//! The initiator's machine in full feature phase (RFC 7143, 3.2, 4.2): commands out, outcomes back.
//!
//! An [`InitiatorSession`] has one command window and several connections; each command goes to the one with
//! the least to do and stays there. What is lost on the way is asked for again (level 1), what a
//! failed connection leaves behind goes on elsewhere (level 2) or is handed back. Logging in,
//! sockets, reconnecting are the caller's.

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

/// How long a connection waits for its target.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTiming {
    /// After so long without hearing anything, ping.
    pub ping_after: Duration,
    /// After so long without hearing anything since the ping, and without a byte getting through that
    /// its answer has to wait for ([`InitiatorSession::note_carried`]), the connection is dead.
    pub ping_time_out: Duration,
    /// How long the answer to a task management function or a logout may take.
    pub abort_time_out: Duration,
    /// After so long without hearing anything while commands are on their way, ping, so that what
    /// was lost is noticed; doubles with each answer that brings no news, up to `ping_after`. Not
    /// where nothing can be done about a loss: at level 0 with one connection.
    pub probe_after: Duration,
    /// A ping that takes longer than this, and four times what pings took lately, makes the others
    /// of the session be asked; a connection that is then the only silent one, and on which no byte gets
    /// through ([`InitiatorSession::note_carried`]), has failed.
    pub stall_time_out: Duration,
}

impl Default for ConnectionTiming {
    /// A ping after 5 s, given up 5 s later (open-iscsi's values); 5 s for ABORT TASK. A connection
    /// that stalls beside others is given up in a third of a second, since commands on it may hold
    /// up those on the others: 50 ms, and 300 ms, above TCP's shortest retransmission time-out of
    /// 200 ms.
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

/// What the application should know.
#[derive(Debug)]
pub enum InitiatorEvent {
    /// A command ended.
    Completed {
        /// The application's name for it.
        tag: u64,
        /// How.
        result: Result<InitiatorCommandOutcome, CommandFailure>,
    },
    /// These commands ended with their connection, in the order of submission: the target can do
    /// them no more, and nobody knows whether it has. To be submitted again.
    Returned(Vec<CommandRequest>),
    /// The answer to [`InitiatorSession::text`], all its parts joined.
    Text(Bytes),
    /// The target asked for a logout of a connection: no more commands are sent on it, and the
    /// logout follows when those on their way have ended or the target's time is up.
    LogoutRequested {
        /// Which.
        cid: Cid,
    },
    /// A connection is no more: close its socket, and tell the session with [`InitiatorSession::close`].
    Closed {
        /// Which.
        cid: Cid,
        /// Why.
        error: InitiatorSessionError,
    },
    /// The logout of the session was answered: close all connections.
    LoggedOut {
        /// Seconds to wait before connecting again.
        time2wait: u16,
    },
    /// A SCSI asynchronous event.
    Sense(Lun, Option<Sense>),
}

/// Why a connection is no more. With it ends the session, if it [`ends
/// it`](InitiatorSessionError::ends_session) or none is left: what was not answered then comes out of
/// [`InitiatorSession::take_unanswered`]. At level 2 a session without connections waits for a login.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InitiatorSessionError {
    /// The socket was closed or broke.
    #[error("the connection was closed")]
    Closed,
    /// Framing is lost.
    #[error(transparent)]
    Codec(#[from] codec::CodecError),
    /// A header means nothing.
    #[error("a PDU that cannot be read: {0}")]
    Parse(#[from] ParseError),
    /// Data arrived damaged.
    #[error("data digest error")]
    DataDigest,
    /// The target broke the protocol.
    #[error("the target sent {0}")]
    Protocol(&'static str),
    /// The target refused a PDU that it has to take.
    #[error("the target rejected a PDU: {0:?}")]
    Rejected(RejectReason),
    /// The target says that it drops the connection.
    #[error("the target dropped the connection")]
    Dropped {
        /// Seconds to wait before connecting again.
        time2wait: u16,
    },
    /// The target says that it drops the session.
    #[error("the target dropped the session")]
    SessionDropped {
        /// Seconds to wait before connecting again.
        time2wait: u16,
    },
    /// It was logged out.
    #[error("logged out")]
    LoggedOut {
        /// Seconds to wait before connecting again.
        time2wait: u16,
    },
    /// Nothing was heard since a ping.
    #[error("no answer to a ping")]
    Silent,
    /// Nothing was heard since a ping, and other connections of the session were.
    #[error("no answer to a ping, where other connections have one")]
    Stalled,
    /// ABORT TASK, text or logout was not answered in time, or could not be done.
    #[error("no answer to {0}")]
    Unanswered(&'static str),
}

impl InitiatorSessionError {
    /// The other connections of the session are of no use either: the target means it so, or
    /// speaks in a way that cannot be trusted (RFC 7143, 7.7).
    #[must_use]
    pub fn ends_session(&self) -> bool {
        matches!(self, Self::Parse(_) | Self::Protocol(_) | Self::SessionDropped { .. })
    }

    /// Seconds before connecting again, if the target named them.
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
