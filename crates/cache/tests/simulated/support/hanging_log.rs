//! A gateway with immediate report whose log disk can hang and can lose its power.

use std::{sync::Arc, time::Duration};

use super::gateway::{Gateway, filled};
use cache::{BootId, Cache, NvramSurvival, WriteMode};
use sim::{CrashVolume, Rng};
use tokio::time::timeout;
use volume::{
    Durability, Error, Extent, FaultCallKind, FaultRule, FaultVolume, Faults, Geometry, Lba,
    MemVolume, Stack, Symptom, Volume,
};

pub struct Site {
    pub gateway: Gateway,
    pub disk: Arc<CrashVolume>,
    pub faults: Arc<Faults>,
}

impl Site {
    pub fn new(survives: NvramSurvival) -> Self {
        let log = Geometry { block_size: 4096, ..Geometry::with_blocks(1024) };
        let disk = Arc::new(CrashVolume::new(log, 1));
        let mut gateway = Gateway::new(1024).with_nvram();
        gateway.settings.report = WriteMode::Immediate;
        gateway.settings.nvram_survives = survives;
        let faults = connect(&mut gateway, disk.clone());
        Self { gateway, disk, faults }
    }

    pub fn hang_log(&self) {
        self.faults.add(FaultRule::always(FaultCallKind::Any, Symptom::Hangs));
    }

    /// Simulates a power failure: the log disk loses some of the writes that were not stable.
    pub fn power_cut(&mut self, seed: u64) {
        let left = self.disk.crash(&mut Rng::new(seed));
        self.disk = Arc::new(CrashVolume::reopen(left, seed));
        self.faults = connect(&mut self.gateway, self.disk.clone());
    }
}

pub fn boot(number: u8) -> BootId {
    BootId([number; 16])
}

pub fn connect(gateway: &mut Gateway, disk: Stack) -> Arc<Faults> {
    let fault = FaultVolume::new(disk);
    let faults = fault.faults().clone();
    gateway.log = Arc::new(fault);
    faults
}

/// Returns true if the call succeeds within a minute. With a log disk that hangs, such a call did
/// not need the log.
pub async fn is_done<T>(call: impl Future<Output = Result<T, Error>>) -> bool {
    timeout(Duration::from_secs(60), call).await.is_ok_and(|done| done.is_ok())
}

pub fn stable(cache: &Cache, lba: u64, byte: u8) -> impl Future<Output = Result<(), Error>> {
    cache.write(Lba(lba), filled(byte, 8), Durability::Stable)
}

pub async fn copy_of(log: &Stack) -> Stack {
    let blocks = log.geometry().blocks as u32;
    let content = log.read(Extent { lba: Lba(0), blocks }).await.unwrap();
    let copy = MemVolume::new(log.geometry());
    copy.write(Lba(0), content, Durability::Volatile).await.unwrap();
    Arc::new(copy)
}
