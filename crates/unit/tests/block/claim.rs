//! Tests CLAIM OUT and CLAIM IN: the commands that other initiators may send while a cache has claimed the unit, and
//! the claim after a restart.

use std::{
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
};

use scsi::{
    BlockCommand, ClaimAction, ClaimParameters, ClaimReport, Command, ScsiStatus, Sense, StartStop,
    VendorCommand,
};
use unit::{BlockUnit, ClaimedUnit, LogicalUnit, Nexus, Settings, UnitIdentity};
use volume::{FaultCallKind as On, FaultRule, FaultVolume, MemVolume, Symptom};

use crate::host::{Host, MemoryStore, READY, geometry, nexus, pattern};

/// START STOP UNIT with START=0: a stop.
pub const STOPPING: StartStop = StartStop {
    immediate: false,
    power_condition: 0,
    no_flush: false,
    load_eject: false,
    start: false,
};

pub fn claim(generation: u64, opening: u64, predecessors: &[u64]) -> ClaimParameters {
    ClaimParameters {
        owner: "iqn.2026-11.io.forebay:a".into(),
        instance: [1; 16],
        generation,
        opening,
        granted: if predecessors.is_empty() { 0 } else { generation - 1 },
        predecessors: predecessors.to_vec(),
        writes_back: true,
        is_dirty: false,
        accept_loss: false,
        takes_over: !predecessors.is_empty(),
        shares: false,
        confirmed: None,
    }
}

pub fn out(action: ClaimAction, asked: &ClaimParameters) -> (Command, Vec<u8>) {
    let list = asked.to_bytes();
    let parameter_list_length = list.len() as u16;
    (VendorCommand::ClaimOut { action, parameter_list_length }.into(), list)
}

/// Sends CLAIM OUT from the session `from`. Returns the sense data if the command fails.
pub fn ask(
    host: &Host,
    from: &Nexus,
    action: ClaimAction,
    asked: &ClaimParameters,
) -> Option<Sense> {
    let (command, list) = out(action, asked);
    host.send_as(from, &command.encode(), &list).sense
}

pub fn write_as(host: &Host, from: &Nexus) -> Option<Sense> {
    host.send_as(from, &Command::write(0, 1, false).encode(), &pattern(1, 1)).sense
}

pub fn report(host: &Host) -> ClaimReport {
    let length = ClaimReport::MOST_BYTES as u16;
    let bytes = host.good(&VendorCommand::ClaimIn { allocation_length: length }, &[]);
    ClaimReport::from_bytes(&bytes).expect("a report")
}

#[test]
fn only_the_owner_changes_a_claimed_unit_and_other_sessions_read() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(geometry(), &store);
    let other = host.other(2);
    assert_eq!(report(&host), ClaimReport::default());
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &claim(1, 10, &[])), None);
    assert_eq!(write_as(&host, &host.nexus), None);
    let protected = Some(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED);
    assert_eq!(write_as(&host, &other), protected);
    // The unit refuses the write before the target requests its data, too.
    let write = Command::write(0, 1, false).encode();
    let refused = host.unit.admit(&other, &write, 512).expect_err("refused");
    assert_eq!(refused.sense, protected);
    let unmap = BlockCommand::Unmap { anchor: false, parameter_list_length: 0 }.encode();
    assert_eq!(host.send_as(&other, &unmap, &[]).sense, protected);
    host.good(&Command::synchronize_cache(), &[]);
    let capacity = BlockCommand::ReadCapacity10.into();
    for allowed in [Command::read(0, 1), Command::synchronize_cache(), capacity] {
        assert_eq!(host.send_as(&other, &allowed.encode(), &[]).status, ScsiStatus::Good);
    }
    let told = report(&host);
    assert_eq!(told.owner, "iqn.2026-11.io.forebay:a");
    assert!(told.is_held && told.is_dirty && told.is_present);

    assert_eq!(ask(&host, &host.nexus, ClaimAction::Release, &claim(1, 10, &[])), None);
    assert_eq!(write_as(&host, &other), None);
    assert!(!report(&host).is_held);
}

#[test]
fn reads_of_other_sessions_during_a_claim_are_refused_if_settings_say_so() {
    let settings = Settings { reads_beside_claim: false, ..Settings::default() };
    let volume = Arc::new(MemVolume::new(geometry()));
    let store = Arc::new(MemoryStore::default());
    let unit = BlockUnit::open(volume, UnitIdentity::new("f00d"), settings, store).expect("opened");
    let (owner, other) = (nexus(1), nexus(2));
    let send = |from: &Nexus, command: &Command, data: Vec<u8>| {
        let task = crate::party::task(from, command.encode(), data);
        let mut answer = unit.execute(task);
        match std::pin::Pin::new(&mut answer).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => done,
            Poll::Pending => panic!("a volume in memory answers at once"),
        }
    };
    for nexus in [&owner, &other] {
        unit.nexus_opened(nexus);
        send(nexus, &READY, vec![]);
    }
    let (command, list) = out(ClaimAction::Claim, &claim(1, 10, &[]));
    assert_eq!(send(&owner, &command, list).status, ScsiStatus::Good);
    assert_eq!(send(&owner, &Command::read(0, 1), vec![]).status, ScsiStatus::Good);
    let refused = send(&other, &Command::read(0, 1), vec![]);
    assert_eq!(refused.status, ScsiStatus::ReservationConflict);
    assert_eq!(send(&other, &READY, vec![]).status, ScsiStatus::Good);
}

