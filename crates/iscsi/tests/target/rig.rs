//! A target session whose initiator is played by a test in virtual time. Tests send it PDUs, and
//! look at the PDUs and events that it returns.

use std::{
    io::IoSlice,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{BufMut, Bytes};
use iscsi::{
    Cid, Isid, Itt, Pdu, Serial, Tsih, Ttt,
    codec::{Decoder, Digests, PduFrame, PduOutput},
    keys::NegotiationOffer,
    login::{Denial, Directory},
    pdu::{
        DataIn, DataOut, LoginRequest, LoginResponse, LoginStage, LoginStatus, NopOut,
        ReadyToTransfer, Reject, RejectReason, ScsiCommand, ScsiResponse, TaskFunction,
        TaskFunctionResult, TaskRequest, TextRequest,
    },
    session::target::{
        Connection, LoginPhase, LoginProgress, ReceivedCommand, Session, Settings, TargetEvent,
        TargetSessionError,
    },
};
use scsi::{Cdb, Lun};

pub const TARGET: &str = "iqn.2026-11.io.forebay:target";
/// The CID of the first connection of a rig.
pub const CID: Cid = Cid(7);
const INITIATOR: &str = "iqn.2026-11.io.forebay:initiator";

pub struct OneTarget;

impl Directory for OneTarget {
    fn admit(&self, _: &str, target: Option<&str>) -> Result<u16, Denial> {
        match target {
            None | Some(TARGET) => Ok(1),
            Some(_) => Err(LoginStatus::NotFound.into()),
        }
    }
}

/// Returns `pdu` as a decoder would return it from the encoded bytes.
pub fn frame(pdu: Pdu) -> PduFrame {
    let (bhs, ahs, data) = pdu.encode();
    let (ahs, data) = (Bytes::copy_from_slice(&ahs), data.concat().into());
    PduFrame { bhs, ahs, data, is_shared: false, data_digest_error: false }
}

/// Removes all bytes from `output` and decodes them into PDUs.
pub fn drain(output: &mut PduOutput, digests: Digests) -> Vec<Pdu> {
    let mut decoder = Decoder::new(65_536, 0xff_ffff);
    decoder.configure(65_536, 0xff_ffff, digests);
    let mut pdus = Vec::new();
    while !output.is_empty() {
        let mut slices = [IoSlice::new(&[]); 8];
        let used = output.slices(&mut slices);
        let mut taken = 0;
        for slice in &slices[..used] {
            let mut rest: &[u8] = slice;
            while !rest.is_empty() {
                let mut buffer = decoder.buffer();
                let count = rest.len().min(buffer.remaining_mut());
                buffer.put_slice(&rest[..count]);
                rest = &rest[count..];
                while let Some(frame) = decoder.next().unwrap() {
                    assert!(!frame.data_digest_error);
                    pdus.push(Pdu::parse(&frame.bhs, &frame.ahs, frame.data).unwrap());
                }
            }
            taken += slice.len();
        }
        output.advance(taken);
    }
    pdus
}

pub fn login_request(text: &str) -> LoginRequest {
    LoginRequest {
        transit: true,
        continues: false,
        current_stage: LoginStage::Operational,
        next_stage: LoginStage::FullFeature,
        isid: Isid([0x80, 1, 2, 3, 4, 5]),
        tsih: Tsih(0),
        itt: Itt(0x1000),
        cid: CID,
        cmd_sn: Serial(100),
        exp_stat_sn: Serial(500),
        text: text.replace('\n', "\0").into(),
        ..Default::default()
    }
}

pub fn login_phase(offer: NegotiationOffer, settings: Settings, now: Instant) -> LoginPhase {
    LoginPhase::new(offer, Arc::new(OneTarget), settings, now)
}

/// Takes and decodes the login responses that a login phase has queued.
pub fn login_output(phase: &mut LoginPhase) -> Vec<Pdu> {
    drain(phase.output_mut(), Digests::default())
}

pub struct Rig {
    pub session: Session,
    pub now: Instant,
    pub cmd_sn: Serial,
    pub login_response: LoginResponse,
    /// The text keys that each further connection sends in its login.
    own_keys: String,
}

impl Rig {
    /// Creates a normal session. `keys` has one text key per line.
    pub fn new(keys: &str) -> Self {
        Self::with(keys, Settings::default())
    }

    pub fn with(keys: &str, settings: Settings) -> Self {
        let names = format!("InitiatorName={INITIATOR}\nTargetName={TARGET}\nSessionType=Normal\n");
        Self::log_in(&format!("{names}{keys}"), settings)
    }

    pub fn discovery(keys: &str) -> Self {
        let names = format!("InitiatorName={INITIATOR}\nSessionType=Discovery\n");
        Self::log_in(&format!("{names}{keys}"), Settings::default())
    }

    fn log_in(text: &str, settings: Settings) -> Self {
        let now = Instant::now();
        let offer = NegotiationOffer { max_outstanding_r2t: 16, ..NegotiationOffer::target() };
        let mut phase = login_phase(offer, settings, now);
        let mut request = login_request(text);
        loop {
            match phase.handle_frame(&frame(Pdu::LoginRequest(request))) {
                LoginProgress::Established(_) => break,
                LoginProgress::Continue => {}
                progress => panic!("login refused: {progress:?}"),
            }
            login_output(&mut phase);
            request = login_request("");
        }
        let is_own = |key: &&str| key.starts_with("MaxRecv") || key.contains("Digest=");
        let own_keys = text.lines().filter(is_own).map(|key| format!("{key}\n")).collect();
        let mut session = phase.accept(Tsih(3), now).unwrap();
        let connection = session.connection_mut(CID).unwrap();
        let pdus = drain(connection.output_mut(), Digests::default());
        let Some(Pdu::LoginResponse(login_response)) = pdus.last().cloned() else {
            panic!("{pdus:?}");
        };
        Self { session, now, cmd_sn: Serial(100), login_response, own_keys }
    }

    /// Tries to log in another connection. Returns the target's final response, or the status with
    /// which the target refused the login.
    pub fn try_join(&mut self, request: LoginRequest) -> Result<LoginResponse, LoginStatus> {
        let mut phase = login_phase(NegotiationOffer::target(), Settings::default(), self.now);
        let cid = request.cid;
        match phase.handle_frame(&frame(Pdu::LoginRequest(request))) {
            LoginProgress::Established(_) => {}
            progress => panic!("{progress:?}"),
        }
        if let Err(mut refused) = phase.join(&mut self.session, self.now) {
            let pdus = login_output(&mut refused.phase);
            let Some(Pdu::LoginResponse(response)) = pdus.last() else { panic!("{pdus:?}") };
            assert_eq!(response.status, refused.status);
            return Err(refused.status);
        }
        let connection = self.session.connection_mut(cid).unwrap();
        let pdus = drain(connection.output_mut(), Digests::default());
        let [Pdu::LoginResponse(response)] = &pdus[..] else { panic!("{pdus:?}") };
        Ok(response.clone())
    }

    pub fn join_request(&self, cid: u16) -> LoginRequest {
        let names = format!("InitiatorName={INITIATOR}\nTargetName={TARGET}\n");
        let text = format!("{names}SessionType=Normal\n{}", self.own_keys);
        let cmd_sn = self.cmd_sn;
        LoginRequest { tsih: Tsih(3), cid: Cid(cid), cmd_sn, ..login_request(&text) }
    }

    /// Logs in another connection with this CID, which the target must accept.
    pub fn join(&mut self, cid: u16) -> Cid {
        let request = self.join_request(cid);
        self.try_join(request).unwrap();
        Cid(cid)
    }

    /// Takes the PDUs that the target has queued on the first connection.
    pub fn output(&mut self) -> Vec<Pdu> {
        self.output_of(CID)
    }

    /// Removes and returns the PDUs that the target has queued for connection `cid`.
    pub fn output_of(&mut self, cid: Cid) -> Vec<Pdu> {
        let connection = self.session.connection_mut(cid).unwrap();
        let digests = connection.digests();
        drain(connection.output_mut(), digests)
    }

    pub fn connection(&self) -> &Connection {
        self.session.connection(CID).unwrap()
    }

    pub fn try_frame(&mut self, frame: PduFrame) -> (Result<(), TargetSessionError>, Vec<Pdu>) {
        let result = self.session.handle_frame(CID, frame, self.now);
        (result, self.output())
    }

    /// Passes a PDU to the target on one of its connections. Returns the answers on that
    /// connection.
    pub fn send_on(&mut self, cid: Cid, pdu: Pdu) -> Vec<Pdu> {
        self.session.handle_frame(cid, frame(pdu), self.now).unwrap();
        self.output_of(cid)
    }

    /// Passes `pdu` to the target, which must keep the connection open. Returns the target's answers.
    pub fn send(&mut self, pdu: Pdu) -> Vec<Pdu> {
        let (result, output) = self.try_frame(frame(pdu));
        result.unwrap();
        output
    }

    /// Returns the CmdSN for the next command, and advances the counter.
    pub fn next_cmd_sn(&mut self) -> Serial {
        let cmd_sn = self.cmd_sn;
        self.cmd_sn = cmd_sn.next();
        cmd_sn
    }

    pub fn read(&mut self, itt: u32, length: u32) -> ScsiCommand {
        ScsiCommand {
            is_final: true,
            read: true,
            attribute: 1,
            itt: Itt(itt),
            expected_data_transfer_length: length,
            cmd_sn: self.next_cmd_sn(),
            cdb: Cdb::new(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
            ..Default::default()
        }
    }

    pub fn write(
        &mut self,
        itt: u32,
        length: u32,
        immediate: usize,
        is_final: bool,
    ) -> ScsiCommand {
        ScsiCommand {
            read: false,
            write: true,
            is_final,
            data: pattern(0, immediate),
            cdb: Cdb::new(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
            ..self.read(itt, length)
        }
    }

    /// Sends a complete command. Returns the command that the driver gets.
    #[track_caller]
    pub fn deliver(&mut self, command: ScsiCommand) -> ReceivedCommand {
        let answers = self.send(Pdu::ScsiCommand(command));
        assert!(answers.is_empty(), "{answers:?}");
        self.command()
    }

    /// Returns the next command that the driver gets, which must be the next event.
    #[track_caller]
    pub fn command(&mut self) -> ReceivedCommand {
        match self.session.poll_event() {
            Some(TargetEvent::Command(command)) => command,
            event => panic!("{event:?}"),
        }
    }

    pub fn complete(
        &mut self,
        itt: u32,
        outcome: iscsi::session::target::TargetCommandOutcome,
    ) -> Vec<Pdu> {
        self.session.complete(Itt(itt), outcome);
        self.output()
    }

    /// Checks that the target has asked whether to admit write `itt`, admits it, and returns the target's answers.
    #[track_caller]
    pub fn admit(&mut self, itt: u32) -> Vec<Pdu> {
        match self.session.poll_event() {
            Some(TargetEvent::Admission(admission)) => assert_eq!(admission.itt, Itt(itt)),
            event => panic!("{event:?}"),
        }
        self.session.admit(Itt(itt), None);
        self.output()
    }

    pub fn no_event(&mut self) {
        let event = self.session.poll_event();
        assert!(event.is_none(), "{event:?}");
    }

    pub fn task_request(&mut self, function: TaskFunction, itt: u32, meant: u32) -> TaskRequest {
        TaskRequest {
            immediate: true,
            function: Ok(function),
            lun: Lun(0),
            itt: Itt(itt),
            referenced_itt: Itt(meant),
            cmd_sn: self.cmd_sn,
            exp_stat_sn: Serial(0),
            ref_cmd_sn: self.cmd_sn.add(u32::MAX),
            exp_data_sn: 0,
        }
    }

    pub fn text(&mut self, itt: u32, text: &str) -> TextRequest {
        TextRequest {
            immediate: false,
            is_final: true,
            continues: false,
            lun: Lun(0),
            itt: Itt(itt),
            ttt: Ttt::NONE,
            cmd_sn: self.next_cmd_sn(),
            exp_stat_sn: Serial(0),
            text: text.replace('\n', "\0").into(),
        }
    }

    pub fn ping(&mut self, itt: u32, data: usize) -> NopOut {
        NopOut {
            immediate: true,
            lun: Lun(0),
            itt: Itt(itt),
            ttt: Ttt::NONE,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: Serial(0),
            data: pattern(0, data),
        }
    }

    pub fn pass(&mut self, time: Duration) -> Result<(), TargetSessionError> {
        self.now += time;
        match self.session.handle_timeout(self.now).pop() {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }
}

/// Returns test data in which each byte depends on its offset in the transfer.
pub fn pattern(offset: usize, length: usize) -> Bytes {
    (offset..offset + length).map(|i| (i / 7 + i) as u8).collect()
}

pub fn data_out(itt: u32, ttt: Ttt, data_sn: u32, offset: usize, length: usize, last: bool) -> Pdu {
    Pdu::DataOut(DataOut {
        is_final: last,
        lun: Lun(0),
        itt: Itt(itt),
        ttt,
        exp_stat_sn: Serial(0),
        data_sn,
        buffer_offset: offset as u32,
        data: pattern(offset, length),
    })
}

/// Returns the data that an R2T requests, in PDUs of at most `segment` bytes.
pub fn burst(r2t: &ReadyToTransfer, segment: usize) -> Vec<Pdu> {
    let (start, length) = (r2t.buffer_offset as usize, r2t.desired_data_transfer_length as usize);
    let count = length.div_ceil(segment);
    (0..count)
        .map(|i| {
            let at = i * segment;
            let n = segment.min(length - at);
            data_out(r2t.itt.0, r2t.ttt, i as u32, start + at, n, i + 1 == count)
        })
        .collect()
}

#[track_caller]
pub fn r2ts(pdus: &[Pdu]) -> Vec<ReadyToTransfer> {
    let as_r2t = |pdu: &Pdu| match pdu {
        Pdu::ReadyToTransfer(r2t) => *r2t,
        pdu => panic!("{pdu:?}"),
    };
    pdus.iter().map(as_r2t).collect()
}

#[track_caller]
pub fn data_ins(pdus: &[Pdu]) -> Vec<&DataIn> {
    fn as_data_in(pdu: &Pdu) -> &DataIn {
        match pdu {
            Pdu::DataIn(data_in) => data_in,
            pdu => panic!("{pdu:?}"),
        }
    }
    pdus.iter().map(as_data_in).collect()
}

#[track_caller]
pub fn response(pdus: &[Pdu]) -> &ScsiResponse {
    match pdus {
        [Pdu::ScsiResponse(response)] => response,
        pdus => panic!("{pdus:?}"),
    }
}

#[track_caller]
pub fn reject(pdus: &[Pdu]) -> RejectReason {
    match pdus {
        [Pdu::Reject(Reject { reason, header, .. })] => {
            assert_eq!(header.len(), 48);
            *reason
        }
        pdus => panic!("{pdus:?}"),
    }
}

#[track_caller]
pub fn task_result(pdus: &[Pdu]) -> TaskFunctionResult {
    match pdus {
        [Pdu::TaskResponse(response)] => response.result,
        pdus => panic!("{pdus:?}"),
    }
}

/// Returns key, ASC and ASCQ of sense data in fixed format.
pub fn sense(response: &ScsiResponse) -> (u8, u8, u8) {
    assert_eq!(response.status, 2);
    let sense = &response.sense;
    (sense[2] & 0xf, sense[12], sense[13])
}
