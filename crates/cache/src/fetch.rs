//! Fetches from the lower volume or the read tier. All readers of the same slots share one fetch.

use parking_lot::Mutex;
use tokio::sync::Notify;
use volume::{Data, Error};

use crate::tier::Stretch;

/// One read of the lower volume or of the tier. The task that started it runs it; other tasks may wait for
/// it.
///
/// The entries of its slots carry its id. A write to a slot clears the id: then the fetch returns older
/// content for that slot, and only readers that came before the write may use it.
pub(crate) struct SlotFetch {
    pub id: u32,
    pub first: u64,
    pub count: u32,
    /// The blocks of these slots in the read tier, if it has all of them.
    pub tier: Option<Stretch>,
    outcome: Mutex<FetchResult>,
    done: Notify,
}

/// The source of the data that a read returns; the nearest source is first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Origin {
    Memory,
    Log,
    Tier,
    Lower,
}

#[derive(Clone)]
pub(crate) enum FetchResult {
    Running,
    /// The data of all slots, cut off at the end of the volume, and its source.
    Done(Origin, Result<Data, Error>),
    /// The task that ran the fetch was dropped. Waiting tasks fetch the data themselves.
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

    /// Ends the fetch and wakes all waiting tasks. Does nothing if it has ended already.
    pub fn finish(&self, outcome: FetchResult) {
        let mut current = self.outcome.lock();
        if matches!(*current, FetchResult::Running) {
            *current = outcome;
            self.done.notify_waiters();
        }
    }

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
