//! Tests the order in which tasks run by their attributes, also if a running task is dropped.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use scsi::{
    BlockCommand, Cdb, ClaimAction, ClaimParameters, Command, Lun, ScsiStatus, VendorCommand,
};
use unit::{LogicalUnit, Task, TaskAttribute, UnitReply};
use volume::{Extent, FaultCallKind as On, FaultRule, Geometry, Lba, Symptom};

use crate::host::{Call, Host, MemoryStore, geometry, pattern};

fn start<'a>(host: &'a Host, command: &Command, attribute: TaskAttribute) -> UnitReply<'a> {
    host.unit.execute(Task {
        nexus: host.nexus.clone(),
        lun: Lun(0),
        cdb: Cdb::new(&command.encode()),
        attribute,
        data_out: pattern(1, 1).into(),
        data_in_capacity: u32::MAX,
        admitted: None,
    })
}

fn status(running: &mut UnitReply<'_>) -> Option<ScsiStatus> {
    match std::pin::Pin::new(running).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(completion) => Some(completion.status),
        Poll::Pending => None,
    }
}

/// Returns a host of a unit whose volume never answers calls on block 7.
fn host_that_hangs_at_7() -> Host {
    hanging_at_7(Host::new(geometry()))
}

fn host_with_epochs_that_hangs_at_7() -> Host {
    hanging_at_7(Host::new(Geometry { epoch_blocks: 800, ..geometry() }))
}

fn hanging_at_7(host: Host) -> Host {
    let extent = Extent { lba: Lba(7), blocks: 1 };
    host.faults.add(FaultRule::always(On::Any, Symptom::Hangs).at(extent));
    host
}

#[test]
fn simple_tasks_do_not_wait_for_each_other() {
    let host = host_that_hangs_at_7();
    let mut hanging = start(&host, &Command::write(7, 1, false), TaskAttribute::Simple);
    assert_eq!(status(&mut hanging), None);
    let mut other = start(&host, &Command::write(8, 1, false), TaskAttribute::Simple);
    assert_eq!(status(&mut other), Some(ScsiStatus::Good));
}

#[test]
fn an_ordered_task_waits_and_those_after_it_wait_for_it() {
    let host = host_that_hangs_at_7();
    let mut hanging = start(&host, &Command::write(7, 1, false), TaskAttribute::Simple);
    assert_eq!(status(&mut hanging), None);
    let mut ordered = start(&host, &Command::write(8, 1, false), TaskAttribute::Ordered);
    assert_eq!(status(&mut ordered), None);
    let mut after = start(&host, &Command::write(9, 1, false), TaskAttribute::Simple);
    assert_eq!(status(&mut after), None);
    let mut urgent = start(&host, &Command::write(10, 1, false), TaskAttribute::HeadOfQueue);
    assert_eq!(status(&mut urgent), Some(ScsiStatus::Good));

    // Drop the future of the first task, which aborts it, as a driver does.
    drop(hanging);
    assert_eq!(status(&mut after), None);
    assert_eq!(status(&mut ordered), Some(ScsiStatus::Good));
    assert_eq!(status(&mut after), Some(ScsiStatus::Good));
    let order: Vec<u64> = host
        .asked()
        .iter()
        .map(|call| if let Call::Write(lba, ..) = call { *lba } else { u64::MAX })
        .collect();
    assert_eq!(order, [7, 10, 8, 9]);
}

#[test]
fn a_waiting_ordered_task_that_is_aborted_unblocks_later_tasks() {
    let host = host_that_hangs_at_7();
    let mut hanging = start(&host, &Command::write(7, 1, false), TaskAttribute::Simple);
    assert_eq!(status(&mut hanging), None);
    let mut ordered = start(&host, &Command::write(8, 1, false), TaskAttribute::Ordered);
    assert_eq!(status(&mut ordered), None);
    drop(ordered);
    let mut after = start(&host, &Command::write(9, 1, false), TaskAttribute::Simple);
    assert_eq!(status(&mut after), Some(ScsiStatus::Good));
}

/// A write makes several calls on the volume: a roll-back must discard all of them or none.
#[test]
fn a_roll_back_waits_for_writes_that_have_begun() {
    let host = host_with_epochs_that_hangs_at_7();
    let mut hanging = start(&host, &Command::write(7, 1, false), TaskAttribute::Simple);
    assert_eq!(status(&mut hanging), None);
    let mut rolling =
        start(&host, &Command::Vendor(VendorCommand::RollBack), TaskAttribute::Simple);
    assert_eq!(status(&mut rolling), None);
    let mut after = start(&host, &Command::write(9, 1, false), TaskAttribute::Simple);
    assert_eq!(status(&mut after), None);
    drop(hanging);
    assert_eq!(status(&mut rolling), Some(ScsiStatus::Good));
    assert_eq!(status(&mut after), Some(ScsiStatus::Good));
    let asked = host.asked();
    let at = |wanted: &dyn Fn(&Call) -> bool| asked.iter().position(wanted).expect("asked");
    let rolled_back = at(&|call| *call == Call::RollBack);
    assert!(at(&|call| matches!(call, Call::Write(7, ..))) < rolled_back);
    assert!(rolled_back < at(&|call| matches!(call, Call::Write(9, ..))));
}

