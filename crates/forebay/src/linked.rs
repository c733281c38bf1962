//! An emulated link as its process tells others of it, and what it is told: settings as words.

use std::{collections::BTreeMap, fmt::Write as _};

use serde::{Deserialize, Serialize};
use wan::{LaneReport, LinkReport};

/// A link between two network namespaces.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Linked {
    /// Its name.
    pub name: String,
    /// The process that carries its packets.
    pub process: u32,
    /// One end.
    pub near: LinkEnd,
    /// The other.
    pub far: LinkEnd,
    /// What loss and other chance come from.
    pub seed: u64,
    /// What it is like from the near end to the far one.
    pub near_to_far: LinkDirectionSettings,
    /// And back.
    pub far_to_near: LinkDirectionSettings,
    /// What happened so far.
    pub report: LinkReport,
}

/// An end of a link.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LinkEnd {
    /// The name of its network namespace.
    pub namespace: String,
    /// Its address.
    pub address: String,
    /// Its IPv6 address.
    pub address6: String,
}

/// Settings of one direction by their names, each as it is written on the command line.
pub type LinkDirectionSettings = BTreeMap<String, String>;

impl Linked {
    /// As text.
    pub fn for_people(&self) -> String {
        let Self { name, process, near, far, seed, report, .. } = self;
        let mut text = format!("link {name}, process {process}, seed {seed}\n");
        for (end, LinkEnd { namespace, address, address6 }) in [("near", near), ("far", far)] {
            let _ = writeln!(text, "  {end}: namespace {namespace}, {address}, {address6}");
        }
        for (way, words, lane) in [
            ("near to far", &self.near_to_far, &report.near_to_far),
            ("far to near", &self.far_to_near, &report.far_to_near),
        ] {
            let words: Vec<String> =
                words.iter().map(|(key, word)| format!("{key} {word}")).collect();
            let _ = writeln!(text, "{way}: {}\n{}", words.join(", "), lane_for_people(lane));
        }
        let late = &report.lateness;
        // Nothing was given yet, or by the kernel, which does not say.
        if late.count > 0 {
            let _ = writeln!(
                text,
                "late: {:.0} us in the median, 99 % {:.0} us, 99.9 % {:.0} us, most {:.0} us",
                late.median_us, late.p99_us, late.p999_us, late.max_us
            );
        }
        if !report.real_time {
            text += "not a real-time thread: this host does not allow it\n";
        }
        if !report.awake {
            text +=
                "idle processors may sleep: this host has no /dev/cpu_dma_latency to write to\n";
        }
        if let Some(missed) = report.capture_missed.filter(|missed| *missed > 0) {
            let _ = writeln!(
                text,
                "{missed} packets are not in the capture: the disk is too slow or full"
            );
        }
        for taint in &report.tainted {
            let _ = writeln!(text, "tainted: {taint}");
        }
        text
    }
}

fn lane_for_people(lane: &LaneReport) -> String {
    let counters = &lane.counters;
    let mut text = format!(
        "  {} packets came ({} bytes), {} passed ({} bytes)",
        counters.packets, counters.bytes, counters.passed_packets, counters.passed_bytes
    );
    let background = counters.background_tcp + counters.background_udp;
    for (count, what) in [
        (counters.lost, "lost at random"),
        (counters.queue_full, "dropped by the queue"),
        (counters.too_long, "longer than the MTU"),
        (counters.outage, "lost in an outage"),
        (counters.reordered, "held back"),
        (counters.duplicated, "doubled"),
        (counters.corrupted, "changed"),
        (background, "packets of background traffic"),
        (counters.background_dropped, "of them dropped by the queue"),
        (lane.no_room, "dropped for lack of memory"),
        (lane.malformed, "no IP packets"),
        (lane.refused, "not taken by the device"),
    ] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    let classes = counters.packets_by_length.classes();
    if classes.iter().any(|(_, count)| *count > 0) {
        let classes: Vec<String> =
            classes.iter().map(|(class, count)| format!("{class}: {count}")).collect();
        let _ = write!(text, "\n  by bytes of their frame {}", classes.join(", "));
    }
    text
}
