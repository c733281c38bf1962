//! Tests persistent reservations: the effects of service actions, unit attention conditions, and refused commands.

use std::{
    sync::{Arc, atomic::Ordering},
    task::{Context, Waker},
};

use scsi::{
    Cdb, Command, OPERATIONS, PersistentReserveIn, PersistentReserveOut, PrimaryCommand,
    ScsiStatus, Sense,
    persistent::{
        MoveParameters, OutParameters, ReservationType, ReserveAction, ReserveReport, TransportId,
    },
};
use unit::{
    AttentionChange, BlockUnit, LogicalUnit, Nexus, Settings, Task, TaskManagement, UnitIdentity,
    UnitRecordKind,
};
use volume::{FaultRule, MemVolume, Symptom};

use crate::host::{Host, MemoryStore, geometry, nexus, pattern};
use ReservationType::{
    ExclusiveAccess, ExclusiveAccessAllRegistrants, ExclusiveAccessRegistrantsOnly, WriteExclusive,
    WriteExclusiveAllRegistrants, WriteExclusiveRegistrantsOnly,
};
use ReserveAction::{
    Clear, Preempt, PreemptAndAbort, Register, RegisterAndIgnoreExistingKey, RegisterAndMove,
    Release, Reserve,
};

/// The result of a PERSISTENT RESERVE OUT, without the field pointer of its sense data.
type Outcome = Result<(), Refusal>;

#[derive(Debug, PartialEq)]
enum Refusal {
    Conflict,
    Check(Sense),
}
use Refusal::{Check, Conflict};

fn out(host: &Host, nexus: &Nexus, action: ReserveAction, list: &[u8]) -> Outcome {
    let parameter_list_length = list.len() as u32;
    let command = PrimaryCommand::PersistentReserveOut(PersistentReserveOut {
        action,
        parameter_list_length,
    });
    let completion = host.send_as(nexus, &command.encode(), list);
    match (completion.status, completion.sense) {
        (ScsiStatus::Good, None) => Ok(()),
        (ScsiStatus::ReservationConflict, None) => Err(Conflict),
        (ScsiStatus::CheckCondition, Some(sense)) => Err(Check(Sense { field: None, ..sense })),
        other => panic!("{other:?}"),
    }
}

fn keys_of(key: u64, action_key: u64) -> OutParameters {
    OutParameters { key, action_key, ..OutParameters::default() }
}

fn act(host: &Host, nexus: &Nexus, action: ReserveAction, key: u64, action_key: u64) -> Outcome {
    out(host, nexus, action, &keys_of(key, action_key).to_bytes())
}

fn read(host: &Host, report: ReserveReport) -> Vec<u8> {
    let asked = PersistentReserveIn { report, allocation_length: u16::MAX };
    host.good(&PrimaryCommand::PersistentReserveIn(asked), &[])
}

/// Returns PRGENERATION and the registered keys.
fn keys(host: &Host) -> (u32, Vec<u64>) {
    let bytes = read(host, ReserveReport::Keys);
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(number(4) as usize, bytes.len() - 8);
    let keys = bytes[8..].chunks_exact(8);
    (number(0), keys.map(|key| u64::from_be_bytes(key.try_into().unwrap())).collect())
}

/// Returns key and type of the reservation.
fn held(host: &Host) -> Option<(u64, u8)> {
    let bytes = read(host, ReserveReport::Reservation);
    let key = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
    (bytes.len() > 8).then(|| (key(&bytes[8..16]), bytes[21]))
}

/// Returns three sessions of three initiator ports, registered with the keys 1, 2 and 3.
fn three() -> (Host, [Nexus; 3]) {
    let host = Host::new(geometry());
    let nexuses = [host.nexus.clone(), host.other(2), host.other(3)];
    for (nexus, key) in nexuses.iter().zip(1..) {
        assert_eq!(act(&host, nexus, Register, 0, key), Ok(()));
    }
    (host, nexuses)
}

