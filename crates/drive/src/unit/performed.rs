//! Counts the commands of a unit by service action.

use std::sync::atomic::{AtomicU64, Ordering};

use osd::ServiceAction;

/// Number of commands that a unit has begun, for each service action.
#[derive(Debug)]
pub struct PerformedCounters([AtomicU64; ServiceAction::ALL.len()]);

impl Default for PerformedCounters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl PerformedCounters {
    pub fn count(&self, action: ServiceAction) {
        // The list of all actions is sorted by code.
        if let Ok(at) = ServiceAction::ALL.binary_search(&action) {
            self.0[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the service actions that have occurred, and how often.
    pub fn counted(&self) -> impl Iterator<Item = (ServiceAction, u64)> + '_ {
        let counts = ServiceAction::ALL.iter().zip(&self.0);
        counts
            .map(|(action, count)| (*action, count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_action_is_counted_on_its_own() {
        let counters = PerformedCounters::default();
        for action in ServiceAction::ALL {
            counters.count(*action);
        }
        counters.count(ServiceAction::Read);
        assert_eq!(counters.counted().count(), ServiceAction::ALL.len());
        for (action, count) in counters.counted() {
            assert_eq!(count, if action == ServiceAction::Read { 2 } else { 1 });
        }
    }
}
