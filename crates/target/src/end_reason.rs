//! Why a connection, or a session with all of them, ended.

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
    #[error("no connection has come back")]
    NotRecovered,
    #[error(transparent)]
    Protocol(#[from] TargetSessionError),
    #[error("the discovery session asked for nothing")]
    Idle,
    #[error("the discovery session gave its place to a newer one")]
    Displaced,
    #[error("the initiator reads nothing of what was sent")]
    SlowReader,
    #[error(transparent)]
    Socket(#[from] io::Error),
}

impl ConnectionEndReason {
    /// Nothing to be worried about.
    pub(crate) fn is_expected(&self) -> bool {
        matches!(self, Self::LoggedOut | Self::ClosedByPeer | Self::Ordered(_))
    }

    /// The whole session must end, not only the connection where it happened.
    pub(crate) fn ends_session(&self) -> bool {
        matches!(self, Self::Protocol(error) if error.ends_session())
    }
}
