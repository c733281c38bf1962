//! A disk for a read tier that returns corrupt data: the data that it returns is not always what
//! was written.

use std::sync::Arc;

use parking_lot::Mutex;
use sim::Rng;
use volume::{Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, MemVolume, Volume};

/// Number of blocks before the first segment.
pub const LABEL: u64 = 32;
const BLOCK: usize = 4096;

/// A disk in memory that corrupts blocks. It copies the data, so that it shares no pages with the
/// cache.
pub struct Rotting {
    memory: MemVolume,
    /// Probability in percent with which a block is corrupted when it is read or written.
    percent: u32,
    rng: Mutex<Rng>,
    sleep: std::time::Duration,
}

impl Rotting {
    /// Returns a disk with room for `slots` slots.
    pub fn new(slots: u64, percent: u32, seed: u64) -> Arc<Self> {
        let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(LABEL + slots) };
        let rng = Mutex::new(Rng::new(seed));
        let sleep = std::time::Duration::ZERO;
        Arc::new(Self { memory: MemVolume::new(geometry), percent, rng, sleep })
    }

    /// Returns a disk without corruption whose calls each take the time `sleep`.
    pub fn slow(slots: u64, sleep: std::time::Duration) -> Arc<Self> {
        let rotting = Arc::into_inner(Self::new(slots, 0, 1)).expect("it is new");
        Arc::new(Self { sleep, ..rotting })
    }

    /// Returns the whole content of the disk.
    pub async fn image(&self) -> Vec<u8> {
        let whole = Extent { lba: Lba(0), blocks: self.memory.geometry().blocks as u32 };
        self.memory.read(whole).await.expect("memory").into_bytes().to_vec()
    }

    /// Damages some blocks of a segment: tears them, zeroes them, or flips one bit.
    fn spoil(&self, lba: Lba, data: &Data) -> Data {
        let mut bytes = vec![0; data.len()];
        data.copy_to_slice(&mut bytes);
        let mut rng = self.rng.lock();
        for (block, lba) in bytes.chunks_mut(BLOCK).zip(lba.0..) {
            if lba < LABEL || !rng.chance(self.percent) {
                continue;
            }
            match rng.below(3) {
                0 => block[BLOCK / 2..].fill(rng.below(256) as u8),
                1 => block.fill(0),
                _ => block[rng.below(BLOCK as u64) as usize] ^= 1 << rng.below(8),
            }
        }
        bytes.into()
    }
}

impl Volume for Rotting {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(async move {
            tokio::time::sleep(self.sleep).await;
            let data = self.memory.read(extent).await?;
            // Yield, so that other tasks run while the read is in progress.
            sim::yield_now().await;
            Ok(self.spoil(extent.lba, &data))
        })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        Io::new(async move {
            tokio::time::sleep(self.sleep).await;
            let data = self.spoil(lba, &data);
            for (at, lba) in (0..data.len()).step_by(BLOCK).zip(lba.0..) {
                self.memory.write(Lba(lba), data.slice(at, BLOCK), durability).await?;
                sim::yield_now().await;
            }
            Ok(())
        })
    }

    fn flush(&self) -> Io<'_, ()> {
        Io::done(Ok(()))
    }

    fn discard(&self, _extent: Extent) -> Io<'_, ()> {
        Io::done(Err(Error::Device("the tier must not discard".into())))
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}
