//! An initiator and a target joined by simulated links, with a small disk behind the target: it
//! returns and expects bytes that follow from the seed of the command.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{BufMut, Bytes};
use iscsi::{
    Cid, DataSegment, Isid, Itt, Pdu, Serial, Tsih,
    codec::{Decoder, Digests, PduOutput},
    keys::NegotiationOffer,
    login::{Denial, Directory, InitiatorLogin, InitiatorNames, InitiatorStep},
    session::{
        initiator::{
            self, CommandFailure, CommandRequest, ConnectionTiming, DataPhase,
            InitiatorCommandWindow, InitiatorEvent, InitiatorPduCounters, JoinedConnection,
        },
        target::{self, LoginPhase, LoginProgress},
    },
};
use scsi::{Cdb, Lun, ScsiStatus};
use sim::SimulatedLink;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Op {
    Read { seed: u32, length: u32 },
    Write { seed: u32, length: u32 },
}

impl Op {
    pub fn seed(self) -> u32 {
        match self {
            Self::Read { seed, .. } | Self::Write { seed, .. } => seed,
        }
    }

    fn request(self) -> CommandRequest {
        let (opcode, seed, transfer) = match self {
            Self::Read { seed, length } => (READ, seed, DataPhase::In(length)),
            Self::Write { seed, length } => (WRITE, seed, DataPhase::Out(pattern(seed, length))),
        };
        let mut cdb = [0; 16];
        cdb[0] = opcode;
        cdb[1..5].copy_from_slice(&seed.to_be_bytes());
        CommandRequest {
            tag: seed.into(),
            lun: Lun(0),
            cdb: Cdb::new(&cdb),
            transfer,
            time_out: Duration::from_secs(30),
        }
    }

    fn of(request: &CommandRequest) -> Self {
        let seed = request.tag as u32;
        match &request.transfer {
            DataPhase::Out(data) => Self::Write { seed, length: data.len() as u32 },
            DataPhase::In(length) => Self::Read { seed, length: *length },
            DataPhase::None | DataPhase::Both { .. } => {
                unreachable!("the tests have no such command")
            }
        }
    }
}

const CID: Cid = Cid(0);

const READ: u8 = 0x88;
const WRITE: u8 = 0x8a;

fn pattern(seed: u32, length: u32) -> Bytes {
    let word = |at: u32| (at ^ seed.wrapping_mul(0x9e37_79b9)).to_le_bytes();
    let bytes: Vec<u8> = (0..length.div_ceil(4)).flat_map(word).take(length as usize).collect();
    bytes.into()
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub offer: NegotiationOffer,
    /// MaxRecvDataSegmentLength of the target, in bytes.
    pub target_segment: u32,
    pub settings: target::Settings,
    pub depth: usize,
    pub discovery: bool,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            offer: NegotiationOffer::initiator(),
            target_segment: 262_144,
            settings: target::Settings::default(),
            depth: 256,
            discovery: false,
        }
    }
}

struct Everyone;

impl Directory for Everyone {
    fn admit(&self, _: &str, _: Option<&str>) -> Result<u16, Denial> {
        Ok(1)
    }
}

pub struct Pair {
    now: Instant,
    up: SimulatedLink,
    down: SimulatedLink,
    near: (initiator::InitiatorSession, Decoder),
    far: (target::Session, Decoder),
    commands: PairCommands,
    held: Vec<target::ReceivedCommand>,
    /// If true, the target's disk collects the commands and does not answer them.
    pub hold_answers: bool,
    pub aborted: u32,
    /// Events of the initiator, except completed commands.
    pub events: Vec<InitiatorEvent>,
    pub broken: Option<String>,
    /// If true, a link that is cut only becomes silent, and the ends do not see that it is closed.
    pub keep_running_when_cut: bool,
    /// Maximum number of bytes that one end receives from its link at a time.
    pub piece: usize,
    /// The names of the targets in the answer to SendTargets.
    pub targets: Vec<String>,
}

