//! What a simulated disk is like, and the disks of the papers.
//!
//! Sources: "outsourcing" is Ng et al., Obtaining High Performance for Storage Outsourcing (FAST 2002); its Table 1
//! has the means of 8 KiB accesses to a local disk, from which the times here follow: a random access is command,
//! bus, positioning and platter one after the other, a sequential read or a write into the cache is command and
//! bus. "STICS" is He, Zhang and Yang's paper, whose Table 2 has seek, latency and transfer rate.

use std::time::Duration;

/// A disk, or an array that is seen as one.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Bytes of the cache, which acknowledges writes while it has room; 0: there is none, and a write is
    /// acknowledged when it is on the platter.
    pub cache: u64,
    /// Separate runs of written blocks that the cache holds at most: disks part theirs into a few segments.
    pub runs: usize,
    /// The cache keeps its data without power: neither flush nor a stable write waits for the platter.
    pub cache_protected: bool,
    /// Accesses that are served side by side; at least 1.
    pub arms: usize,
    /// Seek and rotation before a read.
    pub read_position: Duration,
    /// Seek and rotation before a write, and in an array what parity takes.
    pub write_position: Duration,
    /// How much longer or shorter a positioning is at most, as a share of it: drawn evenly, from `seed`.
    pub spread: f64,
    /// Where the chance of `spread` comes from.
    pub seed: u64,
    /// Bytes that pass under an arm in a second; 0: in no time.
    pub media_rate: u64,
    /// From command to status of a read, without its data.
    pub read_command: Duration,
    /// Of a write.
    pub write_command: Duration,
    /// Bytes in a second between disk and host; 0: in no time.
    pub bus_rate: u64,
}

/// The names that [`Profile::named`] knows.
const NAMES: [&str; 7] =
    ["null", "ibm-dnes", "ibm-ddys", "array", "ibm-07n3200", "maxtor-as010a1", "sun18g"];
/// Segments that these disks part their cache into (IBM Ultrastar 36LZX, functional specification: up to 16).
const SEGMENTS: usize = 16;
const MIB: u64 = 1 << 20;

impl Profile {
    /// The names that there are.
    pub const NAMES: &'static [&'static str] = &NAMES;

    /// The disk of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let us = Duration::from_micros;
        let null = Self {
            cache: 0,
            runs: SEGMENTS,
            cache_protected: false,
            arms: 1,
            read_position: us(0),
            write_position: us(0),
            spread: 0.0,
            seed: 1,
            media_rate: 0,
            read_command: us(0),
            write_command: us(0),
            bus_rate: 0,
        };
        Some(match name {
            // Outsourcing, "null device": what is left is the way there.
            "null" => null,
            // Outsourcing, Table 1 (random 10.38 and 11.44 ms, sequential 0.57 and 0.40 ms), 2 MB of cache, on a
            // bus of 40 MB/s; sequential writes at 20 MB/s are as fast as its platter.
            "ibm-dnes" => Self {
                cache: 2 * MIB,
                read_position: us(9415),
                write_position: us(11_040),
                media_rate: 20_500_000,
                read_command: us(365),
                write_command: us(195),
                bus_rate: 40_000_000,
                ..null
            },
            // The same (7.50 and 5.10 ms, 0.24 and 0.27 ms), 4 MB of cache; Figure 2, E: 0.09 ms for 8 KB.
            "ibm-ddys" => Self {
                cache: 4 * MIB,
                read_position: us(7026),
                write_position: us(4866),
                media_rate: 35_000_000,
                read_command: us(150),
                write_command: us(180),
                bus_rate: 91_000_000,
                ..null
            },
            // The same (7.89 and 2.37 ms, 0.41 and 0.47 ms), 128 MB of cache over eight DDYS as RAID 5; Figure 2, E:
            // 0.11 ms for 8 KB. A small write is four accesses of about 8 ms, and eight arms share them; a quarter of
            // the writes of Table 1 hit what is in the cache already, which is a quarter of the working set, and as
            // many join a neighbour there.
            "array" => Self {
                cache: 128 * MIB,
                runs: usize::MAX,
                cache_protected: true,
                arms: 8,
                read_position: us(7246),
                write_position: us(32_000),
                media_rate: 35_000_000,
                read_command: us(300),
                write_command: us(360),
                bus_rate: 74_000_000,
                ..null
            },
            // STICS, Table 2: seek 4.9 and latency 3.0 ms, 29.8 MB/s. Command, bus and cache as of the DDYS, which is
            // of the same make and years; the table has none.
            "ibm-07n3200" => Self {
                cache: 4 * MIB,
                read_position: us(7900),
                write_position: us(7900),
                media_rate: 29_800_000,
                read_command: us(150),
                write_command: us(180),
                bus_rate: 91_000_000,
                ..null
            },
            // STICS, Table 2: 8.5 and 4.17 ms, 16.6 MB/s, 2 MB on a bus of 100 MB/s; commands as of the DNES.
            "maxtor-as010a1" => Self {
                cache: 2 * MIB,
                read_position: us(12_670),
                write_position: us(12_670),
                media_rate: 16_600_000,
                read_command: us(365),
                write_command: us(195),
                bus_rate: 100_000_000,
                ..null
            },
            // STICS, Table 2: 8.5 and 3.0 ms, 18 MB/s, 512 KB on a bus of 40 MB/s; commands as of the DNES.
            "sun18g" => Self {
                cache: MIB / 2,
                read_position: us(11_500),
                write_position: us(11_500),
                media_rate: 18_000_000,
                read_command: us(365),
                write_command: us(195),
                bus_rate: 40_000_000,
                ..null
            },
            _ => return None,
        })
    }

    /// From command to status of a read that the cache answers.
    pub(super) fn read_hit(&self, bytes: u64) -> Duration {
        self.read_command + at_rate(bytes, self.bus_rate)
    }

    /// From command to status of a write that the cache takes.
    pub(super) fn write_hit(&self, bytes: u64) -> Duration {
        self.write_command + at_rate(bytes, self.bus_rate)
    }

    /// How long so many bytes pass under an arm.
    pub(super) fn transfer(&self, bytes: u64) -> Duration {
        at_rate(bytes, self.media_rate)
    }

    /// Bytes that are read ahead of a sequential reader at most: a segment of the cache.
    pub(super) fn segment(&self) -> u64 {
        self.cache / SEGMENTS as u64
    }

    /// Segments of what was read.
    pub(super) const SEGMENTS: usize = SEGMENTS;
}

fn at_rate(bytes: u64, rate: u64) -> Duration {
    let nanoseconds = u128::from(bytes) * 1_000_000_000;
    let nanoseconds = nanoseconds.checked_div(rate.into()).unwrap_or(0);
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_its_disk() {
        for name in Profile::NAMES {
            let profile = Profile::named(name).expect("there is one");
            assert!(profile.arms > 0 && profile.runs > 0, "{name}");
        }
        assert_eq!(Profile::named("ibm"), None);
    }
}
