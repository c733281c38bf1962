//! The errors that calls to a volume return.

use std::sync::Arc;

use crate::{Extent, Reply};

/// The reply to a call of a volume.
pub type Io<'a, T> = Reply<'a, Result<T, Error>>;

/// The reason why a call failed. The volume itself stays usable.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The extent exceeds the last block.
    #[error("blocks {}..{} are outside the volume", .0.lba.0, .0.end().0)]
    OutOfRange(Extent),
    /// The volume is read-only: the write or discard has changed no data.
    #[error("the volume is read-only")]
    ReadOnly,
    /// These blocks cannot be read, or could not be written (medium error).
    #[error("medium error at block {}: {reason}", .extent.lba.0)]
    Medium {
        extent: Extent,
        /// The reason that the storage below gave.
        reason: Arc<str>,
    },
    /// The storage below has no room for a block that was not written before.
    #[error("no space left below the volume")]
    NoSpace,
    /// A buffer or a log is full: try again later. A write with this error has done nothing. A discard may have been
    /// done in part where the volume says so; repeating it is harmless.
    #[error("busy: {0}")]
    Busy(&'static str),
    /// The write needs more room than the log of the volume has when it is empty. Nothing was done.
    #[error(
        "the log can never take a write of {bytes} bytes, only one of {most} bytes: write less at once, or \
         make the log larger"
    )]
    TooLong {
        /// Bytes of the write, counted in whole slots of 4096.
        bytes: u64,
        /// The largest write in bytes that an empty log takes for certain.
        most: u64,
    },
    /// There is no connection to the storage below. The call was not sent, so nothing was done.
    #[error("the lower volume is not reachable: {0}")]
    Away(Arc<str>),
    /// The storage below does not answer. A write may have been done, as a whole or in part, or not at all.
    #[error("the lower volume does not answer: {0}")]
    Unreachable(Arc<str>),
    /// The device failed as a whole.
    #[error("device failure: {0}")]
    Device(Arc<str>),
    /// Another log has the exclusive right to write the volume (claim), so all further calls of this caller fail.
    #[error("fenced: {0}")]
    Fenced(Arc<str>),
}

impl Error {
    /// Returns true if the same call may succeed later: the storage below is full, disconnected or does not answer at
    /// the moment.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Busy(_) | Self::Away(_) | Self::Unreachable(_))
    }

    /// Converts the error of one step of a call with several steps, of which earlier ones have been done. The result is
    /// never an error that promises "nothing was done".
    #[must_use]
    pub fn after_a_part(self) -> Self {
        match self {
            Self::Away(reason) => Self::Unreachable(reason),
            Self::Busy(reason) => Self::Unreachable(reason.into()),
            error => error,
        }
    }
}