#[derive(Default)]
struct PairCommands {
    submitted: Vec<Op>,
    /// Commands that ended with status GOOD, in the order of their completion.
    done: Vec<Op>,
    failed: Vec<(u32, Result<ScsiStatus, CommandFailure>)>,
}

/// A login over two simulated links, up to the target's acceptance.
struct PairLogin {
    now: Instant,
    up: SimulatedLink,
    down: SimulatedLink,
    near: (InitiatorLogin, Decoder),
    far: (LoginPhase, Decoder),
    /// Login requests that the initiator has still to send.
    output: PduOutput,
}

impl PairLogin {
    fn new(scenario: Scenario, up: SimulatedLink, down: SimulatedLink) -> Self {
        let now = Instant::now();
        let target_offer = NegotiationOffer {
            max_recv_data_segment_length: scenario.target_segment,
            header_digest: iscsi::keys::DigestPolicy::Allow,
            data_digest: iscsi::keys::DigestPolicy::Allow,
            ..NegotiationOffer::target()
        };
        let phase = LoginPhase::new(target_offer, Arc::new(Everyone), scenario.settings, now);
        let names = InitiatorNames {
            initiator_name: "iqn.2026-11.x:initiator".to_owned(),
            initiator_alias: None,
            target_name: (!scenario.discovery).then(|| "iqn.2026-11.x:target".to_owned()),
        };
        let isid = Isid([0x80, 0, 0, 1, 0, 0]);
        let mut login =
            InitiatorLogin::new(scenario.offer, names, isid, Tsih(0), Cid(0), Serial(u32::MAX - 3));
        let mut output = PduOutput::default();
        output.push(Pdu::LoginRequest(login.start()), Digests::default());
        let decoder = || Decoder::new(16384, 8192);
        Self { now, up, down, near: (login, decoder()), far: (phase, decoder()), output }
    }

    /// Exchanges requests and responses until the target has accepted the login.
    fn exchange(&mut self) {
        loop {
            ship(&mut self.output, &mut self.up, self.now);
            self.now = self.up.arrival().expect("a request is on its way");
            take(&mut self.up, &mut self.far.1, self.now);
            let mut is_established = false;
            while let Some(frame) = self.far.1.next().expect("sound") {
                let progress = self.far.0.handle_frame(&frame);
                is_established |= matches!(progress, LoginProgress::Established(_));
            }
            if is_established {
                return;
            }
            ship(self.far.0.output_mut(), &mut self.down, self.now);
            self.now = self.down.arrival().expect("a response is on its way");
            take(&mut self.down, &mut self.near.1, self.now);
            let established = step(&mut self.near.0, &mut self.near.1, &mut self.output);
            assert!(established.is_none(), "the target is the one who ends the login");
        }
    }
}

impl Pair {
    /// Makes a pair and logs it in. `delay` is the one-way delay of the links.
    pub fn new(scenario: Scenario, delay: Duration) -> Self {
        Self::with_rate(scenario, delay, None)
    }

