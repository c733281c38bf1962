//! Opens a damaged or forged log disk. Damage must be detected: either the log is not opened, or each block reads as
//! data that was once written to it. A forged log with right checksums may return any data, but must not make the cache
//! panic, hang or take too much memory.
#![no_main]

use std::sync::{Arc, OnceLock};

use cache::{Cache, LogVolumeIdentity, Parts, Settings};
use fuzz::Choices;
use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};
use volume::{Data, Durability, Extent, Geometry, Lba, MemVolume, Stack, Volume};

const BLOCK: usize = 4096;
const LOG_BLOCKS: u64 = 64;
/// Number of slots that are written. The cached volume has space for twice as many.
const SLOTS: u64 = 8;
/// Number of times that every slot is written. The data of a write is the number of the round, which begins at 1.
const ROUNDS: u8 = 3;

fuzz_target!(|input: &[u8]| {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    let runtime = RUNTIME
        .get_or_init(|| Builder::new_current_thread().enable_time().build().expect("a runtime"));
    let mut image = IMAGE.get_or_init(|| runtime.block_on(written_log())).clone();

    let mut choices = Choices::new(input);
    let flags = choices.byte();
    let forge = flags & 1 != 0;
    while !choices.is_empty() {
        let block = usize::from(choices.byte()) % LOG_BLOCKS as usize;
        let offset = usize::from(choices.short()) % BLOCK;
        image[block * BLOCK + offset] ^= choices.byte();
        if forge {
            seal(&mut image[block * BLOCK..][..BLOCK]);
        }
    }
    runtime.block_on(open_and_read(image, forge, flags & 2 != 0));
});

async fn open_and_read(image: Vec<u8>, forged: bool, accept_loss: bool) {
    let log = memory(LOG_BLOCKS);
    let data = Data::from(bytes::Bytes::from(image));
    log.write(Lba(0), data, Durability::Stable).await.expect("it is memory");
    let _ = cache::inspect(&log).await;
    let Ok(cache) = open(log, accept_loss).await else { return };
    for slot in 0..SLOTS * 2 {
        let extent = Extent { lba: Lba(slot), blocks: 1 };
        let Ok(data) = cache.read(extent).await else {
            assert!(forged, "slot {slot} cannot be read");
            continue;
        };
        let bytes = data.into_bytes();
        assert_eq!(bytes.len(), BLOCK);
        let uniform = bytes.iter().all(|byte| *byte == bytes[0]);
        let known = if slot < SLOTS { ROUNDS } else { 0 };
        assert!(forged || uniform && bytes[0] <= known, "slot {slot} was never this");
    }
}

/// Returns a log with several versions of every slot, and with discards of two of the slots.
async fn written_log() -> Vec<u8> {
    let log = memory(LOG_BLOCKS);
    let cache = open(Arc::clone(&log), false).await.expect("it is new");
    for round in 1..=ROUNDS {
        for slot in 0..SLOTS {
            let data = Data::from(bytes::Bytes::from(vec![round; BLOCK]));
            cache.write(Lba(slot), data, Durability::Stable).await.expect("there is room");
        }
        let extent = Extent { lba: Lba(0), blocks: 2 };
        cache.discard(extent).await.expect("there is room");
        cache.flush().await.expect("it is memory");
    }
    let whole = Extent { lba: Lba(0), blocks: LOG_BLOCKS as u32 };
    log.read(whole).await.expect("it is memory").into_bytes().to_vec()
}

fn memory(blocks: u64) -> Stack {
    let geometry = Geometry { block_size: BLOCK as u32, ..Geometry::with_blocks(blocks) };
    Arc::new(MemVolume::new(geometry))
}

async fn open(log: Stack, accept_loss: bool) -> Result<Arc<Cache>, cache::CacheOpenError> {
    let settings = Settings {
        dram_bytes: 1 << 20,
        nvram_bytes: 64 << 10,
        segment_slots: 4,
        index_segments: 2,
        accept_loss,
        ..Settings::default()
    };
    let lower = memory(SLOTS * 2);
    let identity = LogVolumeIdentity { name: "lower".to_owned(), geometry: lower.geometry() };
    Cache::open(settings, Parts { lower, log, nvram: None }, identity).await
}

/// Corrects the checksum of a header (docs/formats).
fn seal(block: &mut [u8]) {
    let at = match &block[..8] {
        b"FBYLOGSG" | b"FBYLOGIX" => 4092,
        b"FBYLOGSB" => 508,
        _ => return,
    };
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &block[..at]) as u32;
    block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
}