#[test]
fn a_claim_outlasts_its_session_and_a_restart() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(geometry(), &store);
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &claim(1, 10, &[])), None);
    let other = host.other(2);
    host.unit.nexus_closed(&host.nexus);
    let protected = Some(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED);
    assert_eq!(write_as(&host, &other), protected);
    drop(host);

    let host = Host::with_store(geometry(), &store);
    assert_eq!(write_as(&host, &host.nexus), protected);
    let told = report(&host);
    assert!(told.is_held && !told.is_present);
    // The log opening that holds the claim presents it again.
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &claim(1, 10, &[])), None);
    assert_eq!(write_as(&host, &host.nexus), None);
}

#[test]
fn a_succeeded_owner_is_fenced_for_writes_reads_and_flushes() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(geometry(), &store);
    let later = host.other(2);
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &claim(1, 10, &[])), None);
    assert_eq!(ask(&host, &later, ClaimAction::Claim, &claim(2, 20, &[10])), None);
    let fenced = Some(Sense::CLAIM_FENCED);
    assert_eq!(write_as(&host, &host.nexus), fenced);
    // Reads of the fenced session would be out of date, and a flush would report lost writes as stable.
    for command in [Command::read(0, 1), Command::synchronize_cache()] {
        assert_eq!(host.send(&command.encode(), &[]).sense, fenced);
    }
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &claim(1, 10, &[])), fenced);
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &claim(2, 11, &[10])), fenced);
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Release, &claim(1, 10, &[])), fenced);
    assert_eq!(write_as(&host, &later), None);
    assert_eq!(write_as(&host, &host.nexus), fenced);
}

/// CLAIM OUT ends only when the former owner's writes in progress have ended.
#[test]
fn a_claim_waits_for_writes_of_the_former_owner_in_progress() {
    let store = Arc::new(MemoryStore::default());
    let fault = FaultVolume::new(Arc::new(MemVolume::new(geometry())));
    let faults = Arc::clone(fault.faults());
    let opened =
        BlockUnit::open(Arc::new(fault), UnitIdentity::new("f00d"), Settings::default(), store);
    let unit = opened.expect("opened");
    let (owner, later) = (nexus(1), nexus(2));
    let mut context = Context::from_waker(Waker::noop());
    let mut send = |from: &Nexus, command: &Command, data: Vec<u8>| {
        let mut answer = unit.execute(crate::party::task(from, command.encode(), data));
        let first = std::pin::Pin::new(&mut answer).poll(&mut context);
        (answer, first)
    };
    for nexus in [&owner, &later] {
        unit.nexus_opened(nexus);
        let _ = send(nexus, &READY, vec![]);
    }
    let (command, list) = out(ClaimAction::Claim, &claim(1, 10, &[]));
    assert!(send(&owner, &command, list).1.is_ready());
    faults.add(FaultRule::always(On::Write, Symptom::Hangs).times(1));
    let (write, first) = send(&owner, &Command::write(0, 1, false), pattern(1, 1));
    assert!(first.is_pending());
    let (command, list) = out(ClaimAction::Claim, &claim(2, 20, &[10]));
    let (mut claimed, first) = send(&later, &command, list);
    assert!(first.is_pending(), "the write is still in progress");
    // Writes of the former owner that arrive during the CLAIM OUT wait, and are then refused.
    let (mut late, first) = send(&owner, &Command::write(0, 1, false), pattern(2, 1));
    assert!(first.is_pending());
    drop(write);
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(done) = std::pin::Pin::new(&mut claimed).poll(&mut context) else {
        panic!("it has ended")
    };
    assert_eq!(done.status, ScsiStatus::Good);
    drop(claimed);
    let Poll::Ready(done) = std::pin::Pin::new(&mut late).poll(&mut context) else {
        panic!("the late write still waits")
    };
    assert_eq!(done.sense, Some(Sense::CLAIM_FENCED));
}

