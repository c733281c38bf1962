//! Where others change the lower volume: what is clean is forgotten, what is dirty is told.

use std::collections::BTreeSet;

use crate::{core::CacheCore, slots::sectors::SLOT_BYTES, state::CacheState};

impl CacheCore {
    /// See [`crate::Cache::forget`].
    pub fn drop_clean(&self, start: u64, length: u64) -> bool {
        let slot = SLOT_BYTES as u64;
        let mut state = self.state.lock();
        (start / slot..(start + length) / slot).all(|slot| state.drop_clean(slot))
    }

    /// See [`crate::Cache::dirty_parts`].
    pub fn dirty_parts(&self, part_bytes: u64) -> Vec<u64> {
        let state = self.state.lock();
        let used = (0..state.table.indices()).filter(|index| state.table.is_used(*index));
        let entries = used.map(|index| state.table.entry(index));
        let dirty = entries.filter(|entry| entry.pending() || entry.place.is_some());
        let parts: BTreeSet<u64> =
            dirty.map(|entry| entry.slot * SLOT_BYTES as u64 / part_bytes).collect();
        parts.into_iter().collect()
    }
}

impl CacheState {
    /// Forgets a slot, if it is clean; false if it is not.
    pub fn drop_clean(&mut self, slot: u64) -> bool {
        self.tier.void(slot);
        let Some(index) = self.table.find(slot) else { return true };
        let entry = self.table.entry_mut(index);
        // What is on its way from the lower volume is of before.
        entry.fetch = 0;
        if entry.pending() || entry.place.is_some() {
            return false;
        }
        self.table.drop_page(index);
        self.table.remove_if_empty(index);
        true
    }
}
