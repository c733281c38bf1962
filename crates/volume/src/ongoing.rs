//! A condition that events report when it begins and when it ends, and not in between.

use std::time::Duration;

use tokio::time::Instant;

/// Reduces the events about a condition, such as a call that fails again and again, to one when the condition begins and
/// one when it ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct OngoingCondition {
    /// The time at which the condition began, and the last time at which it was seen to hold.
    held: Option<(Instant, Instant)>,
}

/// A change of a condition, which an event reports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConditionChange {
    /// The condition holds, and did not hold before.
    Begins,
    /// The condition has ended, after it had lasted for this time.
    Ends(Duration),
}

impl OngoingCondition {
    /// Notes whether the condition holds now. Returns the change if an event must report it.
    pub fn turn(&mut self, holds: bool) -> Option<ConditionChange> {
        self.turn_after(holds, Duration::ZERO)
    }

    /// Notes whether the condition holds now, as [`Self::turn`] does, for a condition that comes and goes: it ends only
    /// when it has not held for `quiet`.
    pub fn turn_after(&mut self, holds: bool, quiet: Duration) -> Option<ConditionChange> {
        let now = Instant::now();
        match self.held {
            None if holds => {
                self.held = Some((now, now));
                Some(ConditionChange::Begins)
            }
            Some((began, _)) if holds => {
                self.held = Some((began, now));
                None
            }
            Some((began, last)) if now - last >= quiet => {
                self.held = None;
                // If no quiet time is required, the condition may have held until now.
                let end = if quiet.is_zero() { now } else { last };
                Some(ConditionChange::Ends(end - began))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn any_number_of_failures_gives_one_beginning_and_one_end_with_its_duration() {
        for failures in [1, 2, 100] {
            let mut condition = OngoingCondition::default();
            assert_eq!(condition.turn(false), None, "it works");
            let mut changes = Vec::new();
            for _ in 0..failures {
                changes.extend(condition.turn(true));
                advance(Duration::from_secs(5)).await;
            }
            changes.extend(condition.turn(false));
            changes.extend(condition.turn(false));
            let lasted = Duration::from_secs(5) * failures;
            assert_eq!(changes, [ConditionChange::Begins, ConditionChange::Ends(lasted)]);
            assert_eq!(condition.turn(true), Some(ConditionChange::Begins), "it may begin again");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_condition_that_comes_and_goes_ends_after_a_quiet_time() {
        const QUIET: Duration = Duration::from_secs(600);
        let mut condition = OngoingCondition::default();
        let mut changes = Vec::new();
        for second in 0..3000 {
            changes.extend(condition.turn_after(second < 1000 && second % 7 == 0, QUIET));
            advance(Duration::from_secs(1)).await;
        }
        let ends = ConditionChange::Ends(Duration::from_secs(994));
        assert_eq!(changes, [ConditionChange::Begins, ends]);
    }
}
