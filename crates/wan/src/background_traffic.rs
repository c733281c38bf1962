//! Background traffic on the link, with the profile of "Obtaining High Performance for Storage Outsourcing" (FAST 2002;
//! "Outsourcing" in this crate), section 3.1: TCP 95 %, UDP 5 %; 50 % of the packets are shorter than 44 bytes, 75 %
//! shorter than 576, 99 % shorter than 1500.
//!
//! These packets are not sent: they only take space in the queue, and time on the wire. Like the hardware generators of
//! the paper, they do not slow down when packets are lost.

use std::time::{Duration, Instant};

use crate::{
    BackgroundCounters, DirectionSettings,
    packet_queue::{PacketQueue, PacketQueueLimits},
    random_stream::RandomStream,
};

/// Generates the background packets that share one direction of the link with the workload.
#[derive(Clone, Debug)]
pub(crate) struct Background {
    dice: RandomStream,
    /// The time when the next packet arrives at the queue; `None` without background traffic.
    next: Option<Instant>,
    /// The present load as a share of the link's rate.
    share: f64,
    /// The time at which the generator chooses another load at random.
    until: Instant,
}

/// Classes of packet lengths: the cumulative share of packets, the shortest length, and the longest length plus one.
/// The lengths begin at 40 bytes, a TCP acknowledgment, and end at 1500, the maximum of Ethernet.
const LENGTHS: [(f64, u64, u64); 4] =
    [(0.50, 40, 44), (0.75, 44, 576), (0.99, 576, 1500), (1.00, 1500, 1501)];
/// Share of the background packets that are TCP; all others are UDP.
const TCP: f64 = 0.95;
/// Standard deviation of the load, as a share of the link's rate: 12.8 of 155 Mbit/s (Outsourcing, Table 3).
const DEVIATION: f64 = 0.08;
/// Upper bound of the standard deviation as a share of the mean load, so that the random load is rarely below zero.
/// With this bound, the deviation at a load of 20 % is the 9.8 Mbit/s of Outsourcing, Table 3.
const DEVIATION_OF_MEAN: f64 = 1.0 / 3.0;
/// The generator draws a new random load at this interval, which the paper does not state. With this value the losses
/// of Outsourcing, Table 3, have the right order of magnitude.
const STEP: Duration = Duration::from_millis(100);
/// Background packets that were due longer ago than this are not generated: they do not affect the present state of the
/// queue.
const HORIZON: Duration = Duration::from_secs(1);

impl Background {
    pub fn new(dice: RandomStream, now: Instant) -> Self {
        Self { dice, next: None, share: 0.0, until: now }
    }

    /// Generates the background packets that arrive until `now`, and adds them to the queue of the link.
    pub fn advance(
        &mut self,
        now: Instant,
        settings: &DirectionSettings,
        queue: &mut PacketQueue,
        counters: &mut BackgroundCounters,
    ) {
        let Some(rate) = settings.rate.filter(|_| settings.background > 0.0) else {
            self.next = None;
            return;
        };
        let limits =
            PacketQueueLimits { bytes: settings.queue_bytes, packets: settings.queue_packets };
        let mean_bits = (mean_length() + settings.overhead as f64) * 8.0;
        let oldest = now.checked_sub(HORIZON).unwrap_or(now);
        let mut next = match self.next {
            Some(next) => next.max(oldest),
            None => {
                self.until = now;
                now
            }
        };
        while next <= now {
            if next >= self.until {
                self.share = self.draw_share(settings.background);
                self.until = next + STEP;
            }
            let (is_tcp, bytes) = (self.dice.hits(TCP), self.length() + settings.overhead);
            let protocol = if is_tcp { &mut counters.tcp } else { &mut counters.udp };
            *protocol += 1;
            counters.bytes += bytes;
            if queue.offer(next, bytes, rate, limits).is_none() {
                counters.dropped += 1;
            }
            let gap = self.dice.exponential(mean_bits / (self.share * rate as f64));
            next += Duration::from_secs_f64(gap);
        }
        self.next = Some(next);
    }

    fn draw_share(&mut self, mean: f64) -> f64 {
        let deviation = DEVIATION.min(mean * DEVIATION_OF_MEAN);
        // The load must not become zero, because the generator would stop.
        (mean + deviation * self.dice.normal()).clamp(mean * 0.05, 1.0)
    }

