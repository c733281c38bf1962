//! The node of one volume: its stable content, and the changes since the last flush.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use sim::{CrashVolume, Outage, Power, Rng};
use volume::{
    Data, Durability, EpochRollback, Error, Extensions, Extent, Geometry, Io, Lba, Volume,
};

use super::Trial;
use crate::support::model::SECTOR;

/// The volume of a node. With `atomic` it applies the changes between two flushes as a whole,
/// otherwise like any disk.
pub struct Node {
    pub stable: Mutex<Vec<u8>>,
    /// The changes since the last flush; a change without bytes writes zeros.
    staged: Mutex<Vec<(Extent, Option<Data>)>>,
    atomic: bool,
    /// True if the node has lost its staged writes, and no call has reported the loss yet.
    lost: AtomicBool,
    /// True if the gateway has not sent the lost or rolled back writes again yet.
    behind: AtomicBool,
    pub away: AtomicBool,
    delay: Duration,
    rng: Mutex<Rng>,
    /// An empty disk whose operations count for the power supply, and hang without power.
    clock: CrashVolume,
    /// Called after each flush, to check all nodes.
    pub observer: Mutex<Option<Observer>>,
}

pub type Observer = Arc<dyn Fn() + Send + Sync>;

impl Node {
    pub fn new(trial: &Trial, stable: Vec<u8>, power: &Arc<Power>, seed: u64) -> Arc<Self> {
        let clock = CrashVolume::new(Geometry::with_blocks(1), seed).powered_by(power);
        Arc::new(Self {
            stable: Mutex::new(stable),
            staged: Mutex::default(),
            atomic: trial.atomic,
            lost: AtomicBool::new(false),
            behind: AtomicBool::new(false),
            away: AtomicBool::new(false),
            delay: trial.delay,
            rng: Mutex::new(Rng::new(seed)),
            clock: clock.with_outage(Outage::Hangs).with_yields(30),
            observer: Mutex::default(),
        })
    }

    async fn travel(&self) -> Result<(), Error> {
        let (delay, away, loses) = {
            let mut rng = self.rng.lock();
            let is_slow = !self.delay.is_zero();
            let delay = self.delay * rng.below(5) as u32 / 2;
            (delay, is_slow && rng.chance(3), is_slow && self.atomic && rng.chance(2))
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        self.clock.flush().await?;
        let mut staged = self.staged.lock();
        if loses && !staged.is_empty() {
            staged.clear();
            self.lost.store(true, Ordering::SeqCst);
            self.behind.store(true, Ordering::SeqCst);
        }
        let away = away || self.away.load(Ordering::SeqCst);
        if away { Err(Error::Unreachable("the link is down".into())) } else { Ok(()) }
    }

    async fn stage(&self, extent: Extent, data: Option<Data>) -> Result<(), Error> {
        self.travel().await?;
        self.staged.lock().push((extent, data));
        self.travel().await
    }

    /// Returns true if the node has no unflushed changes and needs no earlier ones again.
    pub fn is_quiet(&self) -> bool {
        self.staged.lock().is_empty() && !self.behind.load(Ordering::SeqCst)
    }

    /// Returns the content of the node after the gateway was lost. With `power`, the node has lost
    /// its power, too.
    pub fn left(&self, power: bool, rng: &mut Rng) -> Vec<u8> {
        let mut left = self.stable.lock().clone();
        for (extent, data) in &*self.staged.lock() {
            for at in 0..u64::from(extent.blocks) {
                // With `atomic`, the next session rolls back the incomplete epoch.
                if !self.atomic && (!power || rng.chance(50)) {
                    put(&mut left, extent, data.as_ref(), at);
                }
            }
        }
        left
    }
}

/// Copies sector `at` of an extent to its place in the content of the volume.
fn put(bytes: &mut [u8], extent: &Extent, data: Option<&Data>, at: u64) {
    let to = (extent.lba.0 + at) as usize * SECTOR;
    match data {
        Some(data) => {
            data.slice(at as usize * SECTOR, SECTOR).copy_to_slice(&mut bytes[to..to + SECTOR]);
        }
        None => bytes[to..to + SECTOR].fill(0),
    }
}

impl Volume for Node {
    fn geometry(&self) -> Geometry {
        let epoch_blocks = if self.atomic { 64 * 8 } else { 0 };
        let blocks = (self.stable.lock().len() / SECTOR) as u64;
        Geometry { epoch_blocks, ..Geometry::with_blocks(blocks) }
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(async move {
            self.travel().await?;
            let mut seen = self.stable.lock().clone();
            for (over, data) in &*self.staged.lock() {
                (0..u64::from(over.blocks)).for_each(|at| put(&mut seen, over, data.as_ref(), at));
            }
            let range = extent.lba.0 as usize * SECTOR..extent.end().0 as usize * SECTOR;
            let data = seen[range].to_vec();
            self.travel().await?;
            Ok(data.into())
        })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        assert_eq!(durability, Durability::Volatile, "a round flushes");
        let mut copy = vec![0; data.len()];
        data.copy_to_slice(&mut copy);
        let extent = Extent { lba, blocks: (copy.len() / SECTOR) as u32 };
        Io::new(self.stage(extent, Some(copy.into())))
    }

    fn flush(&self) -> Io<'_, ()> {
        Io::new(async move {
            self.travel().await?;
            // An initiator that knows of a loss reports it in this way to the next flush (decision
            // 0009).
            if self.lost.swap(false, Ordering::SeqCst) {
                return Err(Error::Device("the node has restarted".into()));
            }
            let staged = std::mem::take(&mut *self.staged.lock());
            if !staged.is_empty() {
                self.behind.store(false, Ordering::SeqCst);
            }
            {
                let mut stable = self.stable.lock();
                for (extent, data) in &staged {
                    let each = 0..u64::from(extent.blocks);
                    each.for_each(|at| put(&mut stable, extent, data.as_ref(), at));
                }
            }
            let observer = self.observer.lock().clone();
            if let Some(observer) = observer {
                observer();
            }
            self.travel().await
        })
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        Io::new(self.stage(extent, None))
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions { rollback: Some(self), ..Extensions::default() }
    }
}

impl EpochRollback for Node {
    fn roll_back(&self) -> Io<'_, ()> {
        Io::new(async move {
            self.travel().await?;
            if !std::mem::take(&mut *self.staged.lock()).is_empty() {
                self.behind.store(true, Ordering::SeqCst);
            }
            self.lost.store(false, Ordering::SeqCst);
            Ok(())
        })
    }
}
