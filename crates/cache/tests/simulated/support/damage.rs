//! Helpers that damage blocks of the log of a killed gateway.

use super::gateway::{Gateway, read, write};
use cache::CacheOpenError;
use volume::{Durability, Extent, Lba, Stack};

pub async fn block(log: &Stack, number: u64) -> Vec<u8> {
    let read = log.read(Extent { lba: Lba(number), blocks: 1 }).await;
    read.expect("memory does not fail").into_bytes().to_vec()
}

pub async fn set_block(log: &Stack, number: u64, bytes: Vec<u8>) {
    let written = log.write(Lba(number), bytes.into(), Durability::Stable).await;
    written.expect("memory does not fail");
}

pub async fn flip(log: &Stack, number: u64, bit: usize) {
    let mut bytes = block(log, number).await;
    bytes[bit / 8] ^= 1 << (bit % 8);
    set_block(log, number, bytes).await;
}

/// Returns a gateway that was killed with five segments of one slot each in its log: slots 0 to 3,
/// then slot 0 again.
pub async fn killed(gateway: Gateway) -> Gateway {
    let cache = gateway.open().await;
    for (slot, byte) in [(0, 1), (1, 2), (2, 3), (3, 4), (0, 5)] {
        write(&cache, slot * 8, byte, 8).await.unwrap();
    }
    gateway
}

pub async fn refusal(gateway: &Gateway) -> CacheOpenError {
    match gateway.try_open().await {
        Ok(_) => panic!("it was opened"),
        Err(error) => error,
    }
}

pub async fn contents(gateway: &Gateway) -> Vec<u8> {
    let cache = gateway.open().await;
    let mut bytes = Vec::new();
    for slot in 0..4 {
        bytes.push(read(&cache, slot * 8, 8).await.unwrap()[0]);
    }
    bytes
}
