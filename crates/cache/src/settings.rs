//! Sizes, thresholds and when a write is reported: data, with documented defaults.

use std::ops::RangeInclusive;

use journal::{MAX_SEGMENT_SLOTS, MIN_SEGMENT_SLOTS, seal::LogKey};
use serde::Deserialize;

use crate::confirmed::{BootId, ConfirmedIn};

/// When the host is told that a write is done (STICS 5.1).
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum WriteMode {
    /// When it is on the log disk, stable.
    #[default]
    AfterComplete,
    /// When it is in the NVRAM buffer; stable flags and flushes still wait for the log disk, unless the
    /// NVRAM survives what they are for.
    Immediate,
    /// When it is on the lower volume, stable: the log takes nothing new.
    Through,
    /// As [`WriteMode::Through`], and what is written is not kept in memory.
    Around,
    /// At once, and safe with the next flush: all that is between two flushes is there after a
    /// crash, or nothing of it. A stable write is a write and a flush.
    AtFlush,
}

/// What the NVRAM keeps its bytes over.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum NvramSurvival {
    /// The end of the process, however it ends.
    #[default]
    Restart,
    /// That, and the loss of power: what is in it is as stable as what is on the log disk.
    PowerLoss,
}

/// What the lower volume gets in which order.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum DestageOrder {
    /// In the order of writes, epoch by epoch: a full log makes writes wait for the next round.
    #[default]
    Strict,
    /// Writes go past a full log, and long discards past any.
    Relaxed,
}

/// With [`WriteMode::AtFlush`]: what becomes of a write for which the log has no room before the next
/// flush.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum OversizedEpoch {
    /// It is refused.
    #[default]
    #[serde(rename = "refuse")]
    Refused,
    /// What is there counts from now on, without the rest.
    Split,
}

/// What becomes of writes while the log disk fails.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum LogErrorPolicy {
    /// They fail, with the log disk's error, until it takes writes again.
    #[default]
    StopWrites,
    /// They go to the lower volume, stable, where the log has nothing of their slots. Where it has,
    /// they fail all the same: the older content in it could not be made void, and would come back
    /// with the log disk.
    WriteThrough,
}

