//! What this host does not give us, or what we were asked for and cannot do.

use std::io;

use crate::LinkSettingsError;

/// Why there is no link, or why it was not changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting is wrong; nothing was touched.
    #[error(transparent)]
    Settings(#[from] LinkSettingsError),
    /// The name cannot be part of a namespace's.
    #[error("`{0}` is no name for a link: 1 to 32 letters, digits, `-` and `_`")]
    Name(String),
    /// This process may not make network namespaces and devices.
    #[error("network namespaces and devices are for root (CAP_NET_ADMIN and CAP_SYS_ADMIN)")]
    Privilege,
    /// The device that makes TUN devices does not open.
    #[error("cannot open /dev/net/tun: {0}")]
    NoTun(io::Error),
    /// The program that makes namespaces is not there.
    #[error("the program `ip` (iproute2) is not installed")]
    NoIp,
    /// A link of this name is running.
    #[error("the network namespace {namespace} is in use by process {process}")]
    InUse {
        /// Its namespace.
        namespace: String,
        /// Who made it.
        process: u32,
    },
    /// Somebody else made a namespace of this name.
    #[error("there is a network namespace {namespace} already, and it was not made by a link")]
    Foreign {
        /// Its name.
        namespace: String,
    },
    /// `ip` failed.
    #[error("`ip {arguments}` failed: {said}")]
    Ip {
        /// What it was told to do.
        arguments: String,
        /// What it said.
        said: String,
    },
    /// The program that gives devices to netem is not there.
    #[error("the program `tc` (iproute2) is not installed")]
    NoTc,
    /// `tc` failed.
    #[error("`tc {arguments}` failed: {said}")]
    Tc {
        /// What it was told to do.
        arguments: String,
        /// What it said.
        said: String,
    },
    /// The kernel has no netem, or no tbf for the rate.
    #[error("this kernel has no netem: {0}")]
    NoNetem(String),
    /// Something else of the system failed.
    #[error("cannot {act}: {error}")]
    System {
        /// What was tried.
        act: String,
        /// What the system says.
        error: io::Error,
    },
    /// The thread that carries packets has ended.
    #[error("the link is broken: {0}")]
    Broken(String),
}

impl Error {
    /// A failure of the system in an act.
    pub(crate) fn system(act: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let act = act.into();
        move |error| Self::System { act, error }
    }
}
