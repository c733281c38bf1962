//! Refused claims on a unit, so that a claim which is repeated is reported once.

use scsi::Sense;

/// The refused claim that an event reported last. A gateway repeats its claim every few seconds: only a claim of another
/// log, or another reason of the refusal, is reported again.
#[derive(Debug, Default)]
pub(crate) struct RefusedClaims {
    last: Option<([u8; 16], Sense)>,
}

impl RefusedClaims {
    /// Notes that the claim of a log is refused. Returns true if an event must report it.
    pub(crate) fn is_new(&mut self, log: [u8; 16], reason: Sense) -> bool {
        self.last.replace((log, reason)) != Some((log, reason))
    }
}
