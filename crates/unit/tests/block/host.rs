//! An initiator without a network: sends a command and expects its completion at the first poll.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use scsi::{
    BlockCommand, BlockTransfer, ByteCheck, Cdb, Command, Lun, PrimaryCommand, ScsiStatus, Sense,
};
use unit::{
    BlockUnit, Completion, LogicalUnit, Nexus, Saving, Settings, Task, TaskAttribute, UnitIdentity,
    UnitRecordKind, UnitStore,
};
use volume::{
    Allocation, Data, Durability, EpochRollback, Error, Extensions, Extent, FaultVolume, Faults,
    FlushedReads, Geometry, Io, Lba, MemVolume, Provisioning, Stack, ThinSpaceUsage, Volume,
};

pub const BLOCK: usize = 512;

pub struct Host {
    pub unit: BlockUnit,
    pub calls: Arc<Calls>,
    pub faults: Arc<Faults>,
    pub nexus: Nexus,
}

/// The volume below the unit: records the calls, and has the size that the test sets.
pub struct Calls {
    lower: Stack,
    noted: Mutex<Vec<Call>>,
    pub blocks: AtomicU64,
    pub full: AtomicBool,
    pub keeps_open_epoch: AtomicBool,
    pub usage: Mutex<Option<ThinSpaceUsage>>,
}

/// Keeps the records of a unit in memory. A test passes the store to a second unit, which then
/// starts as after a restart.
#[derive(Default)]
pub struct MemoryStore {
    pub records: Mutex<HashMap<UnitRecordKind, Vec<u8>>>,
    pub broken: AtomicBool,
}

impl UnitStore for MemoryStore {
    fn load(&self, record: UnitRecordKind) -> io::Result<Option<Vec<u8>>> {
        Ok(self.records.lock().get(&record).cloned())
    }

    fn save(&self, record: UnitRecordKind, bytes: Vec<u8>) -> Saving<'_> {
        let result = if self.broken.load(Ordering::Relaxed) {
            Err(io::Error::other("the disk is lost"))
        } else {
            self.records.lock().insert(record, bytes);
            Ok(())
        };
        Box::pin(std::future::ready(result))
    }
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Call {
    Read(u64, u32),
    ReadFlushed(u64, u32),
    Write(u64, usize, Durability),
    Flush,
    RollBack,
    Discard(u64, u32),
    Admit(usize),
}

/// 1023 blocks: not a multiple of any limit.
pub fn geometry() -> Geometry {
    Geometry::with_blocks(1023)
}

impl Host {
    /// Returns a host whose first unit attention condition was reported already.
    pub fn new(geometry: Geometry) -> Self {
        Self::with_settings(geometry, Settings::default())
    }

    pub fn with_settings(geometry: Geometry, settings: Settings) -> Self {
        Self::build(geometry, |volume, identity| BlockUnit::new(volume, identity, settings))
    }

    /// Returns a host of a unit that keeps its records in `store`. With records in `store`, the unit is in
    /// the state after a restart.
    pub fn with_store(geometry: Geometry, store: &Arc<MemoryStore>) -> Self {
        Self::build(geometry, |volume, identity| {
            BlockUnit::open(volume, identity, Settings::default(), store.clone())
                .expect("the records are whole")
        })
    }

    pub fn with_store_and_settings(
        geometry: Geometry,
        settings: Settings,
        store: &Arc<MemoryStore>,
    ) -> Self {
        Self::build(geometry, |volume, identity| {
            BlockUnit::open(volume, identity, settings, store.clone())
                .expect("the records are whole")
        })
    }

    fn build(geometry: Geometry, unit: impl FnOnce(Stack, UnitIdentity) -> BlockUnit) -> Self {
        let fault = FaultVolume::new(Arc::new(MemVolume::new(geometry)));
        let faults = fault.faults().clone();
        let calls = Arc::new(Calls {
            lower: Arc::new(fault),
            noted: Mutex::default(),
            blocks: AtomicU64::new(geometry.blocks),
            full: AtomicBool::new(false),
            keeps_open_epoch: AtomicBool::new(false),
            usage: Mutex::new(None),
        });
        let identity = UnitIdentity::new("f00d").with_target("iqn.2026-11.io.forebay:a");
        let unit = unit(calls.clone(), identity);
        let host = Self { unit, calls, faults, nexus: nexus(1) };
        host.unit.nexus_opened(&host.nexus);
        assert_eq!(host.fails(&PrimaryCommand::TestUnitReady, &[]), Sense::POWER_ON_OCCURRED);
        host
    }

    pub fn send(&self, cdb: &[u8], data: &[u8]) -> Completion {
        self.send_as(&self.nexus, cdb, data)
    }

    pub fn send_as(&self, nexus: &Nexus, cdb: &[u8], data: &[u8]) -> Completion {
        self.run(self.task(nexus, cdb, data))
    }

