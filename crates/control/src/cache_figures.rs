//! Figures of a cache layer. Counters count from the opening of the cache.
//!
//! The groups are flattened: in JSON, all figures of a cache stand side by side in one object.

use std::{collections::BTreeMap, convert::Infallible, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::time_figures::ResponseTimes;

/// All figures of a cache.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CacheFigures {
    /// The claim on the far volume; for a common cache, on all of its volumes.
    pub claim: CacheClaim,
    /// Data that the far volume lacks.
    #[serde(flatten)]
    pub dirty: DirtyDataFigures,
    /// Calls of the hosts.
    #[serde(flatten)]
    pub requests: CacheRequestFigures,
    /// Where reads found their blocks.
    #[serde(flatten)]
    pub hits: CacheHitFigures,
    /// Writes to the far volume.
    #[serde(flatten)]
    pub destage: DestageFigures,
    /// What was measured of the link to the far volume.
    #[serde(flatten)]
    pub far_link: FarLinkFigures,
    /// Errors of the far volume.
    #[serde(flatten)]
    pub lower: LowerVolumeFigures,
    /// The log disk and the NVRAM.
    #[serde(flatten)]
    pub log: CacheLogFigures,
    /// The mirror of the log, if the log has one.
    #[serde(flatten)]
    pub mirror: Option<LogMirrorFigures>,
    /// The read tier, if there is one.
    #[serde(flatten)]
    pub tier: Option<ReadTierFigures>,
    /// Order of writes at the far volume.
    #[serde(flatten)]
    pub epochs: EpochFigures,
    /// The volumes of a common cache; `None` for a cache of one volume.
    #[serde(flatten)]
    pub members: Option<CommonCacheFigures>,
    /// Coherence tokens, if several gateways share the far volume.
    #[serde(flatten)]
    pub sharing: Option<SharingFigures>,
    /// Response times.
    #[serde(flatten)]
    pub times: CacheTimeFigures,
    /// Figures that this version does not know: the answer is from a newer process.
    #[serde(flatten)]
    pub further: Map<String, Value>,
}

/// The claim of a cache on its far volume: as long as it is held, nobody else may write there. In JSON it is one
/// string: `none`, `waiting`, `held`, `reserved`, or `fenced: ` and the reason.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(from = "String", into = "String")]
pub enum CacheClaim {
    /// There is no claim: the far side has no claims, or needs none.
    #[default]
    None,
    /// The far side is away. It is asked for the claim as soon as it is back.
    Waiting,
    /// The claim is in force.
    Held,
    /// The far side knows no claims, and the volume is reserved there (persistent reservation) instead.
    Reserved,
    /// Another gateway has the volume, or the operator has dropped the claim. The cache refuses all calls.
    Fenced(String),
    /// A word of another version of the program.
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
    /// Bytes that are in the log and not stable at the far volume.
    pub dirty_bytes: u64,
    /// Age of the oldest of these bytes, in milliseconds; never less than the true age.
    pub oldest_dirty_ms: u64,
    /// Slots of 4 KiB that wait for the log disk.
    pub pending_slots: u64,
    /// Segments written to the log.
    pub commits: u64,
    /// Slots of 4 KiB in these segments.
    pub committed_slots: u64,
    /// Dirty slots that recovery found in the log when the cache was opened.
    pub recovered_slots: u64,
    /// Acknowledged writes that recovery found in the NVRAM only.
    pub recovered_nvram: u64,
}

/// Calls of the hosts, and where they were answered.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CacheRequestFigures {
    /// Read calls.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write calls.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flush calls.
    pub flushes: u64,
    /// Discard calls.
    pub discards: u64,
    /// Reads answered from memory with blocks that were not in the log yet (STICS: in the NVRAM buffer).
    pub reads_nvram: u64,
    /// Other reads answered from memory.
    pub reads_dram: u64,
    /// Reads for which the log disk was read, and nothing below it.
    pub reads_log: u64,
    /// Reads for which the read tier was read, and not the far volume.
    pub reads_tier: u64,
    /// Reads for which the far volume was read.
    pub reads_lower: u64,
    /// Writes that went to the log, not past it.
    pub writes_near: u64,
}

