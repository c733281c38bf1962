//! Checks how many memory allocations the unit makes for one command, with an allocator that counts.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::Arc,
};

use bytes::Bytes;
use scsi::{BlockCommand, BlockTransfer, Cdb, Command, Form, Lun, ScsiStatus};
use unit::{BlockUnit, LogicalUnit, Nexus, Settings, Task, TaskAttribute, UnitIdentity};
use volume::{Data, Geometry, MemVolume};

/// Counts the memory allocations of each thread, and passes them to the system's allocator.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const COMMANDS: u64 = 1000;

/// `Yes`: the data of the command is solicited, so the unit checks the command first with `admit`.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Solicits {
    No,
    Yes,
}

/// Runs 4 KiB commands on a unit in memory, which finishes each of them at once. Returns the allocations per command.
fn allocations_of(
    command: impl Fn(BlockTransfer) -> Command,
    data: &Data,
    solicits: Solicits,
) -> f64 {
    let volume = Arc::new(MemVolume::new(Geometry::with_blocks(1 << 16)));
    let identity = UnitIdentity::new("f00d").with_target("iqn.2026-11.io.forebay:a");
    let unit = BlockUnit::new(volume, identity, Settings::default());
    let nexus = Nexus { number: 1, initiator_port: Arc::from("iqn.x,i,0x0"), target_port: 1 };
    unit.nexus_opened(&nexus);
    let run = |cdb: &[u8], data_out: Data, solicits: Solicits| {
        let cdb = Cdb::new(cdb);
        let admitted = match solicits {
            Solicits::Yes => unit.admit(&nexus, &cdb, 4096).expect("admitted"),
            Solicits::No => None,
        };
        let task = Task {
            nexus: nexus.clone(),
            lun: Lun(0),
            cdb,
            attribute: TaskAttribute::Simple,
            data_out,
            data_in_capacity: 4096,
            admitted,
        };
        unit.execute(task).now().ok().expect("a unit in memory does it at once")
    };
    // Run commands that are not counted: the first takes the unit attention condition of the new nexus, the others
    // allocate the pages of the volume.
    drop(run(&[0; 6], Data::new(), Solicits::No));
    let page = Data::from(Bytes::from_static(&[7; 4096]));
    let places = (0..64).map(|place| BlockTransfer {
        lba: place * 8,
        blocks: 8,
        dpo: false,
        fua: false,
        form: Form::Ten,
    });
    for place in places.clone() {
        drop(run(&BlockCommand::Write(place).encode(), page.clone(), Solicits::No));
    }
    let cdbs: Vec<_> = places.map(|place| command(place).encode()).collect();
    let before = ALLOCATIONS.get();
    for number in 0..COMMANDS {
        let completion = run(&cdbs[number as usize % 64], data.clone(), solicits);
        assert_eq!(completion.status, ScsiStatus::Good);
    }
    (ALLOCATIONS.get() - before) as f64 / COMMANDS as f64
}

#[test]
fn a_write_to_memory_allocates_nothing() {
    let page = Data::from(Bytes::from_static(&[7; 4096]));
    let write = |transfer| Command::Block(BlockCommand::Write(transfer));
    assert_eq!(allocations_of(write, &page, Solicits::No), 0.0);
    assert_eq!(allocations_of(write, &page, Solicits::Yes), 0.0, "admitted before");
}

#[test]
fn a_read_from_memory_allocates_only_the_handle_on_its_page() {
    let read = |transfer| Command::Block(BlockCommand::Read(transfer));
    assert_eq!(allocations_of(read, &Data::new(), Solicits::No), 1.0);
}
