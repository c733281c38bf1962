//! Fetches from the lower volume or the read tier, shared by all who want the same slots.

use parking_lot::Mutex;
use tokio::sync::Notify;
use volume::{Data, Error};

use crate::tier::Stretch;

/// One read of the lower volume, or of the tier, that is under way. Whoever started it runs it; others may wait.
///
/// Entries of its slots carry its number. A write to a slot takes the number away: then the fetch
/// brings older content for that slot, and only those who came before the write may have it.
pub(crate) struct SlotFetch {
    pub id: u32,
    /// The first slot.
    pub first: u64,
    /// How many slots.
    pub count: u32,
    /// Where the read tier has them, if it has.
    pub tier: Option<Stretch>,
    outcome: Mutex<FetchResult>,
    done: Notify,
}

/// Where content was found, the nearest first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Origin {
    Memory,
    Log,
    Tier,
    Lower,
}

/// How a fetch ended.
#[derive(Clone)]
pub(crate) enum FetchResult {
    /// It has not.
    Running,
    /// The bytes of all its slots, cut short by the end of the volume, and where they were.
    Done(Origin, Result<Data, Error>),
    /// Whoever ran it gave up: try for yourself.
    Abandoned,
}

impl SlotFetch {
    pub fn new(id: u32, first: u64, count: u32, tier: Option<Stretch>) -> Self {
        Self {
            id,
            first,
            count,
            tier,
            outcome: Mutex::new(FetchResult::Running),
            done: Notify::new(),
        }
    }

    /// Ends the fetch, unless it has ended.
    pub fn finish(&self, outcome: FetchResult) {
        let mut current = self.outcome.lock();
        if matches!(*current, FetchResult::Running) {
            *current = outcome;
            self.done.notify_waiters();
        }
    }

    /// Waits for the end.
    pub async fn wait(&self) -> FetchResult {
        loop {
            let mut done = std::pin::pin!(self.done.notified());
            done.as_mut().enable();
            let outcome = self.outcome.lock().clone();
            if !matches!(outcome, FetchResult::Running) {
                return outcome;
            }
            done.await;
        }
    }
}
