//! A volume whose writes and discards are stable when they are acknowledged: for a remote volume
//! without a cache above it that several hosts write to (decision 0004).

use tokio::sync::Mutex;
use volume::{Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, Stack, Volume};

/// Makes every write and discard to `lower` stable before it is acknowledged. No other initiator
/// may write to `lower` or flush it.
pub struct WriteThrough {
    lower: Stack,
    /// Held by a discard until it is stable, so that only one discard at a time flushes `lower`. `lower` may report a
    /// loss to one flush only, and that must be the flush of the discard that was lost.
    discarding: Mutex<()>,
}

/// Number of attempts of a discard while `lower` loses it before the flush; the initiator sends a
/// stable write to a unit without FUA as often.
const ATTEMPTS: u32 = 3;

impl WriteThrough {
    pub fn new(lower: Stack) -> Self {
        Self { lower, discarding: Mutex::new(()) }
    }
}

impl Volume for WriteThrough {
    fn geometry(&self) -> Geometry {
        Geometry { volatile_cache: false, epoch_blocks: 0, ..self.lower.geometry() }
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.lower.read(extent)
    }

    fn write(&self, lba: Lba, data: Data, _: Durability) -> Io<'_, ()> {
        self.lower.write(lba, data, Durability::Stable)
    }

    /// Does nothing: all acknowledged calls are stable already. A flush of `lower` here could receive the report of a
    /// loss that a discard in progress waits for.
    fn flush(&self) -> Io<'_, ()> {
        Io::done(Ok(()))
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        Io::new(async move {
            let _turn = self.discarding.lock().await;
            self.lower.discard(extent).await?;
            // The blocks have changed now. Convert all later errors to ones that do not promise "nothing was done".
            for _ in 1..ATTEMPTS {
                match self.lower.flush().await {
                    // `lower` may have restarted between discard and flush.
                    Err(Error::Device(_)) => {}
                    flushed => return flushed.map_err(Error::after_a_part),
                }
                self.lower.discard(extent).await.map_err(Error::after_a_part)?;
            }
            self.lower.flush().await.map_err(Error::after_a_part)
        })
    }

    fn admit(&self, bytes: usize) -> Result<(), Error> {
        self.lower.admit(bytes)
    }

    fn extensions(&self) -> Extensions<'_> {
        // Pass on only the queries of hosts for space and size.
        let below = self.lower.extensions();
        Extensions {
            provisioning: below.provisioning,
            resizable: below.resizable,
            ..Extensions::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sim::{AbilityProbe, CrashVolume, Rng};
    use volume::{FaultCallKind, FaultRule, FaultVolume, MemVolume, ObserveVolume, Symptom};

    use super::*;

    const EXTENT: Extent = Extent { lba: Lba(8), blocks: 8 };

    #[tokio::test]
    async fn acknowledged_writes_survive_a_power_cut_without_a_flush() {
        for seed in 0..20 {
            let disk = Arc::new(CrashVolume::new(Geometry::with_blocks(64), seed));
            let volume = WriteThrough::new(disk.clone());
            assert!(disk.geometry().volatile_cache && !volume.geometry().volatile_cache);
            let data = Data::from(vec![7; 4096]);
            volume.write(EXTENT.lba, data.clone(), Durability::Volatile).await.unwrap();
            volume.write(Lba(32), data.clone(), Durability::Volatile).await.unwrap();
            volume.discard(Extent { lba: Lba(32), blocks: 8 }).await.unwrap();
            let left = CrashVolume::reopen(disk.crash(&mut Rng::new(seed)), seed);
            assert_eq!(left.read(EXTENT).await.unwrap(), data);
            let gone = left.read(Extent { lba: Lba(32), blocks: 8 }).await.unwrap();
            assert_eq!(gone, Data::zeros(4096));
        }
    }

    #[tokio::test]
    async fn a_lost_discard_is_sent_again_and_a_flush_of_the_host_consumes_no_error() {
        let lower = FaultVolume::new(Arc::new(MemVolume::new(Geometry::with_blocks(64))));
        let lost = Symptom::Fails(Error::Device("restarted".into()));
        lower.faults().add(FaultRule::always(FaultCallKind::Flush, lost.clone()).times(1));
        let faults = lower.faults().clone();
        let observed = ObserveVolume::new(Arc::new(lower));
        let counters = observed.counters().clone();
        let volume = WriteThrough::new(Arc::new(observed));
        volume.flush().await.unwrap();
        assert_eq!(counters.counts().flushes, 0);
        volume.discard(EXTENT).await.unwrap();
        assert_eq!(counters.counts().discards, 2);
        faults.add(FaultRule::always(FaultCallKind::Flush, lost));
        assert!(matches!(volume.discard(EXTENT).await, Err(Error::Device(_))));
        assert_eq!(counters.counts().discards, 2 + u64::from(ATTEMPTS));
    }

    #[tokio::test]
    async fn a_performed_discard_never_fails_with_an_error_that_means_not_performed() {
        let lost = Symptom::Fails(Error::Device("restarted".into()));
        for error in [Error::Away("the link is down".into()), Error::Busy("the log is full")] {
            for is_done in [false, true] {
                let lower = FaultVolume::new(Arc::new(MemVolume::new(Geometry::with_blocks(64))));
                let fails = Symptom::Fails(error.clone());
                if is_done {
                    lower
                        .faults()
                        .add(FaultRule::always(FaultCallKind::Flush, lost.clone()).times(1));
                    lower.faults().add(
                        FaultRule::always(FaultCallKind::Discard, fails.clone()).after(1).times(1),
                    );
                    lower.faults().add(FaultRule::always(FaultCallKind::Flush, fails));
                } else {
                    lower.faults().add(FaultRule::always(FaultCallKind::Discard, fails));
                }
                let volume = WriteThrough::new(Arc::new(lower));
                for _ in 0..2 {
                    let ended = volume.discard(EXTENT).await;
                    assert_eq!(matches!(ended, Err(Error::Unreachable(_))), is_done, "{ended:?}");
                }
            }
        }
    }
    #[tokio::test]
    async fn calls_about_space_and_size_reach_the_lower_volume() {
        let lower = Arc::new(AbilityProbe::new(Geometry::with_blocks(64)));
        let volume = WriteThrough::new(lower.clone());
        let expected = ["allocation", "usage", "admit", "examine -> read", "refresh"];
        assert_eq!(lower.calls_through(&volume).await, expected);
    }
}
