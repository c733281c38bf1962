//! An emulated link by the kernel's own emulator (netem, with tbf for the rate): a pair of virtual Ethernet
//! devices whose output passes through queueing disciplines. netem costs less processor time than a program
//! that carries packets. Settings that it does not support are refused.

use std::{io::ErrorKind, process::Command, time::Duration};

use crate::{
    BurstLossModel, DEVICE, DirectionCounters, DirectionSettings, Error, LaneReport, Lateness,
    LinkOptions, LinkReport, LinkSettingsError, PacketLossModel,
    link::{ENDS, addresses, crosses_ipv6, vacant},
    namespace::LinkNamespace,
};

/// A link that the kernel's netem emulates. Dropping this removes the link and its namespaces.
#[derive(Debug)]
pub struct Netem {
    settings: [DirectionSettings; 2],
    namespaces: [LinkNamespace; 2],
}

/// Paths where `tc` may be: not every user's PATH has the folders of system programs.
const PROGRAMS: [&str; 3] = ["tc", "/usr/sbin/tc", "/sbin/tc"];
/// The rate of a link without a rate limit: more than a pair of devices carries on one machine.
const FASTEST: u64 = 25_000_000_000;
/// Senders may send at up to this multiple of the link's rate, since during slow start the window doubles in each round
/// trip (RFC 5681, 3.1). netem must have space for these packets, because they reach netem before the rate limit.
const AT_ONCE: u64 = 2;
/// Length of a UDP datagram without data.
const SMALLEST_PACKET: u64 = 28;
/// Smallest packet limit that is set for netem: its own default.
const FEWEST: u32 = 1000;
/// Largest `limit` of netem in packets: 256 MiB of kernel memory for each direction, as with our own emulator, at 2 KiB
/// for a packet of 1500 bytes. netem drops packets beyond its limit.
const MOST: u32 = (256 << 20) / (2 << 10);
/// Length of an Ethernet header: the kernel counts these bytes in addition to the IP packet.
const COUNTED: u64 = 14;
/// tbf's parameter `burst`, in packets of maximum length. A small burst makes packets leave one by one.
const SAVED_PACKETS: u64 = 2;

impl Netem {
    /// Checks whether a link with these options can be made here. Does not check if the kernel supports netem, because
    /// this is known only when netem is used.
    ///
    /// # Errors
    /// The obstacle, or the setting that netem does not support.
    pub fn check(options: &LinkOptions) -> Result<(), Error> {
        vacant(options)?;
        find_tc()?;
        if options.capture.is_some() {
            return Err(cannot("write a capture: run tcpdump at an end").into());
        }
        options.settings.iter().try_for_each(fits).map_err(Error::from)
    }

    /// Makes the namespaces, devices and queueing disciplines.
    ///
    /// # Errors
    /// As [`Self::check`], [`Error::NoNetem`], or those of the system; then nothing is left behind.
    pub fn open(options: &LinkOptions) -> Result<Self, Error> {
        Self::check(options)?;
        let [near, far] = ENDS.map(|end| LinkNamespace::make(end.namespace(&options.name)));
        let namespaces = [near?, far?];
        let peer = namespaces[1].name();
        namespaces[0]
            .ip(&["link", "add", DEVICE, "type", "veth", "peer", "name", DEVICE, "netns", peer])?;
        for ((namespace, end), settings) in namespaces.iter().zip(ENDS).zip(&options.settings) {
            // Disable segmentation offload: netem would lose all segments of a large packet together, and count them
            // as one.
            let lines = format!("link set {DEVICE} gso_max_segs 1\n");
            namespace.ip_batch(&(lines + &addresses(end, settings.mtu)))?;
        }
        for (namespace, settings) in namespaces.iter().zip(&options.settings) {
            set(namespace, settings)?;
        }
        Ok(Self { settings: options.settings.clone(), namespaces })
    }

    /// Returns the present settings of the direction to the far end, and of the opposite direction.
    #[must_use]
    pub fn settings(&self) -> &[DirectionSettings; 2] {
        &self.settings
    }

    /// Changes the settings. Packets in flight are lost, because the kernel makes a new queue.
    ///
    /// # Errors
    /// If a setting is wrong or not supported by netem; then nothing is changed. After an error of the system, a part
    /// of the settings may have changed; [`Self::settings`] returns the present ones.
    pub fn change(&mut self, settings: [DirectionSettings; 2]) -> Result<(), Error> {
        settings.iter().try_for_each(fits)?;
        crosses_ipv6(&self.settings, &settings)?;
        for ((namespace, old), new) in self.namespaces.iter().zip(&mut self.settings).zip(settings)
        {
            if old.mtu != new.mtu {
                namespace.ip(&["link", "set", DEVICE, "mtu", &new.mtu.to_string()])?;
            }
            // Delete netem and the queue below it, and make them again: a change of netem would keep
            // parameters that it does not mention.
            tc(&["-n", namespace.name(), "qdisc", "del", "dev", DEVICE, "root"])?;
            set(namespace, &new)?;
            *old = new;
        }
        Ok(())
    }

