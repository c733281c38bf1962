//! The reasons why a connection or a session ends.

use std::io;

use iscsi::session::target::TargetSessionError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionEndReason {
    #[error("logged out")]
    LoggedOut,
    #[error("closed by the initiator")]
    ClosedByPeer,
    #[error("{0}")]
    Ordered(&'static str),
    #[error("the initiator did not reconnect")]
    NotRecovered,
    #[error(transparent)]
    Protocol(#[from] TargetSessionError),
    #[error("the discovery session sent no request")]
    Idle,
    #[error("the discovery session was closed to make room for a newer one")]
    Displaced,
    #[error("the initiator does not read its responses")]
    SlowReader,
    #[error(transparent)]
    Socket(#[from] io::Error),
}

impl ConnectionEndReason {
    /// Returns true if the connection has ended in normal operation, not by an error.
    pub(crate) fn is_expected(&self) -> bool {
        matches!(self, Self::LoggedOut | Self::ClosedByPeer | Self::Ordered(_))
    }

    /// Returns true if this error ends the whole session, and not only the connection.
    pub(crate) fn ends_session(&self) -> bool {
        matches!(self, Self::Protocol(error) if error.ends_session())
    }
}
