//! Unit attention conditions that wait to be reported to each nexus (SAM-5, 5.14).

use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use scsi::Sense;
use smallvec::SmallVec;

/// The unit attention conditions that one unit still has to report, for each nexus.
#[derive(Debug, Default)]
pub(crate) struct Attentions {
    /// Total number of waiting conditions. While it is 0, a command need not take the lock. Written under the
    /// lock.
    waiting: AtomicUsize,
    nexuses: Mutex<HashMap<u64, Conditions>>,
}

/// The conditions of one nexus, oldest first. No condition is in the list twice, and a reset removes all
/// earlier ones. Thus the list is never longer than the number of kinds that units raise: a reset, commands
/// cleared, and some changes of unit and target.
type Conditions = SmallVec<[Sense; 3]>;

impl Attentions {
    /// Returns true if a condition waits for some nexus.
    pub(crate) fn is_any_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Adds a nexus. Its first condition is that of a power on, since the unit is new to it.
    pub(crate) fn open(&self, nexus: u64) {
        self.change(|nexuses| {
            nexuses.insert(nexus, SmallVec::from_slice(&[Sense::POWER_ON_OCCURRED]));
        });
    }

    /// Removes a nexus that has ended.
    pub(crate) fn close(&self, nexus: u64) {
        self.change(|nexuses| {
            nexuses.remove(&nexus);
        });
    }

    /// Raises a condition for every nexus but `except`.
    pub(crate) fn raise(&self, condition: Sense, except: Option<u64>) {
        self.change(|nexuses| {
            for (number, conditions) in nexuses.iter_mut() {
                if Some(*number) == except {
                    continue;
                }
                // Drop all earlier conditions: after a reset an initiator asks for all state again (SAM-5, 5.14.3).
                if condition.asc == RESET {
                    conditions.clear();
                }
                if !conditions.contains(&condition) {
                    conditions.push(condition);
                }
            }
        });
    }

    pub(crate) fn raise_to(&self, condition: Sense, nexus: u64) {
        self.change(|nexuses| {
            if let Some(conditions) = nexuses.get_mut(&nexus)
                && !conditions.contains(&condition)
            {
                conditions.push(condition);
            }
        });
    }

    pub(crate) fn withdraw(&self, condition: Sense, nexus: u64) {
        if !self.is_any_waiting() {
            return;
        }
        self.change(|nexuses| {
            if let Some(conditions) = nexuses.get_mut(&nexus) {
                conditions.retain(|waiting| *waiting != condition);
            }
        });
    }

    /// Takes the condition of a reset, if one waits for this nexus. Only this condition is reported before a
    /// reservation conflict (SAM-5, 5.3.3).
    pub(crate) fn take_reset(&self, nexus: u64) -> Option<Sense> {
        if !self.is_any_waiting() {
            return None;
        }
        self.change(|nexuses| {
            let conditions = nexuses.get_mut(&nexus)?;
            // The condition of a reset is always the first one, because a reset removes all earlier conditions.
            (conditions.first()?.asc == RESET).then(|| conditions.remove(0))
        })
    }

    /// Removes and returns the oldest condition that waits for this nexus.
    pub(crate) fn take(&self, nexus: u64) -> Option<Sense> {
        if !self.is_any_waiting() {
            return None;
        }
        self.change(|nexuses| {
            let conditions = nexuses.get_mut(&nexus)?;
            (!conditions.is_empty()).then(|| conditions.remove(0))
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut HashMap<u64, Conditions>) -> T) -> T {
        let mut nexuses = self.nexuses.lock();
        let result = change(&mut nexuses);
        let waiting = nexuses.values().map(SmallVec::len).sum();
        self.waiting.store(waiting, Ordering::Release);
        result
    }
}

/// The additional sense code of all resets.
const RESET: u8 = 0x29;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_nexus_receives_an_attention_condition_once() {
        let attentions = Attentions::default();
        attentions.open(1);
        attentions.open(2);
        assert_eq!(attentions.take(1), Some(Sense::POWER_ON_OCCURRED));
        assert_eq!(attentions.take(1), None);
        assert_eq!(attentions.take(2), Some(Sense::POWER_ON_OCCURRED));
        assert_eq!(attentions.take(3), None);
    }

    #[test]
    fn attention_conditions_do_not_accumulate() {
        let attentions = Attentions::default();
        attentions.open(1);
        for _ in 0..10 {
            attentions.raise(Sense::CAPACITY_DATA_HAS_CHANGED, None);
            attentions.raise(Sense::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR, None);
        }
        assert_eq!(attentions.waiting.load(Ordering::Relaxed), 3);
        attentions.raise(Sense::BUS_DEVICE_RESET_FUNCTION_OCCURRED, None);
        assert_eq!(attentions.take(1), Some(Sense::BUS_DEVICE_RESET_FUNCTION_OCCURRED));
        assert_eq!(attentions.take(1), None);
    }

    #[test]
    fn a_condition_withdrawn_for_a_nexus_is_not_reported_to_it() {
        let attentions = Attentions::default();
        attentions.open(1);
        attentions.open(2);
        for nexus in [1, 2] {
            attentions.raise_to(Sense::REPORTED_LUNS_DATA_HAS_CHANGED, nexus);
        }
        attentions.withdraw(Sense::REPORTED_LUNS_DATA_HAS_CHANGED, 1);
        assert_eq!(attentions.take(1), Some(Sense::POWER_ON_OCCURRED));
        assert_eq!(attentions.take(1), None);
        attentions.take(2);
        assert_eq!(attentions.take(2), Some(Sense::REPORTED_LUNS_DATA_HAS_CHANGED));
    }

    #[test]
    fn the_nexus_that_caused_a_condition_receives_it_only_if_named() {
        let attentions = Attentions::default();
        attentions.open(1);
        attentions.open(2);
        attentions.take(1);
        attentions.take(2);
        attentions.raise(Sense::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR, Some(1));
        assert_eq!(attentions.take(1), None);
        attentions.close(2);
        assert_eq!(attentions.take(2), None);
        assert_eq!(attentions.waiting.load(Ordering::Relaxed), 0);
    }
}
