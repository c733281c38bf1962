//! Claims: runs of slots that one call changes in the lower volume past the log.
//!
//! While slots are claimed, writes to them wait and no destage round touches them; reads go on.

/// The claims of the moment. A handful: one for each bypassed write under way.
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
    /// Whether any slot of `first .. end` is claimed.
    pub fn overlap(&self, first: u64, end: u64) -> bool {
        self.list.iter().any(|claim| claim.first < end && first < claim.end)
    }

    /// Claims the slots `first .. end`, of which none may be claimed.
    pub fn insert(&mut self, first: u64, end: u64) -> u64 {
        assert!(!self.overlap(first, end), "the caller has waited for the others");
        self.next += 1;
        self.list.push(SlotLock { id: self.next, first, end });
        self.next
    }

    /// Nothing is claimed.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Gives the slots free.
    pub fn remove(&mut self, id: u64) {
        self.list.retain(|claim| claim.id != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_half_open_runs() {
        let mut claims = SlotLocks::default();
        let id = claims.insert(10, 20);
        assert!(claims.overlap(19, 30) && claims.overlap(0, 11) && claims.overlap(12, 13));
        assert!(!claims.overlap(20, 30) && !claims.overlap(0, 10));
        claims.remove(id);
        assert!(!claims.overlap(10, 20));
    }
}
