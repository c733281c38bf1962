use std::collections::BinaryHeap;

use super::*;

/// A simulated link. The peer answers each request as soon as all of its bytes have arrived.
#[derive(Clone, Copy)]
struct Link {
    /// The capacity in bytes per second.
    rate: f64,
    /// The round trip time on an empty link in seconds, without the transmission time of the bytes.
    trip: f64,
    /// One in `late` requests is answered a second late; none if 0.
    late: u64,
    /// The first of this many requests is answered three round trips late, each later one a little less, as
    /// over a TCP connection in slow start.
    slow: u64,
    /// TCP's window at the far end, if it limits the answers: its size in bytes, the time since the beginning
    /// at which it had that size, and its growth in bytes per second.
    tcp: Option<(f64, f64, f64)>,
}

/// Returns a link with a rate in megabits per second and a round trip time in milliseconds.
fn link(megabits: f64, trip: f64) -> Link {
    Link { rate: megabits * 125e3, trip: trip / 1e3, late: 0, slow: 0, tcp: None }
}

/// Senders that always have data to send and share a link, in virtual time.
struct Simulation {
    link: Link,
    begun: Instant,
    /// Seconds since the start of the simulation.
    now: f64,
    /// The time in seconds at which the link has transmitted all bytes that were sent.
    free_at: f64,
    /// The time at which the last answer arrives, late answers aside. TCP delivers answers in the order in
    /// which they were sent: after the path has become shorter, answers still arrive behind those that took
    /// the longer path.
    last_comes: f64,
    senders: Vec<Sender>,
    /// True if hosts send short requests all the time, and the senders keep to [`Window::longest_request`].
    is_considerate: bool,
    /// The mean queueing delay in the last run, in seconds.
    mean_queue: f64,
    /// The maximum number of bytes that one sender had in flight in the last run.
    most_under_way: u64,
    /// The answers to come: the negated time in nanoseconds, since the heap returns the largest element
    /// first.
    answers: BinaryHeap<(i64, usize, u64)>,
    sent: u64,
}

struct Sender {
    window: Window,
    /// The number, the bytes and the ticket of each request in flight.
    tickets: Vec<(u64, u64, WindowTicket)>,
    bytes: u64,
}

const REQUEST: u64 = 64 * 1024;

impl Simulation {
    fn new(link: Link, senders: usize) -> Self {
        let begun = Instant::now();
        let sender = |_| Sender { window: Window::new(begun), tickets: Vec::new(), bytes: 0 };
        Self {
            link,
            begun,
            now: 0.0,
            free_at: 0.0,
            last_comes: 0.0,
            senders: (0..senders).map(sender).collect(),
            is_considerate: false,
            mean_queue: 0.0,
            most_under_way: 0,
            answers: BinaryHeap::new(),
            sent: 0,
        }
    }

    fn instant(&self) -> Instant {
        self.begun + Duration::from_secs_f64(self.now)
    }

    fn send(&mut self, who: usize) {
        let now = self.instant();
        let window = &mut self.senders[who].window;
        let mut bytes = REQUEST;
        if self.is_considerate {
            window.note_short(now);
            bytes = bytes.min(window.longest_request(now));
        }
        while self.senders[who].window.has_room(now) {
            self.sent += 1;
            let begins = self.free_at.max(self.now);
            let rate = self.link.tcp.map_or(self.link.rate, |(bytes, since, growth)| {
                let window = bytes + (begins - since) * growth;
                self.link.rate.min(window / self.link.trip)
            });
            self.free_at = begins + bytes as f64 / rate;
            let is_late = self.link.late > 0 && self.sent.is_multiple_of(self.link.late);
            let left = self.link.slow.saturating_sub(self.sent) as f64;
            let slow = 3.0 * self.link.trip * left / self.link.slow.max(1) as f64;
            let behind = self.last_comes + bytes as f64 / self.link.rate;
            self.last_comes = (self.free_at + self.link.trip).max(behind);
            let comes = self.last_comes + slow + f64::from(u8::from(is_late));
            self.answers.push((-(comes * 1e9) as i64, who, self.sent));
            let sender = &mut self.senders[who];
            sender.tickets.push((self.sent, bytes, sender.window.sent(bytes, now)));
        }
        let under_way = self.senders[who].window.estimate().under_way;
        self.most_under_way = self.most_under_way.max(under_way);
    }

