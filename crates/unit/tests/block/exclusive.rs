//! Tests COMPARE AND WRITE, ORWRITE and WRITE ATOMIC, also with concurrent writes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use scsi::{BlockCommand, BlockTransfer, Cdb, Command, Form, Lun, ScsiStatus, Sense};
use unit::{BlockUnit, LogicalUnit, Settings, Task, TaskAttribute, UnitIdentity};
use volume::{DelayVolume, Durability, Geometry, Latency, MemVolume};

use crate::host::{BLOCK, Call, Host, geometry, nexus, pattern};

fn sixteen(lba: u64, blocks: u32) -> BlockTransfer {
    BlockTransfer { form: Form::Sixteen, ..BlockTransfer::new(lba, blocks) }
}

fn compare_and_write(lba: u64, blocks: u32) -> Command {
    Command::Block(BlockCommand::CompareAndWrite(sixteen(lba, blocks)))
}

#[test]
fn equal_bytes_are_replaced_and_the_offset_of_a_difference_is_reported() {
    let host = Host::new(geometry());
    let old = pattern(1, 3);
    let new = pattern(7, 3);
    host.good(&Command::write(10, 3, false), &old);
    host.good(&compare_and_write(10, 3), &[&old[..], &new[..]].concat());
    assert_eq!(host.good(&Command::read(10, 3), &[]), new);
    let mut expected = new.clone();
    expected[2 * BLOCK + 5] ^= 1;
    assert_eq!(
        host.fails(&compare_and_write(10, 3), &[&expected[..], &old[..]].concat()),
        Sense::MISCOMPARE_DURING_VERIFY.with_information(2 * BLOCK as u64 + 5)
    );
    assert_eq!(host.good(&Command::read(10, 3), &[]), new);
}

#[test]
fn fua_makes_the_exchange_stable() {
    let host = Host::new(geometry());
    let command = BlockCommand::CompareAndWrite(sixteen(4, 1).with_fua(true));
    host.good(&command, &[[0; BLOCK], [1; BLOCK]].concat());
    assert_eq!(host.asked(), [Call::Read(4, 1), Call::Write(4, BLOCK, Durability::Stable)]);
}

#[test]
fn data_of_another_length_is_refused() {
    let host = Host::new(geometry());
    for length in [0, BLOCK, 2 * BLOCK - 1, 3 * BLOCK, 4 * BLOCK] {
        assert_eq!(
            host.fails(&compare_and_write(0, 1), &vec![0; length]),
            Sense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT,
            "{length}"
        );
    }
    host.good(&compare_and_write(0, 0), &[]);
    let none = host.fails(&compare_and_write(0, 0), &[0; BLOCK]);
    assert_eq!(none, Sense::INVALID_FIELD_IN_CDB, "256 blocks cannot be asked for");
    host.good(&compare_and_write(geometry().blocks, 0), &[]);
}

#[test]
fn bits_are_set_and_none_is_cleared() {
    let host = Host::new(Geometry::with_blocks(10_000));
    host.good(&Command::write(0, 4096, false), &vec![0xa0; 4096 * BLOCK]);
    host.good(&BlockCommand::OrWrite(sixteen(1, 4094)), &vec![0x05; 4094 * BLOCK]);
    let read = host.good(&Command::read(0, 4096), &[]);
    assert!(read[BLOCK..4095 * BLOCK].iter().all(|byte| *byte == 0xa5));
    assert!(read[..BLOCK].iter().chain(&read[4095 * BLOCK..]).all(|byte| *byte == 0xa0));
}

#[test]
fn an_atomic_write_is_one_call_in_whole_physical_blocks() {
    let host = Host::new(geometry());
    let atomic = |lba, blocks| {
        Command::Block(BlockCommand::WriteAtomic { transfer: sixteen(lba, blocks), boundary: 0 })
    };
    host.good(&atomic(8, 16), &pattern(1, 16));
    assert_eq!(host.asked(), [Call::Write(8, 16 * BLOCK, Durability::Volatile)]);
    for (lba, blocks) in [(1, 8), (8, 7)] {
        let sense = host.fails(&atomic(lba, blocks), &pattern(1, blocks as usize));
        assert_eq!(sense, Sense::INVALID_FIELD_IN_CDB);
    }
    let bounded = BlockCommand::WriteAtomic { transfer: sixteen(0, 8), boundary: 8 };
    assert_eq!(host.fails(&bounded, &pattern(1, 8)), Sense::INVALID_FIELD_IN_CDB);
    let short = host.fails(&atomic(0, 16), &pattern(1, 8));
    assert_eq!(short, Sense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
    let end = host.fails(&atomic(geometry().blocks + 1, 0), &[]);
    assert_eq!(end, Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE);
    assert_eq!(host.asked(), []);
}

#[test]
fn writes_to_a_write_protected_unit_are_refused() {
    let host = Host::new(Geometry { read_only: true, ..geometry() });
    let atomic = Command::Block(BlockCommand::WriteAtomic { transfer: sixteen(0, 8), boundary: 0 });
    for command in
        [compare_and_write(0, 1), Command::Block(BlockCommand::OrWrite(sixteen(0, 1))), atomic]
    {
        assert_eq!(host.fails(&command, &[0; 2 * BLOCK]), Sense::WRITE_PROTECTED);
    }
}

/// Eight hosts increment a counter in one block with COMPARE AND WRITE. No increment may be lost, although
/// reads and writes of the volume overlap and other hosts write elsewhere.
#[tokio::test(start_paused = true)]
async fn no_write_happens_between_the_comparison_and_the_write() {
    let lower = Arc::new(MemVolume::new(Geometry::with_blocks(1024)));
    let slow = DelayVolume::new(lower, Latency::uniform(Duration::from_millis(3)));
    let unit = BlockUnit::new(Arc::new(slow), UnitIdentity::new("f00d"), Settings::default());
    let unit = Arc::new(unit);
    let misses = Arc::new(AtomicU32::new(0));
    let mut hosts = Vec::new();
    for _ in 0..8 {
        let (unit, misses) = (Arc::clone(&unit), Arc::clone(&misses));
        hosts.push(tokio::spawn(async move {
            for _ in 0..20 {
                loop {
                    let read = send(&unit, &Command::read(5, 1), vec![]).await;
                    let old = read.data_in.into_bytes();
                    let mut new = old.to_vec();
                    let count = u32::from_be_bytes(new[..4].try_into().unwrap()) + 1;
                    new[..4].copy_from_slice(&count.to_be_bytes());
                    let data = [&old[..], &new[..]].concat();
                    let done = send(&unit, &compare_and_write(5, 1), data).await;
                    if done.status == ScsiStatus::Good {
                        break;
                    }
                    assert_eq!(done.sense.unwrap().key, scsi::SenseKey::Miscompare);
                    misses.fetch_add(1, Ordering::Relaxed);
                }
            }
        }));
    }
    for host in hosts {
        host.await.unwrap();
    }
    let read = send(&unit, &Command::read(5, 1), vec![]).await.data_in.into_bytes();
    assert_eq!(read[..4], 160u32.to_be_bytes());
    assert!(misses.load(Ordering::Relaxed) > 0, "they met");
}

async fn send(unit: &BlockUnit, command: &Command, data: Vec<u8>) -> unit::Completion {
    unit.execute(Task {
        nexus: nexus(1),
        lun: Lun(0),
        cdb: Cdb::new(&command.encode()),
        attribute: TaskAttribute::Simple,
        data_out: data.into(),
        data_in_capacity: u32::MAX,
        admitted: None,
    })
    .await
}