    /// Runs a task that the unit finishes at once.
    pub fn run(&self, task: Task) -> Completion {
        let mut answer = self.unit.execute(task);
        match std::pin::Pin::new(&mut answer).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(completion) => completion,
            Poll::Pending => panic!("a volume in memory answers at once"),
        }
    }

    pub fn task(&self, nexus: &Nexus, cdb: &[u8], data: &[u8]) -> Task {
        Task {
            nexus: nexus.clone(),
            lun: Lun(0),
            cdb: Cdb::new(cdb),
            attribute: TaskAttribute::Simple,
            data_out: data.to_vec().into(),
            data_in_capacity: u32::MAX,
            admitted: None,
        }
    }

    /// Sends a command, which must end with status GOOD, and returns its data.
    pub fn good(&self, command: &(impl Copy + Into<Command>), data: &[u8]) -> Vec<u8> {
        let command: Command = (*command).into();
        let completion = self.send(&command.encode(), data);
        assert_eq!(completion.status, ScsiStatus::Good, "{command:?}: {:?}", completion.sense);
        completion.data_in.into_bytes().to_vec()
    }

    /// Returns the sense data of a command that must end with CHECK CONDITION, without its field pointer.
    pub fn fails(&self, command: &(impl Copy + Into<Command>), data: &[u8]) -> Sense {
        let command: Command = (*command).into();
        self.fails_cdb(&command.encode(), data)
    }

    pub fn fails_cdb(&self, cdb: &[u8], data: &[u8]) -> Sense {
        let completion = self.send(cdb, data);
        assert_eq!(completion.status, ScsiStatus::CheckCondition, "{cdb:02x?}");
        assert!(completion.data_in.is_empty());
        Sense { field: None, ..completion.sense.expect("CHECK CONDITION comes with sense data") }
    }

    /// Opens another session, whose first unit attention condition was reported already.
    pub fn other(&self, number: u64) -> Nexus {
        let other = nexus(number);
        self.unit.nexus_opened(&other);
        let ready = PrimaryCommand::TestUnitReady.encode();
        assert_eq!(self.send_as(&other, &ready, &[]).sense, Some(Sense::POWER_ON_OCCURRED));
        other
    }

    /// Returns the sense data of TEST UNIT READY.
    pub fn ready_as(&self, nexus: &Nexus) -> Option<Sense> {
        self.send_as(nexus, &PrimaryCommand::TestUnitReady.encode(), &[]).sense
    }

    /// Returns the calls that the volume has received since the last call of `asked`.
    pub fn asked(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.noted.lock())
    }
}

pub const READY: Command = Command::Primary(PrimaryCommand::TestUnitReady);

pub fn verify(transfer: BlockTransfer, byte_check: ByteCheck) -> Command {
    BlockCommand::Verify { transfer, byte_check }.into()
}

pub fn nexus(number: u64) -> Nexus {
    Nexus {
        number,
        initiator_port: format!("iqn.2026-11.io.forebay:host,i,0x{number:012x}").into(),
        target_port: 1,
    }
}

/// Returns blocks that differ: each byte is the seed plus the number of its block.
pub fn pattern(seed: u8, blocks: usize) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| seed.wrapping_add((at / BLOCK) as u8)).collect()
}

impl Calls {
    fn note(&self, call: Call) {
        self.noted.lock().push(call);
    }
}

impl Volume for Calls {
    fn geometry(&self) -> Geometry {
        Geometry { blocks: self.blocks.load(Ordering::Relaxed), ..self.lower.geometry() }
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.note(Call::Read(extent.lba.0, extent.blocks));
        self.lower.read(extent)
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        assert!(!data.is_empty() && data.len().is_multiple_of(BLOCK), "whole blocks only");
        self.note(Call::Write(lba.0, data.len(), durability));
        self.lower.write(lba, data, durability)
    }

    fn flush(&self) -> Io<'_, ()> {
        self.note(Call::Flush);
        self.lower.flush()
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        assert!(extent.blocks > 0, "never empty");
        self.note(Call::Discard(extent.lba.0, extent.blocks));
        self.lower.discard(extent)
    }

    fn admit(&self, bytes: usize) -> Result<(), Error> {
        self.note(Call::Admit(bytes));
        if self.full.load(Ordering::Relaxed) { Err(Error::Busy("full")) } else { Ok(()) }
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            provisioning: Some(self),
            rollback: Some(self),
            flushed_reads: Some(self),
            ..Extensions::default()
        }
    }
}

impl Provisioning for Calls {
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        self.lower.extensions().allocation(extent)
    }

    fn usage(&self) -> Option<ThinSpaceUsage> {
        *self.usage.lock()
    }
}

impl EpochRollback for Calls {
    fn roll_back(&self) -> Io<'_, ()> {
        self.note(Call::RollBack);
        let fails = self.keeps_open_epoch.load(Ordering::Relaxed);
        let result = if fails { Err(Error::Device("the log is broken".into())) } else { Ok(()) };
        Io::done(result)
    }
}

impl FlushedReads for Calls {
    fn read_flushed(&self, extent: Extent) -> Io<'_, Data> {
        self.note(Call::ReadFlushed(extent.lba.0, extent.blocks));
        self.lower.read(extent)
    }
}
