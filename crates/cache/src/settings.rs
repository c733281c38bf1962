//! The settings of a cache: sizes, thresholds and modes, as data with documented defaults.

use std::ops::RangeInclusive;

use journal::{MAX_SEGMENT_SLOTS, MIN_SEGMENT_SLOTS, seal::LogKey};
use serde::Deserialize;

use crate::confirmed::{BootId, ConfirmedIn};

/// The moment at which a write is acknowledged (STICS 5.1).
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum WriteMode {
    /// The cache acknowledges a write when it is stable on the log disk.
    #[default]
    AfterComplete,
    /// A write is acknowledged when it is in the NVRAM. Flushes and writes with FUA still wait for the log disk,
    /// unless the NVRAM survives the loss of power.
    Immediate,
    /// A write is acknowledged when it is stable on the lower volume. The log receives no new data.
    Through,
    /// Like [`WriteMode::Through`], but written data is not kept in memory.
    Around,
    /// A write is acknowledged at once, and is stable after the next flush. After a crash, either all writes
    /// between two flushes are there or none of them. A write with FUA includes a flush.
    AtFlush,
}

/// The failures that the content of an NVRAM survives.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum NvramSurvival {
    /// The content of the NVRAM survives the end of the process, even a crash.
    #[default]
    Restart,
    /// The content also survives the loss of power: data in the NVRAM is as stable as data on the log disk.
    PowerLoss,
}

/// The order in which writes arrive at the lower volume.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum DestageOrder {
    /// Writes are destaged in order, epoch by epoch. Writes that find the log full wait for the next
    /// destage round.
    #[default]
    Strict,
    /// Writes bypass a full log, and long discards always bypass the log.
    Relaxed,
}

/// With [`WriteMode::AtFlush`]: the treatment of a write for which the log has no room before the next flush.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum OversizedEpoch {
    /// A write that does not fit into its epoch is refused.
    #[default]
    #[serde(rename = "refuse")]
    Refused,
    /// An epoch that does not fit is split, so after a crash the lower volume may hold its first part only.
    Split,
}

/// The treatment of writes while the log disk returns errors.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum LogErrorPolicy {
    /// Writes fail with the error of the log disk, until the disk accepts writes again.
    #[default]
    StopWrites,
    /// Writes go to the lower volume and are stable there, except to slots of which the log has content.
    /// Writes to these slots fail: the older content in the log could not be made void, and would replace the
    /// newer data once the log disk works again.
    WriteThrough,
}

/// How a cache behaves. Every field has a default in [`Settings::default`].
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Memory for cached blocks, in bytes; at least 128 KiB. Default 256 MiB. In addition the cache needs
    /// some 100 bytes for every 4 KiB of this memory, and for every 4 KiB of dirty data in the log.
    pub dram_bytes: u64,
    /// Bytes that may wait for the log disk; at least 64 KiB, at most half of `dram_bytes`. With
    /// [`WriteMode::Immediate`] the NVRAM must have room for them. Default 4 MiB.
    pub nvram_bytes: u64,
    /// The moment at which a write is acknowledged. Default after complete.
    pub report: WriteMode,
    /// The failures that the NVRAM survives. Default a restart. Only used with [`WriteMode::Immediate`].
    pub nvram_survives: NvramSurvival,
    /// The failures that the NVRAMs in front of the two legs of a pair's log survive ([`crate::LogBuffer`]).
    /// Until the next flush of the log, a write to the log survives these failures only. Default none: there
    /// are no such NVRAMs.
    pub log_buffer: Option<NvramSurvival>,
    /// The treatment of writes while the log disk returns errors. Default: the writes fail with this error.
    pub on_log_error: LogErrorPolicy,
    /// The order of destage, and whether writes may bypass the log. Default strict. Not used with
    /// [`WriteMode::Through`].
    pub order: DestageOrder,
    /// The treatment of more data between two flushes than fits into the log. Default refused.
    pub too_large: OversizedEpoch,
    /// Share of the log in use above which destage no longer waits for an idle period. Default 0.5. Users
    /// choose 0.05 to 0.9 (crate `config`). Tests also use 0, at which destage never waits, and 1, at which
    /// it always does.
    pub destage_threshold: f64,
    /// A host is idle when it has sent no request for this long, in milliseconds. Default 20.
    pub idle_ms: u64,
    /// Longest run of adjacent blocks that is destaged with one write, in bytes: 4 KiB to 1 MiB. Default 64
    /// KiB (STICS 4.3.3).
    pub destage_run_bytes: u32,
    /// Upper limit of the longest runs that are in flight at once, 1 to 2048. The actual number follows from
    /// the link. Default 256: 16 MiB, more than a link of 1 Gbit/s holds with a round trip of 100 ms. With 1,
    /// each write waits for the previous one.
    pub destage_in_flight: usize,
    /// Data older than this, in milliseconds, is destaged even if the host is never idle. Default 5000.
    pub max_dirty_age_ms: u64,
    /// How many milliseconds a write that finds the log full may wait, with nothing changed, before it ends
    /// with BUSY: 0 to 25,000. Default 15,000, half of the 30 s after which hosts abort a command. QEMU
    /// reports an error after eight BUSY answers, some of them within seconds, but waits for a pending
    /// command without limit (docs/results/busy.md).
    pub busy_after_ms: u64,
    /// The maximum number of bytes that the cache reads ahead of a sequential reader: 0 to 512 MiB, default 32 MiB; 0
    /// turns read-ahead off. The cache reads ahead as much as the reader consumes in the time of two fetches.
    pub read_ahead_bytes: u32,
    /// Longest discard that goes through the log with [`DestageOrder::Relaxed`], in bytes; longer ones go to
    /// the lower volume directly. Default 4 MiB.
    pub discard_log_bytes: u32,
    /// Maximum number of slots in a log segment, 1 to 128. Used when a log is formatted, and stored in it. Default 128
    /// (STICS 4.3.1); an encrypted log has at most 96.
    pub segment_slots: u32,
    /// Bytes of dirty data in the log that are read and checked per second, to detect corruption in time; 0
    /// switches this off. Default 4 MiB: no more than a twentieth of what any disk reads.
    pub scrub_rate: u64,
    /// Maximum number of segments of the log in a frame of its index, at least 1. After a crash, recovery has to read
    /// about as many segments in full. Default 1024: more would not fit into the largest frame.
    pub index_segments: u32,
    /// The name of the owner in the claim on the lower volume, for people. Default `forebay`.
    pub owner: String,
    /// True to take the claim on the lower volume even if a copy of this log is in use. Default false.
    pub takes_over: bool,
    /// The key with which log and NVRAM are encrypted. Default none. A log is formatted for one key or for
    /// none; its key changes when it is opened without dirty data.
    pub log_key: Option<LogKey>,
    /// True if other gateways write the lower volume as well as this one: all calls then come through
    /// [`crate::Coherent`].
    pub shares: bool,
    /// True to open a log although acknowledged data is missing from it, or although it is an older copy. Default
    /// false.
    pub accept_loss: bool,
    /// The store for the confirmed numbers of the log. Default none: then only the claim keeps a number.
    pub confirmed_in: Option<ConfirmedIn>,
    /// The current boot of the machine. Default not known: then an NVRAM that does not survive the loss of
    /// power is refused when it is damaged or behind, even after a power failure.
    pub boot: Option<BootId>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            dram_bytes: 256 << 20,
            nvram_bytes: 4 << 20,
            report: WriteMode::AfterComplete,
            nvram_survives: NvramSurvival::Restart,
            log_buffer: None,
            on_log_error: LogErrorPolicy::StopWrites,
            order: DestageOrder::Strict,
            too_large: OversizedEpoch::Refused,
            destage_threshold: 0.5,
            idle_ms: 20,
            destage_run_bytes: 64 << 10,
            destage_in_flight: 256,
            max_dirty_age_ms: 5000,
            busy_after_ms: 15_000,
            read_ahead_bytes: 32 << 20,
            discard_log_bytes: 4 << 20,
            segment_slots: MAX_SEGMENT_SLOTS,
            index_segments: 1024,
            owner: "forebay".into(),
            takes_over: false,
            shares: false,
            scrub_rate: 4 << 20,
            log_key: None,
            accept_loss: false,
            confirmed_in: None,
            boot: None,
        }
    }
}

