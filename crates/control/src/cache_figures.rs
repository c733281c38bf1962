//! Figures of a cache layer. Counters start at 0 when the cache is opened.
//!
//! The groups are flattened: in JSON, all figures of a cache are fields of one object.

use std::{collections::BTreeMap, convert::Infallible, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::time_figures::ResponseTimes;

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CacheFigures {
    /// Claim on the far volume: `none`, `waiting`, `held`, `reserved`, or `fenced: ` and the reason. For a common cache,
    /// the claim on all of its volumes.
    pub claim: CacheClaim,
    /// Data that the far volume lacks.
    #[serde(flatten)]
    pub dirty: DirtyDataFigures,
    #[serde(flatten)]
    pub requests: CacheRequestFigures,
    #[serde(flatten)]
    pub hits: CacheHitFigures,
    #[serde(flatten)]
    pub destage: DestageFigures,
    /// Measurements of the link to the far volume.
    #[serde(flatten)]
    pub far_link: FarLinkFigures,
    #[serde(flatten)]
    pub lower: LowerVolumeFigures,
    #[serde(flatten)]
    pub log: CacheLogFigures,
    /// The mirror of the log, with two legs; `None` for a log without a mirror.
    #[serde(flatten)]
    pub mirror: Option<LogMirrorFigures>,
    /// The read tier; `None` for a cache without one.
    #[serde(flatten)]
    pub tier: Option<ReadTierFigures>,
    #[serde(flatten)]
    pub epochs: EpochFigures,
    /// The volumes of a common cache; `None` for a cache of one volume.
    #[serde(flatten)]
    pub members: Option<CommonCacheFigures>,
    /// Coherence tokens; `None` unless several gateways share the far volume.
    #[serde(flatten)]
    pub sharing: Option<SharingFigures>,
    #[serde(flatten)]
    pub times: CacheTimeFigures,
    /// Figures that this version of the program does not know, from a newer process.
    #[serde(flatten)]
    pub further: Map<String, Value>,
}

/// The claim of a cache on its far volume. While it is held, only this cache may write there. In JSON it is one string:
/// `none`, `waiting`, `held`, `reserved`, or `fenced: ` and the reason.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(from = "String", into = "String")]
pub enum CacheClaim {
    /// No claim: the far volume does not support claims, or needs none.
    #[default]
    None,
    /// The node does not answer. The cache requests the claim as soon as it does.
    Waiting,
    Held,
    /// The target does not support claims; a persistent reservation protects the volume instead.
    Reserved,
    /// Another gateway has obtained the claim, or the operator has dropped it; the text is the reason. The cache
    /// refuses all calls.
    Fenced(String),
    /// A word that another version of the program uses.
    Other(String),
}

const FENCED: &str = "fenced: ";

impl From<String> for CacheClaim {
    fn from(text: String) -> Self {
        match text.as_str() {
            "none" => Self::None,
            "waiting" => Self::Waiting,
            "held" => Self::Held,
            "reserved" => Self::Reserved,
            other => match other.strip_prefix(FENCED) {
                Some(reason) => Self::Fenced(reason.to_owned()),
                None => Self::Other(text),
            },
        }
    }
}

impl From<CacheClaim> for String {
    fn from(claim: CacheClaim) -> Self {
        claim.to_string()
    }
}

impl FromStr for CacheClaim {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self::from(text.to_owned()))
    }
}

impl fmt::Display for CacheClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Waiting => f.write_str("waiting"),
            Self::Held => f.write_str("held"),
            Self::Reserved => f.write_str("reserved"),
            Self::Fenced(reason) => write!(f, "{FENCED}{reason}"),
            Self::Other(word) => f.write_str(word),
        }
    }
}

/// Acknowledged data that the far volume lacks.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DirtyDataFigures {
    /// Bytes that are in the log and not yet stable on the far volume (at a node: in the file).
    pub dirty_bytes: u64,
    /// Upper bound of the age of the oldest dirty byte, in milliseconds. The log does not record when a block was
    /// written, so the age begins again at 0 at each start.
    pub oldest_dirty_ms: u64,
    /// Slots of 4 KiB that wait for the log disk.
    pub pending_slots: u64,
    /// Segments written to the log.
    pub commits: u64,
    /// Slots of 4 KiB in the segments that were written to the log.
    pub committed_slots: u64,
    /// Dirty slots that recovery found in the log when the cache was opened.
    pub recovered_slots: u64,
    /// Acknowledged writes that recovery found in the NVRAM only.
    pub recovered_nvram: u64,
}

/// Calls from the hosts, and where they were answered.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CacheRequestFigures {
    /// Reads by hosts.
    pub reads: u64,
    /// Bytes that hosts have read.
    pub read_bytes: u64,
    /// Writes by hosts.
    pub writes: u64,
    /// Bytes that hosts have written.
    pub written_bytes: u64,
    /// Flushes by hosts (SYNCHRONIZE CACHE).
    pub flushes: u64,
    /// Discards by hosts (UNMAP).
    pub discards: u64,
    /// Reads answered from memory with blocks that were not in the log yet (STICS: from the NVRAM buffer).
    pub reads_nvram: u64,
    /// Reads answered from memory, without those that `reads_nvram` counts.
    pub reads_dram: u64,
    /// Reads that used the log disk, but neither read tier nor far volume.
    pub reads_log: u64,
    /// Reads that used the read tier, but not the far volume.
    pub reads_tier: u64,
    /// Reads that used the far volume.
    pub reads_lower: u64,
    /// Writes that went to the log and did not bypass it.
    pub writes_near: u64,
}

