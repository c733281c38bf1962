//! Functions that several test modules use.

#![allow(dead_code)] // each test program uses its part

#[path = "../../../../transport/tests/certificates/mod.rs"]
pub mod certificates;
pub mod drive;
pub mod node;
pub mod relay;
pub mod tgt;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use initiator::RemoteVolume;
use tokio::task::JoinHandle;
use volume::{Data, Durability, Extent, Lba, Volume};

/// Returns test data: each block of 512 bytes repeats its address and the version.
pub fn blocks(lba: u64, count: u32, version: u64) -> Data {
    let block = |at: u64| [at.to_le_bytes(), version.to_le_bytes()].concat().repeat(32);
    (lba..lba + u64::from(count)).flat_map(block).collect::<Vec<u8>>().into()
}

/// Reads blocks, and compares them with the data that [`blocks`] returns.
pub async fn expect(volume: &RemoteVolume, lba: u64, count: u32, version: u64) {
    let extent = Extent { lba: Lba(lba), blocks: count };
    let found = volume.read(extent).await.expect("read");
    assert!(found == blocks(lba, count, version), "other data at {lba}");
}

/// Starts writers that write, read and compare, each in its own part of the disk.
pub fn load(
    volume: &Arc<RemoteVolume>,
    writers: u64,
    done: &Arc<AtomicBool>,
    counted: &Arc<AtomicU64>,
) -> Vec<JoinHandle<()>> {
    let writer = |writer| {
        let (volume, done, counted) = (volume.clone(), done.clone(), counted.clone());
        tokio::spawn(async move {
            let mut version = 0;
            while !done.load(Ordering::Relaxed) {
                version += 1;
                let (lba, count) = (writer * 2000, 8 + (version % 5) as u32 * 100);
                let data = blocks(lba, count, version);
                volume.write(Lba(lba), data, Durability::Volatile).await.unwrap();
                expect(&volume, lba, count, version).await;
                counted.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    (0..writers).map(writer).collect()
}
