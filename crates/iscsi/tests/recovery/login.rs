//! Logs in an initiator and a target directly, without a link between them, and turns their output
//! into frames.

use std::{sync::Arc, time::Instant};

use bytes::{BufMut, Bytes};
use iscsi::{
    Cid, Isid, Pdu, Serial, Tsih,
    codec::{Decoder, Digests, PduFrame, PduOutput},
    keys::NegotiationOffer,
    login::{Denial, Directory, EstablishedLogin, InitiatorLogin, InitiatorNames, InitiatorStep},
    session::{
        initiator::{self, ConnectionTiming, InitiatorCommandWindow, JoinedConnection},
        target::{self, LoginPhase, LoginProgress},
    },
};

use crate::plan::Plan;

/// Returns an offer with small lengths: the workload then has PDUs of every kind, but not too many
/// of them.
fn offer(plan: &Plan) -> NegotiationOffer {
    NegotiationOffer {
        max_connections: plan.connections,
        error_recovery_level: plan.level,
        max_recv_data_segment_length: 1024,
        first_burst_length: 2048,
        max_burst_length: 4096,
        initial_r2t: false,
        immediate_data: true,
        default_time2wait: 0,
        default_time2retain: 20,
        ..NegotiationOffer::initiator()
    }
}

struct Everyone;

impl Directory for Everyone {
    fn admit(&self, _: &str, _: Option<&str>) -> Result<u16, Denial> {
        Ok(1)
    }
}

/// A login between an initiator and a target. It takes no time and never fails.
pub struct Login {
    pub phase: LoginPhase,
    pub login: InitiatorLogin,
}

impl Login {
    pub fn new(plan: &Plan, tsih: Tsih, cid: Cid, cmd_sn: Serial, now: Instant) -> Self {
        let names = InitiatorNames {
            initiator_name: "iqn.2026-11.x:initiator".to_owned(),
            initiator_alias: None,
            target_name: Some("iqn.2026-11.x:target".to_owned()),
        };
        let isid = Isid([0x80, 0, 0, 1, 0, 0]);
        let far = NegotiationOffer { max_connections: 8, error_recovery_level: 2, ..offer(plan) };
        let phase = LoginPhase::new(far, Arc::new(Everyone), target::Settings::default(), now);
        Self { phase, login: InitiatorLogin::new(offer(plan), names, isid, tsih, cid, cmd_sn) }
    }

    pub fn run(&mut self) {
        let mut request = self.login.start();
        loop {
            let mut output = PduOutput::default();
            output.push(Pdu::LoginRequest(request), Digests::default());
            let frame = frames(&mut output, &mut plain()).remove(0);
            if matches!(self.phase.handle_frame(&frame), LoginProgress::Established(_)) {
                return;
            }
            let response = frames(self.phase.output_mut(), &mut plain()).remove(0);
            request = match step(&mut self.login, response) {
                InitiatorStep::Send(request) => request,
                other => panic!("{other:?}"),
            };
        }
    }

    pub fn finish(login: &mut InitiatorLogin, output: &mut PduOutput) -> Option<EstablishedLogin> {
        let response = frames(output, &mut plain()).remove(0);
        match step(login, response) {
            InitiatorStep::Established(established) => Some(*established),
            _ => None,
        }
    }
}

pub fn begin(
    plan: &Plan,
    tsih: u16,
    now: Instant,
) -> (initiator::InitiatorSession, target::Session) {
    let mut login = Login::new(plan, Tsih(0), Cid(0), Serial(u32::MAX - 5), now);
    login.run();
    let mut far = login.phase.accept(Tsih(tsih), now).expect("established");
    let output = far.connection_mut(Cid(0)).expect("the first").output_mut();
    let established = Login::finish(&mut login.login, output).expect("established");
    let window = InitiatorCommandWindow::new(established.cmd_sn, established.max_cmd_sn);
    let (first, timing) = (joined(&established), ConnectionTiming::default());
    let near =
        initiator::InitiatorSession::new(established.parameters, window, 64, timing, first, now);
    assert_eq!(near.parameters().error_recovery_level, plan.level);
    (near, far)
}

pub fn joined(login: &EstablishedLogin) -> JoinedConnection {
    JoinedConnection {
        cid: login.cid,
        digests: login.parameters.digests,
        max_send_data_segment_length: login.parameters.max_send_data_segment_length,
        exp_stat_sn: login.exp_stat_sn,
        exp_cmd_sn: login.exp_cmd_sn,
        max_cmd_sn: login.max_cmd_sn,
    }
}

fn plain() -> Decoder {
    Decoder::new(16384, 8192)
}

fn step(login: &mut InitiatorLogin, frame: PduFrame) -> InitiatorStep {
    match Pdu::parse(&frame.bhs, &frame.ahs, frame.data) {
        Ok(Pdu::LoginResponse(response)) => login.handle_response(response),
        other => panic!("{other:?}"),
    }
}

/// Removes all bytes from `output` and decodes them into PDUs.
pub fn frames(output: &mut PduOutput, decoder: &mut Decoder) -> Vec<PduFrame> {
    let mut frames = Vec::new();
    while !output.is_empty() {
        let mut slices = [std::io::IoSlice::new(&[]); 16];
        let used = output.slices(&mut slices);
        let bytes: Bytes = slices[..used]
            .iter()
            .flat_map(|slice| slice.iter().copied())
            .collect::<Vec<_>>()
            .into();
        output.advance(bytes.len());
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let mut buffer = decoder.buffer();
            let count = buffer.remaining_mut().min(rest.len());
            buffer.put_slice(&rest[..count]);
            rest = &rest[count..];
            while let Some(frame) = decoder.next().expect("sound") {
                frames.push(frame);
            }
        }
    }
    frames
}