/// The places where reads found their blocks, counted in slots of 4 KiB.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CacheHitFigures {
    /// Share of the read slots that were in memory, log or read tier, from 0 to 1.
    pub hit_ratio: f64,
    /// Slots that were not in the log yet (STICS: in the NVRAM buffer).
    pub hits_nvram: u64,
    /// Slots found in memory.
    pub hits_dram: u64,
    /// Slots found on the log disk only.
    pub hits_log: u64,
    /// Slots found in the read tier only.
    pub hits_tier: u64,
    /// Slots that were read from the far volume.
    pub misses: u64,
    /// Bytes fetched from the far volume, including read-ahead.
    pub fetched_bytes: u64,
    /// Bytes that were read ahead of the hosts.
    pub read_ahead_bytes: u64,
    /// Slots that were read ahead and then read by a host.
    pub read_ahead_used_slots: u64,
    /// Slots that were read ahead and left memory without being read.
    pub read_ahead_wasted_slots: u64,
    /// Bytes of memory that hold blocks.
    pub dram_used_bytes: u64,
    /// Bytes of memory available for blocks (`dram` of the settings).
    pub dram_bytes: u64,
}

/// Destage: sends dirty data to the far volume.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DestageFigures {
    /// Age in milliseconds at which dirty data is destaged, if nothing hinders destage (`dirty_age` of the settings).
    #[serde(default)]
    pub dirty_age_ms: u64,
    /// Local time at which destage was paused, as `2026-11-28T09:00:00+01:00`; `None` if it is not paused.
    pub paused_since: Option<String>,
    /// Present rate in bytes per second: the mean of the last one to two seconds.
    pub destage_rate_bytes: u64,
    /// Maximum rate in bytes per second: 0 sends nothing, `None` is no limit.
    pub destage_rate_limit_bytes: Option<u64>,
    /// Origin of the present rate limit: `settings` or `control` (a command on the control socket).
    pub destage_rate_by: String,
    /// Destage rounds that are complete, so that their data is stable on the far volume.
    pub destage_rounds: u64,
    /// Bytes sent to the far volume.
    pub destaged_bytes: u64,
    /// Writes that destage has sent to the far volume.
    pub destaged_runs: u64,
    /// Slots that were overwritten in the log before they were sent, so that only the newest version was sent.
    pub absorbed_slots: u64,
    /// Slots that were sent in one write together with the preceding slot.
    pub joined_slots: u64,
}

/// The link to the far volume, as destage and reads measure it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct FarLinkFigures {
    /// Rate at which the far volume accepts destage, in bytes per second.
    pub far_write_rate: u64,
    /// Shortest response time of a destage write, in microseconds.
    pub far_write_trip_us: u64,
    /// Bytes of destage that may be in flight: as many as fill the link while its queue stays short.
    pub far_write_window_bytes: u64,
    /// Bytes of destage in flight.
    pub far_write_under_way_bytes: u64,
    /// Highest recent rate of reads from the far volume, in bytes per second.
    pub far_read_rate: u64,
    /// Shortest response time of a read of the far volume, in microseconds.
    pub far_read_trip_us: u64,
    /// Bytes of sequential reads that may be in flight; other reads have no such limit.
    pub far_read_window_bytes: u64,
    /// Bytes of all reads in flight.
    pub far_read_under_way_bytes: u64,
    /// Bytes of the hosts' sequential reads that wait because the window is full.
    pub far_read_waiting_bytes: u64,
    /// Bytes of read-ahead that wait because the window is full.
    pub far_ahead_waiting_bytes: u64,
}

/// Errors of the far volume, and writes that did not go to the log.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct LowerVolumeFigures {
    /// Failed calls to the far volume.
    pub lower_errors: u64,
    /// Present error of the far volume, or `no answer` after 1.5 s without one; `None` if its calls succeed.
    pub lower_error: Option<String>,
    /// Local time since which every call has failed with a temporary error or has not been answered; `None` if calls
    /// are answered.
    pub lower_away_since: Option<String>,
    /// Local time since which the far volume has refused destage with a lasting error, such as no space; `None` after
    /// the next complete round.
    pub lower_refuses_since: Option<String>,
    /// Writes that bypassed the log because it was full or had failed, or because the cache writes through.
    pub bypassed: u64,
    /// Calls refused with BUSY because the log was full or the cache was stopping. Such a call has changed nothing.
    pub refused_busy: u64,
}

