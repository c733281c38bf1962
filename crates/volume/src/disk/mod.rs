//! A simulated disk: each call takes as long as on a disk with arms and a cache ([`Mechanics`]). The
//! data goes to the volume below at once.

mod mechanics;
mod profile;
mod wait;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    Allocation, Data, Durability, EpochRollback, Error, Extensions, Extent, Geometry, Io, Lba,
    Provisioning, Stack, ThinSpaceUsage, Volume,
};

use mechanics::Mechanics;
pub use profile::Profile;

/// A volume with the service times of a disk. The volume below has performed every acknowledged call, so
/// a crash loses no more data than without this layer. The clock is that of `tokio::time`, so a test can
/// pause it.
pub struct DiskVolume {
    lower: Stack,
    mechanics: Mutex<Mechanics>,
    began: Instant,
}

impl DiskVolume {
    /// Puts a disk with this profile in front of `lower`. Must be called within a tokio runtime.
    #[must_use]
    pub fn new(lower: Stack, profile: Profile) -> Self {
        Self { lower, mechanics: Mutex::new(Mechanics::new(profile)), began: Instant::now() }
    }

    /// Performs the call below, and delays its result until the disk would answer. An error is returned
    /// at once.
    fn timed<'a, T: Send + 'a>(
        &'a self,
        when: impl FnOnce(&mut Mechanics, std::time::Duration) -> std::time::Duration,
        call: Io<'a, T>,
    ) -> Io<'a, T> {
        let done = when(&mut self.mechanics.lock(), self.began.elapsed());
        let due = self.began + done;
        Io::new(async move {
            let result = call.await?;
            wait::until(due).await;
            Ok(result)
        })
    }

    /// Returns the byte offset of block `lba`, and the offset `length` bytes after it.
    fn bytes(&self, lba: Lba, length: u64) -> (u64, u64) {
        let start = lba.0.saturating_mul(self.lower.geometry().block_size.into());
        (start, start.saturating_add(length))
    }

    fn extent(&self, extent: Extent) -> (u64, u64) {
        let size = u64::from(self.lower.geometry().block_size);
        self.bytes(extent.lba, u64::from(extent.blocks) * size)
    }
}

impl Volume for DiskVolume {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        let at = self.extent(extent);
        self.timed(|disk, now| disk.read(now, at), self.lower.read(extent))
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        let at = self.bytes(lba, data.len() as u64);
        let stable = durability == Durability::Stable;
        let call = self.lower.write(lba, data, durability);
        self.timed(|disk, now| disk.write(now, at, stable), call)
    }

    fn flush(&self) -> Io<'_, ()> {
        self.timed(Mechanics::flush, self.lower.flush())
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.timed(|disk, now| disk.discard(now), self.lower.discard(extent))
    }

    fn admit(&self, bytes: usize) -> Result<(), Error> {
        self.lower.admit(bytes)
    }

    fn extensions(&self) -> Extensions<'_> {
        let below = self.lower.extensions();
        Extensions {
            provisioning: below.provisioning.and(Some(self)),
            rollback: below.rollback.and(Some(self)),
            ordered_flush: None,
            ..below
        }
    }
}

impl Provisioning for DiskVolume {
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        self.timed(|disk, now| disk.discard(now), self.lower.extensions().allocation(extent))
    }

    fn usage(&self) -> Option<ThinSpaceUsage> {
        self.lower.extensions().usage()
    }
}

impl EpochRollback for DiskVolume {
    fn roll_back(&self) -> Io<'_, ()> {
        self.timed(Mechanics::flush, self.lower.extensions().roll_back())
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::{FaultCallKind, FaultRule, FaultVolume, MemVolume, Symptom};

    fn memory() -> Stack {
        Arc::new(MemVolume::new(Geometry::with_blocks(1 << 16)))
    }

    #[tokio::test(start_paused = true)]
    async fn calls_take_the_time_of_the_disk_and_data_is_in_the_lower_volume_at_once() {
        let lower = memory();
        let disk = DiskVolume::new(Arc::clone(&lower), Profile::named("ibm-dnes").expect("known"));
        let start = Instant::now();
        let mut data = Data::new();
        data.push(vec![7; 8192].into());
        let write = disk.write(Lba(64), data.clone(), Durability::Volatile);
        let mut write = std::pin::pin!(write);
        assert!(futures_util::poll!(&mut write).is_pending());
        let extent = Extent { lba: Lba(64), blocks: 16 };
        let below = lower.read(extent).await.expect("read");
        assert_eq!(below.into_bytes(), data.into_bytes());
        write.await.expect("written");
        assert!(start.elapsed() < Duration::from_millis(2), "{:?}", start.elapsed());
        // A flush is answered only when the data in the cache has been written to the platter.
        disk.flush().await.expect("flushed");
        assert!(start.elapsed() >= Duration::from_millis(11), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_of_the_lower_volume_is_reported() {
        let broken = FaultVolume::new(memory());
        broken
            .faults()
            .add(FaultRule::always(FaultCallKind::Write, Symptom::Fails(Error::NoSpace)));
        let disk = DiskVolume::new(Arc::new(broken), Profile::named("ibm-ddys").expect("known"));
        disk.write(Lba(0), Data::zeros(512), Durability::Volatile).await.expect_err("broken");
    }

    #[tokio::test]
    async fn a_hit_of_less_than_a_millisecond_is_not_rounded_up() {
        let hit = Duration::from_micros(400);
        let profile = Profile { read_command: hit, ..Profile::named("null").expect("known") };
        let disk = DiskVolume::new(memory(), profile);
        let mut times = Vec::new();
        for _ in 0..200 {
            let start = std::time::Instant::now();
            disk.read(Extent { lba: Lba(0), blocks: 1 }).await.expect("read");
            times.push(start.elapsed());
        }
        times.sort();
        assert!(times[0] >= hit, "{:?}", times[0]);
        // Check only that a quarter of the calls were fast enough: the machine may be busy with other work.
        assert!(times[50] < Duration::from_micros(900), "{times:?}");
    }
}