/// How a cache behaves. Every field has a default in [`Settings::default`].
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Memory for cached blocks, in bytes; at least 128 KiB. Default 256 MiB. Beside it the cache
    /// needs some 100 bytes for every 4 KiB of it and of dirty data in the log.
    pub dram_bytes: u64,
    /// Bytes that may wait for the log disk; at least 64 KiB, at most half of `dram_bytes`.
    /// With [`WriteMode::Immediate`] the NVRAM must hold as much. Default 4 MiB.
    pub nvram_bytes: u64,
    /// When writes are reported. Default after complete.
    pub report: WriteMode,
    /// What the NVRAM survives. Default a restart. Without meaning but with [`WriteMode::Immediate`].
    pub nvram_survives: NvramSurvival,
    /// The failures that the NVRAMs in front of the two halves of a pair's log survive ([`crate::LogBuffer`]). With such
    /// NVRAMs, a write to the log survives only these failures until the next flush of the log. Default none: there are
    /// no such NVRAMs.
    pub log_buffer: Option<NvramSurvival>,
    /// What becomes of writes while the log disk fails. Default: they fail, too.
    pub on_log_error: LogErrorPolicy,
    /// Whether anything may overtake the log on its way down. Default strict. Without meaning with
    /// [`WriteMode::Through`].
    pub order: DestageOrder,
    /// What becomes of more data between two flushes than fits into the log. Default refused.
    pub too_large: OversizedEpoch,
    /// Share of the log above which level 2 destage no longer waits for an idle period. Default 0.5. Users choose 0.05 to
    /// 0.9 (crate `config`). Tests also use 0, at which destage never waits, and 1, at which it always does.
    pub destage_threshold: f64,
    /// Without requests for this long, in milliseconds, the host is idle. Default 20.
    pub idle_ms: u64,
    /// Longest run of adjacent blocks sent down as one write, in bytes: 4 KiB to 1 MiB.
    /// Default 64 KiB (STICS 4.3.3).
    pub destage_run_bytes: u32,
    /// How many of the longest runs are under way at once at most, 1 to 2048; how many in fact follows from the
    /// link. Default 256: 16 MiB, more than 1 Gbit/s holds over a round trip of 100 ms. 1 is one after another,
    /// always.
    pub destage_in_flight: usize,
    /// Data older than this, in milliseconds, goes down even if the host is never idle.
    /// Default 5000.
    pub max_dirty_age_ms: u64,
    /// How many milliseconds a write that finds the log full may wait, with nothing changed, before it ends in
    /// BUSY: 0 to 25,000. Default 15,000, half of the 30 s after which hosts abort a command.
    /// QEMU gives up after eight BUSY answers, some of them within seconds, but waits for a pending command
    /// without limit (docs/results/busy.md).
    pub busy_after_ms: u64,
    /// The most bytes that the cache reads ahead of a sequential reader: 0 to 512 MiB, default 32 MiB; 0 turns read-ahead
    /// off. The cache reads ahead as much as the reader consumes in the time of two fetches.
    pub read_ahead_bytes: u32,
    /// Longest discard that goes through the log with [`DestageOrder::Relaxed`], in bytes; longer ones go
    /// to the lower volume at once. Default 4 MiB.
    pub discard_log_bytes: u32,
    /// Most slots in a log segment, 1 to 128; used when a log is formatted, then kept in it.
    /// Default 128 (STICS 4.3.1); an encrypted log has 96 at most.
    pub segment_slots: u32,
    /// Bytes of dirty data in the log that are read and checked in a second, to find rot in time; 0
    /// switches it off. Default 4 MiB: no more than a twentieth of what any disk reads.
    pub scrub_rate: u64,
    /// Most segments of the log in a frame of its index, at least 1: a crash leaves about as many
    /// that recovery has to read in full. Default 1024: more would not fit into the largest frame.
    pub index_segments: u32,
    /// What the claim on the lower volume calls its owner: for people. Default `forebay`.
    pub owner: String,
    /// Take the claim on the lower volume from a copy of this log that is at work. Default false.
    pub takes_over: bool,
    /// What the log and the NVRAM are encrypted with. Default none. A log is made for one key, or
    /// for none; it gets another when it is opened with nothing in it.
    pub log_key: Option<LogKey>,
    /// The lower volume is written by others, too: all calls come through [`crate::Coherent`].
    pub shares: bool,
    /// Open a log although acknowledged data is missing from it, or although it is an older copy. Default false.
    pub accept_loss: bool,
    /// The store for the confirmed numbers of the log. Default none: then only the claim keeps a number.
    pub confirmed_in: Option<ConfirmedIn>,
    /// The boot in which the cache is opened. Default not known: then an NVRAM that does not survive the
    /// loss of power is refused when it is damaged or behind, even after a power failure.
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
    /// The range of `idle_ms`.
    pub const IDLE_MS: RangeInclusive<u64> = 1..=60_000;
    /// The range of `destage_run_bytes`.
    pub const DESTAGE_RUN_BYTES: RangeInclusive<u32> = 4096..=1 << 20;
    /// The range of `destage_in_flight`.
    pub const DESTAGE_IN_FLIGHT: RangeInclusive<usize> = 1..=2048;
    /// The range of `busy_after_ms`.
    pub const BUSY_AFTER_MS: RangeInclusive<u64> = 0..=25_000;
    /// The range of `read_ahead_bytes`.
    pub const READ_AHEAD_BYTES: RangeInclusive<u32> = 0..=512 << 20;

    /// Returns true if the NVRAMs in front of a pair's log survive the loss of power.
    pub(crate) fn buffer_is_stable(&self) -> bool {
        self.log_buffer == Some(NvramSurvival::PowerLoss)
    }

    /// Says which setting is out of its range, if one is.
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
