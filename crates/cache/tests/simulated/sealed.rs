//! Tests of an encrypted log: no data of the volume is in clear on the log disk or in the NVRAM,
//! changed data is not served, and only the right key opens the log.

use std::{collections::HashSet, sync::Arc};

use crate::support::gateway::{Gateway, filled, read, write};
use cache::{Cache, CacheOpenError, KeyRefusal, LogKey, WriteMode, inspect};
use volume::{Data, Durability, Error, Extent, Geometry, Lba, MemVolume, Stack, Volume};

const LOG_BLOCKS: u64 = 1000;

fn sealed() -> Gateway {
    let mut gateway = Gateway::new(LOG_BLOCKS);
    gateway.settings.log_key = Some(LogKey::new(&[7; 64]));
    gateway
}

async fn image(log: &Stack) -> Vec<u8> {
    let whole = Extent { lba: Lba(0), blocks: LOG_BLOCKS as u32 };
    log.read(whole).await.unwrap().into_bytes().to_vec()
}

async fn disk_of(image: Vec<u8>) -> Stack {
    let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(LOG_BLOCKS) };
    let disk = MemVolume::new(geometry);
    disk.write(Lba(0), Data::from(image), Durability::Stable).await.unwrap();
    Arc::new(disk)
}

fn is_in(bytes: &[u8], byte: u8) -> bool {
    bytes.windows(16).any(|part| part == [byte; 16])
}

async fn refused(gateway: &Gateway) -> KeyRefusal {
    match gateway.try_open().await {
        Err(CacheOpenError::Key(refusal)) => refusal,
        other => panic!("{:?}", other.map(|_| "opened")),
    }
}

#[tokio::test]
async fn the_log_holds_no_clear_text_and_every_write_is_recovered() {
    for report in [WriteMode::AfterComplete, WriteMode::Immediate] {
        let mut gateway = sealed().with_nvram();
        gateway.settings.report = report;
        let cache = gateway.open().await;
        for lba in 0..300 {
            write(&cache, lba * 8, 0xa5, 8).await.unwrap();
        }
        // Write two blocks of a slot. The cache merges them with the slot's other blocks, which it
        // must decrypt.
        write(&cache, 9, 0x5a, 2).await.unwrap();
        cache.flush().await.unwrap();
        let log = image(&gateway.log).await;
        assert!(!is_in(&log, 0xa5) && !is_in(&log, 0x5a));
        assert!(!is_in(&gateway.memory.as_ref().unwrap().0.lock(), 0xa5));
        assert!(inspect(&gateway.log).await.unwrap().encrypted);
        drop(cache);
        let cache = gateway.open().await;
        assert_eq!(read(&cache, 8, 8).await.unwrap(), [0xa5, 0x5a, 0x5a, 165, 165, 165, 165, 165]);
        assert_eq!(read(&cache, 2392, 8).await.unwrap(), [0xa5; 8]);
        tokio::spawn(cache.run());
        cache.drain().await.unwrap();
        assert_eq!(gateway.far.peek(9, 1).await, [0x5a; 512]);
        assert_eq!(gateway.far.peek(16, 1).await, [0xa5; 512]);
    }
}

/// The NVRAM holds data from before the log had a key, or of another log. It must be zeroed, so
/// that no data stays in clear.
#[tokio::test]
async fn the_nvram_is_zeroed_when_the_log_gets_a_key_and_at_its_first_use() {
    let mut gateway = Gateway::new(LOG_BLOCKS).with_nvram();
    gateway.settings.report = WriteMode::Immediate;
    let cache = gateway.start().await;
    for lba in 0..30 {
        write(&cache, lba * 8, 0xa5, 8).await.unwrap();
    }
    cache.drain().await.unwrap();
    cache.stop().await.unwrap();
    drop(cache);
    let before = gateway.memory.as_ref().unwrap().0.lock().clone();
    assert!(is_in(&before, 0xa5), "in clear, though it is free");
    gateway.settings.log_key = Some(LogKey::new(&[7; 64]));
    drop(gateway.open().await);
    assert!(!is_in(&gateway.memory.as_ref().unwrap().0.lock(), 0xa5));
    // Use the NVRAM, which still holds data of the first log, with another log.
    let mut other = sealed().with_nvram();
    other.settings.report = WriteMode::Immediate;
    *other.memory.as_ref().unwrap().0.lock() = before;
    drop(other.open().await);
    assert!(!is_in(&other.memory.as_ref().unwrap().0.lock(), 0xa5));
}

