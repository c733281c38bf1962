//! Initiator and target, joined by connections that lose or damage a PDU or end, as the plan says.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use iscsi::{
    Cid, Itt, Tsih,
    codec::{self, Decoder, Digests, PduFrame},
    session::{
        initiator::{self, InitiatorEvent, InitiatorSessionError},
        target,
    },
};

use crate::{
    login::{Login, begin, frames, joined},
    model::{App, Disk},
    plan::{Fault, Mute, Plan, Report, SCRIPT, WORKERS},
};

enum Item {
    Frame(PduFrame),
    HeaderDamaged,
    End,
}

struct Line {
    cid: Cid,
    near_open: bool,
    far_open: bool,
    delay: Duration,
    up: VecDeque<(Instant, Item)>,
    down: VecDeque<(Instant, Item)>,
    decoders: [Decoder; 2],
    is_cut: bool,
}

/// A command that the disk will execute at the time `due`.
struct Work {
    due: Instant,
    command: target::ReceivedCommand,
}

pub struct Rig {
    plan: Plan,
    now: Instant,
    begun: Instant,
    near: initiator::InitiatorSession,
    far: target::Session,
    lines: Vec<Line>,
    tsih: u16,
    app: App,
    disk: Disk,
    works: Vec<Work>,
    /// The time at which another connection joins the session.
    join_at: Option<Instant>,
    /// Task tags of the commands that were sent in this session, to recognise commands that are sent again.
    commands: BTreeSet<u32>,
    report: Report,
}

/// The most virtual time that a run may take.
const PATIENCE: Duration = Duration::from_secs(150);
const SCSI_COMMAND: u8 = 0x01;
const TASK_REQUEST: u8 = 0x02;
const SNACK: u8 = 0x10;
const MS: Duration = Duration::from_millis(1);

/// Runs the whole workload. Panics if a check of the application or the disk fails.
pub fn run(plan: Plan) -> Report {
    let mut rig = Rig::new(plan);
    rig.run();
    rig.report.answered = rig.app.answered;
    rig.report.failed = rig.app.failed;
    rig.report.seconds = (rig.now - rig.begun).as_secs();
    rig.report
}

impl Rig {
    fn new(plan: Plan) -> Self {
        let now = Instant::now();
        let mut app = App::new(WORKERS, &SCRIPT);
        (app.forgets, app.may_fail) = (plan.forgets, plan.may_fail);
        let (near, far) = begin(&plan, 1, now);
        let mut rig = Self {
            plan,
            now,
            begun: now,
            near,
            far,
            lines: Vec::new(),
            tsih: 1,
            app,
            disk: Disk::default(),
            works: Vec::new(),
            join_at: None,
            commands: BTreeSet::new(),
            report: Report::default(),
        };
        rig.add_line(Cid(0));
        for _ in 1..plan.connections {
            assert!(rig.join());
        }
        rig
    }

    fn run(&mut self) {
        loop {
            self.settle();
            if self.app.is_done() {
                return;
            }
            let next = self.next().expect("something is to come");
            self.now = self.now.max(next);
            assert!(self.now - self.begun < PATIENCE, "it hangs: {:?}", self.report);
            self.deliver();
            self.perform();
            self.look_at_clocks();
        }
    }

    fn next(&self) -> Option<Instant> {
        let arrivals = self.lines.iter().flat_map(|line| {
            let front = |queue: &VecDeque<(Instant, Item)>| queue.front().map(|item| item.0);
            [front(&line.up), front(&line.down)]
        });
        let timers = [self.near.poll_timeout(), self.far.poll_timeout(), self.join_at];
        let works = self.works.iter().map(|work| work.due);
        arrivals.chain(timers).flatten().chain(works).chain(self.near.reinstate_at()).min()
    }

    /// Processes events, submits commands and sends output until nothing more can be done at this
    /// time.
    fn settle(&mut self) {
        loop {
            self.take_near_events();
            self.take_far_events();
            if self.near.is_over() {
                self.rebuild();
            }
            if self.near.cids().next().is_none()
                && self.near.reinstate_at().is_some_and(|at| at <= self.now)
                && !self.join()
            {
                self.rebuild();
            }
            while let Some(request) = self.app.next() {
                if let Err(request) = self.near.submit(request, self.now) {
                    self.app.take_back(vec![request]);
                    break;
                }
            }
            if !self.ship() {
                return;
            }
        }
    }

    fn take_near_events(&mut self) {
        while let Some(event) = self.near.poll_event() {
            match event {
                InitiatorEvent::Completed { tag, result } => self.app.complete(tag, result),
                InitiatorEvent::Returned(requests) => self.app.take_back(requests),
                InitiatorEvent::Closed { cid, error } => {
                    self.near.close(cid, error, self.now);
                    self.hang_up(cid);
                }
                InitiatorEvent::LoggedOut { .. } | InitiatorEvent::LogoutRequested { .. } => {}
                InitiatorEvent::Text(_) | InitiatorEvent::Sense(..) => {
                    unreachable!("no test requests it")
                }
            }
        }
    }