    /// Returns the state of the link and the kernel's counters since the last change of the settings.
    ///
    /// # Errors
    /// If the link is broken.
    pub fn report(&self) -> Result<LinkReport, Error> {
        let lane = |end: usize| {
            let namespace = self.namespaces[end].name();
            let said = tc(&["-n", namespace, "-s", "qdisc", "show", "dev", DEVICE])?;
            counted(&said, &self.settings[end])
                .ok_or_else(|| Error::Broken(format!("tc says: {}", said.trim())))
        };
        let lanes = [lane(0)?, lane(1)?];
        let ways = self.settings.iter().zip(&lanes).zip(["near to far", "far to near"]);
        let doubts = ways.filter_map(|((settings, lane), way)| {
            Some(format!("{way}: {}", doubt(settings, lane)?))
        });
        Ok(LinkReport {
            near_to_far: lanes[0],
            far_to_near: lanes[1],
            lateness: Lateness::default(),
            stolen: None,
            real_time: true,
            awake: true,
            tainted: [NOT_JUDGED.to_owned()].into_iter().chain(doubts).collect(),
            capture_missed: None,
        })
    }

    /// Returns true if the link's namespaces exist.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.namespaces.iter().all(|it| crate::namespace::path(it.name()).exists())
    }
}

/// Reason with which each report of netem is marked as not trustworthy.
const NOT_JUDGED: &str = "netem does not report lateness, duplicates, changed or held-back packets and lengths: their counts of 0 mean nothing";

/// Refuses settings for which netem behaves in another way than Forebay's emulator.
fn fits(settings: &DirectionSettings) -> Result<(), LinkSettingsError> {
    settings.check()?;
    if settings.background > 0.0 {
        return Err(cannot("make background traffic"));
    }
    if settings.jitter > Duration::ZERO && !settings.jitter_reorders {
        return Err(cannot("keep the order of packets with jitter: set jitter-reorders as well"));
    }
    if settings.reorder > 0.0 && settings.delay.is_zero() {
        return Err(cannot("reorder without a delay: reordered packets would have none"));
    }
    Ok(())
}

fn cannot(act: &str) -> LinkSettingsError {
    LinkSettingsError::Together(format!("netem cannot {act}"))
}

/// Sets up the queueing disciplines of the kernel at one end of the link.
fn set(namespace: &LinkNamespace, settings: &DirectionSettings) -> Result<(), Error> {
    for line in lines(settings) {
        let words: Vec<&str> = line.split(' ').collect();
        let all = [&["-n", namespace.name(), "qdisc"], &words[..]].concat();
        match tc(&all) {
            Err(Error::Tc { said, .. }) if said.contains("qdisc kind is unknown") => {
                return Err(Error::NoNetem(said));
            }
            done => done.map(drop)?,
        }
    }
    Ok(())
}

/// Returns the input of `tc`, one line for each queueing discipline: netem first (loss, then the delay), below it tbf
/// (the wire with its queue).
fn lines(settings: &DirectionSettings) -> Vec<String> {
    let us = |time: Duration| format!("{}us", time.as_micros());
    let percent = |share: f64| format!("{}%", (share * 1e8).round() / 1e6);
    let limit = limit(settings);
    let mut netem = format!("replace dev {DEVICE} root handle 1: netem limit {limit}");
    // Our jitter adds a time from 0 to `jitter`; that of netem is distributed around its delay.
    let half = settings.jitter / 2;
    netem += &format!(" delay {}", us(settings.delay + half));
    if !half.is_zero() {
        netem += &format!(" {}", us(half));
    }
    netem += &match settings.loss {
        _ if !settings.is_up => " loss random 100%".to_owned(),
        PacketLossModel::Random(0.0) => String::new(),
        PacketLossModel::Random(share) => format!(" loss random {}", percent(share)),
        PacketLossModel::Bursts(BurstLossModel { begin, end, loss_bad, loss_good }) => {
            let [begin, end, bad, good] = [begin, end, loss_bad, loss_good].map(percent);
            format!(" loss gemodel {begin} {end} {bad} {good}")
        }
    };
    for (word, share) in [
        ("duplicate", settings.duplicate),
        ("corrupt", settings.corrupt),
        ("reorder", settings.reorder),
    ] {
        if share > 0.0 {
            netem += &format!(" {word} {}", percent(share));
        }
    }
    let Some(rate) = settings.rate else { return vec![netem] };
    let longest = u64::from(settings.mtu) + settings.overhead.max(COUNTED);
    let overhead = settings.overhead.saturating_sub(COUNTED);
    let tbf = format!(
        "replace dev {DEVICE} parent 1:1 handle 2: tbf rate {rate}bit burst {} limit {} overhead {overhead}",
        longest * SAVED_PACKETS,
        settings.queue_bytes,
    );
    vec![netem, tbf]
}

