//! A path in virtual time with the sessions on it. Their connections always have data to send, or execute commands.
//! Losses and start times depend only on the seed.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use sim::Rng;

use super::{sender::Sender, sock::Control};

/// Nanoseconds since the start.
pub type Time = u64;

pub const MILLISECOND: Time = 1_000_000;
pub const SECOND: Time = 1_000 * MILLISECOND;

/// Properties of the path.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub one_way_us: u64,
    /// Losses per million segments with data.
    pub lost_per_million: u64,
    pub bits_per_second: u64,
    /// Length of the queue at the line; segments beyond it are dropped.
    pub queue_segments: u64,
}

/// The load of a session.
#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// As much as possible.
    Endless,
    /// Writes of this many segments each, this many at a time. Each goes to the connection with the least outstanding
    /// data, as in our initiator.
    Commands { segments: u64, outstanding: usize },
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub path: Path,
    /// For each session, the ensemble of each connection.
    pub sessions: Vec<Vec<u32>>,
    pub load: Load,
    /// The socket buffer of a connection.
    pub buffer_segments: u32,
    /// Time at the start that is not measured.
    pub before: Time,
    pub counted: Time,
    /// The sessions start within this time, each at a random time.
    pub stagger: Time,
    /// The run ends when this number of segments has arrived.
    pub enough: u64,
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shown {
    pub megabits_per_second: f64,
    /// The same for each session.
    pub of_session: Vec<f64>,
    /// Sum of all windows, every 10 ms.
    pub aggregate: Vec<f64>,
    /// The first window minus the last.
    pub difference: Vec<f64>,
    pub sent: u64,
    pub retransmitted: u64,
    pub timeouts: u64,
    /// The largest window of any member, in segments.
    pub largest: u32,
    /// Sum of the time in milliseconds that segments waited in the queue, without dropped ones.
    pub waited_ms: f64,
    pub waited: u64,
    /// Milliseconds from each command to its response.
    pub turnaround: Vec<f64>,
    /// When the run ended.
    pub ended: Time,
}