/// Returns a host whose session is the exclusive writer of a unit with epochs.
fn owner(hanging: Option<FaultRule>) -> Host {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(Geometry { epoch_blocks: 800, ..geometry() }, &store);
    let claim = ClaimParameters {
        owner: "iqn.2026-11.io.forebay:a".into(),
        instance: [1; 16],
        generation: 1,
        opening: 10,
        granted: 0,
        predecessors: Vec::new(),
        writes_back: true,
        is_dirty: false,
        accept_loss: false,
        takes_over: false,
        shares: false,
        confirmed: None,
    };
    let list = claim.to_bytes();
    let action = ClaimAction::Claim;
    let parameter_list_length = list.len() as u16;
    host.good(&VendorCommand::ClaimOut { action, parameter_list_length }, &list);
    hanging.into_iter().for_each(|rule| host.faults.add(rule));
    host.asked();
    host
}

#[test]
fn writes_of_an_owner_after_its_flush_wait_for_the_end_of_the_flush() {
    let host = owner(Some(FaultRule::always(On::Flush, Symptom::Hangs).times(1)));
    let mut flush = start(&host, &Command::synchronize_cache(), TaskAttribute::Simple);
    assert_eq!(status(&mut flush), None);
    let mut write = start(&host, &Command::write(9, 1, false), TaskAttribute::Simple);
    assert_eq!(status(&mut write), None);
    let mut discard = start(&host, &unmap(), TaskAttribute::Simple);
    assert_eq!(status(&mut discard), None);
    assert_eq!(host.asked(), [Call::Flush], "nothing was changed");
    let mut read = start(&host, &Command::read(9, 1), TaskAttribute::Simple);
    assert_eq!(status(&mut read), Some(ScsiStatus::Good), "reads do not wait");
    drop(flush);
    assert_eq!(status(&mut write), Some(ScsiStatus::Good));
    assert!(status(&mut discard).is_some(), "it does not wait any more");
    let mut next = start(&host, &Command::synchronize_cache(), TaskAttribute::Simple);
    assert_eq!(status(&mut next), Some(ScsiStatus::Good));
}

/// The flush waits behind an ordered command. A write that arrives after the flush must not be performed before it.
#[test]
fn a_flush_that_waits_for_its_turn_is_performed_before_later_writes() {
    let extent = Extent { lba: Lba(7), blocks: 1 };
    let host = owner(Some(FaultRule::always(On::Any, Symptom::Hangs).at(extent)));
    let mut hanging = start(&host, &Command::write(7, 1, false), TaskAttribute::Simple);
    assert_eq!(status(&mut hanging), None);
    let mut ordered = start(&host, &Command::write(8, 1, false), TaskAttribute::Ordered);
    assert_eq!(status(&mut ordered), None);
    let mut flush = start(&host, &Command::synchronize_cache(), TaskAttribute::Simple);
    let mut write = start(&host, &Command::write(9, 1, false), TaskAttribute::Simple);
    drop(hanging);
    // Poll the write before the flush, so that the write asks for its turn first. It must wait all the same.
    assert_eq!(status(&mut ordered), Some(ScsiStatus::Good));
    assert_eq!(status(&mut write), None);
    assert_eq!(status(&mut flush), Some(ScsiStatus::Good));
    assert_eq!(status(&mut write), Some(ScsiStatus::Good));
    let order: Vec<u64> = host
        .asked()
        .iter()
        .filter_map(|call| match call {
            Call::Write(lba, ..) => Some(*lba),
            Call::Flush => Some(u64::MAX),
            _ => None,
        })
        .collect();
    assert_eq!(order, [7, 8, u64::MAX, 9]);
}

#[test]
fn writes_without_a_claim_do_not_wait_for_a_flush() {
    let store = Arc::new(MemoryStore::default());
    let host = Host::with_store(Geometry { epoch_blocks: 800, ..geometry() }, &store);
    host.faults.add(FaultRule::always(On::Flush, Symptom::Hangs).times(1));
    let mut flush = start(&host, &Command::synchronize_cache(), TaskAttribute::Simple);
    assert_eq!(status(&mut flush), None);
    let mut write = start(&host, &Command::write(9, 1, false), TaskAttribute::Simple);
    assert_eq!(status(&mut write), Some(ScsiStatus::Good));
}

fn unmap() -> Command {
    Command::Block(BlockCommand::Unmap { anchor: false, parameter_list_length: 0 })
}
