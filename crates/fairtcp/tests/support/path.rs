//! A path in virtual time, and TCP senders on it that have always something to send: selective
//! acknowledgments, fast retransmit, loss recovery and timeouts as Linux has them, as far as a congestion
//! control can tell. Nothing but the seed decides what is lost.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use sim::Rng;

use super::sock::{
    CWR, Control, DATA_ACKED, DISORDER, INFINITE_SSTHRESH, LOSS, OPEN, RECOVERY, SND_UNA_ADVANCED,
    Sample, Sock,
};

/// Nanoseconds since the start.
type Time = u64;

const MILLISECOND: Time = 1_000_000;
const SECOND: Time = 1_000 * MILLISECOND;

/// What the path does to segments.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub one_way_us: u64,
    /// Lost of each million that carry data.
    pub lost_per_million: u64,
    pub bits_per_second: u64,
    /// What waits for the line; more is dropped.
    pub queue_segments: u64,
}

/// What a run showed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shown {
    pub megabits_per_second: f64,
    /// Sum of the windows of all, every 10 ms.
    pub aggregate: Vec<f64>,
    /// The first window less the second.
    pub difference: Vec<f64>,
    pub sent: u64,
    pub retransmitted: u64,
    pub timeouts: u64,
    /// The largest window that a member ever had, in segments.
    pub largest: u32,
}

impl Shown {
    /// Standard deviation of the aggregate window in parts of its mean.
    pub fn spread(&self) -> f64 {
        deviation(&self.aggregate) / mean(&self.aggregate)
    }
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

pub fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    (values.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
}

/// Bytes of a frame with a full segment, and of the data in it (MTU 1500, timestamps).
const FRAME_BITS: u64 = 1514 * 8;
const DATA_BITS: f64 = 1448.0 * 8.0;
/// Socket buffers of the paper, 512 KiB.
const BUFFER_SEGMENTS: u32 = 512 * 1024 / 1448;
/// A segment sent so many transmissions before one that has arrived is lost.
const REORDERING: u64 = 3;
const LEAST_RTO: Time = 200 * MILLISECOND;
const MOST_RTO: Time = 120 * SECOND;

/// Runs `senders` of ensemble `ensemble(n)` for so many seconds; the first is not counted.
pub fn run(
    path: &Path,
    control: &mut dyn Control,
    senders: usize,
    ensemble: impl Fn(usize) -> u32,
    seconds: u64,
    seed: u64,
) -> Shown {
    let mut world = World {
        path: *path,
        now: 0,
        rng: Rng::new(seed),
        line_is_free: 0,
        events: BinaryHeap::new(),
        order: 0,
        shown: Shown::default(),
    };
    let mut all: Vec<Sender> = (0..senders).map(|n| Sender::new(n, ensemble(n))).collect();
    for sender in &mut all {
        control.init(&mut sender.sock);
        sender.send(&mut world);
    }
    let end = (seconds + 1) * SECOND;
    let mut sample = SECOND;
    let mut received_before = 0;
    loop {
        let event = world.events.peek().map_or(Time::MAX, |Reverse(it)| it.at);
        let timer = all.iter().map(|it| it.timer).min().expect("a sender");
        let next = event.min(timer).min(sample);
        if next >= end {
            break;
        }
        world.now = next;
        if next == sample {
            if sample == SECOND {
                received_before = all.iter().map(|it| it.receiver.next).sum();
            }
            let windows: Vec<f64> = all.iter().map(|it| it.sock.snd_cwnd.into()).collect();
            world.shown.aggregate.push(windows.iter().sum());
            world.shown.difference.push(windows[0] - windows[windows.len() - 1]);
            sample += 10 * MILLISECOND;
        } else if next == timer {
            let sender = all.iter_mut().find(|it| it.timer == timer).expect("the one");
            sender.time_out(control, &mut world);
        } else {
            let Reverse(event) = world.events.pop().expect("there is one");
            let sender = &mut all[event.sender];
            match event.what {
                What::Data { number, transmission } => {
                    let what = sender.receiver.take(number, transmission);
                    world.schedule(world.now + world.path.one_way_us * 1000, event.sender, what);
                }
                What::Ack { next, number, transmission } => {
                    sender.acknowledged(next, number, transmission, control, &mut world);
                }
            }
        }
        for sender in &all {
            world.shown.largest = world.shown.largest.max(sender.sock.snd_cwnd);
        }
    }
    let received: u64 = all.iter().map(|it| it.receiver.next).sum();
    world.shown.megabits_per_second =
        (received - received_before) as f64 * DATA_BITS / seconds as f64 / 1e6;
    for sender in &mut all {
        control.release(&mut sender.sock);
    }
    world.shown
}

/// What is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Data {
        number: u64,
        transmission: u64,
    },
    /// All before `next` are there; `number` is what has just arrived.
    Ack {
        next: u64,
        number: u64,
        transmission: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: Time,
    order: u64,
    sender: usize,
    what: What,
}

