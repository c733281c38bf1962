//! The queue before the wire. A packet that arrives while it is full is dropped.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// The packets in the queue and on the wire, with the times at which they leave. The time at which a packet leaves is
/// computed when it arrives, so no timer is needed.
#[derive(Clone, Debug, Default)]
pub(crate) struct PacketQueue {
    /// The time at which each packet leaves the sender, and its length on the wire, in order. At most
    /// `limits.packets` entries.
    waiting: VecDeque<(Instant, u64)>,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketQueueLimits {
    pub bytes: u64,
    pub packets: usize,
}

impl PacketQueue {
    /// Adds a packet. Returns the time at which it leaves, or `None` if the queue is full.
    pub fn offer(
        &mut self,
        now: Instant,
        bytes: u64,
        bits_per_second: u64,
        limits: PacketQueueLimits,
    ) -> Option<Instant> {
        self.forget(now);
        if self.bytes + bytes > limits.bytes || self.waiting.len() >= limits.packets {
            return None;
        }
        let begins = self.waiting.back().map_or(now, |(left, _)| *left);
        let left = begins + on_wire(bytes, bits_per_second);
        self.waiting.push_back((left, bytes));
        self.bytes += bytes;
        Some(left)
    }

    /// Returns the bytes in the queue and on the wire. A packet counts until it has left completely.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn forget(&mut self, now: Instant) {
        while let Some((_, bytes)) = self.waiting.front().filter(|(left, _)| *left <= now) {
            self.bytes -= bytes;
            self.waiting.pop_front();
        }
    }
}

/// Returns the time for which a packet occupies the wire, to the nearest nanosecond.
fn on_wire(bytes: u64, bits_per_second: u64) -> Duration {
    let rate = u128::from(bits_per_second);
    let nanos = (u128::from(bytes) * 8_000_000_000 + rate / 2) / rate;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const LIMITS: PacketQueueLimits = PacketQueueLimits { bytes: 5000, packets: 10 };
    /// A rate of one byte per microsecond, in bits per second.
    const RATE: u64 = 8_000_000;

    #[test]
    fn packets_leave_one_after_another() {
        let now = Instant::now();
        let mut queue = PacketQueue::default();
        let mut offer = |at, bytes| queue.offer(at, bytes, RATE, LIMITS);
        assert_eq!(offer(now, 1000), Some(now + MS));
        assert_eq!(offer(now, 2000), Some(now + 3 * MS));
        assert_eq!(offer(now + 10 * MS, 1000), Some(now + 11 * MS));
    }

    #[test]
    fn packets_that_do_not_fit_are_refused_until_others_have_left() {
        let now = Instant::now();
        let mut queue = PacketQueue::default();
        (0..5).for_each(|_| assert!(queue.offer(now, 1000, RATE, LIMITS).is_some()));
        assert_eq!(queue.bytes(), 5000);
        assert_eq!(queue.offer(now, 1, RATE, LIMITS), None);
        assert_eq!(queue.offer(now + MS, 1001, RATE, LIMITS), None);
        assert_eq!(queue.offer(now + MS, 1000, RATE, LIMITS), Some(now + 6 * MS));
    }

    #[test]
    fn packets_are_counted_too() {
        let now = Instant::now();
        let mut queue = PacketQueue::default();
        (0..10).for_each(|_| assert!(queue.offer(now, 40, RATE, LIMITS).is_some()));
        assert_eq!(queue.offer(now, 40, RATE, LIMITS), None);
    }

    #[test]
    fn a_new_rate_applies_to_later_packets() {
        let now = Instant::now();
        let mut queue = PacketQueue::default();
        assert_eq!(queue.offer(now, 4000, RATE, LIMITS), Some(now + 4 * MS));
        // After a change of the rate, the packet that already waits leaves at the time that was computed before; only
        // the new packet uses the new rate.
        assert_eq!(queue.offer(now, 1000, 10 * RATE, LIMITS), Some(now + 4 * MS + MS / 10));
        assert_eq!(queue.offer(now, 1, 10 * RATE, LIMITS), None);
    }

    #[test]
    fn the_time_on_the_wire_is_rounded_to_the_nanosecond() {
        assert_eq!(on_wire(1538, 1_000_000_000), Duration::from_nanos(12_304));
        assert_eq!(on_wire(82, 100_000_000_000), Duration::from_nanos(7));
    }
}