    pub fn with_rate(scenario: Scenario, delay: Duration, rate: Option<u64>) -> Self {
        let link = || {
            rate.map_or(SimulatedLink::new(delay), |rate| SimulatedLink::new(delay).with_rate(rate))
        };
        let depth = scenario.depth;
        let mut login = PairLogin::new(scenario, link(), link());
        login.exchange();
        let PairLogin { mut now, up, mut down, near, far, mut output } = login;
        let ((mut login, mut near_decoder), (phase, mut far_decoder)) = (near, far);
        let mut session = phase.accept(Tsih(1), now).expect("established");
        let leading = session.connection_mut(CID).expect("the leading connection");
        ship(leading.output_mut(), &mut down, now);
        now = down.arrival().expect("the last response");
        take(&mut down, &mut near_decoder, now);
        let done = step(&mut login, &mut near_decoder, &mut output).expect("established");

        let digests = done.parameters.digests;
        near_decoder.configure(65536, done.parameters.max_recv_data_segment_length, digests);
        far_decoder.configure(65536, session.parameters().max_recv_data_segment_length, digests);
        let window = InitiatorCommandWindow::new(done.cmd_sn, done.max_cmd_sn);
        let first = JoinedConnection {
            cid: done.cid,
            digests,
            max_send_data_segment_length: done.parameters.max_send_data_segment_length,
            exp_stat_sn: done.exp_stat_sn,
            exp_cmd_sn: done.exp_cmd_sn,
            max_cmd_sn: done.max_cmd_sn,
        };
        let timing = ConnectionTiming::default();
        let parameters = done.parameters;
        let near = initiator::InitiatorSession::new(parameters, window, depth, timing, first, now);
        Self {
            now,
            up,
            down,
            near: (near, near_decoder),
            far: (session, far_decoder),
            commands: PairCommands::default(),
            held: Vec::new(),
            hold_answers: false,
            aborted: 0,
            events: Vec::new(),
            broken: None,
            keep_running_when_cut: false,
            piece: usize::MAX,
            targets: Vec::new(),
        }
    }

    pub fn now(&self) -> Instant {
        self.now
    }

    pub fn submit(&mut self, op: Op) {
        self.try_submit(op).expect("there is room");
    }

    pub fn try_submit(&mut self, op: Op) -> Result<(), CommandRequest> {
        self.near.0.submit(op.request(), self.now)?;
        self.commands.submitted.push(op);
        Ok(())
    }

    /// Runs until no bytes are in flight.
    pub fn run(&mut self) {
        self.ship();
        while let Some(arrival) = self.next_arrival() {
            self.now = arrival;
            self.deliver();
        }
        self.note_cut();
    }

