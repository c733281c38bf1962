//! Errors of making and changing a link.

use std::io;

use crate::LinkSettingsError;

/// The reason why a link cannot be made or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Settings(#[from] LinkSettingsError),
    #[error("`{0}` is not a valid name for a link: 1 to 32 letters, digits, `-` and `_`")]
    Name(String),
    #[error("network namespaces and devices require root (CAP_NET_ADMIN and CAP_SYS_ADMIN)")]
    Privilege,
    #[error("cannot open /dev/net/tun: {0}")]
    NoTun(io::Error),
    #[error("the program `ip` (iproute2) is not installed")]
    NoIp,
    #[error("the network namespace {namespace} is in use by process {process}")]
    InUse {
        namespace: String,
        /// The process that has made the namespace.
        process: u32,
    },
    /// A network namespace of this name exists, but it does not belong to an emulated link.
    #[error("the network namespace {namespace} exists already, and does not belong to a link")]
    Foreign { namespace: String },
    #[error("`ip {arguments}` failed: {said}")]
    Ip { arguments: String, said: String },
    #[error("the program `tc` (iproute2) is not installed")]
    NoTc,
    #[error("`tc {arguments}` failed: {said}")]
    Tc { arguments: String, said: String },
    /// The kernel lacks netem, or tbf for the rate.
    #[error("this kernel has no netem: {0}")]
    NoNetem(String),
    #[error("cannot {act}: {error}")]
    System {
        /// The action that failed, for example "make a TUN device".
        act: String,
        error: io::Error,
    },
    /// The thread that carries packets has ended.
    #[error("the link is broken: {0}")]
    Broken(String),
}

impl Error {
    /// Returns a function that makes an [`Error::System`] of an I/O error. `act` completes the
    /// sentence "cannot ...".
    pub(crate) fn system(act: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let act = act.into();
        move |error| Self::System { act, error }
    }
}
