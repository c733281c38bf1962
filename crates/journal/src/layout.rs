//! Layouts of the ring: the runs of blocks that segments are written to.

use crate::bytes::{put_u32, put_u64, u32_at, u64_at};

/// A run of blocks of the ring, from `first` up to but not including `end`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Zone {
    pub first: u32,
    pub end: u32,
}

impl Zone {
    pub(crate) fn contains(self, block: u32) -> bool {
        (self.first..self.end).contains(&block)
    }

    pub(crate) fn blocks(self) -> u32 {
        self.end - self.first
    }
}

/// The zones of the ring, for the segments from `first` on until the next layout begins.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SegmentLayout {
    /// Number of the first segment that was or will be written in this layout.
    pub first: u64,
    /// The block at which segment `first` begins, if the zone has room for the longest segment from there on. Otherwise
    /// the segment begins at the first block of the next zone.
    pub start: u32,
    /// The zones in the order in which they are written; the first follows the last. Each has room for the
    /// longest segment.
    pub zones: Vec<Zone>,
}

impl SegmentLayout {
    /// Returns a layout with one zone for all segments: the layout of a log that was never resized.
    pub(crate) fn whole(first: u32, end: u32) -> Self {
        Self { first: 0, start: first, zones: vec![Zone { first, end }] }
    }

    /// Returns the index of the zone that contains `block`.
    pub(crate) fn zone_of(&self, block: u32) -> Option<usize> {
        self.zones.iter().position(|zone| zone.contains(block))
    }

    /// Returns the zone after `zone`; the first zone follows the last.
    pub(crate) fn next_zone(&self, zone: usize) -> Zone {
        self.zones[(zone + 1) % self.zones.len()]
    }

    /// Returns how many blocks of the ring precede `block`. Panics if `block` is in no zone.
    pub(crate) fn offset(&self, block: u32) -> u32 {
        let zone = self.zone_of(block).expect("it is a block of the ring");
        let before: u32 = self.zones[..zone].iter().map(|zone| zone.blocks()).sum();
        before + block - self.zones[zone].first
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.zones.iter().map(|zone| zone.blocks()).sum()
    }

    /// Returns true if every zone of the layout ends at or before block `end`.
    pub fn is_before(&self, end: u32) -> bool {
        self.zones.iter().all(|zone| zone.end <= end)
    }

    /// Returns true if there is a zone, each zone has at least `longest` blocks and is inside `ring`, no two
    /// zones overlap, and `start` is in a zone.
    pub(crate) fn makes_sense(&self, ring: Zone, longest: u32) -> bool {
        let apart = |a: &Zone, b: &Zone| a.end <= b.first || b.end <= a.first;
        let zones = self.zones.iter().enumerate();
        !self.zones.is_empty()
            && self.zone_of(self.start).is_some()
            && self.zones.iter().all(|zone| {
                zone.first >= ring.first
                    && zone.end <= ring.end
                    && zone.end.checked_sub(zone.first).is_some_and(|blocks| blocks >= longest)
            })
            && zones.into_iter().all(|(at, zone)| self.zones[..at].iter().all(|z| apart(z, zone)))
    }

    pub(crate) fn encode(&self, record: &mut [u8]) {
        assert!(self.zones.len() <= MOST_ZONES, "a resize that needs more is refused");
        put_u64(record, FIRST_AT, self.first);
        put_u32(record, START_AT, self.start);
        put_u32(record, ZONE_COUNT_AT, self.zones.len() as u32);
        for (zone, at) in self.zones.iter().zip((ZONES_AT..).step_by(ZONE_BYTES)) {
            put_u32(record, at, zone.first);
            put_u32(record, at + 4, zone.end);
        }
    }

    /// Decodes a record. The caller must still check [`Self::makes_sense`], since the numbers may be
    /// arbitrary.
    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        let count = u32_at(record, ZONE_COUNT_AT) as usize;
        let zones = (ZONES_AT..).step_by(ZONE_BYTES).take(count);
        let zones = |()| {
            zones
                .map(|at| Zone { first: u32_at(record, at), end: u32_at(record, at + 4) })
                .collect()
        };
        let zones = (count <= MOST_ZONES).then_some(()).map(zones)?;
        Some(Self { first: u64_at(record, FIRST_AT), start: u32_at(record, START_AT), zones })
    }
}

/// Maximum number of layouts of live segments. A log can be resized this often before its oldest data has been
/// destaged.
pub const MOST_LAYOUTS: usize = 8;
/// Maximum number of zones of a ring. Each time that the ring grows around live segments, it gets
/// two more.
pub const MOST_ZONES: usize = 14;
pub(crate) const LAYOUT_BYTES: usize = 128;

const FIRST_AT: usize = 0;
const START_AT: usize = 8;
const ZONE_COUNT_AT: usize = 12;
const ZONES_AT: usize = 16;
const ZONE_BYTES: usize = 8;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Name, offset and length in bytes of each field of a layout record. A test compares them with
    /// docs/formats/log-disk.md.
    pub(crate) const FIELDS: &[(&str, usize, usize)] = &[
        ("first", FIRST_AT, 8),
        ("start", START_AT, 4),
        ("zone count", ZONE_COUNT_AT, 4),
        ("zones", ZONES_AT, MOST_ZONES * ZONE_BYTES),
    ];

    #[test]
    fn zones_that_overlap_or_are_too_short_are_invalid() {
        let zone = |first, end| Zone { first, end };
        let layout = |zones| SegmentLayout { first: 1, start: 20, zones };
        let makes_sense = |zones| layout(zones).makes_sense(zone(2, 100), 8);
        assert!(makes_sense(vec![zone(60, 100), zone(20, 60), zone(2, 10)]));
        assert!(!makes_sense(vec![zone(60, 101), zone(20, 60)]));
        assert!(!makes_sense(vec![zone(59, 100), zone(20, 60)]));
        assert!(!makes_sense(vec![zone(20, 27)]));
        assert!(!makes_sense(vec![zone(60, 100)]), "the start is in none");
        assert!(!makes_sense(vec![zone(60, 20)]));
        assert!(!makes_sense(Vec::new()));
    }
}