/// Returns netem's `limit` in packets: the number of packets that can be in flight or wait for the wire, if all have
/// the smallest size. netem drops packets beyond its limit, and counts them together with random losses.
fn limit(settings: &DirectionSettings) -> u32 {
    let bytes_per_second = u128::from(settings.rate.unwrap_or(FASTEST) / 8 * AT_ONCE);
    let on_the_way =
        bytes_per_second * (settings.delay + settings.jitter).as_nanos() / 1_000_000_000;
    let copies = if settings.duplicate > 0.0 { 2 } else { 1 };
    let waiting = settings.rate.map_or(0, |_| settings.queue_bytes);
    let smallest = SMALLEST_PACKET + settings.overhead.max(COUNTED);
    let packets = (on_the_way * copies + u128::from(waiting)).div_ceil(u128::from(smallest));
    u32::try_from(packets).unwrap_or(MOST).clamp(FEWEST, MOST)
}

/// Returns a reason to doubt the counted losses: netem also drops packets beyond its limit, and
/// counts them together with random losses.
fn doubt(settings: &DirectionSettings, lane: &LaneReport) -> Option<String> {
    let limit = limit(settings);
    if lane.no_room > 0 {
        return Some(format!("{} packets exceeded netem's limit of {limit}", lane.no_room));
    }
    (lane.counters.lost > 0).then(|| {
        format!(
            "netem counts packets beyond its limit of {limit} as lost at random; the limit is \
             the number of smallest packets that fit on a link of twice the rate and into its queue, at most {MOST}"
        )
    })
}

fn loses(settings: &DirectionSettings) -> bool {
    !settings.is_up || settings.loss.mean() > 0.0
}

/// Parses `tc -s`: the counts of netem at the root and of tbf for the queue. Without random loss, the packets that
/// netem drops are those beyond its limit.
fn counted(said: &str, settings: &DirectionSettings) -> Option<LaneReport> {
    let of = |kind: &str| {
        let (_, rest) = said.split_once(&format!("qdisc {kind} "))?;
        let (_, sent) = rest.split_once("Sent ")?;
        let number = |text: &str| text.split_whitespace().next()?.parse::<u64>().ok();
        let bytes = number(sent)?;
        let packets = number(sent.split_once("bytes ")?.1)?;
        let dropped = sent.split_once("dropped ")?.1;
        let dropped = dropped.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()?;
        Some((bytes, packets, dropped))
    };
    let (bytes, packets, dropped) = of("netem")?;
    let queue_full = of("tbf").map_or(0, |(_, _, dropped)| dropped);
    // The header of the frame is not part of the IP packet.
    let bytes = bytes.saturating_sub(packets * COUNTED);
    let by_netem = dropped.saturating_sub(queue_full);
    let (lost, no_room) = if loses(settings) { (by_netem, 0) } else { (0, by_netem) };
    let counters = DirectionCounters {
        packets: packets + dropped,
        passed_packets: packets,
        passed_bytes: bytes,
        bytes,
        lost,
        queue_full,
        ..DirectionCounters::default()
    };
    Some(LaneReport { counters, no_room, malformed: 0, refused: 0, in_flight_bytes: 0 })
}

fn find_tc() -> Result<&'static str, Error> {
    let is_there = |program: &&&str| {
        let shown = Command::new(program).arg("-Version").output();
        !shown.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    };
    PROGRAMS.iter().find(is_there).copied().ok_or(Error::NoTc)
}

