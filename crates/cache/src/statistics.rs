//! The statistics of a cache, for the status of the program: counters, and the current state.

use std::sync::atomic::{AtomicU64, Ordering};

use volume::{TimeHistogram, TimeHistogramSnapshot};

/// [`OrderStatistics::order`] of a cache whose writes may bypass a full log: the far volume alone need not
/// hold a consistent prefix.
pub const BYPASS_ALLOWED: &str = "none (bypass allowed)";

/// Statistics of a cache at one moment, in groups. The counters start at 0 when the cache is opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheStatistics {
    pub traffic: TrafficStatistics,
    pub hits: HitStatistics,
    pub tier: TierStatistics,
    pub log: LogStatistics,
    pub scrub: ScrubStatistics,
    pub recovery: RecoveryStatistics,
    /// Data that is not in the lower volume yet, and the progress of destage.
    pub destage: DestageStatistics,
    /// The consistency of the lower volume, and epochs.
    pub order: OrderStatistics,
    pub lower: LowerStatistics,
    pub link: LinkStatistics,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrafficStatistics {
    pub reads: u64,
    /// Number of bytes that hosts have read.
    pub read_bytes: u64,
    pub writes: u64,
    /// Number of bytes that hosts have written.
    pub written_bytes: u64,
    pub discards: u64,
    pub flushes: u64,
    /// Number of writes that bypassed the log, because it was full or because of the write mode.
    pub bypassed: u64,
    /// Number of calls that were refused with BUSY, for example because the log was full or the cache was stopping.
    pub refused_busy: u64,
}

/// Where the data was found that hosts have read, and the results of read-ahead. A slot has 4096 bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HitStatistics {
    /// Number of read calls that were answered from memory, where some of the data was not in the log yet: in the NVRAM
    /// buffer, in the paper's words.
    pub reads_nvram: u64,
    /// Number of read calls that were answered from memory.
    pub reads_dram: u64,
    /// Number of read calls for which the log disk was read, and nothing below it.
    pub reads_log: u64,
    /// Number of read calls for which the read tier was read, and nothing below it.
    pub reads_tier: u64,
    /// Number of read calls for which the lower volume was read.
    pub reads_lower: u64,
    /// Number of slots read whose content was not in the log yet: in the NVRAM buffer, in the
    /// paper's words.
    pub hits_nvram: u64,
    /// Number of slots read that were found in memory.
    pub hits_dram: u64,
    /// Number of slots read that were found on the log disk only.
    pub hits_log: u64,
    /// Number of slots read that were found in the read tier only.
    pub hits_tier: u64,
    /// Number of slots read that had to come from the lower volume.
    pub misses: u64,
    /// Number of bytes fetched from the lower volume, including read-ahead.
    pub fetched_bytes: u64,
    /// Bytes fetched ahead of the host's reads.
    pub read_ahead_bytes: u64,
    /// Number of slots fetched ahead that the host has read since.
    pub read_ahead_used_slots: u64,
    /// Number of slots fetched ahead that left memory without having been read.
    pub read_ahead_wasted_slots: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct TierStatistics {
    /// Bytes of slots that the read tier holds.
    pub used_bytes: u64,
    /// Capacity of the read tier in bytes; 0 without a read tier.
    pub bytes: u64,
    /// Number of slots that were admitted to the tier when they were evicted from memory.
    pub admitted_slots: u64,
    /// Number of slots that were not admitted because the disk of the tier was too slow.
    pub dropped_slots: u64,
    /// Number of slots whose block on the disk was corrupt. They were read from the lower volume.
    pub rotten_slots: u64,
    /// The error that has switched the read tier off.
    pub error: Option<String>,
}

/// The log disk, the NVRAM, and the memory for blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogStatistics {
    /// Number of segments written to the log.
    pub commits: u64,
    /// Number of slots in all segments that were written to the log.
    pub committed_slots: u64,
    /// Number of the newest stable segment.
    pub committed_segment: u64,
    /// Number of slots that wait for the log disk.
    pub pending_slots: u64,
    /// Number of failed calls to the log disk: writes of segments, which are repeated, writes of the index, and reads
    /// of data that is to be destaged.
    pub errors: u64,
    /// Number of blocks of the log that were corrupt when they were read, and were repaired from another copy.
    pub mended: u64,
    /// The current error of the log disk; `None` while the disk works.
    pub error: Option<String>,
    /// The error of the NVRAM, if it has failed. Until the next opening every write waits for the log disk.
    pub nvram_error: Option<String>,
    /// Bytes of the log that are in use.
    pub used_bytes: u64,
    /// Size of the log in bytes.
    pub bytes: u64,
    /// Percentage of the log's space for data that is in use; 100 if hosts have to wait for space.
    pub fill_percent: u64,
    /// Seconds until the log is full at the recent rate; `None` if it does not fill, or is full.
    pub lasts_s: Option<u64>,
    /// Bytes of memory that hold blocks.
    pub dram_used_bytes: u64,
    /// Size in bytes of the memory for cached blocks.
    pub dram_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScrubStatistics {
    /// Number of dirty slots that scrubbing has checked.
    pub scrubbed_slots: u64,
    /// Number of complete passes over all dirty slots.
    pub passes: u64,
    /// Number of dirty slots whose data was found corrupt and could not be repaired. Each pass counts them again.
    pub rotten_slots: u64,
}