#[test]
fn a_key_is_registered_changed_and_unregistered() {
    let host = Host::new(geometry());
    let one = &host.nexus;
    assert_eq!(keys(&host), (0, vec![]));
    assert_eq!(act(&host, one, Register, 9, 1), Err(Conflict), "no key yet");
    assert_eq!(act(&host, one, Register, 0, 0), Ok(()), "nothing to take back");
    assert_eq!(keys(&host), (0, vec![]));
    assert_eq!(act(&host, one, Register, 0, 1), Ok(()));
    assert_eq!(act(&host, one, Register, 0, 2), Err(Conflict), "it has a key");
    assert_eq!(act(&host, one, Register, 1, 2), Ok(()));
    assert_eq!(act(&host, one, RegisterAndIgnoreExistingKey, 77, 3), Ok(()));
    assert_eq!(keys(&host), (3, vec![3]));
    assert_eq!(act(&host, one, Register, 3, 0), Ok(()));
    assert_eq!(keys(&host), (4, vec![]));
}

#[test]
fn a_registration_belongs_to_a_port_and_outlasts_its_session() {
    let (host, [_, two, _]) = three();
    host.unit.nexus_closed(&two);
    let again = Nexus { number: 20, ..two };
    host.unit.nexus_opened(&again);
    assert_eq!(host.ready_as(&again), Some(Sense::POWER_ON_OCCURRED));
    assert_eq!(act(&host, &again, Reserve(WriteExclusive), 2, 0), Ok(()));
    host.unit.task_management(&again, TaskManagement::LogicalUnitReset);
    assert_eq!(host.ready_as(&host.nexus), Some(Sense::BUS_DEVICE_RESET_FUNCTION_OCCURRED));
    assert_eq!(held(&host), Some((2, 1)));
    let elsewhere = Nexus { number: 21, target_port: 2, ..again };
    host.unit.nexus_opened(&elsewhere);
    host.ready_as(&elsewhere);
    assert_eq!(act(&host, &elsewhere, Reserve(WriteExclusive), 2, 0), Err(Conflict));
}

#[test]
fn only_registrants_reserve_and_only_the_holder_releases() {
    let (host, [one, two, _]) = three();
    let stranger = host.other(4);
    assert_eq!(act(&host, &stranger, Reserve(WriteExclusive), 0, 0), Err(Conflict));
    assert_eq!(act(&host, &one, Reserve(WriteExclusive), 9, 0), Err(Conflict), "not its key");
    assert_eq!(act(&host, &one, Reserve(WriteExclusive), 1, 0), Ok(()));
    assert_eq!(act(&host, &one, Reserve(WriteExclusive), 1, 0), Ok(()), "the same again");
    assert_eq!(act(&host, &one, Reserve(ExclusiveAccess), 1, 0), Err(Conflict));
    assert_eq!(act(&host, &two, Reserve(WriteExclusive), 2, 0), Err(Conflict));
    assert_eq!(held(&host), Some((1, 1)));
    assert_eq!(act(&host, &two, Release(WriteExclusive), 2, 0), Ok(()), "holds nothing");
    assert_eq!(held(&host), Some((1, 1)));
    let wrong = Sense::INVALID_RELEASE_OF_PERSISTENT_RESERVATION;
    assert_eq!(act(&host, &one, Release(ExclusiveAccess), 1, 0), Err(Check(wrong)));
    assert_eq!(act(&host, &one, Release(WriteExclusive), 1, 0), Ok(()));
    assert_eq!(held(&host), None);
    assert_eq!(keys(&host).0, 3, "reservations do not count as generations");
}

#[test]
fn the_end_of_a_shared_reservation_is_reported_to_its_registrants() {
    for kind in ReservationType::ALL {
        let (host, [one, two, three]) = three();
        let stranger = host.other(4);
        assert_eq!(act(&host, &one, Reserve(kind), 1, 0), Ok(()));
        assert_eq!(act(&host, &one, Release(kind), 1, 0), Ok(()));
        let told = kind.admits_registrants().then_some(Sense::RESERVATIONS_RELEASED);
        assert_eq!(host.ready_as(&two), told, "{kind:?}");
        assert_eq!(host.ready_as(&three), told);
        assert_eq!((host.ready_as(&one), host.ready_as(&stranger)), (None, None));
    }
}

