//! Simulates a path and the sessions on it in virtual time. Their connections always have data to send, or execute
//! commands. Losses and start times depend only on the seed.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use sim::Rng;

use super::{sender::Sender, sock::Control};

/// A time in nanoseconds since the start of the run.
pub type Time = u64;

pub const MILLISECOND: Time = 1_000_000;
pub const SECOND: Time = 1_000 * MILLISECOND;

#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub one_way_us: u64,
    /// Number of losses per million segments with data.
    pub lost_per_million: u64,
    pub bits_per_second: u64,
    /// The length of the queue before the link, in segments. Segments that arrive at a full queue are dropped.
    pub queue_segments: u64,
}

#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// All connections always have data to send.
    Endless,
    /// `outstanding` writes at a time, each with this number of segments. A write goes to the connection with the least
    /// outstanding data, as in our initiator.
    Commands { segments: u64, outstanding: usize },
}

/// The path, the sessions and the length of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub path: Path,
    /// For each session, the ensemble numbers of its connections.
    pub sessions: Vec<Vec<u32>>,
    pub load: Load,
    /// The length of the socket buffer of each connection, in segments.
    pub buffer_segments: u32,
    /// Duration of the warm-up, in which no values are measured.
    pub before: Time,
    pub counted: Time,
    /// Each session starts at a random time within this duration.
    pub stagger: Time,
    /// The run ends early when this number of segments has arrived.
    pub enough: u64,
}

/// The values that a simulated run has measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shown {
    pub megabits_per_second: f64,
    /// The throughput of each session in Mb/s.
    pub of_session: Vec<f64>,
    /// The sum of the windows of all connections, sampled every 10 ms.
    pub aggregate: Vec<f64>,
    /// The window of the first connection minus that of the last one, sampled every 10 ms.
    pub difference: Vec<f64>,
    pub sent: u64,
    pub retransmitted: u64,
    pub timeouts: u64,
    /// The largest window of any member, in segments.
    pub largest: u32,
    /// The total time in milliseconds that segments have waited in the queue. Dropped segments do not count.
    pub waited_ms: f64,
    pub waited: u64,
    /// Times in milliseconds from the issue of each command to its response.
    pub turnaround: Vec<f64>,
    pub ended: Time,
}

impl Shown {
    /// Returns the standard deviation of the sum of all windows, divided by the mean of that sum.
    pub fn spread(&self) -> f64 {
        deviation(&self.aggregate) / mean(&self.aggregate)
    }

    pub fn queueing_ms(&self) -> f64 {
        self.waited_ms / self.waited as f64
    }
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

pub fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    (values.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
}

/// The length in segments of the socket buffer in the paper, 512 KiB.
const PAPER_BUFFER_SEGMENTS: u32 = 512 * 1024 / 1448;
/// The number of bits of a frame with a full segment (MTU 1500).
const FRAME_BITS: u64 = 1514 * 8;
/// The number of bits of the data in a frame with a full segment (MTU 1500, timestamps).
const DATA_BITS: f64 = 1448.0 * 8.0;

/// Runs `senders` senders for the given number of seconds. Sender n is in ensemble `ensemble(n)`. The first second is
/// not measured.
pub fn run(
    path: &Path,
    control: &mut dyn Control,
    senders: usize,
    ensemble: impl Fn(usize) -> u32,
    seconds: u64,
    seed: u64,
) -> Shown {
    let plan = Plan {
        path: *path,
        sessions: vec![(0..senders).map(ensemble).collect()],
        load: Load::Endless,
        buffer_segments: PAPER_BUFFER_SEGMENTS,
        before: SECOND,
        counted: seconds * SECOND,
        stagger: 0,
        enough: u64::MAX,
    };
    play(&plan, control, seed)
}

pub fn play(plan: &Plan, control: &mut dyn Control, seed: u64) -> Shown {
    let mut run = PathRun::new(plan, seed);
    run.begin(control);
    run.advance(control);
    run.end(control)
}

/// The state of a simulated run.
struct PathRun<'a> {
    plan: &'a Plan,
    world: World,
    senders: Vec<Sender>,
    sessions: Vec<Session>,
    /// The time of the next sample of the windows.
    sample: Time,
    /// For each session, the number of segments that had arrived when the measurement began.
    before: Vec<u64>,
}

