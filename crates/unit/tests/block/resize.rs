//! Tests a unit whose file grows while it is served: every session gets a unit attention condition, and can then use
//! the new blocks.

use std::{fs::File, sync::Arc};

use scsi::{
    BlockCommand, Capacity16, Cdb, Command, Lun, PrimaryCommand, ScsiStatus, Sense, log::LogPage,
};
use tokio::runtime::{Builder, Runtime};
use unit::{
    BlockUnit, Completion, LogicalUnit, Nexus, Settings, Task, TaskAttribute, UnitIdentity,
};
use volume::{CheckedVolume, FileVolume, FileVolumeOptions};

use crate::host::{nexus, pattern};

struct Disk {
    runtime: Runtime,
    unit: BlockUnit,
    file: File,
    _folder: tempfile::TempDir,
}

impl Disk {
    fn new(bytes: u64, settings: Settings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        let options = FileVolumeOptions { create: Some(bytes), ..FileVolumeOptions::new(&path) };
        let volume = Arc::new(FileVolume::open(&options).unwrap());
        let unit =
            BlockUnit::new(Arc::new(CheckedVolume::new(volume)), UnitIdentity::new("a"), settings);
        for number in [1, 2] {
            unit.nexus_opened(&nexus(number));
        }
        let file = File::options().write(true).open(&path).unwrap();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let disk = Self { runtime, unit, file, _folder: folder };
        for number in [1, 2] {
            assert_eq!(disk.ready(number), Some(Sense::POWER_ON_OCCURRED));
        }
        disk
    }

    fn send(&self, nexus: &Nexus, command: &Command, data: &[u8]) -> Completion {
        let task = Task {
            nexus: nexus.clone(),
            lun: Lun(0),
            cdb: Cdb::new(&command.encode()),
            attribute: TaskAttribute::Simple,
            data_out: data.to_vec().into(),
            data_in_capacity: u32::MAX,
            admitted: None,
        };
        self.runtime.block_on(self.unit.execute(task))
    }

    fn ready(&self, number: u64) -> Option<Sense> {
        self.send(&nexus(number), &Command::Primary(PrimaryCommand::TestUnitReady), &[]).sense
    }

    fn last_lba(&self) -> u64 {
        let command = Command::Block(BlockCommand::ReadCapacity16 { allocation_length: 32 });
        let bytes = self.send(&nexus(1), &command, &[]).data_in.into_bytes();
        Capacity16::from_bytes(&bytes).unwrap().last_lba
    }
}

#[test]
fn a_grown_file_is_reported_to_every_session_and_then_served() {
    let disk = Disk::new(1 << 20, Settings::default());
    assert_eq!(disk.last_lba(), 2047);
    let beyond = Command::write(4000, 1, false);
    let refused = disk.send(&nexus(1), &beyond, &pattern(1, 1)).sense.unwrap();
    assert!(refused.is(Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE));
    disk.file.set_len(2 << 20).unwrap();
    for number in [1, 2] {
        assert_eq!(disk.ready(number), Some(Sense::CAPACITY_DATA_HAS_CHANGED));
        assert_eq!(disk.ready(number), None);
    }
    assert_eq!(disk.last_lba(), 4095);
    assert_eq!(disk.send(&nexus(2), &beyond, &pattern(1, 1)).status, ScsiStatus::Good);
    let read = disk.send(&nexus(1), &Command::read(4000, 1), &[]);
    assert_eq!(read.data_in.into_bytes(), pattern(1, 1));
}

#[test]
fn a_shrunk_file_is_reported_too() {
    let disk = Disk::new(2 << 20, Settings::default());
    disk.file.set_len(1 << 20).unwrap();
    assert_eq!(disk.ready(1), Some(Sense::CAPACITY_DATA_HAS_CHANGED));
    assert_eq!(disk.last_lba(), 2047);
    let beyond = disk.send(&nexus(1), &Command::read(2048, 1), &[]).sense.unwrap();
    assert!(beyond.is(Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE));
}

#[test]
fn the_used_space_of_a_file_is_reported() {
    let disk = Disk::new(64 << 20, Settings::default());
    let used = || {
        let command = Command::Primary(PrimaryCommand::LogSense(scsi::LogSense {
            save: false,
            control: scsi::PageControl::Changeable,
            page: 0x0c,
            subpage: 0,
            first_parameter: 0,
            allocation_length: 255,
        }));
        let bytes = disk.send(&nexus(1), &command, &[]).data_in.into_bytes();
        let log = LogPage::from_bytes(&bytes).unwrap();
        let value = &log.parameters[1].value;
        u32::from_be_bytes([value[0], value[1], value[2], value[3]])
    };
    assert_eq!(used(), 0, "a new file is a hole");
    for piece in 0..4 {
        let write = Command::write(piece * 2048, 2048, true);
        let data = vec![7; 1 << 20];
        assert_eq!(disk.send(&nexus(1), &write, &data).status, ScsiStatus::Good);
    }
    assert!((4..8).contains(&used()), "{} MiB", used());
}
