//! Task attributes, and tasks that are dropped half way.

use std::task::{Context, Poll, Waker};

use scsi::{Cdb, Command, Lun, Status};
use unit::{Answer, LogicalUnit, Task, TaskAttribute};
use volume::{Call as On, Extent, Geometry, Lba, Rule, Symptom};

use crate::host::{Call, Host, geometry, pattern};

fn start<'a>(host: &'a Host, command: &Command, attribute: TaskAttribute) -> Answer<'a> {
    host.unit.execute(Task {
        nexus: host.nexus.clone(),
        lun: Lun(0),
        cdb: Cdb::new(&command.encode()),
        attribute,
        data_out: pattern(1, 1).into(),
        data_in_capacity: u32::MAX,
    })
}

fn status(running: &mut Answer<'_>) -> Option<Status> {
    match std::pin::Pin::new(running).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(completion) => Some(completion.status),
        Poll::Pending => None,
    }
}

/// A host whose block 7 does not answer.
fn host_that_hangs_at_7() -> Host {
    hanging_at_7(Host::new(geometry()))
}

fn host_with_epochs_that_hangs_at_7() -> Host {
    hanging_at_7(Host::new(Geometry { epoch_blocks: 800, ..geometry() }))
}

fn hanging_at_7(host: Host) -> Host {
    let extent = Extent { lba: Lba(7), blocks: 1 };
    host.faults.add(Rule::always(On::Any, Symptom::Hangs).at(extent));
    host
}

#[test]
fn simple_tasks_do_not_wait_for_each_other() {
    let host = host_that_hangs_at_7();
    let mut hanging = start(&host, &Command::write(7, 1, false), TaskAttribute::Simple);
    assert_eq!(status(&mut hanging), None);
    let mut other = start(&host, &Command::write(8, 1, false), TaskAttribute::Simple);
    assert_eq!(status(&mut other), Some(Status::Good));
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
    assert_eq!(status(&mut urgent), Some(Status::Good));

    // The first is aborted, as a driver does it.
    drop(hanging);
    assert_eq!(status(&mut after), None);
    assert_eq!(status(&mut ordered), Some(Status::Good));
    assert_eq!(status(&mut after), Some(Status::Good));
    let order: Vec<u64> = host
        .asked()
        .iter()
        .map(|call| if let Call::Write(lba, ..) = call { *lba } else { u64::MAX })
        .collect();
    assert_eq!(order, [7, 10, 8, 9]);
}

#[test]
fn a_waiting_ordered_task_that_is_aborted_lets_the_rest_go_on() {
    let host = host_that_hangs_at_7();
    let mut hanging = start(&host, &Command::write(7, 1, false), TaskAttribute::Simple);
    assert_eq!(status(&mut hanging), None);
    let mut ordered = start(&host, &Command::write(8, 1, false), TaskAttribute::Ordered);
    assert_eq!(status(&mut ordered), None);
    drop(ordered);
    let mut after = start(&host, &Command::write(9, 1, false), TaskAttribute::Simple);
    assert_eq!(status(&mut after), Some(Status::Good));
}

/// A write has many steps below: none of them may be given up without the others.
#[test]
fn a_roll_back_waits_for_writes_that_have_begun() {
    let host = host_with_epochs_that_hangs_at_7();
    let mut hanging = start(&host, &Command::write(7, 1, false), TaskAttribute::Simple);
    assert_eq!(status(&mut hanging), None);
    let mut rolling = start(&host, &Command::RollBack, TaskAttribute::Simple);
    assert_eq!(status(&mut rolling), None);
    let mut after = start(&host, &Command::write(9, 1, false), TaskAttribute::Simple);
    assert_eq!(status(&mut after), None);
    drop(hanging);
    assert_eq!(status(&mut rolling), Some(Status::Good));
    assert_eq!(status(&mut after), Some(Status::Good));
    let asked = host.asked();
    let at = |wanted: &dyn Fn(&Call) -> bool| asked.iter().position(wanted).expect("asked");
    let rolled_back = at(&|call| *call == Call::RollBack);
    assert!(at(&|call| matches!(call, Call::Write(7, ..))) < rolled_back);
    assert!(rolled_back < at(&|call| matches!(call, Call::Write(9, ..))));
}