    /// Runs both ends for this virtual time. Timers fire when they are due.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        self.ship();
        while self.broken.is_none() {
            let timers = self.near.0.poll_timeout().into_iter();
            let timers = timers.chain(self.far.0.poll_timeout());
            // If both sessions have ended, no timer is left, and the loop stops.
            let next = timers.chain(self.next_arrival()).min().filter(|next| *next <= end);
            let Some(next) = next else { break };
            self.now = self.now.max(next);
            self.deliver();
            self.handle_timeouts();
            self.note_cut();
        }
        self.now = self.now.max(end);
    }

    /// Returns the commands that ended with status GOOD, in the order of their completion.
    pub fn take_done(&mut self) -> Vec<Op> {
        std::mem::take(&mut self.commands.done)
    }

    pub fn failures(&self) -> Vec<(u32, CommandFailure)> {
        self.commands
            .failed
            .iter()
            .filter_map(|&(seed, ended)| Some((seed, ended.err()?)))
            .collect()
    }

    pub fn failed_or_refused(&self, seed: u32) -> bool {
        self.commands.failed.iter().any(|failed| failed.0 == seed)
    }

    pub fn take_unanswered(&mut self) -> Vec<Op> {
        self.near.0.take_unanswered().iter().map(Op::of).collect()
    }

    pub fn held(&self) -> usize {
        self.held.len()
    }

    pub fn answer_held(&mut self, count: usize) {
        for command in self.held.drain(..count.min(self.held.len())).collect::<Vec<_>>() {
            self.answer(&command);
        }
        self.ship();
    }

    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    pub fn initiator_session(&self) -> &initiator::InitiatorSession {
        &self.near.0
    }

    pub fn initiator_counters(&self) -> InitiatorPduCounters {
        self.near.0.counters(CID).expect("connected")
    }

    /// Returns the number of bytes sent to the target and to the initiator, including the login.
    pub fn sent(&self) -> (u64, u64) {
        (self.up.sent(), self.down.sent())
    }

    pub fn cut_up_after(&mut self, bytes: u64) {
        self.up.cut_after(bytes);
    }

    pub fn cut_down_after(&mut self, bytes: u64) {
        self.down.cut_after(bytes);
    }

    pub fn corrupt(&mut self, upwards: bool, offset: u64, flips: u8) {
        if upwards { self.up.corrupt(offset, flips) } else { self.down.corrupt(offset, flips) }
    }

    pub fn expire(&mut self, seed: u32) {
        self.near.0.expire(seed.into(), self.now);
    }

    pub fn log_out(&mut self) {
        self.near.0.log_out(self.now);
    }

    pub fn ask_for_logout(&mut self, seconds: u16) {
        self.far.0.ask_for_logout(seconds);
    }

    pub fn send_targets(&mut self) {
        let text = Bytes::from_static(b"SendTargets=All\0");
        assert!(self.near.0.text(text, self.now));
    }

    fn next_arrival(&self) -> Option<Instant> {
        if self.is_broken() {
            return None;
        }
        self.up.arrival().into_iter().chain(self.down.arrival()).min()
    }

    fn note_cut(&mut self) {
        if (self.up.is_cut() || self.down.is_cut()) && !self.keep_running_when_cut {
            self.broken.get_or_insert("cut".to_owned());
        }
    }

    /// Delivers all bytes that are due at this time, in both directions.
    fn deliver(&mut self) {
        while let Some(bytes) = self.up.receive(self.piece, self.now) {
            self.far_receives(&bytes);
            self.ship();
        }
        while let Some(bytes) = self.down.receive(self.piece, self.now) {
            self.near_receives(&bytes);
            self.ship();
        }
    }

    fn far_receives(&mut self, bytes: &Bytes) {
        let mut rest = &bytes[..];
        while !rest.is_empty() && self.broken.is_none() {
            feed(&mut self.far.1, &mut rest);
            loop {
                match self.far.1.next() {
                    Ok(Some(frame)) => {
                        if let Err(error) = self.far.0.handle_frame(CID, frame, self.now) {
                            self.broken = Some(format!("target: {error}"));
                            return;
                        }
                        self.serve();
                    }
                    Ok(None) => break,
                    Err(error) => {
                        self.broken = Some(format!("target: {error}"));
                        return;
                    }
                }
            }
        }
    }

    fn near_receives(&mut self, bytes: &Bytes) {
        let mut rest = &bytes[..];
        while !rest.is_empty() && self.broken.is_none() {
            feed(&mut self.near.1, &mut rest);
            loop {
                match self.near.1.next() {
                    Ok(Some(frame)) => {
                        let taken = self.near.0.handle_frame(CID, frame, self.now);
                        self.take_events();
                        if let Err(error) = taken {
                            self.broken = Some(format!("initiator: {error}"));
                            return;
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        self.broken = Some(format!("initiator: {error}"));
                        return;
                    }
                }
            }
        }
    }

    fn handle_timeouts(&mut self) {
        self.near.0.handle_timeout(self.now);
        self.take_events();
        let far = self.far.0.handle_timeout(self.now);
        if let Some(error) = self.near.0.error()
            && !matches!(error, initiator::InitiatorSessionError::LoggedOut { .. })
        {
            self.broken.get_or_insert(format!("initiator: {error}"));
        }
        if let Some((_, error)) = far.first() {
            self.broken.get_or_insert(format!("target: {error}"));
        }
        self.ship();
    }

    fn take_events(&mut self) {
        while let Some(event) = self.near.0.poll_event() {
            let InitiatorEvent::Completed { tag, result } = event else {
                self.events.push(event);
                continue;
            };
            let op = *self
                .commands
                .submitted
                .iter()
                .find(|op| u64::from(op.seed()) == tag)
                .expect("known");
            match result {
                Ok(outcome) if outcome.status == ScsiStatus::Good => {
                    if let Op::Read { seed, length } = op {
                        let whole = outcome.data_in.concat();
                        assert!(whole == pattern(seed, length), "{op:?} returned other data");
                    }
                    self.commands.done.push(op);
                }
                Ok(outcome) => self.commands.failed.push((op.seed(), Ok(outcome.status))),
                Err(failure) => self.commands.failed.push((op.seed(), Err(failure))),
            }
        }
    }

    /// Lets the disk execute the commands that have arrived at the target.
    fn serve(&mut self) {
        while let Some(event) = self.far.0.poll_event() {
            match event {
                target::TargetEvent::Command(command) if self.hold_answers => {
                    self.held.push(command)
                }
                target::TargetEvent::Command(command) => self.answer(&command),
                target::TargetEvent::Admission(write) => self.far.0.admit(write.itt, None),
                target::TargetEvent::Abort(_) => self.aborted += 1,
                target::TargetEvent::Terminated(_) => {}
                target::TargetEvent::SendTargets(cid, _) => {
                    let targets = self.targets.iter().map(|name| (name.as_str(), &[][..]));
                    self.far.0.answer_send_targets(cid, targets);
                }
                target::TargetEvent::Management(_) => unreachable!("we only abort tasks"),
            }
        }
    }

    fn answer(&mut self, command: &target::ReceivedCommand) {
        let itt: Itt = command.itt;
        let seed = u32::from_be_bytes(*command.cdb[1..].first_chunk().expect("16 bytes"));
        let data = match command.cdb[0] {
            READ => DataSegment::from_elem(pattern(seed, command.data_in_capacity), 1),
            WRITE => {
                let data = command.data_out.concat();
                assert!(data == pattern(seed, data.len() as u32), "other data arrived for {seed}");
                DataSegment::new()
            }
            opcode => unreachable!("opcode {opcode:#x}"),
        };
        self.far.0.complete(itt, target::TargetCommandOutcome::good(data));
    }

    fn ship(&mut self) {
        if self.broken.is_some() {
            return;
        }
        loop {
            self.near.0.transmit();
            match self.near.0.output(CID) {
                Some(output) if !output.is_empty() => ship(output, &mut self.up, self.now),
                _ => break,
            }
        }
        let far = self.far.0.connection_mut(CID).expect("the only connection");
        ship(far.output_mut(), &mut self.down, self.now);
    }
}

