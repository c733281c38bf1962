//! PDUs to bytes and back: each kind at random, the layouts of RFC 7143 byte by byte, and bytes
//! that mean nothing.

use bytes::Bytes;
use iscsi::{
    Bhs, Cid, DataSegment, Isid, Itt, Pdu, Serial, Tsih, Ttt,
    pdu::{
        AsyncEvent, AsyncMessage, DataIn, DataInStatus, DataOut, LoginRequest, LoginResponse,
        LoginStatus, LogoutReason, LogoutRequest, LogoutResponse, LogoutResult, NopIn, NopOut,
        Numbers, ParseError, ReadyToTransfer, Reject, RejectReason, Residual, ScsiCommand,
        ScsiResponse, Snack, SnackKind, Stage, TaskFunction, TaskFunctionResult, TaskRequest,
        TaskResponse, TextRequest, TextResponse,
    },
};
use proptest::{prelude::*, sample::select};
use scsi::{Cdb, Lun};

// --- Every kind at random ---------------------------------------------------------------------

fn bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..64).prop_map(Bytes::from)
}

fn segment() -> impl Strategy<Value = DataSegment> {
    bytes().prop_map(|data| if data.is_empty() { DataSegment::new() } else { [data].into() })
}

fn lun() -> impl Strategy<Value = Lun> {
    any::<u64>().prop_map(Lun)
}

fn itt() -> impl Strategy<Value = Itt> {
    any::<u32>().prop_map(Itt)
}

fn ttt() -> impl Strategy<Value = Ttt> {
    any::<u32>().prop_map(Ttt)
}

fn serial() -> impl Strategy<Value = Serial> {
    any::<u32>().prop_map(Serial)
}

fn numbers() -> impl Strategy<Value = Numbers> {
    (serial(), serial(), serial()).prop_map(|(stat_sn, exp_cmd_sn, max_cmd_sn)| Numbers {
        stat_sn,
        exp_cmd_sn,
        max_cmd_sn,
    })
}

fn residual() -> impl Strategy<Value = Residual> {
    prop_oneof![
        Just(Residual::None),
        any::<u32>().prop_map(Residual::Underflow),
        any::<u32>().prop_map(Residual::Overflow),
    ]
}

/// As it arrives: 16 bytes, or up to 260 with an additional header.
fn cdb() -> impl Strategy<Value = Cdb> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 16),
        prop::collection::vec(any::<u8>(), 17..=260)
    ]
    .prop_map(|bytes| Cdb::new(&bytes))
}

fn nop_out() -> impl Strategy<Value = Pdu> {
    (any::<bool>(), lun(), itt(), ttt(), serial(), serial(), bytes()).prop_map(
        |(immediate, lun, itt, ttt, cmd_sn, exp_stat_sn, data)| {
            Pdu::NopOut(NopOut { immediate, lun, itt, ttt, cmd_sn, exp_stat_sn, data })
        },
    )
}

fn scsi_command() -> impl Strategy<Value = Pdu> {
    (
        any::<[bool; 4]>(),
        0..8u8,
        lun(),
        itt(),
        any::<u32>(),
        serial(),
        serial(),
        cdb(),
        any::<Option<u32>>(),
        bytes(),
    )
        .prop_map(
            |(flags, attribute, lun, itt, length, cmd_sn, exp_stat_sn, cdb, read_length, data)| {
                Pdu::ScsiCommand(ScsiCommand {
                    immediate: flags[0],
                    is_final: flags[1],
                    read: flags[2],
                    write: flags[3],
                    attribute,
                    lun,
                    itt,
                    expected_data_transfer_length: length,
                    cmd_sn,
                    exp_stat_sn,
                    cdb,
                    bidirectional_read_length: read_length,
                    data,
                })
            },
        )
}

