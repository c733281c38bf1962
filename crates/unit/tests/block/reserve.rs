//! Tests RESERVE and RELEASE of SPC-2, and their combination with persistent reservations (CRH).

use scsi::{
    BlockCommand, Command, PersistentReserveIn, PersistentReserveOut, PrimaryCommand, ScsiStatus,
    Sense,
    persistent::{OutParameters, ReservationType, ReserveAction, ReserveReport},
};
use unit::{LogicalUnit, Nexus, TaskManagement};

use crate::host::{Host, geometry};

fn status(host: &Host, nexus: &Nexus, command: &Command) -> ScsiStatus {
    host.send_as(nexus, &command.encode(), &[]).status
}

const RESERVE: Command = Command::Primary(PrimaryCommand::Reserve { ten: false });
const RELEASE: Command = Command::Primary(PrimaryCommand::Release { ten: false });

#[test]
fn one_session_reserves_and_the_others_conflict() {
    let host = Host::new(geometry());
    let (one, two) = (host.nexus.clone(), host.other(2));
    for ten in [false, true] {
        let (reserve, release) = (
            Command::Primary(PrimaryCommand::Reserve { ten }),
            Command::Primary(PrimaryCommand::Release { ten }),
        );
        assert_eq!(status(&host, &one, &reserve), ScsiStatus::Good);
        assert_eq!(status(&host, &one, &reserve), ScsiStatus::Good, "the same again");
        assert_eq!(status(&host, &two, &reserve), ScsiStatus::ReservationConflict);
        for command in [
            Command::read(0, 1),
            Command::Primary(PrimaryCommand::TestUnitReady),
            Command::Block(BlockCommand::ReadCapacity10),
        ] {
            let harmless = command == Command::Block(BlockCommand::ReadCapacity10);
            let expected =
                if harmless { ScsiStatus::Good } else { ScsiStatus::ReservationConflict };
            assert_eq!(status(&host, &two, &command), expected, "{command:?}");
            assert_eq!(status(&host, &one, &command), ScsiStatus::Good);
        }
        assert_eq!(status(&host, &two, &release), ScsiStatus::Good, "changes nothing");
        assert_eq!(status(&host, &two, &Command::read(0, 1)), ScsiStatus::ReservationConflict);
        assert_eq!(status(&host, &one, &release), ScsiStatus::Good);
        assert_eq!(status(&host, &two, &Command::read(0, 1)), ScsiStatus::Good);
    }
}

#[test]
fn a_reservation_ends_with_its_session_or_a_reset() {
    for function in
        [None, Some(TaskManagement::LogicalUnitReset), Some(TaskManagement::TargetColdReset)]
    {
        let host = Host::new(geometry());
        let two = host.other(2);
        assert_eq!(status(&host, &host.nexus, &RESERVE), ScsiStatus::Good);
        match function {
            None => host.unit.nexus_closed(&host.nexus),
            Some(function) => {
                host.unit.task_management(&two, function);
                assert!(host.ready_as(&two).is_some());
            }
        }
        assert_eq!(status(&host, &two, &Command::read(0, 1)), ScsiStatus::Good);
    }
}

#[test]
fn both_kinds_of_reservation_do_not_mix() {
    let host = Host::new(geometry());
    let (one, two) = (host.nexus.clone(), host.other(2));
    let keys = PersistentReserveIn { report: ReserveReport::Keys, allocation_length: 255 };
    let keys = Command::Primary(PrimaryCommand::PersistentReserveIn(keys));
    assert_eq!(status(&host, &one, &RESERVE), ScsiStatus::Good);
    assert_eq!(status(&host, &one, &keys), ScsiStatus::ReservationConflict);
    assert_eq!(status(&host, &two, &keys), ScsiStatus::ReservationConflict);
    assert_eq!(status(&host, &one, &RELEASE), ScsiStatus::Good);

    let out = |nexus: &Nexus, action, key, action_key| {
        let list = OutParameters { key, action_key, ..OutParameters::default() }.to_bytes();
        let asked = PersistentReserveOut { action, parameter_list_length: 24 };
        let cdb = PrimaryCommand::PersistentReserveOut(asked).encode();
        assert_eq!(host.send_as(nexus, &cdb, &list).status, ScsiStatus::Good);
    };
    out(&one, ReserveAction::Register, 0, 1);
    assert_eq!(status(&host, &one, &RESERVE), ScsiStatus::ReservationConflict, "nothing is held");
    out(&two, ReserveAction::Register, 0, 2);
    let kind = ReservationType::WriteExclusiveRegistrantsOnly;
    out(&one, ReserveAction::Reserve(kind), 1, 0);
    let stranger = host.other(3);
    for command in [RESERVE, RELEASE] {
        assert_eq!(
            status(&host, &one, &command),
            ScsiStatus::Good,
            "the nexus already has this access"
        );
        assert_eq!(status(&host, &two, &command), ScsiStatus::Good, "it is admitted");
        assert_eq!(status(&host, &stranger, &command), ScsiStatus::ReservationConflict);
    }
    assert_eq!(status(&host, &stranger, &Command::read(0, 1)), ScsiStatus::Good, "write exclusive");
}

#[test]
fn reservations_of_extents_and_third_parties_are_refused() {
    let host = Host::new(geometry());
    for cdb in [[0x16, 1, 0, 0, 0, 0], [0x16, 0x10, 0, 0, 0, 0], [0x17, 0x12, 0, 0, 0, 0]] {
        assert_eq!(host.fails_cdb(&cdb, &[]), Sense::INVALID_FIELD_IN_CDB);
    }
}