#[test]
fn a_holder_that_unregisters_releases_its_reservation() {
    for kind in ReservationType::ALL {
        let (host, [one, two, _]) = three();
        assert_eq!(act(&host, &one, Reserve(kind), 1, 0), Ok(()));
        assert_eq!(act(&host, &one, Register, 1, 0), Ok(()));
        let all = kind.all_registrants();
        assert_eq!(held(&host).is_some(), all, "others hold it, too: {kind:?}");
        let told = (kind.admits_registrants() && !all).then_some(Sense::RESERVATIONS_RELEASED);
        assert_eq!(host.ready_as(&two), told);
    }
}

#[test]
fn an_all_registrants_reservation_ends_with_its_last_registrant() {
    let (host, nexuses) = three();
    assert_eq!(act(&host, &nexuses[0], Reserve(ExclusiveAccessAllRegistrants), 1, 0), Ok(()));
    assert_eq!(held(&host), Some((0, 8)), "it has no single holder, and no key");
    for (nexus, key) in nexuses.iter().zip(1..) {
        assert!(held(&host).is_some());
        assert_eq!(act(&host, nexus, Register, key, 0), Ok(()));
    }
    assert_eq!(held(&host), None);
}

#[test]
fn clear_ends_all_registrations_and_reports_that_to_the_other_sessions() {
    let (host, [one, two, three]) = three();
    assert_eq!(act(&host, &one, Reserve(ExclusiveAccessRegistrantsOnly), 1, 0), Ok(()));
    assert_eq!(act(&host, &two, Clear, 9, 0), Err(Conflict));
    assert_eq!(act(&host, &two, Clear, 2, 0), Ok(()));
    let told = Some(Sense::RESERVATIONS_PREEMPTED);
    assert_eq!((host.ready_as(&one), host.ready_as(&three)), (told, told));
    assert_eq!(host.ready_as(&two), None);
    assert_eq!((keys(&host), held(&host)), ((4, vec![]), None));
}

#[test]
fn the_holders_key_preempts_its_reservation() {
    for action in [Preempt, PreemptAndAbort] {
        let (host, [one, two, three]) = three();
        assert_eq!(act(&host, &one, Reserve(WriteExclusiveRegistrantsOnly), 1, 0), Ok(()));
        assert_eq!(act(&host, &two, action(ExclusiveAccess), 2, 1), Ok(()));
        assert_eq!(host.ready_as(&one), Some(Sense::REGISTRATIONS_PREEMPTED));
        assert_eq!((keys(&host), held(&host)), ((4, vec![2, 3]), Some((2, 3))));
        assert_eq!(host.ready_as(&three), Some(Sense::RESERVATIONS_RELEASED), "another type");
        assert_eq!(host.ready_as(&two), None);
    }
}

#[test]
fn another_key_preempts_registrations_alone() {
    let (host, [one, two, three]) = three();
    assert_eq!(act(&host, &one, Reserve(WriteExclusive), 1, 0), Ok(()));
    assert_eq!(act(&host, &two, Preempt(WriteExclusive), 2, 3), Ok(()));
    assert_eq!((keys(&host).1, held(&host)), (vec![1, 2], Some((1, 1))));
    assert_eq!(host.ready_as(&three), Some(Sense::REGISTRATIONS_PREEMPTED));
    assert_eq!(act(&host, &two, Preempt(WriteExclusive), 2, 99), Err(Conflict), "no such key");
    let field = Err(Check(Sense::INVALID_FIELD_IN_PARAMETER_LIST));
    assert_eq!(act(&host, &two, Preempt(WriteExclusive), 2, 0), field);
    assert_eq!(act(&host, &three, Preempt(WriteExclusive), 3, 1), Err(Conflict), "unregistered");
}