impl<'a> PathRun<'a> {
    fn new(plan: &'a Plan, seed: u64) -> Self {
        let available = if matches!(plan.load, Load::Endless) { u64::MAX } else { 0 };
        let (mut senders, mut sessions) = (vec![], vec![]);
        for ensembles in &plan.sessions {
            let first = senders.len();
            senders.extend(
                ensembles
                    .iter()
                    .zip(first..)
                    .map(|(&it, n)| Sender::new(n, it, available, plan.buffer_segments)),
            );
            sessions.push(Session { senders: first..senders.len(), waiting: vec![] });
        }
        let before = vec![0; sessions.len()];
        let world = World::new(plan.path, seed);
        Self { plan, world, senders, sessions, sample: plan.before, before }
    }

    /// Starts each session at its random time.
    fn begin(&mut self, control: &mut dyn Control) {
        let Self { plan, world, senders, sessions, .. } = self;
        senders.iter_mut().for_each(|it| control.init(&mut it.sock));
        for (number, session) in sessions.iter_mut().enumerate() {
            let begins = if plan.stagger > 0 { world.rng.below(plan.stagger) } else { 0 };
            match plan.load {
                Load::Endless => {
                    session.senders.clone().for_each(|it| senders[it].wake = begins);
                }
                Load::Commands { outstanding, .. } => {
                    session.waiting = vec![VecDeque::new(); session.senders.len()];
                    for _ in 0..outstanding {
                        world.schedule(begins, number, What::Response { issued: None });
                    }
                }
            }
        }
    }

    /// Executes events until the time of the plan is over or enough segments have arrived.
    fn advance(&mut self, control: &mut dyn Control) {
        let end = self.plan.before + self.plan.counted;
        loop {
            let event = self.world.events.peek().map_or(Time::MAX, |Reverse(it)| it.at);
            let timer = self.senders.iter().map(|it| it.timer).min().expect("a sender");
            let wake = self.senders.iter().map(|it| it.wake).min().expect("a sender");
            let next = event.min(timer).min(wake).min(self.sample);
            if next >= end {
                return;
            }
            self.world.now = next;
            if next == self.sample {
                self.take_sample();
            } else if next == timer {
                let sender = self.senders.iter_mut().find(|it| it.timer == timer);
                sender.expect("the one").time_out(control, &mut self.world);
            } else if next == wake {
                let sender = self.senders.iter_mut().find(|it| it.wake == wake);
                sender.expect("the one").send(&mut self.world);
            } else {
                let Reverse(event) = self.world.events.pop().expect("there is one");
                self.handle(event, control);
                let is_data = matches!(event.what, What::Data { .. });
                if is_data
                    && matches!(self.plan.load, Load::Endless)
                    && self.received().sum::<u64>() >= self.plan.enough
                {
                    return;
                }
            }
            for sender in &self.senders {
                self.world.shown.largest = self.world.shown.largest.max(sender.sock.snd_cwnd);
            }
        }
    }

    fn take_sample(&mut self) {
        if self.sample == self.plan.before {
            self.world.is_counted = true;
            self.before = self.received().collect();
        }
        let windows: Vec<f64> = self.senders.iter().map(|it| it.sock.snd_cwnd.into()).collect();
        self.world.shown.aggregate.push(windows.iter().sum());
        self.world.shown.difference.push(windows[0] - windows[windows.len() - 1]);
        self.sample += 10 * MILLISECOND;
    }

    fn handle(&mut self, event: Event, control: &mut dyn Control) {
        match event.what {
            What::Data { number, transmission } => {
                let what = self.senders[event.of].receiver.take(number, transmission);
                let at = self.world.now + self.world.path.one_way_us * 1000;
                self.world.schedule(at, event.of, what);
                if let Load::Commands { .. } = self.plan.load {
                    self.respond(event.of);
                }
            }
            What::Ack { next, number, transmission } => {
                let sender = &mut self.senders[event.of];
                sender.acknowledged(next, number, transmission, control, &mut self.world);
            }
            What::Response { issued } => self.issue(event.of, issued),
        }
    }

    /// Sends the responses to all commands of a sender whose data has arrived completely.
    fn respond(&mut self, number: usize) {
        let of = self.sessions.iter().position(|it| it.senders.contains(&number));
        let of = of.expect("the session of the sender");
        let session = &mut self.sessions[of];
        let waiting = &mut session.waiting[number - session.senders.start];
        while let Some(&(end, issued)) = waiting.front()
            && end <= self.senders[number].receiver.next
        {
            waiting.pop_front();
            let at = self.world.now + self.world.path.one_way_us * 1000;
            self.world.schedule(at, of, What::Response { issued: Some(issued) });
        }
    }

