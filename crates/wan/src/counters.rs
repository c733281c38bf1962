//! The counters of one direction of an emulated link.

use serde::{Deserialize, Serialize};

/// Counters of one direction of a link, since the link was made. Lengths are those of IP packets, without overhead.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct DirectionCounters {
    pub packets: u64,
    pub bytes: u64,
    /// Packets that were neither lost nor dropped. A packet that was duplicated counts once.
    pub passed_packets: u64,
    pub passed_bytes: u64,
    pub lost: u64,
    pub queue_full: u64,
    /// Number of packets dropped because they are longer than the MTU.
    pub too_long: u64,
    /// Number of packets dropped during an outage of the link.
    pub outage: u64,
    /// Number of packets that were held back and therefore arrived out of order.
    pub reordered: u64,
    /// Packets that passed and were duplicated.
    pub duplicated: u64,
    /// Packets that passed with a changed bit.
    pub corrupted: u64,
    /// Maximum number of bytes on the wire and in the queue, with overhead.
    pub queue_most_bytes: u64,
    /// In JSON, the fields of this struct are fields of the enclosing object.
    #[serde(flatten)]
    pub background: BackgroundCounters,
    /// Packets received from the sender, by length.
    pub packets_by_length: Lengths,
}

/// Counters of the background traffic that shares the queue of a direction.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct BackgroundCounters {
    #[serde(rename = "background_tcp")]
    pub tcp: u64,
    #[serde(rename = "background_udp")]
    pub udp: u64,
    /// Bytes of the TCP and UDP packets, with overhead.
    #[serde(rename = "background_bytes")]
    pub bytes: u64,
    /// TCP and UDP packets that were dropped because the queue was full.
    #[serde(rename = "background_dropped")]
    pub dropped: u64,
}

/// Number of packets by the length of their Ethernet frame without its check sequence, as in a capture: 14 bytes more
/// than the IP packet. The classes are those of STICS, Table 3.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Lengths {
    pub to_64: u64,
    pub to_127: u64,
    pub to_255: u64,
    pub to_511: u64,
    pub to_1023: u64,
    pub from_1024: u64,
}

/// Length of the header of an Ethernet frame (IEEE 802.3) in bytes.
const FRAME_HEADER: u64 = 14;

impl Lengths {
    /// Counts a packet of `bytes` bytes, including its IP header, in its length class.
    pub(crate) fn count(&mut self, bytes: u64) {
        let class = match bytes + FRAME_HEADER {
            0..=64 => &mut self.to_64,
            65..=127 => &mut self.to_127,
            128..=255 => &mut self.to_255,
            256..=511 => &mut self.to_511,
            512..=1023 => &mut self.to_1023,
            1024.. => &mut self.from_1024,
        };
        *class += 1;
    }

    /// Returns the counts with labels for display, the shortest class first.
    #[must_use]
    pub fn classes(&self) -> [(&'static str, u64); 6] {
        [
            ("to 64", self.to_64),
            ("65-127", self.to_127),
            ("128-255", self.to_255),
            ("256-511", self.to_511),
            ("512-1023", self.to_1023),
            ("from 1024", self.from_1024),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other programs read these JSON fields, so their names must not change.
    #[test]
    fn background_traffic_has_names_of_its_own_in_json() {
        let background = BackgroundCounters { tcp: 1, udp: 2, bytes: 3, dropped: 4 };
        let counters = DirectionCounters { background, ..DirectionCounters::default() };
        let json = serde_json::to_value(counters).unwrap();
        let names = ["background_tcp", "background_udp", "background_bytes", "background_dropped"];
        assert_eq!(names.map(|name| json[name].as_u64()), [Some(1), Some(2), Some(3), Some(4)]);
        assert_eq!(serde_json::from_value::<DirectionCounters>(json).unwrap(), counters);
    }

    #[test]
    fn packets_are_counted_by_the_length_of_their_frame() {
        let mut lengths = Lengths::default();
        // A TCP acknowledgment without data has 52 bytes with its timestamps, and a full packet has 1500.
        for bytes in [40, 50, 51, 52, 113, 114, 241, 242, 497, 498, 1009, 1010, 1500, 65_535] {
            lengths.count(bytes);
        }
        assert_eq!(lengths.classes().map(|(_, count)| count), [2, 3, 2, 2, 2, 3]);
    }
}