#[test]
fn key_zero_preempts_all_registrants() {
    let (host, [one, two, three]) = three();
    assert_eq!(act(&host, &two, Reserve(WriteExclusiveAllRegistrants), 2, 0), Ok(()));
    assert_eq!(act(&host, &three, Preempt(WriteExclusiveAllRegistrants), 3, 1), Ok(()));
    assert_eq!(host.ready_as(&one), Some(Sense::REGISTRATIONS_PREEMPTED));
    assert_eq!((keys(&host).1, held(&host)), (vec![2, 3], Some((0, 7))), "one key alone");
    assert_eq!(act(&host, &three, Preempt(ExclusiveAccess), 3, 0), Ok(()));
    assert_eq!((keys(&host).1, held(&host)), (vec![3], Some((3, 3))));
    assert_eq!(host.ready_as(&two), Some(Sense::REGISTRATIONS_PREEMPTED));
}

#[test]
fn other_ports_are_registered_by_name_and_for_all_target_ports() {
    let host = Host::new(geometry());
    let port = |number| TransportId(nexus(number).initiator_port.to_string());
    let list = OutParameters { ports: Some(vec![port(2), port(3)]), ..keys_of(0, 5) };
    assert_eq!(out(&host, &host.nexus, Register, &list.to_bytes()), Ok(()));
    assert_eq!(keys(&host), (1, vec![5, 5, 5]));
    let two = host.other(2);
    assert_eq!(act(&host, &two, Reserve(WriteExclusive), 5, 0), Ok(()));
    // Port 5 is not registered yet, but port 3 is: the command fails as a whole and registers neither.
    let four = host.other(4);
    let list = OutParameters { ports: Some(vec![port(5), port(3)]), ..keys_of(0, 6) };
    let field = Err(Check(Sense::INVALID_FIELD_IN_PARAMETER_LIST));
    assert_eq!(out(&host, &four, Register, &list.to_bytes()), field);
    assert_eq!(out(&host, &four, RegisterAndIgnoreExistingKey, &list.to_bytes()), field);
    assert_eq!(keys(&host).1.len(), 3);
    let all = OutParameters { all_target_ports: true, ..keys_of(0, 7) };
    assert_eq!(out(&host, &four, Register, &all.to_bytes()), Ok(()));
    assert_eq!(keys(&host).1, [5, 5, 5, 7], "there is one target port");
}

#[test]
fn register_and_move_moves_the_reservation_to_another_port() {
    let (host, [one, two, _]) = three();
    let to = |number: u64, target_port| MoveParameters {
        key: 1,
        action_key: 8,
        unregister: true,
        persist: false,
        target_port,
        port: TransportId(nexus(number).initiator_port.to_string()),
    };
    let moved =
        |parameters: MoveParameters| out(&host, &one, RegisterAndMove, &parameters.to_bytes());
    let field = Err(Check(Sense::INVALID_FIELD_IN_PARAMETER_LIST));
    assert_eq!(moved(to(7, 1)), Err(Conflict), "nothing is reserved");
    assert_eq!(act(&host, &one, Reserve(ExclusiveAccess), 1, 0), Ok(()));
    assert_eq!(moved(to(1, 1)), field, "to itself");
    assert_eq!(moved(to(7, 9)), field, "through a port that is not there");
    assert_eq!(moved(MoveParameters { action_key: 0, ..to(7, 1) }), field);
    assert_eq!(moved(to(7, 1)), Ok(()));
    assert_eq!((keys(&host).1, held_as(&host, &two)), (vec![2, 3, 8], Some((8, 3))));
    let seven = host.other(7);
    assert_eq!(host.send_as(&seven, &Command::read(0, 1).encode(), &[]).status, ScsiStatus::Good);
}

/// Like [`held`], but sends the command in the session of `nexus`.
fn held_as(host: &Host, nexus: &Nexus) -> Option<(u64, u8)> {
    let asked = PersistentReserveIn { report: ReserveReport::Reservation, allocation_length: 255 };
    let cdb = PrimaryCommand::PersistentReserveIn(asked).encode();
    let bytes = host.send_as(nexus, &cdb, &[]).data_in.into_bytes();
    Some((u64::from_be_bytes(bytes.get(8..16)?.try_into().ok()?), bytes[21]))
}

