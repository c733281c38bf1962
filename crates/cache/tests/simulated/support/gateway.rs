//! A cache with a far volume and a log in memory, for tests of one behaviour.

use std::sync::Arc;

use cache::{Cache, CacheOpenError, DestageOrder, LogVolumeIdentity, Parts, Settings};
use volume::{Data, Durability, Error, Extent, Geometry, Lba, MemVolume, Stack, Volume};

use super::{far::Far, memory::Memory};

/// The far volume, log and settings of a gateway. They outlive its cache, so a test can open it again.
pub struct Gateway {
    pub far: Arc<Far>,
    pub log: Stack,
    pub memory: Option<Memory>,
    pub settings: Settings,
}

impl Gateway {
    /// Returns a gateway with a far volume of 16 MiB, a log of `log_blocks` blocks, and no NVRAM.
    pub fn new(log_blocks: u64) -> Self {
        let log = Geometry { block_size: 4096, ..Geometry::with_blocks(log_blocks) };
        Self {
            far: Far::new(Geometry::with_blocks(32768)),
            log: Arc::new(MemVolume::new(log)),
            memory: None,
            settings: Settings {
                dram_bytes: 4 << 20,
                nvram_bytes: 1 << 20,
                read_ahead_bytes: 0,
                ..Settings::default()
            },
        }
    }

    /// Sets relaxed order, so that writes may bypass the log.
    pub fn relaxed(mut self) -> Self {
        self.settings.order = DestageOrder::Relaxed;
        self
    }

    pub fn with_nvram(mut self) -> Self {
        self.memory = Some(Memory::new(256));
        self
    }

    pub fn identity(&self) -> LogVolumeIdentity {
        // The log does not record `atomic_blocks`, because the cache does not pass this guarantee
        // on.
        let geometry = Geometry { atomic_blocks: 0, ..self.far.geometry() };
        LogVolumeIdentity { name: "far".into(), geometry }
    }

    pub async fn try_open(&self) -> Result<Arc<Cache>, CacheOpenError> {
        let parts = Parts {
            lower: self.far.clone(),
            log: Arc::clone(&self.log),
            nvram: self.memory.clone().map(|memory| Box::new(memory) as _),
        };
        Cache::open(self.settings.clone(), parts, self.identity()).await
    }

    /// Opens the cache, but does not start destage.
    pub async fn open(&self) -> Arc<Cache> {
        self.try_open().await.expect("it can be opened")
    }

    /// Opens the cache and starts destage.
    pub async fn start(&self) -> Arc<Cache> {
        let cache = self.open().await;
        tokio::spawn(cache.run());
        cache
    }
}

/// Returns `blocks` blocks of 512 bytes, in which every byte is `byte`.
pub fn filled(byte: u8, blocks: usize) -> Data {
    vec![byte; blocks * 512].into()
}

pub async fn write(cache: &Cache, lba: u64, byte: u8, blocks: usize) -> Result<(), Error> {
    cache.write(Lba(lba), filled(byte, blocks), Durability::Volatile).await
}

/// Returns the first byte of each block. All bytes of a block must be equal.
pub async fn read(cache: &Cache, lba: u64, blocks: u32) -> Result<Vec<u8>, Error> {
    let data = cache.read(Extent { lba: Lba(lba), blocks }).await?.into_bytes();
    assert_eq!(data.len(), blocks as usize * 512);
    Ok(first_bytes(&data))
}

pub fn first_bytes(data: &[u8]) -> Vec<u8> {
    data.chunks(512)
        .map(|block| {
            assert!(block.iter().all(|&byte| byte == block[0]), "a block of one kind");
            block[0]
        })
        .collect()
}