/// The results of the recovery at the last opening.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecoveryStatistics {
    /// Number of segments that recovery found.
    pub segments: u64,
    /// Number of dirty slots in the segments that recovery found.
    pub slots: u64,
    /// Number of acknowledged writes that were in the NVRAM only.
    pub nvram: u64,
    /// Number of segments that recovery has discarded because no flush followed them.
    pub unflushed_segments: u64,
}

/// The dirty data (not in the lower volume yet), and the progress of destage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DestageStatistics {
    /// Number of slots that are in the log and not in the lower volume.
    pub dirty_slots: u64,
    /// Bytes that are in the log and not in the lower volume.
    pub dirty_bytes: u64,
    /// Upper bound of the time that the oldest dirty slot has waited, in milliseconds.
    pub oldest_dirty_ms: u64,
    /// Slots are destaged when they have been dirty for this time in milliseconds, unless destage is paused or slow.
    pub dirty_age_ms: u64,
    /// Number of destage rounds that were completed and have moved the tail of the log.
    pub rounds: u64,
    /// Bytes of dirty data that the running destage round has sent. They count as dirty until the round ends.
    pub round_sent_bytes: u64,
    /// Bytes that destage has sent to the lower volume.
    pub destaged_bytes: u64,
    /// Number of writes to the lower volume with which destage has sent data.
    pub destaged_runs: u64,
    /// Number of slots that were destaged in the same write as the slot before them.
    pub joined_slots: u64,
    /// Number of slots that were overwritten in the log before they were destaged. The older content is sent only if it
    /// belongs to an earlier epoch.
    pub absorbed_slots: u64,
    /// Rate of destage in bytes per second, averaged over the last one to two seconds.
    pub rate: u64,
    /// Bytes that may be destaged per second. With 0, nothing is destaged; `None` means no limit.
    pub rate_limit: Option<u64>,
    /// Milliseconds since an operator has paused destage; `None` if destage is not paused.
    pub paused_ms: Option<u64>,
}

