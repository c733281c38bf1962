//! Parses invalid headers, additional header segments and data segments.

use bytes::Bytes;
use iscsi::{
    Bhs, Pdu,
    pdu::{LoginStage, LoginStatus, ParseError},
};
use proptest::{prelude::*, sample::select};

const OPCODES: [u8; 18] = [
    0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x10, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x31,
    0x32, 0x3f,
];

proptest! {
    /// If the parser accepts random bytes, encoding the PDU and parsing it again gives the same
    /// PDU.
    #[test]
    fn no_bytes_make_the_parser_panic(
        mut bhs in prop::collection::vec(any::<u8>(), 48),
        opcode in select(OPCODES.to_vec()),
        ahs in prop_oneof![Just(vec![]), prop::collection::vec(any::<u8>(), 0..32)],
        data in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        bhs[0] = bhs[0] & 0xc0 | opcode;
        let bhs: Bhs = bhs.try_into().unwrap();
        if let Ok(pdu) = Pdu::parse(&bhs, &ahs, data.into()) {
            let (bhs, ahs, data) = pdu.clone().encode();
            prop_assert_eq!(Pdu::parse(&bhs, &ahs, data.concat().into()), Ok(pdu));
        }
    }
}

#[test]
fn undefined_opcodes_are_refused() {
    for opcode in 0..64 {
        let mut bhs = [0; 48];
        bhs[0] = opcode;
        let unknown = Pdu::parse(&bhs, &[], Bytes::new()) == Err(ParseError::Opcode(opcode));
        assert_eq!(unknown, !OPCODES.contains(&opcode), "{opcode:#04x}");
    }
}

fn command_with_ahs(ahs: &[u8]) -> Result<Pdu, ParseError> {
    let mut bhs = [0; 48];
    bhs[0] = 0x01;
    Pdu::parse(&bhs, ahs, Bytes::new())
}

#[test]
fn inconsistent_additional_headers_are_refused() {
    for ahs in [
        &[0][..],                                          // shorter than the header of an AHS
        &[0, 5, 2, 0, 0, 0],                               // truncated
        &[0xff, 0xff, 1, 0],                               // longer than the additional headers
        &[0, 4, 2, 0, 0, 0, 1, 0],                         // a read length of three bytes
        &[0, 0, 1, 0],                                     // an extended CDB without bytes
        &[0, 1, 1, 0], // an extended CDB of the reserved byte only
        &[0, 5, 2, 0, 0, 0, 0, 1, 0, 5, 2, 0, 0, 0, 0, 1], // two read lengths
        &[0, 2, 1, 0, 9, 0, 0, 0, 0, 2, 1, 0, 9, 0, 0, 0], // two extended CDBs
        &[0, 1, 0, 0], // a reserved type
        &[0, 1, 63, 0], // another reserved type
        &[0, 2, 1, 0, 9], // missing padding
    ] {
        assert!(matches!(command_with_ahs(ahs), Err(ParseError::Field(_))), "{ahs:?}");
    }
    let too_long = [&[0, 246, 1][..], &[0; 249]].concat();
    assert_eq!(command_with_ahs(&too_long), Err(ParseError::Field("CDB length")));
}

#[test]
fn additional_headers_of_both_types() {
    let ahs = [0, 3, 1, 0xee, 0x10, 0x11, 0xff, 0xff, 0, 5, 2, 0xee, 1, 2, 3, 4];
    let Ok(Pdu::ScsiCommand(command)) = command_with_ahs(&ahs) else { panic!() };
    assert_eq!(&command.cdb[16..], [0x10, 0x11]);
    assert_eq!(command.bidirectional_read_length, Some(0x0102_0304));
    let (_, ahs, _) = Pdu::ScsiCommand(command).encode();
    assert_eq!(ahs[..], [0, 3, 1, 0, 0x10, 0x11, 0, 0, 0, 5, 2, 0, 1, 2, 3, 4]);
}

#[test]
fn fields_with_values_that_the_standard_excludes() {
    fn parse(opcode: u8, fields: &[(usize, u8)], data: &'static [u8]) -> Result<Pdu, ParseError> {
        let mut bhs = [0; 48];
        bhs[0] = opcode;
        fields.iter().for_each(|&(at, value)| bhs[at] = value);
        Pdu::parse(&bhs, &[], Bytes::from_static(data))
    }
    for (opcode, fields, data, complaint) in [
        (0x23, &[(1, 0x08)][..], &b""[..], "CSG"),
        (0x23, &[(1, 0x82)], b"", "NSG"),
        (0x23, &[(36, 4)], b"", "Status-Class"),
        (0x23, &[(37, 1)], b"", "Status-Class"),
        (0x21, &[(1, 0x06)], b"", "O and U bits together"),
        (0x21, &[(1, 0x18)], b"", "O and U bits together"),
        (0x21, &[], b"\0", "SenseLength"),
        (0x21, &[], b"\0\x02\x70", "SenseLength"),
        (0x25, &[(1, 0x01)], b"", "S bit without F bit"),
        (0x25, &[(1, 0x87)], b"", "O and U bits together"),
        (0x31, &[], b"", "Desired Data Transfer Length"),
        (
            0x31,
            &[(20, 0xff), (21, 0xff), (22, 0xff), (23, 0xff), (47, 1)],
            b"",
            "Target Transfer Tag of an R2T",
        ),
        (0x22, &[(2, 7)], b"", "task management response"),
        (0x26, &[(2, 4)], b"", "logout response"),
        (0x32, &[], b"\xff\xff", "SenseLength"),
        (0x3f, &[(2, 1)], b"", "reject reason"),
    ] {
        assert_eq!(parse(opcode, fields, data), Err(ParseError::Field(complaint)));
    }
    // A login request with a reserved stage is parsed, since the target must answer it with a login
    // status.
    let Ok(Pdu::LoginRequest(request)) = parse(0x03, &[(1, 0x88)], b"") else { panic!() };
    assert_eq!(request.current_stage, LoginStage::Reserved);
    // In a response other than "completed", the flags are ignored.
    assert!(parse(0x21, &[(1, 0x1e), (2, 1)], b"").is_ok());
    // A login status with an undefined detail code becomes the general status of its class.
    let Ok(Pdu::LoginResponse(response)) = parse(0x23, &[(36, 2), (37, 99)], b"") else { panic!() };
    assert_eq!(response.status, LoginStatus::InitiatorError);
    // Bytes after the sense data are vendor specific and are ignored; so are vendor specific bytes
    // without a SenseLength before them.
    let Ok(Pdu::ScsiResponse(response)) = parse(0x21, &[], b"\0\x01\x70vendor") else { panic!() };
    assert_eq!(response.sense, &b"\x70"[..]);
    let Ok(Pdu::Async(message)) = parse(0x32, &[(36, 255)], b"\xff") else { panic!() };
    assert!(message.data.is_empty());
}

#[test]
fn reserved_bits_are_ignored() {
    for opcode in OPCODES {
        // Set a length of 1, since an R2T with a length of zero is invalid.
        let mut plain = [0; 48];
        plain[0] = opcode;
        plain[47] = 1;
        let mut noisy = plain;
        noisy[0] |= 0x80;
        assert_eq!(Pdu::parse(&plain, &[], Bytes::new()), Pdu::parse(&noisy, &[], Bytes::new()));
    }
}
