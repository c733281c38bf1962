//! PDUs to bytes and back: each kind at random, and bytes that mean nothing.

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