#[test]
fn full_status_reports_ports_and_holder() {
    let (host, [_, two, _]) = three();
    assert_eq!(act(&host, &two, Reserve(WriteExclusive), 2, 0), Ok(()));
    let bytes = read(&host, ReserveReport::FullStatus);
    let name = TransportId(two.initiator_port.to_string()).to_bytes();
    let one = 24 + name.len();
    assert_eq!(bytes.len(), 8 + 3 * one);
    let second = &bytes[8 + one..8 + 2 * one];
    assert_eq!((second[7], second[12], second[13], second[19]), (2, 1, 1, 1));
    assert_eq!(second[24..], name);
    assert_eq!(bytes[8 + 12], 0, "the first holds nothing");
}

#[test]
fn persistent_reservations_survive_a_restart() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(geometry(), &store);
    assert_eq!(read(&host, ReserveReport::Capabilities)[2..4], [0x1d, 0xb0]);
    let lasting = OutParameters { persist: true, ..keys_of(0, 1) };
    assert_eq!(out(&host, &host.nexus, Register, &lasting.to_bytes()), Ok(()));
    assert_eq!(act(&host, &host.nexus, Reserve(ExclusiveAccess), 1, 0), Ok(()));
    assert_eq!(read(&host, ReserveReport::Capabilities)[3], 0xb1);
    let again = Host::with_store(geometry(), &store);
    assert_eq!((keys(&again), held(&again)), ((0, vec![1]), Some((1, 3))));
    let two = again.other(2);
    let status = again.send_as(&two, &Command::read(0, 1).encode(), &[]).status;
    assert_eq!(status, ScsiStatus::ReservationConflict, "no initiator has registered again");
    // Without APTPL, no registration survives any more.
    assert_eq!(act(&again, &again.nexus, RegisterAndIgnoreExistingKey, 0, 4), Ok(()));
    assert_eq!(keys(&again).1, [4]);
    assert_eq!(keys(&Host::with_store(geometry(), &store)), (0, vec![]));
}

#[test]
fn a_registration_that_cannot_be_saved_is_not_made() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(geometry(), &store);
    store.broken.store(true, Ordering::Relaxed);
    let lasting = OutParameters { persist: true, ..keys_of(0, 1) };
    let failed = Err(Check(Sense::INTERNAL_TARGET_FAILURE));
    assert_eq!(out(&host, &host.nexus, Register, &lasting.to_bytes()), failed);
    assert_eq!(keys(&host), (0, vec![]));
    let host = Host::new(geometry());
    assert_eq!(read(&host, ReserveReport::Capabilities)[2] & 1, 0, "there is no store");
    let field = Err(Check(Sense::INVALID_FIELD_IN_PARAMETER_LIST));
    assert_eq!(out(&host, &host.nexus, Register, &lasting.to_bytes()), field);
}

#[test]
fn a_unit_whose_reservations_are_damaged_is_not_served() {
    for record in UnitRecordKind::ALL {
        let store = Arc::new(MemoryStore::default());
        store.records.lock().insert(record, vec![9; 40]);
        let volume = Arc::new(MemVolume::new(geometry()));
        let opened =
            BlockUnit::open(volume, UnitIdentity::new("f00d"), Settings::default(), store.clone());
        assert!(opened.is_err(), "{record:?}");
    }
}

/// In CVE-2025-57275 an initiator could register more nexuses than the table had room for.
#[test]
fn cve_2025_57275_registrations_are_bounded() {
    let host = Host::new(geometry());
    let port = |number: usize| TransportId(format!("iqn.a,i,0x{number:012x}"));
    // 4,096 registrations have room for sixteen of these batches, and for half of one more.
    let register = |batch: u64, others: usize| {
        let nexus = nexus(1000 + batch);
        host.unit.nexus_opened(&nexus);
        host.ready_as(&nexus);
        let ports = (0..others).map(|n| port(batch as usize * 1000 + n)).collect();
        let list = OutParameters { ports: Some(ports), ..keys_of(0, 5) };
        out(&host, &nexus, Register, &list.to_bytes())
    };
    for batch in 0..16 {
        assert_eq!(register(batch, 240), Ok(()), "{batch}");
    }
    let full = Err(Check(Sense::INSUFFICIENT_REGISTRATION_RESOURCES));
    assert_eq!(register(16, 240), full);
    assert_eq!(keys(&host).1.len(), 16 * 241, "none of those that did not fit");
    assert_eq!(register(17, 239), Ok(()));
    assert_eq!(register(18, 0), full);
}