/// Two gateways with copies of one log claim the unit in either order: only one of them can write.
#[test]
fn of_two_gateways_with_one_log_never_both_write() {
    for first in [1, 2] {
        let store = Arc::new(MemoryStore::default());
        let host = Host::with_store(geometry(), &store);
        let other = host.other(2);
        let (a, b) = (claim(5, 50, &[]), claim(5, 51, &[]));
        let both = [(&host.nexus, &a), (&other, &b)];
        for turn in 0..6 {
            let (nexus, asked) = both[(first + turn) % 2];
            ask(&host, nexus, ClaimAction::Claim, asked);
            let written = both.map(|(nexus, _)| write_as(&host, nexus).is_none());
            assert_eq!(written.iter().filter(|written| **written).count(), 1, "{first} {turn}");
        }
    }
}

#[test]
fn a_claim_that_cannot_be_saved_is_not_granted() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(geometry(), &store);
    let other = host.other(2);
    store.broken.store(true, Ordering::Relaxed);
    let failed = ask(&host, &host.nexus, ClaimAction::Claim, &claim(1, 10, &[]));
    assert_eq!(failed, Some(Sense::INTERNAL_TARGET_FAILURE));
    assert_eq!(write_as(&host, &other), None);
    store.broken.store(false, Ordering::Relaxed);
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &claim(1, 10, &[])), None);
}

#[test]
fn when_the_operator_drops_a_claim_its_owner_is_fenced() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(geometry(), &store);
    let other = host.other(2);
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &claim(1, 10, &[])), None);
    let mut dropping = Box::pin(host.unit.drop_claim());
    let dropped = dropping.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(dropped, Poll::Ready(Ok(()))));
    assert_eq!(write_as(&host, &other), None);
    assert_eq!(write_as(&host, &host.nexus), Some(Sense::CLAIM_FENCED));
    let again = ask(&host, &host.nexus, ClaimAction::Claim, &claim(2, 20, &[10]));
    assert_eq!(again, Some(Sense::CLAIM_DROPPED));
    let told = host.unit.claim_report().expect("told");
    assert!(told.is_dropped && !told.is_held);
}

#[test]
fn damaged_parameter_lists_change_nothing() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(geometry(), &store);
    let (command, list) = out(ClaimAction::Claim, &claim(1, 10, &[]));
    assert_eq!(host.fails(&command, &list[..list.len() - 1]), Sense::PARAMETER_LIST_LENGTH_ERROR);
    let mut damaged = list.clone();
    damaged[33] ^= 1;
    assert_eq!(host.fails(&command, &damaged), Sense::INVALID_FIELD_IN_PARAMETER_LIST);
    assert_eq!(host.unit.claim_report(), None);
    assert!(store.records.lock().is_empty());
}

#[test]
fn a_unit_without_a_store_has_no_claims() {
    let host = Host::new(geometry());
    let (command, list) = out(ClaimAction::Claim, &claim(1, 10, &[]));
    assert_eq!(host.fails(&command, &list), Sense::INVALID_COMMAND_OPERATION_CODE);
    let asked = VendorCommand::ClaimIn { allocation_length: 64 };
    assert_eq!(host.fails(&asked, &[]), Sense::INVALID_COMMAND_OPERATION_CODE);
}

#[test]
fn only_the_owner_of_a_claim_can_eject_the_medium() {
    let store = Arc::new(MemoryStore::default());
    let removable = Settings { removable: true, ..Settings::default() };
    let host = Host::with_store_and_settings(geometry(), removable, &store);
    let other = host.other(2);
    let eject = BlockCommand::StartStop(StartStop { load_eject: true, ..STOPPING }).encode();
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &claim(1, 10, &[])), None);
    assert_eq!(host.send_as(&other, &eject, &[]).sense, Some(Sense::MEDIUM_REMOVAL_PREVENTED));
    assert_eq!(write_as(&host, &host.nexus), None, "the medium is still there");
    assert_eq!(host.send(&eject, &[]).status, ScsiStatus::Good);
}

pub fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a volume in memory answers at once"),
    }
}

/// A confirmed number is stable before ADVANCE is answered, and only the claim's owner raises it.
#[test]
fn a_confirmed_number_outlasts_a_restart_and_is_raised_by_the_holder_alone() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(geometry(), &store);
    let at = |confirmed| ClaimParameters { confirmed: Some(confirmed), ..claim(1, 10, &[]) };
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &at(3)), None);
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Advance, &at(8)), None);
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Advance, &at(7)), None, "never back");
    let other = host.other(2);
    let fenced = Some(Sense::CLAIM_FENCED);
    assert_eq!(ask(&host, &other, ClaimAction::Advance, &at(99)), fenced);
    let stranger = ClaimParameters { opening: 11, ..at(99) };
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Advance, &stranger), fenced);
    drop(host);
    let host = Host::with_store(geometry(), &store);
    let next = |confirmed| ClaimParameters { confirmed: Some(confirmed), ..claim(2, 20, &[10]) };
    let behind = Some(Sense::CLAIM_BEHIND.with_information(8));
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &next(7)), behind);
    assert_eq!(ask(&host, &host.nexus, ClaimAction::Claim, &next(8)), None);
}