fn step(
    login: &mut InitiatorLogin,
    decoder: &mut Decoder,
    output: &mut PduOutput,
) -> Option<iscsi::login::EstablishedLogin> {
    let frame = decoder.next().expect("sound").expect("a whole response");
    let Ok(Pdu::LoginResponse(response)) = Pdu::parse(&frame.bhs, &frame.ahs, frame.data) else {
        panic!("no login response")
    };
    match login.handle_response(response) {
        InitiatorStep::Send(request) => {
            output.push(Pdu::LoginRequest(request), Digests::default());
            None
        }
        InitiatorStep::Established(established) => Some(*established),
        other => panic!("{other:?}"),
    }
}

fn ship(output: &mut PduOutput, link: &mut SimulatedLink, now: Instant) {
    while !output.is_empty() {
        let mut slices = [std::io::IoSlice::new(&[]); 16];
        let used = output.slices(&mut slices);
        let bytes: Vec<u8> =
            slices[..used].iter().flat_map(|slice| slice.iter().copied()).collect();
        output.advance(bytes.len());
        link.send(&bytes, now);
    }
}

fn take(link: &mut SimulatedLink, decoder: &mut Decoder, now: Instant) {
    while let Some(bytes) = link.receive(usize::MAX, now) {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            feed(decoder, &mut rest);
        }
    }
}

fn feed(decoder: &mut Decoder, rest: &mut &[u8]) {
    let mut buffer = decoder.buffer();
    let count = buffer.remaining_mut().min(rest.len());
    buffer.put_slice(&rest[..count]);
    *rest = &rest[count..];
}
