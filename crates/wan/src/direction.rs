//! The model of one direction of a link: it decides for each packet whether and when it arrives.

use std::time::{Duration, Instant};

use sim::Rng;

use crate::{
    DirectionCounters, DirectionSettings, LinkSettingsError,
    background_traffic::Background,
    packet_loss::LossProcess,
    packet_queue::{PacketQueue, PacketQueueLimits},
    random_stream::RandomStream,
};

/// One direction of a link. This type holds no packets, but decides for each packet whether and when it arrives.
///
/// A packet is subject, in this order, to an outage, the MTU, random loss, the queue and the wire, and the
/// delay; then it may be held back, changed or duplicated. The same seed and settings select the same packets
/// of a sequence for loss, holding back, changes and duplication, whatever their timing. Only the queue
/// depends on time.
#[derive(Clone, Debug)]
pub struct LinkDirection {
    settings: DirectionSettings,
    loss: LossProcess,
    jitter: RandomStream,
    order: RandomStream,
    copies: RandomStream,
    changes: RandomStream,
    background: Background,
    queue: PacketQueue,
    /// The latest arrival time of the packets so far that keep their order: those that are neither held back nor
    /// reordered by jitter. The next such packet does not arrive before this time.
    last_arrival: Instant,
    counters: DirectionCounters,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PacketFate {
    Lost(PacketDropCause),
    Passes(PacketDelivery),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PacketDelivery {
    pub at: Instant,
    /// True if the packet was held back, so that later packets may overtake it.
    pub is_held_back: bool,
    /// True if the packet arrives twice.
    pub is_doubled: bool,
    /// If set, one bit of the packet is changed: the bit with this number, modulo the number of
    /// bits after the IP header.
    pub changed_bit: Option<u64>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PacketDropCause {
    Mtu,
    Outage,
    Queue,
    Random,
}

impl LinkDirection {
    /// Returns a direction of a link, without packets in flight.
    ///
    /// # Errors
    /// Those of [`DirectionSettings::check`].
    pub fn new(
        settings: DirectionSettings,
        seed: u64,
        now: Instant,
    ) -> Result<Self, LinkSettingsError> {
        settings.check()?;
        let mut rng = Rng::new(seed);
        let mut row = || RandomStream::of(&mut rng);
        Ok(Self {
            settings,
            loss: LossProcess::new(row()),
            jitter: row(),
            order: row(),
            copies: row(),
            changes: row(),
            background: Background::new(row(), now),
            queue: PacketQueue::default(),
            last_arrival: now,
            counters: DirectionCounters::default(),
        })
    }

    #[must_use]
    pub fn settings(&self) -> &DirectionSettings {
        &self.settings
    }

    #[must_use]
    pub fn counters(&self) -> DirectionCounters {
        self.counters
    }

    /// Changes the settings for packets that arrive from now on. Packets in flight or in the queue are not affected.
    ///
    /// # Errors
    /// Those of [`DirectionSettings::check`]. The settings are unchanged then.
    pub fn change(
        &mut self,
        settings: DirectionSettings,
        now: Instant,
    ) -> Result<(), LinkSettingsError> {
        settings.check()?;
        self.advance(now);
        self.settings = settings;
        Ok(())
    }

    /// Decides whether and when a packet of `bytes` bytes (IP header included) arrives. `now` must not go back between
    /// calls.
    pub fn admit(&mut self, now: Instant, bytes: u64) -> PacketFate {
        self.counters.packets += 1;
        self.counters.bytes += bytes;
        self.counters.packets_by_length.count(bytes);
        let settings = &self.settings;
        // Draw all random numbers for every packet, so that no random stream depends on decisions about packets.
        let is_lost = self.loss.loses(&settings.loss);
        let jitter = settings.jitter.mul_f64(self.jitter.unit());
        let is_held_back = self.order.hits(settings.reorder);
        let is_doubled = self.copies.hits(settings.duplicate);
        let (is_changed, bit) = (self.changes.hits(settings.corrupt), self.changes.any());

        if !settings.is_up {
            self.counters.outage += 1;
            return PacketFate::Lost(PacketDropCause::Outage);
        }
        if bytes > u64::from(settings.mtu) {
            self.counters.too_long += 1;
            return PacketFate::Lost(PacketDropCause::Mtu);
        }
        if is_lost {
            self.counters.lost += 1;
            return PacketFate::Lost(PacketDropCause::Random);
        }
        let Some(left) = self.send(now, bytes) else {
            self.counters.queue_full += 1;
            return PacketFate::Lost(PacketDropCause::Queue);
        };
        let at = self.arrival(left + self.settings.delay + jitter, is_held_back);
        self.counters.passed_packets += 1;
        self.counters.passed_bytes += bytes;
        self.counters.reordered += u64::from(is_held_back);
        self.counters.duplicated += u64::from(is_doubled);
        self.counters.corrupted += u64::from(is_changed);
        let changed_bit = is_changed.then_some(bit);
        PacketFate::Passes(PacketDelivery { at, is_held_back, is_doubled, changed_bit })
    }

    /// Adds the background traffic up to now. Call this at least once a second for correct counters;
    /// decisions about packets do not depend on it.
    pub fn advance(&mut self, now: Instant) {
        self.background.advance(
            now,
            &self.settings,
            &mut self.queue,
            &mut self.counters.background,
        );
    }

    /// Sends a packet over the wire, and returns the time when it has left the sender; `None` if
    /// the queue drops it.
    fn send(&mut self, now: Instant, bytes: u64) -> Option<Instant> {
        let Some(rate) = self.settings.rate else { return Some(now) };
        self.advance(now);
        let DirectionSettings { queue_bytes, queue_packets, overhead, .. } = self.settings;
        let limits = PacketQueueLimits { bytes: queue_bytes, packets: queue_packets };
        let left = self.queue.offer(now, bytes + overhead, rate, limits)?;
        let most = &mut self.counters.queue_most_bytes;
        *most = (*most).max(self.queue.bytes());
        Some(left)
    }

    fn arrival(&mut self, at: Instant, is_held_back: bool) -> Instant {
        if is_held_back {
            return at + self.settings.reorder_by;
        }
        if self.settings.jitter_reorders && self.settings.jitter > Duration::ZERO {
            return at;
        }
        self.last_arrival = self.last_arrival.max(at);
        self.last_arrival
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BurstLossModel, PacketLossModel};

    const MS: Duration = Duration::from_millis(1);

    fn direction(settings: DirectionSettings) -> (LinkDirection, Instant) {
        let now = Instant::now();
        (LinkDirection::new(settings, 1, now).unwrap(), now)
    }

    fn passage(fate: PacketFate) -> PacketDelivery {
        match fate {
            PacketFate::Passes(passage) => passage,
            PacketFate::Lost(cause) => panic!("lost: {cause:?}"),
        }
    }

    fn usual() -> DirectionSettings {
        DirectionSettings::default()
    }

    /// Returns the fates of `count` packets that are sent at equal intervals.
    fn fates(
        direction: &mut LinkDirection,
        start: Instant,
        gap: Duration,
        count: u32,
    ) -> Vec<PacketFate> {
        (0..count).map(|n| direction.admit(start + n * gap, 1500)).collect()
    }

    #[test]
    fn a_packet_arrives_after_the_delay() {
        let (mut direction, now) = direction(DirectionSettings { delay: 4 * MS, ..usual() });
        assert_eq!(passage(direction.admit(now, 1500)).at, now + 4 * MS);
        assert_eq!(passage(direction.admit(now + MS, 40)).at, now + 5 * MS);
    }

    #[test]
    fn the_rate_is_that_of_the_wire() {
        // 1462 bytes and 38 bytes of Ethernet overhead are 12,000 bits: 1 ms at 12 Mbit/s.
        let (mut direction, now) =
            direction(DirectionSettings { rate: Some(12_000_000), delay: 4 * MS, ..usual() });
        for n in 1..=100 {
            assert_eq!(passage(direction.admit(now, 1462)).at, now + (4 + n) * MS);
        }
        assert_eq!(direction.counters().queue_most_bytes, 150_000);
    }

    #[test]
    fn the_queue_drops_the_newest_packets() {
        let settings = DirectionSettings { rate: Some(12_000_000), queue_bytes: 15_000, ..usual() };
        let (mut direction, now) = direction(settings);
        // Packets are sent at twice the rate of the wire: half of the packets are dropped, and the queue never exceeds
        // its limit.
        let mut passed = 0;
        for n in 0..10_000 {
            match direction.admit(now + n * MS / 2, 1462) {
                PacketFate::Passes(passage) => {
                    passed += 1;
                    assert!(passage.at - (now + n * MS / 2) <= 10 * MS);
                }
                PacketFate::Lost(cause) => assert_eq!(cause, PacketDropCause::Queue),
            }
        }
        assert!((5000..5020).contains(&passed), "{passed}");
        assert_eq!(direction.counters().queue_full, 10_000 - passed);
        assert_eq!(direction.counters().queue_most_bytes, 15_000);
    }

    #[test]
    fn jitter_is_evenly_distributed_and_keeps_the_order_by_default() {
        for reorders in [false, true] {
            let settings = DirectionSettings {
                delay: MS,
                jitter: 2 * MS,
                jitter_reorders: reorders,
                ..usual()
            };
            let (mut direction, now) = direction(settings);
            let arrivals: Vec<Duration> = (0..10_000)
                .map(|n| passage(direction.admit(now + n * MS / 10, 100)).at - now)
                .collect();
            assert_eq!(arrivals.is_sorted(), !reorders);
            let waits = arrivals.iter().zip(0..).map(|(at, n)| *at - n * MS / 10);
            assert!(waits.clone().all(|wait| (MS..3 * MS).contains(&wait)));
            let mean = waits.sum::<Duration>() / 10_000;
            if reorders {
                assert!((mean.as_secs_f64() / 0.002 - 1.0).abs() < 0.02, "{mean:?}");
            }
        }
    }

    #[test]
    fn a_packet_held_back_is_overtaken() {
        let (mut direction, now) =
            direction(DirectionSettings { reorder: 0.1, reorder_by: 5 * MS, delay: MS, ..usual() });
        let all = fates(&mut direction, now, MS, 10_000);
        let mut held = 0;
        for (n, fate) in (0..).zip(all) {
            let PacketDelivery { at, is_held_back, .. } = passage(fate);
            held += u32::from(is_held_back);
            assert_eq!(at, now + n * MS + if is_held_back { 6 * MS } else { MS });
        }
        assert!((900..1100).contains(&held), "{held}");
        assert_eq!(direction.counters().reordered, u64::from(held));
    }

    #[test]
    fn duplicated_and_corrupted_packets_have_the_configured_shares() {
        let (mut direction, now) =
            direction(DirectionSettings { duplicate: 0.1, corrupt: 0.05, ..usual() });
        let all = fates(&mut direction, now, MS, 10_000);
        let twice = all.iter().filter(|fate| passage(**fate).is_doubled).count() as u64;
        let changed =
            all.iter().filter(|fate| passage(**fate).changed_bit.is_some()).count() as u64;
        assert!((900..1100).contains(&twice) && (430..570).contains(&changed));
        let counters = direction.counters();
        assert_eq!((counters.duplicated, counters.corrupted), (twice, changed));
    }

    #[test]
    fn only_packets_in_flight_pass_during_an_outage() {
        let (mut direction, now) = direction(DirectionSettings { delay: 4 * MS, ..usual() });
        assert_eq!(passage(direction.admit(now, 40)).at, now + 4 * MS);
        direction.change(DirectionSettings { is_up: false, ..usual() }, now + MS).unwrap();
        assert_eq!(direction.admit(now + MS, 40), PacketFate::Lost(PacketDropCause::Outage));
        direction.change(DirectionSettings { delay: 4 * MS, ..usual() }, now + 2 * MS).unwrap();
        assert_eq!(passage(direction.admit(now + 2 * MS, 40)).at, now + 6 * MS);
        let counters = direction.counters();
        assert_eq!((counters.packets, counters.passed_packets, counters.outage), (3, 2, 1));
    }

    #[test]
    fn packets_longer_than_the_mtu_are_dropped() {
        let (mut direction, now) = direction(DirectionSettings { mtu: 1400, ..usual() });
        assert_eq!(direction.admit(now, 1401), PacketFate::Lost(PacketDropCause::Mtu));
        passage(direction.admit(now, 1400));
    }

    #[test]
    fn invalid_settings_change_nothing() {
        let (mut direction, now) = direction(DirectionSettings { delay: 4 * MS, ..usual() });
        let before = direction.settings().clone();
        assert!(direction.change(DirectionSettings { mtu: 1, ..usual() }, now).is_err());
        assert_eq!(direction.settings(), &before);
        assert!(
            LinkDirection::new(DirectionSettings { duplicate: 2.0, ..usual() }, 1, now).is_err()
        );
    }

    #[test]
    fn two_runs_with_one_seed_treat_all_packets_identically() {
        let burst = BurstLossModel { begin: 0.01, end: 0.2, loss_bad: 0.9, loss_good: 0.001 };
        let settings = DirectionSettings {
            delay: 4 * MS,
            jitter: MS,
            rate: Some(1_000_000_000),
            loss: PacketLossModel::Bursts(burst),
            reorder: 0.01,
            duplicate: 0.01,
            corrupt: 0.01,
            background: 0.3,
            ..usual()
        };
        let run = |seed, gap| {
            let now = Instant::now();
            let mut direction = LinkDirection::new(settings.clone(), seed, now).unwrap();
            let all = fates(&mut direction, now, gap, 20_000);
            let rows = all.into_iter().map(|fate| match fate {
                PacketFate::Lost(cause) => (Some(cause), None),
                PacketFate::Passes(way) => {
                    (None, Some((way.is_held_back, way.is_doubled, way.changed_bit)))
                }
            });
            (rows.collect::<Vec<_>>(), direction.counters())
        };
        let gap = MS / 20;
        assert_eq!(run(1, gap), run(1, gap));
        // The decisions do not depend on the timing of the packets.
        assert_eq!(run(1, gap).0, run(1, 2 * gap).0);
        assert_ne!(run(1, gap).0, run(2, gap).0);
    }

    #[test]
    fn the_lost_packets_do_not_depend_on_other_settings() {
        let lost = |settings: DirectionSettings| -> Vec<bool> {
            let (mut direction, now) = direction(settings);
            let all = fates(&mut direction, now, MS, 50_000);
            all.iter().map(|fate| *fate == PacketFate::Lost(PacketDropCause::Random)).collect()
        };
        let plain = DirectionSettings { loss: PacketLossModel::Random(0.027), ..usual() };
        let full = DirectionSettings {
            jitter: MS,
            duplicate: 0.5,
            reorder: 0.5,
            rate: Some(155_000_000),
            background: 0.75,
            ..plain.clone()
        };
        assert_eq!(lost(plain), lost(full));
    }

    #[test]
    fn background_traffic_uses_its_share_of_the_rate() {
        let settings = DirectionSettings { rate: Some(155_000_000), background: 0.75, ..usual() };
        let (mut direction, now) = direction(settings);
        // The test's own packets fill the wire. Together with the background traffic the load is 1.75 times the rate.
        // Both kinds of packets lose the same share.
        let gap = Duration::from_nanos(1538 * 8_000 / 155);
        let all = fates(&mut direction, now, gap, 100_000);
        let passed = all.iter().filter(|fate| matches!(fate, PacketFate::Passes(_))).count();
        assert!((52_000..62_000).contains(&passed), "{passed}");
        assert!(direction.counters().background.dropped > 0);
    }
}