fn task_request() -> impl Strategy<Value = Pdu> {
    use TaskFunction::*;
    let function = prop_oneof![
        select(vec![
            AbortTask,
            AbortTaskSet,
            ClearAca,
            ClearTaskSet,
            LogicalUnitReset,
            TargetWarmReset,
            TargetColdReset,
            TaskReassign,
        ])
        .prop_map(Ok),
        prop_oneof![Just(0), 9..128u8].prop_map(Err),
    ];
    (any::<bool>(), function, lun(), itt(), itt(), serial(), serial(), serial(), any::<u32>())
        .prop_map(
            |(
                immediate,
                function,
                lun,
                itt,
                referenced_itt,
                cmd_sn,
                exp_stat_sn,
                ref_cmd_sn,
                exp_data_sn,
            )| {
                Pdu::TaskRequest(TaskRequest {
                    immediate,
                    function,
                    lun,
                    itt,
                    referenced_itt,
                    cmd_sn,
                    exp_stat_sn,
                    ref_cmd_sn,
                    exp_data_sn,
                })
            },
        )
}

/// T, CSG and NSG; NSG is reserved without T.
fn stages() -> impl Strategy<Value = (bool, Stage, Stage)> {
    let stage = || select(vec![Stage::Security, Stage::Operational, Stage::FullFeature]);
    (any::<bool>(), stage(), stage()).prop_map(|(transit, current, next)| {
        (transit, current, if transit { next } else { Stage::Security })
    })
}

fn login_request() -> impl Strategy<Value = Pdu> {
    (
        stages(),
        any::<bool>(),
        any::<[u8; 2]>(),
        any::<[u8; 6]>(),
        any::<[u16; 2]>(),
        itt(),
        serial(),
        serial(),
        bytes(),
    )
        .prop_map(|(stages, continues, version, isid, ids, itt, cmd_sn, exp_stat_sn, text)| {
            Pdu::LoginRequest(LoginRequest {
                transit: stages.0,
                continues,
                current_stage: stages.1,
                next_stage: stages.2,
                version_max: version[0],
                version_min: version[1],
                isid: Isid(isid),
                tsih: Tsih(ids[0]),
                itt,
                cid: Cid(ids[1]),
                cmd_sn,
                exp_stat_sn,
                text,
            })
        })
}

fn login_response() -> impl Strategy<Value = Pdu> {
    use LoginStatus::*;
    let status = select(vec![
        Success,
        TargetMovedTemporarily,
        TargetMovedPermanently,
        InitiatorError,
        AuthenticationFailure,
        AuthorizationFailure,
        NotFound,
        TargetRemoved,
        UnsupportedVersion,
        TooManyConnections,
        MissingParameter,
        CannotIncludeInSession,
        SessionTypeNotSupported,
        SessionDoesNotExist,
        InvalidDuringLogin,
        TargetError,
        ServiceUnavailable,
        OutOfResources,
    ]);
    (
        stages(),
        any::<bool>(),
        any::<[u8; 2]>(),
        any::<[u8; 6]>(),
        any::<u16>(),
        itt(),
        numbers(),
        status,
        bytes(),
    )
        .prop_map(|(stages, continues, version, isid, tsih, itt, numbers, status, text)| {
            Pdu::LoginResponse(LoginResponse {
                transit: stages.0,
                continues,
                current_stage: stages.1,
                next_stage: stages.2,
                version_max: version[0],
                version_active: version[1],
                isid: Isid(isid),
                tsih: Tsih(tsih),
                itt,
                numbers,
                status,
                text,
            })
        })
}

fn text_request() -> impl Strategy<Value = Pdu> {
    (any::<[bool; 3]>(), lun(), itt(), ttt(), serial(), serial(), bytes()).prop_map(
        |([immediate, is_final, continues], lun, itt, ttt, cmd_sn, exp_stat_sn, text)| {
            Pdu::TextRequest(TextRequest {
                immediate,
                is_final,
                continues,
                lun,
                itt,
                ttt,
                cmd_sn,
                exp_stat_sn,
                text,
            })
        },
    )
}

fn text_response() -> impl Strategy<Value = Pdu> {
    (any::<[bool; 2]>(), lun(), itt(), ttt(), numbers(), bytes()).prop_map(
        |([is_final, continues], lun, itt, ttt, numbers, text)| {
            Pdu::TextResponse(TextResponse { is_final, continues, lun, itt, ttt, numbers, text })
        },
    )
}

