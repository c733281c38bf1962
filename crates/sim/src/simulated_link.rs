//! One direction of a byte stream in virtual time, with a delay and a rate, and with two faults: a changed byte and a
//! cut.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};

/// Bytes in flight. They arrive in order, each byte `delay` after it was sent, and no faster than the rate. Nothing
/// is lost unless a fault is set.
#[derive(Debug)]
pub struct SimulatedLink {
    delay: Duration,
    bytes_per_second: Option<u64>,
    /// The bytes in flight with their arrival times, in the order of arrival.
    flight: VecDeque<(Instant, Bytes)>,
    /// The time at which the last byte so far leaves the sender. With a rate limit, later bytes leave after this time.
    free: Option<Instant>,
    sent: u64,
    cut_after: Option<u64>,
    corrupted: Option<(u64, u8)>,
}

impl SimulatedLink {
    /// Creates a link with this one-way delay and without a limit on its rate.
    #[must_use]
    pub fn new(delay: Duration) -> Self {
        Self {
            delay,
            bytes_per_second: None,
            flight: VecDeque::new(),
            free: None,
            sent: 0,
            cut_after: None,
            corrupted: None,
        }
    }

    /// Limits the rate of the link to `bytes_per_second`.
    ///
    /// # Panics
    /// If the rate is zero.
    #[must_use]
    pub fn with_rate(mut self, bytes_per_second: u64) -> Self {
        assert!(bytes_per_second > 0);
        self.bytes_per_second = Some(bytes_per_second);
        self
    }

    /// Cuts the link: only the first `bytes` bytes that were ever sent arrive.
    pub fn cut_after(&mut self, bytes: u64) {
        self.cut_after = Some(bytes);
    }

    /// Flips the bits of the mask `flips` in the byte at `offset`, counted from the first byte that was ever sent.
    pub fn corrupt(&mut self, offset: u64, flips: u8) {
        self.corrupted = Some((offset, flips));
    }

    /// Sends `bytes` at the time `now`. If the rate is limited, they leave only after earlier bytes have left.
    pub fn send(&mut self, bytes: &[u8], now: Instant) {
        if bytes.is_empty() {
            return;
        }
        let begin = self.free.map_or(now, |free| free.max(now));
        let left = begin + self.time_on_wire(bytes.len());
        self.free = Some(left);
        let (first, last) = (self.sent, self.sent + bytes.len() as u64);
        self.sent = last;
        let mut bytes = BytesMut::from(bytes);
        if let Some((offset, flips)) = self.corrupted
            && (first..last).contains(&offset)
        {
            bytes[(offset - first) as usize] ^= flips;
        }
        if let Some(end) = self.cut_after {
            bytes.truncate(end.saturating_sub(first).min(bytes.len() as u64) as usize);
        }
        if !bytes.is_empty() {
            self.flight.push_back((left + self.delay, bytes.freeze()));
        }
    }

    /// Returns when the next bytes arrive.
    #[must_use]
    pub fn arrival(&self) -> Option<Instant> {
        self.flight.front().map(|&(arrival, _)| arrival)
    }

    /// Returns at most `limit` of the bytes that have arrived by `now`; `None` if there are none.
    pub fn receive(&mut self, limit: usize, now: Instant) -> Option<Bytes> {
        let (arrival, bytes) = self.flight.front_mut()?;
        if *arrival > now {
            return None;
        }
        if bytes.len() > limit {
            return Some(bytes.split_to(limit));
        }
        self.flight.pop_front().map(|(_, bytes)| bytes)
    }

    /// Returns true if the link was cut and everything before the cut has been received.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cut_after.is_some_and(|end| self.sent >= end) && self.flight.is_empty()
    }

    /// Returns the number of bytes sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    fn time_on_wire(&self, bytes: usize) -> Duration {
        self.bytes_per_second.map_or(Duration::ZERO, |rate| {
            Duration::from_nanos((bytes as u128 * 1_000_000_000 / u128::from(rate)) as u64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn bytes_arrive_in_order_after_the_delay() {
        let now = Instant::now();
        let mut link = SimulatedLink::new(4 * MS);
        link.send(b"ab", now);
        link.send(b"c", now + MS);
        assert_eq!(link.arrival(), Some(now + 4 * MS));
        assert_eq!(link.receive(9, now + 3 * MS), None);
        assert_eq!(link.receive(1, now + 4 * MS).as_deref(), Some(&b"a"[..]));
        assert_eq!(link.receive(9, now + 4 * MS).as_deref(), Some(&b"b"[..]));
        assert_eq!(link.receive(9, now + 4 * MS), None);
        assert_eq!(link.receive(9, now + 5 * MS).as_deref(), Some(&b"c"[..]));
    }

    #[test]
    fn the_rate_spreads_bytes_out() {
        let now = Instant::now();
        let mut link = SimulatedLink::new(MS).with_rate(1000);
        link.send(&[0; 10], now);
        link.send(&[1; 10], now);
        assert_eq!(link.arrival(), Some(now + 11 * MS));
        assert!(link.receive(99, now + 11 * MS).is_some());
        assert_eq!(link.arrival(), Some(now + 21 * MS));
    }

    #[test]
    fn faults_hit_the_byte_they_name() {
        let now = Instant::now();
        let mut link = SimulatedLink::new(Duration::ZERO);
        link.corrupt(3, 0xff);
        link.cut_after(5);
        link.send(&[0; 2], now);
        link.send(&[0; 2], now);
        assert!(!link.is_cut());
        link.send(&[0; 2], now);
        let mut all = Vec::new();
        while let Some(bytes) = link.receive(9, now) {
            all.extend_from_slice(&bytes);
        }
        assert_eq!(all, [0, 0, 0, 0xff, 0]);
        assert!(link.is_cut());
    }
}
