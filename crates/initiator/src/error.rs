//! The errors of connections and commands, and the only place where the error of a command becomes that of a volume.

use std::{io, sync::Arc};

use iscsi::{codec, login::LoginFailure, session::initiator, session::initiator::CommandFailure};
use scsi::{ScsiStatus, Sense, SenseKey};
use volume::Extent;

/// Returns true if the sense data says that the unit has refused our claim, or that another owner has taken over the
/// unit: DATA PROTECT with vendor specific codes (`docs/protocols.md`).
pub(crate) fn is_refusal(sense: &Sense) -> bool {
    (sense.key, sense.asc) == (SenseKey::DataProtect, 0x27) && (0x80..=0x87).contains(&sense.ascq)
}

/// The reason why a connection or session failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The location of the volume is unknown.
    #[error("cannot find the volume: {0}")]
    NotLocated(Arc<str>),
    #[error("cannot connect to {portal}: {reason}")]
    Connect { portal: Arc<str>, reason: Arc<str> },
    /// One end does not accept the other's certificate, or only one of them uses TLS. Retries fail until an operator
    /// changes that.
    #[error("TLS: {0}")]
    Tls(transport::Distrust),
    #[error("cannot log in: {0}")]
    Login(#[from] LoginFailure),
    /// The target has redirected the login too often.
    #[error("the target redirects the login too often, last to {0}")]
    Redirected(Arc<str>),
    /// A time-out of the settings has expired.
    #[error("no answer in time: {0}")]
    TimedOut(&'static str),
    #[error("the target closed the connection")]
    Closed,
    /// The operating system reports that the connection is broken.
    #[error("the connection is broken: {0}")]
    Io(Arc<str>),
    #[error("the connection was dropped: {0}")]
    Dropped(#[from] initiator::InitiatorSessionError),
    /// The unit has answered a command in a way that makes the unit unusable.
    #[error("the unit cannot be used: {0}")]
    Unit(Arc<str>),
    /// The unit exists, but is not served at this portal: NOT READY, manual intervention required.
    #[error("the unit is not served at this portal: {0}")]
    NotServed(Sense),
    /// The target has another unit where the expected one was.
    #[error("{0}")]
    Changed(Arc<str>),
    /// Another gateway has the exclusive right to write the unit: the unit refuses this gateway's claim.
    #[error("{0}")]
    Fenced(Arc<str>),
    /// A login at this portal would not end the lost session, which may still execute late writes. No command is sent
    /// through this portal.
    #[error(
        "{portal} belongs to portal group {tag}, and the lost session to group {before}, so a login there \
         would not end it: a late write of the lost session could overwrite newer data"
    )]
    OtherGroup { portal: Arc<str>, tag: u16, before: u16 },
}

/// Returns true for the sense data of a gateway that is fenced or has handed over its log. The unit must then be served
/// elsewhere.
pub(crate) fn is_not_served(sense: &Sense) -> bool {
    (sense.key, sense.asc, sense.ascq) == (SenseKey::NotReady, 0x04, 0x03) && !sense.deferred
}

impl Error {
    /// Returns the seconds to wait before the next connection attempt, if the target has stated a time.
    pub(crate) fn time2wait(&self) -> Option<u16> {
        match self {
            Self::Dropped(error) => error.time2wait(),
            _ => None,
        }
    }

    pub(crate) fn unit(reason: impl Into<Arc<str>>) -> Self {
        Self::Unit(reason.into())
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match transport::distrust(&error) {
            Some(distrust) => Self::Tls(distrust),
            None => Self::Io(error.to_string().into()),
        }
    }
}

impl From<codec::CodecError> for Error {
    fn from(error: codec::CodecError) -> Self {
        Self::Dropped(error.into())
    }
}

/// The reason why a command failed, after all retries.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommandError {
    /// Without a connection, the command was not sent.
    #[error("{0}")]
    Away(Arc<str>),
    /// The target has not answered the command, which may have been executed.
    #[error("{0}")]
    Unreachable(Arc<str>),
    /// Another unit was found in place of the expected one. The command is not sent to it.
    #[error("{0}")]
    Changed(Arc<str>),
    /// Another gateway has the exclusive right to write the unit, so the command was not sent.
    #[error("{0}")]
    Fenced(Arc<str>),
    /// The target was busy until the time-out. The command was not performed.
    #[error("the target is busy")]
    Busy,
    /// The command may be sent only once, and it is not known if the target has performed it.
    #[error("the command cannot be sent again: {0}")]
    NotRepeated(Arc<str>),
    /// The command failed with status CHECK CONDITION and this sense data.
    #[error("{0}")]
    Check(Sense),
    /// The command failed with this status, which is not GOOD, and without sense data.
    #[error("the target ended the command with {0:?}")]
    Status(ScsiStatus),
    /// The command ended without a SCSI status.
    #[error("{0}")]
    Failed(#[from] CommandFailure),
}

