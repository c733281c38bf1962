//! A TCP sender in virtual time and its receiver: selective acknowledgments, fast retransmit, loss recovery,
//! timeouts, rate samples and pacing. They behave as in Linux as far as a congestion control can observe
//! them.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    path::{MILLISECOND, SECOND, Time, What, World},
    sock::{
        CWR, Control, DATA_ACKED, DISORDER, INFINITE_SSTHRESH, LOSS, OPEN, RECOVERY,
        SND_UNA_ADVANCED, Sample, Sock,
    },
};

/// A segment counts as lost if another segment has arrived that was sent at least this number of transmissions later.
const REORDERING: u64 = 3;
const LEAST_RTO: Time = 200 * MILLISECOND;
const MOST_RTO: Time = 120 * SECOND;

/// A simulated TCP receiver, which acknowledges each segment on arrival.
#[derive(Default)]
pub struct Receiver {
    /// All segments with a number below this one have arrived.
    pub next: u64,
    beyond: BTreeSet<u64>,
}

impl Receiver {
    pub fn take(&mut self, number: u64, transmission: u64) -> What {
        if number >= self.next {
            self.beyond.insert(number);
        }
        while self.beyond.remove(&self.next) {
            self.next += 1;
        }
        What::Ack { next: self.next, number, transmission }
    }
}

/// A segment that was sent and is not acknowledged cumulatively.
#[derive(Clone, Copy)]
struct Segment {
    transmission: u64,
    sent_at: Time,
    is_sacked: bool,
    is_lost: bool,
    /// True if the segment was retransmitted, and the retransmission is not known to be lost.
    is_again_out: bool,
    was_sent_again: bool,
    sent_in: Flight,
}

/// State of the connection when a segment was sent (draft-cheng-iccrg-delivery-rate-estimation, 3.1).
#[derive(Clone, Copy, Default)]
struct Flight {
    delivered: u64,
    delivered_at: Time,
    first_sent_at: Time,
    is_app_limited: bool,
}

/// The segments that the simulated sender has sent, and their transmissions.
#[derive(Default)]
struct SentSegments {
    /// Segments that are not acknowledged cumulatively.
    segments: BTreeMap<u64, Segment>,
    /// Segments in flight, indexed by the number of their transmission.
    out: BTreeMap<u64, u64>,
    /// Segments that are lost and not retransmitted.
    lost: BTreeSet<u64>,
    /// Number of the first segment that has not been sent yet.
    next: u64,
    transmissions: u64,
    newest_arrived: u64,
}

pub struct Sender {
    number: usize,
    pub sock: Sock,
    /// Segments with a number below this one may be sent.
    pub available: u64,
    /// The most outstanding segments, which the size of the socket buffer limits.
    buffer_segments: u32,
    pub receiver: Receiver,
    /// The time when the retransmission timer expires.
    pub timer: Time,
    /// The time at which pacing permits the next segment, if the sender waits for that.
    pub wake: Time,
    sent: SentSegments,
    recovery_ends: u64,
    backoff: u32,
    may_send_at: Time,
    flight: Flight,
    /// The sender had too little data to fill its window. Rate samples count as limited by the application until this
    /// total number of segments is delivered; zero if they do not.
    app_limited: u64,
}

