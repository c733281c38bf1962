//! Tests unit attention conditions: each nexus gets them once, before its next command is performed.

use std::sync::atomic::Ordering;

use scsi::{BlockCommand, Capacity16, Command, PrimaryCommand, ScsiStatus, Sense, SenseKey};
use unit::{LogicalUnit, TaskManagement};

use crate::host::{Host, geometry, nexus, pattern};

fn request_sense(descriptor_format: bool) -> Command {
    Command::Primary(PrimaryCommand::RequestSense { descriptor_format, allocation_length: 252 })
}

#[test]
fn a_new_nexus_receives_the_power_on_condition_once() {
    let host = Host::new(geometry());
    let other = nexus(2);
    host.unit.nexus_opened(&other);
    let write = Command::write(0, 1, false).encode();
    let first = host.send_as(&other, &write, &pattern(1, 1));
    assert_eq!(first.sense, Some(Sense::POWER_ON_OCCURRED));
    assert_eq!(host.asked(), [], "nothing was done");
    assert_eq!(host.send_as(&other, &write, &pattern(1, 1)).status, ScsiStatus::Good);
    host.good(&PrimaryCommand::TestUnitReady, &[]);
}

#[test]
fn inquiry_is_answered_and_leaves_the_condition() {
    let host = Host::new(geometry());
    let other = nexus(2);
    host.unit.nexus_opened(&other);
    let inquiry = PrimaryCommand::Inquiry { page: None, allocation_length: 96 }.encode();
    assert_eq!(host.send_as(&other, &inquiry, &[]).status, ScsiStatus::Good);
    let ready = host.send_as(&other, &PrimaryCommand::TestUnitReady.encode(), &[]);
    assert_eq!(ready.sense, Some(Sense::POWER_ON_OCCURRED));
}

#[test]
fn request_sense_returns_the_condition_as_data() {
    let host = Host::new(geometry());
    for descriptor_format in [false, true] {
        host.unit.task_management(&host.nexus, TaskManagement::LogicalUnitReset);
        let bytes = host.good(&request_sense(descriptor_format), &[]);
        assert_eq!(bytes[0], if descriptor_format { 0x72 } else { 0x70 });
        let sense = Sense::from_bytes(&bytes);
        assert_eq!(sense, Some(Sense::BUS_DEVICE_RESET_FUNCTION_OCCURRED));
        let bytes = host.good(&request_sense(descriptor_format), &[]);
        assert_eq!(Sense::from_bytes(&bytes).unwrap().key, SenseKey::NoSense);
    }
}

#[test]
fn a_reset_is_reported_to_every_nexus_including_the_one_that_requested_it() {
    let host = Host::new(geometry());
    let other = nexus(2);
    host.unit.nexus_opened(&other);
    for function in [
        TaskManagement::LogicalUnitReset,
        TaskManagement::TargetWarmReset,
        TaskManagement::TargetColdReset,
    ] {
        host.unit.task_management(&other, function);
        for nexus in [&host.nexus, &other] {
            let ready = || host.send_as(nexus, &PrimaryCommand::TestUnitReady.encode(), &[]);
            assert_eq!(
                ready().sense.map(|s| (s.key, s.asc)),
                Some((SenseKey::UnitAttention, 0x29))
            );
            assert_eq!(ready().status, ScsiStatus::Good);
        }
    }
}

#[test]
fn a_cleared_task_set_is_reported_to_the_other_nexuses() {
    let host = Host::new(geometry());
    host.unit.task_management(&nexus(2), TaskManagement::ClearTaskSet);
    let sense = Sense::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR;
    assert_eq!(host.fails(&PrimaryCommand::TestUnitReady, &[]), sense);
    host.unit.task_management(&host.nexus, TaskManagement::ClearTaskSet);
    host.unit.task_management(&host.nexus, TaskManagement::AbortTask);
    host.unit.task_management(&host.nexus, TaskManagement::AbortTaskSet);
    host.good(&PrimaryCommand::TestUnitReady, &[]);
}

#[test]
fn a_changed_capacity_is_reported_and_then_served() {
    let host = Host::new(geometry());
    host.calls.blocks.store(500, Ordering::Relaxed);
    assert_eq!(host.fails(&Command::read(0, 1), &[]), Sense::CAPACITY_DATA_HAS_CHANGED);
    let bytes = host.good(&BlockCommand::ReadCapacity16 { allocation_length: 32 }, &[]);
    assert_eq!(Capacity16::from_bytes(&bytes).unwrap().last_lba, 499);
    assert_eq!(host.fails(&Command::read(500, 1), &[]), Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE);
}

#[test]
fn a_closed_nexus_leaves_nothing_behind() {
    let host = Host::new(geometry());
    host.unit.nexus_closed(&host.nexus);
    host.unit.task_management(&host.nexus, TaskManagement::LogicalUnitReset);
    host.good(&PrimaryCommand::TestUnitReady, &[]);
    host.unit.nexus_opened(&host.nexus);
    assert_eq!(host.fails(&PrimaryCommand::TestUnitReady, &[]), Sense::POWER_ON_OCCURRED);
}

#[test]
fn an_attention_condition_is_reported_before_write_data_is_requested() {
    let host = Host::new(geometry());
    host.unit.task_management(&host.nexus, TaskManagement::LogicalUnitReset);
    let write = Command::write(0, 1, false);
    let sense = host.unit_admits(&write, 512).unwrap_err();
    assert_eq!(sense, Sense::BUS_DEVICE_RESET_FUNCTION_OCCURRED);
    assert_eq!(host.unit_admits(&write, 512), Ok(()));
}
