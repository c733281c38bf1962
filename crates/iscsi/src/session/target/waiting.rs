//! Limits the memory of waiting writes, which wait for earlier commands, for the rest of their
//! data, or for memory.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::{Bhs, pdu::DataOut};

/// The bytes that a session holds for waiting writes, and their limit.
///
/// Each command or write has a [`Charge`] for its bytes. Dropping the charge returns the bytes,
/// however the write ends.
#[derive(Debug)]
pub(super) struct WaitingWriteBytes {
    held: Arc<AtomicUsize>,
    limit: usize,
}

/// The bytes of memory that one waiting command or write holds, counted in the session's total.
#[derive(Debug)]
pub(super) struct Charge {
    /// The total bytes of the session. Only the driver of the session changes the number; it is
    /// atomic because a session moves between threads.
    held: Arc<AtomicUsize>,
    bytes: usize,
}

/// Measures the time without progress of a transfer. Time in which the target did not read from the
/// connection, or could not send an R2T, does not count, but only up to a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    /// The time of the last progress, moved forward by the time that was excused.
    pub(super) since: Instant,
    /// The total time so far that did not count as silence, because the target itself caused the wait.
    excused: Duration,
}

/// The least number of bytes of a write that must arrive within `Settings::stalled_after`, unless
/// fewer complete it. With the default time this is 4 kB/s; on a slower link, even a login would
/// not succeed in time.
pub(super) const PROGRESS: u32 = 64 * 1024;

/// The memory in bytes that a waiting Data-Out needs in addition to its data: its entry in a
/// vector, which may have twice the capacity that it uses, and the smallest allocation for its
/// data.
pub(super) const KEPT_DATA_OUT: usize = 2 * size_of::<(DataOut, Bhs)>() + 32;

impl Stall {
    /// Starts to measure the time without progress. `now` is the time of the last progress.
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, excused: Duration::ZERO }
    }

    /// Excludes the time since the last progress from the measurement, but at most `most` in all.
    pub(super) fn excuse(&mut self, now: Instant, most: Duration) {
        let passed = now.saturating_duration_since(self.since);
        let excused = passed.min(most.saturating_sub(self.excused));
        self.since += excused;
        self.excused += excused;
    }
}

impl WaitingWriteBytes {
    pub(super) fn unlimited() -> Self {
        Self { held: Arc::default(), limit: usize::MAX }
    }

    pub(super) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn set_limit(&mut self, bytes: usize) {
        self.limit = bytes;
    }

    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.held().saturating_add(bytes) <= self.limit
    }

    /// Returns a charge of zero bytes, to which bytes can be added.
    pub(super) fn charge(&self) -> Charge {
        Charge { held: Arc::clone(&self.held), bytes: 0 }
    }
}

impl Charge {
    /// Adds `bytes` to this charge and to the session's total. The caller has checked the limit.
    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.held.fetch_add(bytes, Relaxed);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn clear(&mut self) {
        self.held.fetch_sub(self.bytes, Relaxed);
        self.bytes = 0;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.clear();
    }
}
