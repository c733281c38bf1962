//! The meaning of an outcome for a pending command: the kind of the outcome, and the next step for the command.

use std::time::Duration;

use iscsi::session::initiator::InitiatorCommandOutcome;
use scsi::{ScsiStatus, Sense, SenseKey};

use crate::CommandError;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum CommandOutcomeKind {
    /// The target has executed the command. Sense data, if any, is only additional information.
    Performed,
    /// The target answered with a unit attention condition. The command was not performed, and may be sent
    /// again.
    UnitAttention,
    /// The target has aborted the command without executing it, so the command may be sent again.
    Aborted,
    /// The target or the unit cannot perform the command now. It was not performed, and may be sent again.
    Busy,
    /// The target has answered in any other way, so the command has failed.
    Failed,
}

impl CommandOutcomeKind {
    pub(super) fn of(outcome: &InitiatorCommandOutcome) -> Self {
        match (outcome.status, outcome.sense.map(key_of)) {
            (ScsiStatus::Good, _) => Self::Performed,
            (ScsiStatus::CheckCondition, Some(key)) => match key {
                SenseKey::NoSense | SenseKey::RecoveredError => Self::Performed,
                SenseKey::UnitAttention => Self::UnitAttention,
                SenseKey::AbortedCommand => Self::Aborted,
                SenseKey::NotReady => Self::Busy,
                _ => Self::Failed,
            },
            (ScsiStatus::TaskAborted, _) => Self::Aborted,
            (ScsiStatus::Busy | ScsiStatus::TaskSetFull, _) => Self::Busy,
            _ => Self::Failed,
        }
    }
}

/// The next step for a command that the session has completed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum CommandVerdict {
    /// The command has succeeded, so the caller receives its data.
    Performed,
    /// The command failed: the caller gets the outcome as an error.
    Failed,
    /// The caller gets an error with this reason. The command was not performed, but must not be sent again.
    NotRepeated(&'static str),
    /// Send the command again, because it was answered with a unit attention condition.
    AfterAttention,
    /// Send the command again after finding the portal that serves the unit now.
    Elsewhere,
    /// Send the command again after a pause of this length.
    Later(Duration),
}

/// Returns the sense key that applies to the command itself. A deferred error is about an earlier command, and the
/// command that ended with it was not begun and can be sent again. It is therefore treated like a unit attention,
/// whatever its key.
fn key_of(sense: Sense) -> SenseKey {
    if sense.deferred { SenseKey::UnitAttention } else { sense.key }
}

/// Returns the error for a command that may be sent only once and has not ended with GOOD.
pub(super) fn not_repeated(why: &str) -> CommandError {
    CommandError::NotRepeated(why.into())
}

pub(super) fn error_of(outcome: InitiatorCommandOutcome) -> CommandError {
    match (outcome.status, outcome.sense) {
        (ScsiStatus::Busy | ScsiStatus::TaskSetFull, _) => CommandError::Busy,
        (_, Some(sense)) => CommandError::Check(sense),
        (status, None) => CommandError::Status(status),
    }
}
