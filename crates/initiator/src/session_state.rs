//! What the driver tells its callers without being asked: the state of the link, what the unit is,
//! what was counted.

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

/// Whether there is a session.
#[derive(Clone, Debug)]
pub enum LinkState {
    /// There is none, and attempts to connect go on.
    Down {
        /// Since when.
        since: Instant,
        /// Why.
        reason: Arc<str>,
        /// Calls are not held back any more, they fail at once.
        given_up: bool,
    },
    /// There is one.
    Up,
    /// The far side has become another one: calls fail at once, and attempts go on.
    Changed(Arc<str>),
    /// The unit is somebody else's: calls fail at once, and so do attempts, as far as can be seen.
    Fenced(Arc<str>),
    /// The session was closed from here.
    Closed,
}

pub(crate) struct RemoteSessionState {
    pub(crate) state: watch::Sender<LinkState>,
    /// As of the last login.
    pub(crate) facts: Mutex<Option<Arc<UnitDescription>>>,
    /// Since when the target of the current session has not answered pings; `None` if it answers.
    pub(crate) silent_since: Mutex<Option<Instant>>,
    /// Where the session is, or was last.
    pub(crate) portal: Mutex<Option<Arc<str>>>,
    pub(crate) statistics: Mutex<InitiatorStatistics>,
    /// Commands answered, by operation code. The driver counts.
    pub(crate) answered: Arc<OpcodeTally>,
    pub(crate) connections: Mutex<Vec<InitiatorConnectionStats>>,
    /// That of the session that there is.
    pub(crate) congestion: Mutex<Option<Arc<SessionCongestion>>>,
    generation: AtomicU64,
    /// How many blocks the unit has; 0 before that is known.
    blocks: AtomicU64,
    /// Somebody wants to know whether it has as many as before, see [`crate::capacity_refresh::follow`].
    pub(crate) look_at_size: Notify,
    /// The unit told that it has not.
    pub(crate) size_changed: AtomicBool,
    /// What is presented after every login.
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

    /// What the unit says of itself from now on.
    pub(crate) fn set_facts(&self, facts: UnitDescription) {
        self.blocks.store(facts.geometry.blocks, Ordering::Release);
        *self.facts.lock() = Some(Arc::new(facts));
    }

    /// How many blocks the unit has, if that is known.
    pub(crate) fn blocks(&self) -> Option<u64> {
        Some(self.blocks.load(Ordering::Acquire)).filter(|blocks| *blocks > 0)
    }

    /// Counts what may have cost the target its volatile cache: new sessions, resets
    /// and deferred errors.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn next_generation(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}
