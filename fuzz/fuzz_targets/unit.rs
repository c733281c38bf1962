//! Sends commands and parameter lists of a hostile initiator to a whole unit: UNMAP, MODE SELECT, PERSISTENT RESERVE
//! OUT, EXTENDED COPY and all other operations of the table. Each must be answered within the limits, and none may
//! access blocks beyond the end of the volume.
#![no_main]

use std::{
    collections::HashMap,
    io,
    sync::{Arc, LazyLock, Mutex},
    task::{Context, Waker},
};

use fuzz::Choices;
use libfuzzer_sys::fuzz_target;
use scsi::{Cdb, Lun, OPERATIONS};
use tokio::runtime::{Builder, Runtime};
use unit::{
    BlockUnit, LogicalUnit, Nexus, Saving, Settings, Task, TaskAttribute, UnitIdentity,
    UnitRecordKind, UnitStore,
};
use volume::{
    Allocation, Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, MemVolume,
    Provisioning, ThinSpaceUsage, Volume,
};

const BLOCKS: u64 = 64;

/// A runtime, which provides the timers that a unit may use.
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_time().build().expect("a runtime"));

fuzz_target!(|input: &[u8]| {
    let _guard = RUNTIME.enter();
    let mut choices = Choices::new(input);
    let volume = Arc::new(Door(MemVolume::new(Geometry::with_blocks(BLOCKS))));
    let identity = UnitIdentity::new("f00d").with_target("iqn.2026-11.io.forebay:a");
    let unit = BlockUnit::open(volume, identity, Settings::default(), Arc::new(Kept::default()));
    let unit = unit.expect("nothing was kept yet");
    let nexuses = [1, 2].map(|number| Nexus {
        target_port: 1,
        number,
        initiator_port: format!("iqn.2026-11.io.forebay:host-{number},i,0x1").into(),
    });
    nexuses.iter().for_each(|nexus| unit.nexus_opened(nexus));
    while !choices.is_empty() {
        let nexus = &nexuses[usize::from(choices.flag())];
        let list: Vec<u8> = {
            let length = choices.length().min(1024);
            (0..length).map(|_| choices.byte()).collect()
        };
        // Sometimes generate a valid claim (a vendor specific parameter list by which a gateway asks for the exclusive
        // right to write), because the fuzzer cannot guess the claim's checksum.
        let list = if choices.byte() == 0 { claim(&mut choices) } else { list };
        let cdb = cdb(&mut choices, list.len());
        let capacity = choices.length().min(1 << 20);
        let task = Task {
            nexus: nexus.clone(),
            lun: Lun(0),
            cdb,
            attribute: TaskAttribute::Simple,
            data_out: list.into(),
            data_in_capacity: capacity,
            admitted: None,
        };
        let mut execution = unit.execute(task);
        let answer =
            std::pin::Pin::new(&mut execution).poll(&mut Context::from_waker(Waker::noop()));
        if let std::task::Poll::Ready(completion) = answer {
            assert!(completion.sense.is_none() || completion.data_in.is_empty());
        }
    }
    nexuses.iter().for_each(|nexus| unit.nexus_closed(nexus));
});

/// Returns the parameter list of a CLAIM OUT command that the unit may grant.
fn claim(choices: &mut Choices) -> Vec<u8> {
    let mut small = || u64::from(choices.byte() % 8);
    let predecessors = (0..small()).map(|at| at + 1).collect();
    scsi::ClaimParameters {
        owner: "iqn.a:a".into(),
        instance: [small() as u8 % 2; 16],
        generation: small(),
        opening: small(),
        granted: small(),
        predecessors,
        writes_back: small() > 3,
        is_dirty: small() > 3,
        accept_loss: small() > 5,
        takes_over: small() > 3,
        shares: small() > 5,
        confirmed: Some(small()).filter(|number| *number > 2),
    }
    .to_bytes()
}

/// Keeps the records of the unit, such as reservations, in memory. A unit with such a store supports more commands.
#[derive(Default)]
struct Kept(Mutex<HashMap<UnitRecordKind, Vec<u8>>>);

impl UnitStore for Kept {
    fn load(&self, record: UnitRecordKind) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().expect("no thread panics").get(&record).cloned())
    }

    fn save(&self, record: UnitRecordKind, bytes: Vec<u8>) -> Saving<'_> {
        self.0.lock().expect("no thread panics").insert(record, bytes);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Returns a CDB. Most of the time it is a known command with the right parameter list length.
fn cdb(choices: &mut Choices, list: usize) -> Cdb {
    let mut cdb = [0; 16];
    cdb.iter_mut().for_each(|byte| *byte = choices.byte());
    let how = choices.byte();
    if how & 7 != 0 {
        let operation = &OPERATIONS[usize::from(choices.byte()) % OPERATIONS.len()];
        cdb[0] = operation.opcode;
        if let Some(action) = operation.service_action {
            cdb[1] = cdb[1] & 0xe0 | action as u8 & 0x1f;
        }
    }
    if how & 8 != 0 {
        // Clear bits that are reserved in most commands.
        cdb[1] &= 0x1f;
        cdb[2..].iter_mut().for_each(|byte| *byte &= 0x1f);
        cdb[15] = 0;
    }
    if how & 0x30 != 0 {
        let list = list as u32;
        match cdb[0] >> 5 {
            0 => (cdb[4], cdb[5]) = (list as u8, 0),
            1 | 2 => {
                cdb[7..9].copy_from_slice(&(list as u16).to_be_bytes());
                cdb[9] = 0;
            }
            4 => cdb[10..14].copy_from_slice(&list.to_be_bytes()),
            5 => cdb[6..10].copy_from_slice(&list.to_be_bytes()),
            _ => {}
        }
    }
    if how & 0x40 != 0 {
        // Clear most of the address bytes, so that the address is inside of the volume.
        cdb[2..8].fill(0);
    }
    Cdb::new(&cdb)
}

/// A volume that panics if the unit calls it in a way that is never permitted.
struct Door(MemVolume);

impl Door {
    fn inside(&self, extent: Extent) {
        let end = extent.lba.0.checked_add(u64::from(extent.blocks));
        assert!(extent.blocks > 0 && end.is_some_and(|end| end <= BLOCKS), "{extent:?}");
    }
}

impl Volume for Door {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.inside(extent);
        self.0.read(extent)
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        assert!(data.len().is_multiple_of(512));
        self.inside(Extent { lba, blocks: (data.len() / 512) as u32 });
        self.0.write(lba, data, durability)
    }

    fn flush(&self) -> Io<'_, ()> {
        self.0.flush()
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.inside(extent);
        self.0.discard(extent)
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions { provisioning: Some(self), ..Extensions::default() }
    }
}

impl Provisioning for Door {
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        self.inside(extent);
        self.0.extensions().allocation(extent)
    }

    fn usage(&self) -> Option<ThinSpaceUsage> {
        None
    }
}
