//! Tests a target with a volatile cache whose write to the medium fails later. The target reports this error with the
//! next command, which it does not perform (SPC-4, 4.5.7).

use std::sync::Arc;

use crate::support::{blocks, expect, node::NAME};
use initiator::{RemoteVolume, Settings};
use parking_lot::Mutex;
use scsi::{AdmittedCommand, Cdb, Sense, SenseKey};
use target::{Target, TargetServer};
use unit::{
    BlockUnit, Completion, LogicalUnit, Nexus, Task, TaskManagement, UnitIdentity, UnitReply,
};
use volume::{Durability, Error, Extent, Geometry, Lba, MemVolume, Volume};

/// A unit that ends its next command of one operation code with a given error, without performing it.
struct Deferring {
    unit: BlockUnit,
    next: Mutex<Option<(u8, Sense)>>,
}

impl LogicalUnit for Deferring {
    fn execute(&self, task: Task) -> UnitReply<'_> {
        let deferred = self.next.lock().take_if(|(code, _)| task.cdb[0] == *code);
        match deferred {
            Some((_, sense)) => UnitReply::new(async move { Completion::check_condition(sense) }),
            None => self.unit.execute(task),
        }
    }

    fn admit(
        &self,
        nexus: &Nexus,
        cdb: &Cdb,
        data_out_length: u32,
    ) -> Result<Option<AdmittedCommand>, Completion> {
        self.unit.admit(nexus, cdb, data_out_length)
    }

    fn task_management(&self, nexus: &Nexus, function: TaskManagement) {
        self.unit.task_management(nexus, function);
    }

    fn nexus_opened(&self, nexus: &Nexus) {
        self.unit.nexus_opened(nexus);
    }

    fn nexus_closed(&self, nexus: &Nexus) {
        self.unit.nexus_closed(nexus);
    }
}

async fn start() -> (TargetServer, Arc<Deferring>, RemoteVolume) {
    let disk = Arc::new(MemVolume::new(Geometry::with_blocks(1024)));
    let unit = BlockUnit::new(disk, UnitIdentity::new("disk-1"), unit::Settings::default());
    let unit = Arc::new(Deferring { unit, next: Mutex::new(None) });
    let target = Target::new(NAME, vec![(0, unit.clone() as _)]);
    let server = TargetServer::new(target::Settings::default(), vec![target]).unwrap();
    let address = server.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let settings = Settings::new(address.to_string(), NAME, 0);
    (server, unit, RemoteVolume::connect(settings).await.unwrap())
}

fn deferred(key: SenseKey) -> Sense {
    Sense { deferred: true, ..Sense::new(key, 0x0c, 0x00) }
}

#[tokio::test]
async fn a_write_that_ended_with_a_deferred_error_is_performed_before_it_is_answered() {
    let (_server, unit, volume) = start().await;
    for (version, key) in [(1, SenseKey::NoSense), (2, SenseKey::RecoveredError)] {
        *unit.next.lock() = Some((0x2a, deferred(key)));
        volume.write(Lba(8), blocks(8, 8, version), Durability::Volatile).await.unwrap();
        assert!(unit.next.lock().is_none(), "the write met the error");
        expect(&volume, 8, 8, version).await;
    }
}

#[tokio::test]
async fn the_flush_after_a_deferred_error_fails_although_the_target_returns_good() {
    let (_server, unit, volume) = start().await;
    assert!(volume.geometry().volatile_cache);
    volume.write(Lba(8), blocks(8, 8, 1), Durability::Volatile).await.unwrap();
    *unit.next.lock() = Some((0x28, deferred(SenseKey::MediumError)));
    volume.read(Extent { lba: Lba(100), blocks: 1 }).await.expect("a read like any other");
    assert!(unit.next.lock().is_none(), "the read met the error");
    let flushed = volume.flush().await;
    assert!(matches!(flushed, Err(Error::Device(_))), "{flushed:?}");
}
