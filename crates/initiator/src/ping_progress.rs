//! Detects if bytes get through on a connection while the target has not answered a ping.

use std::time::{Duration, Instant};

/// The number of bytes that got through, and the time of the last check. If the number grows, an unanswered ping may
/// still be on its way.
///
/// - Received bytes count, since the answer to the ping may be behind them.
/// - Sent bytes that the target's host has acknowledged count up to the end of the ping, since the ping waits behind
///   them. Bytes sent after the ping do not count: the host acknowledges them even if the target's process has stopped,
///   as long as its socket buffer has room.
pub(crate) struct PingProgress {
    looked: Instant,
    /// The number of bytes that had got through at the last check.
    bytes: u64,
    /// The last ping that was passed to the kernel completely.
    given: Option<LastSentPing>,
}

#[derive(Clone, Copy)]
struct LastSentPing {
    /// The offset in the output at which the ping ends.
    end: u64,
    /// The number of bytes that the kernel had been given when the write with the end of the ping returned.
    written: u64,
}

/// Number of bytes that were transferred on a connection up to one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionProgress {
    pub(crate) read: u64,
    /// Number of sent bytes that the host of the target has acknowledged (TCP).
    pub(crate) acknowledged: u64,
}

impl PingProgress {
    pub(crate) fn new(now: Instant) -> Self {
        Self { looked: now, bytes: 0, given: None }
    }

    /// Notes that `output` bytes of the output are written, which are `written` bytes on the link. `asked` is the
    /// offset in the output at which an unanswered ping ends.
    pub(crate) fn note_written(&mut self, asked: Option<u64>, output: u64, written: u64) {
        let Some(end) = asked.filter(|end| *end <= output) else { return };
        if self.given.is_none_or(|given| given.end != end) {
            self.given = Some(LastSentPing { end, written });
        }
    }

    /// Checks the progress while the ping that ends at offset `asked` is unanswered. If more bytes got through since
    /// the last check, returns the earliest time at which this may have happened: the time of the last check, but at
    /// most `every` ago. If this process was delayed and the last check is longer ago, the connection is thus not
    /// blamed for the delay.
    pub(crate) fn look(
        &mut self,
        asked: u64,
        passed: ConnectionProgress,
        now: Instant,
        every: Duration,
    ) -> Option<Instant> {
        let given = self.given.filter(|given| given.end == asked);
        let most = given.map_or(u64::MAX, |given| given.written);
        let bytes = passed.read + passed.acknowledged.min(most);
        let more = bytes > self.bytes;
        self.bytes = self.bytes.max(bytes);
        let since = now.checked_sub(every).map_or(self.looked, |since| since.max(self.looked));
        self.looked = now;
        more.then_some(since)
    }

    /// Returns when [`Self::look`] must be called next.
    pub(crate) fn next_look(&self, every: Duration) -> Instant {
        self.looked + every
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(20);

    /// A connection with a ping that ends at byte 1000 of the output, and at byte 2000 on the link.
    struct Scene {
        progress: PingProgress,
        now: Instant,
    }

    impl Scene {
        fn new() -> Self {
            let now = Instant::now() + Duration::from_secs(60);
            let mut progress = PingProgress::new(now);
            progress.note_written(Some(1000), 500, 700);
            Self { progress, now }
        }

        fn give(&mut self) {
            self.progress.note_written(Some(1000), 1000, 2000);
        }

        /// Checks after `after_ms` milliseconds. If bytes got through, returns for how many milliseconds at most there
        /// was no progress since.
        fn look(&mut self, after_ms: u64, read: u64, acknowledged: u64) -> Option<u128> {
            self.now += Duration::from_millis(after_ms);
            let since = self.progress.look(
                1000,
                ConnectionProgress { read, acknowledged },
                self.now,
                EVERY,
            )?;
            Some((self.now - since).as_millis())
        }
    }

    #[test]
    fn progress_counts_from_the_previous_check() {
        let mut scene = Scene::new();
        assert_eq!(scene.look(20, 0, 0), None);
        assert_eq!(scene.look(20, 0, 1), Some(20));
        assert_eq!(scene.look(20, 1, 1), Some(20), "in either direction");
        assert_eq!(scene.look(5, 2, 1), Some(5));
        assert_eq!(scene.look(20, 2, 1), None);
        assert_eq!(scene.look(9000, 3, 1), Some(20), "we were not there");
        assert_eq!(scene.look(20, 3, 1), None);
    }

    #[test]
    fn progress_of_data_sent_after_the_ping_is_no_sign_of_life() {
        let mut scene = Scene::new();
        assert_eq!(scene.look(20, 0, 300), Some(20));
        scene.give();
        assert_eq!(scene.look(20, 0, 700), Some(20), "the ping waits behind it");
        // Send data after the ping, and let the host of the target acknowledge this data.
        scene.progress.note_written(Some(1000), 3000, 4000);
        assert_eq!(scene.look(20, 0, 2100), Some(20), "with the ping");
        assert_eq!(scene.look(20, 0, 2200), None);
        assert_eq!(scene.look(20, 0, 4000), None);
        assert_eq!(scene.look(20, 1, 4000), Some(20), "received bytes count");
    }

    #[test]
    fn the_next_ping_waits_for_all_data_that_was_sent_before_it() {
        let mut scene = Scene::new();
        scene.give();
        assert_eq!(scene.look(20, 0, 2500), Some(20));
        let passed = |acknowledged| ConnectionProgress { read: 0, acknowledged };
        let mut look = |acknowledged, after| {
            scene.progress.look(5000, passed(acknowledged), scene.now + after * EVERY, EVERY)
        };
        assert!(look(2600, 1).is_some());
        assert!(look(2700, 2).is_some());
    }
}