fn data_out() -> impl Strategy<Value = Pdu> {
    (any::<bool>(), lun(), itt(), ttt(), serial(), any::<[u32; 2]>(), bytes()).prop_map(
        |(is_final, lun, itt, ttt, exp_stat_sn, [data_sn, buffer_offset], data)| {
            Pdu::DataOut(DataOut {
                is_final,
                lun,
                itt,
                ttt,
                exp_stat_sn,
                data_sn,
                buffer_offset,
                data,
            })
        },
    )
}

fn data_in() -> impl Strategy<Value = Pdu> {
    let status = prop::option::of(
        (any::<u8>(), residual()).prop_map(|(status, residual)| DataInStatus { status, residual }),
    );
    (any::<[bool; 2]>(), status, lun(), itt(), ttt(), numbers(), any::<[u32; 2]>(), segment())
        .prop_map(
            |(
                [is_final, acknowledge],
                status,
                lun,
                itt,
                ttt,
                mut numbers,
                [data_sn, buffer_offset],
                data,
            )| {
                // What is reserved: LUN and tag without A, StatSN without S; S only with F.
                if status.is_none() {
                    numbers.stat_sn = Serial(0);
                }
                let (lun, ttt) = if acknowledge { (lun, ttt) } else { (Lun(0), Ttt::NONE) };
                let is_final = is_final || status.is_some();
                Pdu::DataIn(DataIn {
                    is_final,
                    acknowledge,
                    status,
                    lun,
                    itt,
                    ttt,
                    numbers,
                    data_sn,
                    buffer_offset,
                    data,
                })
            },
        )
}

fn ready_to_transfer() -> impl Strategy<Value = Pdu> {
    (lun(), itt(), 0..u32::MAX, numbers(), any::<[u32; 2]>(), 1..=u32::MAX).prop_map(
        |(lun, itt, ttt, numbers, [r2t_sn, buffer_offset], desired_data_transfer_length)| {
            Pdu::ReadyToTransfer(ReadyToTransfer {
                lun,
                itt,
                ttt: Ttt(ttt),
                numbers,
                r2t_sn,
                buffer_offset,
                desired_data_transfer_length,
            })
        },
    )
}

fn logout_request() -> impl Strategy<Value = Pdu> {
    use LogoutReason::*;
    let reason = prop_oneof![
        select(vec![CloseSession, CloseConnection, RemoveConnectionForRecovery]).prop_map(Ok),
        (3..128u8).prop_map(Err),
    ];
    (any::<bool>(), reason, itt(), any::<u16>(), serial(), serial()).prop_map(
        |(immediate, reason, itt, cid, cmd_sn, exp_stat_sn)| {
            Pdu::LogoutRequest(LogoutRequest {
                immediate,
                reason,
                itt,
                cid: Cid(cid),
                cmd_sn,
                exp_stat_sn,
            })
        },
    )
}

fn logout_response() -> impl Strategy<Value = Pdu> {
    use LogoutResult::*;
    let result = select(vec![Closed, CidNotFound, RecoveryNotSupported, CleanupFailed]);
    (result, itt(), numbers(), any::<[u16; 2]>()).prop_map(
        |(result, itt, numbers, [time2wait, time2retain])| {
            Pdu::LogoutResponse(LogoutResponse { result, itt, numbers, time2wait, time2retain })
        },
    )
}

fn snack() -> impl Strategy<Value = Pdu> {
    use SnackKind::*;
    let kind = prop_oneof![
        select(vec![DataOrR2t, Status, DataAck, RData]).prop_map(Ok),
        (4..16u8).prop_map(Err),
    ];
    (kind, lun(), itt(), ttt(), serial(), any::<[u32; 2]>()).prop_map(
        |(kind, lun, itt, ttt, exp_stat_sn, [begin, run_length])| {
            Pdu::Snack(Snack { kind, lun, itt, ttt, exp_stat_sn, begin, run_length })
        },
    )
}

fn nop_in() -> impl Strategy<Value = Pdu> {
    (lun(), itt(), ttt(), numbers(), bytes()).prop_map(|(lun, itt, ttt, numbers, data)| {
        Pdu::NopIn(NopIn { lun, itt, ttt, numbers, data })
    })
}

