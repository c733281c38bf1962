//! Compares the CDB of every service action, and data that tshark does not decode, with their bytes.

use object::{CurrentCommand, MapRun, MapRunKind, ObjectType, Timestamp};
use osd::{
    AllowedRange, Capability, OsdCdb, Permissions, ServiceAction, current_command_page, encode_map,
    parse_current_command, parse_map,
    security::{IntegrityCheckValue, SecurityMethod},
};

use crate::commands;

/// Converts hexadecimal digits to bytes. Spaces are ignored.
pub fn unhex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("two hexadecimal digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Returns a CDB with these bytes 8 to 51, without attributes, capability and integrity check
/// value.
fn cdb(fields: &str) -> Vec<u8> {
    let no_lists = "00000000ffffffff 00000000ffffffff 00000000ffffffff 00000000";
    let text = format!("7f000000000000e4 {fields} {no_lists}");
    let mut cdb = unhex(&text);
    assert_eq!(cdb.len(), 80, "{fields}");
    cdb.resize(228, 0);
    cdb.resize(236, 0xff);
    cdb
}

#[test]
fn the_cdb_of_every_service_action_has_the_golden_bytes() {
    for (command, fields) in commands::all() {
        let expected = cdb(fields);
        assert_eq!(OsdCdb::new(command).encode()[..], expected, "{command:?}");
        let parsed = OsdCdb::parse(&expected);
        assert_eq!(parsed.map(|cdb| cdb.command), Ok(command), "{fields}");
    }
}

#[test]
fn there_are_golden_bytes_for_every_service_action() {
    let code = |fields: &str| u16::from_str_radix(&fields[..4], 16).expect("a code");
    let mut codes: Vec<u16> = commands::all().iter().map(|(_, fields)| code(fields)).collect();
    assert!(codes.is_sorted());
    codes.dedup();
    let actions: Vec<u16> = ServiceAction::ALL.iter().map(|action| *action as u16).collect();
    assert_eq!(codes, actions);
}

#[test]
fn the_data_of_read_map_has_the_golden_bytes() {
    let run = |kind, start, length| MapRun { kind, start, length };
    let runs = [
        run(MapRunKind::Written, 0, 4096),
        run(MapRunKind::Hole, 4096, 1 << 40),
        run(MapRunKind::DamagedData, 1 << 41, 1),
    ];
    let expected = unhex(
        "0000000000000050 0000000000000000 \
        0001 000000000000 0000000000000000 0000000000001000 \
        0002 000000000000 0000000000001000 0000010000000000 \
        0003 000000000000 0000020000000000 0000000000000001",
    );
    assert_eq!(encode_map(&runs), expected);
    assert_eq!(parse_map(&expected).as_deref(), Some(&runs[..]));
}

#[test]
fn the_current_command_page_has_the_golden_bytes() {
    let current = CurrentCommand {
        object_type: Some(ObjectType::UserObject),
        object: commands::OBJECT,
        append_start: 0x1234,
        change_in_used: -4096,
    };
    let value = IntegrityCheckValue([0xaa; 32]);
    let expected = unhex(&format!(
        "fffffffe 00000044 {} 80 000000 0000000000010000 0000000000010001 0000000000001234 \
        fffffffffffff000",
        "aa".repeat(32)
    ));
    assert_eq!(current_command_page(&current, &value)[..], expected);
    assert_eq!(parse_current_command(&expected), Some((current, value)));
}

#[test]
fn a_capability_has_the_golden_bytes() {
    let permissions = Permissions::READ | Permissions::POLICY_SECURITY;
    let object_type = ObjectType::UserObject;
    let method = SecurityMethod::AllData;
    let capability = Capability {
        key_version: 5,
        expiration: Timestamp::from_ms(0x0102_0304_0506),
        audit: [0xaa; 20],
        discriminator: [0xdd; 12],
        created: Timestamp::from_ms(0x0708_090a_0b0c),
        policy_tag: 7,
        boot_epoch: 9,
        range: AllowedRange { start: 512, length: 4096 },
        ..Capability::for_object(commands::OBJECT, object_type, permissions, method)
    };
    let expected = unhex(&format!(
        "02 52 03 00 010203040506 {} {} 0708090a0b0c 80 8020000000 00 10 \
        00000000 00000007 0009 000000000000 0000000000010000 0000000000010001 \
        0000000000001000 0000000000000200",
        "aa".repeat(20),
        "dd".repeat(12)
    ));
    assert_eq!(capability.to_bytes()[..], expected);
    assert_eq!(Capability::parse(&expected), Ok(Some(capability)));
}