    /// Lets each sender send one request while the link is idle, as an initiator does at its login.
    fn log_in(&mut self) {
        for sender in &mut self.senders {
            let sent = self.begun + Duration::from_secs_f64(self.now);
            let ticket = sender.window.sent(REQUEST, sent);
            self.now += self.link.trip + REQUEST as f64 / self.link.rate;
            sender.window.answered(ticket, self.begun + Duration::from_secs_f64(self.now));
        }
    }

    /// Runs for `seconds` more seconds. Returns the share of the link that each sender had, and the longest
    /// queueing delay in seconds.
    fn run(&mut self, seconds: f64) -> (Vec<f64>, f64) {
        let end = self.now + seconds;
        self.senders.iter_mut().for_each(|sender| sender.bytes = 0);
        let (mut longest, mut queues, mut answers) = (0.0f64, 0.0, 0);
        self.most_under_way = 0;
        for who in 0..self.senders.len() {
            self.send(who);
        }
        while let Some(&(at, who, number)) = self.answers.peek()
            && (-at as f64) / 1e9 <= end
        {
            self.answers.pop();
            self.now = (-at as f64 / 1e9).max(self.now);
            let now = self.instant();
            let sender = &mut self.senders[who];
            let at = sender.tickets.iter().position(|(sent, ..)| *sent == number).unwrap();
            let (_, bytes, ticket) = sender.tickets.swap_remove(at);
            sender.window.answered(ticket, now);
            sender.bytes += bytes;
            self.send(who);
            let queue = (self.free_at - self.now).max(0.0);
            longest = longest.max(queue);
            (queues, answers) = (queues + queue, answers + 1);
        }
        self.now = end;
        self.mean_queue = queues / f64::from(answers);
        let all = self.link.rate * seconds;
        (self.senders.iter().map(|sender| sender.bytes as f64 / all).collect(), longest)
    }
}

/// Returns the acceptable queueing delay in seconds: after a drain, the whole window is sent at once.
fn acceptable(link: Link) -> f64 {
    1.3 * link.trip + 6.0 * REQUEST as f64 / link.rate
}

#[test]
fn a_link_is_full_and_its_queue_short() {
    for megabits in [10.0, 100.0, 200.0, 1000.0, 10_000.0] {
        for trip in [1.0, 8.0, 40.0, 80.0, 200.0] {
            let link = link(megabits, trip);
            let mut simulation = Simulation::new(link, 1);
            // Five seconds after the window has stopped growing, it drains once. Run until that drain has ended.
            simulation.run(8.0 + 30.0 * link.trip);
            let (part, queue) = simulation.run(20.0);
            assert!(part[0] > 0.97, "{megabits} Mbit/s, {trip} ms: {part:?}");
            assert!(queue < acceptable(link), "{megabits} Mbit/s, {trip} ms: {queue} s");
        }
    }
}

#[test]
fn a_queue_of_one_bandwidth_delay_product_hardly_overflows() {
    let link = link(200.0, 8.0);
    let mut simulation = Simulation::new(link, 1);
    simulation.run(8.0);
    let (part, _) = simulation.run(20.0);
    assert!(part[0] > 0.97, "{part:?}");
    // The window admits a request if any part of it fits, so it may be exceeded by one request.
    let held = 2.0 * link.rate * link.trip + REQUEST as f64;
    assert!(simulation.most_under_way as f64 <= held, "{} bytes", simulation.most_under_way);
}

#[test]
fn the_first_window_fits_a_link_and_a_queue_of_one_bandwidth_delay_product() {
    let link = link(200.0, 8.0);
    let mut simulation = Simulation::new(link, 1);
    simulation.run(link.trip / 2.0);
    let held = 2.0 * link.rate * link.trip;
    assert!(simulation.most_under_way as f64 <= held, "{} bytes", simulation.most_under_way);
}

