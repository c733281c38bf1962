//! Locks on runs of slots. A call that bypasses the log holds one while it changes the slots in the lower
//! volume.
//!
//! While slots are locked, writes to them wait, and no destage round sends them. Reads continue.

/// The slots that are locked, in one entry for each call that is bypassing the log.
#[derive(Default)]
pub(crate) struct SlotLocks {
    list: Vec<SlotLock>,
    next: u64,
}

struct SlotLock {
    id: u64,
    first: u64,
    end: u64,
}

impl SlotLocks {
    /// Returns true if a bypassing call has locked any slot of `first .. end`.
    pub fn overlap(&self, first: u64, end: u64) -> bool {
        self.list.iter().any(|claim| claim.first < end && first < claim.end)
    }

    /// Locks the slots `first .. end` and returns the id of the lock.
    ///
    /// # Panics
    /// If any of the slots is locked already.
    pub fn insert(&mut self, first: u64, end: u64) -> u64 {
        assert!(!self.overlap(first, end), "the caller has waited for the others");
        self.next += 1;
        self.list.push(SlotLock { id: self.next, first, end });
        self.next
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn remove(&mut self, id: u64) {
        self.list.retain(|claim| claim.id != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_locks_cover_half_open_ranges() {
        let mut claims = SlotLocks::default();
        let id = claims.insert(10, 20);
        assert!(claims.overlap(19, 30) && claims.overlap(0, 11) && claims.overlap(12, 13));
        assert!(!claims.overlap(20, 30) && !claims.overlap(0, 10));
        claims.remove(id);
        assert!(!claims.overlap(10, 20));
    }
}
