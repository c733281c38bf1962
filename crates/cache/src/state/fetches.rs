//! The fetches from the lower volume and the read tier that are in progress.

use std::{collections::HashMap, sync::Arc};

use crate::{fetch::SlotFetch, streams::Streams, tier::TierPiece};

/// The fetches in progress, and the sequential readers that cause read-ahead.
pub(crate) struct Fetches {
    pub running: HashMap<u32, Arc<SlotFetch>>,
    /// The id of the next fetch. Zero is no id: in an entry of the slot table it means "no fetch".
    next: u32,
    pub streams: Streams,
}

impl Fetches {
    pub fn new() -> Self {
        Self { running: HashMap::new(), next: 1, streams: Streams::default() }
    }

    pub fn begin(&mut self, run: TierPiece) -> Arc<SlotFetch> {
        let id = self.next;
        self.next = self.next.checked_add(1).unwrap_or(1);
        let fetch = Arc::new(SlotFetch::new(id, run.first, run.count, run.stretch));
        self.running.insert(id, Arc::clone(&fetch));
        fetch
    }
}
