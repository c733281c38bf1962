//! What happened in one direction so far.

use serde::{Deserialize, Serialize};

/// Counts since the direction was made. Bytes are those of IP packets, without overhead.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Counters {
    /// Packets that came.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that passed, duplicates not counted.
    pub passed_packets: u64,
    /// Their bytes.
    pub passed_bytes: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets for which the queue had no room.
    pub queue_full: u64,
    /// Packets longer than the MTU.
    pub too_long: u64,
    /// Packets that came during an outage.
    pub outage: u64,
    /// Packets that passed and were held back.
    pub reordered: u64,
    /// Packets that passed twice.
    pub duplicated: u64,
    /// Packets that passed with a changed bit.
    pub corrupted: u64,
    /// Most bytes on the wire and before it, with overhead.
    pub queue_most_bytes: u64,
    /// Packets of background TCP traffic that came.
    pub background_tcp: u64,
    /// Packets of background UDP traffic that came.
    pub background_udp: u64,
    /// Bytes of both, with overhead.
    pub background_bytes: u64,
    /// Packets of both for which the queue had no room.
    pub background_dropped: u64,
}
