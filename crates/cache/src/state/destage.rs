//! The state of destage: the running round, the orders of operators, and the age of the dirty data.

use tokio::time::Instant;
use volume::OngoingCondition;

use crate::{lower::extent::DirtyFlags, meter::Meter, orders::Orders, slots::table::LogAddress};

/// A destage round: the oldest sealed epoch is being sent to the lower volume.
pub(crate) struct DestageRound {
    /// Number of the last segment of the epoch.
    pub cut: u64,
    /// The runs of slots that are being sent.
    pub in_flight: Vec<(u64, u64)>,
    pub sent_bytes: u64,
    /// Slots whose content cannot be read from the log.
    pub corrupt: Vec<(u64, LogAddress)>,
    /// True if the flush of the previous round has failed. This round then sends no more writes, and those that it has
    /// sent are rolled back.
    pub is_void: bool,
}

impl DestageRound {
    /// Makes the round of the epoch that ends with segment `cut`.
    pub fn new(cut: u64) -> Self {
        Self { cut, in_flight: Vec::new(), sent_bytes: 0, corrupt: Vec::new(), is_void: false }
    }
}

pub(crate) struct DestageState {
    /// The round whose writes are being sent. During a flush: the next round if one has begun, otherwise the
    /// round that is being flushed.
    pub round: Option<DestageRound>,
    /// The last log segment of the round that is being flushed, if the next round has already begun. Otherwise `None`.
    pub flushing: Option<u64>,
    /// True if calls are waiting for room in the log that only a destage round can make.
    pub is_starving: bool,
    /// The condition that rounds are too large for an epoch of the lower volume.
    pub rounds_split: OngoingCondition,
    /// The orders of operators: a pause, a rate.
    pub orders: Orders,
    /// Measures how many bytes per second destage sends.
    pub meter: Meter,
    /// The number of reasons to destage without waiting for idle periods, until nothing is dirty.
    pub draining: usize,
    /// The time at which the oldest dirty data became dirty, or an earlier time.
    pub dirty_since: Option<Instant>,
    /// The flags that the claim on the lower volume carries: for each volume, whether the log has dirty data
    /// or is about to have it.
    pub dirty_flags: DirtyFlags,
    /// True if the cache is being stopped: destage ends, and no new write is accepted.
    pub is_stopping: bool,
}

impl DestageState {
    pub fn new() -> Self {
        Self {
            round: None,
            flushing: None,
            is_starving: false,
            rounds_split: OngoingCondition::default(),
            orders: Orders::default(),
            meter: Meter::new(),
            draining: 0,
            dirty_since: None,
            dirty_flags: DirtyFlags::of_one(),
            is_stopping: false,
        }
    }

    /// Returns true if a destage write in flight overlaps the slots `first .. end`.
    pub fn is_sending(&self, first: u64, end: u64) -> bool {
        let overlaps = |&(start, stop): &(u64, u64)| start < end && first < stop;
        self.round.as_ref().is_some_and(|round| round.in_flight.iter().any(overlaps))
    }
}