#[test]
fn lists_of_a_wrong_length_change_nothing() {
    let host = Host::new(geometry());
    let length = Err(Check(Sense::PARAMETER_LIST_LENGTH_ERROR));
    let list = keys_of(0, 1).to_bytes();
    assert_eq!(out(&host, &host.nexus, Register, &list[..20]), length);
    assert_eq!(out(&host, &host.nexus, Register, &[&list[..], &[0; 4]].concat()), length);
    let asked = PersistentReserveOut { action: Register, parameter_list_length: 1 << 24 };
    let cdb = PrimaryCommand::PersistentReserveOut(asked).encode();
    let refused = host.unit.admit(&host.nexus, &cdb, 1 << 24).expect_err("before the data comes");
    assert_eq!(refused.sense, Some(Sense::PARAMETER_LIST_LENGTH_ERROR));
    let cut = PersistentReserveOut { action: Register, parameter_list_length: 24 };
    let cdb = PrimaryCommand::PersistentReserveOut(cut).encode();
    assert_eq!(host.fails_cdb(&cdb, &list[..10]), Sense::PARAMETER_LIST_LENGTH_ERROR);
    assert_eq!(keys(&host), (0, vec![]));
}

/// The data of a solicited write arrives a round trip or more after its admission. If another initiator
/// preempts in between, no write that was admitted before may be done.
#[test]
fn a_write_admitted_before_a_preempt_is_refused_when_its_data_arrives() {
    let (host, [one, two, _]) = three();
    assert_eq!(act(&host, &one, Reserve(WriteExclusive), 1, 0), Ok(()));
    let before = host.good(&Command::read(0, 8), &[]);
    let write = Command::write(0, 8, false).encode();
    let admitted = host.unit.admit(&one, &write, 8 * 512).expect("it holds the reservation");
    assert_eq!(act(&host, &two, Preempt(WriteExclusive), 2, 1), Ok(()));
    let task = Task { admitted, ..host.task(&one, &write, &pattern(7, 8)) };
    assert_eq!(host.run(task).status, ScsiStatus::ReservationConflict);
    let read = host.send_as(&two, &Command::read(0, 8).encode(), &[]);
    assert_eq!(read.data_in.into_bytes(), before);
}

/// The admitted command is a valid WRITE, and the CDB of the task is not: the unit must perform the admitted command.
#[test]
fn a_command_that_was_admitted_is_not_parsed_again() {
    let (host, [one, ..]) = three();
    assert_eq!(act(&host, &one, Reserve(WriteExclusive), 1, 0), Ok(()));
    let write = Command::write(8, 8, false).encode();
    let admitted = host.unit.admit(&one, &write, 8 * 512).expect("it holds the reservation");
    let task = Task { admitted, ..host.task(&one, &[0xff; 16], &pattern(7, 8)) };
    assert_eq!(host.run(task).status, ScsiStatus::Good);
    let read = host.send_as(&one, &Command::read(8, 8).encode(), &[]);
    assert_eq!(read.data_in.into_bytes(), pattern(7, 8));
}

