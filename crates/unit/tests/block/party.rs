//! Several units of one target, for tests: each session has access to all of them.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use scsi::{Cdb, Command, Lun, PrimaryCommand, ScsiStatus, Sense, copy::Cscd};
use unit::{
    BlockUnit, Completion, LogicalUnit, Neighbours, Nexus, Settings, Task, TaskAttribute,
    UnitIdentity,
};
use volume::{Geometry, MemVolume, Stack};

use crate::host::nexus;

#[derive(Default)]
pub struct Party(Mutex<HashMap<[u8; 16], Arc<BlockUnit>>>);

impl Neighbours for Party {
    fn unit(&self, naa: &[u8; 16]) -> Option<Arc<dyn LogicalUnit>> {
        self.0.lock().get(naa).map(|unit| Arc::clone(unit) as Arc<dyn LogicalUnit>)
    }

    fn target_ports(&self) -> &[u16] {
        &[1, 3]
    }
}

impl Party {
    /// Removes a unit from the target.
    pub fn leave(&self, naa: &[u8; 16]) {
        self.0.lock().remove(naa);
    }
}

pub struct Member {
    pub unit: Arc<BlockUnit>,
    pub nexus: Nexus,
}

/// Adds a unit in memory with the given serial number, and opens the only nexus to it.
pub fn join(party: &Arc<Party>, serial: &str, geometry: Geometry) -> Member {
    join_over(party, serial, Arc::new(MemVolume::new(geometry)))
}

pub fn join_over(party: &Arc<Party>, serial: &str, volume: Stack) -> Member {
    let unit = BlockUnit::new(volume, UnitIdentity::new(serial), Settings::default());
    let member = Member { unit: Arc::new(unit), nexus: nexus(1) };
    party.0.lock().insert(member.unit.identity().naa, Arc::clone(&member.unit));
    member.open(party, 1);
    member
}

impl Member {
    /// Opens a nexus whose first unit attention condition was reported already.
    pub fn open(&self, party: &Arc<Party>, number: u64) -> Nexus {
        let nexus = nexus(number);
        self.unit.nexus_opened(&nexus);
        self.unit.nexus_reaches(&nexus, Arc::clone(party) as Arc<dyn Neighbours>);
        let asked = PrimaryCommand::TestUnitReady.encode();
        drop(futures(self.unit.execute(task(&nexus, asked, vec![]))));
        nexus
    }

    pub fn cscd(&self) -> Cscd {
        Cscd::naa(self.unit.identity().naa, self.unit.volume().geometry().block_size)
    }

    pub async fn send(&self, command: &Command, data: Vec<u8>) -> Completion {
        self.unit.execute(task(&self.nexus, command.encode(), data)).await
    }

    pub async fn good(&self, command: &(impl Copy + Into<Command>), data: Vec<u8>) -> Vec<u8> {
        let command = (*command).into();
        let completion = self.send(&command, data).await;
        assert_eq!(completion.status, ScsiStatus::Good, "{command:?}: {:?}", completion.sense);
        completion.data_in.into_bytes().to_vec()
    }

    pub async fn fails(&self, command: &(impl Copy + Into<Command>), data: Vec<u8>) -> Sense {
        let command = (*command).into();
        let completion = self.send(&command, data).await;
        assert_eq!(completion.status, ScsiStatus::CheckCondition, "{command:?}");
        Sense { field: None, ..completion.sense.expect("sense data") }
    }
}

pub fn task(nexus: &Nexus, cdb: Cdb, data: Vec<u8>) -> Task {
    Task {
        nexus: nexus.clone(),
        lun: Lun(0),
        cdb,
        attribute: TaskAttribute::Simple,
        data_out: data.into(),
        data_in_capacity: u32::MAX,
        admitted: None,
    }
}

/// Polls a future once, which must be complete then, and returns its result.
fn futures<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("it waits"),
    }
}
