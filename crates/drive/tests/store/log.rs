//! The log in front of the tables: what a commit costs, and what a start makes of damaged records.

use std::sync::Arc;

use drive::{DriveMutation, DriveStore, OpenError};
use object::{Command, ObjectAddress, ObjectError, ObjectRequest, ObjectStore};
use sim::CrashVolume;
use volume::{
    Data, Durability, Error, Extent, FaultCallKind, FaultRule, FaultVolume, Lba, Stack, Symptom,
};

use crate::support::*;

const MIB: u64 = 1 << 20;
const VOLUME: u64 = 16 * MIB;

/// Opens a drive that folds its log only when it is opened or closed.
async fn open_lazy(volume: &Stack) -> DriveStore {
    open_with(volume, DriveMutation::default().folding_at_the_end_only()).await.expect("opened")
}

async fn write_stable(
    store: &DriveStore,
    object: ObjectAddress,
    start: u64,
    bytes: Vec<u8>,
) -> Result<(), ObjectError> {
    let command = Command::Write { object, length: bytes.len() as u64, start };
    let mut request = ObjectRequest::new(command).with_data(Data::from(bytes));
    request.options.fua = true;
    store.perform(request).await.map(drop)
}

/// Returns the blocks of 4 KiB of the volume for which `is_wanted` returns true.
async fn find(volume: &Stack, is_wanted: impl Fn(&[u8]) -> bool) -> Vec<Extent> {
    let mut found = Vec::new();
    for block in 0..volume.geometry().blocks / 8 {
        let extent = Extent { lba: Lba(block * 8), blocks: 8 };
        if is_wanted(&volume.read(extent).await.unwrap().into_bytes()) {
            found.push(extent);
        }
    }
    found
}

/// Returns the first blocks of all records on the volume.
async fn records(volume: &Stack) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for extent in find(volume, is_record).await {
        all.push(volume.read(extent).await.unwrap().into_bytes().to_vec());
    }
    all
}

fn is_record(block: &[u8]) -> bool {
    block.starts_with(b"FBYOBJRC")
}

/// Returns the first blocks of the records of [`killed_drive`]: those of the generation that has three records.
async fn newest_records(volume: &Stack) -> Vec<Extent> {
    let all = records(volume).await;
    let third = all.iter().find(|block| block[16..24] == 3_u64.to_le_bytes()).expect("three");
    find(volume, |block| is_record(block) && block[8..16] == third[8..16]).await
}

/// Returns a volume with an object of one block, and three stable changes in the log: 1s, 2s, 3s.
async fn killed_drive() -> (Stack, ObjectAddress) {
    let volume = memory(VOLUME);
    let store = open(&volume).await;
    let partition = create_partition(&store).await;
    let object = create(&store, partition).await;
    store.close().await.unwrap();
    drop(store);
    let store = open_lazy(&volume).await;
    for byte in 1..=3 {
        write_stable(&store, object, 0, vec![byte; 4096]).await.unwrap();
    }
    drop(store);
    (volume, object)
}

#[test]
fn a_stable_change_costs_one_write_of_the_log_and_one_flush() {
    run(async {
        let disk = Arc::new(CrashVolume::new(geometry(VOLUME), 1));
        let stack: Stack = disk.clone();
        let store = open_lazy(&stack).await;
        let partition = create_partition(&store).await;
        let object = create(&store, partition).await;
        flush(&store).await.unwrap();
        let operations = || disk.power().operations();
        for _ in 0..3 {
            let before = operations();
            write_stable(&store, object, 0, vec![1; 4096]).await.unwrap();
            assert_eq!(operations() - before, 3, "the data, the record, and a flush");
            let before = operations();
            store.put_record("name", vec![1; 100].into()).await.unwrap();
            assert_eq!(operations() - before, 2, "the record, and a flush");
        }
    });
}

#[test]
fn stable_changes_in_the_log_are_there_after_a_kill() {
    run(async {
        let (volume, object) = killed_drive().await;
        assert_eq!(newest_records(&volume).await.len(), 3);
        let store = open(&volume).await;
        assert_eq!(read(&store, object, 0, 4096).await.unwrap(), vec![3; 4096]);
    });
}

#[test]
fn a_record_whose_data_is_not_there_is_left_out() {
    run(async {
        let (volume, object) = killed_drive().await;
        let data = find(&volume, |block| block.iter().all(|byte| *byte == 3)).await;
        volume.write(data[0].lba, vec![9; 512].into(), Durability::Volatile).await.unwrap();
        let store = open(&volume).await;
        assert_eq!(read(&store, object, 0, 4096).await.unwrap(), vec![2; 4096]);
    });
}

#[test]
fn a_record_whose_data_cannot_be_read_counts_and_the_damage_is_reported() {
    run(async {
        let (volume, object) = killed_drive().await;
        let data = find(&volume, |block| block.iter().all(|byte| *byte == 3)).await;
        let faulty = FaultVolume::new(volume);
        let error = Error::Medium { extent: data[0], reason: "a scratch".into() };
        let rule = FaultRule::always(FaultCallKind::Read, Symptom::Fails(error)).at(data[0]);
        faulty.faults().add(rule);
        let volume: Stack = Arc::new(faulty);
        let store = open(&volume).await;
        let found = read(&store, object, 0, 4096).await;
        assert_eq!(found, Err(ObjectError::Damaged { object, range: 0..4096 }));
    });
}

#[test]
fn a_torn_last_record_is_left_out() {
    run(async {
        let (volume, object) = killed_drive().await;
        let records = newest_records(&volume).await;
        let last = records[2].lba;
        volume.write(last, Data::zeros(512), Durability::Volatile).await.unwrap();
        let store = open(&volume).await;
        assert_eq!(read(&store, object, 0, 4096).await.unwrap(), vec![2; 4096]);
    });
}

