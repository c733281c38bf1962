//! The initiator's machine against targets that do what no target should: every answer is either
//! taken for what it is or ends the connection; nothing panics, nothing grows.

use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes};
use iscsi::{
    Cid, DataSegment, Itt, Pdu, Serial, Ttt,
    codec::{Decoder, Digests, PduFrame},
    keys::Parameters,
    pdu::{
        AsyncEvent, AsyncMessage, DataIn, DataInStatus, LogoutResponse, LogoutResult, NopIn,
        Numbers, ReadyToTransfer, Reject, RejectReason, Residual, ScsiCommand, ScsiResponse,
        TaskFunctionResult, TaskResponse, TextResponse,
    },
    session::initiator::{
        CommandDistribution, CommandFailure, CommandRequest, ConnectionTiming, DataPhase,
        InitiatorCommandWindow, InitiatorEvent, InitiatorSession, InitiatorSessionError,
        JoinedConnection,
    },
};
use proptest::prelude::*;
use scsi::{Cdb, Lun, ScsiStatus, Sense, SenseKey};

const SECOND: Duration = Duration::from_secs(1);

/// What a test does to an answer that was right.
type Change<P> = fn(&mut P);

/// The machine, with the target's part in the hand of the test.
struct Scene {
    now: Instant,
    session: InitiatorSession,
    decoder: Decoder,
    stat_sn: u32,
}

impl Scene {
    fn new() -> Self {
        let parameters = Parameters {
            initial_r2t: false,
            first_burst_length: 1024,
            max_burst_length: 4096,
            max_send_data_segment_length: 1024,
            max_outstanding_r2t: 2,
            ..Parameters::default()
        };
        Self::with(parameters)
    }

    fn with(parameters: Parameters) -> Self {
        Self::timed(parameters, ConnectionTiming::default())
    }

    fn timed(parameters: Parameters, timing: ConnectionTiming) -> Self {
        let now = Instant::now();
        let first = JoinedConnection {
            cid: Cid(0),
            digests: Digests::default(),
            max_send_data_segment_length: parameters.max_send_data_segment_length,
            exp_stat_sn: Serial(7),
            exp_cmd_sn: Serial(1),
            max_cmd_sn: Serial(32),
        };
        let window = InitiatorCommandWindow::new(Serial(1), Serial(32));
        let session = InitiatorSession::new(parameters, window, 32, timing, first, now);
        let decoder = Decoder::new(65536, 1 << 20);
        Self { now, session, decoder, stat_sn: 7 }
    }

