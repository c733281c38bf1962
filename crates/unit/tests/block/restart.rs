//! Tests that a SANITIZE interrupted by a restart continues at the next start. Earlier versions served such a unit with
//! half of its blocks overwritten.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use scsi::{
    BlockCommand, Command, Overwrite, PrimaryCommand, Sanitize, SanitizeAction, ScsiStatus, Sense,
};
use tokio::runtime::{Builder, Runtime};
use unit::{BlockUnit, Completion, LogicalUnit, Nexus, Settings, UnitIdentity, UnitRecordKind};
use volume::{
    DelayVolume, Error, Extent, FaultCallKind as On, FaultRule, FaultVolume, Faults, Geometry,
    Latency, Lba, MemVolume, Stack, Symptom,
};

use crate::{
    host::{MemoryStore, nexus, pattern},
    party::task,
};

/// Number of blocks of the unit: a SANITIZE writes 8 pieces of 1 MiB in one pass.
const BLOCKS: u64 = 16_384;

/// The disk and the records of the unit, which outlast the process.
struct Machine {
    disk: Stack,
    store: Arc<MemoryStore>,
}

/// One life of the process, from start to crash. Dropping this value is the crash. A write takes one second.
struct Life {
    runtime: Runtime,
    unit: Option<BlockUnit>,
    faults: Arc<Faults>,
    nexus: Nexus,
}

impl Machine {
    fn new() -> Self {
        let disk = Arc::new(MemVolume::new(Geometry::with_blocks(BLOCKS)));
        Self { disk, store: Arc::default() }
    }

    fn start(&self) -> Life {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime");
        let fault = FaultVolume::new(Arc::clone(&self.disk));
        let faults = Arc::clone(fault.faults());
        let latency = Latency { write: Duration::from_secs(1), ..Latency::default() };
        let volume = Arc::new(DelayVolume::new(Arc::new(fault), latency));
        let store = Arc::clone(&self.store);
        let unit = {
            let _inside = runtime.enter();
            BlockUnit::open(volume, UnitIdentity::new("f00d"), Settings::default(), store)
        };
        let life = Life { runtime, unit: unit.ok(), faults, nexus: nexus(1) };
        life.unit().nexus_opened(&life.nexus);
        assert_eq!(life.ready(), Some(Sense::POWER_ON_OCCURRED));
        life
    }

    /// Returns the two bytes that all blocks repeat; `None` if the blocks differ.
    fn pattern(&self) -> Option<[u8; 2]> {
        let all = Extent { lba: Lba(0), blocks: BLOCKS as u32 };
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let bytes = runtime.block_on(self.disk.read(all)).expect("read").into_bytes();
        let first = [bytes[0], bytes[1]];
        bytes.chunks_exact(2).all(|pair| pair == first).then_some(first)
    }
}

impl Life {
    fn unit(&self) -> &BlockUnit {
        self.unit.as_ref().expect("the records are whole")
    }

    fn send(&self, command: &Command, data: Vec<u8>) -> Completion {
        let task = task(&self.nexus, command.encode(), data);
        self.runtime.block_on(async { self.unit().execute(task).await })
    }

    fn ready(&self) -> Option<Sense> {
        let sense = self.send(&Command::Primary(PrimaryCommand::TestUnitReady), vec![]).sense;
        sense.map(|sense| Sense { field: None, progress: None, ..sense })
    }

    fn sanitize(&self, action: SanitizeAction, exit: bool) -> Option<Sense> {
        let list = match action {
            SanitizeAction::Overwrite => {
                Overwrite { invert: true, passes: 2, pattern: vec![0xa0, 0x05] }.to_bytes()
            }
            _ => vec![],
        };
        let command = Command::Block(BlockCommand::Sanitize(Sanitize {
            action,
            immediate: action != SanitizeAction::ExitFailureMode,
            unrestricted_exit: exit,
            parameter_list_length: list.len() as u16,
        }));
        self.send(&command, list).sense.map(|sense| Sense { field: None, ..sense })
    }

    fn pass(&self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }

    fn end(&self) {
        while self.ready() == Some(Sense::SANITIZE_IN_PROGRESS) {
            self.pass(Duration::from_secs(1));
        }
    }
}

