//! Removes clean slots from the cache when other gateways change the lower volume, and reports dirty ones.

use std::collections::BTreeSet;

use crate::{core::CacheCore, slots::sectors::SLOT_BYTES, state::CacheState};

impl CacheCore {
    /// Removes clean slots of a range; see [`crate::Cache::forget`].
    pub fn drop_clean(&self, start: u64, length: u64) -> bool {
        let slot = SLOT_BYTES as u64;
        let mut state = self.state.lock();
        (start / slot..(start + length) / slot).all(|slot| state.drop_clean(slot))
    }

    /// Returns the parts with dirty data; see [`crate::Cache::dirty_parts`].
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
    /// Removes a slot from the cache if it is clean. Returns false if it is dirty.
    pub fn drop_clean(&mut self, slot: u64) -> bool {
        self.tier.void(slot);
        let Some(index) = self.table.find(slot) else { return true };
        let entry = self.table.entry_mut(index);
        // A fetch in progress may return older content.
        entry.fetch = 0;
        if entry.pending() || entry.place.is_some() {
            return false;
        }
        self.table.drop_page(index);
        self.table.remove_if_empty(index);
        true
    }
}