    fn submit(&mut self, tag: u64, transfer: DataPhase) -> ScsiCommand {
        let request = CommandRequest {
            tag,
            lun: Lun(0),
            cdb: Cdb::new(&[0x28, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            transfer,
            time_out: 30 * SECOND,
        };
        self.session.submit(request, self.now).expect("there is room");
        self.sent()
            .into_iter()
            .find_map(|pdu| if let Pdu::ScsiCommand(command) = pdu { Some(command) } else { None })
            .expect("a command")
    }

    fn read(&mut self, length: u32) -> Itt {
        self.submit(1, DataPhase::In(length)).itt
    }

    fn write(&mut self, length: usize) -> Itt {
        self.submit(2, DataPhase::Out(vec![5; length].into())).itt
    }

    /// What the initiator sends.
    fn sent(&mut self) -> Vec<Pdu> {
        self.session.transmit();
        let Some(output) = self.session.output(Cid(0)) else { return Vec::new() };
        let mut pdus = Vec::new();
        while !output.is_empty() {
            let mut slices = [std::io::IoSlice::new(&[]); 8];
            let used = output.slices(&mut slices);
            let bytes: Vec<u8> = slices[..used].iter().flat_map(|s| s.iter().copied()).collect();
            output.advance(bytes.len());
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let mut buffer = self.decoder.buffer();
                let count = buffer.remaining_mut().min(rest.len());
                buffer.put_slice(&rest[..count]);
                rest = &rest[count..];
                while let Some(frame) = self.decoder.next().expect("we write it soundly") {
                    pdus.push(Pdu::parse(&frame.bhs, &frame.ahs, frame.data).expect("and rightly"));
                }
            }
        }
        pdus
    }

    fn receive(&mut self, pdu: Pdu) -> Result<(), InitiatorSessionError> {
        let (bhs, ahs, data) = pdu.encode();
        let frame = PduFrame {
            bhs,
            ahs: Bytes::copy_from_slice(&ahs),
            data: data.concat().into(),
            is_shared: false,
            data_digest_error: false,
        };
        self.session.handle_frame(Cid(0), frame, self.now)
    }

    fn next_status(&mut self) -> Numbers {
        self.stat_sn += 1;
        Numbers { stat_sn: Serial(self.stat_sn - 1), ..numbers() }
    }

    fn respond(&mut self, itt: Itt) -> ScsiResponse {
        ScsiResponse { itt, numbers: self.next_status(), ..ScsiResponse::default() }
    }

    fn pass(&mut self, time: Duration) -> Result<(), InitiatorSessionError> {
        self.now += time;
        self.session.handle_timeout(self.now);
        self.session.error().cloned().map_or(Ok(()), Err)
    }

    /// After `time` without a word a ping, and its answer, in which the target expects `exp_cmd_sn`.
    fn answer_ping(
        &mut self,
        time: Duration,
        exp_cmd_sn: Serial,
    ) -> Result<(), InitiatorSessionError> {
        self.pass(time)?;
        let pings = self.sent();
        let [Pdu::NopOut(ping)] = &pings[..] else { panic!("{pings:?}") };
        let numbers = Numbers { exp_cmd_sn, ..self.next_status() };
        let (lun, itt, ttt) = (Lun(0), ping.itt, Ttt::NONE);
        self.receive(Pdu::NopIn(NopIn { lun, itt, ttt, numbers, data: Bytes::new() }))
    }

    fn event(&mut self) -> Option<InitiatorEvent> {
        self.session.poll_event()
    }
}

fn numbers() -> Numbers {
    Numbers { stat_sn: Serial(7), exp_cmd_sn: Serial(2), max_cmd_sn: Serial(32) }
}

fn data_in(itt: Itt, data_sn: u32, buffer_offset: u32, data: &[u8]) -> DataIn {
    DataIn {
        is_final: false,
        acknowledge: false,
        status: None,
        lun: Lun(0),
        itt,
        ttt: Ttt::NONE,
        numbers: numbers(),
        data_sn,
        buffer_offset,
        data: DataSegment::from_elem(Bytes::copy_from_slice(data), 1),
    }
}

fn r2t(itt: Itt, r2t_sn: u32, buffer_offset: u32, length: u32) -> ReadyToTransfer {
    ReadyToTransfer {
        lun: Lun(0),
        itt,
        ttt: Ttt(9 + r2t_sn),
        numbers: numbers(),
        r2t_sn,
        buffer_offset,
        desired_data_transfer_length: length,
    }
}

#[test]
fn a_read_ends_with_the_status_in_its_last_data() {
    let mut scene = Scene::new();
    let itt = scene.read(1000);
    scene.receive(Pdu::DataIn(data_in(itt, 0, 0, &[1; 400]))).unwrap();
    let mut last = data_in(itt, 1, 400, &[2; 100]);
    last.numbers = scene.next_status();
    last.status = Some(DataInStatus { status: 0, residual: Residual::Underflow(500) });
    last.is_final = true;
    scene.receive(Pdu::DataIn(last)).unwrap();
    let Some(InitiatorEvent::Completed { tag: 1, result: Ok(outcome) }) = scene.event() else {
        panic!()
    };
    assert_eq!(outcome.status, ScsiStatus::Good);
    assert_eq!(outcome.residual, Residual::Underflow(500));
    assert_eq!(outcome.data_in.concat(), [&[1; 400][..], &[2; 100]].concat());
}

#[test]
fn sense_data_comes_with_check_condition() {
    let mut scene = Scene::new();
    let itt = scene.read(1000);
    let mut response = scene.respond(itt);
    let sense = Sense::new(SenseKey::MediumError, 0x11, 0);
    (response.status, response.sense) = (2, sense.to_bytes().into());
    scene.receive(Pdu::ScsiResponse(response)).unwrap();
    let Some(InitiatorEvent::Completed { result: Ok(outcome), .. }) = scene.event() else {
        panic!()
    };
    assert_eq!((outcome.status, outcome.sense), (ScsiStatus::CheckCondition, Some(sense)));
}

#[test]
fn endings_that_are_no_status_are_failures() {
    let cases: [(Change<ScsiResponse>, CommandFailure); 2] = [
        (|response| response.response = 1, CommandFailure::Response(1)),
        (|response| response.status = 0x33, CommandFailure::Status(0x33)),
    ];
    for (change, expected) in cases {
        let mut scene = Scene::new();
        let itt = scene.read(1000);
        let mut response = scene.respond(itt);
        change(&mut response);
        scene.receive(Pdu::ScsiResponse(response)).unwrap();
        let Some(InitiatorEvent::Completed { result: Err(failure), .. }) = scene.event() else {
            panic!()
        };
        assert_eq!(failure, expected);
    }
}

#[test]
fn data_in_that_does_not_fit_ends_the_connection() {
    let wrong: [(&str, Change<DataIn>); 6] = [
        ("beyond the end", |pdu| pdu.data = DataSegment::from_elem(vec![0; 1001].into(), 1)),
        ("offset", |pdu| pdu.buffer_offset = 1),
        ("offset far away", |pdu| pdu.buffer_offset = u32::MAX),
        ("DataSN", |pdu| pdu.data_sn = 1),
        ("unknown task", |pdu| pdu.itt = Itt(pdu.itt.0 ^ 0x10000)),
        ("no task", |pdu| pdu.itt = Itt::NONE),
    ];
    for (what, change) in wrong {
        let mut scene = Scene::new();
        let itt = scene.read(1000);
        let mut pdu = data_in(itt, 0, 0, &[1; 100]);
        change(&mut pdu);
        assert!(scene.receive(Pdu::DataIn(pdu)).is_err(), "{what}");
        assert_eq!(scene.session.take_unanswered().len(), 1, "{what}: to be sent again");
    }
}

#[test]
fn data_in_for_a_write_ends_the_connection() {
    let mut scene = Scene::new();
    let itt = scene.write(100);
    assert!(scene.receive(Pdu::DataIn(data_in(itt, 0, 0, &[1]))).is_err());
}

#[test]
fn data_is_sent_as_the_r2ts_ask_for_it() {
    let mut scene = Scene::new();
    let itt = scene.write(8192);
    scene.receive(Pdu::ReadyToTransfer(r2t(itt, 0, 1024, 3000))).unwrap();
    scene.receive(Pdu::ReadyToTransfer(r2t(itt, 1, 4024, 4096))).unwrap();
    let sent: Vec<_> = scene
        .sent()
        .into_iter()
        .map(|pdu| match pdu {
            Pdu::DataOut(data) => {
                (data.ttt.0, data.data_sn, data.buffer_offset, data.data.len(), data.is_final)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        (9, 0, 1024, 1024, false),
        (9, 1, 2048, 1024, false),
        (9, 2, 3072, 952, true),
        (10, 0, 4024, 1024, false),
        (10, 1, 5048, 1024, false),
        (10, 2, 6072, 1024, false),
        (10, 3, 7096, 1024, true),
    ];
    assert_eq!(sent, expected);
}

#[test]
fn r2ts_that_ask_for_what_they_must_not_end_the_connection() {
    let wrong: [(&str, Change<ReadyToTransfer>); 9] = [
        ("more than MaxBurstLength", |r2t| r2t.desired_data_transfer_length = 4097),
        ("nothing", |r2t| r2t.desired_data_transfer_length = 0),
        ("beyond the end", |r2t| r2t.buffer_offset = 8000),
        ("an overflow", |r2t| r2t.buffer_offset = u32::MAX),
        ("a gap", |r2t| r2t.buffer_offset = 1025),
        ("data again", |r2t| r2t.buffer_offset = 0),
        ("R2TSN", |r2t| r2t.r2t_sn = 1),
        ("no tag", |r2t| r2t.ttt = Ttt::NONE),
        ("unknown task", |r2t| r2t.itt = Itt(77)),
    ];
    for (what, change) in wrong {
        let mut scene = Scene::new();
        let itt = scene.write(8192);
        let mut pdu = r2t(itt, 0, 1024, 4096);
        change(&mut pdu);
        assert!(scene.receive(Pdu::ReadyToTransfer(pdu)).is_err(), "{what}");
    }
    let mut scene = Scene::new();
    let itt = scene.read(8192);
    assert!(scene.receive(Pdu::ReadyToTransfer(r2t(itt, 0, 0, 100))).is_err(), "for a read");
}

#[test]
fn more_r2ts_than_agreed_end_the_connection() {
    let mut scene = Scene::new();
    let itt = scene.write(8192);
    for r2t_sn in 0..2 {
        scene.receive(Pdu::ReadyToTransfer(r2t(itt, r2t_sn, 1024 + r2t_sn * 10, 10))).unwrap();
    }
    assert!(scene.receive(Pdu::ReadyToTransfer(r2t(itt, 2, 1044, 10))).is_err());
}

#[test]
fn a_write_that_ends_early_stops_its_data() {
    let mut scene = Scene::new();
    let itt = scene.write(8192);
    scene.receive(Pdu::ReadyToTransfer(r2t(itt, 0, 1024, 4096))).unwrap();
    let mut response = scene.respond(itt);
    response.status = 8;
    scene.receive(Pdu::ScsiResponse(response)).unwrap();
    assert_eq!(scene.sent(), []);
    assert!(matches!(scene.event(), Some(InitiatorEvent::Completed { result: Ok(_), .. })));
}

#[test]
fn good_for_a_write_without_its_data_is_not_believed() {
    let mut scene = Scene::new();
    let itt = scene.write(8192);
    let response = scene.respond(itt);
    assert!(scene.receive(Pdu::ScsiResponse(response)).is_err());
    assert!(scene.event().is_none());
    assert_eq!(scene.session.take_unanswered().len(), 1, "the next session has to do it again");
}

#[test]
fn a_second_answer_ends_the_connection() {
    let mut scene = Scene::new();
    let itt = scene.read(100);
    let response = scene.respond(itt);
    scene.receive(Pdu::ScsiResponse(response)).unwrap();
    // the place is used again under another tag
    assert_ne!(scene.read(100), itt);
    let again = scene.respond(itt);
    assert!(scene.receive(Pdu::ScsiResponse(again)).is_err());
}

#[test]
fn a_stat_sn_out_of_order_ends_the_connection() {
    for wrong in [6, 8] {
        let mut scene = Scene::new();
        let itt = scene.read(100);
        let mut response = scene.respond(itt);
        response.numbers.stat_sn = Serial(wrong);
        assert!(scene.receive(Pdu::ScsiResponse(response)).is_err());
    }
}

#[test]
fn answers_that_were_not_asked_for_end_the_connection() {
    let itt = Itt(0x1_fffe);
    let unasked = [
        Pdu::NopIn(NopIn {
            lun: Lun(0),
            itt,
            ttt: Ttt::NONE,
            numbers: numbers(),
            data: Bytes::new(),
        }),
        Pdu::TaskResponse(TaskResponse {
            result: TaskFunctionResult::Complete,
            itt,
            numbers: numbers(),
        }),
        Pdu::TextResponse(TextResponse {
            is_final: true,
            continues: false,
            lun: Lun(0),
            itt,
            ttt: Ttt::NONE,
            numbers: numbers(),
            text: Bytes::new(),
        }),
        Pdu::LogoutResponse(LogoutResponse {
            result: LogoutResult::Closed,
            itt,
            numbers: numbers(),
            time2wait: 0,
            time2retain: 0,
        }),
        Pdu::LoginResponse(iscsi::pdu::LoginResponse { itt, ..Default::default() }),
        Pdu::ScsiCommand(ScsiCommand { itt, is_final: true, ..Default::default() }),
    ];
    for pdu in unasked {
        assert!(Scene::new().receive(pdu.clone()).is_err(), "{pdu:?}");
    }
}

#[test]
fn a_rejected_command_fails_alone() {
    let mut scene = Scene::new();
    let command = scene.submit(3, DataPhase::In(100));
    let itt = command.itt;
    let (header, ..) = Pdu::ScsiCommand(command).encode();
    let reject = |numbers, reason| {
        let header = Bytes::copy_from_slice(&header);
        Pdu::Reject(Reject { reason, numbers, data_sn: 0, header })
    };
    let numbers = scene.next_status();
    scene.receive(reject(numbers, RejectReason::InvalidPduField)).unwrap();
    match scene.event() {
        Some(InitiatorEvent::Completed { tag: 3, result: Err(failure) }) => {
            assert_eq!(failure, CommandFailure::Rejected(RejectReason::InvalidPduField));
        }
        other => panic!("{other:?}"),
    }
    // its tag means nothing any more
    assert!(scene.receive(Pdu::DataIn(data_in(itt, 0, 0, &[1]))).is_err());
}

#[test]
fn a_command_that_arrived_damaged_is_sent_again_by_way_of_a_new_session() {
    let mut scene = Scene::new();
    let command = scene.submit(3, DataPhase::In(100));
    let (header, ..) = Pdu::ScsiCommand(command).encode();
    let reject = Reject {
        reason: RejectReason::DataDigestError,
        numbers: scene.next_status(),
        data_sn: 0,
        header: Bytes::copy_from_slice(&header),
    };
    assert!(scene.receive(Pdu::Reject(reject)).is_err());
    assert_eq!(scene.session.take_unanswered()[0].tag, 3);
}

#[test]
fn a_reject_of_half_a_header_ends_the_connection() {
    let mut scene = Scene::new();
    let reject = Reject {
        reason: RejectReason::ProtocolError,
        numbers: scene.next_status(),
        data_sn: 0,
        header: Bytes::from_static(&[1; 20]),
    };
    assert!(scene.receive(Pdu::Reject(reject)).is_err());
}

#[test]
fn a_data_digest_error_ends_the_connection() {
    let mut scene = Scene::new();
    let itt = scene.read(100);
    let (bhs, _, data) = Pdu::DataIn(data_in(itt, 0, 0, &[1; 100])).encode();
    let frame = PduFrame {
        bhs,
        ahs: Bytes::new(),
        data: data.concat().into(),
        is_shared: false,
        data_digest_error: true,
    };
    let taken = scene.session.handle_frame(Cid(0), frame, scene.now);
    assert_eq!(taken, Err(InitiatorSessionError::DataDigest));
}

#[test]
fn an_abort_that_is_not_answered_ends_the_connection() {
    let mut scene = Scene::new();
    scene.read(100);
    scene.pass(4 * SECOND).unwrap();
    // something is heard all the time, so it is not the ping that ends it
    let news = |scene: &mut Scene| {
        let nop = NopIn {
            lun: Lun(0),
            itt: Itt::NONE,
            ttt: Ttt::NONE,
            numbers: numbers(),
            data: Bytes::new(),
        };
        scene.receive(Pdu::NopIn(nop)).unwrap();
    };
    while !scene.sent().iter().any(|pdu| matches!(pdu, Pdu::TaskRequest(_))) {
        news(&mut scene);
        scene.pass(SECOND).unwrap();
    }
    news(&mut scene);
    scene.pass(4 * SECOND).unwrap();
    news(&mut scene);
    assert_eq!(scene.pass(SECOND), Err(InitiatorSessionError::Unanswered("an ABORT TASK")));
    assert_eq!(scene.session.take_unanswered().len(), 1);
}

#[test]
fn an_answer_that_crosses_its_abort_counts() {
    let mut scene = Scene::new();
    let itt = scene.read(100);
    scene.pass(31 * SECOND).unwrap();
    let abort = scene
        .sent()
        .into_iter()
        .find_map(|pdu| if let Pdu::TaskRequest(abort) = pdu { Some(abort) } else { None })
        .expect("an ABORT TASK");
    assert_eq!(abort.referenced_itt, itt);
    let response = scene.respond(itt);
    scene.receive(Pdu::ScsiResponse(response)).unwrap();
    assert!(matches!(scene.event(), Some(InitiatorEvent::Completed { result: Ok(_), .. })));
    let answer = TaskResponse {
        result: TaskFunctionResult::NoTask,
        itt: abort.itt,
        numbers: scene.next_status(),
    };
    scene.receive(Pdu::TaskResponse(answer)).unwrap();
    assert!(scene.event().is_none());
}

#[test]
fn a_target_that_drops_the_session_says_when_to_come_back() {
    let mut scene = Scene::new();
    let news = AsyncMessage {
        lun: Lun(0),
        event: AsyncEvent::SessionDropped { time2wait: 3, time2retain: 0 },
        numbers: scene.next_status(),
        data: Bytes::new(),
    };
    assert_eq!(
        scene.receive(Pdu::Async(news)),
        Err(InitiatorSessionError::SessionDropped { time2wait: 3 })
    );
}

/// The target asks for a logout at once, with commands on their way; returns the request.
fn asked_to_log_out(scene: &mut Scene) -> Itt {
    let news = AsyncMessage {
        lun: Lun(0),
        event: AsyncEvent::LogoutRequested { time: 0 },
        numbers: scene.next_status(),
        data: Bytes::new(),
    };
    scene.receive(Pdu::Async(news)).unwrap();
    let logout = |pdu| if let Pdu::LogoutRequest(request) = pdu { Some(request.itt) } else { None };
    scene.sent().into_iter().find_map(logout).expect("a logout")
}

fn logged_out(scene: &mut Scene, itt: Itt, result: LogoutResult) -> Pdu {
    let numbers = scene.next_status();
    Pdu::LogoutResponse(LogoutResponse { result, itt, numbers, time2wait: 0, time2retain: 0 })
}

#[test]
fn an_answer_behind_that_to_the_logout_is_none() {
    let mut scene = Scene::new();
    let read = scene.read(512);
    let itt = asked_to_log_out(&mut scene);
    let answer = logged_out(&mut scene, itt, LogoutResult::Closed);
    scene.receive(answer).unwrap();
    assert!(scene.session.is_over());
    let late = scene.respond(read);
    scene.receive(Pdu::ScsiResponse(late)).unwrap();
    let events: Vec<InitiatorEvent> = std::iter::from_fn(|| scene.session.poll_event()).collect();
    assert!(
        !events.iter().any(|event| matches!(event, InitiatorEvent::Completed { .. })),
        "{events:?}"
    );
    let unanswered: Vec<u64> = scene.session.take_unanswered().iter().map(|r| r.tag).collect();
    assert_eq!(unanswered, [1], "it is for the next session");
}

#[test]
fn what_a_connection_carried_comes_back_only_when_its_logout_has_ended_it() {
    for result in [LogoutResult::Closed, LogoutResult::CleanupFailed, LogoutResult::CidNotFound] {
        let mut scene = Scene::new();
        scene.write(512);
        let another = JoinedConnection {
            cid: Cid(1),
            digests: Digests::default(),
            max_send_data_segment_length: 1024,
            exp_stat_sn: Serial(7),
            exp_cmd_sn: Serial(1),
            max_cmd_sn: Serial(32),
        };
        scene.session.join(another, scene.now);
        let itt = asked_to_log_out(&mut scene);
        let answer = logged_out(&mut scene, itt, result);
        scene.receive(answer).unwrap();
        let events: Vec<InitiatorEvent> =
            std::iter::from_fn(|| scene.session.poll_event()).collect();
        let returned = events.iter().any(|event| matches!(event, InitiatorEvent::Returned(_)));
        let ended = result == LogoutResult::Closed;
        assert_eq!((returned, scene.session.is_over()), (ended, !ended), "{result:?}");
        let left = if ended { 0 } else { 1 };
        assert_eq!(scene.session.take_unanswered().len(), left, "{result:?}");
    }
}

#[test]
fn news_of_a_unit_arrive_with_their_sense_data() {
    let mut scene = Scene::new();
    let sense = Sense::new(SenseKey::UnitAttention, 0x2a, 0x09);
    let news = AsyncMessage {
        lun: Lun(5),
        event: AsyncEvent::Scsi,
        numbers: scene.next_status(),
        data: sense.to_bytes().into(),
    };
    scene.receive(Pdu::Async(news)).unwrap();
    match scene.event() {
        Some(InitiatorEvent::Sense(lun, arrived)) => {
            assert_eq!((lun, arrived), (Lun(5), Some(sense)))
        }
        _ => panic!("no news"),
    }
}

#[test]
fn a_negotiation_that_is_asked_for_is_begun() {
    let mut scene = Scene::new();
    let news = AsyncMessage {
        lun: Lun(0),
        event: AsyncEvent::NegotiationRequested { time: 3 },
        numbers: scene.next_status(),
        data: Bytes::new(),
    };
    scene.receive(Pdu::Async(news)).unwrap();
    assert!(matches!(scene.sent()[..], [Pdu::TextRequest(_)]));
}

#[test]
fn text_without_end_ends_the_connection() {
    for text in [&b""[..], &[b'x'; 8000]] {
        let mut scene = Scene::new();
        let wish = Bytes::from_static(b"SendTargets=All\0");
        assert!(scene.session.text(wish.clone(), scene.now));
        assert!(!scene.session.text(wish, scene.now), "one at a time");
        let itt = match &scene.sent()[..] {
            [Pdu::TextRequest(request)] => request.itt,
            other => panic!("{other:?}"),
        };
        let ended = (0..1000).any(|_| {
            let response = TextResponse {
                is_final: false,
                continues: true,
                lun: Lun(0),
                itt,
                ttt: Ttt(1),
                numbers: scene.next_status(),
                text: Bytes::copy_from_slice(text),
            };
            scene.receive(Pdu::TextResponse(response)).is_err()
        });
        assert!(ended);
    }
}

#[test]
fn pings_are_answered_under_their_tag() {
    let mut scene = Scene::new();
    let ping =
        NopIn { lun: Lun(5), itt: Itt::NONE, ttt: Ttt(3), numbers: numbers(), data: Bytes::new() };
    scene.receive(Pdu::NopIn(ping)).unwrap();
    match &scene.sent()[..] {
        [Pdu::NopOut(pong)] => {
            assert_eq!((pong.itt, pong.ttt, pong.lun), (Itt::NONE, Ttt(3), Lun(5)));
            assert!(pong.immediate, "it takes no place in the command order");
        }
        other => panic!("{other:?}"),
    }
}

/// LIO counts what came ahead of its turn on several connections one by one, as it begins it: a ping
/// that is answered meanwhile says that a command has not arrived, and it has.
#[test]
fn a_command_that_one_ping_says_has_not_arrived_may_have() {
    let mut scene = Scene::new();
    let command = scene.submit(1, DataPhase::In(8));
    scene.answer_ping(5 * SECOND, command.cmd_sn).unwrap();
    scene.answer_ping(5 * SECOND, command.cmd_sn.next()).unwrap();
    let answer = scene.respond(command.itt);
    scene.receive(Pdu::ScsiResponse(answer)).unwrap();
    assert!(matches!(scene.event(), Some(InitiatorEvent::Completed { tag: 1, result: Ok(_) })));
}

#[test]
fn a_command_that_pings_go_on_to_miss_ends_the_connection() {
    let mut scene = Scene::new();
    let command = scene.submit(1, DataPhase::In(8));
    scene.answer_ping(5 * SECOND, command.cmd_sn).unwrap();
    let lost = InitiatorSessionError::Unanswered("a command, which did not arrive");
    assert_eq!(scene.answer_ping(5 * SECOND, command.cmd_sn), Err(lost));
}

#[test]
fn a_suspended_process_asks_before_it_judges() {
    let mut scene = Scene::new();
    scene.pass(3600 * SECOND).unwrap();
    assert!(matches!(scene.sent()[..], [Pdu::NopOut(_)]));
    scene.pass(4 * SECOND).unwrap();
    assert_eq!(scene.pass(SECOND), Err(InitiatorSessionError::Silent));
}

/// Over a slow link a ping waits behind seconds of data: connections of a session were taken for failed one
/// after the other, and their data sent anew on the next.
#[test]
fn a_connection_that_carries_bytes_has_not_failed() {
    let mut scene = Scene::new();
    scene.pass(5 * SECOND).unwrap();
    assert!(matches!(scene.sent()[..], [Pdu::NopOut(_)]));
    for _ in 0..20 {
        scene.pass(4 * SECOND).unwrap();
        scene.session.note_carried(Cid(0), scene.now);
    }
    assert_eq!(scene.pass(5 * SECOND), Err(InitiatorSessionError::Silent));
}

#[test]
fn until_it_is_answered_it_is_known_where_a_ping_ends() {
    let mut scene = Scene::new();
    assert_eq!(scene.session.asked(Cid(0)), None);
    scene.write(100);
    scene.pass(5 * SECOND).unwrap();
    let end = |scene: &mut Scene| scene.session.output(Cid(0)).expect("it is there").end();
    let ends = end(&mut scene);
    assert_eq!(scene.session.asked(Cid(0)), Some(ends));
    let pings = scene.sent();
    let [Pdu::NopOut(ping)] = &pings[..] else { panic!("{pings:?}") };
    assert_eq!(scene.session.output(Cid(0)).map(|output| output.written()), Some(ends));
    scene.write(100);
    assert!(end(&mut scene) > ends);
    assert_eq!(scene.session.asked(Cid(0)), Some(ends), "what comes after it is after it");
    let numbers = Numbers { exp_cmd_sn: Serial(3), ..scene.next_status() };
    let (lun, itt, ttt) = (Lun(0), ping.itt, Ttt::NONE);
    scene.receive(Pdu::NopIn(NopIn { lun, itt, ttt, numbers, data: Bytes::new() })).unwrap();
    assert_eq!(scene.session.asked(Cid(0)), None);
}

/// Eight reads, of which every other is long: the connections that the commands leave on.
fn spread_over_two(spread: CommandDistribution) -> [usize; 2] {
    let mut scene = Scene::new();
    let first = JoinedConnection {
        cid: Cid(1),
        digests: Digests::default(),
        max_send_data_segment_length: 1024,
        exp_stat_sn: Serial(7),
        exp_cmd_sn: Serial(1),
        max_cmd_sn: Serial(32),
    };
    scene.session.join(first, scene.now);
    scene.session.set_spread(spread);
    for tag in 0..8 {
        let request = CommandRequest {
            tag,
            lun: Lun(0),
            cdb: Cdb::new(&[0x28, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            transfer: DataPhase::In(if tag % 2 == 0 { 512 } else { 64 * 512 }),
            time_out: 30 * SECOND,
        };
        scene.session.submit(request, scene.now).expect("there is room");
    }
    scene.session.transmit();
    [Cid(0), Cid(1)].map(|cid| scene.session.load(cid).expect("it is there").commands as usize)
}

#[test]
fn commands_go_to_the_connection_with_the_least_to_do_or_in_turn() {
    assert_eq!(spread_over_two(CommandDistribution::InTurn), [4, 4]);
    let [first, second] = spread_over_two(CommandDistribution::LeastToDo);
    assert!(
        first + second == 8 && first != second,
        "{first} and {second}: by bytes, not by number"
    );
}

/// What is made for a connection waits behind what that has to send, and commands that come after it in
/// the order of the session wait for it with their own data sent long ago.
#[test]
fn a_connection_that_sends_nothing_is_given_little() {
    const SIZE: usize = 128 << 10;
    let parameters = Parameters {
        first_burst_length: SIZE as u32,
        max_send_data_segment_length: SIZE as u32,
        ..Parameters::default()
    };
    let mut scene = Scene::timed(parameters, ConnectionTiming::default());
    scene.session.join(
        JoinedConnection {
            cid: Cid(1),
            digests: Digests::default(),
            max_send_data_segment_length: SIZE as u32,
            exp_stat_sn: Serial(7),
            exp_cmd_sn: Serial(1),
            max_cmd_sn: Serial(32),
        },
        scene.now,
    );
    for tag in 0..16 {
        let request = CommandRequest {
            tag,
            lun: Lun(0),
            cdb: Cdb::new(&[0x2a, 0, 0, 0, 0, 0, 0, 1, 0, 0]),
            transfer: DataPhase::Out(vec![5; SIZE].into()),
            time_out: 30 * SECOND,
        };
        scene.session.submit(request, scene.now).expect("there is room");
    }
    // The socket of one takes all that there is, that of the other nothing.
    for _ in 0..16 {
        scene.session.transmit();
        let output = scene.session.output(Cid(0)).expect("it is there");
        output.advance(output.len());
    }
    let commands = [Cid(0), Cid(1)].map(|cid| scene.session.load(cid).expect("there").commands);
    assert_eq!(commands, [15, 1]);
}

/// Whoever sets one of the two times may leave the other at its default.
#[test]
fn a_ping_may_be_given_up_sooner_than_a_stall_is_noticed() {
    let tenth = SECOND / 10;
    let timing = ConnectionTiming { ping_time_out: tenth, ..ConnectionTiming::default() };
    assert!(timing.stall_time_out > tenth);
    let mut scene = Scene::timed(Parameters::default(), timing);
    scene.pass(5 * SECOND).unwrap();
    assert!(matches!(scene.sent()[..], [Pdu::NopOut(_)]));
    assert_eq!(scene.session.poll_timeout(), Some(scene.now + tenth));
    assert_eq!(scene.pass(tenth), Err(InitiatorSessionError::Silent));
}

proptest! {
    /// Random headers, with tags that exist or nearly do.
    #[test]
    fn hostile_headers_do_no_harm(
        headers in proptest::collection::vec((any::<[u8; 48]>(), 0u8..0x40, 0u8..3), 1..20),
        data in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut scene = Scene::new();
        let tags = [scene.read(1000), scene.write(5000), Itt::NONE];
        for (mut bhs, opcode, tag) in headers {
            bhs[0] = opcode;
            bhs[16..20].copy_from_slice(&tags[usize::from(tag)].0.to_be_bytes());
            // numbers that pass, so that what is behind them is reached
            bhs[24..28].copy_from_slice(&scene.stat_sn.to_be_bytes());
            let data = Bytes::copy_from_slice(&data);
            let ahs = Bytes::new();
            let frame = PduFrame { bhs, ahs, data, is_shared: false, data_digest_error: false };
            if scene.session.handle_frame(Cid(0), frame, scene.now).is_err() {
                break;
            }
            scene.sent();
        }
        while scene.event().is_some() {}
        prop_assert!(scene.session.take_unanswered().len() <= 2);
    }
}