impl Sender {
    pub fn new(number: usize, ensemble: u32, available: u64, buffer_segments: u32) -> Self {
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
            available,
            buffer_segments,
            receiver: Receiver::default(),
            timer: Time::MAX,
            wake: Time::MAX,
            sent: SentSegments::default(),
            recovery_ends: 0,
            backoff: 0,
            may_send_at: 0,
            flight: Flight::default(),
            app_limited: 0,
        }
    }

    /// Returns the number of segments that have not arrived.
    pub fn to_do(&self) -> u64 {
        self.available - self.receiver.next
    }

    /// Sends as many segments as window and pacing permit: lost ones first, then new ones.
    pub fn send(&mut self, world: &mut World) {
        self.wake = Time::MAX;
        let mut has_more = true;
        while self.sock.in_flight() < self.sock.snd_cwnd {
            let number = match self.sent.lost.first() {
                Some(&number) => number,
                None if self.sock.packets_out < self.buffer_segments
                    && self.sent.next < self.available =>
                {
                    self.sent.next
                }
                None => {
                    has_more = false;
                    break;
                }
            };
            if self.sock.pacing_status != 0 && world.now < self.may_send_at {
                self.wake = self.may_send_at;
                break;
            }
            self.transmit(number, world);
        }
        self.sock.is_cwnd_limited = self.sock.in_flight() >= self.sock.snd_cwnd;
        self.sock.max_packets_out = self.sock.packets_out;
        if !has_more {
            self.app_limited = (self.sock.delivered + u64::from(self.sock.in_flight())).max(1);
        }
        if self.timer == Time::MAX && self.sock.packets_out > 0 {
            self.timer = world.now + self.rto();
        }
    }

    fn transmit(&mut self, number: u64, world: &mut World) {
        if self.sock.packets_out == 0 {
            self.flight.delivered_at = world.now;
            self.flight.first_sent_at = world.now;
        }
        self.sent.transmissions += 1;
        let again = number < self.sent.next;
        if again {
            self.sock.retrans_out += 1;
            world.shown.retransmitted += 1;
            self.sent.lost.remove(&number);
        } else {
            self.sent.next += 1;
            self.sock.packets_out += 1;
        }
        let sent_in = Flight {
            delivered: self.sock.delivered,
            is_app_limited: self.app_limited > 0,
            ..self.flight
        };
        let segment = Segment {
            transmission: self.sent.transmissions,
            sent_at: world.now,
            is_sacked: false,
            is_lost: again,
            is_again_out: again,
            was_sent_again: again,
            sent_in,
        };
        self.sent.segments.insert(number, segment);
        self.sent.out.insert(self.sent.transmissions, number);
        self.sock.prr_out += u32::from(self.sock.state >= CWR);
        if self.sock.pacing_status != 0 {
            let gap = u64::from(self.sock.mss_cache) * SECOND / self.sock.pacing_rate.max(1);
            self.may_send_at = self.may_send_at.max(world.now) + gap;
        }
        world.transmit(self.number, number, self.sent.transmissions);
    }

    fn rto(&self) -> Time {
        let measured = u64::from(self.sock.srtt_us / 8 + self.sock.rttvar_us) * 1000;
        (measured.max(LEAST_RTO) << self.backoff.min(10)).min(MOST_RTO)
    }

    pub fn acknowledged(
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
            now_us: world.now / 1000,
            ..Sample::default()
        };
        let mut newest = None;
        while let Some(entry) = self.sent.segments.first_entry()
            && *entry.key() < next
        {
            let (number, segment) = entry.remove_entry();
            self.sock.packets_out -= 1;
            self.sock.sacked_out -= u32::from(segment.is_sacked);
            self.arrived(number, segment, &mut sample, &mut newest, world.now);
            sample.flags |= DATA_ACKED | SND_UNA_ADVANCED;
        }
        if let Some(segment) = self.sent.segments.get_mut(&number)
            && !segment.is_sacked
        {
            let before = *segment;
            *segment = Segment { is_sacked: true, is_lost: false, is_again_out: false, ..before };
            self.sock.sacked_out += 1;
            self.arrived(number, before, &mut sample, &mut newest, world.now);
        }
        self.rate(newest, &mut sample);
        self.sent.newest_arrived = self.sent.newest_arrived.max(transmission);
        sample.losses = self.find_lost();
        if sample.flags != 0 {
            self.backoff = 0;
            self.timer = Time::MAX;
        }
        self.change_state(control);
        self.sock.has_unsent = self.sent.next < self.available;
        control.cong_control(&mut self.sock, &sample);
        self.send(world);
    }

    /// Updates the counters for a segment that has arrived.
    fn arrived(
        &mut self,
        number: u64,
        segment: Segment,
        sample: &mut Sample,
        newest: &mut Option<Segment>,
        now: Time,
    ) {
        if segment.is_sacked {
            return;
        }
        sample.acked_sacked += 1;
        self.sock.delivered += 1;
        self.flight.delivered_at = now;
        self.sock.lost_out -= u32::from(segment.is_lost);
        self.sock.retrans_out -= u32::from(segment.is_again_out);
        self.sent.out.remove(&segment.transmission);
        self.sent.lost.remove(&number);
        if !segment.was_sent_again {
            let rtt_us = (now - segment.sent_at) / 1000;
            sample.rtt_us = Some(rtt_us as u32);
            self.measure(rtt_us);
        }
        if newest.is_none_or(|it: Segment| it.transmission < segment.transmission) {
            *newest = Some(segment);
        }
    }

    /// Returns the rate sample of the last acknowledged segment (draft-cheng-iccrg-delivery-rate-estimation, 3.3).
    fn rate(&mut self, newest: Option<Segment>, sample: &mut Sample) {
        let Some(segment) = newest else { return };
        let Flight { delivered, delivered_at, first_sent_at, is_app_limited } = segment.sent_in;
        let to_send = segment.sent_at - first_sent_at;
        let to_acknowledge = self.flight.delivered_at - delivered_at;
        sample.delivered = (self.sock.delivered - delivered) as u32;
        sample.interval_us = to_send.max(to_acknowledge) / 1000;
        sample.prior_us = delivered_at / 1000;
        sample.is_app_limited = is_app_limited;
        self.flight.first_sent_at = segment.sent_at;
        if self.sock.delivered > self.app_limited {
            self.app_limited = 0;
        }
    }

    /// Updates the round trip time and its variation (RFC 6298, 2), in the kernel's units.
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

    /// Marks as lost the missing segments that were sent at least [`REORDERING`] transmissions before a segment that
    /// has arrived. Returns how many it has marked.
    fn find_lost(&mut self) -> u32 {
        let mut found = 0;
        while let Some(entry) = self.sent.out.first_entry()
            && *entry.key() + REORDERING <= self.sent.newest_arrived
        {
            let number = entry.remove();
            let segment =
                self.sent.segments.get_mut(&number).expect("every segment in flight is recorded");
            self.sock.lost_out += u32::from(!segment.is_lost);
            self.sock.retrans_out -= u32::from(segment.is_again_out);
            (segment.is_lost, segment.is_again_out) = (true, false);
            self.sent.lost.insert(number);
            found += 1;
        }
        found
    }

    fn change_state(&mut self, control: &mut dyn Control) {
        let una =
            self.sent.segments.first_key_value().map_or(self.sent.next, |(&number, _)| number);
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

    /// Begins a recovery after a loss, like the kernel's tcp_init_cwnd_reduction().
    fn begin_recovery(&mut self, control: &mut dyn Control) {
        self.recovery_ends = self.sent.next;
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

    /// Handles a timeout, like tcp_enter_loss(): all segments that have not arrived are lost.
    pub fn time_out(&mut self, control: &mut dyn Control, world: &mut World) {
        world.shown.timeouts += 1;
        if self.sock.state < CWR {
            self.begin_recovery(control);
        }
        for (&number, segment) in self.sent.segments.iter_mut().filter(|it| !it.1.is_sacked) {
            (segment.is_lost, segment.is_again_out) = (true, false);
            self.sent.lost.insert(number);
        }
        self.sent.out.clear();
        self.sock.lost_out = self.sock.packets_out - self.sock.sacked_out;
        self.sock.retrans_out = 0;
        self.sock.snd_cwnd = self.sock.in_flight() + 1;
        self.recovery_ends = self.sent.next;
        self.set_state(LOSS, control);
        self.backoff += 1;
        self.timer = Time::MAX;
        self.send(world);
    }
}