fn scsi_response() -> impl Strategy<Value = Pdu> {
    (
        itt(),
        prop_oneof![Just(0), any::<u8>()],
        any::<u8>(),
        any::<[u32; 2]>(),
        numbers(),
        residual(),
        residual(),
        bytes(),
    )
        .prop_map(
            |(
                itt,
                response,
                status,
                [snack_tag, exp_data_sn],
                numbers,
                residual,
                read_residual,
                sense,
            )| {
                // Residuals belong to a completed command.
                let (residual, bidirectional_read_residual) =
                    if response == 0 { (residual, read_residual) } else { Default::default() };
                Pdu::ScsiResponse(ScsiResponse {
                    itt,
                    response,
                    status,
                    snack_tag,
                    numbers,
                    exp_data_sn,
                    residual,
                    bidirectional_read_residual,
                    sense,
                })
            },
        )
}

fn task_response() -> impl Strategy<Value = Pdu> {
    use TaskFunctionResult::*;
    let result = select(vec![
        Complete,
        NoTask,
        NoLun,
        StillAllegiant,
        ReassignNotSupported,
        NotSupported,
        AuthorizationFailed,
        Rejected,
    ]);
    (result, itt(), numbers())
        .prop_map(|(result, itt, numbers)| Pdu::TaskResponse(TaskResponse { result, itt, numbers }))
}

fn asynchronous() -> impl Strategy<Value = Pdu> {
    let event =
        (0..7, any::<[u16; 3]>(), 6..=255u8).prop_map(|(kind, [a, b, c], code)| match kind {
            0 => AsyncEvent::Scsi,
            1 => AsyncEvent::LogoutRequested { time: a },
            2 => AsyncEvent::ConnectionDropped { cid: Cid(a), time2wait: b, time2retain: c },
            3 => AsyncEvent::SessionDropped { time2wait: a, time2retain: b },
            4 => AsyncEvent::NegotiationRequested { time: a },
            5 => AsyncEvent::TasksTerminated,
            _ => AsyncEvent::Other(code),
        });
    (event, lun(), numbers(), bytes()).prop_map(|(event, lun, numbers, data)| {
        let has_lun = matches!(event, AsyncEvent::Scsi | AsyncEvent::TasksTerminated);
        let lun = if has_lun { lun } else { Lun(0) };
        Pdu::Async(AsyncMessage { lun, event, numbers, data })
    })
}

fn reject() -> impl Strategy<Value = Pdu> {
    use RejectReason::*;
    let reason = select(vec![
        DataDigestError,
        SnackReject,
        ProtocolError,
        CommandNotSupported,
        ImmediateCommandReject,
        TaskInProgress,
        InvalidDataAck,
        InvalidPduField,
        LongOperationReject,
        NegotiationReset,
        WaitingForLogout,
    ]);
    (reason, numbers(), any::<u32>(), bytes()).prop_map(|(reason, numbers, data_sn, header)| {
        Pdu::Reject(Reject { reason, numbers, data_sn, header })
    })
}

/// Encodes, and says the lengths that the header gives.
fn encode(pdu: Pdu) -> (Bhs, Vec<u8>, Bytes) {
    let (bhs, ahs, data) = pdu.encode();
    let data: Bytes = data.concat().into();
    assert_eq!(usize::from(bhs[4]) * 4, ahs.len(), "TotalAHSLength");
    assert_eq!(u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize, data.len());
    (bhs, ahs.to_vec(), data)
}

macro_rules! survives {
    ($($name:ident),* $(,)?) => {
        mod survives_the_wire {
            use super::*;
            proptest! {
                $(#[test]
                fn $name(pdu in super::$name()) {
                    let (bhs, ahs, data) = encode(pdu.clone());
                    prop_assert_eq!(Pdu::parse(&bhs, &ahs, data), Ok(pdu));
                })*
            }
        }
    };
}

survives!(
    nop_out,
    scsi_command,
    task_request,
    login_request,
    text_request,
    data_out,
    logout_request,
    snack,
    nop_in,
    scsi_response,
    task_response,
    login_response,
    text_response,
    data_in,
    logout_response,
    ready_to_transfer,
    asynchronous,
    reject,
);