    fn take_far_events(&mut self) {
        while let Some(event) = self.far.poll_event() {
            match event {
                target::TargetEvent::Command(command) => {
                    let write = !command.data_out.is_empty();
                    let due = self.now + if write { 3 * MS } else { MS };
                    self.works.push(Work { due, command });
                }
                target::TargetEvent::Admission(write) => self.far.admit(write.itt, None),
                target::TargetEvent::Abort(itt) => self.cancel(itt),
                target::TargetEvent::Terminated(_) => {}
                target::TargetEvent::SendTargets(..) | target::TargetEvent::Management(_) => {
                    unreachable!("the initiator does not ask for that")
                }
            }
        }
    }

    fn cancel(&mut self, itt: Itt) {
        self.works.retain(|work| work.command.itt != itt);
    }

    /// Executes the commands that are due at the disk.
    fn perform(&mut self) {
        self.works.sort_by_key(|work| work.due);
        while self.works.first().is_some_and(|work| work.due <= self.now) {
            let target::ReceivedCommand { itt, cdb, data_out, data_in_capacity, .. } =
                self.works.remove(0).command;
            let data = self.disk.perform(&cdb, &data_out, data_in_capacity);
            self.far.complete(itt, target::TargetCommandOutcome::good(data));
            // Take the events now, since one of them may abort a command that is due.
            self.take_far_events();
        }
    }

    /// Sends the queued output of initiator and target. Returns false if there was none.
    fn ship(&mut self) -> bool {
        let mut any = false;
        self.near.transmit();
        for at in 0..self.lines.len() {
            let line = &mut self.lines[at];
            let (near_open, far_open, cid) = (line.near_open, line.far_open, line.cid);
            if near_open && let Some(output) = self.near.output(cid) {
                let frames = frames(output, &mut line.decoders[0]);
                any |= !frames.is_empty();
                frames.into_iter().for_each(|frame| self.send(at, true, frame));
            }
            if far_open && let Some(connection) = self.far.connection_mut(cid) {
                let frames = frames(connection.output_mut(), &mut self.lines[at].decoders[1]);
                any |= !frames.is_empty();
                frames.into_iter().for_each(|frame| self.send(at, false, frame));
                if self.far.connection(cid).is_some_and(target::Connection::is_closing) {
                    self.far.drop_connection(cid, self.now);
                    self.far_hangs_up(at);
                }
            }
        }
        any
    }

    fn send(&mut self, at: usize, up: bool, mut frame: PduFrame) {
        if up && self.is_muted(&frame) {
            return;
        }
        self.report.pdus += 1;
        let number = self.report.pdus;
        let line = &mut self.lines[at];
        if line.is_cut {
            return;
        }
        let arrival = self.now + line.delay;
        let queue = if up { &mut line.up } else { &mut line.down };
        let fault = self.plan.fault.and_then(|(place, fault)| (place == number).then_some(fault));
        match fault {
            None => queue.push_back((arrival, Item::Frame(frame))),
            Some(Fault::Dropped) => {}
            Some(Fault::DataDamaged) if frame.data.is_empty() => {}
            Some(Fault::DataDamaged) => {
                frame.data_digest_error = true;
                let mut data = frame.data.to_vec();
                data[0] ^= 0x55;
                frame.data = data.into();
                queue.push_back((arrival, Item::Frame(frame)));
            }
            Some(Fault::HeaderDamaged) => queue.push_back((arrival, Item::HeaderDamaged)),
            Some(cut @ (Fault::Cut | Fault::CutUnnoticed)) => {
                queue.push_back((arrival, Item::Frame(frame)));
                line.is_cut = true;
                line.down.push_back((arrival + MS, Item::End));
                if cut == Fault::Cut {
                    line.up.push_back((arrival + MS, Item::End));
                }
            }
        }
    }

    fn is_muted(&mut self, frame: &PduFrame) -> bool {
        let word = |at: usize| u32::from_be_bytes(*frame.bhs[at..].first_chunk().expect("a word"));
        let opcode = frame.bhs[0] & 0x3f;
        let is_repeated = opcode == SCSI_COMMAND && !self.commands.insert(word(16));
        match self.plan.mute {
            None => false,
            Some(Mute::Snacks) => opcode == SNACK,
            Some(Mute::Reassigns) => opcode == TASK_REQUEST,
            Some(Mute::Retries) => is_repeated,
        }
    }

    fn deliver(&mut self) {
        for at in 0..self.lines.len() {
            while let Some(item) = due(&mut self.lines[at].up, self.now) {
                if self.lines[at].far_open {
                    self.far_receives(at, item);
                    self.settle();
                }
            }
            while let Some(item) = due(&mut self.lines[at].down, self.now) {
                if self.lines[at].near_open {
                    self.near_receives(at, item);
                    self.settle();
                }
            }
        }
    }

