//! Sense data of units that require descriptor format, and descriptors of objects.

use iscsi::{
    Itt, Pdu, Ttt,
    session::target::{Settings, TargetCommandOutcome},
};
use scsi::{Lun, ObjectIdentification, ObjectSense, ReceivedObjectSense, Sense};

use crate::rig::{Rig, data_out, r2ts, response};

const FIXED: u8 = 0x70;
const DESCRIPTOR: u8 = 0x72;
/// LUN 1 in two of its formats: peripheral device and flat space addressing (SAM-5, 4.7).
const OBJECTS: [Lun; 2] = [Lun(0x0001 << 48), Lun(0x4001 << 48)];
const DISK: Lun = Lun(0);

/// Makes a session in which the unit with LUN 1 requires descriptor format.
fn rig() -> Rig {
    let settings = Settings { max_transfer_bytes: 8192, ..Settings::default() };
    let mut rig = Rig::with("InitialR2T=No\nFirstBurstLength=1024\n", settings);
    rig.session.use_descriptor_sense(vec![OBJECTS[0]]);
    rig
}

#[track_caller]
fn check(pdus: &[Pdu], format: u8, expected: Sense) {
    let response = response(pdus);
    assert_eq!((response.status, response.sense[0]), (2, format));
    let sense = Sense::from_bytes(&response.sense).unwrap();
    assert!(sense.is(expected), "{sense}");
}

#[test]
fn sense_data_of_the_session_has_the_format_that_the_unit_requires() {
    for (lun, format) in [(DISK, FIXED), (OBJECTS[0], DESCRIPTOR), (OBJECTS[1], DESCRIPTOR)] {
        let mut rig = rig();
        // The unsolicited data is longer than the login permits.
        let mut command = rig.write(1, 4096, 2048, true);
        command.lun = lun;
        let pdus = rig.send(Pdu::ScsiCommand(command));
        check(&pdus, format, Sense::INCORRECT_AMOUNT_OF_DATA);
        // The write is longer than the session accepts.
        let mut command = rig.write(2, 8193, 0, true);
        command.lun = lun;
        let pdus = rig.send(Pdu::ScsiCommand(command));
        check(&pdus, format, Sense::INVALID_FIELD_IN_CDB);
        // The data that was requested is too short.
        let mut command = rig.write(3, 2048, 1024, true);
        command.lun = lun;
        assert!(rig.send(Pdu::ScsiCommand(command)).is_empty());
        let r2t = r2ts(&rig.admit(3))[0];
        assert_ne!(r2t.ttt, Ttt::NONE);
        let mut data = data_out(3, r2t.ttt, 0, 1024, 100, true);
        if let Pdu::DataOut(data) = &mut data {
            data.lun = lun;
        }
        check(&rig.send(data), format, Sense::INCORRECT_AMOUNT_OF_DATA);
        // The driver ends the command with CHECK CONDITION.
        let mut command = rig.read(4, 512);
        command.lun = lun;
        rig.deliver(command);
        let refused = TargetCommandOutcome::check_condition(Sense::LOGICAL_UNIT_NOT_SUPPORTED);
        check(&rig.complete(4, refused), format, Sense::LOGICAL_UNIT_NOT_SUPPORTED);
    }
}

#[test]
fn descriptors_of_objects_are_sent_with_the_sense_data() {
    let mut rig = rig();
    let mut command = rig.read(1, 512);
    command.lun = OBJECTS[0];
    rig.deliver(command);
    let sense = Sense::invalid_field_in_cdb(24).with_command_specific(7);
    let descriptors = ObjectSense {
        object: Some(ObjectIdentification { completed: 1, object: 2, ..Default::default() }),
        response_integrity: Some([3; 32]),
        attributes: vec![(4, 5)],
    };
    let (bytes, at) = descriptors.encode(&sense);
    let outcome = TargetCommandOutcome {
        object_sense: Some(Box::new(descriptors.clone())),
        ..TargetCommandOutcome::check_condition(sense)
    };
    let pdus = rig.complete(1, outcome);
    let sent = &response(&pdus).sense;
    assert_eq!(*sent, bytes, "the bytes over which a drive has computed its proof");
    assert_eq!(sent[at.unwrap()..][..32], [3; 32]);
    let received = ReceivedObjectSense::from_bytes(sent).unwrap();
    assert_eq!(received.descriptors, descriptors);
}

#[test]
fn an_object_command_beyond_the_limit_ends_with_sense_data_and_keeps_no_data() {
    let mut rig = rig();
    // Continuation segment, data and lists together are the Data-Out of a bidirectional command.
    let mut command = rig.write(1, 8193, 1024, false);
    (command.lun, command.read) = (OBJECTS[0], true);
    command.bidirectional_read_length = Some(4096);
    assert!(rig.send(Pdu::ScsiCommand(command)).is_empty(), "data is on its way");
    rig.no_event();
    assert_eq!(rig.session.waiting_bytes(), 0);
    let pdus = rig.send(data_out(1, Ttt::NONE, 0, 1024, 0, true));
    check(&pdus, DESCRIPTOR, Sense::INVALID_FIELD_IN_CDB);
    assert_eq!((rig.session.tasks(), rig.session.waiting_bytes()), (0, 0));
    rig.no_event();

    let mut command = rig.write(2, 8192, 1024, true);
    (command.lun, command.read) = (OBJECTS[0], true);
    command.bidirectional_read_length = Some(u32::MAX);
    assert!(rig.send(Pdu::ScsiCommand(command)).is_empty());
    let asked = r2ts(&rig.admit(2));
    assert_eq!(asked[0].itt, Itt(2), "a command at the limit is admitted");
}
