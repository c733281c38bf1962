//! The positions of the segments in the log, and the failures of the log disk.

use std::{collections::HashSet, sync::Arc, time::Duration};

use journal::ring::SegmentRing;
use volume::{Error, OngoingCondition};

use crate::gauge::LogFillGauge;

/// A log whose file was removed, cut short or replaced. The log no longer counts as stable, although the open
/// file may still be read and written.
pub(crate) struct LostLog {
    pub reason: Arc<str>,
    /// True once destage has sent everything that could be read from the log, although a part of the log could not be
    /// read.
    pub all_sent: bool,
    /// True once an event has reported that the lower volume now holds all data which the lost log held.
    pub is_reported: bool,
    /// Slots that are clean although the log still has records of them. A write that bypasses the log would
    /// have to void these records, which a lost log cannot store, so such a write is refused. At most one per
    /// log block.
    pub sent: HashSet<u64>,
}

impl LostLog {
    pub fn new(reason: &str) -> Self {
        Self { reason: reason.into(), all_sent: false, is_reported: false, sent: HashSet::new() }
    }

    /// Returns the error that hosts get while the log is lost.
    pub fn error(&self) -> Error {
        let sent = if self.all_sent {
            "; the far volume has everything that could be read from it"
        } else {
            ""
        };
        Error::Device(format!("{}{sent}", self.reason).into())
    }
}

/// Time without a split epoch or round after which all count as fitting again. Every large file that a host
/// writes may split one.
pub(crate) const SPLIT_QUIET: Duration = Duration::from_secs(600);

pub(crate) struct LogState {
    pub ring: SegmentRing,
    /// Set while the log's file is lost.
    pub lost: Option<LostLog>,
    /// The condition that writes of the superblock fail.
    pub superblock_fails: OngoingCondition,
    /// The condition that writes of the frames of the index fail.
    pub index_fails: OngoingCondition,
    /// The condition that the superblock cannot record the growth of a volume.
    pub growth_fails: OngoingCondition,
    /// Set while epochs are split because they do not fit into the log.
    pub epochs_split: OngoingCondition,
    /// Measures the rate at which the log fills.
    pub gauge: LogFillGauge,
}

impl LogState {
    pub fn new(ring: SegmentRing) -> Self {
        Self {
            ring,
            lost: None,
            superblock_fails: OngoingCondition::default(),
            index_fails: OngoingCondition::default(),
            growth_fails: OngoingCondition::default(),
            epochs_split: OngoingCondition::default(),
            gauge: LogFillGauge::default(),
        }
    }

    /// Returns true if the lost log still has records of any slot of `first .. end` that is clean.
    pub fn has_lost(&self, first: u64, end: u64) -> bool {
        let sent = self.lost.as_ref().map(|lost| &lost.sent);
        sent.is_some_and(|sent| (first..end).any(|slot| sent.contains(&slot)))
    }
}