    fn far_receives(&mut self, at: usize, item: Item) {
        let cid = self.lines[at].cid;
        let ended = match item {
            Item::Frame(frame) => self.far.handle_frame(cid, frame, self.now),
            Item::HeaderDamaged => {
                Err(self.far.handle_codec_error(cid, codec::CodecError::HeaderDigest))
            }
            Item::End => {
                self.far.drop_connection(cid, self.now);
                self.far_hangs_up(at);
                return;
            }
        };
        if let Err(error) = ended {
            // Before closing the connection, send the remaining output of the target.
            self.ship();
            let all: Vec<Cid> = self.far.connections().map(target::Connection::cid).collect();
            for cid in all.into_iter().filter(|other| *other == cid || error.ends_session()) {
                self.far.drop_connection(cid, self.now);
                if let Some(at) = self.lines.iter().position(|l| l.cid == cid && l.far_open) {
                    self.far_hangs_up(at);
                }
            }
        }
    }

    fn near_receives(&mut self, at: usize, item: Item) {
        let cid = self.lines[at].cid;
        let ended = match item {
            Item::Frame(frame) => self.near.handle_frame(cid, frame, self.now),
            Item::HeaderDamaged => Err(codec::CodecError::HeaderDigest.into()),
            Item::End => Err(InitiatorSessionError::Closed),
        };
        if let Err(error) = ended {
            self.take_near_events();
            self.near.close(cid, error, self.now);
            self.hang_up(cid);
        }
    }

    fn look_at_clocks(&mut self) {
        if self.near.poll_timeout().is_some_and(|at| at <= self.now) {
            self.near.handle_timeout(self.now);
        }
        if self.far.poll_timeout().is_some_and(|at| at <= self.now) {
            for (cid, _) in self.far.handle_timeout(self.now) {
                self.far.drop_connection(cid, self.now);
                if let Some(at) = self.lines.iter().position(|l| l.cid == cid && l.far_open) {
                    self.far_hangs_up(at);
                }
            }
        }
        if self.join_at.is_some_and(|at| at <= self.now) {
            self.join_at = None;
            let present = self.near.cids().count();
            if present > 0 && present < usize::from(self.plan.connections) && !self.join() {
                self.join_at = Some(self.now + 50 * MS);
            }
        }
    }

    /// Makes the initiator close the socket of a connection.
    fn hang_up(&mut self, cid: Cid) {
        let Some(line) = self.lines.iter_mut().find(|l| l.cid == cid && l.near_open) else {
            return;
        };
        line.near_open = false;
        self.report.ended += 1;
        if !line.is_cut {
            line.up.push_back((self.now + line.delay, Item::End));
        }
        self.join_at.get_or_insert(self.now + 50 * MS);
    }

    fn far_hangs_up(&mut self, at: usize) {
        let line = &mut self.lines[at];
        line.far_open = false;
        if !line.is_cut {
            line.down.push_back((self.now + line.delay, Item::End));
        }
    }

    /// Adds a connection to the session. It replaces a failed connection if it has the same CID.
    fn join(&mut self) -> bool {
        let (cid, cmd_sn) = (self.near.next_cid(), self.near.cmd_sn());
        let mut login = Login::new(&self.plan, Tsih(self.tsih), cid, cmd_sn, self.now);
        login.run();
        // The new connection has the CID of an old one, which the target therefore closes.
        for line in self.lines.iter_mut().filter(|line| line.cid == cid) {
            line.far_open = false;
            line.up.clear();
        }
        if login.phase.join(&mut self.far, self.now).is_err() {
            return false;
        }
        self.take_far_events();
        let output = self.far.connection_mut(cid).expect("just joined").output_mut();
        let Some(established) = Login::finish(&mut login.login, output) else { return false };
        self.add_line(cid);
        self.near.join(joined(&established), self.now);
        true
    }

    fn add_line(&mut self, cid: Cid) {
        // Delay each connection differently, so that PDUs of different connections overtake each other.
        let delay = MS * (1 + 3 * u32::from(cid.0 % 4));
        let decoder = || {
            let mut decoder = Decoder::new(65536, 1 << 20);
            decoder.configure(65536, 1 << 20, Digests::default());
            decoder
        };
        self.lines.push(Line {
            cid,
            near_open: true,
            far_open: true,
            delay,
            up: VecDeque::new(),
            down: VecDeque::new(),
            decoders: [decoder(), decoder()],
            is_cut: false,
        });
    }

    /// Begins a new session after the old one has ended. The target discards the old session first.
    fn rebuild(&mut self) {
        self.take_near_events();
        let unanswered = self.near.take_unanswered();
        self.report.rebuilt += 1;
        assert!(self.report.rebuilt < 20, "sessions end again and again");
        for line in &mut self.lines {
            (line.near_open, line.far_open) = (false, false);
            line.up.clear();
            line.down.clear();
        }
        self.works.clear();
        self.commands.clear();
        self.join_at = Some(self.now + 50 * MS);
        self.tsih += 1;
        self.now += 10 * MS;
        (self.near, self.far) = begin(&self.plan, self.tsih, self.now);
        self.add_line(Cid(0));
        self.app.take_back(unanswered);
    }
}

fn due(queue: &mut VecDeque<(Instant, Item)>, now: Instant) -> Option<Item> {
    queue.pop_front_if(|(arrival, _)| *arrival <= now).map(|(_, item)| item)
}