/// The error of a read when the gateway that has claimed the unit is disconnected and has destaged only a part of an
/// epoch (7/27/88, `docs/protocols.md`).
const HALF_AN_EPOCH: &str = "the gateway that has claimed the unit was lost in the middle of a destage \
     round, so the unit holds no consistent prefix; start the gateway again, or discard the data in its \
     log with `forebay claim drop` at the node";

impl CommandError {
    /// Returns true if the error says that the target does not support the command or one of its fields.
    pub(crate) fn is_not_supported(&self) -> bool {
        matches!(self, Self::Check(sense) if sense.key == SenseKey::IllegalRequest && !sense.deferred
            && matches!(sense.asc, 0x20 | 0x24 | 0x26))
    }

    /// Returns true if the error guarantees that the command was not performed.
    pub(crate) fn is_not_performed(&self) -> bool {
        match self {
            Self::Busy => true,
            Self::Check(sense) => {
                matches!(sense.key, SenseKey::NotReady | SenseKey::UnitAttention) && !sense.deferred
            }
            _ => false,
        }
    }

    /// Converts the error to one of a volume. `extent` is the range of blocks of the command.
    pub(crate) fn into_volume_error(self, extent: Extent) -> volume::Error {
        let reason: Arc<str> = self.to_string().into();
        match self {
            Self::Away(reason) => volume::Error::Away(reason),
            Self::Unreachable(reason) => volume::Error::Unreachable(reason),
            Self::Changed(reason) | Self::NotRepeated(reason) => volume::Error::Device(reason),
            Self::Fenced(reason) => volume::Error::Fenced(reason),
            Self::Busy => volume::Error::Busy("the remote target is busy"),
            Self::Check(sense) if sense.deferred => volume::Error::Device(reason),
            Self::Check(sense) if is_refusal(&sense) => volume::Error::Fenced(reason),
            Self::Check(sense) => match (sense.key, sense.asc, sense.ascq) {
                (SenseKey::MediumError, ..) => volume::Error::Medium { extent, reason },
                (SenseKey::DataProtect, 0x27, 0x07) => volume::Error::NoSpace,
                (SenseKey::DataProtect, 0x27, 0x88) => volume::Error::Device(HALF_AN_EPOCH.into()),
                (SenseKey::DataProtect, ..) => volume::Error::ReadOnly,
                (SenseKey::IllegalRequest, 0x21, 0x00) => volume::Error::OutOfRange(extent),
                // The storage below the target does not answer at present, and the command was not executed.
                (SenseKey::NotReady | SenseKey::UnitAttention, ..) => volume::Error::Away(reason),
                // The storage below the target stopped answering during the command, which may have been performed.
                (SenseKey::AbortedCommand, ..) => volume::Error::Unreachable(reason),
                _ => volume::Error::Device(reason),
            },
            // The command may or may not have been executed.
            Self::Failed(CommandFailure::TimedOut) | Self::Status(ScsiStatus::TaskAborted) => {
                volume::Error::Unreachable(reason)
            }
            Self::Status(_) | Self::Failed(_) => volume::Error::Device(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use volume::Lba;

    use super::*;

    #[test]
    fn a_volume_error_says_what_the_caller_can_do() {
        let extent = Extent { lba: Lba(7), blocks: 1 };
        let map = |key, asc, ascq| {
            CommandError::Check(Sense::new(key, asc, ascq)).into_volume_error(extent)
        };
        use volume::Error;
        assert!(matches!(map(SenseKey::MediumError, 0x11, 0), Error::Medium { .. }));
        assert!(matches!(map(SenseKey::DataProtect, 0x27, 0x07), Error::NoSpace));
        assert!(matches!(map(SenseKey::DataProtect, 0x27, 0x00), Error::ReadOnly));
        assert!(matches!(map(SenseKey::DataProtect, 0x27, 0x88), Error::Device(_)));
        assert!(matches!(map(SenseKey::IllegalRequest, 0x21, 0x00), Error::OutOfRange(_)));
        assert!(matches!(map(SenseKey::IllegalRequest, 0x20, 0x00), Error::Device(_)));
        assert!(matches!(map(SenseKey::NotReady, 0x04, 0x01), Error::Away(_)));
        assert!(matches!(map(SenseKey::AbortedCommand, 0x08, 0x01), Error::Unreachable(_)));
        assert!(matches!(map(SenseKey::HardwareError, 0x44, 0x00), Error::Device(_)));
        let failed = CommandError::Failed(CommandFailure::TimedOut).into_volume_error(extent);
        assert!(matches!(failed, Error::Unreachable(_)));
        assert!(matches!(CommandError::Busy.into_volume_error(extent), Error::Busy(_)));
    }
}
