//! The sync sites of the program, which are the calls that make data or names stable. A row gives the modes in which a
//! power cut shows a loss if the site's sync is ignored, or the reason to keep the sync although no mode shows one.
//!
//! The program does not contain this table, so it has no switch that could turn a sync off. For
//! `cargo xtask power-cuts --ignore-site`, the file system for tests recognises a sync site by the
//! file and the kind of the sync, and ignores the sync.

use anyhow::{Context, Result};

use super::mode::PowerRoundMode;
use crate::check::syncs::{PLACES, SyncCallSite};
use crate::powercut::{FaultFsSync, FaultFsSyncKind};

/// A call in the program that makes data or names stable, by its index in [`SITES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncSite(usize);

/// The expected effect of ignoring all syncs that one call in the program makes.
pub struct SyncSiteExpectation {
    pub number: usize,
    /// The modes in which the call is ignored, in this order. One of them should show a loss.
    pub modes: &'static [PowerRoundMode],
    /// `threads` or `uring` if only this I/O engine makes the call; `None` if both make it.
    pub engine: Option<&'static str>,
    /// The reason why the program keeps the sync although no power cut may show a loss without it.
    pub reason: Option<&'static str>,
    /// Returns true if a sync comes from this site. Arguments: the name of the disk, and the sync.
    is_of: fn(&str, &FaultFsSync) -> bool,
}

const NEVER: fn(&str, &FaultFsSync) -> bool = |_, _| false;

macro_rules! sites {
    ($($number:literal $modes:expr, $engine:expr, $reason:expr, $is_of:expr;)*) => {
        &[$(SyncSiteExpectation {
            number: $number, modes: $modes, engine: $engine, reason: $reason, is_of: $is_of,
        }),*]
    };
}

use PowerRoundMode::{
    AfterComplete, AtFlush, Changing, ImmediatePowerLoss, ImmediateRestart, Through,
};

/// All sync sites, by the numbers in [`PLACES`]. A comment at each call in the source says why the program needs it.
pub const SITES: &[SyncSiteExpectation] = sites! {
    1 &[AfterComplete, AtFlush], None, None,
        |_, sync| sync.kind == FaultFsSyncKind::File && is_volume_or_log(sync) && sync.stable_bytes == 0;
    2 &[AfterComplete], None, None,
        |_, sync| sync.kind == FaultFsSyncKind::Names && matches!(sync.path.as_str(), "/volume" | "/log");
    3 &[], None,
        Some("it bounds the memory that is dirty and the time of the last sync, and promises nothing"),
        NEVER;
    4 &[AfterComplete], None,
        Some(
            "it tells that there is no room; a power cut makes zeros of zeros; where a filled file grows, \
             it stands for place 5",
        ),
        |_, sync| sync.kind == FaultFsSyncKind::Data && sync.path == "/log/log" && sync.since_opened == 0;
    5 &[Changing], None, None,
        |_, sync| is_new_size(sync) && sync.path == "/volume/volume";
    6 &[Changing], None, Some("a start would find a file longer than its record says"),
        |_, sync| is_new_size(sync) && sync.path == "/log/log";
    7 &[AfterComplete, Through],
        Some("threads"), None, |_, sync| sync.kind == FaultFsSyncKind::Write && is_volume_or_log(sync);
    8 &[AfterComplete, AtFlush, Through],
        Some("threads"), None,
        |_, sync| sync.kind == FaultFsSyncKind::Data && is_volume_or_log(sync);
    9 &[AfterComplete, Through],
        Some("uring"), None, |_, sync| sync.kind == FaultFsSyncKind::Write && is_volume_or_log(sync);
    10 &[AfterComplete, AtFlush, Through],
        Some("uring"), None,
        |_, sync| sync.kind == FaultFsSyncKind::Data && is_volume_or_log(sync);
    11 &[ImmediatePowerLoss], None, None,
        |_, sync| sync.kind == FaultFsSyncKind::Names && sync.path == "/nvram";
    12 &[ImmediateRestart, ImmediatePowerLoss], None,
        None, |_, sync| sync.kind == FaultFsSyncKind::File && sync.path == "/nvram/nvram";
    13 &[ImmediatePowerLoss, Changing], None,
        Some(
            "it brings pages to the disk that an earlier process could not: after an error of the disk, or \
             when it was killed with `restart` and the next one has `power-loss`",
        ),
        |_, sync| is_nvram(sync) && sync.since_opened == 0;
    14 &[ImmediatePowerLoss], None, None,
        |_, sync| is_nvram(sync) && sync.since_opened > 0;
    15 &[AfterComplete], None, None,
        |_, sync| sync.kind == FaultFsSyncKind::File && sync.path.ends_with(".new");
    16 &[AfterComplete], None, None,
        |_, sync| sync.kind == FaultFsSyncKind::Names && sync.path.starts_with("/var");
    17 &[Changing], None, None,
        |_, sync| sync.kind == FaultFsSyncKind::File && sync.path.starts_with("/var/key");
    18 &[], None,
        Some("it erases and keeps nothing: no block is lost without it"), NEVER;
    19 &[Changing], None, None,
        |_, sync| sync.kind == FaultFsSyncKind::File && sync.path.starts_with("/var/secret");
    20 &[], None,
        Some("it writes the kernel's pages of a device; the volume below makes them stable itself"), NEVER;
    21 &[], None,
        Some("it writes the kernel's pages, so that `forebay detach` can say what failed"), NEVER;
    22 &[], None,
        Some("it carries out the syncs of places 13 and 14"), NEVER;
    23 &[], None,
        Some(
            "a file without its id is served with a warning while its size is the recorded one: no block is \
             lost without it",
        ), NEVER;
    24 &[], None,
        Some("without the file only an older copy is not recognized: no block is lost"), NEVER;
    25 &[], None,
        Some("as 24: it bounds the time for which an older copy is not recognized"), NEVER;
    26 &[], None,
        Some("it belongs to a client of an object drive, which no power mode runs"), NEVER;
};