/// Where reads found their blocks, in slots of 4 KiB.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CacheHitFigures {
    /// Share of the slots read that were in memory, in the log or in the read tier, from 0 to 1.
    pub hit_ratio: f64,
    /// Slots read that were not in the log yet (STICS: in the NVRAM buffer).
    pub hits_nvram: u64,
    /// Slots read that were in memory.
    pub hits_dram: u64,
    /// Slots read that were on the log disk only.
    pub hits_log: u64,
    /// Slots read that were in the read tier only.
    pub hits_tier: u64,
    /// Slots read that came from the far volume.
    pub misses: u64,
    /// Bytes fetched from the far volume, read-ahead included.
    pub fetched_bytes: u64,
    /// Bytes that were read ahead.
    pub read_ahead_bytes: u64,
    /// Slots that were read ahead and then read by a host.
    pub read_ahead_used_slots: u64,
    /// Slots that were read ahead and left memory unread.
    pub read_ahead_wasted_slots: u64,
    /// Bytes of memory that hold blocks.
    pub dram_used_bytes: u64,
    /// Bytes of memory for blocks (`dram` of the settings).
    pub dram_bytes: u64,
}

/// Destage: dirty data on its way to the far volume.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DestageFigures {
    /// Local time at which destage was paused, as `2026-11-28T09:00:00+01:00`; `None` if it is not paused.
    pub paused_since: Option<String>,
    /// Bytes per second sent now: the mean of the last one to two seconds.
    pub destage_rate_bytes: u64,
    /// Most bytes per second that may be sent; 0: none, `None`: no limit.
    pub destage_rate_limit_bytes: Option<u64>,
    /// Who has set this limit: `settings` or `control` (the control socket).
    pub destage_rate_by: String,
    /// Rounds that are complete and stable at the far volume.
    pub destage_rounds: u64,
    /// Bytes sent.
    pub destaged_bytes: u64,
    /// Writes that carried them.
    pub destaged_runs: u64,
    /// Slots that were overwritten in the log before they were sent, and were sent once for all versions.
    pub absorbed_slots: u64,
    /// Slots that were sent in one write with the slot before them.
    pub joined_slots: u64,
}

/// The link to the far volume as destage and reads measure it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct FarLinkFigures {
    /// Bytes per second that the far volume takes from destage.
    pub far_write_rate: u64,
    /// Shortest response time of a destage write, in microseconds.
    pub far_write_trip_us: u64,
    /// Bytes of destage that may be in flight so that the link is full and its queue short.
    pub far_write_window_bytes: u64,
    /// Bytes of destage in flight.
    pub far_write_under_way_bytes: u64,
    /// Highest recent rate of data from the far volume, in bytes per second.
    pub far_read_rate: u64,
    /// Shortest response time of a read of the far volume, in microseconds.
    pub far_read_trip_us: u64,
    /// Bytes of sequential reads that may be in flight.
    pub far_read_window_bytes: u64,
    /// Bytes of all reads in flight.
    pub far_read_under_way_bytes: u64,
    /// Bytes of the hosts' sequential reads that wait for room in the window.
    pub far_read_waiting_bytes: u64,
    /// Bytes of read-ahead that wait for room in the window.
    pub far_ahead_waiting_bytes: u64,
}

/// Errors of the far volume, and writes that did not get into the log.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct LowerVolumeFigures {
    /// Calls to the far volume that failed.
    pub lower_errors: u64,
    /// The present error of the far volume; `None` if its calls succeed.
    pub lower_error: Option<String>,
    /// Local time since which every call has failed with a temporary error or has had no answer; `None` if calls
    /// are answered.
    pub lower_away_since: Option<String>,
    /// Local time since which the far volume refuses destage with an error that does not pass by itself, such as no
    /// space; `None` if it accepts it.
    pub lower_refuses_since: Option<String>,
    /// Writes that went past the log: it was full or had failed, or the cache writes through.
    pub bypassed: u64,
    /// Calls refused with BUSY and without effect, because the log was full or the cache was stopping.
    pub refused_busy: u64,
}