struct World {
    path: Path,
    now: Time,
    rng: Rng,
    line_is_free: Time,
    events: BinaryHeap<Reverse<Event>>,
    order: u64,
    shown: Shown,
}

impl World {
    fn schedule(&mut self, at: Time, sender: usize, what: What) {
        self.order += 1;
        self.events.push(Reverse(Event { at, order: self.order, sender, what }));
    }

    /// A segment enters the path, and may never leave it.
    fn transmit(&mut self, sender: usize, number: u64, transmission: u64) {
        self.shown.sent += 1;
        let frame = FRAME_BITS * SECOND / self.path.bits_per_second;
        let waiting = self.line_is_free.saturating_sub(self.now) / frame;
        let is_lost = self.rng.below(1_000_000) < self.path.lost_per_million;
        if waiting >= self.path.queue_segments {
            return;
        }
        self.line_is_free = self.line_is_free.max(self.now) + frame;
        if !is_lost {
            let at = self.line_is_free + self.path.one_way_us * 1000;
            self.schedule(at, sender, What::Data { number, transmission });
        }
    }
}

/// The far end: acknowledges each segment as it comes.
#[derive(Default)]
struct Receiver {
    next: u64,
    beyond: BTreeMap<u64, ()>,
}

impl Receiver {
    fn take(&mut self, number: u64, transmission: u64) -> What {
        if number >= self.next {
            self.beyond.insert(number, ());
        }
        while self.beyond.remove(&self.next).is_some() {
            self.next += 1;
        }
        What::Ack { next: self.next, number, transmission }
    }
}

/// A segment that is not acknowledged cumulatively.
#[derive(Clone, Copy)]
struct Segment {
    transmission: u64,
    sent_at: Time,
    is_sacked: bool,
    is_lost: bool,
    /// Sent again, and not known to be lost again.
    is_again_out: bool,
    was_sent_again: bool,
}

struct Sender {
    number: usize,
    sock: Sock,
    segments: BTreeMap<u64, Segment>,
    next: u64,
    transmissions: u64,
    newest_arrived: u64,
    recovery_ends: u64,
    timer: Time,
    backoff: u32,
    receiver: Receiver,
}

impl Sender {
    fn new(number: usize, ensemble: u32) -> Self {
        let sock = Sock {
            snd_cwnd: 10,
            snd_ssthresh: INFINITE_SSTHRESH,
            snd_cwnd_clamp: u32::MAX,
            mss_cache: 1448,
            max_pacing_rate: u64::MAX,
            assigned: Some(ensemble),
            ..Sock::default()
        };
        Self {
            number,
            sock,
            segments: BTreeMap::new(),
            next: 0,
            transmissions: 0,
            newest_arrived: 0,
            recovery_ends: 0,
            timer: Time::MAX,
            backoff: 0,
            receiver: Receiver::default(),
        }
    }

    /// Sends what the window allows: what is lost first, then what is new.
    fn send(&mut self, world: &mut World) {
        while self.sock.in_flight() < self.sock.snd_cwnd {
            let lost = self.segments.iter().find(|(_, it)| it.is_lost && !it.is_again_out);
            let number = match lost {
                Some((&number, _)) if self.sock.lost_out > self.sock.retrans_out => number,
                _ if self.sock.packets_out < BUFFER_SEGMENTS => self.next,
                _ => break,
            };
            self.transmissions += 1;
            let again = number < self.next;
            if again {
                self.sock.retrans_out += 1;
                world.shown.retransmitted += 1;
            } else {
                self.next += 1;
                self.sock.packets_out += 1;
            }
            let segment = Segment {
                transmission: self.transmissions,
                sent_at: world.now,
                is_sacked: false,
                is_lost: again,
                is_again_out: again,
                was_sent_again: again,
            };
            self.segments.insert(number, segment);
            self.sock.prr_out += u32::from(self.sock.state >= CWR);
            world.transmit(self.number, number, self.transmissions);
        }
        self.sock.is_cwnd_limited = self.sock.in_flight() >= self.sock.snd_cwnd;
        self.sock.max_packets_out = self.sock.packets_out;
        if self.timer == Time::MAX {
            self.timer = world.now + self.rto();
        }
    }

    fn rto(&self) -> Time {
        let measured = u64::from(self.sock.srtt_us / 8 + self.sock.rttvar_us) * 1000;
        (measured.max(LEAST_RTO) << self.backoff.min(10)).min(MOST_RTO)
    }