#[tokio::test]
async fn data_is_returned_only_with_its_own_key() {
    let mut gateway = sealed();
    let cache = gateway.open().await;
    write(&cache, 0, 1, 8).await.unwrap();
    drop(cache);
    let before = image(&gateway.log).await;
    let key = gateway.settings.log_key.take();
    assert_eq!(refused(&gateway).await, KeyRefusal::Missing);
    gateway.settings.log_key = Some(LogKey::new(&[8; 64]));
    assert_eq!(refused(&gateway).await, KeyRefusal::Other);
    assert!(image(&gateway.log).await == before, "a refusal changes nothing");
    gateway.settings.log_key = key;
    let cache = gateway.open().await;
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [1; 8]);
}

#[tokio::test]
async fn an_unencrypted_log_is_encrypted_only_when_it_is_empty() {
    let mut gateway = Gateway::new(LOG_BLOCKS);
    let cache = gateway.start().await;
    write(&cache, 0, 1, 8).await.unwrap();
    cache.stop().await.unwrap();
    drop(cache);
    let key = Some(LogKey::new(&[7; 64]));
    let mut keys = [key.clone(), Some(LogKey::new(&[8; 64])), None].into_iter();
    gateway.settings.log_key = key;
    // The data in the log decides which key fits: first data in clear, then data with one key, then
    // with another.
    for expected in [KeyRefusal::Needless, KeyRefusal::Other, KeyRefusal::Missing] {
        let wanted = keys.next().unwrap();
        gateway.settings.log_key = wanted.clone();
        assert_eq!(refused(&gateway).await, expected);
        gateway.settings.log_key = match expected {
            KeyRefusal::Needless => None,
            KeyRefusal::Other => Some(LogKey::new(&[7; 64])),
            KeyRefusal::Missing => Some(LogKey::new(&[8; 64])),
        };
        let cache = gateway.start().await;
        cache.drain().await.unwrap();
        cache.stop().await.unwrap();
        drop(cache);
        gateway.settings.log_key = wanted.clone();
        let cache = gateway.open().await;
        write(&cache, 64, 0xa5, 8).await.unwrap();
        assert_eq!(read(&cache, 64, 8).await.unwrap(), [0xa5; 8]);
        drop(cache);
        assert_eq!(is_in(&image(&gateway.log).await, 0xa5), wanted.is_none());
        let cache = gateway.open().await;
        assert_eq!(read(&cache, 64, 8).await.unwrap(), [0xa5; 8]);
        assert_eq!(read(&cache, 0, 8).await.unwrap(), [1; 8]);
        cache.stop().await.unwrap();
        drop(cache);
        // The log has a key now, so the data that the previous turn wrote in clear must be gone.
        if wanted.is_some() {
            assert!(!is_in(&image(&gateway.log).await, 0xa5));
        }
    }
}

/// Returns the segment headers of a log: block number and bytes.
fn headers(image: &[u8]) -> Vec<(usize, &[u8])> {
    let blocks = image.chunks(4096).enumerate();
    blocks.filter(|(_, block)| block.starts_with(b"FBYLOGSG")).collect()
}

fn put_checksum(header: &mut [u8]) {
    let sum = crc32c::crc32c(&header[..4092]);
    header[4092..].copy_from_slice(&sum.to_le_bytes());
}

