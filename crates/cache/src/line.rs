//! A queue of calls that wait for room. They are served in order of arrival: otherwise small writes would
//! take each bit of room as it becomes free and starve a large write.

use std::collections::VecDeque;

/// Waiting calls, the oldest first. Each wants a number of units, for example of log blocks.
#[derive(Default)]
pub(crate) struct WaitLine {
    waiting: VecDeque<WaitingCall>,
    next: WaitTicket,
}

struct WaitingCall {
    ticket: WaitTicket,
    wants: usize,
}

/// Identifies one call that waits in a [`WaitLine`].
pub(crate) type WaitTicket = u64;

impl WaitLine {
    /// Adds a waiting call that needs `wants` units (slots or blocks), behind all others.
    pub fn join(&mut self, wants: usize) -> WaitTicket {
        let ticket = self.next;
        self.next += 1;
        self.waiting.push_back(WaitingCall { ticket, wants });
        ticket
    }

    /// Removes a waiting call, because it got its units or timed out.
    pub fn leave(&mut self, ticket: WaitTicket) {
        if let Ok(at) = self.waiting.binary_search_by_key(&ticket, |waiting| waiting.ticket) {
            self.waiting.remove(at);
        }
    }

    /// Returns the number of units that the longest waiting call wants.
    pub fn first(&self) -> Option<usize> {
        self.waiting.front().map(|waiting| waiting.wants)
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns true if `free` units suffice for the `wants` units of the call with this ticket and for all
    /// calls before it. `None` stands for a call that has not joined the queue.
    pub fn is_due(&self, ticket: Option<WaitTicket>, wants: usize, free: usize) -> bool {
        let Some(mut spare) = free.checked_sub(wants) else { return false };
        let before = |waiting: &&WaitingCall| ticket.is_none_or(|ticket| waiting.ticket < ticket);
        for waiting in self.waiting.iter().take_while(before) {
            // Each call in the queue counts as at least one unit, so the loop ends after `free` steps at
            // the latest.
            match spare.checked_sub(waiting.wants.max(1)) {
                Some(rest) => spare = rest,
                None => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_call_does_not_overtake_a_large_call_that_waits_for_room() {
        let mut line = WaitLine::default();
        let large = line.join(10);
        let small = line.join(1);
        assert!(!line.is_due(Some(large), 10, 9) && !line.is_due(Some(small), 1, 9));
        assert!(!line.is_due(Some(small), 1, 10) && !line.is_due(None, 1, 11));
        assert!(line.is_due(Some(large), 10, 10) && line.is_due(Some(small), 1, 11));
        line.leave(large);
        assert!(line.is_due(Some(small), 1, 1) && line.is_due(None, 1, 2));
        line.leave(small);
        assert!(line.is_empty() && line.is_due(None, 3, 3));
    }
}
