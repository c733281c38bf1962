//! Compares the CDB of every service action with its bytes.

use osd::{OsdCdb, ServiceAction};

use crate::commands;

/// Returns the bytes of hexadecimal digits. Spaces are ignored.
pub fn unhex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("two hexadecimal digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Returns a CDB with these bytes 8 to 51, without attributes, capability and proof.
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
