//! A volume that delays calls before it passes them to the volume below.

use std::{
    num::NonZeroU64,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::sleep;

use crate::{
    Allocation, Data, Durability, EpochRollback, Error, Extensions, Extent, FlushedReads, Geometry,
    Io, Lba, Provisioning, Stack, ThinSpaceUsage, Volume,
};

/// The time that each kind of delayed call waits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Latency {
    pub read: Duration,
    /// Delay of a write or a discard.
    pub write: Duration,
    pub flush: Duration,
}

impl Latency {
    /// Returns the same delay for every call, as on a connection with this round trip time.
    #[must_use]
    pub const fn uniform(round_trip: Duration) -> Self {
        Self { read: round_trip, write: round_trip, flush: round_trip }
    }
}

/// A slow volume. Calls wait concurrently, not one after the other. Its clock is that of
/// `tokio::time`, so a test can pause it.
pub struct DelayVolume {
    lower: Stack,
    latency: Latency,
    every: NonZeroU64,
    calls: AtomicU64,
}

impl DelayVolume {
    /// Slows down all calls of `lower`.
    #[must_use]
    pub fn new(lower: Stack, latency: Latency) -> Self {
        Self::of_every(NonZeroU64::MIN, lower, latency)
    }

    /// Returns a volume that delays one of `every` calls by `latency`.
    #[must_use]
    pub fn of_every(every: NonZeroU64, lower: Stack, latency: Latency) -> Self {
        Self { lower, latency, every, calls: AtomicU64::new(0) }
    }

    fn after<'a, T: Send + 'a>(
        &self,
        wait: Duration,
        call: impl FnOnce() -> Io<'a, T> + Send + 'a,
    ) -> Io<'a, T> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if wait.is_zero() || !number.is_multiple_of(self.every.get()) {
            return call();
        }
        Io::new(async move {
            sleep(wait).await;
            call().await
        })
    }
}

impl Volume for DelayVolume {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.after(self.latency.read, move || self.lower.read(extent))
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        self.after(self.latency.write, move || self.lower.write(lba, data, durability))
    }

    fn flush(&self) -> Io<'_, ()> {
        self.after(self.latency.flush, move || self.lower.flush())
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.after(self.latency.write, move || self.lower.discard(extent))
    }

    fn admit(&self, bytes: usize) -> Result<(), Error> {
        self.lower.admit(bytes)
    }

    fn extensions(&self) -> Extensions<'_> {
        let below = self.lower.extensions();
        Extensions {
            provisioning: below.provisioning.and(Some(self)),
            rollback: below.rollback.and(Some(self)),
            flushed_reads: below.flushed_reads.and(Some(self)),
            ordered_flush: None,
            ..below
        }
    }
}

impl Provisioning for DelayVolume {
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        self.after(self.latency.read, move || self.lower.extensions().allocation(extent))
    }

    fn usage(&self) -> Option<ThinSpaceUsage> {
        self.lower.extensions().usage()
    }
}

impl EpochRollback for DelayVolume {
    fn roll_back(&self) -> Io<'_, ()> {
        self.after(self.latency.flush, move || self.lower.extensions().roll_back())
    }
}

impl FlushedReads for DelayVolume {
    fn read_flushed(&self, extent: Extent) -> Io<'_, Data> {
        self.after(self.latency.read, move || self.lower.extensions().read_flushed(extent))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;
    use crate::{MemVolume, testing::now};

    #[tokio::test(start_paused = true)]
    async fn only_every_nth_call_is_delayed() {
        let lower = Arc::new(MemVolume::new(Geometry::with_blocks(8)));
        let latency = Latency::uniform(Duration::from_secs(1));
        let slow = DelayVolume::of_every(NonZeroU64::new(3).unwrap(), lower, latency);
        let start = Instant::now();
        for call in 1..=9 {
            slow.read(Extent { lba: Lba(0), blocks: 1 }).await.expect("read");
            assert_eq!(start.elapsed().as_secs(), call / 3, "after call {call}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_kind_of_call_has_its_own_delay() {
        let lower = Arc::new(MemVolume::new(Geometry::with_blocks(8)));
        let ms = Duration::from_millis;
        let latency = Latency { read: ms(3), write: ms(5), flush: ms(70) };
        let slow = DelayVolume::new(lower, latency);
        let block = Extent { lba: Lba(0), blocks: 1 };

        let start = Instant::now();
        slow.read(block).await.expect("read");
        assert_eq!(start.elapsed(), ms(3));
        slow.write(Lba(0), Data::zeros(512), Durability::Stable).await.expect("written");
        slow.discard(block).await.expect("discarded");
        assert_eq!(start.elapsed(), ms(13));
        slow.flush().await.expect("flushed");
        assert_eq!(start.elapsed(), ms(83));
    }

    #[test]
    fn no_delay_needs_no_clock() {
        let lower = Arc::new(MemVolume::new(Geometry::with_blocks(8)));
        let quick = DelayVolume::new(lower, Latency::default());
        now(quick.flush()).expect("flushed");
    }
}