    fn acknowledged(
        &mut self,
        next: u64,
        number: u64,
        transmission: u64,
        control: &mut dyn Control,
        world: &mut World,
    ) {
        let mut sample = Sample {
            prior_in_flight: self.sock.in_flight(),
            ack: next as u32,
            ..Sample::default()
        };
        while let Some(entry) = self.segments.first_entry()
            && *entry.key() < next
        {
            let segment = entry.remove();
            self.sock.packets_out -= 1;
            self.sock.sacked_out -= u32::from(segment.is_sacked);
            self.arrived(segment, &mut sample, world.now);
            sample.flags |= DATA_ACKED | SND_UNA_ADVANCED;
        }
        if let Some(segment) = self.segments.get_mut(&number)
            && !segment.is_sacked
        {
            let before = *segment;
            *segment = Segment { is_sacked: true, is_lost: false, is_again_out: false, ..before };
            self.sock.sacked_out += 1;
            self.arrived(before, &mut sample, world.now);
        }
        self.newest_arrived = self.newest_arrived.max(transmission);
        sample.losses = self.find_lost();
        if sample.flags != 0 {
            self.backoff = 0;
            self.timer = Time::MAX;
        }
        self.change_state(control);
        control.cong_control(&mut self.sock, &sample);
        self.send(world);
    }

    /// What a segment was counted as, it is no more.
    fn arrived(&mut self, segment: Segment, sample: &mut Sample, now: Time) {
        if segment.is_sacked {
            return;
        }
        sample.acked_sacked += 1;
        self.sock.lost_out -= u32::from(segment.is_lost);
        self.sock.retrans_out -= u32::from(segment.is_again_out);
        if !segment.was_sent_again {
            self.measure((now - segment.sent_at) / 1000);
        }
    }

    /// RFC 6298, 2, in the kernel's units.
    fn measure(&mut self, rtt_us: u64) {
        let (rtt, sock) = (rtt_us as u32, &mut self.sock);
        if sock.srtt_us == 0 {
            (sock.srtt_us, sock.rttvar_us) = (rtt * 8, rtt * 2);
            return;
        }
        let error = rtt.abs_diff(sock.srtt_us / 8);
        sock.rttvar_us = sock.rttvar_us - sock.rttvar_us / 4 + error;
        sock.srtt_us = sock.srtt_us - sock.srtt_us / 8 + rtt;
    }

    /// Marks what was sent long before what has arrived. How many.
    fn find_lost(&mut self) -> u32 {
        let mut found = 0;
        for segment in self.segments.values_mut() {
            let is_out = !segment.is_sacked && (!segment.is_lost || segment.is_again_out);
            if is_out && segment.transmission + REORDERING <= self.newest_arrived {
                self.sock.lost_out += u32::from(!segment.is_lost);
                self.sock.retrans_out -= u32::from(segment.is_again_out);
                (segment.is_lost, segment.is_again_out) = (true, false);
                found += 1;
            }
        }
        found
    }

    fn change_state(&mut self, control: &mut dyn Control) {
        let una = self.segments.first_key_value().map_or(self.next, |(&number, _)| number);
        if self.sock.state >= CWR && una >= self.recovery_ends {
            self.set_state(OPEN, control);
        }
        if self.sock.state < CWR {
            if self.sock.lost_out > 0 {
                self.begin_recovery(control);
                self.set_state(RECOVERY, control);
            } else {
                let state = if self.sock.sacked_out > 0 { DISORDER } else { OPEN };
                self.set_state(state, control);
            }
        }
    }

    /// tcp_init_cwnd_reduction().
    fn begin_recovery(&mut self, control: &mut dyn Control) {
        self.recovery_ends = self.next;
        self.sock.prior_cwnd = self.sock.snd_cwnd;
        self.sock.prr_out = 0;
        self.sock.snd_ssthresh = control.ssthresh(&mut self.sock);
    }

    fn set_state(&mut self, state: u8, control: &mut dyn Control) {
        if self.sock.state != state {
            control.set_state(&mut self.sock, state);
            self.sock.state = state;
        }
    }

    /// tcp_enter_loss(): all that has not arrived is lost.
    fn time_out(&mut self, control: &mut dyn Control, world: &mut World) {
        world.shown.timeouts += 1;
        if self.sock.state < CWR {
            self.begin_recovery(control);
        }
        for segment in self.segments.values_mut().filter(|it| !it.is_sacked) {
            (segment.is_lost, segment.is_again_out) = (true, false);
        }
        self.sock.lost_out = self.sock.packets_out - self.sock.sacked_out;
        self.sock.retrans_out = 0;
        self.sock.snd_cwnd = self.sock.in_flight() + 1;
        self.recovery_ends = self.next;
        self.set_state(LOSS, control);
        self.backoff += 1;
        self.timer = Time::MAX;
        self.send(world);
    }
}