/// The consistency of the lower volume, and epochs that did not fit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OrderStatistics {
    /// How consistent the lower volume would be if this cache were lost now.
    pub order: &'static str,
    /// Number of rounds that were too large for an epoch of the lower volume and were split by a
    /// flush.
    pub split_rounds: u64,
    /// Number of epochs that did not fit into this log and were ended before their flush.
    pub split_epochs: u64,
    /// Number of writes that were refused because the log had no space for all data between two
    /// flushes.
    pub refused_epochs: u64,
    /// How often unflushed writes were rolled back on request.
    pub rolled_back: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct LowerStatistics {
    /// Number of calls to the lower volume that failed, for hosts or for destage. Destage repeats its calls until they
    /// succeed.
    pub errors: u64,
    /// The current error of the lower volume: that of the newest call, or the one with which it refuses
    /// destage.
    pub error: Option<String>,
    /// Milliseconds for which the lower volume has not answered, or has failed every call with an error that may
    /// pass by itself; `None` if it answers.
    pub away_ms: Option<u64>,
    /// True if `away_ms` counts only the wait for an answer: no call has failed.
    pub is_silent: bool,
    /// Milliseconds for which the lower volume has refused destage with an error that does not pass by
    /// itself, for example because it has no space. Other calls may succeed meanwhile; only a completed round
    /// ends this.
    pub refuses_ms: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkStatistics {
    /// The rate in bytes per second at which the lower volume has recently accepted destage, while destage
    /// did not wait for anything else.
    pub write_rate: u64,
    /// The shortest response time of a destage write, in microseconds.
    pub write_trip_us: u64,
    /// Bytes that destage may have in flight, so that the link is full and its queue short.
    pub write_window: u64,
    /// Bytes of destage writes in flight.
    pub write_under_way: u64,
    /// The highest recent rate of data from the lower volume, in bytes per second.
    pub read_rate: u64,
    /// The shortest response time of a read of the lower volume, in microseconds.
    pub read_trip_us: u64,
    /// The window of sequential reads: the bytes that may be in flight, so that the link is full and its
    /// queue short.
    pub read_window: u64,
    /// Bytes of all reads in flight.
    pub read_under_way: u64,
    /// Bytes of the hosts' sequential reads that wait for room in the window.
    pub read_waiting: u64,
    /// Bytes of read-ahead that wait for room in the window.
    pub ahead_waiting: u64,
}

/// Makes the counters of a group of [`CacheStatistics`]. The fields of the group that are not counters are
/// left at their defaults by a snapshot.
macro_rules! counters {
    ($counters:ident, $statistics:ident: $($name:ident),* $(,)?) => {
        #[derive(Default)]
        pub(crate) struct $counters {
            $(pub $name: GrowingCounter,)*
        }

        impl $counters {
            #[allow(clippy::needless_update, reason = "in some groups every field is a counter")]
            fn snapshot(&self) -> $statistics {
                $statistics { $($name: self.$name.value(),)* ..$statistics::default() }
            }
        }
    };
}

counters! { TrafficCounters, TrafficStatistics:
    reads, read_bytes, writes, written_bytes, discards, flushes, bypassed, refused_busy,
}
counters! { HitCounters, HitStatistics:
    reads_nvram, reads_dram, reads_log, reads_tier, reads_lower,
    hits_nvram, hits_dram, hits_log, hits_tier, misses, fetched_bytes, read_ahead_bytes,
}
counters! { LogCounters, LogStatistics: commits, committed_slots, errors, mended }
counters! { ScrubCounters, ScrubStatistics: scrubbed_slots, passes, rotten_slots }
counters! { RecoveryCounters, RecoveryStatistics: segments, slots, nvram, unflushed_segments }
counters! { DestageCounters, DestageStatistics:
    rounds, destaged_bytes, destaged_runs, joined_slots, absorbed_slots,
}
counters! { OrderCounters, OrderStatistics: split_rounds, split_epochs, refused_epochs, rolled_back }
counters! { LowerCounters, LowerStatistics: errors }

/// The counters from which [`CacheStatistics`] is made, in the same groups.
#[derive(Default)]
pub(crate) struct Counters {
    /// Number of calls from hosts, of all kinds.
    pub requests: GrowingCounter,
    pub traffic: TrafficCounters,
    pub hits: HitCounters,
    pub log: LogCounters,
    pub scrub: ScrubCounters,
    pub recovery: RecoveryCounters,
    pub destage: DestageCounters,
    pub order: OrderCounters,
    pub lower: LowerCounters,
}

impl Counters {
    /// Returns the values of the counters. All other statistics keep their defaults.
    pub fn snapshot(&self) -> CacheStatistics {
        CacheStatistics {
            traffic: self.traffic.snapshot(),
            hits: self.hits.snapshot(),
            log: self.log.snapshot(),
            scrub: self.scrub.snapshot(),
            recovery: self.recovery.snapshot(),
            destage: self.destage.snapshot(),
            order: self.order.snapshot(),
            lower: self.lower.snapshot(),
            ..CacheStatistics::default()
        }
    }
}

/// Histograms of response times: of the host's calls to the cache, and of the cache's calls to the lower
/// volume.
#[derive(Default)]
pub(crate) struct AllTimes {
    pub reads: TimeHistogram,
    pub writes: TimeHistogram,
    pub flushes: TimeHistogram,
    pub discards: TimeHistogram,
    pub lower_reads: TimeHistogram,
    pub lower_writes: TimeHistogram,
    pub lower_flushes: TimeHistogram,
    pub lower_discards: TimeHistogram,
    pub lower_others: TimeHistogram,
}

impl AllTimes {
    pub fn taken(&self) -> Vec<(&'static str, TimeHistogramSnapshot)> {
        [
            ("read", &self.reads),
            ("write", &self.writes),
            ("flush", &self.flushes),
            ("discard", &self.discards),
            ("lower_read", &self.lower_reads),
            ("lower_write", &self.lower_writes),
            ("lower_flush", &self.lower_flushes),
            ("lower_discard", &self.lower_discards),
            ("lower_other", &self.lower_others),
        ]
        .map(|(name, times)| (name, times.taken()))
        .into()
    }
}

#[derive(Default)]
pub(crate) struct GrowingCounter(AtomicU64);

impl GrowingCounter {
    /// Adds `n`. Returns the value before.
    pub fn add(&self, n: u64) -> u64 {
        self.0.fetch_add(n, Ordering::Relaxed)
    }

    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
