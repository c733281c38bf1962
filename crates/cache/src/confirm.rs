//! Advances the confirmed numbers with each segment, with each flush that needs no segment because the NVRAM is
//! stable, and once a second. Also checks once a second whether a failed NVRAM is still needed.

use std::{future::pending, sync::Arc, time::Duration};

use tokio::{task::spawn_blocking, time::sleep};

use crate::{confirmed::ConfirmedIn, core::CacheCore};

impl CacheCore {
    /// Passes the newest writes that the log and the NVRAM hold now to the confirmed numbers. Call this
    /// before acknowledging a flush or a write that relies on them.
    pub fn confirm(&self) {
        let (logged, kept) = {
            let state = self.state.lock();
            (state.commits.logged, state.commits.kept)
        };
        self.confirming.note(logged, kept);
    }
}

impl CacheCore {
    /// Records in the superblock that a failed NVRAM is not needed, once the log has all of its writes: no
    /// later write is acknowledged from it. Without this record a start after a kill would be refused because
    /// the NVRAM is missing, although no data is lost. If the write of the superblock fails, it is repeated a
    /// second later.
    async fn note_needless_nvram(&self) {
        let is_needless = {
            let state = self.state.lock();
            let has_failed = state.nvram.as_ref().is_some_and(|nvram| !nvram.is_sound());
            has_failed && state.queue.is_settled() && state.commits.durable >= state.commits.kept
        };
        if is_needless && self.log.superblock.lock().await.immediate {
            let _ = self.write_superblock(|superblock| superblock.immediate = false).await;
        }
    }
}

/// Updates once a second the numbers of the newest writes that recovery is sure to find, and syncs the store that keeps
/// these numbers.
pub(crate) async fn run(shared: Arc<CacheCore>) {
    let store = shared.confirming.store.clone();
    // Without a store the loop has nothing to do unless the NVRAM holds acknowledged writes: only these can be
    // newer than what the last segment confirmed.
    if store.is_none() && !shared.rules.keeps_in_nvram {
        return pending().await;
    }
    let mut synced = shared.confirming.noted();
    loop {
        sleep(EVERY).await;
        shared.confirm();
        shared.note_needless_nvram().await;
        let noted = shared.confirming.noted();
        if let Some(ConfirmedIn(store)) = store.clone().filter(|_| synced != noted) {
            // Ignore the result: the store reports its own failures. Numbers that are too low never refuse a healthy
            // log.
            let _ = spawn_blocking(move || store.sync()).await;
            synced = noted;
        }
    }
}

/// Maximum age of the confirmed numbers on stable storage while the cache acknowledges writes.
const EVERY: Duration = Duration::from_secs(1);