fn is_volume_or_log(sync: &FaultFsSync) -> bool {
    matches!(sync.path.as_str(), "/volume/volume" | "/log/log")
}

/// Returns true if the program syncs a file after changing its size: an fsync of a file that
/// already has stable bytes.
fn is_new_size(sync: &FaultFsSync) -> bool {
    sync.kind == FaultFsSyncKind::File && sync.stable_bytes > 0
}

fn is_nvram(sync: &FaultFsSync) -> bool {
    sync.kind == FaultFsSyncKind::Data && sync.path == "/nvram/nvram"
}

impl SyncSite {
    /// Returns the sync call with this number. Fails if there is none.
    pub fn numbered(number: usize) -> Result<SyncSite> {
        let found = SITES.iter().position(|about| about.number == number);
        Ok(SyncSite(found.with_context(|| format!("no sync site has the number {number}"))?))
    }

    pub fn all() -> Vec<SyncSite> {
        (0..SITES.len()).map(SyncSite).collect()
    }

    pub fn about(self) -> &'static SyncSiteExpectation {
        &SITES[self.0]
    }

    /// Returns the entry of this site in [`PLACES`]: its source file and what it makes stable.
    pub fn place(self) -> &'static SyncCallSite {
        let number = self.about().number;
        PLACES.iter().find(|place| place.number == number).expect("a test holds that")
    }

    /// Returns true if `sync`, a sync on the disk `disk`, was made by this call of the program.
    pub fn is_of(self, disk: &str, sync: &FaultFsSync) -> bool {
        (self.about().is_of)(disk, sync)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sync_call_of_the_source_is_tried_or_has_a_reason() {
        let mut numbers: Vec<usize> = SITES.iter().map(|about| about.number).collect();
        let mut known: Vec<usize> = PLACES.iter().map(|place| place.number).collect();
        numbers.sort_unstable();
        known.sort_unstable();
        assert_eq!(numbers, known);
        assert!(SITES.iter().all(|about| !about.modes.is_empty() || about.reason.is_some()));
        assert!(SyncSite::numbered(99).is_err());
    }
}
