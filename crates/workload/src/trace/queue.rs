//! Keeps the order of requests for the same block.

use std::collections::{HashSet, VecDeque};

use super::events::TraceEvent;

/// The blocks with a request in flight, and the requests that wait for one of these blocks. The queue sends no two
/// requests for one block at a time, since a file system does not do so either.
#[derive(Clone, Debug, Default)]
pub struct TraceQueue {
    busy: HashSet<u32>,
    held: VecDeque<TraceEvent>,
    held_in_all: u64,
}

impl TraceQueue {
    /// Takes a request that is due. Returns the request if it may be sent now. Otherwise the request waits, and
    /// [`TraceQueue::release`] returns it later.
    pub fn admit(&mut self, event: TraceEvent) -> Option<TraceEvent> {
        let waits = self.held.iter().any(|held| held.block == event.block);
        if waits || self.busy.contains(&event.block) {
            self.held_in_all += 1;
            self.held.push_back(event);
            return None;
        }
        self.busy.insert(event.block);
        Some(event)
    }

    /// Returns a waiting request whose block has become free, the longest waiting first. It may be
    /// sent now.
    pub fn release(&mut self) -> Option<TraceEvent> {
        let free = self.held.iter().position(|event| !self.busy.contains(&event.block));
        let event = self.held.remove(free?)?;
        self.busy.insert(event.block);
        Some(event)
    }

    /// Records that the request for a block was answered.
    pub fn answered(&mut self, block: u32) {
        self.busy.remove(&block);
    }

    /// Returns how many requests so far had to wait for another request for their block.
    #[must_use]
    pub fn held_in_all(&self) -> u64 {
        self.held_in_all
    }

    /// Returns the number of requests that wait for an earlier request for their block.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn requests_of_one_block_follow_each_other_and_no_other_waits() {
        let event = |block, write| TraceEvent { at: Duration::ZERO, block, write };
        let (first, second, third) = (event(7, true), event(7, false), event(7, true));
        let mut queue = TraceQueue::default();
        assert_eq!(queue.admit(first), Some(first));
        assert_eq!([queue.admit(second), queue.admit(third)], [None, None]);
        assert_eq!(queue.admit(event(8, true)), Some(event(8, true)));
        assert_eq!((queue.release(), queue.waiting(), queue.held_in_all()), (None, 2, 2));
        queue.answered(7);
        // Block 7 is free, but an earlier request for it still waits: the new request must not
        // overtake it.
        assert_eq!(queue.admit(event(7, false)), None);
        assert_eq!((queue.release(), queue.release()), (Some(second), None));
        queue.answered(7);
        assert_eq!(queue.release(), Some(third));
    }
}