#[test]
fn probes_that_find_no_more_bandwidth_become_rare() {
    let link = link(200.0, 8.0);
    let mut simulation = Simulation::new(link, 1);
    simulation.run(8.0);
    let usual = simulation.senders[0].window.estimate().held() + 5 * REQUEST / 2;
    let (mut probes, mut was_probe) = (0, false);
    for _ in 0..5000 {
        simulation.run(0.001);
        let is_probe = simulation.senders[0].window.estimate().window > usual - REQUEST / 4;
        probes += u32::from(is_probe && !was_probe);
        was_probe = is_probe;
    }
    // With a full queue, a round takes about two and a half trips. A probe in one of sixteen rounds is one in
    // 40 trips.
    let trips = 5.0 / link.trip;
    assert!(probes > 0 && f64::from(probes) < trips / 30.0, "{probes} in {trips} trips");
}

#[test]
fn with_short_requests_waiting_the_queue_is_a_quarter_of_a_round_trip_and_the_link_stays_full() {
    for (megabits, trip) in [(200.0, 8.0), (200.0, 40.0), (200.0, 80.0), (1000.0, 8.0)] {
        let link = link(megabits, trip);
        let mut simulation = Simulation::new(link, 1);
        simulation.run(3.0 + 30.0 * link.trip);
        simulation.is_considerate = true;
        simulation.run(5.0);
        let (part, _) = simulation.run(20.0);
        let queue = simulation.mean_queue;
        assert!(part[0] > 0.95, "{megabits} Mbit/s, {trip} ms: {part:?}");
        assert!(queue < link.trip / 4.0, "{megabits} Mbit/s, {trip} ms: {queue} s");
    }
}

#[test]
fn a_slower_link_gets_a_small_window_and_a_faster_one_a_large_one() {
    for trip in [4.0, 8.0, 60.0] {
        let (fast, slow) = (link(200.0, trip), link(20.0, trip));
        let mut simulation = Simulation::new(fast, 1);
        simulation.run(5.0);
        simulation.link = slow;
        simulation.run(8.0);
        let (part, queue) = simulation.run(10.0);
        assert!(part[0] > 0.95 && queue < acceptable(slow), "{trip} ms: {part:?}, {queue} s");
        simulation.link = fast;
        simulation.run(5.0);
        let (part, queue) = simulation.run(10.0);
        assert!(part[0] > 0.95 && queue < acceptable(fast), "{trip} ms: {part:?}, {queue} s");
    }
}

#[test]
fn a_longer_path_gets_a_larger_window() {
    let (near, far) = (link(200.0, 8.0), link(200.0, 80.0));
    let mut simulation = Simulation::new(near, 1);
    simulation.run(5.0);
    simulation.link = far;
    simulation.run(5.0);
    let (part, queue) = simulation.run(10.0);
    assert!(part[0] > 0.95 && queue < acceptable(far), "{part:?}, {queue} s");
    simulation.link = near;
    simulation.run(12.0);
    let (part, queue) = simulation.run(10.0);
    assert!(part[0] > 0.95 && queue < acceptable(near), "{part:?}, {queue} s");
    let window = simulation.senders[0].window.estimate().window as f64;
    assert!(window < 2.0 * near.rate * near.trip + 3.0 * REQUEST as f64, "{window} bytes");
}

/// TCP's window at the far end fits the shorter path, and grows to the longer one within five seconds.
#[test]
fn a_longer_path_over_a_slowly_growing_tcp_window_is_found_within_15_seconds() {
    let near = link(200.0, 8.0);
    let mut simulation = Simulation::new(near, 1);
    simulation.run(8.0);
    let tcp = Some((2.0 * near.rate * near.trip, simulation.now, 400e3));
    simulation.link = Link { tcp, ..link(200.0, 80.0) };
    simulation.run(15.0);
    let (part, _) = simulation.run(5.0);
    assert!(part[0] > 0.9, "{part:?}");
}