    /// Issues a command of a session. If this follows the response to an earlier command, `issued` is the time at which
    /// that command was issued.
    fn issue(&mut self, session: usize, issued: Option<Time>) {
        let Load::Commands { segments, .. } = self.plan.load else { unreachable!() };
        if let Some(issued) = issued
            && self.world.is_counted
        {
            let took = (self.world.now - issued) as f64 / MILLISECOND as f64;
            self.world.shown.turnaround.push(took);
        }
        let session = &mut self.sessions[session];
        let least = session.senders.clone().min_by_key(|&it| self.senders[it].to_do());
        let to = least.expect("a connection");
        let sender = &mut self.senders[to];
        sender.available += segments;
        let place = to - session.senders.start;
        session.waiting[place].push_back((sender.available, self.world.now));
        sender.send(&mut self.world);
    }

    /// Returns the number of segments that have arrived, for each session.
    fn received(&self) -> impl Iterator<Item = u64> {
        let of = move |session: &Session| {
            session.senders.clone().map(|it| self.senders[it].receiver.next).sum::<u64>()
        };
        self.sessions.iter().map(of)
    }

    fn end(mut self, control: &mut dyn Control) -> Shown {
        let seconds = self.plan.counted as f64 / SECOND as f64;
        let megabits = |segments: u64| segments as f64 * DATA_BITS / seconds / 1e6;
        let of_session =
            self.received().zip(&self.before).map(|(now, before)| megabits(now - before)).collect();
        let shown = &mut self.world.shown;
        shown.of_session = of_session;
        shown.megabits_per_second = shown.of_session.iter().sum();
        shown.ended = self.world.now;
        for sender in &mut self.senders {
            control.release(&mut sender.sock);
        }
        self.world.shown
    }
}

/// A session: the connections of an initiator to a target.
struct Session {
    senders: std::ops::Range<usize>,
    /// For each connection, the commands whose data has not arrived completely: the position in the byte stream at
    /// which the command's data ends, and the time of issue.
    waiting: Vec<VecDeque<(u64, Time)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    Data {
        number: u64,
        transmission: u64,
    },
    /// An acknowledgment: all segments before `next` have arrived, and segment `number` was the last one to arrive.
    Ack {
        next: u64,
        number: u64,
        transmission: u64,
    },
    /// The response to a command that was issued at the time `issued` arrives. If `issued` is `None`, no response
    /// arrives, but the initiator issues a new command.
    Response {
        issued: Option<Time>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: Time,
    order: u64,
    /// The number of the sender that the event is for. For a response, the number of the session.
    of: usize,
    what: What,
}

pub struct World {
    path: Path,
    pub now: Time,
    rng: Rng,
    line_is_free: Time,
    events: BinaryHeap<Reverse<Event>>,
    order: u64,
    is_counted: bool,
    pub shown: Shown,
}

impl World {
    fn new(path: Path, seed: u64) -> Self {
        Self {
            path,
            now: 0,
            rng: Rng::new(seed),
            line_is_free: 0,
            events: BinaryHeap::new(),
            order: 0,
            is_counted: false,
            shown: Shown::default(),
        }
    }

    fn schedule(&mut self, at: Time, of: usize, what: What) {
        self.order += 1;
        self.events.push(Reverse(Event { at, order: self.order, of, what }));
    }

    /// Sends a segment over the path, which may lose it.
    pub fn transmit(&mut self, sender: usize, number: u64, transmission: u64) {
        self.shown.sent += 1;
        let frame = FRAME_BITS * SECOND / self.path.bits_per_second;
        let wait = self.line_is_free.saturating_sub(self.now);
        let is_lost = self.rng.below(1_000_000) < self.path.lost_per_million;
        if wait / frame >= self.path.queue_segments {
            return;
        }
        if self.is_counted {
            self.shown.waited += 1;
            self.shown.waited_ms += wait as f64 / MILLISECOND as f64;
        }
        self.line_is_free = self.line_is_free.max(self.now) + frame;
        if !is_lost {
            let at = self.line_is_free + self.path.one_way_us * 1000;
            self.schedule(at, sender, What::Data { number, transmission });
        }
    }
}
