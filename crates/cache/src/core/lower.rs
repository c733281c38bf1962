//! The lower volume of a cache: its size, its flushes, and the link to it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use tokio::time::Instant;
use volume::{Geometry, Holding, JoinedVolume, Lba};

use crate::{
    lower::{extent::MemberExtents, flow::Flow, silence::SilenceWatch, window::Window},
    slots::sectors::{SECTOR_BYTES, SLOT_BYTES, WHOLE},
};

/// The requests in flight to the lower volume, and their limits.
pub(crate) struct FarLink {
    /// Limits the destage writes in flight. While it is locked, no other lock is taken, and nothing is waited
    /// for.
    pub writes: Mutex<Window>,
    /// Admits reads of the lower volume to the link.
    pub reads: Flow,
    /// Number of fetches in flight for which a host waits.
    pub host_fetches: AtomicUsize,
}

impl FarLink {
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            writes: Mutex::new(Window::new(now)),
            reads: Flow::new(now),
            host_fetches: AtomicUsize::new(0),
        }
    }
}

/// The volume that is cached, or all of them as one if a log serves several.
pub(crate) struct LowerVolume {
    /// The volume itself. The wrapper also records the time of the last answer, and whether the volume has
    /// fenced this cache.
    pub volume: SilenceWatch,
    /// The single volumes that `volume` joins, if a log serves several.
    pub joined: Option<Arc<JoinedVolume>>,
    /// The geometry when the cache was opened. The size may have grown since, see `extents`.
    pub opened: Geometry,
    /// The current size of each cached volume.
    pub extents: MemberExtents,
    /// The maximum number of slots that the lower volume makes stable together (as one epoch), as the volume last
    /// reported it; 0 if it has no epochs.
    pub epoch_slots: AtomicU64,
    /// Held during a flush of the lower volume: it reports a loss of data to one flush only.
    pub flush_turn: tokio::sync::Mutex<()>,
    /// Used if the lower volume has atomic epochs. A destage round holds this lock exclusively, and bypassing
    /// writes share it: the flush of a bypassing write would end the epoch in the middle of a round.
    pub epoch_turn: Arc<tokio::sync::RwLock<()>>,
    /// The number of calls that wait for `epoch_turn` in order to bypass the log. While it is not 0, no round
    /// begins during the flush of another one.
    pub waits_for_turn: AtomicUsize,
    /// Held shared by reads as of the last flush, and exclusively by a destage round while it begins.
    pub flushed_reads: tokio::sync::RwLock<()>,
    /// The number of failed flushes and of rollbacks. After each of them, data that was written before may be
    /// lost.
    pub losses: AtomicU64,
    /// Set when a flush has made stable all data that the lower volume held when the cache was opened.
    pub is_stable: AtomicBool,
    pub link: FarLink,
}

impl LowerVolume {
    /// `is_stable`: all data that may be read from the lower volume is known to be stable there, since it was
    /// destaged from the log.
    pub fn new(
        volume: SilenceWatch,
        joined: Option<Arc<JoinedVolume>>,
        (opened, extents): (Geometry, MemberExtents),
        is_stable: bool,
    ) -> Self {
        Self {
            volume,
            joined,
            opened,
            extents,
            epoch_slots: 0.into(),
            flush_turn: tokio::sync::Mutex::new(()),
            epoch_turn: Arc::default(),
            waits_for_turn: AtomicUsize::new(0),
            flushed_reads: tokio::sync::RwLock::new(()),
            losses: 0.into(),
            is_stable: is_stable.into(),
            link: FarLink::new(),
        }
    }

    /// Returns the mask of all sectors of a slot that the volume has.
    pub fn whole(&self, slot: u64) -> u8 {
        let sectors = self.end_of(slot).saturating_sub(slot * 8);
        if sectors >= 8 { WHOLE } else { (1 << sectors) - 1 }
    }

    /// Returns the address of a sector in the lower volume.
    pub fn lba(&self, sector: u64) -> Lba {
        Lba(sector / self.sectors_per_block())
    }

    /// Returns how many sectors of 512 bytes a block has.
    pub fn sectors_per_block(&self) -> u64 {
        u64::from(self.opened.block_size) / SECTOR_BYTES as u64
    }

    pub fn blocks_per_slot(&self) -> u64 {
        SLOT_BYTES as u64 / u64::from(self.opened.block_size)
    }

    /// Returns the current geometry of the cached volume; for a common cache, of the whole joined address
    /// space.
    pub fn present_geometry(&self) -> Geometry {
        let blocks =
            if self.joined.is_some() { self.opened.blocks } else { self.extents.blocks(0) };
        Geometry { blocks, ..self.opened }
    }

    /// Returns the sector after the last one of the volume that holds a slot. The end of a volume may cut its
    /// last slot short.
    pub fn end_of(&self, slot: u64) -> u64 {
        let block = slot.saturating_mul(self.blocks_per_slot());
        self.extents.end(block).saturating_mul(self.sectors_per_block())
    }

    /// Returns true if the lower volume has atomic epochs, and no other initiator can end one of them in the
    /// middle. Only a claim keeps other initiators from ending an epoch with a flush.
    pub fn has_atomic_epochs(&self) -> bool {
        self.epoch_slots.load(Ordering::Relaxed) > 0 && self.volume.holding() == Holding::Held
    }

    /// Returns the number of losses so far. Call this before the first write that `CacheCore::flush_lower`
    /// must make stable.
    pub fn known_losses(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }

    /// Counts a loss. The loss concerns all callers that have written to the lower volume since its last flush.
    pub fn count_loss(&self) {
        self.losses.fetch_add(1, Ordering::SeqCst);
    }
}
