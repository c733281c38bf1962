//! Runs the initiator's state machine in full feature phase against a target that sends any answer. Every command must
//! end once, and the initiator may send only data that the target has requested.
#![no_main]

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use bytes::Bytes;
use fuzz::{Choices, drain, frame};
use iscsi::{
    Cid, Itt, Pdu, Serial, Ttt,
    codec::Digests,
    keys::Parameters,
    pdu::{
        AsyncEvent, AsyncMessage, DataIn, DataInStatus, LogoutResponse, LogoutResult, NopIn,
        Numbers, ReadyToTransfer, Reject, RejectReason, Residual, ScsiResponse, TaskFunctionResult,
        TaskResponse, TextResponse,
    },
    session::initiator::{InitiatorEvent, JoinedConnection, CommandRequest, InitiatorSession, ConnectionTiming, DataPhase, InitiatorCommandWindow},
};
use libfuzzer_sys::fuzz_target;
use scsi::{Cdb, Lun};

const SEGMENT: u32 = 1024;
const CID: Cid = Cid(0);

struct Scene<'a> {
    choices: Choices<'a>,
    session: InitiatorSession,
    now: Instant,
    stat_sn: u32,
    max_cmd_sn: u32,
    next_tag: u64,
    /// Tags of the commands that were submitted and have not ended.
    open: BTreeSet<u64>,
    /// Task tags that the initiator has sent, newest last.
    tags: Vec<Itt>,
    /// Headers of PDUs that the initiator has sent. A Reject PDU contains one of them.
    headers: Vec<Bytes>,
}

fuzz_target!(|input: &[u8]| {
    let mut choices = Choices::new(input);
    let flags = choices.byte();
    let parameters = Parameters {
        initial_r2t: flags & 1 != 0,
        immediate_data: flags & 2 != 0,
        max_burst_length: 4096,
        first_burst_length: 2048,
        max_send_data_segment_length: SEGMENT,
        max_recv_data_segment_length: SEGMENT,
        max_outstanding_r2t: 2,
        error_recovery_level: (flags >> 2 & 3).min(2),
        ..Parameters::default()
    };
    let now = Instant::now();
    let first = JoinedConnection {
        cid: CID,
        digests: Digests::default(),
        max_send_data_segment_length: SEGMENT,
        exp_stat_sn: Serial(1),
        exp_cmd_sn: Serial(1),
        max_cmd_sn: Serial(8),
    };
    let (window, timing) = (InitiatorCommandWindow::new(Serial(1), Serial(8)), ConnectionTiming::default());
    let mut scene = Scene {
        choices,
        session: InitiatorSession::new(parameters, window, 16, timing, first, now),
        now,
        stat_sn: 1,
        max_cmd_sn: 8,
        next_tag: 0,
        open: BTreeSet::new(),
        tags: Vec::new(),
        headers: Vec::new(),
    };
    while !scene.choices.is_empty() {
        let choice = scene.choices.byte();
        let alive = match choice & 3 {
            0 => scene.submit(choice),
            1 if choice == 0xfd => {
                scene.now += Duration::from_secs(5);
                scene.session.handle_timeout(scene.now);
                true
            }
            _ => {
                let pdu = scene.pdu();
                let mut frame = frame(pdu);
                frame.data_digest_error = choice >= 0xf0 && choice != 0xfd;
                scene.session.handle_frame(CID, frame, scene.now).is_ok()
            }
        };
        scene.collect();
        if !alive || scene.session.is_over() {
            break;
        }
    }
    // The session must hand over exactly the commands that were not answered, for the next session
    // to send again.
    let left: BTreeSet<u64> = scene.session.take_unanswered().iter().map(|r| r.tag).collect();
    assert_eq!(left, scene.open);
});

