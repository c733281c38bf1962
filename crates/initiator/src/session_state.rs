//! The state that the driver publishes to its callers: the link, the unit's description and the counters.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use parking_lot::Mutex;
use scsi::OpcodeTally;
use tokio::sync::{Notify, watch};
use transport::SessionCongestion;

use crate::{InitiatorConnectionStats, InitiatorStatistics, UnitDescription, claim::Claimed};

/// Whether the initiator has a session with the target.
#[derive(Clone, Debug)]
pub enum LinkState {
    /// The initiator has no session, and continues to connect.
    Down {
        /// The time at which the session was lost, or at which connecting began.
        since: Instant,
        /// The reason of the last failure.
        reason: Arc<str>,
        /// True if calls no longer wait for a connection, but fail at once.
        given_up: bool,
    },
    /// The initiator has a session with at least one connection.
    Up,
    /// Another unit was found in place of the expected one. Calls fail at once, but the driver continues its attempts.
    Changed(Arc<str>),
    /// The unit has another owner. Calls fail at once, and the driver does not log in again.
    Fenced(Arc<str>),
    /// The caller has closed the session.
    Closed,
}

pub(crate) struct RemoteSessionState {
    pub(crate) state: watch::Sender<LinkState>,
    /// The unit's description as of the last login.
    pub(crate) facts: Mutex<Option<Arc<UnitDescription>>>,
    /// The time since when the target of the current session answers no pings; `None` if it answers them.
    pub(crate) silent_since: Mutex<Option<Instant>>,
    /// The address of the current or the last portal.
    pub(crate) portal: Mutex<Option<Arc<str>>>,
    pub(crate) statistics: Mutex<InitiatorStatistics>,
    /// Answered commands by operation code, counted by the driver.
    pub(crate) answered: Arc<OpcodeTally>,
    pub(crate) connections: Mutex<Vec<InitiatorConnectionStats>>,
    /// The congestion control of the current session.
    pub(crate) congestion: Mutex<Option<Arc<SessionCongestion>>>,
    generation: AtomicU64,
    /// Number of blocks of the unit; 0 if it is unknown.
    blocks: AtomicU64,
    /// Wakes [`crate::capacity_refresh::follow`] when a caller requests a check of the unit's capacity.
    pub(crate) look_at_size: Notify,
    /// Set when the unit has reported that its capacity has changed.
    pub(crate) size_changed: AtomicBool,
    /// The claim that each new session presents to the unit after its login.
    pub(crate) claimed: Claimed,
}

impl RemoteSessionState {
    pub(crate) fn new(since: Instant) -> Self {
        let reason = "not connected yet".into();
        Self {
            state: watch::Sender::new(LinkState::Down { since, reason, given_up: false }),
            facts: Mutex::new(None),
            silent_since: Mutex::new(None),
            portal: Mutex::new(None),
            statistics: Mutex::new(InitiatorStatistics::default()),
            answered: Arc::default(),
            connections: Mutex::new(Vec::new()),
            congestion: Mutex::new(None),
            generation: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
            look_at_size: Notify::new(),
            size_changed: AtomicBool::new(false),
            claimed: Claimed::default(),
        }
    }

    pub(crate) fn set_facts(&self, facts: UnitDescription) {
        self.blocks.store(facts.geometry.blocks, Ordering::Release);
        *self.facts.lock() = Some(Arc::new(facts));
    }

    /// Returns the number of blocks of the unit; `None` if it is unknown.
    pub(crate) fn blocks(&self) -> Option<u64> {
        Some(self.blocks.load(Ordering::Acquire)).filter(|blocks| *blocks > 0)
    }

    /// Returns the number of events so far after which the target may have lost the content of its volatile cache: new
    /// sessions, resets and deferred errors.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Counts an event after which the target may have lost the content of its volatile cache.
    pub(crate) fn next_generation(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}
