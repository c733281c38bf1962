//! Why the congestion control cannot be used, and the remedy.

use std::io;

/// What the kernel or the host lacks.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel does not describe its types.
    #[error("the kernel does not describe its types (/sys/kernel/btf/vmlinux: {0})")]
    NoTypes(#[source] io::Error),
    /// It describes its types in a way that this crate cannot parse.
    #[error("the kernel's description of its types is not understood: {0}")]
    Types(&'static str),
    /// A structure or function that the program needs is not there or is of another shape.
    #[error("this kernel's TCP is not supported: {0}")]
    OtherTcp(String),
    /// This process may not load BPF programs.
    #[error("this process may not load BPF programs ({0})")]
    NotAllowed(#[source] io::Error),
    /// The kernel has no BPF, or no congestion control in BPF.
    #[error("this kernel does not support congestion control in BPF ({step}: {error})")]
    Unsupported {
        /// What was tried.
        step: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
    /// The kernel's verifier refuses a program.
    #[error("the kernel refuses the BPF program {program}: {error}\n{log}")]
    Refused {
        /// Which one.
        program: &'static str,
        /// What the call said.
        error: io::Error,
        /// The end of what the verifier said; may be empty.
        log: String,
    },
    /// The name and all the numbered ones after it belong to others.
    #[error("congestion controls {0}, {0}_2 and so on exist already")]
    NameTaken(String),
    /// No name for a congestion control.
    #[error("'{0}' is not a valid name: 1 to 12 letters, digits, '_' or '.'")]
    Name(String),
    /// As many ensembles as there is room for.
    #[error("there are {0} ensembles already")]
    NoRoom(u32),
    /// Only a connected TCP socket joins.
    #[error("the socket is not a connected TCP socket ({0})")]
    NotConnected(#[source] io::Error),
    /// Another step failed.
    #[error("{step}: {error}")]
    Kernel {
        /// What was done.
        step: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
}

impl Error {
    /// What an administrator can do about it, if anything.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::NoTypes(_) | Self::Types(_) => {
                Some("a kernel built with CONFIG_DEBUG_INFO_BTF=y is needed")
            }
            Self::NotAllowed(_) => Some(
                "root is needed, or the capabilities CAP_BPF and CAP_PERFMON, in the initial user namespace",
            ),
            Self::Unsupported { .. } => Some(
                "Linux 6.4 or later is needed, with CONFIG_BPF_SYSCALL, CONFIG_BPF_JIT and CONFIG_INET",
            ),
            Self::NameTaken(_) => Some("end the processes that have loaded them"),
            Self::OtherTcp(_)
            | Self::Refused { .. }
            | Self::Name(_)
            | Self::NoRoom(_)
            | Self::NotConnected(_)
            | Self::Kernel { .. } => None,
        }
    }

    /// What the error of a step means.
    pub(crate) fn of_step(step: &'static str, error: io::Error) -> Self {
        // ENOTSUPP, which the kernel keeps for itself, comes out of some paths of BPF.
        const ENOTSUPP: i32 = 524;
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotAllowed(error),
            Some(libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP | ENOTSUPP) => {
                Self::Unsupported { step, error }
            }
            _ => Self::Kernel { step, error },
        }
    }
}
