//! Converts storage errors into SCSI status and sense data. This is the only place that does that.

use scsi::{ScsiStatus, Sense};
use volume::Error;

use crate::Completion;

/// The reason why a command does not end with status GOOD.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum UnitCommandFailure {
    /// Status BUSY: the command has changed nothing, and the initiator repeats it.
    Busy,
    /// The volume did not answer a change, which may have been done. The unit may repeat the change; if that does
    /// not help, the answer is ABORTED COMMAND, after which initiators repeat the command, too.
    Unanswered,
    /// Status RESERVATION CONFLICT, since a reservation of another nexus excludes the command.
    Conflict,
    /// Status CHECK CONDITION with this sense data.
    Check(Sense),
}

/// The kind of access to the volume that failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum FailedAccessKind {
    Read,
    Write,
    /// A flush, or another call that may be repeated without harm even if it was done.
    Flush,
}

impl UnitCommandFailure {
    /// Converts an error of the volume into the failure of the command.
    ///
    /// An unreachable lower volume gives BUSY, not MEDIUM ERROR: hosts fail a request on a bad medium at
    /// once, and their file systems turn read-only, but they keep retrying on a busy disk.
    pub(crate) fn new(error: &Error, access: FailedAccessKind) -> Self {
        Self::Check(match error {
            Error::OutOfRange(_) => Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE,
            Error::ReadOnly => Sense::WRITE_PROTECTED,
            Error::Medium { extent, .. } => match access {
                FailedAccessKind::Read => {
                    Sense::UNRECOVERED_READ_ERROR.with_information(extent.lba.0)
                }
                FailedAccessKind::Write | FailedAccessKind::Flush => {
                    Sense::WRITE_ERROR.with_information(extent.lba.0)
                }
            },
            Error::NoSpace => Sense::SPACE_ALLOCATION_FAILED,
            Error::TooLong { .. } => Sense::INVALID_FIELD_IN_CDB,
            Error::Busy(_) | Error::Away(_) => return Self::Busy,
            Error::Unreachable(_) => match access {
                FailedAccessKind::Read | FailedAccessKind::Flush => return Self::Busy,
                FailedAccessKind::Write => return Self::Unanswered,
            },
            Error::Device(_) => Sense::INTERNAL_TARGET_FAILURE,
            // The unit has lost its claim on the volume. With this sense data hosts fail the request at once, or use
            // another path.
            Error::Fenced(_) => Sense::MANUAL_INTERVENTION_REQUIRED,
        })
    }
}

impl From<Sense> for UnitCommandFailure {
    fn from(sense: Sense) -> Self {
        Self::Check(sense)
    }
}

impl From<UnitCommandFailure> for Completion {
    fn from(failure: UnitCommandFailure) -> Self {
        match failure {
            UnitCommandFailure::Busy => Self::status(ScsiStatus::Busy),
            UnitCommandFailure::Unanswered => {
                Self::check_condition(Sense::LOGICAL_UNIT_COMMUNICATION_TIME_OUT)
            }
            UnitCommandFailure::Conflict => Self::status(ScsiStatus::ReservationConflict),
            UnitCommandFailure::Check(sense) => Self::check_condition(sense),
        }
    }
}

impl From<Sense> for Completion {
    fn from(sense: Sense) -> Self {
        Self::check_condition(sense)
    }
}

#[cfg(test)]
mod tests {
    use scsi::SenseKey;
    use volume::{Extent, Lba};

    use super::*;

    #[test]
    fn each_volume_error_maps_to_its_status_and_sense() {
        let extent = Extent { lba: Lba(7), blocks: 2 };
        let medium = Error::Medium { extent, reason: "scratched".into() };
        let check = |error: &Error, access, key, asc, ascq, information| {
            let sense = Sense { information, ..Sense::new(key, asc, ascq) };
            assert_eq!(
                UnitCommandFailure::new(error, access),
                UnitCommandFailure::Check(sense),
                "{error}"
            );
        };
        use FailedAccessKind::{Read, Write};
        check(&medium, Read, SenseKey::MediumError, 0x11, 0, Some(7));
        check(&medium, Write, SenseKey::MediumError, 0x0c, 0, Some(7));
        check(&Error::OutOfRange(extent), Read, SenseKey::IllegalRequest, 0x21, 0, None);
        check(&Error::ReadOnly, Write, SenseKey::DataProtect, 0x27, 0, None);
        check(&Error::NoSpace, Write, SenseKey::DataProtect, 0x27, 7, None);
        check(&Error::Device("gone".into()), Read, SenseKey::HardwareError, 0x44, 0, None);
        check(&Error::Fenced("gone".into()), Read, SenseKey::NotReady, 0x04, 3, None);
    }

    #[test]
    fn an_unreachable_lower_volume_is_never_a_medium_error() {
        for access in [FailedAccessKind::Read, FailedAccessKind::Write, FailedAccessKind::Flush] {
            assert_eq!(
                UnitCommandFailure::new(&Error::Away("link".into()), access),
                UnitCommandFailure::Busy
            );
            assert_eq!(
                UnitCommandFailure::new(&Error::Busy("log full"), access),
                UnitCommandFailure::Busy
            );
            let silent = UnitCommandFailure::new(&Error::Unreachable("link".into()), access);
            assert_eq!(silent == UnitCommandFailure::Unanswered, access == FailedAccessKind::Write);
            assert!(!matches!(silent, UnitCommandFailure::Check(_)));
        }
    }
}