impl Scene<'_> {
    fn submit(&mut self, choice: u8) -> bool {
        let length = self.choices.length().min(1 << 14);
        let tag = self.next_tag;
        self.next_tag += 1;
        let transfer = match choice >> 2 & 3 {
            0 => DataPhase::None,
            1 => DataPhase::In(length),
            _ => DataPhase::Out(vec![5; length as usize].into()),
        };
        let request = CommandRequest {
            tag,
            lun: Lun(0),
            cdb: Cdb::new(&[0; 16]),
            transfer,
            time_out: Duration::from_secs(7),
        };
        if self.session.submit(request, self.now).is_ok() {
            self.open.insert(tag);
        }
        if choice & 0x80 != 0 {
            self.session.expire(tag, self.now);
        }
        match choice >> 4 & 7 {
            1 => {
                let text = "SendTargets=All\0".into();
                let _ = self.session.text(text, self.now);
            }
            2 if choice & 12 == 0 => self.session.log_out(self.now),
            _ => {}
        }
        true
    }

    fn itt(&mut self) -> Itt {
        let choice = usize::from(self.choices.byte());
        match self.tags.len().checked_sub(1 + choice % 8) {
            Some(index) if choice != 0xff => self.tags[index],
            _ => Itt(self.choices.word()),
        }
    }

    fn numbers(&mut self, takes_status: bool) -> Numbers {
        let choice = self.choices.byte();
        if choice & 15 == 1 {
            self.max_cmd_sn = self.max_cmd_sn.wrapping_add(u32::from(choice >> 4));
        }
        let stat_sn = if choice == 0xff { self.choices.word() } else { self.stat_sn };
        self.stat_sn = self.stat_sn.wrapping_add(u32::from(takes_status));
        Numbers {
            stat_sn: Serial(stat_sn),
            exp_cmd_sn: Serial(self.max_cmd_sn.wrapping_sub(7)),
            max_cmd_sn: Serial(self.max_cmd_sn),
        }
    }

    fn residual(&mut self) -> Residual {
        match self.choices.byte() & 3 {
            1 => Residual::Underflow(self.choices.length()),
            2 => Residual::Overflow(self.choices.length()),
            _ => Residual::None,
        }
    }

    fn pdu(&mut self) -> Pdu {
        let kind = self.choices.byte();
        match kind & 7 {
            0 => self.response(kind),
            1 | 2 => self.data_in(kind),
            3 => self.r2t(kind),
            4 => self.nop_in(kind),
            5 => self.task_or_text(kind),
            6 => self.message(kind),
            _ if kind & 8 != 0 => self.rejection(kind),
            _ => self.logged_out(),
        }
    }

    fn response(&mut self, kind: u8) -> Pdu {
        let response = if kind & 0x80 != 0 { 1 } else { 0 };
        Pdu::ScsiResponse(ScsiResponse {
            itt: self.itt(),
            response,
            status: self.choices.byte() & 0x0a,
            snack_tag: 0,
            numbers: self.numbers(true),
            exp_data_sn: self.choices.number_near(0),
            residual: if response == 0 { self.residual() } else { Residual::None },
            bidirectional_read_residual: Residual::None,
            sense: vec![0x70; usize::from(kind >> 3)].into(),
        })
    }

    /// Returns a Data-In PDU, with or without a status.
    fn data_in(&mut self, kind: u8) -> Pdu {
        let status = (kind & 0x80 != 0)
            .then(|| DataInStatus { status: 0, residual: self.residual() });
        let length = self.choices.length().min(SEGMENT) as usize;
        Pdu::DataIn(DataIn {
            is_final: status.is_some() || kind & 0x40 != 0,
            acknowledge: kind & 0x38 == 0x38,
            status,
            lun: Lun(0),
            itt: self.itt(),
            ttt: Ttt(1),
            numbers: self.numbers(status.is_some()),
            data_sn: self.choices.number_near(0),
            buffer_offset: self.choices.length(),
            data: [Bytes::from(vec![3; length])].into(),
        })
    }

    fn r2t(&mut self, kind: u8) -> Pdu {
        Pdu::ReadyToTransfer(ReadyToTransfer {
            lun: Lun(0),
            itt: self.itt(),
            ttt: Ttt(u32::from(kind)),
            numbers: self.numbers(false),
            r2t_sn: self.choices.number_near(0),
            buffer_offset: self.choices.length(),
            desired_data_transfer_length: self.choices.length().max(1),
        })
    }

    /// Returns a NOP-In of the target: a ping, or the answer to a ping.
    fn nop_in(&mut self, kind: u8) -> Pdu {
        Pdu::NopIn(NopIn {
            lun: Lun(0),
            itt: if kind & 8 != 0 { Itt::NONE } else { self.itt() },
            ttt: if kind & 16 != 0 { Ttt::NONE } else { Ttt(self.choices.word()) },
            numbers: self.numbers(kind & 8 == 0),
            data: vec![1; usize::from(kind)].into(),
        })
    }

    /// Returns the response to a task management function or to a text request.
    fn task_or_text(&mut self, kind: u8) -> Pdu {
        let itt = self.itt();
        let numbers = self.numbers(true);
        if kind & 8 != 0 {
            let result = TaskFunctionResult::Complete;
            Pdu::TaskResponse(TaskResponse { result, itt, numbers })
        } else {
            Pdu::TextResponse(TextResponse {
                is_final: kind & 16 != 0,
                continues: kind & 32 != 0,
                lun: Lun(0),
                itt,
                ttt: if kind & 64 != 0 { Ttt::NONE } else { Ttt(2) },
                numbers,
                text: Bytes::from_static(b"TargetName=t\0"),
            })
        }
    }

    /// Returns an asynchronous message of the target.
    fn message(&mut self, kind: u8) -> Pdu {
        let event = match kind >> 3 & 7 {
            0 => AsyncEvent::Scsi,
            1 => AsyncEvent::LogoutRequested { time: self.choices.short() },
            2 => AsyncEvent::NegotiationRequested { time: 1 },
            3 => AsyncEvent::TasksTerminated,
            _ => AsyncEvent::Other(255),
        };
        let numbers = self.numbers(true);
        let data = vec![0x70; usize::from(kind & 31)].into();
        Pdu::Async(AsyncMessage { lun: Lun(0), event, numbers, data })
    }

    /// Returns a Reject PDU for a header that the initiator has sent.
    fn rejection(&mut self, kind: u8) -> Pdu {
        let choice = usize::from(self.choices.byte());
        let index = self.headers.len().checked_sub(1 + choice % 8);
        let header = index.map(|index| self.headers[index].clone()).unwrap_or_default();
        let reason = match kind >> 4 & 3 {
            0 => RejectReason::InvalidPduField,
            1 => RejectReason::ImmediateCommandReject,
            2 => RejectReason::CommandNotSupported,
            _ => RejectReason::DataDigestError,
        };
        Pdu::Reject(Reject { reason, numbers: self.numbers(true), data_sn: 0, header })
    }

    /// Returns the response to a logout.
    fn logged_out(&mut self) -> Pdu {
        Pdu::LogoutResponse(LogoutResponse {
            result: LogoutResult::Closed,
            itt: self.itt(),
            numbers: self.numbers(true),
            time2wait: 0,
            time2retain: 0,
        })
    }

    /// Collects the PDUs that the initiator sends, and its events. Checks that each command ends
    /// once.
    fn collect(&mut self) {
        self.session.transmit();
        let output =
            self.session.output(CID).map(|output| drain(output, Digests::default(), SEGMENT));
        for pdu in output.into_iter().flatten() {
            let (bhs, ..) = pdu.clone().encode();
            let itt = Itt(u32::from_be_bytes([bhs[16], bhs[17], bhs[18], bhs[19]]));
            if itt != Itt::NONE && self.tags.last() != Some(&itt) {
                self.tags.push(itt);
                self.headers.push(Bytes::copy_from_slice(&bhs));
            }
        }
        while let Some(event) = self.session.poll_event() {
            match event {
                InitiatorEvent::Completed { tag, .. } => {
                    assert!(self.open.remove(&tag), "a command ends once");
                }
                InitiatorEvent::Returned(requests) => requests.iter().for_each(|request| {
                    assert!(self.open.remove(&request.tag), "a command ends once");
                }),
                _ => {}
            }
        }
        assert!(self.session.unanswered() <= 16);
    }
}
