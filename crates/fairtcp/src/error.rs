//! The errors that say why the congestion control cannot be used, and what an administrator can do.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel does not provide its type information (BTF).
    #[error("the kernel does not describe its types (/sys/kernel/btf/vmlinux: {0})")]
    NoTypes(#[source] io::Error),
    /// The kernel's type information (BTF) has a form that this crate cannot parse.
    #[error("the kernel's description of its types is not understood: {0}")]
    Types(&'static str),
    /// A structure or function of the kernel that the program needs is missing or has another form.
    #[error("this kernel's TCP is not supported: {0}")]
    OtherTcp(String),
    #[error("this process may not load BPF programs ({0})")]
    NotAllowed(#[source] io::Error),
    /// The kernel does not support BPF, or no congestion control in BPF.
    #[error("this kernel does not support congestion control in BPF ({step}: {error})")]
    Unsupported {
        /// The step of loading that failed.
        step: &'static str,
        error: io::Error,
    },
    /// The kernel's verifier refuses a program.
    #[error("the kernel refuses the BPF program {program}: {error}\n{log}")]
    Refused {
        program: &'static str,
        error: io::Error,
        /// The last part of the verifier's log; may be empty.
        log: String,
    },
    /// Other congestion controls use the name, and also all names that consist of it and a number.
    #[error("congestion controls {0}, {0}_2 and so on exist already")]
    NameTaken(String),
    /// The name is not valid for a congestion control.
    #[error("'{0}' is not a valid name: 1 to 12 letters, digits, '_' or '.'")]
    Name(String),
    /// The maximum number of ensembles exists.
    #[error("there are {0} ensembles already")]
    NoRoom(u32),
    /// The socket is not a connected TCP socket.
    #[error("the socket is not a connected TCP socket ({0})")]
    NotConnected(#[source] io::Error),
    #[error("{step}: {error}")]
    Kernel { step: &'static str, error: io::Error },
}

impl Error {
    /// Returns a remedy for the administrator; `None` if there is none.
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

    /// Converts the error of a system call to the error of the step in which it occurred.
    pub(crate) fn of_step(step: &'static str, error: io::Error) -> Self {
        // The kernel's error ENOTSUPP, which libc does not name. Some BPF functions of the kernel return it.
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
