//! Tests a unit whose write cache is switched on or off between two sessions.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use crate::support::{blocks, expect, node::Node};
use initiator::RemoteVolume;
use volume::{Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, MemVolume, Volume};

const EXTENT: Extent = Extent { lba: Lba(8), blocks: 8 };

/// A disk whose write cache can be switched between commands.
struct Switched {
    disk: Arc<MemVolume>,
    volatile: AtomicBool,
}

impl Volume for Switched {
    fn geometry(&self) -> Geometry {
        Geometry { volatile_cache: self.volatile.load(SeqCst), ..self.disk.geometry() }
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.disk.read(extent)
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        self.disk.write(lba, data, durability)
    }

    fn flush(&self) -> Io<'_, ()> {
        self.disk.flush()
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.disk.discard(extent)
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}

async fn start(volatile: bool) -> (Node, Arc<Switched>, RemoteVolume) {
    let disk = Arc::new(MemVolume::new(Geometry::with_blocks(1024)));
    let volatile = AtomicBool::new(volatile);
    let switched = Arc::new(Switched { disk: disk.clone(), volatile });
    let address = "127.0.0.1:0".parse().expect("an address");
    let node = Node::serve(disk, switched.clone(), "disk-1", address).await;
    let volume = RemoteVolume::connect(node.settings()).await.expect("a session");
    (node, switched, volume)
}

async fn come_back(node: &mut Node, switched: &Switched, volatile: bool) {
    switched.volatile.store(volatile, SeqCst);
    node.start_again().await;
}

#[tokio::test]
async fn a_flush_fails_if_the_unit_lost_its_write_cache_meanwhile() {
    let (mut node, switched, volume) = start(true).await;
    volume.write(EXTENT.lba, blocks(8, 8, 1), Durability::Volatile).await.unwrap();
    node.drop_dead().await;
    come_back(&mut node, &switched, false).await;
    volume.read(EXTENT).await.expect("in the new session");
    let flushed = volume.flush().await;
    assert!(matches!(flushed, Err(Error::Device(_))), "{flushed:?}");
}

#[tokio::test]
async fn a_write_that_entered_a_new_write_cache_is_flushed_or_its_loss_reported() {
    for durability in [Durability::Stable, Durability::Volatile] {
        let (mut node, switched, volume) = start(false).await;
        volume.flush().await.unwrap();
        assert_eq!(volume.statistics().calls.flushes, 0, "there is nothing to flush");
        node.drop_dead().await;
        // The unit has no write cache when the write is sent, but has one when the write is
        // answered.
        let write = volume.write(EXTENT.lba, blocks(8, 8, 2), durability);
        let (written, ()) = tokio::join!(write, come_back(&mut node, &switched, true));
        written.unwrap();
        let flushes = volume.statistics().calls.flushes;
        assert_eq!(flushes > 0, durability == Durability::Stable, "{durability:?}");
        node.drop_dead().await;
        come_back(&mut node, &switched, true).await;
        expect(&volume, 8, 8, 2).await;
        let flushed = volume.flush().await;
        assert_eq!(flushed.is_err(), durability == Durability::Volatile, "{flushed:?}");
    }
}
