//! Tests tables with variable-length CDBs, whose service action has 16 bits.

use scsi::{
    OperationCodeEntry, OperationRow, OperationTable, Sense, VARIABLE_LENGTH_CDB,
    supported_operation, supported_operations, unknown_operation,
};

/// Service actions of the tests: some object commands with gaps between them, and other commands before and after.
const ACTIONS: [u16; 5] = [0x8880, 0x8881, 0x8885, 0x8892, 0x8f7d];
const LENGTH: usize = 236;
static USAGE: [u8; LENGTH] = {
    let mut usage = [0xff; LENGTH];
    usage[0] = VARIABLE_LENGTH_CDB;
    usage[1] = 0x04;
    usage
};

type Row = OperationRow<u16>;

const fn variable(action: u16) -> Row {
    OperationRow::new(OperationCodeEntry::variable_length(action, &USAGE, 1, 30), |cdb| {
        assert_eq!(cdb.len(), LENGTH);
        Ok(u16::from_be_bytes([cdb[8], cdb[9]]))
    })
}

const fn fixed(usage: &[u8], action: u16) -> Row {
    let entry = OperationCodeEntry::new(usage, 1, 10);
    OperationRow::new(entry, |cdb| Ok(u16::from(cdb[1]))).with_service_action(action)
}

static TABLE: OperationTable<u16> = OperationTable::new(&[
    fixed(&[0x5e, 0x1f, 0, 0, 0, 0, 0, 0, 0, 4], 0),
    variable(ACTIONS[0]),
    variable(ACTIONS[1]),
    variable(ACTIONS[2]),
    variable(ACTIONS[3]),
    variable(ACTIONS[4]),
    fixed(&[0xa3, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4], 5),
    fixed(&[0xa3, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4], 0x1f),
]);

fn cdb(action: u16) -> [u8; LENGTH] {
    let mut cdb = [0; LENGTH];
    cdb[0] = VARIABLE_LENGTH_CDB;
    cdb[7] = (LENGTH - 8) as u8;
    cdb[8..10].copy_from_slice(&action.to_be_bytes());
    cdb
}

#[test]
fn a_variable_length_cdb_is_found_by_its_service_action_of_16_bits() {
    for action in 0..=u16::MAX {
        let known = ACTIONS.contains(&action).then_some(Ok(action));
        assert_eq!(TABLE.parse(&cdb(action)), known, "{action:04x}");
    }
    assert_eq!(TABLE.parse(&[0xa3, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Some(Ok(0x1f)));
    assert_eq!(TABLE.parse(&[0xa3, 0x04, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    assert_eq!(TABLE.parse(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Some(Ok(0)));
}

#[test]
fn a_variable_length_cdb_of_another_length_is_refused() {
    let whole = cdb(0x8885);
    for length in 10..LENGTH {
        let sense = Sense::invalid_field_in_cdb(length as u16);
        assert_eq!(TABLE.parse(&whole[..length]), Some(Err(sense)));
    }
    for length in 0..10 {
        assert_eq!(TABLE.parse(&whole[..length]), None, "no service action");
    }
    for claimed in (0..=u8::MAX).filter(|&claimed| usize::from(claimed) != LENGTH - 8) {
        let mut other = whole;
        other[7] = claimed;
        assert_eq!(TABLE.parse(&other), Some(Err(Sense::invalid_field_in_cdb(7))));
    }
}

#[test]
fn control_of_a_variable_length_cdb_is_byte_1() {
    let mut naca = cdb(0x8885);
    naca[1] = 0x04;
    assert_eq!(TABLE.parse(&naca), Some(Err(Sense::invalid_bit_in_cdb(1, 2))));
    let mut last = cdb(0x8885);
    last[LENGTH - 1] = 0x04;
    assert_eq!(TABLE.parse(&last), Some(Ok(0x8885)));
}

#[test]
fn an_unknown_service_action_of_a_variable_length_cdb_is_pointed_to() {
    let unknown = |cdb: &[u8]| unknown_operation(cdb, |opcode| TABLE.has_opcode(opcode));
    assert_eq!(unknown(&cdb(0x8805)), Sense::invalid_field_in_cdb(8));
    assert_eq!(unknown(&[0xa3, 1]), Sense::invalid_bit_in_cdb(1, 4));
    assert_eq!(unknown(&[0x28]), Sense::INVALID_COMMAND_OPERATION_CODE);
    assert_eq!(unknown(&[]), Sense::INVALID_COMMAND_OPERATION_CODE);
}

#[test]
fn the_report_has_the_whole_length_of_a_variable_length_cdb() {
    let entries: Vec<_> = TABLE.entries().collect();
    let all = supported_operations(entries.iter().copied(), false);
    let read = &all[4..].chunks_exact(8).nth(3).unwrap();
    assert_eq!(read[..], [0x7f, 0, 0x88, 0x85, 0, 1, 0, 236]);
    let one = supported_operation(Some(entries[3]), false);
    assert_eq!(one[..4], [0, 3, 0, 236]);
    assert_eq!(one[4..], USAGE);
    static LONGEST: [u8; 260] = [VARIABLE_LENGTH_CDB; 260];
    let longest = OperationCodeEntry::variable_length(1, &LONGEST, 1, 1);
    assert_eq!(supported_operation(Some(&longest), false)[..4], [0, 3, 1, 4]);
    assert_eq!(supported_operations([&longest], false)[10..], [1, 4]);
}