#[tokio::test]
async fn forged_data_is_not_served_though_its_checksums_are_right() {
    let mut gateway = sealed();
    let cache = gateway.open().await;
    write(&cache, 0, 1, 8).await.unwrap();
    write(&cache, 8, 2, 8).await.unwrap();
    drop(cache);
    let mut forged = image(&gateway.log).await;
    let at = headers(&forged)[0].0 * 4096;
    forged[at + 4096 + 77] ^= 1;
    let sum = crc32c::crc32c(&forged[at + 4096..at + 8192]);
    forged[at + 128 + 16..at + 128 + 20].copy_from_slice(&sum.to_le_bytes());
    put_checksum(&mut forged[at..at + 4096]);
    gateway.log = disk_of(forged).await;
    let cache = gateway.open().await;
    let error = read(&cache, 0, 8).await.unwrap_err();
    assert!(matches!(&error, Error::Medium { reason, .. } if reason.contains("key")), "{error}");
    assert_eq!(read(&cache, 8, 8).await.unwrap(), [2; 8]);
    // Destage must not send the changed slot to the far volume.
    tokio::spawn(cache.run());
    let _ = tokio::time::timeout(std::time::Duration::from_secs(1), cache.drain()).await;
    assert_eq!(gateway.far.peek(0, 1).await, [0; 512]);
}

#[tokio::test]
async fn a_flipped_bit_is_found_as_without_a_key() {
    let mut gateway = sealed();
    let cache = gateway.open().await;
    write(&cache, 0, 1, 8).await.unwrap();
    write(&cache, 8, 2, 8).await.unwrap();
    drop(cache);
    let mut damaged = image(&gateway.log).await;
    let at = headers(&damaged)[0].0 * 4096;
    damaged[at + 4096 + 77] ^= 1;
    gateway.log = disk_of(damaged).await;
    assert!(matches!(gateway.try_open().await, Err(CacheOpenError::Missing(_))));
}

/// With AES-GCM, using a nonce twice with one key reveals both contents and allows forgeries.
#[tokio::test]
async fn no_nonce_is_used_twice() {
    let gateway = sealed();
    let mut images = Vec::new();
    for round in 0..4 {
        let cache = gateway.open().await;
        for lba in 0..20 {
            write(&cache, lba * 8, round, 8).await.unwrap();
        }
        drop(cache);
        images.push(image(&gateway.log).await);
    }
    // Open two copies of one log, and write to each of them.
    for byte in [11, 12] {
        let copy = Gateway { log: disk_of(images[1].clone()).await, ..sealed() };
        let cache = copy.open().await;
        write(&cache, 0, byte, 8).await.unwrap();
        drop(cache);
        images.push(image(&copy.log).await);
    }
    let mut used = HashSet::new();
    let mut contents = HashSet::new();
    for image in &images {
        for (block, header) in headers(image) {
            let salt = &header[72..84];
            assert_ne!(salt, [0; 12]);
            let number = &header[40..48];
            let count = u32::from_le_bytes(header[64..68].try_into().unwrap());
            for ordinal in 1..=count as usize {
                let sealed = &image[(block + ordinal) * 4096..][..4096];
                used.insert((salt.to_vec(), number.to_vec(), ordinal));
                contents.insert(sealed.to_vec());
            }
        }
    }
    assert!(used.len() >= 82, "{}", used.len());
    // Each nonce must belong to one content only: no two encrypted blocks may share one.
    assert_eq!(used.len(), contents.len());
}

#[tokio::test]
async fn encrypted_segments_wrap_around_the_whole_log() {
    let mut gateway = Gateway::new(900);
    gateway.settings.log_key = Some(LogKey::new(&[7; 64]));
    let cache: Arc<Cache> = gateway.start().await;
    for round in 0..6u8 {
        for lba in 0..20 {
            let data = filled(round + 1, 256);
            cache.write(Lba(lba * 256), data, Durability::Volatile).await.unwrap();
        }
    }
    drop(cache);
    let cache = gateway.open().await;
    assert_eq!(read(&cache, 5000, 100).await.unwrap(), [6; 100]);
}