#[test]
fn a_damaged_record_before_another_one_is_an_error_instead_of_a_silent_loss() {
    run(async {
        for damaged in [0, 1] {
            let (volume, _) = killed_drive().await;
            let records = newest_records(&volume).await;
            let lba = records[damaged].lba;
            volume.write(lba, vec![9; 512].into(), Durability::Volatile).await.unwrap();
            let opened = DriveStore::open(volume, options()).await;
            assert!(matches!(opened.err(), Some(OpenError::Log)), "record {damaged}");
        }
    });
}

#[test]
fn a_clean_close_leaves_no_record_that_a_decayed_block_could_discredit() {
    run(async {
        let (volume, object) = killed_drive().await;
        let store = open_lazy(&volume).await;
        write_stable(&store, object, 0, vec![4; 4096]).await.unwrap();
        store.close().await.unwrap();
        drop(store);
        let data = find(&volume, |block| block.iter().all(|byte| *byte == 4)).await;
        volume.write(data[0].lba, vec![9; 512].into(), Durability::Volatile).await.unwrap();
        let store = open(&volume).await;
        let found = read(&store, object, 0, 4096).await;
        assert_eq!(found, Err(ObjectError::Damaged { object, range: 0..4096 }));
    });
}

#[test]
fn after_a_failed_write_or_flush_of_the_log_the_next_commit_is_a_fold() {
    run(async {
        let gone = || Error::Device("the cable is out".into());
        let log = Extent { lba: Lba(128), blocks: 2048 };
        let rules = [
            FaultRule::always(FaultCallKind::Write, Symptom::Fails(gone())).at(log),
            FaultRule::always(FaultCallKind::Write, Symptom::FailsAfter(gone())).at(log),
            FaultRule::always(FaultCallKind::Flush, Symptom::Fails(gone())),
            FaultRule::always(FaultCallKind::Flush, Symptom::FailsAfter(gone())),
        ];
        for rule in rules {
            let (below, object) = killed_drive().await;
            let faulty = FaultVolume::new(below.clone());
            let faults = Arc::clone(faulty.faults());
            let volume: Stack = Arc::new(faulty);
            let store = open_lazy(&volume).await;
            faults.add(rule.clone());
            let failed = write_stable(&store, object, 0, vec![4; 4096]).await;
            assert!(matches!(failed, Err(ObjectError::Storage(_))), "{failed:?} {rule:?}");
            faults.clear();
            let before = records(&below).await;
            write_stable(&store, object, 4096, vec![5; 4096]).await.unwrap();
            assert!(records(&below).await == before, "no new record: {rule:?}");
            drop(store);
            let store = open(&below).await;
            let expected = [[4; 4096], [5; 4096]].concat();
            assert_eq!(read(&store, object, 0, 8192).await.unwrap(), expected, "{rule:?}");
        }
    });
}

#[test]
fn after_a_failed_format_nothing_is_made_stable_before_a_restart() {
    run(async {
        let (below, object) = killed_drive().await;
        let faulty = FaultVolume::new(below.clone());
        let faults = Arc::clone(faulty.faults());
        let volume: Stack = Arc::new(faulty);
        let store = open_lazy(&volume).await;
        // From now on, all rows that a further write needs are in memory.
        write_stable(&store, object, 0, vec![4; 4096]).await.unwrap();
        let error = Error::Device("the cable is out".into());
        // The second flush of the fold: the tables on the volume are those of a formatted drive.
        let rule = FaultRule::always(FaultCallKind::Flush, Symptom::FailsAfter(error));
        faults.add(rule.after(1));
        let format = Command::FormatOsd { capacity: 0 };
        assert!(matches!(perform(&store, format).await, Err(ObjectError::Storage(_))));
        faults.clear();
        let refused = write_stable(&store, object, 0, vec![4; 4096]).await;
        assert!(matches!(refused, Err(ObjectError::Storage(_))), "{refused:?}");
        drop(store);
        let store = open(&below).await;
        let found = read(&store, object, 0, 4096).await;
        assert_eq!(found, Err(ObjectError::NoSuchObject { object }));
    });
}

#[test]
fn changes_stay_stable_in_the_log_while_folds_fail() {
    run(async {
        for is_mended in [false, true] {
            let (below, object) = killed_drive().await;
            let faulty = FaultVolume::new(below.clone());
            let faults = Arc::clone(faulty.faults());
            let volume: Stack = Arc::new(faulty);
            let often = DriveMutation::default().folding_after(1);
            let store = open_with(&volume, often).await.expect("opened");
            let tables = Extent { lba: Lba(2176), blocks: 10_240 };
            let error = Error::Device("the cable is out".into());
            let rule = FaultRule::always(FaultCallKind::Write, Symptom::Fails(error)).at(tables);
            faults.add(rule);
            // The second change begins a fold beside commits, which fails; the third one needs another fold.
            write_stable(&store, object, 0, vec![4; 4096]).await.unwrap();
            write_stable(&store, object, 0, vec![5; 4096]).await.unwrap();
            let failed = write_stable(&store, object, 0, vec![6; 4096]).await;
            assert!(matches!(failed, Err(ObjectError::Storage(_))), "{failed:?}");
            let mut expected = 5;
            if is_mended {
                faults.clear();
                expected = 7;
                write_stable(&store, object, 0, vec![7; 4096]).await.unwrap();
            }
            drop(store);
            let store = open(&below).await;
            assert_eq!(read(&store, object, 0, 4096).await.unwrap(), vec![expected; 4096]);
        }
    });
}
