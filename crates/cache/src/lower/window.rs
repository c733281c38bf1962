//! The congestion window of one direction of one far volume: how many bytes may be in flight.
//!
//! A link is full when rate × round trip time bytes are in flight. With more, requests wait in the queue of
//! the link, and so do the requests of other hosts; with fewer, the link is idle at times. Neither the rate
//! nor the round trip time is known in advance, and both change, so the window measures them. The window is
//! two requests larger than their product. In one of eight or sixteen rounds it is a quarter larger, to
//! notice that the link has become faster. While hosts send short requests, which have to wait behind longer
//! ones, the window is one request larger than the product, and a request must fit in completely. Rate and
//! round trip time are measured from requests and their answers, not taken from the kernel, because a slow
//! far disk also needs requests in flight.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// Limits the bytes in flight to one far volume, separately for reads and for writes.
pub(crate) struct Window {
    bytes: u64,
    mode: WindowMode,
    /// The shortest trip of a request since the path last changed.
    least_trip: Option<Duration>,
    /// The shortest trip before the path became longer.
    shorter: Option<Duration>,
    /// The next time at which the window drains although the rate has not fallen, and the reason. While the window
    /// drains, only one request is in flight at a time, which measures the round trip of the empty link.
    next_drain: Option<(Instant, Reason)>,
    rate: Peak,
    /// The number of rounds from one probe for a higher rate to the next: [`PROBED`] or [`SELDOM_PROBED`].
    probe_every: u32,
    /// The highest rate when the last probe began, in bytes per second.
    rate_before_probe: f64,
    round: WindowRound,
    /// The time of the last answer; `None` while requests are in flight.
    idle_since: Option<Instant>,
    /// Number of full rounds in a row whose rate was below [`SLOW`] times the peak.
    slow_rounds: u32,
    under_way: RequestsUnderWay,
    /// Bytes of the largest request that was sent lately.
    request_bytes: u64,
    /// The time of the last short request of a host.
    short: Option<Instant>,
    /// Until this time, the window expects more short requests and keeps the queue of the link short.
    considerate_until: Option<Instant>,
}

#[derive(Default)]
struct RequestsUnderWay {
    /// The requests in flight, the oldest first.
    requests: VecDeque<WindowRequest>,
    next_number: u64,
    /// The bytes of requests that are not late.
    timely_bytes: u64,
    /// The bytes of requests that have been in flight for so long that they are assumed not to be in the
    /// link.
    late_bytes: u64,
}

impl RequestsUnderWay {
    /// Adds a request of `bytes` bytes, sent at time `now`, to the requests in flight.
    fn add(&mut self, bytes: u64, now: Instant) -> WindowTicket {
        let number = self.next_number;
        let is_alone = self.timely_bytes == 0;
        self.next_number += 1;
        self.timely_bytes += bytes;
        self.requests.push_back(WindowRequest {
            number,
            sent: now,
            bytes,
            is_alone,
            is_late: false,
        });
        WindowTicket(number)
    }

    fn take(&mut self, ticket: WindowTicket) -> Option<WindowRequest> {
        let at = self.requests.binary_search_by_key(&ticket.0, |request| request.number).ok()?;
        let request = self.requests.remove(at)?;
        let counted = if request.is_late { &mut self.late_bytes } else { &mut self.timely_bytes };
        *counted -= request.bytes;
        Some(request)
    }

