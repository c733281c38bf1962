//! Encodes random PDUs of each kind, parses the result, and compares.

use bytes::Bytes;
use iscsi::{
    Bhs, Cid, DataSegment, Isid, Itt, Pdu, Serial, Tsih, Ttt,
    pdu::{
        AsyncEvent, AsyncMessage, DataIn, DataInStatus, DataOut, LoginRequest, LoginResponse,
        LoginStage, LoginStatus, LogoutReason, LogoutRequest, LogoutResponse, LogoutResult, NopIn,
        NopOut, Numbers, ReadyToTransfer, Reject, RejectReason, Residual, ScsiCommand,
        ScsiResponse, Snack, SnackKind, TaskFunction, TaskFunctionResult, TaskRequest,
        TaskResponse, TextRequest, TextResponse,
    },
};
use proptest::{prelude::*, sample::select};
use scsi::{Cdb, Lun};

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

/// Generates CDBs as they arrive: 16 bytes, or up to 260 with an additional header segment.
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

/// Generates T, CSG and NSG. Without T, NSG is reserved and therefore zero.
fn stages() -> impl Strategy<Value = (bool, LoginStage, LoginStage)> {
    let stage =
        || select(vec![LoginStage::Security, LoginStage::Operational, LoginStage::FullFeature]);
    (any::<bool>(), stage(), stage()).prop_map(|(transit, current, next)| {
        (transit, current, if transit { next } else { LoginStage::Security })
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
                // Clear the reserved fields: LUN and tag without the A bit, StatSN without the S
                // bit. The S bit is valid only with the F bit.
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
                // Residuals are valid only if the command completed (response 0).
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

/// Encodes a PDU, and checks the length fields in its header.
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
