//! The settings of one direction of a link, with their valid ranges.

use std::{fmt::Display, ops::RangeInclusive, time::Duration};

use serde::{Deserialize, Serialize};

use crate::LinkSettingsError;

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct DirectionSettings {
    /// One-way delay from the last bit on the wire to its arrival; at most 10 s.
    pub delay: Duration,
    /// Jitter: a uniformly distributed time from zero to this value is added to the delay of each packet; at
    /// most 10 s.
    pub jitter: Duration,
    /// True if jitter may reorder packets.
    pub jitter_reorders: bool,
    /// The rate in bits per second, 8 kbit/s to 100 Gbit/s; `None` for no limit.
    pub rate: Option<u64>,
    /// Maximum number of bytes in the queue and on the wire: at least one packet, at most 1 GiB. Applies only with a
    /// rate, like `queue_packets`.
    pub queue_bytes: u64,
    /// Maximum number of packets in the queue, 1 to 1,000,000.
    pub queue_packets: usize,
    /// Overhead on the wire for each IP packet in bytes, at most 256.
    pub overhead: u64,
    pub loss: PacketLossModel,
    /// The MTU: the longest IP packet in bytes, 576 to 65,535.
    pub mtu: u16,
    /// The share of packets that are held back for `reorder_by`, so that later ones overtake them.
    pub reorder: f64,
    /// Time for which the packets selected by `reorder` are held back, up to 10 s.
    pub reorder_by: Duration,
    /// The share of packets that are duplicated.
    pub duplicate: f64,
    /// Share of the packets in which one bit behind the IP header is inverted.
    pub corrupt: f64,
    /// Background traffic as a share of the rate: 0 to 0.75.
    pub background: f64,
    /// False during an outage: all packets that are sent then are lost, and packets in flight still
    /// arrive.
    pub is_up: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PacketLossModel {
    /// Each packet is lost with this probability, independently of the others (Bernoulli).
    Random(f64),
    /// Packets are lost in bursts (Gilbert-Elliott model).
    Bursts(BurstLossModel),
}

/// The Gilbert-Elliott model: before each packet the link may change between a good and a bad state.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct BurstLossModel {
    /// Probability of a change from good to bad, above 0.
    pub begin: f64,
    /// Probability of a change from bad to good, above 0. A bad state lasts 1 / `end` packets on average.
    pub end: f64,
    /// Probability with which a packet is lost while the link is in the bad state.
    pub loss_bad: f64,
    /// Probability with which a packet is lost while the link is in the good state.
    pub loss_good: f64,
}

impl Default for DirectionSettings {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            jitter_reorders: false,
            rate: None,
            // 2 ms at 1 Gbit/s: a small switch.
            queue_bytes: 256 << 10,
            // Only packets shorter than 27 bytes would reach this limit before `queue_bytes`, so by default the limit
            // in bytes applies.
            queue_packets: 10_000,
            // Ethernet: preamble 8, header 14, check sequence 4, gap 12 (IEEE 802.3).
            overhead: 38,
            loss: PacketLossModel::Random(0.0),
            mtu: 1500,
            reorder: 0.0,
            reorder_by: Duration::from_millis(1),
            duplicate: 0.0,
            corrupt: 0.0,
            background: 0.0,
            is_up: true,
        }
    }
}

/// Maximum of `delay`, `jitter` and `reorder_by`: longer than any path on Earth over a satellite. The limit bounds the
/// memory for packets in flight.
const LONGEST: Duration = Duration::from_secs(10);
/// Range of `rate`. Below the minimum, a packet of 1500 bytes takes more than 1.5 s. Above the maximum, the nanoseconds
/// of the clock are too coarse: the smallest packet takes six.
const RATES: RangeInclusive<u64> = 8_000..=100_000_000_000;
/// Highest rate with background traffic. Each of its packets is generated: up to 235,000 a second at this rate, which
/// takes a few per cent of a CPU.
const BACKGROUND_RATE: u64 = 1_000_000_000;
/// Maximum of `background`. Above this load the paper has no results (Outsourcing, Table 3), and the queue is full most
/// of the time.
const MOST_BACKGROUND: f64 = 0.75;
/// Maximum of `queue_bytes`: one second of data at 8 Gbit/s.
const LONGEST_QUEUE: u64 = 1 << 30;
/// Maximum of `queue_packets`, which bounds the memory: each entry of the queue takes 24 bytes.
const MOST_PACKETS: usize = 1_000_000;
/// Maximum of `overhead`: more than any encapsulation adds to a packet.
const MOST_OVERHEAD: u64 = 256;
/// Minimum of `mtu`: the packet length that every host has to accept (RFC 791, 3.1).
const SMALLEST_MTU: u16 = 576;

