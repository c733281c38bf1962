//! A far volume for tests that grants or refuses a cache the exclusive right to write it (claim).

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use volume::{
    Claim, Data, Durability, Error, ExclusiveWriter, Extensions, Extent, Geometry, Holding, Io,
    Lba, Volume,
};

use super::far::Far;

/// A far volume that remembers the last claim and its answer to that claim.
pub struct Claimed {
    pub far: Arc<Far>,
    pub refuses: AtomicBool,
    asked: Mutex<Option<Claim>>,
    pub holding: Mutex<Holding>,
}

impl Claimed {
    pub fn new(blocks: u64) -> Arc<Self> {
        Self::over(Far::new(Geometry::with_blocks(blocks)))
    }

    /// Makes a volume with the blocks of `far`.
    pub fn over(far: Arc<Far>) -> Arc<Self> {
        Arc::new(Self {
            far,
            refuses: AtomicBool::new(false),
            asked: Mutex::default(),
            holding: Mutex::default(),
        })
    }

    pub fn asked(&self) -> Claim {
        self.asked.lock().clone().expect("it was asked for a claim")
    }
}

impl Volume for Claimed {
    fn geometry(&self) -> Geometry {
        self.far.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.far.read(extent)
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        self.far.write(lba, data, durability)
    }

    fn flush(&self) -> Io<'_, ()> {
        self.far.flush()
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.far.discard(extent)
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions { writer: Some(self), ..self.far.extensions() }
    }
}

impl ExclusiveWriter for Claimed {
    fn claim(&self, claim: Claim) -> Io<'_, Holding> {
        let refuses = self.refuses.load(Ordering::SeqCst);
        let holding =
            if refuses { Holding::Refused("somebody has it".into()) } else { Holding::Held };
        *self.asked.lock() = Some(claim);
        self.holding.lock().clone_from(&holding);
        Io::done(Ok(holding))
    }

    fn holding(&self) -> Holding {
        self.holding.lock().clone()
    }

    fn release(&self) -> Io<'_, ()> {
        *self.holding.lock() = Holding::Nothing;
        Io::done(Ok(()))
    }
}
