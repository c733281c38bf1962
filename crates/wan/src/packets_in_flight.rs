//! The packets in flight on one direction of a link, in the order of their arrival.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    ops::Range,
    time::Instant,
};

use crate::packet::Packet;

#[derive(Debug, Default)]
pub(crate) struct PacketsInFlight {
    heap: BinaryHeap<Reverse<Arriving>>,
    /// Sum of the lengths of all packets in flight, in bytes.
    bytes: u64,
    count: u64,
}

/// Segments of one packet that arrive at the same time.
#[derive(Clone, Debug)]
pub(crate) struct Arriving {
    pub at: Instant,
    pub packet: Packet,
    pub run: Range<usize>,
    /// The number of the bit to change (see [`Packet::changed`]). Set only if `run` is a single
    /// segment.
    pub changed_bit: Option<u64>,
    /// Number of the packet in the order of sending. Among packets with the same arrival, the lowest number arrives
    /// first.
    order: u64,
}

/// Maximum number of bytes in flight in one direction: 200 ms at 10 Gbit/s. More would take memory from the programs
/// that are measured.
const MOST_BYTES: u64 = 256 << 20;

impl PacketsInFlight {
    /// Adds the segments `run` of a packet, which arrive at the time `at`. Returns false and adds
    /// nothing if more than [`MOST_BYTES`] would be in flight.
    pub fn begin(
        &mut self,
        at: Instant,
        packet: &Packet,
        run: Range<usize>,
        changed_bit: Option<u64>,
    ) -> bool {
        let bytes = run_bytes(packet, &run);
        if self.bytes + bytes > MOST_BYTES {
            return false;
        }
        self.bytes += bytes;
        self.count += 1;
        let (packet, order) = (packet.clone(), self.count);
        self.heap.push(Reverse(Arriving { at, packet, run, changed_bit, order }));
        true
    }

    /// Returns the time at which the first segments in flight arrive; `None` if there are none.
    pub fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(first)| first.at)
    }

    /// Removes and returns the segments that arrive first, if they have arrived by `now`.
    pub fn arrive(&mut self, now: Instant) -> Option<Arriving> {
        if self.next()? > now {
            return None;
        }
        let Reverse(first) = self.heap.pop()?;
        self.bytes -= run_bytes(&first.packet, &first.run);
        Some(first)
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn run_bytes(packet: &Packet, run: &Range<usize>) -> u64 {
    run.clone().map(|segment| packet.segment_bytes(segment)).sum()
}

impl PartialEq for Arriving {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Arriving {}

impl PartialOrd for Arriving {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Arriving {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn packet(bytes: usize) -> Packet {
        let mut all = vec![0; 10 + bytes];
        all[10] = 0x45;
        Packet::parse(&all).unwrap()
    }

    #[test]
    fn packets_arrive_in_order_of_time_and_then_of_entry() {
        let now = Instant::now();
        let later = now + Duration::from_millis(1);
        let mut flight = PacketsInFlight::default();
        for (at, bytes) in [(later, 100), (now, 101), (now, 102)] {
            assert!(flight.begin(at, &packet(bytes), 0..1, None));
        }
        let mut next = |at| flight.arrive(at).map(|one| one.packet.segment_bytes(0));
        assert_eq!([next(now), next(now), next(now)], [Some(101), Some(102), None]);
        assert_eq!([next(later), next(later)], [Some(100), None]);
        assert_eq!(flight.bytes(), 0);
    }

    #[test]
    fn the_bytes_in_flight_are_bounded() {
        let now = Instant::now();
        let packet = packet(60_000);
        let mut flight = PacketsInFlight::default();
        let taken = (0..10_000).filter(|_| flight.begin(now, &packet, 0..1, None)).count() as u64;
        assert_eq!(taken, MOST_BYTES / 60_000);
        flight.arrive(now).unwrap();
        assert!(flight.begin(now, &packet, 0..1, None));
    }
}
