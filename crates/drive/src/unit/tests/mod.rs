//! Tests of the object unit, most of them with a store in memory.

mod linux;
mod signed;
mod all_data;
mod bad_input;
mod primary;
mod at_work;
mod on_volume;

use std::{cell::Cell, sync::Arc};

use object::{Command, KeyToSet, ObjectAddress, ObjectType};
use osd::{
    Capability, OsdCdb, Permissions,
    security::{Key, Nonce, SecurityMethod},
};
use scsi::{Cdb, Lun, ScsiStatus, Sense};
use unit::{Completion, LogicalUnit, Nexus, PrimaryUnit, Task, TaskAttribute, UnitIdentity};
use volume::Data;

use super::{ListLimits, ObjectUnit};
use crate::{
    backing::DriveBacking,
    security::{DriveClock, Security, SecuritySettings},
    testing::{
        MemoryStore, PARTITION, SYSTEM, SignedCdb, TestTime, master, set_key, sign, working_pair,
    },
};

const OBJECT: ObjectAddress = ObjectAddress::new(PARTITION, 0x1_0001);
const VERSION: u8 = 5;

/// An object unit with one nexus that sends commands.
struct Bench<S = MemoryStore> {
    unit: ObjectUnit<S>,
    nexus: Nexus,
    random: Cell<u8>,
}

impl Bench {
    /// Returns a unit whose drive has no objects and no keys.
    async fn empty(least: SecurityMethod) -> Self {
        let clock = Arc::new(DriveClock::new(TestTime::new(1_000_000)));
        Self::over(Arc::new(MemoryStore::new()), clock, least).await
    }

    /// Returns a unit whose drive has the empty object [`OBJECT`] and, unless `least` is NOSEC, all keys to use it.
    async fn new(least: SecurityMethod) -> Self {
        let bench = Self::empty(least).await;
        let store = bench.unit.store();
        store.add(ObjectAddress::partition(PARTITION), ObjectType::Partition);
        store.add(OBJECT, ObjectType::UserObject);
        if least != SecurityMethod::NoSec {
            bench.set_keys().await;
        }
        bench
    }
}

impl<S: DriveBacking> Bench<S> {
    async fn over(store: Arc<S>, clock: Arc<DriveClock>, least: SecurityMethod) -> Self {
        let settings = SecuritySettings::new(least, SYSTEM);
        let master = (least != SecurityMethod::NoSec).then(master);
        let security = Security::open(&*store, settings, master, clock).await.unwrap();
        let primary = PrimaryUnit::new(UnitIdentity::new("drive"));
        let unit = ObjectUnit::new(primary, store, security, ListLimits::default());
        let nexus = nexus(1);
        unit.nexus_opened(&nexus);
        let bench = Self { unit, nexus, random: Cell::new(0) };
        // The first command of a nexus ends with a unit attention (power on).
        let first = bench.run(&[0; 6], Vec::new()).await;
        assert_eq!(first.sense.map(|sense| sense.asc), Some(0x29));
        bench
    }

    /// Sets the root key, the key of [`PARTITION`] and one of its working keys.
    async fn set_keys(&self) {
        for key in [
            KeyToSet::Root,
            KeyToSet::Partition { partition: PARTITION },
            KeyToSet::Working { partition: PARTITION, version: VERSION },
        ] {
            let keys = self.unit.security().keys();
            keys.set_key(self.unit.store(), &set_key(key, 0xa0)).await.unwrap();
        }
    }

    fn task(&self, cdb: &[u8], data_out: Vec<u8>) -> Task {
        Task {
            nexus: self.nexus.clone(),
            lun: Lun::from_number(0).unwrap(),
            cdb: Cdb::new(cdb),
            attribute: TaskAttribute::Simple,
            data_out: Data::from(data_out),
            data_in_capacity: 1 << 20,
            admitted: None,
        }
    }

    /// Performs a command as a session does: the unit admits it, then its data arrives.
    async fn run(&self, cdb: &[u8], data_out: Vec<u8>) -> Completion {
        let mut task = self.task(cdb, data_out);
        if !task.data_out.is_empty() {
            let length = task.data_out.len() as u32;
            match self.unit.admit(&self.nexus, &task.cdb, length) {
                Ok(admitted) => task.admitted = admitted,
                Err(refusal) => return refusal,
            }
        }
        self.unit.execute(task).await
    }

    /// Performs a command whose data arrives with it, so that the unit does not admit it before.
    async fn run_unsolicited(&self, cdb: &[u8], data_out: Vec<u8>) -> Completion {
        self.unit.execute(self.task(cdb, data_out)).await
    }

    fn capability(&self, permissions: Permissions) -> Capability {
        Capability {
            key_version: VERSION,
            ..Capability::for_object(
                OBJECT,
                ObjectType::UserObject,
                permissions,
                SecurityMethod::CmdRsp,
            )
        }
    }

    /// Returns a CDB of the command with a nonce that was not used.
    fn cdb(&self, command: Command) -> OsdCdb {
        self.random.set(self.random.get() + 1);
        let mut cdb = OsdCdb::new(command);
        let time = self.unit.security().clock().now();
        cdb.nonce = Nonce { time, random: [self.random.get(); 6] };
        cdb
    }

    fn token(&self) -> [u8; 16] {
        self.unit.token(self.nexus.number)
    }

    fn signed(&self, cdb: OsdCdb, capability: &Capability) -> SignedCdb {
        self.signed_with(cdb, capability, &working_pair().authentication)
    }

    fn signed_with(&self, cdb: OsdCdb, capability: &Capability, key: &Key) -> SignedCdb {
        sign(cdb, capability, key, &self.token())
    }
}

fn nexus(number: u64) -> Nexus {
    Nexus { number, initiator_port: "iqn.2000-01.test:a,i,0x1".into(), target_port: 1 }
}

/// Returns ASC, ASCQ and the byte of the CDB that the sense data points to.
fn codes(completion: &Completion) -> Option<(u8, u8, Option<u16>)> {
    let sense: Sense = completion.sense?;
    assert_eq!(completion.status, ScsiStatus::CheckCondition);
    assert!(sense.descriptor_format, "an object storage device has no fixed format");
    Some((sense.asc, sense.ascq, sense.field.filter(|field| field.in_cdb).map(|field| field.byte)))
}

fn data_in(completion: Completion) -> Vec<u8> {
    assert_eq!(completion.status, ScsiStatus::Good, "{:?}", completion.sense);
    completion.data_in.into_bytes().to_vec()
}
