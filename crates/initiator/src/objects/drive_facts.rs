//! The clock, the system ID and the boot epoch of a drive, which the initiator reads from attributes of the root.

use object::{
    AttributeId, AttributeSelection, Command, ObjectAddress, ObjectError, ObjectRequest, Timestamp,
};
use osd::BOOT_EPOCH;
use tracing::debug;

use super::{RemoteObjects, exchange::ExchangeError};
use crate::pending_commands::CommandRepetition;

/// The restarts of the drive that the initiator has noticed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DriveFacts {
    /// The generation of the session (see [`crate::RemoteSession::generation`]) in which the boot epoch was last read;
    /// `None` before the first reading.
    generation: Option<u64>,
    boot_epoch: Option<u16>,
    /// Number of the drive's present start, as this initiator counts: each restart that it notices raises the number.
    epoch: u64,
    /// The first session generation in which `epoch` was valid.
    since: u64,
}

const SYSTEM_ID: AttributeId = AttributeId::new(0x9000_0001, 0x3);
const TOTAL_CAPACITY: AttributeId = AttributeId::new(0x9000_0001, 0x80);
const USED_CAPACITY: AttributeId = AttributeId::new(0x9000_0001, 0x81);
const CLOCK: AttributeId = AttributeId::new(0x9000_0001, 0x100);

/// How far the drive's clock may be ahead of this host's, in seconds, in the order of the attempts. After a crash the
/// clock of a drive of Forebay is up to a minute ahead, and a nonce window includes the last minutes.
const CLOCK_OFFSETS: [i64; 11] = [0, 30, 60, 90, -60, -240, 240, -540, 540, -3600, 3600];

impl DriveFacts {
    /// Notes the boot epoch that the drive has reported in this session generation. If the drive reports none, each
    /// change of the generation counts as a restart.
    fn note(&mut self, generation: u64, boot_epoch: Option<u16>) {
        let is_same = match (self.boot_epoch, boot_epoch) {
            (Some(before), Some(now)) => before == now,
            _ => self.generation == Some(generation),
        };
        if !is_same {
            self.epoch += 1;
            self.since = generation;
        }
        self.boot_epoch = boot_epoch;
        self.generation = Some(self.generation.map_or(generation, |last| last.max(generation)));
    }

    /// Returns the number of the drive's start in which a command of this session generation was answered; `None` if
    /// the boot epoch was last read in an older generation.
    fn epoch_of(&self, generation: u64) -> Option<u64> {
        if self.generation.is_none_or(|known| known < generation) {
            return None;
        }
        Some(if generation >= self.since { self.epoch } else { self.epoch.saturating_sub(1) })
    }
}

impl RemoteObjects {
    /// Reads clock, system ID and boot epoch before the first command. Ignores a failure: the command then fails for
    /// the same reason, or does not need them.
    pub(super) async fn learn_once(&self) {
        if self.facts.lock().generation.is_some() {
            return;
        }
        let _learning = self.learning.lock().await;
        if self.facts.lock().generation.is_none() {
            let _ = self.learn().await;
        }
    }

    /// Returns the number of the drive's start in which a command of this session generation was answered. Asks the
    /// drive for its boot epoch if that is necessary.
    pub(super) async fn epoch_of(&self, generation: u64) -> u64 {
        if let Some(epoch) = self.facts.lock().epoch_of(generation) {
            return epoch;
        }
        let _learning = self.learning.lock().await;
        if self.facts.lock().epoch_of(generation).is_none()
            && let Err(error) = self.learn().await
        {
            // Assume the worst below: the drive was restarted, so that unflushed changes may be lost.
            debug!(%error, "cannot read the boot epoch of the drive");
        }
        let mut facts = self.facts.lock();
        if facts.epoch_of(generation).is_none() {
            facts.note(generation, None);
        }
        facts.epoch_of(generation).unwrap_or(facts.epoch)
    }

