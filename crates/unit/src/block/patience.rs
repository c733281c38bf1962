//! Commands that are executed in steps. After the first successful step, the unit retries a failed step while the
//! volume is full or unreachable. It must not answer BUSY then: initiators read BUSY as "nothing was changed".

use std::{future::Future, time::Duration};

use scsi::Sense;
use tokio::time::{Instant, sleep};

use crate::sense::UnitCommandFailure;

/// The retry state of one command. Dropping the command, for example when a host aborts it, ends the waiting
/// at any time.
#[derive(Debug, Default)]
pub(crate) struct StepRetryWait {
    has_begun: bool,
}

impl StepRetryWait {
    /// Returns the state of a command whose first step may have changed blocks already.
    pub(crate) fn begun() -> Self {
        Self { has_begun: true }
    }

    /// Performs one step. Before the first step has succeeded, BUSY of the volume becomes the command's answer. Once an
    /// earlier step has succeeded or may have been done, a step that fails is repeated for a minute at most.
    ///
    /// # Errors
    /// The failure of the step. 08/01 with ABORTED COMMAND if the volume stayed busy for a minute; INFORMATION then has
    /// `lba`, the first block that was not done.
    pub(crate) async fn step<T, F>(
        &mut self,
        lba: u64,
        step: impl Fn() -> F,
    ) -> Result<T, UnitCommandFailure>
    where
        F: Future<Output = Result<T, UnitCommandFailure>>,
    {
        let begun = Instant::now();
        loop {
            match step().await {
                Err(UnitCommandFailure::Busy) if self.has_begun => {}
                Err(UnitCommandFailure::Unanswered) => self.has_begun = true,
                Ok(done) => {
                    self.has_begun = true;
                    return Ok(done);
                }
                failed => return failed,
            }
            if begun.elapsed() >= LONGEST {
                let sense = Sense::LOGICAL_UNIT_COMMUNICATION_TIME_OUT.with_information(lba);
                return Err(sense.into());
            }
            sleep(PAUSE).await;
        }
    }
}

/// Longest time for which a failing step is repeated. Hosts have aborted the command by then: Linux waits 30 s for an
/// answer, Windows 60 s.
const LONGEST: Duration = Duration::from_secs(60);
/// Pause between two tries. A full cache delays each try as well.
const PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_command_that_has_changed_nothing_ends_in_busy() {
        let left = Cell::new(3);
        let step = || async {
            match left.replace(left.get() - 1) {
                0 => Ok(7),
                _ => Err(UnitCommandFailure::Busy),
            }
        };
        let mut patience = StepRetryWait::default();
        assert_eq!(patience.step(5, step).await, Err(UnitCommandFailure::Busy));
        left.set(0);
        assert_eq!(patience.step(5, step).await, Ok(7));
        left.set(10);
        assert_eq!(patience.step(5, step).await, Ok(7), "after ten pauses");
        left.set(3);
        let unanswered = Cell::new(true);
        let step = || async {
            if unanswered.take() {
                return Err(UnitCommandFailure::Unanswered);
            }
            step().await
        };
        assert_eq!(
            StepRetryWait::default().step(5, step).await,
            Ok(7),
            "the first may have been done"
        );
        left.set(100_000);
        let begun = Instant::now();
        let sense = Sense::new(scsi::SenseKey::AbortedCommand, 0x08, 0x01).with_information(5);
        assert_eq!(patience.step(5, step).await, Err(UnitCommandFailure::Check(sense)));
        assert!((LONGEST..LONGEST + PAUSE).contains(&begun.elapsed()));
    }
}
