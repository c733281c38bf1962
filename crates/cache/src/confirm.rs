//! Advances the confirmed numbers: with each segment, with each flush that the NVRAM answers, and once a
//! second.

use std::{future::pending, sync::Arc, time::Duration};

use tokio::{task::spawn_blocking, time::sleep};

use crate::{confirmed::ConfirmedIn, state::Shared};

impl Shared {
    /// Notes the newest writes that log and NVRAM hold now. Call this before a flush or a write is answered
    /// that relies on them.
    pub fn confirm(&self) {
        let (logged, kept) = {
            let state = self.state.lock();
            (state.logged, state.kept)
        };
        self.confirming.note(logged, kept);
    }
}

/// Confirms once a second what writes alone have advanced, and makes the store of confirmed numbers stable.
pub(crate) async fn run(shared: Arc<Shared>) {
    let store = shared.confirming.store.clone();
    // Without a store only acknowledged writes in the NVRAM can be ahead of what the last segment confirmed.
    if store.is_none() && !shared.settings.nvram_is_stable() {
        return pending().await;
    }
    let mut synced = shared.confirming.noted();
    loop {
        sleep(EVERY).await;
        shared.confirm();
        let noted = shared.confirming.noted();
        if let Some(ConfirmedIn(store)) = store.clone().filter(|_| synced != noted) {
            // A store that fails says so itself. Its numbers then stay behind, which refuses no healthy log.
            let _ = spawn_blocking(move || store.sync()).await;
            synced = noted;
        }
    }
}

/// While writes are acknowledged, the numbers on stable storage are at most this old.
const EVERY: Duration = Duration::from_secs(1);