#[test]
fn a_longer_and_slower_path_is_not_left_empty() {
    let (near, far) = (link(200.0, 8.0), link(50.0, 80.0));
    let mut simulation = Simulation::new(near, 1);
    simulation.run(5.0);
    simulation.link = far;
    simulation.run(100.0);
    let (part, queue) = simulation.run(10.0);
    assert!(part[0] > 0.9 && queue < acceptable(far), "{part:?}, {queue} s");
}

#[test]
fn late_answers_do_not_empty_the_link() {
    for trip in [8.0, 40.0] {
        let link = Link { late: 100, ..link(200.0, trip) };
        let mut simulation = Simulation::new(link, 1);
        simulation.run(5.0);
        let (part, _) = simulation.run(20.0);
        assert!(part[0] > 0.9, "{trip} ms: {part:?}");
        let under_way = simulation.senders[0].window.estimate().under_way;
        assert!(under_way < 4 << 20, "{under_way} bytes");
    }
}

#[test]
fn senders_share_a_link_within_a_factor_of_two() {
    for trip in [8.0, 40.0] {
        let mut simulation = Simulation::new(link(200.0, trip), 8);
        simulation.log_in();
        simulation.run(40.0);
        let (parts, queue) = simulation.run(30.0);
        let (least, most) = parts
            .iter()
            .fold((f64::MAX, 0.0f64), |(least, most), part| (part.min(least), part.max(most)));
        assert!(most < 2.0 * least && parts.iter().sum::<f64>() > 0.95, "{trip} ms: {parts:?}");
        assert!(queue < 0.5, "{trip} ms: {queue} s");
    }
}

#[test]
fn a_connection_that_begins_slowly_gets_a_full_window() {
    let link = Link { slow: 24, ..link(200.0, 80.0) };
    let mut simulation = Simulation::new(link, 1);
    // The login measures the trip of the empty link before the slow start of TCP begins.
    simulation.link.slow = 0;
    simulation.log_in();
    simulation.link.slow = 24;
    simulation.run(1.5);
    let (part, _) = simulation.run(1.0);
    assert!(part[0] > 0.9, "{part:?}");
}

#[test]
fn requests_that_do_not_fill_the_window_do_not_make_it_smaller() {
    let mut simulation = Simulation::new(link(200.0, 8.0), 1);
    simulation.run(15.0);
    let full = simulation.senders[0].window.estimate();
    // In the following minute, at most two requests are in flight at any time.
    let mut now = simulation.instant() + Duration::from_secs(1);
    let Sender { window, tickets, .. } = &mut simulation.senders[0];
    for (_, _, ticket) in tickets.drain(..) {
        window.failed(ticket);
    }
    let mut last = window.sent(REQUEST, now);
    for _ in 0..6000 {
        now += Duration::from_millis(5);
        let next = window.sent(REQUEST, now);
        now += Duration::from_millis(5);
        window.answered(std::mem::replace(&mut last, next), now);
    }
    let sparse = window.estimate();
    assert!(sparse.window > full.window / 10 * 8, "{full:?}, {sparse:?}");
}

#[test]
fn a_window_whose_requests_are_all_answered_at_once_measures_the_rate() {
    let mut now = Instant::now();
    let mut window = Window::new(now);
    for _ in 0..4 {
        let mut tickets = Vec::new();
        while window.has_room(now) {
            tickets.push(window.sent(REQUEST, now));
        }
        now += Duration::from_millis(40);
        tickets.into_iter().for_each(|ticket| window.answered(ticket, now));
    }
    let Estimate { rate, window, .. } = window.estimate();
    assert!(rate > FIRST * 20 && window > FIRST, "{rate} bytes per second, {window} bytes");
}

#[test]
fn requests_that_fail_leave_the_window() {
    let now = Instant::now();
    let mut window = Window::new(now);
    let mut tickets = Vec::new();
    while window.has_room(now) {
        tickets.push(window.sent(REQUEST, now));
    }
    assert_eq!(window.estimate().under_way, FIRST);
    tickets.drain(..).for_each(|ticket| window.failed(ticket));
    assert_eq!(window.estimate(), Estimate { window: FIRST, ..Estimate::default() });
}
