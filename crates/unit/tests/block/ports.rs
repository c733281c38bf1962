//! Tests the commands that report the target ports and their group.

use scsi::{
    Command, PrimaryCommand, ReportTargetPortGroups, Sense,
    inquiry::StandardInquiry,
    vpd::{DesignatorKind, DeviceIdentification},
};
use unit::{AttentionChange, LogicalUnit};

use crate::host::{Host, geometry, nexus};

fn set(list: &[u8]) -> Command {
    Command::Primary(PrimaryCommand::SetTargetPortGroups {
        parameter_list_length: list.len() as u32,
    })
}

#[test]
fn the_unit_has_one_port_group_that_is_active_and_optimized() {
    let host = Host::new(geometry());
    let report = ReportTargetPortGroups { extended: false, allocation_length: 255 };
    let bytes = host.good(&PrimaryCommand::ReportTargetPortGroups(report), &[]);
    assert_eq!(bytes, [0, 0, 0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]);
    let bytes = host.good(&PrimaryCommand::Inquiry { page: None, allocation_length: 96 }, &[]);
    assert_eq!(StandardInquiry::from_bytes(&bytes).unwrap().target_port_groups, 3);
    let bytes =
        host.good(&PrimaryCommand::Inquiry { page: Some(0x83), allocation_length: 255 }, &[]);
    let names = DeviceIdentification::from_bytes(&bytes).unwrap();
    let group = names.0.iter().find(|d| d.kind == DesignatorKind::TargetPortGroup).unwrap();
    assert_eq!(group.name, [0, 0, 0, 1]);
}

#[test]
fn the_port_group_can_only_be_set_to_its_current_state() {
    let host = Host::new(geometry());
    let active = [0, 0, 0, 0, 0, 0, 0, 1];
    host.good(&set(&active), &active);
    host.good(&set(&[]), &[]);
    for wrong in [[0, 0, 0, 0, 2, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0, 9]] {
        assert_eq!(host.fails(&set(&wrong), &wrong), Sense::INVALID_FIELD_IN_PARAMETER_LIST);
    }
    assert_eq!(host.fails(&set(&active[..7]), &active[..7]), Sense::PARAMETER_LIST_LENGTH_ERROR);
}

#[test]
fn the_queried_port_reports_its_own_identifiers() {
    let host = Host::new(geometry());
    let elsewhere = unit::Nexus { target_port: 7, ..nexus(9) };
    host.unit.nexus_opened(&elsewhere);
    let cdb = PrimaryCommand::Inquiry { page: Some(0x83), allocation_length: 255 }.encode();
    let bytes = host.send_as(&elsewhere, &cdb, &[]).data_in.into_bytes();
    let names = DeviceIdentification::from_bytes(&bytes).unwrap();
    let find = |kind| names.0.iter().find(|d| d.kind == kind).unwrap();
    assert_eq!(find(DesignatorKind::RelativeTargetPort).name, [0, 0, 0, 7]);
    let port = &find(DesignatorKind::ScsiNameString).name;
    assert!(port.starts_with(b"iqn.2026-11.io.forebay:a,t,0x0007\0"));
}

#[test]
fn the_functions_of_task_management() {
    let host = Host::new(geometry());
    for (extended, length) in [(false, 4), (true, 16)] {
        let command = PrimaryCommand::ReportTaskFunctions { extended, allocation_length: 255 };
        let bytes = host.good(&command, &[]);
        assert_eq!((bytes[0], bytes.len()), (0xda, length));
    }
}

#[test]
fn added_and_removed_units_are_reported_to_every_session() {
    let host = Host::new(geometry());
    let other = host.other(2);
    for nexus in [&host.nexus, &other] {
        let changed = Sense::REPORTED_LUNS_DATA_HAS_CHANGED;
        host.unit.change_attention(nexus, changed, AttentionChange::Raise);
        assert_eq!(host.ready_as(nexus), Some(Sense::REPORTED_LUNS_DATA_HAS_CHANGED));
        assert_eq!(host.ready_as(nexus), None);
    }
}
