//! The parameters of a simulated disk, and the disks of the papers.
//!
//! Sources: "outsourcing" is Ng et al., Obtaining High Performance for Storage Outsourcing (FAST 2002). Its Table 1
//! has the means of 8 KiB accesses to a local disk, from which the times here follow: a random access takes command,
//! bus, positioning and platter one after the other; a sequential read or a write into the cache takes command and
//! bus. "STICS" is He, Zhang and Yang's paper; its Table 2 has seek, latency and transfer rate.

use std::time::Duration;

/// The timing of a simulated disk, or of an array that appears as one disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Bytes of the cache, which acknowledges writes while it has room. 0: the disk has no cache and acknowledges a
    /// write when it is on the platter.
    pub cache: u64,
    /// Maximum number of separate dirty runs in the cache: disks divide their cache into a few segments.
    pub runs: usize,
    /// True if the cache keeps its data in a power loss: neither flush nor a stable write waits for the platter.
    pub cache_protected: bool,
    /// Number of accesses that are served concurrently; at least 1.
    pub arms: usize,
    /// Time of seek and rotation before a read.
    pub read_position: Duration,
    /// Time of seek and rotation before a write; in an array also the accesses for parity.
    pub write_position: Duration,
    /// Maximum deviation of a positioning time, as a fraction of that time; evenly distributed.
    pub spread: f64,
    /// Seed of the random numbers for `spread`.
    pub seed: u64,
    /// Bytes per second that pass under an arm; 0: no transfer time.
    pub media_rate: u64,
    /// Time from command to status of a read, without data transfer.
    pub read_command: Duration,
    /// Time from command to status of a write, without data transfer.
    pub write_command: Duration,
    /// Bytes per second between disk and host; 0: no transfer time.
    pub bus_rate: u64,
}

const NAMES: [&str; 7] =
    ["null", "ibm-dnes", "ibm-ddys", "array", "ibm-07n3200", "maxtor-as010a1", "sun18g"];
/// Number of segments into which these disks divide their cache (IBM Ultrastar 36LZX, functional specification: up to
/// 16).
const SEGMENTS: usize = 16;
const MIB: u64 = 1 << 20;

impl Profile {
    pub const NAMES: &'static [&'static str] = &NAMES;

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
            // Outsourcing, "null device": only the time of the path to the disk remains.
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
            // Outsourcing, Table 1 (7.50 and 5.10 ms, 0.24 and 0.27 ms), 4 MB of cache; Figure 2, E: 0.09 ms for 8
            // KB.
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
            // Outsourcing, Table 1 (7.89 and 2.37 ms, 0.41 and 0.47 ms), 128 MB of cache over eight DDYS as RAID 5;
            // Figure 2, E: 0.11 ms for 8 KB. A small write is four accesses of about 8 ms, and eight arms share them;
            // a quarter of the writes of Table 1 overwrite blocks in the cache, which holds a quarter of the working
            // set, and another quarter extends a dirty run there.
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
            // STICS, Table 2: seek 4.9 and latency 3.0 ms, 29.8 MB/s. Command, bus and cache are those of the DDYS, a
            // disk of the same make and years, because the table does not have them.
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
            // STICS, Table 2: 8.5 and 4.17 ms, 16.6 MB/s, 2 MB on a bus of 100 MB/s; command times of the DNES.
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
            // STICS, Table 2: 8.5 and 3.0 ms, 18 MB/s, 512 KB on a bus of 40 MB/s; command times of the DNES.
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

    /// Returns the time from command to status of a read that the cache answers.
    pub(super) fn read_hit(&self, bytes: u64) -> Duration {
        self.read_command + at_rate(bytes, self.bus_rate)
    }

    /// Returns the time from command to status of a write that the cache takes.
    pub(super) fn write_hit(&self, bytes: u64) -> Duration {
        self.write_command + at_rate(bytes, self.bus_rate)
    }

    /// Returns the time in which `bytes` pass under an arm.
    pub(super) fn transfer(&self, bytes: u64) -> Duration {
        at_rate(bytes, self.media_rate)
    }

    /// Returns the maximum bytes that are read ahead for a sequential reader: a segment of the cache.
    pub(super) fn segment(&self) -> u64 {
        self.cache / SEGMENTS as u64
    }

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
    fn every_profile_name_has_a_profile() {
        for name in Profile::NAMES {
            let profile = Profile::named(name).expect("there is one");
            assert!(profile.arms > 0 && profile.runs > 0, "{name}");
        }
        assert_eq!(Profile::named("ibm"), None);
    }
}