impl DirectionSettings {
    /// Checks the ranges.
    ///
    /// # Errors
    /// The first setting that is out of range, or that conflicts with another.
    pub fn check(&self) -> Result<(), LinkSettingsError> {
        let long = "at most 10 s, because packets in flight are in memory";
        for (setting, time) in
            [("delay", self.delay), ("jitter", self.jitter), ("reorder-by", self.reorder_by)]
        {
            within(setting, time <= LONGEST, format!("{time:?}"), long)?;
        }
        if let Some(rate) = self.rate {
            let range = "8000 to 100000000000 bits per second";
            within("rate", RATES.contains(&rate), rate, range)?;
        }
        let fits = (1..=MOST_PACKETS).contains(&self.queue_packets);
        within("queue-packets", fits, self.queue_packets, "1 to 1000000")?;
        within("overhead", self.overhead <= MOST_OVERHEAD, self.overhead, "at most 256 bytes")?;
        within("mtu", self.mtu >= SMALLEST_MTU, self.mtu, "576 to 65535 bytes")?;
        let one = u64::from(self.mtu) + self.overhead;
        let fits = (one..=LONGEST_QUEUE).contains(&self.queue_bytes);
        let range = format!("{one} bytes (one packet of this MTU on the wire) to 1 GiB");
        within("queue", fits, self.queue_bytes, range)?;
        for (setting, share) in
            [("reorder", self.reorder), ("duplicate", self.duplicate), ("corrupt", self.corrupt)]
        {
            probability(setting, share)?;
        }
        if self.reorder > 0.0 && self.reorder_by.is_zero() {
            return Err(LinkSettingsError::Together(
                "reorder needs a reorder-by above zero: nothing would be overtaken otherwise"
                    .to_owned(),
            ));
        }
        self.loss.check()?;
        let range = "0 to 0.75 of the rate";
        let fits = (0.0..=MOST_BACKGROUND).contains(&self.background);
        within("background", fits, self.background, range)?;
        let is_slow = self.rate.is_some_and(|rate| rate <= BACKGROUND_RATE);
        if self.background > 0.0 && !is_slow {
            return Err(LinkSettingsError::Together(
                "background is a share of the rate: it needs a rate, of 1 Gbit/s at most"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

impl PacketLossModel {
    /// Returns the share of packets that are lost on average.
    #[must_use]
    pub fn mean(&self) -> f64 {
        match *self {
            Self::Random(share) => share,
            Self::Bursts(BurstLossModel { begin, end, loss_bad, loss_good }) => {
                (begin * loss_bad + end * loss_good) / (begin + end)
            }
        }
    }

    fn check(&self) -> Result<(), LinkSettingsError> {
        match *self {
            Self::Random(share) => probability("loss", share),
            Self::Bursts(BurstLossModel { begin, end, loss_bad, loss_good }) => {
                for (setting, share) in [("burst begin", begin), ("burst end", end)] {
                    let fits = share > 0.0 && share <= 1.0;
                    within(setting, fits, share, "above 0 and at most 1")?;
                }
                probability("loss in a burst", loss_bad)?;
                probability("loss between bursts", loss_good)
            }
        }
    }
}

fn probability(setting: &'static str, share: f64) -> Result<(), LinkSettingsError> {
    within(setting, (0.0..=1.0).contains(&share), share, "0 to 1")
}

fn within(
    setting: &'static str,
    fits: bool,
    value: impl Display,
    range: impl Display,
) -> Result<(), LinkSettingsError> {
    let wrong =
        || LinkSettingsError::Range { setting, value: value.to_string(), range: range.to_string() };
    fits.then_some(()).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut DirectionSettings)) -> Result<(), LinkSettingsError> {
        let mut settings = DirectionSettings::default();
        change(&mut settings);
        settings.check()
    }

    #[test]
    fn default_settings_and_extreme_settings_are_valid() {
        assert_eq!(check(|_| {}), Ok(()));
        assert_eq!(
            check(|s| {
                s.delay = LONGEST;
                s.jitter = LONGEST;
                s.rate = Some(BACKGROUND_RATE);
                s.background = MOST_BACKGROUND;
                s.mtu = u16::MAX;
                s.loss = PacketLossModel::Random(1.0);
                s.reorder = 1.0;
            }),
            Ok(())
        );
    }

    #[test]
    fn every_setting_out_of_range_is_named() {
        let burst = BurstLossModel { begin: 0.01, end: 0.2, loss_bad: 1.0, loss_good: 0.0 };
        type Change<'a> = Box<dyn FnOnce(&mut DirectionSettings) + 'a>;
        let cases: Vec<(&str, Change)> = vec![
            ("delay", Box::new(|s| s.delay = LONGEST + Duration::from_nanos(1))),
            ("jitter", Box::new(|s| s.jitter = LONGEST * 2)),
            ("reorder-by", Box::new(|s| s.reorder_by = LONGEST * 2)),
            ("rate", Box::new(|s| s.rate = Some(7_999))),
            ("rate", Box::new(|s| s.rate = Some(100_000_000_001))),
            ("queue", Box::new(|s| s.queue_bytes = 1537)),
            ("queue", Box::new(|s| s.queue_bytes = (1 << 30) + 1)),
            ("queue-packets", Box::new(|s| s.queue_packets = 0)),
            ("queue-packets", Box::new(|s| s.queue_packets = 1_000_001)),
            ("overhead", Box::new(|s| s.overhead = 257)),
            ("mtu", Box::new(|s| s.mtu = 575)),
            ("loss", Box::new(|s| s.loss = PacketLossModel::Random(1.1))),
            ("loss", Box::new(|s| s.loss = PacketLossModel::Random(f64::NAN))),
            (
                "burst begin",
                Box::new(|s| {
                    s.loss = PacketLossModel::Bursts(BurstLossModel { begin: 0.0, ..burst })
                }),
            ),
            (
                "burst end",
                Box::new(|s| {
                    s.loss = PacketLossModel::Bursts(BurstLossModel { end: 0.0, ..burst })
                }),
            ),
            (
                "loss in a burst",
                Box::new(|s| {
                    s.loss = PacketLossModel::Bursts(BurstLossModel { loss_bad: 2.0, ..burst })
                }),
            ),
            (
                "loss between bursts",
                Box::new(|s| {
                    s.loss = PacketLossModel::Bursts(BurstLossModel { loss_good: -0.1, ..burst })
                }),
            ),
            ("reorder", Box::new(|s| s.reorder = -0.1)),
            ("duplicate", Box::new(|s| s.duplicate = 1.5)),
            ("corrupt", Box::new(|s| s.corrupt = f64::INFINITY)),
            ("background", Box::new(|s| s.background = 0.76)),
        ];
        for (name, change) in cases {
            let problem = check(change).expect_err(name);
            assert!(
                matches!(&problem, LinkSettingsError::Range { setting, .. } if *setting == name)
            );
            let text = problem.to_string();
            assert!(text.starts_with(name) && text.contains("it must be"), "{text}");
        }
    }

    #[test]
    fn settings_that_need_another_setting_name_it() {
        let background = |rate| check(|s| (s.background, s.rate) = (0.2, rate));
        for rate in [None, Some(BACKGROUND_RATE + 1)] {
            assert!(background(rate).unwrap_err().to_string().contains("needs a rate"));
        }
        assert_eq!(background(Some(155_000_000)), Ok(()));
        let still = check(|s| (s.reorder, s.reorder_by) = (0.1, Duration::ZERO));
        assert!(still.unwrap_err().to_string().contains("reorder-by"));
    }
}
