//! A far volume that a test can slow down and cut off, and that records its calls.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use volume::{
    Allocation, Data, Durability, EpochRollback, Error, Extensions, Extent, FlushBegunCallback,
    Geometry, Io, Lba, MemVolume, OrderedFlush, Provisioning, ThinSpaceUsage, Volume,
};

/// A call to the far volume: its name, its first block, and its number of blocks.
pub type Call = (&'static str, u64, u64);

/// Maximum number of blocks by which the volume can grow.
pub const SPARE: u64 = 1 << 16;

/// A volume in memory behind a link.
pub struct Far {
    memory: MemVolume,
    /// The number of blocks that the volume reports.
    blocks: AtomicU64,
    away: AtomicBool,
    failing: AtomicBool,
    lost_flushes: AtomicU32,
    delay_ms: AtomicU64,
    epoch_blocks: AtomicU64,
    keeps_order: AtomicBool,
    /// The milliseconds by which the answer to a "flush ahead" is faster than other answers.
    hurry_ms: AtomicU64,
    /// Writes are answered this number of milliseconds earlier than other calls.
    hurry_writes_ms: AtomicU64,
    calls: Mutex<Vec<Call>>,
}

impl Far {
    pub fn new(geometry: Geometry) -> Arc<Self> {
        Arc::new(Self {
            memory: MemVolume::new(Geometry { blocks: geometry.blocks + SPARE, ..geometry }),
            blocks: AtomicU64::new(geometry.blocks),
            away: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            lost_flushes: AtomicU32::new(0),
            delay_ms: AtomicU64::new(0),
            epoch_blocks: AtomicU64::new(0),
            keeps_order: AtomicBool::new(false),
            hurry_ms: AtomicU64::new(0),
            hurry_writes_ms: AtomicU64::new(0),
            calls: Mutex::default(),
        })
    }

    /// Sets the number of blocks, up to [`SPARE`] more than at the start.
    pub fn set_blocks(&self, blocks: u64) {
        self.blocks.store(blocks, Ordering::SeqCst);
    }

    /// Cuts the link to the far volume, or restores it.
    pub fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::SeqCst);
    }

    /// Makes writes and flushes fail, or succeed again.
    pub fn set_failing(&self, failing: bool) {
        self.failing.store(failing, Ordering::SeqCst);
    }

    /// Simulates a restart of the node: the next flush fails, because it cannot confirm earlier writes.
    pub fn fail_next_flush(&self) {
        self.fail_flushes(1);
    }

    /// Makes the next `count` flushes fail, as after restarts of the node.
    pub fn fail_flushes(&self, count: u32) {
        self.lost_flushes.store(count, Ordering::SeqCst);
    }

    /// Counts down `lost_flushes`. Returns true if the present flush has to fail.
    fn loses(&self) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        self.lost_flushes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
    }

    /// Sets the maximum size of an atomic epoch that the volume reports, in blocks.
    pub fn set_epoch_blocks(&self, blocks: u64) {
        self.epoch_blocks.store(blocks, Ordering::SeqCst);
    }

    /// From now on, callers may send writes before a flush is answered. Such a flush is listed as "flush ahead", and
    /// its answer as "flushed".
    pub fn keep_order(&self) {
        self.keeps_order.store(true, Ordering::SeqCst);
    }

    /// Answers each "flush ahead" by this duration earlier than other calls.
    pub fn hurry_flushes(&self, by: Duration) {
        self.hurry_ms.store(by.as_millis() as u64, Ordering::SeqCst);
    }

    /// Answers each write by this duration earlier than other calls.
    pub fn hurry_writes(&self, by: Duration) {
        self.hurry_writes_ms.store(by.as_millis() as u64, Ordering::SeqCst);
    }

    /// Sets the time that each call takes.
    pub fn set_delay(&self, delay: Duration) {
        self.delay_ms.store(delay.as_millis() as u64, Ordering::SeqCst);
    }

    /// Returns the calls since the previous `take_calls`, in order.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock())
    }

    /// Returns the calls that `take_calls` would return, and keeps them in the list.
    pub fn peek_calls(&self) -> Vec<Call> {
        self.calls.lock().clone()
    }

    /// Returns the content of blocks without using the link.
    pub async fn peek(&self, lba: u64, blocks: u32) -> Vec<u8> {
        let data = self.memory.read(Extent { lba: Lba(lba), blocks }).await;
        data.expect("memory does not fail").into_bytes().to_vec()
    }

    /// Replaces the content of blocks without using the link.
    pub async fn poke(&self, lba: u64, bytes: Vec<u8>) {
        let written = self.memory.write(Lba(lba), bytes.into(), Durability::Volatile).await;
        written.expect("memory does not fail");
    }

    async fn travel(&self, call: Call) -> Result<(), Error> {
        self.calls.lock().push(call);
        let mut delay = self.delay_ms.load(Ordering::SeqCst);
        if call.0 == "flush ahead" {
            delay = delay.saturating_sub(self.hurry_ms.load(Ordering::SeqCst));
        }
        if call.0 == "write" {
            delay = delay.saturating_sub(self.hurry_writes_ms.load(Ordering::SeqCst));
        }
        let delay = Duration::from_millis(delay);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if self.away.load(Ordering::SeqCst) {
            return Err(Error::Unreachable("the link is down".into()));
        }
        if self.failing.load(Ordering::SeqCst) && call.0 != "read" {
            return Err(Error::Device("broken".into()));
        }
        if call.0 == "flush" && self.loses() {
            return Err(Error::Device("the far volume was reset".into()));
        }
        Ok(())
    }
}

impl Volume for Far {
    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: self.blocks.load(Ordering::SeqCst),
            epoch_blocks: self.epoch_blocks.load(Ordering::SeqCst),
            ..self.memory.geometry()
        }
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(async move {
            // Read first and then wait for the link: the answer may be outdated when it arrives.
            let data = self.memory.read(extent).await?;
            self.travel(("read", extent.lba.0, u64::from(extent.blocks))).await?;
            Ok(data)
        })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        Io::new(async move {
            let blocks = data.len() as u64 / u64::from(self.geometry().block_size);
            let name = if durability == Durability::Stable { "write stable" } else { "write" };
            self.travel((name, lba.0, blocks)).await?;
            self.memory.write(lba, data, durability).await
        })
    }

    fn flush(&self) -> Io<'_, ()> {
        Io::new(self.travel(("flush", 0, 0)))
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        Io::new(async move {
            self.travel(("discard", extent.lba.0, u64::from(extent.blocks))).await?;
            self.memory.discard(extent).await
        })
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            provisioning: Some(self),
            rollback: Some(self),
            ordered_flush: Some(self),
            ..Extensions::default()
        }
    }
}

impl Provisioning for Far {
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        self.memory.extensions().allocation(extent)
    }

    fn usage(&self) -> Option<ThinSpaceUsage> {
        None
    }
}

impl EpochRollback for Far {
    fn roll_back(&self) -> Io<'_, ()> {
        Io::new(self.travel(("roll back", 0, 0)))
    }
}

impl OrderedFlush for Far {
    fn flush_ahead<'a>(&'a self, begun: FlushBegunCallback<'a>) -> Io<'a, ()> {
        if !self.keeps_order.load(Ordering::SeqCst) {
            return self.flush();
        }
        Io::new(async move {
            begun();
            let flushed = self.travel(("flush ahead", 0, 0)).await;
            let flushed = flushed.and_then(|()| match self.loses() {
                true => Err(Error::Device("the far volume was reset".into())),
                false => Ok(()),
            });
            self.calls.lock().push(("flushed", 0, 0));
            flushed
        })
    }
}