#[test]
fn sanitize_continues_after_a_restart_at_any_moment() {
    // The work has two passes of eight seconds each. Crash once in each second, and once right after the end.
    for moment in 0..=17u64 {
        let machine = Machine::new();
        let life = machine.start();
        life.send(&Command::write(5, 8, false), pattern(1, 8));
        assert_eq!(life.sanitize(SanitizeAction::Overwrite, false), None);
        life.pass(Duration::from_millis(1000 * moment + 500));
        drop(life);
        let life = machine.start();
        if moment < 16 {
            assert_eq!(life.ready(), Some(Sense::SANITIZE_IN_PROGRESS), "{moment}");
            let read = life.send(&Command::read(5, 8), vec![]);
            assert_eq!(read.status, ScsiStatus::CheckCondition, "{moment}");
        }
        life.end();
        assert_eq!(life.ready(), None);
        assert_eq!(machine.pattern(), Some([0x5f, 0xfa]), "{moment}");
    }
}

/// The next start must not overwrite data that hosts wrote after the end of the SANITIZE.
#[test]
fn sanitize_does_not_continue_after_it_reported_its_end() {
    let machine = Machine::new();
    let life = machine.start();
    assert_eq!(life.sanitize(SanitizeAction::BlockErase, false), None);
    life.end();
    assert_eq!(life.send(&Command::write(5, 8, false), pattern(1, 8)).status, ScsiStatus::Good);
    drop(life);
    let life = machine.start();
    assert_eq!(life.ready(), None);
    let read = life.send(&Command::read(5, 8), vec![]).data_in.into_bytes();
    assert_eq!(read, pattern(1, 8));
}

#[test]
fn a_sanitize_failure_and_its_exit_mode_survive_a_restart() {
    for exit in [false, true] {
        let machine = Machine::new();
        let life = machine.start();
        let error = Error::Device("broken".into());
        life.faults.add(FaultRule::always(On::Write, Symptom::Fails(error)).after(3));
        assert_eq!(life.sanitize(SanitizeAction::Overwrite, exit), None);
        life.end();
        assert_eq!(life.ready(), Some(Sense::SANITIZE_COMMAND_FAILED));
        drop(life);
        let life = machine.start();
        assert_eq!(life.ready(), Some(Sense::SANITIZE_COMMAND_FAILED));
        let left = life.sanitize(SanitizeAction::ExitFailureMode, false);
        assert_eq!(left, (!exit).then_some(Sense::INVALID_FIELD_IN_CDB));
        if !exit {
            assert_eq!(life.sanitize(SanitizeAction::Overwrite, false), None);
            life.end();
            assert_eq!(machine.pattern(), Some([0x5f, 0xfa]));
        }
        drop(life);
        assert_eq!(machine.start().ready(), None);
    }
}

#[test]
fn sanitize_does_not_begin_or_end_while_its_record_cannot_be_saved() {
    let machine = Machine::new();
    let life = machine.start();
    life.send(&Command::write(5, 8, false), pattern(1, 8));
    machine.store.broken.store(true, Ordering::Relaxed);
    let refused = life.sanitize(SanitizeAction::Overwrite, false);
    assert_eq!(refused, Some(Sense::INTERNAL_TARGET_FAILURE));
    // It is unknown whether the store has the beginning of the SANITIZE. The next start may begin it again, so no
    // initiator may write here any more.
    assert_eq!(life.ready(), Some(Sense::SANITIZE_COMMAND_FAILED));
    drop(life);
    let life = machine.start();
    let read = life.send(&Command::read(5, 8), vec![]).data_in.into_bytes();
    assert_eq!(read, pattern(1, 8), "nothing was overwritten");
    machine.store.broken.store(false, Ordering::Relaxed);
    assert_eq!(life.sanitize(SanitizeAction::Overwrite, false), None);
    machine.store.broken.store(true, Ordering::Relaxed);
    life.end();
    assert_eq!(life.ready(), Some(Sense::SANITIZE_COMMAND_FAILED), "a restart would begin again");
}

#[test]
fn a_damaged_record_keeps_the_unit_from_being_served() {
    let machine = Machine::new();
    machine.store.records.lock().insert(UnitRecordKind::Sanitize, vec![9]);
    let volume = Arc::clone(&machine.disk);
    let store = Arc::clone(&machine.store);
    assert!(BlockUnit::open(volume, UnitIdentity::new("a"), Settings::default(), store).is_err());
}