// --- Hostile bytes ----------------------------------------------------------------------------

const OPCODES: [u8; 18] = [
    0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x10, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x31,
    0x32, 0x3f,
];

proptest! {
    /// Whatever parses has one meaning: its own encoding parses to the same.
    #[test]
    fn no_bytes_make_it_panic(
        mut bhs in prop::collection::vec(any::<u8>(), 48),
        opcode in select(OPCODES.to_vec()),
        ahs in prop_oneof![Just(vec![]), prop::collection::vec(any::<u8>(), 0..32)],
        data in bytes(),
    ) {
        bhs[0] = bhs[0] & 0xc0 | opcode;
        let bhs: Bhs = bhs.try_into().unwrap();
        if let Ok(pdu) = Pdu::parse(&bhs, &ahs, data) {
            let (bhs, ahs, data) = encode(pdu.clone());
            prop_assert_eq!(Pdu::parse(&bhs, &ahs, data), Ok(pdu));
        }
    }
}

#[test]
fn opcodes_that_nobody_defined() {
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
fn additional_headers_that_lie() {
    for ahs in [
        &[0][..],                                          // less than a header of one
        &[0, 5, 2, 0, 0, 0],                               // ends in the middle
        &[0xff, 0xff, 1, 0],                               // longer than what is there
        &[0, 4, 2, 0, 0, 0, 1, 0],                         // a read length of three bytes
        &[0, 0, 1, 0],                                     // an extended CDB without a byte
        &[0, 1, 1, 0],                                     // the same, with the reserved byte
        &[0, 5, 2, 0, 0, 0, 0, 1, 0, 5, 2, 0, 0, 0, 0, 1], // two read lengths
        &[0, 2, 1, 0, 9, 0, 0, 0, 0, 2, 1, 0, 9, 0, 0, 0], // two extended CDBs
        &[0, 1, 0, 0],                                     // a reserved type
        &[0, 1, 63, 0],                                    // another
        &[0, 2, 1, 0, 9],                                  // no padding
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
        (0x03, &[(1, 0x08)][..], &b""[..], "CSG"),
        (0x03, &[(1, 0x82)], b"", "NSG"),
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
    // A response that is no completion: flags are not looked at.
    assert!(parse(0x21, &[(1, 0x1e), (2, 1)], b"").is_ok());
    // A login status detail that nobody defined stands for its class.
    let Ok(Pdu::LoginResponse(response)) = parse(0x23, &[(36, 2), (37, 99)], b"") else { panic!() };
    assert_eq!(response.status, LoginStatus::InitiatorError);
    // What follows the sense data is the vendor's, and vendor's data without a length is ignored.
    let Ok(Pdu::ScsiResponse(response)) = parse(0x21, &[], b"\0\x01\x70vendor") else { panic!() };
    assert_eq!(response.sense, &b"\x70"[..]);
    let Ok(Pdu::Async(message)) = parse(0x32, &[(36, 255)], b"\xff") else { panic!() };
    assert!(message.data.is_empty());
}

#[test]
fn reserved_bits_are_ignored() {
    for opcode in OPCODES {
        // R2T excludes a length of zero.
        let mut plain = [0; 48];
        plain[0] = opcode;
        plain[47] = 1;
        let mut noisy = plain;
        noisy[0] |= 0x80;
        assert_eq!(Pdu::parse(&plain, &[], Bytes::new()), Pdu::parse(&noisy, &[], Bytes::new()));
    }
}

// --- The layouts of RFC 7143, section 11 ------------------------------------------------------

/// Checks an encoding against bytes written as the standard draws them, one word a line.
#[track_caller]
fn looks_like(pdu: Pdu, words: [u32; 12], data: &[u8]) {
    let expected: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let (bhs, ahs, segment) = encode(pdu.clone());
    assert_eq!(bhs[..], expected[..], "{bhs:02x?}");
    assert_eq!(segment, data);
    assert_eq!(Pdu::parse(&bhs, &ahs, segment), Ok(pdu));
}

const NUMBERS: Numbers =
    Numbers { stat_sn: Serial(0x51), exp_cmd_sn: Serial(0x52), max_cmd_sn: Serial(0x53) };

#[test]
fn scsi_command_11_3() {
    let write = ScsiCommand {
        is_final: true,
        write: true,
        attribute: 1,
        lun: Lun(0x0001_0000_0000_0000),
        itt: Itt(0x11),
        expected_data_transfer_length: 4096,
        cmd_sn: Serial(0x12),
        exp_stat_sn: Serial(0x13),
        cdb: Cdb::new(&[0x2a, 0, 0, 0, 0, 8, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]),
        data: Bytes::from_static(&[7; 8]),
        ..ScsiCommand::default()
    };
    looks_like(
        Pdu::ScsiCommand(write.clone()),
        [
            0x01a1_0000,
            0x0000_0008,
            0x0001_0000,
            0,
            0x11,
            4096,
            0x12,
            0x13,
            0x2a00_0000,
            0x0008_0000,
            0x0800_0000,
            0,
        ],
        &[7; 8],
    );
    let read =
        ScsiCommand { immediate: true, read: true, write: false, data: Bytes::new(), ..write };
    let (bhs, ..) = encode(Pdu::ScsiCommand(read));
    assert_eq!(bhs[..2], [0x41, 0xc1]);
}

#[test]
fn a_short_cdb_is_padded() {
    let command = ScsiCommand { cdb: Cdb::new(&[0x12, 0, 0, 0, 36, 0]), ..ScsiCommand::default() };
    let (bhs, ahs, _) = encode(Pdu::ScsiCommand(command));
    assert_eq!(bhs[32..], [0x12, 0, 0, 0, 36, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert!(ahs.is_empty());
}

#[test]
fn scsi_response_11_4() {
    let response = ScsiResponse {
        itt: Itt(0x11),
        status: 2,
        snack_tag: 0,
        numbers: NUMBERS,
        exp_data_sn: 3,
        residual: Residual::Underflow(512),
        bidirectional_read_residual: Residual::Overflow(1024),
        sense: Bytes::from_static(&[0x70, 0, 5]),
        ..ScsiResponse::default()
    };
    looks_like(
        Pdu::ScsiResponse(response),
        [0x2192_0002, 5, 0, 0, 0x11, 0, 0x51, 0x52, 0x53, 3, 1024, 512],
        &[0, 3, 0x70, 0, 5],
    );
}

#[test]
fn task_management_11_5_and_11_6() {
    let request = TaskRequest {
        immediate: true,
        function: Ok(TaskFunction::AbortTask),
        lun: Lun(1),
        itt: Itt(0x11),
        referenced_itt: Itt(0x22),
        cmd_sn: Serial(0x12),
        exp_stat_sn: Serial(0x13),
        ref_cmd_sn: Serial(0x14),
        exp_data_sn: 0x15,
    };
    looks_like(
        Pdu::TaskRequest(request),
        [0x4281_0000, 0, 0, 1, 0x11, 0x22, 0x12, 0x13, 0x14, 0x15, 0, 0],
        &[],
    );
    let response =
        TaskResponse { result: TaskFunctionResult::Rejected, itt: Itt(0x11), numbers: NUMBERS };
    looks_like(
        Pdu::TaskResponse(response),
        [0x2280_ff00, 0, 0, 0, 0x11, 0, 0x51, 0x52, 0x53, 0, 0, 0],
        &[],
    );
}

#[test]
fn data_11_7() {
    let out = DataOut {
        is_final: true,
        lun: Lun(1),
        itt: Itt(0x11),
        ttt: Ttt(0x21),
        exp_stat_sn: Serial(0x13),
        data_sn: 2,
        buffer_offset: 8192,
        data: Bytes::from_static(&[9; 4]),
    };
    looks_like(
        Pdu::DataOut(out),
        [0x0580_0000, 4, 0, 1, 0x11, 0x21, 0, 0x13, 0, 2, 8192, 0],
        &[9; 4],
    );
    let data_in = DataIn {
        is_final: true,
        acknowledge: false,
        status: Some(DataInStatus { status: 0, residual: Residual::Underflow(16) }),
        lun: Lun(0),
        itt: Itt(0x11),
        ttt: Ttt::NONE,
        numbers: NUMBERS,
        data_sn: 2,
        buffer_offset: 8192,
        data: [Bytes::from_static(&[9; 4])].into(),
    };
    looks_like(
        Pdu::DataIn(data_in.clone()),
        [0x2583_0000, 4, 0, 0, 0x11, u32::MAX, 0x51, 0x52, 0x53, 2, 8192, 16],
        &[9; 4],
    );
    let asks = DataIn {
        acknowledge: true,
        status: None,
        lun: Lun(1),
        ttt: Ttt(0x21),
        numbers: Numbers { stat_sn: Serial(0), ..NUMBERS },
        ..data_in
    };
    looks_like(
        Pdu::DataIn(asks),
        [0x25c0_0000, 4, 0, 1, 0x11, 0x21, 0, 0x52, 0x53, 2, 8192, 0],
        &[9; 4],
    );
}

#[test]
fn ready_to_transfer_11_8() {
    let r2t = ReadyToTransfer {
        lun: Lun(1),
        itt: Itt(0x11),
        ttt: Ttt(0x21),
        numbers: NUMBERS,
        r2t_sn: 1,
        buffer_offset: 65536,
        desired_data_transfer_length: 262_144,
    };
    looks_like(
        Pdu::ReadyToTransfer(r2t),
        [0x3180_0000, 0, 0, 1, 0x11, 0x21, 0x51, 0x52, 0x53, 1, 65536, 262_144],
        &[],
    );
}

#[test]
fn asynchronous_message_11_9() {
    let message = |event, data| {
        Pdu::Async(AsyncMessage {
            lun: Lun(0),
            event,
            numbers: NUMBERS,
            data: Bytes::from_static(data),
        })
    };
    let none = u32::MAX;
    looks_like(
        message(AsyncEvent::Scsi, &[0x70]),
        [0x3280_0000, 3, 0, 0, none, 0, 0x51, 0x52, 0x53, 0, 0, 0],
        &[0, 1, 0x70],
    );
    looks_like(
        message(AsyncEvent::LogoutRequested { time: 3 }, &[]),
        [0x3280_0000, 0, 0, 0, none, 0, 0x51, 0x52, 0x53, 0x0100_0000, 3, 0],
        &[],
    );
    looks_like(
        message(AsyncEvent::ConnectionDropped { cid: Cid(1), time2wait: 2, time2retain: 20 }, &[]),
        [0x3280_0000, 0, 0, 0, none, 0, 0x51, 0x52, 0x53, 0x0200_0001, 0x0002_0014, 0],
        &[],
    );
    looks_like(
        message(AsyncEvent::Other(255), b"v"),
        [0x3280_0000, 3, 0, 0, none, 0, 0x51, 0x52, 0x53, 0xff00_0000, 0, 0],
        &[0, 0, b'v'],
    );
}

#[test]
fn text_11_10_and_11_11() {
    let request = TextRequest {
        immediate: false,
        is_final: true,
        continues: false,
        lun: Lun(0),
        itt: Itt(0x11),
        ttt: Ttt::NONE,
        cmd_sn: Serial(0x12),
        exp_stat_sn: Serial(0x13),
        text: Bytes::from_static(b"SendTargets=All\0"),
    };
    looks_like(
        Pdu::TextRequest(request),
        [0x0480_0000, 16, 0, 0, 0x11, u32::MAX, 0x12, 0x13, 0, 0, 0, 0],
        b"SendTargets=All\0",
    );
    let response = TextResponse {
        is_final: false,
        continues: true,
        lun: Lun(0),
        itt: Itt(0x11),
        ttt: Ttt(0x21),
        numbers: NUMBERS,
        text: Bytes::from_static(b"A"),
    };
    looks_like(
        Pdu::TextResponse(response),
        [0x2440_0000, 1, 0, 0, 0x11, 0x21, 0x51, 0x52, 0x53, 0, 0, 0],
        b"A",
    );
}

#[test]
fn login_11_12_and_11_13() {
    let request = LoginRequest {
        transit: true,
        current_stage: Stage::Operational,
        next_stage: Stage::FullFeature,
        isid: Isid([0x80, 1, 2, 3, 4, 5]),
        tsih: Tsih(0x0607),
        itt: Itt(0x11),
        cid: Cid(8),
        cmd_sn: Serial(0x12),
        exp_stat_sn: Serial(0x13),
        text: Bytes::from_static(b"A=\0"),
        ..LoginRequest::default()
    };
    looks_like(
        Pdu::LoginRequest(request),
        [0x4387_0000, 3, 0x8001_0203, 0x0405_0607, 0x11, 0x0008_0000, 0x12, 0x13, 0, 0, 0, 0],
        b"A=\0",
    );
    let response = LoginResponse {
        continues: true,
        current_stage: Stage::Security,
        isid: Isid([0x80, 1, 2, 3, 4, 5]),
        tsih: Tsih(0x0607),
        itt: Itt(0x11),
        numbers: NUMBERS,
        status: LoginStatus::InvalidDuringLogin,
        ..LoginResponse::default()
    };
    looks_like(
        Pdu::LoginResponse(response),
        [0x2340_0000, 0, 0x8001_0203, 0x0405_0607, 0x11, 0, 0x51, 0x52, 0x53, 0x020b_0000, 0, 0],
        &[],
    );
}

#[test]
fn logout_11_14_and_11_15() {
    let request = LogoutRequest {
        immediate: true,
        reason: Ok(LogoutReason::CloseConnection),
        itt: Itt(0x11),
        cid: Cid(8),
        cmd_sn: Serial(0x12),
        exp_stat_sn: Serial(0x13),
    };
    looks_like(
        Pdu::LogoutRequest(request),
        [0x4681_0000, 0, 0, 0, 0x11, 0x0008_0000, 0x12, 0x13, 0, 0, 0, 0],
        &[],
    );
    let response = LogoutResponse {
        result: LogoutResult::RecoveryNotSupported,
        itt: Itt(0x11),
        numbers: NUMBERS,
        time2wait: 2,
        time2retain: 20,
    };
    looks_like(
        Pdu::LogoutResponse(response),
        [0x2680_0200, 0, 0, 0, 0x11, 0, 0x51, 0x52, 0x53, 0, 0x0002_0014, 0],
        &[],
    );
}

#[test]
fn snack_11_16() {
    let snack = Snack {
        kind: Ok(SnackKind::RData),
        lun: Lun(1),
        itt: Itt(0x11),
        ttt: Ttt(0x21),
        exp_stat_sn: Serial(0x13),
        begin: 4,
        run_length: 5,
    };
    looks_like(Pdu::Snack(snack), [0x1083_0000, 0, 0, 1, 0x11, 0x21, 0, 0x13, 0, 0, 4, 5], &[]);
}

#[test]
fn reject_11_17() {
    let reject = Reject {
        reason: RejectReason::InvalidPduField,
        numbers: NUMBERS,
        data_sn: 0,
        header: Bytes::from_static(&[1; 48]),
    };
    looks_like(
        Pdu::Reject(reject),
        [0x3f80_0900, 48, 0, 0, u32::MAX, 0, 0x51, 0x52, 0x53, 0, 0, 0],
        &[1; 48],
    );
}

#[test]
fn nop_11_18_and_11_19() {
    let out = NopOut {
        immediate: true,
        lun: Lun(0),
        itt: Itt(0x11),
        ttt: Ttt::NONE,
        cmd_sn: Serial(0x12),
        exp_stat_sn: Serial(0x13),
        data: Bytes::from_static(b"ping"),
    };
    looks_like(
        Pdu::NopOut(out),
        [0x4080_0000, 4, 0, 0, 0x11, u32::MAX, 0x12, 0x13, 0, 0, 0, 0],
        b"ping",
    );
    let nop_in =
        NopIn { lun: Lun(0), itt: Itt::NONE, ttt: Ttt(0x21), numbers: NUMBERS, data: Bytes::new() };
    looks_like(
        Pdu::NopIn(nop_in),
        [0x2080_0000, 0, 0, 0, u32::MAX, 0x21, 0x51, 0x52, 0x53, 0, 0, 0],
        &[],
    );
}
