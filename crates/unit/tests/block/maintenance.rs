//! Tests REPORT and SET TIMESTAMP, and REPORT and SET IDENTIFYING INFORMATION.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use scsi::{Command, IdentifyingType, PrimaryCommand, Reporting, Sense, Timestamp};
use unit::{LogicalUnit, TaskManagement, UnitRecordKind};

use crate::host::{Host, MemoryStore, geometry};

fn milliseconds(told: &[u8]) -> u64 {
    told[4..10].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[tokio::test(start_paused = true)]
async fn the_timestamp_follows_the_system_clock_until_it_is_set_and_counts_on_from_there() {
    let host = Host::new(geometry());
    let other = host.other(2);
    let report = PrimaryCommand::ReportTimestamp { allocation_length: 12 };
    let machine = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    let before = machine() as u64;
    let told = host.good(&report, &[]);
    assert_eq!(told[..4], [0, 10, 0b011, 0]);
    assert!((before..=machine() as u64).contains(&milliseconds(&told)));

    let set = PrimaryCommand::SetTimestamp { parameter_list_length: 12 };
    host.good(&set, &Timestamp::list(1_000_000));
    assert_eq!(host.ready_as(&other), Some(Sense::TIMESTAMP_CHANGED));
    assert_eq!(host.ready_as(&host.nexus), None);
    tokio::time::advance(std::time::Duration::from_millis(234)).await;
    let told = host.good(&report, &[]);
    assert_eq!((told[2], milliseconds(&told)), (0b010, 1_000_234));
    host.unit.task_management(&host.nexus, TaskManagement::LogicalUnitReset);
    assert_eq!(host.ready_as(&host.nexus), Some(Sense::BUS_DEVICE_RESET_FUNCTION_OCCURRED));
    assert_eq!(host.good(&report, &[])[2], 0b010, "of a hard reset only");
    host.unit.task_management(&host.nexus, TaskManagement::TargetColdReset);
    assert_eq!(host.ready_as(&host.nexus), Some(Sense::SCSI_BUS_RESET_OCCURRED));
    assert_eq!(host.good(&report, &[])[2], 0b011);

    host.good(&PrimaryCommand::SetTimestamp { parameter_list_length: 0 }, &[]);
    let short = PrimaryCommand::SetTimestamp { parameter_list_length: 11 };
    assert_eq!(host.fails(&short, &[0; 11]), Sense::PARAMETER_LIST_LENGTH_ERROR);
    assert_eq!(host.fails(&set, &[0; 11]), Sense::PARAMETER_LIST_LENGTH_ERROR);
}

fn set(kind: IdentifyingType, length: usize) -> Command {
    Command::Primary(PrimaryCommand::SetIdentifying { kind, parameter_list_length: length as u32 })
}

fn report(kind: Option<IdentifyingType>) -> Command {
    Command::Primary(PrimaryCommand::ReportIdentifying { kind, allocation_length: 1024 })
}

#[test]
fn identifying_information_survives_a_restart_and_its_change_is_reported_to_others() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(geometry(), &store);
    let other = host.other(2);
    assert_eq!(host.good(&report(None), &[]), [0, 0, 0, 8, 0, 0, 2, 0, 4, 0, 1, 0]);
    assert_eq!(host.good(&report(Some(IdentifyingType::Text)), &[]), [0; 4]);
    let text = "bücher\0".as_bytes();
    for (kind, bytes) in [(IdentifyingType::Text, text), (IdentifyingType::Unit, &[7; 512])] {
        host.good(&set(kind, bytes.len()), bytes);
        assert_eq!(host.ready_as(&other), Some(Sense::DEVICE_IDENTIFIER_CHANGED));
        assert_eq!(host.ready_as(&host.nexus), None);
        host.good(&set(kind, bytes.len()), bytes);
        assert_eq!(host.ready_as(&other), None, "nothing changed");
    }
    drop(host);
    let host = Host::with_store(geometry(), &store);
    let told = host.good(&report(Some(IdentifyingType::Text)), &[]);
    assert_eq!((told[..4].to_vec(), &told[4..]), (vec![0, 0, 0, text.len() as u8], text));
    assert_eq!(host.good(&report(Some(IdentifyingType::Unit)), &[])[4..], [7; 512]);
    host.good(&set(IdentifyingType::Text, 0), &[]);
    assert_eq!(host.good(&report(Some(IdentifyingType::Text)), &[]), [0; 4]);
}

#[test]
fn identifying_information_that_is_invalid_too_long_or_cannot_be_saved_is_refused() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(geometry(), &store);
    for wrong in [&b"no end"[..], b"two\0zeros\0", b"\xff\0"] {
        let sense = host.fails(&set(IdentifyingType::Text, wrong.len()), wrong);
        assert_eq!(sense, Sense::INVALID_FIELD_IN_PARAMETER_LIST);
    }
    for (kind, length) in [(IdentifyingType::Unit, 513), (IdentifyingType::Text, 257)] {
        let sense = host.fails(&set(kind, length), &vec![0; length]);
        assert_eq!(sense, Sense::INVALID_FIELD_IN_CDB);
    }
    let unknown = [0xa4, 0x06, 0, 0, 0, 0, 0, 0, 0, 1, 0x02, 0];
    assert_eq!(host.fails_cdb(&unknown, &[1]), Sense::INVALID_FIELD_IN_CDB);
    store.broken.store(true, Ordering::Relaxed);
    let sense = host.fails(&set(IdentifyingType::Unit, 1), &[1]);
    assert_eq!(sense, Sense::INTERNAL_TARGET_FAILURE);
    assert_eq!(host.good(&report(Some(IdentifyingType::Unit)), &[]), [0; 4]);
    assert_eq!(store.records.lock().get(&UnitRecordKind::Identifying), None);
}

#[test]
fn a_unit_without_a_store_has_no_identifying_information_commands() {
    let told = |host: &Host, opcode, action| {
        let command = PrimaryCommand::ReportSupportedOperationCodes {
            reporting: Reporting::ServiceAction(opcode, action),
            timeouts: false,
            allocation_length: 64,
        };
        host.good(&command, &[])[1] & 7
    };
    let host = Host::new(geometry());
    assert_eq!(host.fails(&report(None), &[]), Sense::INVALID_FIELD_IN_CDB);
    assert_eq!(host.fails(&set(IdentifyingType::Unit, 1), &[1]), Sense::INVALID_FIELD_IN_CDB);
    assert_eq!((told(&host, 0xa3, 5), told(&host, 0xa4, 6)), (1, 1));
    let host = Host::with_store(geometry(), &Arc::new(MemoryStore::default()));
    assert_eq!((told(&host, 0xa3, 5), told(&host, 0xa4, 6)), (3, 3));
}