    /// Corrects the estimate of the drive's clock after the drive has refused a nonce. `named` is the time in ms that
    /// the drive has named. Without it, reads the clock, for which the credential may lack the permission.
    pub(super) async fn learn_time(&self, named: Option<u64>) -> Result<(), ObjectError> {
        match named {
            Some(time) => {
                self.link.signer.time.learn(Timestamp::from_ms(time));
                Ok(())
            }
            None => self.learn().await,
        }
    }

    /// Reads clock, system ID and boot epoch from the drive. If the drive refuses the time of the nonce, tries other
    /// times.
    pub(super) async fn learn(&self) -> Result<(), ObjectError> {
        let mut request =
            ObjectRequest::new(Command::GetAttributes { object: ObjectAddress::ROOT });
        let wanted = [SYSTEM_ID, CLOCK, BOOT_EPOCH];
        request.get = wanted.map(AttributeSelection::One).into();
        let mut offsets = CLOCK_OFFSETS.into_iter();
        let answered = loop {
            match self.link.exchange(&request, CommandRepetition::Allowed).await {
                Ok(answered) => break answered,
                Err(ExchangeError::NonceTime(Some(time))) if offsets.next().is_some() => {
                    self.link.signer.time.learn(Timestamp::from_ms(time));
                }
                Err(ExchangeError::NonceTime(_)) => match offsets.next() {
                    Some(seconds) => self.link.signer.time.assume_ahead(seconds * 1000),
                    None => {
                        let reason = "the clock of this host differs too much from the drive's";
                        return Err(ObjectError::Capability(reason.into()));
                    }
                },
                Err(error) => return Err(error.into_object_error()),
            }
        };
        for attribute in &answered.reply.attributes {
            match attribute.id {
                SYSTEM_ID => {
                    let mut system = self.link.system.lock();
                    let reported = attribute.value.as_ref().try_into().ok();
                    *system = system.or(reported);
                }
                CLOCK => {
                    if let Ok(bytes) = attribute.value.as_ref().try_into() {
                        self.link.signer.time.learn(Timestamp::from_bytes(bytes));
                    }
                }
                _ => {}
            }
        }
        let epoch = answered.reply.attributes.iter().find(|attribute| attribute.id == BOOT_EPOCH);
        let epoch = epoch.and_then(|epoch| epoch.value.as_ref().try_into().ok());
        self.facts.lock().note(answered.generation, epoch.map(u16::from_be_bytes));
        Ok(())
    }

    /// Returns the error of a full drive. Asks the drive for its used and total capacity.
    pub(super) async fn quota(&self) -> ObjectError {
        let mut request =
            ObjectRequest::new(Command::GetAttributes { object: ObjectAddress::ROOT });
        request.get = [USED_CAPACITY, TOTAL_CAPACITY].map(AttributeSelection::One).into();
        let answered = self.link.exchange(&request, CommandRepetition::Allowed).await;
        let attributes = answered.map(|answered| answered.reply.attributes).unwrap_or_default();
        let value = |at: usize| {
            let value = attributes.get(at).map(|attribute| attribute.value.as_ref());
            value.and_then(|value| value.try_into().ok()).map_or(0, u64::from_be_bytes)
        };
        ObjectError::Quota { used: value(0), limit: value(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_is_a_boot_epoch_that_differs() {
        let mut facts = DriveFacts::default();
        assert_eq!(facts.epoch_of(1), None);
        facts.note(1, Some(7));
        let first = facts.epoch_of(1).unwrap();
        assert_eq!(facts.epoch_of(2), None);
        facts.note(2, Some(7));
        assert_eq!(facts.epoch_of(2), Some(first), "a new session with the same drive");
        facts.note(4, Some(8));
        assert_eq!(facts.epoch_of(4), Some(first + 1));
        assert_eq!(facts.epoch_of(3), Some(first), "the restart may have been before or after");
    }

    #[test]
    fn a_drive_without_boot_epoch_may_have_been_restarted_in_each_generation() {
        let mut facts = DriveFacts::default();
        facts.note(1, None);
        let first = facts.epoch_of(1).unwrap();
        facts.note(1, None);
        assert_eq!(facts.epoch_of(1), Some(first));
        facts.note(2, None);
        assert_eq!(facts.epoch_of(2), Some(first + 1));
    }
}