fn tc(arguments: &[&str]) -> Result<String, Error> {
    let output = Command::new(find_tc()?).args(arguments).output();
    let output = output.map_err(Error::system("run `tc`"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Tc { arguments: arguments.join(" "), said })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn settings_become_words_of_tc() {
        let usual = DirectionSettings::default;
        assert_eq!(
            lines(&DirectionSettings { delay: 4 * MS, ..usual() }),
            ["replace dev wan0 root handle 1: netem limit 131072 delay 4000us"]
        );
        let settings = DirectionSettings {
            delay: 4 * MS,
            jitter: 2 * MS,
            jitter_reorders: true,
            rate: Some(155_000_000),
            queue_bytes: 100_000,
            loss: PacketLossModel::Random(0.027),
            duplicate: 0.01,
            corrupt: 0.0001,
            reorder: 0.005,
            ..usual()
        };
        assert_eq!(fits(&settings), Ok(()));
        assert_eq!(
            lines(&settings),
            [
                "replace dev wan0 root handle 1: netem limit 8561 delay 5000us 1000us loss random 2.7% duplicate 1% corrupt \
                 0.01% reorder 0.5%",
                "replace dev wan0 parent 1:1 handle 2: tbf rate 155000000bit burst 3076 limit 100000 overhead 24",
            ]
        );
        let burst = BurstLossModel { begin: 0.005, end: 0.2, loss_bad: 1.0, loss_good: 0.0 };
        let bursts = DirectionSettings { loss: PacketLossModel::Bursts(burst), ..usual() };
        assert!(lines(&bursts)[0].ends_with("loss gemodel 0.5% 20% 100% 0%"));
        assert!(
            lines(&DirectionSettings { is_up: false, ..bursts })[0].ends_with("loss random 100%")
        );
    }

    #[test]
    fn settings_that_netem_treats_differently_are_refused() {
        let background = DirectionSettings {
            rate: Some(155_000_000),
            background: 0.2,
            ..DirectionSettings::default()
        };
        let order = DirectionSettings { delay: MS, jitter: MS, ..DirectionSettings::default() };
        let reorder = DirectionSettings { reorder: 0.1, ..DirectionSettings::default() };
        for (settings, words) in [
            (background, "background traffic"),
            (order, "jitter-reorders"),
            (reorder, "without a delay"),
        ] {
            let text = fits(&settings).unwrap_err().to_string();
            assert!(text.starts_with("netem cannot") && text.contains(words), "{text}");
        }
    }

    #[test]
    fn counts_are_read() {
        let said = "qdisc netem 1: root refcnt 2 limit 83000 delay 4ms loss 2.7%\n \
                    Sent 151400 bytes 100 pkt (dropped 7, overlimits 0 requeues 0) \n backlog 0b 0p requeues 0\n\
                    qdisc tbf 2: parent 1:1 rate 155Mbit burst 3076b lat 5ms \n \
                    Sent 151400 bytes 100 pkt (dropped 3, overlimits 12 requeues 0) \n backlog 0b 0p requeues 0\n";
        let lossy = DirectionSettings {
            loss: PacketLossModel::Random(0.027),
            ..DirectionSettings::default()
        };
        let LaneReport { counters, no_room, .. } = counted(said, &lossy).unwrap();
        assert_eq!((counters.packets, counters.passed_packets), (107, 100));
        assert_eq!((counters.passed_bytes, counters.lost, counters.queue_full), (150_000, 4, 3));
        assert_eq!(no_room, 0);
        assert_eq!(counted("qdisc noqueue 0: root refcnt 2\n", &lossy), None);

        // Without random loss, packets that netem has dropped exceeded its packet limit.
        let clean = counted(said, &DirectionSettings::default()).unwrap();
        assert_eq!((clean.counters.lost, clean.counters.queue_full, clean.no_room), (0, 3, 4));
        let told = doubt(&DirectionSettings::default(), &clean).unwrap();
        assert!(told.contains("4 packets exceeded netem's limit of 1000"), "{told}");
        let lossy_lane = counted(said, &lossy).unwrap();
        let told = doubt(&lossy, &lossy_lane).unwrap();
        assert!(told.contains("beyond its limit of 1000 as lost"), "{told}");
        let none = said.replace("dropped 7", "dropped 3");
        assert_eq!(doubt(&lossy, &counted(&none, &lossy).unwrap()), None);
    }

    #[test]
    fn the_limit_of_netem_covers_the_queue_and_the_packets_in_flight() {
        let at = |rate, delay, queue_bytes| {
            limit(&DirectionSettings {
                rate: Some(rate),
                delay,
                queue_bytes,
                ..DirectionSettings::default()
            })
        };
        // Regression: many small packets on a long path exceeded the former limit of 83,000.
        assert!(at(1_000_000_000, 40 * MS, 1 << 20) > 83_000);
        // As many packets of 66 bytes (with overhead) as are sent in 33 ms at twice 8 Mbit/s, and 66 such packets in
        // the queue.
        assert_eq!(at(8_000_000, 33 * MS, 66 * 66), 1066);
        assert_eq!(at(8_000, MS, 1538), FEWEST);
        let longest = DirectionSettings {
            delay: 10_000 * MS,
            jitter: 10_000 * MS,
            duplicate: 1.0,
            rate: Some(100_000_000_000),
            ..DirectionSettings::default()
        };
        assert_eq!(limit(&longest), MOST);
    }
}
