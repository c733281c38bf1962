//! Implements the optional abilities of a volume for the cache.

use tokio::time::Instant;
use volume::{
    Allocation, Claim, Data, EpochRollback, Error, ExclusiveWriter, Extent, FlushedReads, Holding,
    Io, Lba, Provisioning, Resizable, ThinSpaceUsage, Volume,
};

use super::Cache;
use crate::slots::sectors::{SECTOR_BYTES, SECTORS};

impl Provisioning for Cache {
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        Io::new(self.allocation_of(extent))
    }

    /// Returns `None`: a block may take space in the log, in the lower volume, or in both.
    fn usage(&self) -> Option<ThinSpaceUsage> {
        None
    }
}

impl Cache {
    /// Returns which blocks are mapped. Blocks whose data the cache has are mapped, whatever the lower volume
    /// answers. If the lower volume does not answer, all blocks are mapped.
    async fn allocation_of(&self, extent: Extent) -> Result<Allocation, Error> {
        // An answer "unmapped" makes the caller skip the block, which is a read of zeros. Apply the checks of
        // a read.
        self.shared.readable()?;
        let (sector, _) = self.sectors(extent)?;
        let shared = &self.shared;
        let factor = shared.lower.sectors_per_block();
        let per_slot = u64::from(SECTORS);
        let blocks = u64::from(extent.blocks).min(SLOTS_LOOKED_AT * per_slot / factor);
        let extent = Extent { blocks: blocks as u32, ..extent };
        let slot_of = |block: u64| (sector + block * factor) / per_slot;
        // Look at the slots before asking the lower volume: a slot that is destaged in between is then mapped
        // there.
        let held: Vec<bool> = {
            let state = shared.state.lock();
            (slot_of(0)..=slot_of(blocks - 1))
                .map(|slot| {
                    let entry = state.table.find(slot).map(|index| state.table.entry(index));
                    entry.is_some_and(|entry| entry.pending() || entry.place.is_some())
                })
                .collect()
        };
        let asked = shared.lower.volume.extensions().allocation(extent).await;
        let lower = asked.unwrap_or_else(|_| Allocation::mapped(extent.blocks));
        let mut allocation = Allocation::default();
        let mut block = 0;
        'runs: for run in lower.runs() {
            for _ in 0..run.blocks {
                let held = held[(slot_of(block) - slot_of(0)) as usize];
                if !allocation.push(1, run.mapped || held) {
                    break 'runs;
                }
                block += 1;
            }
        }
        Ok(allocation)
    }
}

/// The maximum number of slots that one call looks at, 64 MiB: the lock is held for less than a
/// millisecond.
const SLOTS_LOOKED_AT: u64 = 1 << 14;

impl Resizable for Cache {
    fn refresh(&self) {
        self.shared.lower.volume.extensions().refresh();
        self.shared.lower.volume.look_at_claim();
        (0..self.shared.lower.extents.places()).for_each(|place| self.notice_growth(place));
    }
}

impl EpochRollback for Cache {
    fn roll_back(&self) -> Io<'_, ()> {
        self.count(Lba(0));
        Io::new(self.shared.roll_back())
    }
}

impl FlushedReads for Cache {
    fn read_flushed(&self, extent: Extent) -> Io<'_, Data> {
        self.count(extent.lba);
        let shared = &self.shared;
        shared.counters.traffic.reads.add(1);
        Io::new(async move {
            shared.readable()?;
            let (sector, sectors) = self.sectors(extent)?;
            shared.counters.traffic.read_bytes.add(sectors * SECTOR_BYTES as u64);
            let begun = Instant::now();
            let data = shared.read_flushed(sector, sectors).await;
            shared.times.reads.add(begun.elapsed(), 1);
            data
        })
    }
}

impl ExclusiveWriter for Cache {
    /// The cache itself is the exclusive writer of its lower volume (holds the claim), so it grants none to callers.
    fn claim(&self, _: Claim) -> Io<'_, Holding> {
        Io::done(Ok(Holding::Unsupported))
    }

    fn holding(&self) -> Holding {
        self.holding()
    }

    fn release(&self) -> Io<'_, ()> {
        Io::done(Ok(()))
    }
}
