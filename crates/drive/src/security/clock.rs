//! The drive's clock, which never runs backwards, not even over a restart.
//!
//! A stable record has the *mark*, a time that the clock does not pass. Before the clock comes near
//! the mark, a later mark is written. After a restart the clock begins behind the mark, so it is
//! later than every time that it has shown before, whatever the clock of the host says. A
//! capability that has expired therefore stays expired.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use object::{ObjectError, Timestamp};
use tokio::sync::Mutex;

use crate::{backing::DriveBacking, store::Clock};

/// The clocks of the host, from which the drive's clock takes the time.
pub trait TimeSource: Send + Sync + 'static {
    /// Returns milliseconds since 1970-01-01 UTC. Setting the host's clock makes the value jump in either direction.
    fn wall_ms(&self) -> u64;

    /// Returns milliseconds since any fixed moment. The value never decreases.
    fn elapsed_ms(&self) -> u64;
}

/// The clocks of the operating system, for a drive that is served.
pub struct HostTime(Instant);

impl Default for HostTime {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl TimeSource for HostTime {
    fn wall_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// The clock of one drive. The module's doc describes the mark.
pub struct DriveClock {
    source: Box<dyn TimeSource>,
    /// The drive's time when [`Self::start`] ran, in milliseconds.
    base: AtomicU64,
    base_elapsed: AtomicU64,
    /// The latest time that this clock has returned, in milliseconds. The clock never returns an earlier time.
    shown: AtomicU64,
    /// The mark in stable storage, in milliseconds. `u64::MAX` before [`Self::start`].
    mark: AtomicU64,
    /// Times up to this one, in milliseconds, belong to earlier runs of the drive.
    floor: AtomicU64,
    writing: Mutex<()>,
}

impl DriveClock {
    #[must_use]
    pub fn new(source: impl TimeSource) -> Self {
        let (wall, elapsed) = (source.wall_ms(), source.elapsed_ms());
        Self {
            source: Box::new(source),
            base: AtomicU64::new(wall),
            base_elapsed: AtomicU64::new(elapsed),
            shown: AtomicU64::new(0),
            mark: AtomicU64::new(u64::MAX),
            floor: AtomicU64::new(0),
            writing: Mutex::new(()),
        }
    }

    /// Starts the clock behind the mark of the last run, and writes the first mark of this run.
    ///
    /// # Errors
    /// The mark cannot be read or written.
    pub async fn start(&self, store: &impl DriveBacking) -> Result<(), ObjectError> {
        let mark =
            match store.record(MARK).await? {
                None => 0,
                Some(record) => u64::from_be_bytes(record.as_ref().try_into().map_err(|_| {
                    ObjectError::Storage("the record of the clock is damaged".into())
                })?),
            };
        let floor = mark.max(self.source.wall_ms()).max(self.shown.load(Ordering::Acquire));
        self.base.store(floor.saturating_add(1), Ordering::Release);
        self.base_elapsed.store(self.source.elapsed_ms(), Ordering::Release);
        self.floor.store(floor, Ordering::Release);
        self.write_mark(store).await
    }

    /// Returns the drive's present time. The clock stands still at the mark.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let now = self.unlimited().min(self.mark.load(Ordering::Acquire));
        let before = self.shown.fetch_max(now, Ordering::AcqRel);
        Timestamp::from_ms(now.max(before))
    }

    /// Returns the last time before this run of the drive. A request that was signed at this time or earlier is not
    /// valid.
    #[must_use]
    pub fn floor(&self) -> Timestamp {
        Timestamp::from_ms(self.floor.load(Ordering::Acquire))
    }

    /// Returns the latest time that the clock can show without a new mark. After a crash the clock
    /// begins behind it.
    #[must_use]
    pub fn mark(&self) -> Timestamp {
        Timestamp::from_ms(self.mark.load(Ordering::Acquire))
    }

    /// Writes a later mark if the clock comes near the present mark. Call this before each command. Waits only if the
    /// clock stands still at the mark.
    ///
    /// # Errors
    /// The clock stands still, because the mark cannot be written: an expiry could go unnoticed.
    pub async fn keep_ahead(&self, store: &impl DriveBacking) -> Result<(), ObjectError> {
        let left = || self.mark.load(Ordering::Acquire).saturating_sub(self.unlimited());
        match left() {
            left if left >= STEP_MS / 2 => Ok(()),
            0 => {
                let _writing = self.writing.lock().await;
                if left() > 0 { Ok(()) } else { self.write_mark(store).await }
            }
            _ => {
                if let Ok(_writing) = self.writing.try_lock() {
                    // Ignore a failure: the next call returns it once the clock stands still.
                    let _ = self.write_mark(store).await;
                }
                Ok(())
            }
        }
    }

