//! Compares encoded PDUs with the layouts in RFC 7143, section 11, word by word.

use bytes::Bytes;
use iscsi::{
    Cid, Isid, Itt, Pdu, Serial, Tsih, Ttt,
    pdu::{
        AsyncEvent, AsyncMessage, DataIn, DataInStatus, DataOut, LoginRequest, LoginResponse,
        LoginStage, LoginStatus, LogoutReason, LogoutRequest, LogoutResponse, LogoutResult, NopIn,
        NopOut, Numbers, ReadyToTransfer, Reject, RejectReason, Residual, ScsiCommand,
        ScsiResponse, Snack, SnackKind, TaskFunction, TaskFunctionResult, TaskRequest,
        TaskResponse, TextRequest, TextResponse,
    },
};
use scsi::{Cdb, Lun};

/// Checks the encoding of a PDU against 32-bit words, in the order in which the standard draws
/// them.
#[track_caller]
fn looks_like(pdu: Pdu, words: [u32; 12], data: &[u8]) {
    let expected: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let (bhs, ahs, segment) = pdu.clone().encode();
    let segment = segment.concat();
    assert_eq!(bhs[..], expected[..], "{bhs:02x?}");
    assert_eq!(segment, data);
    assert_eq!(Pdu::parse(&bhs, &ahs, segment.into()), Ok(pdu));
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
    let (bhs, ..) = Pdu::ScsiCommand(read).encode();
    assert_eq!(bhs[..2], [0x41, 0xc1]);
}

#[test]
fn a_short_cdb_is_padded() {
    let command = ScsiCommand { cdb: Cdb::new(&[0x12, 0, 0, 0, 36, 0]), ..ScsiCommand::default() };
    let (bhs, ahs, _) = Pdu::ScsiCommand(command).encode();
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
        current_stage: LoginStage::Operational,
        next_stage: LoginStage::FullFeature,
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
        current_stage: LoginStage::Security,
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