impl Settings {
    pub const IDLE_MS: RangeInclusive<u64> = 1..=60_000;
    pub const DESTAGE_RUN_BYTES: RangeInclusive<u32> = 4096..=1 << 20;
    pub const DESTAGE_IN_FLIGHT: RangeInclusive<usize> = 1..=2048;
    pub const BUSY_AFTER_MS: RangeInclusive<u64> = 0..=25_000;
    pub const READ_AHEAD_BYTES: RangeInclusive<u32> = 0..=512 << 20;

    /// Returns true if the NVRAMs in front of a pair's log survive the loss of power.
    pub(crate) fn buffer_is_stable(&self) -> bool {
        self.log_buffer == Some(NvramSurvival::PowerLoss)
    }

    /// Checks all settings. The error names the setting that is out of range.
    pub(crate) fn check_ranges(&self) -> Result<(), String> {
        let check = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_owned()) };
        check(
            (128 << 10..=1 << 43).contains(&self.dram_bytes),
            "dram_bytes must be from 128 KiB to 8 TiB",
        )?;
        check(self.nvram_bytes >= 64 << 10, "nvram_bytes must be at least 64 KiB")?;
        check(
            self.nvram_bytes <= self.dram_bytes / 2,
            "nvram_bytes must be at most half of dram_bytes",
        )?;
        check(
            (0.0..=1.0).contains(&self.destage_threshold),
            "destage_threshold must be from 0 to 1",
        )?;
        check(Self::IDLE_MS.contains(&self.idle_ms), "idle_ms must be from 1 to 60000")?;
        check(
            Self::DESTAGE_RUN_BYTES.contains(&self.destage_run_bytes),
            "destage_run_bytes must be from 4 KiB to 1 MiB",
        )?;
        check(
            Self::DESTAGE_IN_FLIGHT.contains(&self.destage_in_flight),
            "destage_in_flight must be from 1 to 2048",
        )?;
        check(
            Self::BUSY_AFTER_MS.contains(&self.busy_after_ms),
            "busy_after_ms must be at most 25000",
        )?;
        check(
            Self::READ_AHEAD_BYTES.contains(&self.read_ahead_bytes),
            "read_ahead_bytes must be at most 512 MiB",
        )?;
        check(self.discard_log_bytes <= 16 << 20, "discard_log_bytes must be at most 16 MiB")?;
        check(
            (MIN_SEGMENT_SLOTS..=MAX_SEGMENT_SLOTS).contains(&self.segment_slots),
            "segment_slots must be from 1 to 128",
        )?;
        check(self.index_segments > 0, "index_segments must be at least 1")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_in_range() {
        assert_eq!(Settings::default().validate(), Ok(()));
    }

    #[test]
    fn a_setting_out_of_range_is_named() {
        let settings = Settings { destage_in_flight: 0, ..Settings::default() };
        assert!(settings.validate().unwrap_err().contains("destage_in_flight"));
        let settings = Settings { nvram_bytes: 200 << 20, ..Settings::default() };
        assert!(settings.validate().unwrap_err().contains("nvram_bytes"));
    }
}
