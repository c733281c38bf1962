//! A volume with epochs whose flushes wait for the test.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use volume::{
    Data, Durability, EpochRollback, Error, Extensions, Extent, Geometry, Io, Lba, MemVolume,
    Volume,
};

/// A volume with epochs whose flushes wait until the test lets them end. The volume records each written block and the
/// end of each flush (`FLUSHED`), in order.
pub struct Epochs {
    memory: MemVolume,
    pub came: Mutex<Vec<u64>>,
    /// The number of flushes that have arrived, and the number of flushes that may end.
    pub flushes: watch::Sender<(u64, u64)>,
}

pub const FLUSHED: u64 = u64::MAX;

impl Epochs {
    pub fn new() -> Arc<Self> {
        let memory = MemVolume::new(Geometry::with_blocks(1024));
        Arc::new(Self { memory, came: Mutex::default(), flushes: watch::Sender::default() })
    }

    pub fn let_go(&self) {
        self.flushes.send_modify(|(_, may_end)| *may_end = u64::MAX);
    }

    pub async fn until_flushes(&self, count: u64) {
        let mut flushes = self.flushes.subscribe();
        let _ = flushes.wait_for(|(came, _)| *came >= count).await;
    }
}

impl Volume for Epochs {
    fn geometry(&self) -> Geometry {
        Geometry { epoch_blocks: 800, ..self.memory.geometry() }
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.memory.read(extent)
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        self.came.lock().push(lba.0);
        self.memory.write(lba, data, durability)
    }

    fn flush(&self) -> Io<'_, ()> {
        Io::new(async move {
            let mut number = 0;
            self.flushes.send_modify(|(came, _)| {
                *came += 1;
                number = *came;
            });
            let mut flushes = self.flushes.subscribe();
            let _ = flushes.wait_for(|(_, may_end)| *may_end >= number).await;
            self.came.lock().push(FLUSHED);
            Ok(())
        })
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.memory.discard(extent)
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions { rollback: Some(self), ..Extensions::default() }
    }
}

impl EpochRollback for Epochs {
    fn roll_back(&self) -> Io<'_, ()> {
        Io::done(Ok(()))
    }
}
