//! Tests a unit with epochs over the network. The unit is the real cache of a node behind a real
//! target.

use std::sync::Arc;

use crate::support::{blocks, expect, node::Node};
use cache::{Cache, LogVolumeIdentity, Parts, Settings, WriteMode};
use initiator::RemoteVolume;
use volume::{Durability, Geometry, Lba, MemVolume, Volume};

async fn home() -> (Arc<MemVolume>, Arc<Cache>) {
    let home = Arc::new(MemVolume::new(Geometry::with_blocks(4096)));
    let log = Geometry { block_size: 4096, ..Geometry::with_blocks(2048) };
    let parts = Parts { lower: home.clone(), log: Arc::new(MemVolume::new(log)), nvram: None };
    let settings = Settings {
        dram_bytes: 4 << 20,
        nvram_bytes: 1 << 20,
        report: WriteMode::AtFlush,
        ..Settings::default()
    };
    let geometry = Geometry { atomic_blocks: 0, ..home.geometry() };
    let cache =
        Cache::open(settings, parts, LogVolumeIdentity { name: "home".into(), geometry }).await;
    let cache = cache.expect("opened");
    tokio::spawn(cache.run());
    (home, cache)
}

#[tokio::test]
async fn unflushed_writes_are_rolled_back_through_a_session() {
    let (disk, cache) = home().await;
    let address = "127.0.0.1:0".parse().expect("an address");
    let node = Node::serve(disk, cache.clone(), "disk-1", address).await;
    let volume = RemoteVolume::connect(node.settings()).await.expect("a session");
    assert!(volume.geometry().epoch_blocks > 0);
    assert_eq!(volume.geometry().epoch_blocks, cache.geometry().epoch_blocks);
    volume.write(Lba(8), blocks(8, 8, 1), Durability::Volatile).await.unwrap();
    volume.flush().await.unwrap();
    volume.write(Lba(8), blocks(8, 8, 2), Durability::Volatile).await.unwrap();
    volume.extensions().roll_back().await.unwrap();
    expect(&volume, 8, 8, 1).await;
    volume.write(Lba(8), blocks(8, 8, 3), Durability::Stable).await.unwrap();
    volume.extensions().roll_back().await.unwrap();
    expect(&volume, 8, 8, 3).await;
}

/// If some writes are lost and a flush is sent, the flush ends an epoch that lacks these writes.
#[tokio::test]
async fn a_flush_is_not_sent_if_some_of_its_writes_are_lost() {
    let (disk, cache) = home().await;
    let address = "127.0.0.1:0".parse().expect("an address");
    let mut node = Node::serve(disk, cache.clone(), "disk-1", address).await;
    let volume = RemoteVolume::connect(node.settings()).await.expect("a session");
    volume.write(Lba(8), blocks(8, 8, 1), Durability::Volatile).await.unwrap();
    node.drop_dead().await;
    node.start_again().await;
    cache.extensions().roll_back().await.unwrap();
    volume.write(Lba(16), blocks(16, 8, 1), Durability::Volatile).await.unwrap();
    assert!(volume.flush().await.is_err(), "the first write is lost");
    cache.extensions().roll_back().await.unwrap();
    let data = cache.read(volume::Extent { lba: Lba(16), blocks: 8 }).await.unwrap();
    assert_eq!(data.into_bytes(), vec![0; 4096], "it was not flushed");
}
