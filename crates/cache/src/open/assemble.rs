//! Assembles the core of a cache from the results of an opening.

use std::sync::Arc;

use journal::{
    index_memory::LogIndexFrames, ring::SegmentRing, seal::Salt, superblock::Superblock,
};
use parking_lot::Mutex;
use tokio::time::Instant;
use volume::{Confirmed, Geometry, Stack};

use crate::{
    confirmed::Confirming,
    core::{CacheCore, CacheLimits, CacheLog, CacheSignals, LowerVolume, SegmentIdentity},
    degraded_pair::PairWitness,
    inspect::pool,
    lower::{
        extent::{JoinedMembers, MemberExtents},
        silence::SilenceWatch,
    },
    mutant::Mutation,
    nvram::NvramBuffer,
    open::log::{FoundLog, SPARE_ENTRIES},
    refusal::CacheOpenError,
    rules::ModeRules,
    settings::{DestageOrder, LogErrorPolicy, Settings},
    slots::{pages::SlotPagePool, sectors::SLOT_BYTES},
    state::CacheState,
    statistics::{AllTimes, Counters},
    tier::MOST_BUFFERED,
};

pub(super) struct OpenedParts {
    pub settings: Settings,
    pub rules: ModeRules,
    pub lower: Stack,
    pub log: Stack,
    pub joining: Option<JoinedMembers>,
    pub pair: Option<PairWitness>,
    pub superblock: Superblock,
    pub found: FoundLog,
    pub nvram: Option<NvramBuffer>,
    /// The serial of the newest write.
    pub newest: u64,
    pub salt: Option<Salt>,
    pub scratch: Arc<SlotPagePool>,
    /// The number of the newest write that the claim on the lower volume has recorded as confirmed.
    pub claimed: Confirmed,
    pub counters: Counters,
}

impl OpenedParts {
    /// Makes the core of the cache.
    ///
    /// # Errors
    /// A size in the settings does not fit, or there is no memory for the pages.
    pub fn assemble(mut self) -> Result<Arc<CacheCore>, CacheOpenError> {
        let (settings, rules) = (self.settings, self.rules);
        let pages = u32::try_from(settings.dram_bytes / SLOT_BYTES as u64)
            .map_err(|_| CacheOpenError::Settings("dram_bytes is too large".into()))?;
        let superblock = self.superblock;
        let limits = CacheLimits {
            pending_slots: pending_slots(&settings, &rules, &mut self.nvram, &superblock),
            epoch_slots: epoch_slots(&rules, &self.found.scan.ring)?,
            entries_beside_log: pages as usize + SPARE_ENTRIES,
        };
        let identity = SegmentIdentity {
            instance: superblock.instance,
            generation: superblock.generation,
            salt: self.salt,
            noted: rules.keeps_in_nvram,
        };
        let geometry = self.lower.geometry();
        let opened = Geometry { blocks: superblock.identity.geometry.blocks, ..geometry };
        let extents = self
            .joining
            .as_ref()
            .map_or_else(|| MemberExtents::of_one(opened.blocks), MemberExtents::of_several);
        // In strict order, and without writes that bypass a failing log, all data in the lower volume was
        // destaged, and is stable.
        let is_stable = settings.order == DestageOrder::Strict
            && rules.uses_log
            && settings.on_log_error == LogErrorPolicy::StopWrites;
        let FoundLog { scan, table, epochs, seals } = self.found;
        let index = LogIndexFrames::new(&superblock, settings.index_segments, scan.index);
        let mut state = CacheState::new((table, epochs), scan.ring, self.nvram, self.newest);
        state.destage.dirty_since = (state.table.dirty() > 0).then(Instant::now);
        let times = Arc::<AllTimes>::default();
        Ok(Arc::new(CacheCore {
            lower: LowerVolume::new(
                SilenceWatch::new(self.lower, Arc::clone(&times)),
                self.joining.map(|joining| joining.joined),
                (opened, extents),
                is_stable,
            ),
            log: CacheLog::new(self.log, superblock, index, seals, identity, self.scratch),
            pair: self.pair,
            pages: pool(pages + MOST_BUFFERED)?,
            limits,
            state: Mutex::new(state),
            signals: CacheSignals::default(),
            counters: self.counters,
            times,
            confirming: Confirming::new(
                self.claimed,
                settings.confirmed_in.clone(),
                settings.boot.filter(|_| !rules.keeps_over_power_loss),
                rules.keeps_over_power_loss,
            ),
            mutation: Mutation::default(),
            rules,
            settings,
        }))
    }
}

/// Returns how many slots may wait for the log. Also updates the number of the newest stable segment in the
/// NVRAM.
fn pending_slots(
    settings: &Settings,
    rules: &ModeRules,
    nvram: &mut Option<NvramBuffer>,
    superblock: &Superblock,
) -> usize {
    let limit = (settings.nvram_bytes / SLOT_BYTES as u64) as usize;
    let Some(nvram) = nvram else { return limit };
    // Set the number twice, once in each cell: either cell may hold a higher number that is no longer
    // valid.
    nvram.set_watermark(superblock.committed);
    nvram.set_watermark(superblock.committed);
    if rules.keeps_in_nvram {
        // Keep one slot spare: the newer version of a slot is put there before the older one is released.
        return limit.min(nvram.slots() as usize - 1);
    }
    limit
}

/// Returns how many slots an epoch may have; 0 if writes take effect without a flush.
fn epoch_slots(rules: &ModeRules, ring: &SegmentRing) -> Result<u64, CacheOpenError> {
    if !rules.epochs_end_by_flush {
        return Ok(0);
    }
    let slots = slots_between_flushes(ring);
    if slots < LEAST_EPOCH_SLOTS {
        let message = "it is too small for the writes between two flushes";
        return Err(CacheOpenError::Size(message.into()));
    }
    Ok(slots)
}

/// Returns how many slots an epoch may have. Each slot might be written alone, with a segment header of its
/// own. The reserve of the ring and the unused blocks at its end are subtracted.
fn slots_between_flushes(ring: &SegmentRing) -> u64 {
    let lost = 2 * (ring.longest_data() + 1) + ring.reserve() + 4;
    u64::from(ring.blocks().saturating_sub(lost) / 2)
}

/// The minimum number of slots that an epoch must be able to hold.
const LEAST_EPOCH_SLOTS: u64 = 8;
