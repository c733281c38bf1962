//! Errors of making and changing a link.

use std::io;

use crate::LinkSettingsError;

/// The reason why a link cannot be made or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting is wrong. Nothing was changed.
    #[error(transparent)]
    Settings(#[from] LinkSettingsError),
    /// The name cannot be part of the name of a namespace.
    #[error("`{0}` is not a valid name for a link: 1 to 32 letters, digits, `-` and `_`")]
    Name(String),
    /// This process may not make network namespaces and devices.
    #[error("network namespaces and devices require root (CAP_NET_ADMIN and CAP_SYS_ADMIN)")]
    Privilege,
    /// `/dev/net/tun` cannot be opened.
    #[error("cannot open /dev/net/tun: {0}")]
    NoTun(io::Error),
    /// The program `ip` is missing.
    #[error("the program `ip` (iproute2) is not installed")]
    NoIp,
    /// A link with this name is running.
    #[error("the network namespace {namespace} is in use by process {process}")]
    InUse {
        /// Its namespace.
        namespace: String,
        /// The process that made it.
        process: u32,
    },
    /// A namespace with this name exists that was not made by a link.
    #[error("the network namespace {namespace} exists already, and does not belong to a link")]
    Foreign {
        /// Its name.
        namespace: String,
    },
    /// `ip` failed.
    #[error("`ip {arguments}` failed: {said}")]
    Ip {
        /// The arguments of `ip`.
        arguments: String,
        /// Its output.
        said: String,
    },
    /// The program `tc` is missing.
    #[error("the program `tc` (iproute2) is not installed")]
    NoTc,
    /// `tc` failed.
    #[error("`tc {arguments}` failed: {said}")]
    Tc {
        /// The arguments of `tc`.
        arguments: String,
        /// Its output.
        said: String,
    },
    /// The kernel does not have netem, or not tbf for the rate.
    #[error("this kernel has no netem: {0}")]
    NoNetem(String),
    /// Another system call failed.
    #[error("cannot {act}: {error}")]
    System {
        /// What was attempted.
        act: String,
        /// The error of the system.
        error: io::Error,
    },
    /// The thread that carries packets has ended.
    #[error("the link is broken: {0}")]
    Broken(String),
}

impl Error {
    /// Makes an error of a system call.
    pub(crate) fn system(act: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let act = act.into();
        move |error| Self::System { act, error }
    }
}