/// The log disk and the NVRAM.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CacheLogFigures {
    /// Share of the log's data space that is in use, in percent. At 100, hosts wait for space.
    pub log_fill_percent: u64,
    /// Seconds until the log is full at the rate of the last ten minutes, or at that of the last minute if this fills
    /// it within ten minutes; `None` if the log does not fill up, or is full already.
    pub log_lasts_s: Option<u64>,
    /// Bytes of the log that are in use.
    pub log_used_bytes: u64,
    /// Size of the log in bytes.
    pub log_bytes: u64,
    /// Failed writes to the log disk; each was repeated.
    pub log_errors: u64,
    /// Present error of the log disk; `None` if it works.
    pub log_error: Option<String>,
    /// Error of the NVRAM; `None` if it works. After an error, every write waits for the log disk until the next start.
    pub nvram_error: Option<String>,
    /// Corrupt blocks of the log that were repaired from the other leg of the mirror.
    pub log_mended: u64,
    /// Dirty slots that the background scrub has read and verified.
    pub scrubbed_slots: u64,
    /// Number of times that the scrub has verified all dirty slots.
    pub scrub_passes: u64,
    /// Dirty slots that were found corrupt in all copies, so that their data is lost. Each pass counts them again.
    pub rotten_slots: u64,
}

/// The mirror of a log, with two legs.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct LogMirrorFigures {
    /// State of each leg: in sync, being filled, or lost with the reason.
    pub log_halves: Vec<String>,
    /// Blocks that could not be read when a leg was filled, and are zeros on the new leg.
    pub log_zeroed_blocks: u64,
}

/// Text for the state of a mirror leg that holds all data.
pub(crate) const HALF_IN_SYNC: &str = "in sync";

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ReadTierFigures {
    /// Bytes of blocks in the read tier.
    pub tier_used_bytes: u64,
    /// Bytes of blocks for which the read tier has space.
    pub tier_bytes: u64,
    /// Slots that were written to the tier when they left memory.
    pub tier_admitted_slots: u64,
    /// Slots that were not written to the tier because its disk was too slow.
    pub tier_dropped_slots: u64,
    /// Slots whose checksum was wrong on the tier's disk. They were read from the far volume instead.
    pub tier_rotten_slots: u64,
    /// Error for which the tier is switched off until the next start; `None` if it works.
    pub tier_error: Option<String>,
}

/// The order in which writes arrive at the far volume.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct EpochFigures {
    /// Consistency that the far volume has on its own, if this cache is lost, such as "epochs, atomic".
    pub order: String,
    /// Destage rounds that were too large for one epoch of the node and were sent in several. Between these, the far
    /// volume does not hold a consistent prefix.
    pub split_rounds: u64,
    /// With `report = "at-flush"`: epochs that did not fit into the log and were ended before their flush.
    pub split_epochs: u64,
    /// With `report = "at-flush"`: writes refused because the log has no space for more data between two flushes.
    pub refused_epochs: u64,
    /// Number of times that a gateway's unflushed writes were rolled back, because its claim was replaced or because it
    /// requested this.
    pub rolled_back: u64,
    /// Segments that recovery discarded because no flush followed them.
    pub unflushed_segments: u64,
}

/// Figures of the volumes of a common cache.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CommonCacheFigures {
    /// Claim on each volume, by the volume's name.
    pub volumes: BTreeMap<String, CacheClaim>,
    /// Bytes that the log still holds of volumes removed with `forebay gateway give-up`, by the volume's name.
    pub given_up_bytes: BTreeMap<String, u64>,
}

/// Coherence tokens of a gateway that shares its far volume with others.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SharingFigures {
    /// True if the node has admitted this gateway as one that shares the volume.
    pub share_joined: bool,
    /// True while the lease is valid, so that ranges held for reading may be used.
    pub share_leased: bool,
    /// Size of a range in bytes.
    pub share_grain_bytes: u64,
    /// Ranges for which this gateway holds a coherence token for reading.
    pub share_ranges_read: u64,
    /// Ranges for which this gateway holds a coherence token for writing.
    pub share_ranges_written: u64,
    /// Ranges returned because another gateway requested them, or because they were unused.
    pub share_recalled: u64,
    /// Calls that waited for a coherence token.
    pub share_waited: u64,
    /// Reason why the gateway may use no range any more; `None` while it may.
    pub share_lost: Option<String>,
}

/// Response times of the cache to hosts, and of the far volume to the cache.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CacheTimeFigures {
    /// Reads by hosts.
    pub time_read: ResponseTimes,
    /// Writes by hosts.
    pub time_write: ResponseTimes,
    /// Flushes by hosts.
    pub time_flush: ResponseTimes,
    /// Discards by hosts.
    pub time_discard: ResponseTimes,
    /// Reads of the far volume.
    pub time_lower_read: ResponseTimes,
    /// Writes to the far volume.
    pub time_lower_write: ResponseTimes,
    /// Flushes of the far volume.
    pub time_lower_flush: ResponseTimes,
    /// Discards at the far volume.
    pub time_lower_discard: ResponseTimes,
    /// Other calls to the far volume, such as those about its claim.
    pub time_lower_other: ResponseTimes,
}
