//! Fetches from the lower volume, shared by all who want the same slots; and when to read ahead.

use parking_lot::Mutex;
use tokio::sync::Notify;
use volume::{Data, Error};

/// One read of the lower volume that is under way. Whoever started it runs it; others may wait.
///
/// Entries of its slots carry its number. A write to a slot takes the number away: then the fetch
/// brings older content for that slot, and only those who came before the write may have it.
pub(crate) struct Fetch {
    pub id: u32,
    /// The first slot.
    pub first: u64,
    /// How many slots.
    pub count: u32,
    outcome: Mutex<Outcome>,
    done: Notify,
}

/// How a fetch ended.
#[derive(Clone)]
pub(crate) enum Outcome {
    /// It has not.
    Running,
    /// The bytes of all its slots, cut short by the end of the volume.
    Done(Result<Data, Error>),
    /// Whoever ran it gave up: try for yourself.
    Abandoned,
}

impl Fetch {
    pub fn new(id: u32, first: u64, count: u32) -> Self {
        Self { id, first, count, outcome: Mutex::new(Outcome::Running), done: Notify::new() }
    }

    /// Ends the fetch, unless it has ended.
    pub fn finish(&self, outcome: Outcome) {
        let mut current = self.outcome.lock();
        if matches!(*current, Outcome::Running) {
            *current = outcome;
            self.done.notify_waiters();
        }
    }

    /// Waits for the end.
    pub async fn wait(&self) -> Outcome {
        loop {
            let mut done = std::pin::pin!(self.done.notified());
            done.as_mut().enable();
            let outcome = self.outcome.lock().clone();
            if !matches!(outcome, Outcome::Running) {
                return outcome;
            }
            done.await;
        }
    }
}

/// The sequential readers that were seen lately.
#[derive(Default)]
pub(crate) struct Streams {
    list: Vec<Stream>,
    clock: u64,
}

struct Stream {
    /// The sector after its last read.
    next: u64,
    /// Slots read ahead next time.
    window: u64,
    /// The slot after those read ahead.
    ahead: u64,
    used: u64,
}

impl Streams {
    /// Takes note of a read of the sectors `first .. end`. Gives the slots to read ahead, of which
    /// at most `limit`.
    pub fn note(&mut self, first: u64, end: u64, limit: u64) -> Option<(u64, u64)> {
        self.clock += 1;
        let used = self.clock;
        let Some(stream) = self.list.iter_mut().find(|stream| stream.next == first) else {
            let new = Stream { next: end, window: FIRST_WINDOW.min(limit), ahead: 0, used };
            if self.list.len() < STREAMS {
                self.list.push(new);
            } else if let Some(oldest) = self.list.iter_mut().min_by_key(|stream| stream.used) {
                *oldest = new;
            }
            return None;
        };
        stream.used = used;
        stream.next = end;
        let position = end.div_ceil(8);
        stream.ahead = stream.ahead.max(position);
        // The next piece is fetched while the reader has half a window left.
        if stream.ahead - position > stream.window / 2 {
            return None;
        }
        let start = stream.ahead;
        stream.ahead += stream.window;
        let range = (start, stream.ahead);
        stream.window = (stream.window * 2).min(limit);
        Some(range)
    }
}

/// Sequential readers told apart: one for each session of a busy gateway and some to spare.
const STREAMS: usize = 16;
/// Slots read ahead at first: 128 KiB.
const FIRST_WINDOW: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequential_reader_is_run_ahead_of_in_doubling_windows() {
        let mut streams = Streams::default();
        assert_eq!(streams.note(0, 8, 256), None);
        assert_eq!(streams.note(8, 16, 256), Some((2, 34)));
        assert_eq!(streams.note(16, 24, 256), Some((34, 98)), "32 left is half of 64");
        assert_eq!(streams.note(24, 32, 256), None);
        let sizes: Vec<_> = (4..400)
            .filter_map(|slot| streams.note(slot * 8, slot * 8 + 8, 256))
            .map(|(start, end)| end - start)
            .collect();
        assert_eq!(sizes[..3], [128, 256, 256]);
    }

    #[test]
    fn random_reads_are_not_run_ahead_of() {
        let mut streams = Streams::default();
        assert!((0..1000).all(|i| streams.note(i * 7919 * 8, i * 7919 * 8 + 8, 256).is_none()));
    }
}