    fn length(&mut self) -> u64 {
        let (kind, place) = (self.dice.unit(), self.dice.unit());
        let found = LENGTHS.iter().find(|(share, _, _)| kind < *share);
        let (_, shortest, end) = found.unwrap_or(&LENGTHS[LENGTHS.len() - 1]);
        shortest + (place * (end - shortest) as f64) as u64
    }
}

/// Mean length of an IP packet of background traffic: 362 bytes.
fn mean_length() -> f64 {
    let mut before = 0.0;
    let mut mean = 0.0;
    for (share, shortest, end) in LENGTHS {
        mean += (share - before) * (shortest + end - 1) as f64 / 2.0;
        before = share;
    }
    mean
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::Rng;

    fn background() -> (Background, Instant) {
        let now = Instant::now();
        (Background::new(RandomStream::of(&mut Rng::new(5)), now), now)
    }

    #[test]
    fn lengths_are_those_of_the_paper() {
        let (mut background, _) = background();
        let lengths: Vec<u64> = (0..200_000).map(|_| background.length()).collect();
        for (below, share) in [(44, 0.5), (576, 0.75), (1500, 0.99)] {
            let found = lengths.iter().filter(|length| **length < below).count() as f64;
            let found = found / lengths.len() as f64;
            assert!((found - share).abs() < 0.005, "{found} below {below}");
        }
        assert!(lengths.iter().all(|length| (40..=1500).contains(length)));
        let mean = lengths.iter().sum::<u64>() as f64 / lengths.len() as f64;
        assert!((mean / mean_length() - 1.0).abs() < 0.01, "{mean}");
    }

    fn run(settings: &DirectionSettings, seconds: u32) -> (BackgroundCounters, Vec<f64>) {
        let (mut background, start) = background();
        let mut queue = PacketQueue::default();
        let mut counters = BackgroundCounters::default();
        let mut megabits = Vec::new();
        for step in 0..=seconds * 10 {
            let before = counters.bytes;
            background.advance(start + step * STEP, settings, &mut queue, &mut counters);
            megabits.push((counters.bytes - before) as f64 * 80.0 / 1e6);
        }
        (counters, megabits.split_off(1))
    }

    #[test]
    fn the_load_is_the_share_of_the_rate_that_was_set() {
        for load in [0.05, 0.2, 0.5, 0.75] {
            let settings = DirectionSettings {
                rate: Some(155_000_000),
                background: load,
                ..DirectionSettings::default()
            };
            let (counters, megabits) = run(&settings, 60);
            let mean = megabits.iter().sum::<f64>() / megabits.len() as f64;
            assert!((mean / 155.0 / load - 1.0).abs() < 0.05, "{mean} Mbit/s at {load}");
            let packets = counters.tcp + counters.udp;
            let udp = counters.udp as f64 / packets as f64;
            assert!((udp - 0.05).abs() < 0.005, "{udp}");
            let squares = megabits.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>();
            let deviation = (squares / megabits.len() as f64).sqrt();
            let set = 155.0 * DEVIATION.min(load * DEVIATION_OF_MEAN);
            assert!((deviation / set - 1.0).abs() < 0.2, "{deviation} of {set} at {load}");
        }
    }

    #[test]
    fn without_load_there_is_no_background_traffic() {
        let settings =
            DirectionSettings { rate: Some(155_000_000), ..DirectionSettings::default() };
        assert_eq!(run(&settings, 1).0, BackgroundCounters::default());
    }

    #[test]
    fn background_traffic_of_a_long_pause_is_not_sent_later() {
        let settings = DirectionSettings {
            rate: Some(1_000_000),
            background: 0.5,
            ..DirectionSettings::default()
        };
        let (mut background, start) = background();
        let (mut queue, mut counters) = (PacketQueue::default(), BackgroundCounters::default());
        background.advance(start, &settings, &mut queue, &mut counters);
        let later = start + Duration::from_secs(3600);
        background.advance(later, &settings, &mut queue, &mut counters);
        let packets = counters.tcp + counters.udp;
        assert!((50..400).contains(&packets), "{packets} packets");
    }
}