    /// Stops the clock, and makes the present time the mark, so that requests that are signed after a
    /// clean restart are valid at once. Call this when no command is at work any more.
    ///
    /// # Errors
    /// The mark cannot be written.
    pub async fn stop(&self, store: &impl DriveBacking) -> Result<(), ObjectError> {
        let _writing = self.writing.lock().await;
        self.mark.store(self.now().as_ms(), Ordering::Release);
        let mark = self.now().as_ms();
        store.put_record(MARK, Bytes::copy_from_slice(&mark.to_be_bytes())).await
    }

    async fn write_mark(&self, store: &impl DriveBacking) -> Result<(), ObjectError> {
        let mark = self.unlimited().saturating_add(STEP_MS);
        store.put_record(MARK, Bytes::copy_from_slice(&mark.to_be_bytes())).await?;
        self.mark.store(mark, Ordering::Release);
        Ok(())
    }

    /// Returns the present time without the limit of the mark. The clock follows the host's clock
    /// if that one is ahead, and otherwise continues on its own.
    fn unlimited(&self) -> u64 {
        let base_elapsed = self.base_elapsed.load(Ordering::Acquire);
        let elapsed = self.source.elapsed_ms().saturating_sub(base_elapsed);
        let own = self.base.load(Ordering::Acquire).saturating_add(elapsed);
        own.max(self.source.wall_ms())
    }
}

impl Clock for DriveClock {
    fn now(&self) -> Timestamp {
        Self::now(self)
    }
}

/// The name under which the store keeps the mark.
const MARK: &str = "clock";
/// Distance of a new mark from the present time, in milliseconds. A mark costs one durable write in half a minute, and
/// after a crash the clock is at most a minute ahead of the host's.
const STEP_MS: u64 = 60_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MemoryStore, TestTime};

    #[tokio::test]
    async fn the_clock_never_runs_backwards_over_restarts_with_a_host_clock_set_back() {
        let store = MemoryStore::new();
        let time = TestTime::new(1_000_000);
        let clock = DriveClock::new(time.clone());
        clock.start(&store).await.unwrap();
        assert!(clock.now() > clock.floor());
        time.advance(20_000);
        clock.keep_ahead(&store).await.unwrap();
        let before = clock.now();
        assert!(before >= Timestamp::from_ms(1_020_000));
        time.set_wall(5_000);
        assert!(clock.now() >= before, "set back while the drive runs");
        time.advance(1_000);
        assert!(clock.now() >= Timestamp::from_ms(1_021_000), "continues without the host");

        let restarted = DriveClock::new(time.clone());
        restarted.start(&store).await.unwrap();
        assert!(restarted.floor() >= clock.mark(), "no earlier time is valid again");
        assert!(restarted.now() > before);
    }

    #[tokio::test]
    async fn after_a_clean_stop_the_clock_goes_on_without_a_jump() {
        let store = MemoryStore::new();
        let time = TestTime::new(1_000_000);
        let clock = DriveClock::new(time.clone());
        clock.start(&store).await.unwrap();
        time.advance(5_000);
        let before = clock.now();
        clock.stop(&store).await.unwrap();
        time.advance(100);
        assert_eq!(clock.now(), before, "a time that no mark covers is never shown");
        let restarted = DriveClock::new(time.clone());
        restarted.start(&store).await.unwrap();
        assert!(restarted.floor() >= before && restarted.now() > before);
        assert!(restarted.now() < Timestamp::from_ms(1_006_000));
    }

    #[tokio::test]
    async fn the_clock_stands_still_at_its_mark_and_reports_that_it_cannot_write_another() {
        let store = MemoryStore::new();
        let time = TestTime::new(1_000_000);
        let clock = DriveClock::new(time.clone());
        clock.start(&store).await.unwrap();
        let mark = clock.mark();
        time.advance(3 * STEP_MS);
        assert_eq!(clock.now(), mark, "a time that no mark covers is never shown");
        store.fail_records(true);
        assert!(clock.keep_ahead(&store).await.is_err());
        store.fail_records(false);
        clock.keep_ahead(&store).await.unwrap();
        assert!(clock.now() > mark);
        assert!(clock.mark() > clock.now());
    }

    #[tokio::test]
    async fn a_mark_is_written_before_the_clock_reaches_the_last_one() {
        let store = MemoryStore::new();
        let time = TestTime::new(1_000_000);
        let clock = DriveClock::new(time.clone());
        clock.start(&store).await.unwrap();
        let mark = clock.mark();
        time.advance(STEP_MS / 2 - 10);
        clock.keep_ahead(&store).await.unwrap();
        assert_eq!(clock.mark(), mark);
        time.advance(20);
        clock.keep_ahead(&store).await.unwrap();
        assert!(clock.mark() > mark);
    }
}