/// SPC-4, table 66, and SBC-3, table 13: allowed (A) or conflict (C) for a nexus without access, under write
/// exclusive and under exclusive access.
const TABLE: &[(u8, Option<u16>, u8, &str)] = &[
    // Each row: opcode, service action, byte 4 of the CDB, and the two results.
    (0x00, None, 0, "AA"),
    (0x03, None, 0, "AA"),
    (0x08, None, 1, "AC"),
    (0x0a, None, 1, "CC"),
    (0x12, None, 0, "AA"),
    (0x15, None, 0, "CC"),
    // RESERVE and RELEASE of SPC-2 always conflict with a reservation of another nexus.
    (0x16, None, 0, "CC"),
    (0x17, None, 0, "CC"),
    (0x1a, None, 0, "AC"),
    (0x1b, None, 0, "CC"),
    (0x1b, None, 1, "AA"),
    (0x1b, None, 0x11, "CC"),
    (0x1e, None, 0, "AA"),
    (0x1e, None, 1, "CC"),
    (0x25, None, 0, "AA"),
    (0x28, None, 0, "AC"),
    (0x2a, None, 0, "CC"),
    (0x2e, None, 0, "CC"),
    (0x2f, None, 0, "AC"),
    (0x34, None, 0, "AC"),
    (0x35, None, 0, "CC"),
    (0x37, None, 0, "AC"),
    (0x41, None, 0, "CC"),
    (0x42, None, 0, "CC"),
    (0x48, Some(0x01), 0, "CC"),
    (0x48, Some(0x02), 0, "CC"),
    (0x48, Some(0x03), 0, "CC"),
    (0x48, Some(0x1f), 0, "CC"),
    (0x4c, None, 0, "CC"),
    (0x4d, None, 0, "AA"),
    (0x55, None, 0, "CC"),
    (0x56, None, 0, "CC"),
    (0x57, None, 0, "CC"),
    (0x5a, None, 0, "AC"),
    (0x5e, Some(0), 0, "AA"),
    (0x5e, Some(1), 0, "AA"),
    (0x5e, Some(2), 0, "AA"),
    (0x5e, Some(3), 0, "AA"),
    (0x83, Some(0x00), 0, "CC"),
    (0x83, Some(0x01), 0, "CC"),
    (0x83, Some(0x10), 0, "AC"),
    (0x83, Some(0x11), 0, "CC"),
    (0x83, Some(0x1c), 0, "CC"),
    (0x84, Some(0x00), 0, "AC"),
    (0x84, Some(0x03), 0, "AC"),
    (0x84, Some(0x04), 0, "AC"),
    (0x84, Some(0x05), 0, "AC"),
    (0x84, Some(0x07), 0, "AC"),
    (0x88, None, 0, "AC"),
    (0x89, None, 0, "CC"),
    (0x8a, None, 0, "CC"),
    (0x8b, None, 0, "CC"),
    (0x8e, None, 0, "CC"),
    (0x8f, None, 0, "AC"),
    (0x90, None, 0, "AC"),
    (0x91, None, 0, "CC"),
    (0x93, None, 0, "CC"),
    (0x9c, None, 0, "CC"),
    (0x9e, Some(0x10), 0, "AA"),
    (0x9e, Some(0x12), 0, "AC"),
    (0xa0, None, 0, "AA"),
    (0xa3, Some(0x05), 0, "AA"),
    (0xa3, Some(0x0a), 0, "AA"),
    (0xa3, Some(0x0c), 0, "AC"),
    (0xa3, Some(0x0d), 0, "AC"),
    (0xa3, Some(0x0f), 0, "AA"),
    (0xa4, Some(0x06), 0, "CC"),
    (0xa4, Some(0x0a), 0, "CC"),
    (0xa4, Some(0x0f), 0, "CC"),
    (0xa8, None, 0, "AC"),
    (0xaa, None, 0, "CC"),
    (0xae, None, 0, "CC"),
    (0xaf, None, 0, "AC"),
    (0xb7, None, 0, "AC"),
    // Vendor-specific commands of Forebay: only a nexus that may write may claim the unit.
    (0xc0, None, 0, "AA"),
    (0xc1, Some(0x00), 0, "CC"),
    (0xc1, Some(0x01), 0, "CC"),
    (0xc1, Some(0x02), 0, "CC"),
    (0xc2, None, 0, "CC"),
    (0xc3, None, 0, "AA"),
    (0xc4, None, 0, "CC"),
];

const SANITIZE: u8 = 0x48;

