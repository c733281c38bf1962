//! What several tests need.

#![allow(dead_code)] // each test program uses its part

#[path = "../../../transport/tests/certificates/mod.rs"]
pub mod certificates;
pub mod node;
pub mod relay;
pub mod tgt;

use initiator::RemoteVolume;
use volume::{Data, Extent, Lba, Volume};

/// Recognisable bytes: every block of 512 tells its address and a version.
pub fn blocks(lba: u64, count: u32, version: u64) -> Data {
    let block = |at: u64| [at.to_le_bytes(), version.to_le_bytes()].concat().repeat(32);
    (lba..lba + u64::from(count)).flat_map(block).collect::<Vec<u8>>().into()
}

/// Reads, and compares with what [`blocks`] makes.
pub async fn expect(volume: &RemoteVolume, lba: u64, count: u32, version: u64) {
    let extent = Extent { lba: Lba(lba), blocks: count };
    let found = volume.read(extent).await.expect("read");
    assert!(found == blocks(lba, count, version), "other data at {lba}");
}