impl Shown {
    /// Standard deviation of the aggregate window relative to its mean.
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

/// Socket buffers of the paper, 512 KiB.
const PAPER_BUFFER_SEGMENTS: u32 = 512 * 1024 / 1448;
/// Bytes of a frame with a full segment, and of the data in it (MTU 1500, timestamps).
const FRAME_BITS: u64 = 1514 * 8;
const DATA_BITS: f64 = 1448.0 * 8.0;

/// Runs `senders`, sender n in ensemble `ensemble(n)`, for this many seconds; the first one is not measured.
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

/// Executes the plan.
pub fn play(plan: &Plan, control: &mut dyn Control, seed: u64) -> Shown {
    let mut world = World {
        path: plan.path,
        now: 0,
        rng: Rng::new(seed),
        line_is_free: 0,
        events: BinaryHeap::new(),
        order: 0,
        is_counted: false,
        shown: Shown::default(),
    };
    let mut all = vec![];
    let mut sessions = vec![];
    for ensembles in &plan.sessions {
        let first = all.len();
        let available = if matches!(plan.load, Load::Endless) { u64::MAX } else { 0 };
        all.extend(
            ensembles
                .iter()
                .zip(first..)
                .map(|(&it, n)| Sender::new(n, it, available, plan.buffer_segments)),
        );
        sessions.push(Session { senders: first..all.len(), waiting: vec![] });
    }
    all.iter_mut().for_each(|it| control.init(&mut it.sock));
    for (number, session) in sessions.iter_mut().enumerate() {
        let begins = if plan.stagger > 0 { world.rng.below(plan.stagger) } else { 0 };
        match plan.load {
            Load::Endless => {
                session.senders.clone().for_each(|it| all[it].wake = begins);
            }
            Load::Commands { outstanding, .. } => {
                session.waiting = vec![VecDeque::new(); session.senders.len()];
                for _ in 0..outstanding {
                    world.schedule(begins, number, What::Response { issued: None });
                }
            }
        }
    }
    let end = plan.before + plan.counted;
    let mut sample = plan.before;
    let mut before = vec![0; sessions.len()];
    let received = |session: &Session, all: &[Sender]| -> u64 {
        session.senders.clone().map(|it| all[it].receiver.next).sum()
    };
    loop {
        let event = world.events.peek().map_or(Time::MAX, |Reverse(it)| it.at);
        let timer = all.iter().map(|it| it.timer).min().expect("a sender");
        let wake = all.iter().map(|it| it.wake).min().expect("a sender");
        let next = event.min(timer).min(wake).min(sample);
        if next >= end {
            break;
        }
        world.now = next;
        if next == sample {
            if sample == plan.before {
                world.is_counted = true;
                before = sessions.iter().map(|it| received(it, &all)).collect();
            }
            let windows: Vec<f64> = all.iter().map(|it| it.sock.snd_cwnd.into()).collect();
            world.shown.aggregate.push(windows.iter().sum());
            world.shown.difference.push(windows[0] - windows[windows.len() - 1]);
            sample += 10 * MILLISECOND;
        } else if next == timer {
            let sender = all.iter_mut().find(|it| it.timer == timer).expect("the one");
            sender.time_out(control, &mut world);
        } else if next == wake {
            let sender = all.iter_mut().find(|it| it.wake == wake).expect("the one");
            sender.send(&mut world);
        } else {
            let Reverse(event) = world.events.pop().expect("there is one");
            match event.what {
                What::Data { number, transmission } => {
                    let sender = &mut all[event.of];
                    let what = sender.receiver.take(number, transmission);
                    let at = world.now + world.path.one_way_us * 1000;
                    world.schedule(at, event.of, what);
                    if let Load::Commands { .. } = plan.load {
                        answer(event.of, &all[event.of], &mut sessions, &mut world);
                    } else if sessions.iter().map(|it| received(it, &all)).sum::<u64>()
                        >= plan.enough
                    {
                        break;
                    }
                }
                What::Ack { next, number, transmission } => {
                    all[event.of].acknowledged(next, number, transmission, control, &mut world);
                }
                What::Response { issued } => {
                    let Load::Commands { segments, .. } = plan.load else { unreachable!() };
                    if let Some(issued) = issued
                        && world.is_counted
                    {
                        let took = (world.now - issued) as f64 / MILLISECOND as f64;
                        world.shown.turnaround.push(took);
                    }
                    let session = &mut sessions[event.of];
                    let least = session.senders.clone().min_by_key(|&it| all[it].to_do());
                    let to = least.expect("a connection");
                    all[to].available += segments;
                    let place = to - session.senders.start;
                    session.waiting[place].push_back((all[to].available, world.now));
                    all[to].send(&mut world);
                }
            }
        }
        for sender in &all {
            world.shown.largest = world.shown.largest.max(sender.sock.snd_cwnd);
        }
    }
    let megabits =
        |segments: u64| segments as f64 * DATA_BITS / (plan.counted as f64 / SECOND as f64) / 1e6;
    world.shown.of_session = sessions
        .iter()
        .zip(before)
        .map(|(session, before)| megabits(received(session, &all) - before))
        .collect();
    world.shown.megabits_per_second = world.shown.of_session.iter().sum();
    world.shown.ended = world.now;
    for sender in &mut all {
        control.release(&mut sender.sock);
    }
    world.shown
}

/// The connections of an initiator to a target.
struct Session {
    senders: std::ops::Range<usize>,
    /// For each connection, the commands that have not arrived: the end of their data, and when they were issued.
    waiting: Vec<VecDeque<(u64, Time)>>,
}

/// Returns the responses to all commands whose data has arrived.
fn answer(number: usize, sender: &Sender, sessions: &mut [Session], world: &mut World) {
    let of = sessions.iter().position(|it| it.senders.contains(&number)).expect("its session");
    let waiting = &mut sessions[of].waiting[number - sessions[of].senders.start];
    while let Some(&(end, issued)) = waiting.front()
        && end <= sender.receiver.next
    {
        waiting.pop_front();
        let at = world.now + world.path.one_way_us * 1000;
        world.schedule(at, of, What::Response { issued: Some(issued) });
    }
}

/// An event on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    Data {
        number: u64,
        transmission: u64,
    },
    /// All segments before `next` have arrived; `number` is the one that has just arrived.
    Ack {
        next: u64,
        number: u64,
        transmission: u64,
    },
    /// The response to a command that was issued at this time, or none; the initiator sends another command.
    Response {
        issued: Option<Time>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: Time,
    order: u64,
    /// The number of the sender; for a response, that of the session.
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
    fn schedule(&mut self, at: Time, of: usize, what: What) {
        self.order += 1;
        self.events.push(Reverse(Event { at, order: self.order, of, what }));
    }

    /// A segment enters the path, and may be lost.
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
