//! Tests ejecting, loading and preventing removal of a medium, also on a unit without a removable medium.

use scsi::{
    BlockCommand, Command, OPERATIONS, PrimaryCommand, Sense, StartStop, inquiry::StandardInquiry,
};
use unit::{LogicalUnit, Settings, TaskManagement};

use crate::host::{Call, Host, geometry};

fn start_stop(load_eject: bool, start: bool) -> Command {
    Command::Block(BlockCommand::StartStop(StartStop {
        immediate: false,
        power_condition: 0,
        no_flush: false,
        load_eject,
        start,
    }))
}

fn eject() -> Command {
    start_stop(true, false)
}

fn load() -> Command {
    start_stop(true, true)
}

fn removable() -> Host {
    Host::with_settings(geometry(), Settings { removable: true, ..Settings::default() })
}

#[test]
fn without_its_medium_the_unit_is_not_ready() {
    let host = removable();
    let other = host.other(2);
    let bytes = host.good(&PrimaryCommand::Inquiry { page: None, allocation_length: 96 }, &[]);
    assert!(StandardInquiry::from_bytes(&bytes).unwrap().removable);
    host.good(&eject(), &[]);
    assert_eq!(host.asked(), [Call::Flush], "earlier writes are made stable first");
    for command in [
        Command::Primary(PrimaryCommand::TestUnitReady),
        Command::read(0, 1),
        Command::Block(BlockCommand::ReadCapacity10),
    ] {
        assert_eq!(host.fails(&command, &[]), Sense::MEDIUM_NOT_PRESENT, "{command:?}");
    }
    assert_eq!(host.asked(), []);
    host.good(&load(), &[]);
    host.good(&PrimaryCommand::TestUnitReady, &[]);
    assert_eq!(host.ready_as(&other), Some(Sense::MEDIUM_MAY_HAVE_CHANGED));
    assert_eq!(host.ready_as(&other), None);
}

#[test]
fn every_command_that_uses_blocks_needs_the_medium() {
    let host = removable();
    host.good(&eject(), &[]);
    let about_the_unit = [
        0x03, 0x12, 0x15, 0x16, 0x17, 0x1a, 0x1b, 0x1e, 0x4c, 0x4d, 0x55, 0x56, 0x57, 0x5a, 0x5e,
        0x5f, 0x84, 0xa0, 0xa3, 0xa4,
    ];
    for operation in OPERATIONS.iter().filter(|o| !about_the_unit.contains(&o.opcode)) {
        let mut cdb = [0; 16];
        cdb[0] = operation.opcode;
        cdb[1] = operation.service_action.unwrap_or(0) as u8;
        assert_eq!(host.fails_cdb(&cdb, &[]), Sense::MEDIUM_NOT_PRESENT, "{operation:?}");
    }
}

#[test]
fn one_session_that_prevents_removal_prevents_it_for_all() {
    let host = removable();
    let other = host.other(2);
    let prevented = Sense::MEDIUM_REMOVAL_PREVENTED;
    host.good(&BlockCommand::PreventAllow { prevent: true }, &[]);
    let refused = host.send_as(&other, &eject().encode(), &[]).sense.unwrap();
    assert!(refused.is(prevented));
    assert_eq!(host.fails(&eject(), &[]), prevented);
    host.good(&PrimaryCommand::TestUnitReady, &[]);
    host.send_as(&other, &BlockCommand::PreventAllow { prevent: false }.encode(), &[]);
    assert_eq!(host.fails(&eject(), &[]), prevented, "it was not the other's to allow");
    host.good(&BlockCommand::PreventAllow { prevent: false }, &[]);
    host.good(&eject(), &[]);
    host.good(&BlockCommand::PreventAllow { prevent: true }, &[]);
    assert_eq!(host.fails(&load(), &[]), prevented, "in neither direction");
}

#[test]
fn the_end_of_a_session_and_a_reset_allow_removal_of_the_medium() {
    let host = removable();
    let other = host.other(2);
    let prevent = BlockCommand::PreventAllow { prevent: true };
    host.send_as(&other, &prevent.encode(), &[]);
    host.unit.nexus_closed(&other);
    host.good(&eject(), &[]);
    host.good(&load(), &[]);
    for function in [TaskManagement::LogicalUnitReset, TaskManagement::TargetWarmReset] {
        host.good(&prevent, &[]);
        host.unit.task_management(&host.nexus, function);
        assert!(host.ready_as(&host.nexus).is_some());
        host.good(&eject(), &[]);
        host.good(&load(), &[]);
    }
}

#[test]
fn a_stop_and_a_power_condition_leave_the_unit_ready() {
    let host = Host::new(geometry());
    host.good(&start_stop(false, false), &[]);
    assert_eq!(host.asked(), [Call::Flush]);
    host.good(&start_stop(false, true), &[]);
    for power_condition in 1..16 {
        let asked = StartStop {
            immediate: false,
            power_condition,
            no_flush: false,
            load_eject: true,
            start: false,
        };
        host.good(&BlockCommand::StartStop(asked), &[]);
    }
    host.good(&PrimaryCommand::TestUnitReady, &[]);
    assert_eq!(host.fails(&eject(), &[]), Sense::INVALID_FIELD_IN_CDB, "nothing to eject");
}