    /// Counts requests as late that were sent at least `late` ago.
    fn set_late_aside(&mut self, late: Duration, now: Instant) {
        for request in &mut self.requests {
            if now - request.sent < late {
                break;
            }
            if !request.is_late {
                request.is_late = true;
                self.timely_bytes -= request.bytes;
                self.late_bytes += request.bytes;
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum WindowMode {
    /// The window doubles with each round, until three rounds in a row bring no more or the trips show a queue.
    Grow { best: f64, flat: u32, trial: Option<WindowTrial> },
    /// The window follows the measured rate and round trip time, and has done that for `rounds` rounds.
    Follow { rounds: u32 },
    /// Only one request is in flight at a time, so that its trip is that of an empty link. The shortest of
    /// several trips counts, since a single answer may be late for other reasons. Random reads do not wait
    /// for the window and may be in flight all the time. A request that is sent two trips after the drain
    /// began shares the link with random reads only, so its trip counts, too.
    Drain { reason: Reason, since: Instant, trips: u32, shortest: Duration },
}

/// A window that grows to find out whether the path is longer, or others fill the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
struct WindowTrial {
    /// The least trip before the trial. It is still right if the trial shows that the path has not become
    /// longer.
    least_trip: Duration,
    /// The trial succeeds at this rate in bytes per second: then the path has become longer.
    rate: f64,
}

/// The reason why a window drains.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reason {
    /// The rate has fallen below `peak`. Either the link has become slower, or the path has become longer.
    Slow { peak: f64 },
    /// The least trip may be too long. Other senders may have filled the queue of the link when it was
    /// measured. Or the path was longer and has become short again: a window of the size of the longer path
    /// keeps the trips long.
    Unsure,
    /// A trial has failed, but the path may be longer nevertheless: perhaps the link is slower at the same
    /// time, or TCP's window has grown more slowly than this one.
    Retry,
}

/// The highest rate in the last one to two spans of time, in bytes per second.
#[derive(Default)]
struct Peak {
    since: Option<Instant>,
    now: f64,
    before: f64,
}

/// A period of about one round trip, for which the rate and the round trip time are measured.
struct WindowRound {
    since: Instant,
    /// The number of the first request that is sent in this round. Only an answer to this request or a later
    /// one can end the round.
    first_number: u64,
    bytes: u64,
    answers: u32,
    /// True if a request had to wait during this round because the window was full.
    was_full: bool,
}

struct WindowRequest {
    number: u64,
    sent: Instant,
    bytes: u64,
    /// True if no other request was in flight when this one was sent, except late ones.
    is_alone: bool,
    is_late: bool,
}

/// A request in flight. The caller must return it to the window by `answered` or `failed`.
#[must_use]
#[derive(Debug)]
pub(crate) struct WindowTicket(u64);

/// The state of a window, as the status report shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Estimate {
    /// The measured rate in bytes per second.
    pub rate: u64,
    /// The round trip on an empty link.
    pub trip: Duration,
    /// Bytes that may be in flight.
    pub window: u64,
    /// Bytes that are in flight, including late requests.
    pub under_way: u64,
}

/// The upper bound of [`Window::longest_request`] in bytes.
const LONGEST_REQUEST: u64 = 256 << 10;
/// How long the window stays considerate after the last short request.
const CONSIDERATE: Duration = Duration::from_secs(1);
impl Estimate {
    /// Returns rate × round trip time: the bytes that the link holds when its queue is empty.
    pub fn held(&self) -> u64 {
        (self.rate as f64 * self.trip.as_secs_f64()) as u64
    }
}

/// The window before the first measurement: six requests of 64 KiB. Eight requests make the queue of a link
/// of 200 Mbit/s and 8 ms overflow. With four, a link of 80 ms is not full after a second.
const FIRST: u64 = 384 * 1024;
/// The smallest window: two requests of 64 KiB, so that the far node never waits for the next one.
const LEAST: u64 = 128 * 1024;
/// The largest window: 10 Gbit/s over a round trip of 200 ms.
const MOST: u64 = 256 << 20;
/// In the round that probes for a higher rate, the window is this multiple of rate × trip.
const PROBE: f64 = 1.25;
/// In the round after a probe, the window is this multiple of rate × trip, so that the queue of the probe
/// drains.
const YIELD: f64 = 0.9;
/// The number of rounds from a probe that has found a higher rate to the next probe.
const PROBED: u32 = 8;
/// The number of rounds from a probe that has found no higher rate to the next probe, a multiple of
/// [`PROBED`]. A probe makes the queue of the link longer, and may make it overflow.
const SELDOM_PROBED: u32 = 16;
/// A probe has found a higher rate if the rate has grown by this factor. Less may be measurement noise.
const NOTICED: f64 = 1.05;
/// A growing window is at most this multiple of rate × trip of its last round.
const GROWTH: f64 = 1.75;
/// A rate that is higher by less than this does not make a window double again.
const HIGHER: f64 = 1.25;
/// A trip that is longer than the least trip by this factor means that a window that doubles has begun to
/// fill a queue.
const QUEUED: f64 = 2.0;
/// The limit like [`QUEUED`] for a trial. If other senders fill the queue, the trial has to end before it adds
/// much to the queue.
const QUEUED_IN_TRIAL: f64 = 1.25;
/// A round that is full and has less than this part of the peak rate is slow.
const SLOW: f64 = 0.5;
/// After this number of slow rounds in a row, the link is assumed to have changed.
const SLOW_ROUNDS: u32 = 4;
/// The number of requests that travel alone before the drain ends.
const DRAIN_TRIPS: u32 = 2;
/// If the trip on an empty link is longer by this factor, the path has changed.
const LONGER: f64 = 1.5;
/// A trial of a longer path succeeds if the rate returns to this fraction of the former rate.
const RESTORED: f64 = 0.8;
/// The time until the first trip is measured again, because other senders may have filled the queue during the
/// first measurement.
const UNSURE: Duration = Duration::from_secs(5);
/// After a failed trial of a longer path, wait this long before the next one.
const RETRY: Duration = Duration::from_secs(10);
/// The time between two drains while the path is longer than it once was. Such a drain finds out whether the
/// path has become short again. The drain costs two trips: a sixtieth of the time at 80 ms.
const REPEAT: Duration = Duration::from_secs(10);
/// A repeated trial succeeds if the rate grows by this factor. On a path that is much longer, the larger window
/// raises the rate by more.
const RETRIED: f64 = 2.2;
/// The shortest span of time over which [`Peak`] takes the highest rate.
const SPAN: Duration = Duration::from_secs(1);
/// A span, over which [`Peak`] takes the highest rate, lasts at least this number of round trips.
const SPAN_TRIPS: u32 = 10;
/// A round has at least this number of answers: fewer give no reliable rate.
const ROUND_ANSWERS: u32 = 8;
/// The shortest time after which a request may count as late.
const LATE: Duration = Duration::from_millis(100);
/// A request counts as late after this number of round trip times at a full window.
const LATE_TRIPS: f64 = 8.0;

impl Window {
    pub fn new(now: Instant) -> Self {
        Self {
            bytes: FIRST,
            mode: WindowMode::Grow { best: 0.0, flat: 0, trial: None },
            least_trip: None,
            shorter: None,
            next_drain: None,
            rate: Peak::default(),
            probe_every: PROBED,
            rate_before_probe: 0.0,
            round: WindowRound::new(now, 0),
            idle_since: None,
            slow_rounds: 0,
            under_way: RequestsUnderWay::default(),
            request_bytes: 0,
            short: None,
            considerate_until: None,
        }
    }

    /// Records a short request of a host. If another one came within the last second, the window becomes
    /// considerate for a second: it keeps the queue of the link short, although the link may then be idle for
    /// moments. A single short request has no effect, since it may be the first read of a stream.
    pub fn note_short(&mut self, now: Instant) {
        let before = self.short.replace(now);
        if before.is_some_and(|before| now < before + CONSIDERATE) {
            self.considerate_until = Some(now + CONSIDERATE);
        }
    }

    fn is_considerate(&self, now: Instant) -> bool {
        self.considerate_until.is_some_and(|until| now < until)
    }

    /// Returns the maximum number of bytes that one request should have: a small part of the window, so that a short
    /// request does not have to wait long behind it.
    pub fn longest_request(&self, now: Instant) -> u64 {
        let (parts, least) = if self.is_considerate(now) { (16, 16 << 10) } else { (8, 64 << 10) };
        (self.bytes / parts).clamp(least, LONGEST_REQUEST)
    }

    /// Returns the maximum number of bytes that should be requested at once, in one or several requests. The answer to
    /// a short request may have to wait until the link has transmitted all of them.
    pub fn longest_burst(&self, now: Instant) -> u64 {
        if self.is_considerate(now) { self.longest_request(now) } else { LONGEST_REQUEST }
    }

    /// Returns true if another request may be sent. Late requests do not count here; the caller limits them.
    pub fn has_room(&mut self, now: Instant) -> bool {
        self.set_late_aside(now);
        // A considerate window admits a request only if the whole request fits.
        let spare = if self.is_considerate(now) { self.request_bytes } else { 1 };
        let timely = self.under_way.timely_bytes;
        let has_room = timely == 0 || timely + spare <= self.bytes;
        self.round.was_full |= !has_room;
        has_room
    }

    /// Records a request of `bytes` bytes that is sent at time `now`.
    pub fn sent(&mut self, bytes: u64, now: Instant) -> WindowTicket {
        if self.under_way.requests.is_empty() {
            // Leave the time without requests out of the round. Continue the round nevertheless: if all
            // requests of a small window are answered at once, no round would ever have enough answers.
            match self.idle_since.take() {
                Some(since) => self.round.since += now - since,
                None => self.round = WindowRound::new(now, self.under_way.next_number),
            }
        }
        self.request_bytes = bytes.max(self.request_bytes - self.request_bytes / 64);
        self.under_way.add(bytes, now)
    }

    /// Records that a request has failed or was dropped. The window learns nothing from it.
    pub fn failed(&mut self, ticket: WindowTicket) {
        self.under_way.take(ticket);
    }

    /// Records that a request was answered.
    pub fn answered(&mut self, ticket: WindowTicket, now: Instant) {
        let Some(request) = self.under_way.take(ticket) else { return };
        self.idle_since = self.under_way.requests.is_empty().then_some(now);
        self.round.bytes += request.bytes;
        self.round.answers += 1;
        let trip = now - request.sent;
        let least = self.least_trip.get_or_insert(trip);
        if let WindowMode::Drain { reason, since, trips, shortest } = &mut self.mode {
            if request.is_alone || request.sent > *since + 2 * *least {
                *trips += 1;
                *shortest = trip.min(*shortest);
                if *trips == DRAIN_TRIPS {
                    let (reason, shortest) = (*reason, *shortest);
                    self.end_drain(reason, shortest, now);
                    self.round = WindowRound::new(now, self.under_way.next_number);
                }
            }
            return;
        }
        *least = trip.min(*least);
        let is_round =
            request.number >= self.round.first_number && self.round.answers >= ROUND_ANSWERS;
        if is_round && now > self.round.since {
            self.end_round(trip, now);
        }
    }

    pub fn estimate(&self) -> Estimate {
        Estimate {
            rate: self.rate.highest() as u64,
            trip: self.least_trip.unwrap_or_default(),
            window: self.bytes,
            under_way: self.under_way.timely_bytes + self.under_way.late_bytes,
        }
    }

    /// Returns true while the window measures the trip of an empty link and admits one request at a time.
    pub fn is_draining(&self) -> bool {
        matches!(self.mode, WindowMode::Drain { .. })
    }

    /// Stops counting requests that are in flight for too long. Without this, a far node that answers one
    /// request in a hundred late would empty the link.
    fn set_late_aside(&mut self, now: Instant) {
        let rate = self.rate.highest().max(1.0);
        let full_trip = self.bytes as f64 / rate;
        let late = LATE.max(Duration::from_secs_f64((LATE_TRIPS * full_trip).min(60.0)));
        self.under_way.set_late_aside(late, now);
    }

    /// Ends a measuring round with an answer that arrived `trip` after its request was sent.
    fn end_round(&mut self, trip: Duration, now: Instant) {
        let next = WindowRound::new(now, self.under_way.next_number);
        let round = std::mem::replace(&mut self.round, next);
        let rate = round.bytes as f64 / (now - round.since).as_secs_f64();
        let least = self.least_trip.unwrap_or_default();
        let is_slow = round.was_full && rate < SLOW * self.rate.highest();
        // A round that did not fill the window may raise the measured rate, but must not lower it.
        if round.was_full || rate > self.rate.highest() {
            self.rate.note(rate, SPAN.max(least * SPAN_TRIPS), now);
        }
        match &mut self.mode {
            WindowMode::Grow { best, flat, trial } => {
                let is_higher = rate > HIGHER * *best;
                if is_higher {
                    (*best, *flat) = (rate, 0);
                } else if round.was_full {
                    *flat += 1;
                }
                // While the rate still rises, long trips come from TCP's slow start, not from a queue.
                let queued = if trial.is_some() { QUEUED_IN_TRIAL } else { QUEUED };
                let is_queued = round.was_full && trip > least.mul_f64(queued);
                if *flat >= 3 || (is_queued && (trial.is_some() || !is_higher)) {
                    let (trial, best) = (*trial, *best);
                    self.end_growth(trial, best, now);
                } else if round.was_full {
                    let carried = (rate * least.as_secs_f64() * GROWTH) as u64;
                    self.set((self.bytes * 2).min(carried.max(self.bytes)));
                }
            }
            WindowMode::Follow { .. } if !round.was_full => self.follow(1.0, now),
            WindowMode::Follow { rounds } => {
                *rounds += 1;
                self.slow_rounds = if is_slow { self.slow_rounds + 1 } else { 0 };
                if self.slow_rounds >= SLOW_ROUNDS {
                    let peak = self.rate.highest();
                    self.rate = Peak::default();
                    self.rate.note(rate, SPAN, now);
                    return self.drain(Reason::Slow { peak }, now);
                }
                if let Some((time, reason)) = self.next_drain
                    && now >= time
                {
                    self.next_drain = None;
                    return self.drain(reason, now);
                }
                let rounds = *rounds % self.probe_every;
                self.probe(rounds, now);
            }
            WindowMode::Drain { .. } => {}
        }
    }

    /// Sets the window for the round with this number since the last probe. The round with number 0 is a probe.
    fn probe(&mut self, rounds: u32, now: Instant) {
        let rate = self.rate.highest();
        let gain = match rounds {
            0 => {
                self.rate_before_probe = rate;
                PROBE
            }
            1 => YIELD,
            2 => {
                let is_higher = rate > self.rate_before_probe * NOTICED;
                self.probe_every = if is_higher { PROBED } else { SELDOM_PROBED };
                1.0
            }
            _ => 1.0,
        };
        self.follow(gain, now);
    }

    fn drain(&mut self, reason: Reason, now: Instant) {
        self.slow_rounds = 0;
        self.mode = WindowMode::Drain { reason, since: now, trips: 0, shortest: Duration::MAX };
        self.bytes = 1;
    }

    /// Ends the drain, in which requests have travelled alone. If the trip was long nevertheless, other
    /// senders may fill the queue, or the path has become longer: then a larger window restores the former
    /// rate.
    fn end_drain(&mut self, reason: Reason, trip: Duration, now: Instant) {
        let least = self.least_trip.unwrap_or(trip);
        self.mode = WindowMode::Follow { rounds: 0 };
        let restored = match reason {
            Reason::Slow { peak } => peak * RESTORED,
            Reason::Retry => self.rate.highest() * RETRIED,
            Reason::Unsure => f64::INFINITY,
        };
        if reason == Reason::Unsure {
            let least = trip.min(least);
            self.least_trip = Some(least);
            self.shorter = self.shorter.filter(|shorter| least > shorter.mul_f64(LONGER));
            self.next_drain = self.shorter.map(|_| (now + REPEAT, Reason::Unsure));
        } else if trip > least.mul_f64(LONGER) {
            let trial = WindowTrial { least_trip: least, rate: restored };
            self.mode = WindowMode::Grow { best: 0.0, flat: 0, trial: Some(trial) };
            self.least_trip = Some(trip);
        }
        self.follow(1.0, now);
    }

    /// Ends the growth at a rate of `best`. After a trial that has failed, restores the least trip from
    /// before the trial.
    fn end_growth(&mut self, trial: Option<WindowTrial>, best: f64, now: Instant) {
        self.mode = WindowMode::Follow { rounds: 0 };
        self.next_drain = match trial {
            None => Some((now + UNSURE, Reason::Unsure)),
            Some(trial) if best < trial.rate => {
                self.least_trip = Some(trial.least_trip);
                self.rate = Peak::default();
                Some((now + RETRY, Reason::Retry))
            }
            Some(trial) => {
                let before = trial.least_trip;
                self.shorter = Some(self.shorter.map_or(before, |shorter| shorter.min(before)));
                Some((now + REPEAT, Reason::Unsure))
            }
        };
        self.follow(1.0, now);
    }

    fn follow(&mut self, gain: f64, now: Instant) {
        let trip = self.least_trip.unwrap_or_default().as_secs_f64();
        let held = self.rate.highest() * trip;
        let more = if self.is_considerate(now) { 1.0 } else { 2.0 };
        let request = self.request_bytes as f64;
        let usual = held + more * request;
        self.set(if gain > 1.0 {
            // A probe makes a large window larger by the factor `gain`, less one request, so that the queue of
            // the link overflows less often.
            (gain * held + request).max(usual + request / 2.0) as u64
        } else {
            (gain * held + more * request) as u64
        });
    }

    fn set(&mut self, bytes: u64) {
        self.bytes = bytes.clamp(LEAST, MOST);
    }
}

impl WindowRound {
    fn new(since: Instant, first_number: u64) -> Self {
        Self { since, first_number, bytes: 0, answers: 0, was_full: false }
    }
}

impl Peak {
    fn note(&mut self, rate: f64, span: Duration, now: Instant) {
        match self.since {
            Some(since) if now - since < span => self.now = self.now.max(rate),
            _ => {
                self.before = std::mem::replace(&mut self.now, rate);
                self.since = Some(now);
            }
        }
    }

    fn highest(&self) -> f64 {
        self.now.max(self.before)
    }
}

#[cfg(test)]
mod tests;