#[test]
fn every_command_conflicts_with_reservations_as_the_standards_require() {
    for operation in OPERATIONS.iter().filter(|o| o.opcode != 0x5f) {
        let has = |row: &&(u8, Option<u16>, u8, &str)| {
            (row.0, row.1) == (operation.opcode, operation.service_action)
        };
        assert!(TABLE.iter().any(|row| has(&row)), "not in the table: {operation:?}");
    }
    for kind in ReservationType::ALL {
        let (host, [one, two, _]) = three();
        let stranger = host.other(4);
        assert_eq!(act(&host, &one, Reserve(kind), 1, 0), Ok(()));
        for &(opcode, action, byte_4, columns) in TABLE {
            let mut cdb = [0; 16];
            (cdb[0], cdb[4]) = (opcode, byte_4);
            if let Some(action) = action {
                cdb[1] = action as u8;
            }
            let column = usize::from(kind.excludes_reading());
            let barred = columns.as_bytes()[column] == b'C';
            let conflicts = |nexus: &Nexus| {
                if opcode == SANITIZE {
                    // Only check whether the unit admits the command: a SANITIZE that begins would continue after the
                    // test.
                    let gate = host.unit.admit(nexus, &Cdb::new(&cdb), 0);
                    return gate.is_err_and(|c| c.status == ScsiStatus::ReservationConflict);
                }
                let completion = host.send_as(nexus, &cdb, &pattern(0, 1));
                completion.status == ScsiStatus::ReservationConflict
            };
            assert_eq!(conflicts(&stranger), barred, "{kind:?} {cdb:02x?}");
            let registered = barred && !kind.admits_registrants();
            assert_eq!(conflicts(&two), registered, "{kind:?} {cdb:02x?}, registered");
            assert!(!conflicts(&one), "{kind:?} {cdb:02x?}, the holder");
        }
    }
}

#[test]
fn a_reset_is_reported_before_a_conflict_and_other_conditions_after_it() {
    let (host, [one, ..]) = three();
    assert_eq!(act(&host, &one, Reserve(ExclusiveAccess), 1, 0), Ok(()));
    let read = Command::read(0, 1).encode();
    let stranger = nexus(4);
    host.unit.nexus_opened(&stranger);
    assert_eq!(host.send_as(&stranger, &read, &[]).sense, Some(Sense::POWER_ON_OCCURRED));
    let changed = Sense::REPORTED_LUNS_DATA_HAS_CHANGED;
    host.unit.change_attention(&stranger, changed, AttentionChange::Raise);
    let completion = host.send_as(&stranger, &read, &[]);
    assert_eq!((completion.status, completion.sense), (ScsiStatus::ReservationConflict, None));
    assert_eq!(host.ready_as(&stranger), Some(Sense::REPORTED_LUNS_DATA_HAS_CHANGED));
}

#[test]
fn preempt_and_abort_ends_when_no_command_of_the_preempted_nexus_is_in_progress() {
    let actions: [fn(ReservationType) -> ReserveAction; 2] = [Preempt, PreemptAndAbort];
    for (action, waits) in actions.into_iter().zip([false, true]) {
        let (host, [one, two, _]) = three();
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(act(&host, &one, Reserve(WriteExclusive), 1, 0), Ok(()));
        host.faults.add(FaultRule::always(volume::FaultCallKind::Write, Symptom::Hangs));
        let write = Command::write(0, 1, false);
        let mut on_its_way = host.unit.execute(host.task(&one, &write.encode(), &pattern(1, 1)));
        assert!(std::pin::Pin::new(&mut on_its_way).poll(&mut context).is_pending());

        let list = keys_of(2, 1).to_bytes();
        let asked =
            PersistentReserveOut { action: action(WriteExclusive), parameter_list_length: 24 };
        let cdb = PrimaryCommand::PersistentReserveOut(asked).encode();
        let mut preempting = host.unit.execute(host.task(&two, &cdb, &list));
        assert_eq!(std::pin::Pin::new(&mut preempting).poll(&mut context).is_pending(), waits);
        if waits {
            // Drop the task for whose end the PREEMPT AND ABORT waits.
            drop(on_its_way);
            assert!(std::pin::Pin::new(&mut preempting).poll(&mut context).is_ready());
        }
        drop(preempting);
        assert_eq!(host.ready_as(&one), Some(Sense::REGISTRATIONS_PREEMPTED));
        let again = host.send_as(&one, &write.encode(), &pattern(1, 1));
        assert_eq!(again.status, ScsiStatus::ReservationConflict);
        assert_eq!(held_as(&host, &two), Some((2, 1)));
    }
}