/// The log disk and the NVRAM.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CacheLogFigures {
    /// Share of the log's room for data that is in use, in percent; at 100, hosts wait for room.
    pub log_fill_percent: u64,
    /// Seconds until the log is full at the rate of the last minute; `None` if it does not fill, or is full.
    pub log_lasts_s: Option<u64>,
    /// Bytes of the log in use.
    pub log_used_bytes: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Writes to the log disk that failed; each was repeated.
    pub log_errors: u64,
    /// The present error of the log disk; `None` if it works.
    pub log_error: Option<String>,
    /// Error of the NVRAM; `None` if it works. After an error, every write waits for the log disk until the next
    /// start.
    pub nvram_error: Option<String>,
    /// Blocks of the log that were damaged and were restored from the other half of the mirror.
    pub log_mended: u64,
    /// Dirty slots that were read and verified in the background.
    pub scrubbed_slots: u64,
    /// Times that all dirty slots have been verified.
    pub scrub_passes: u64,
    /// Dirty slots that were found to be lost, counted at each pass.
    pub rotten_slots: u64,
}

/// The mirror of a log.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct LogMirrorFigures {
    /// State of each half: in sync, being filled, or lost with the reason.
    pub log_halves: Vec<String>,
    /// Blocks that were unreadable when a half was filled, and are zeros on the new half.
    pub log_zeroed_blocks: u64,
}

/// State of a half that has all data.
pub(crate) const HALF_IN_SYNC: &str = "in sync";

/// The read tier on a local disk.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ReadTierFigures {
    /// Bytes of blocks in the read tier.
    pub tier_used_bytes: u64,
    /// Bytes of blocks for which it has room.
    pub tier_bytes: u64,
    /// Slots that it took in when they left memory.
    pub tier_admitted_slots: u64,
    /// Slots that it did not take in because its disk was behind.
    pub tier_dropped_slots: u64,
    /// Slots that were damaged on its disk, and were read from the far volume instead.
    pub tier_rotten_slots: u64,
    /// Error for which it is switched off until the next start; `None` if it works.
    pub tier_error: Option<String>,
}

/// The order in which writes reach the far volume.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct EpochFigures {
    /// What the far volume alone holds if the cache is lost, in words; docs/operation.md lists them.
    pub order: String,
    /// Destage rounds that were too large for one epoch of the far side, and were sent in parts.
    pub split_rounds: u64,
    /// Epochs that did not fit into the log and were ended before their flush.
    pub split_epochs: u64,
    /// Writes refused because the log has no room for what is between two flushes.
    pub refused_epochs: u64,
    /// Times that unflushed writes were rolled back on demand.
    pub rolled_back: u64,
    /// Segments that recovery dropped because no flush followed them.
    pub unflushed_segments: u64,
}

/// The volumes of a common cache.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CommonCacheFigures {
    /// The claim on each volume, by the volume's name.
    pub volumes: BTreeMap<String, CacheClaim>,
    /// Bytes that the log still holds of volumes that were given up, by the volume's name.
    pub given_up_bytes: BTreeMap<String, u64>,
}

/// Coherence tokens of a gateway that shares its far volume with others.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SharingFigures {
    /// True if the node knows this gateway.
    pub share_joined: bool,
    /// True while ranges held for reading may be used.
    pub share_leased: bool,
    /// Bytes of a range.
    pub share_grain_bytes: u64,
    /// Ranges held for reading.
    pub share_ranges_read: u64,
    /// Ranges held for writing.
    pub share_ranges_written: u64,
    /// Ranges given back because another gateway asked for them, or because they were unused.
    pub share_recalled: u64,
    /// Calls that waited for a token.
    pub share_waited: u64,
    /// Reason for which no range may be used any more; `None` if they may be used.
    pub share_lost: Option<String>,
}

/// Response times of a cache, and of the far volume as the cache sees them.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CacheTimeFigures {
    /// Reads of the hosts.
    pub time_read: ResponseTimes,
    /// Writes of the hosts.
    pub time_write: ResponseTimes,
    /// Flushes of the hosts.
    pub time_flush: ResponseTimes,
    /// Discards of the hosts.
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
