//! Formats an emulated link as text for people.

use std::fmt::Write as _;

use control::{LinkEnd, Linked};
use wan::LaneReport;

pub fn link_for_people(linked: &Linked) -> String {
    let Linked { name, process, near, far, seed, report, .. } = linked;
    let mut text = format!("link {name}, process {process}, seed {seed}\n");
    for (end, LinkEnd { namespace, address, address6 }) in [("near", near), ("far", far)] {
        let _ = writeln!(text, "  {end}: namespace {namespace}, {address}, {address6}");
    }
    for (way, words, lane) in [
        ("near to far", &linked.near_to_far, &report.near_to_far),
        ("far to near", &linked.far_to_near, &report.far_to_near),
    ] {
        let words: Vec<String> = words.iter().map(|(key, word)| format!("{key} {word}")).collect();
        let _ = writeln!(text, "{way}: {}\n{}", words.join(", "), lane_for_people(lane));
    }
    let late = &report.lateness;
    // Leave the lateness out if none was measured: without packets, or with the kernel's netem, which does not
    // report it.
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
        text += "idle processors may sleep: this host has no /dev/cpu_dma_latency to write to\n";
    }
    if let Some(missed) = report.capture_missed.filter(|missed| *missed > 0) {
        let _ =
            writeln!(text, "{missed} packets are not in the capture: the disk is too slow or full");
    }
    for taint in &report.tainted {
        let _ = writeln!(text, "tainted: {taint}");
    }
    text
}

fn lane_for_people(lane: &LaneReport) -> String {
    let counters = &lane.counters;
    let mut text = format!(
        "  {} packets came ({} bytes), {} passed ({} bytes)",
        counters.packets, counters.bytes, counters.passed_packets, counters.passed_bytes
    );
    let background = counters.background.tcp + counters.background.udp;
    for (count, what) in [
        (counters.lost, "lost at random"),
        (counters.queue_full, "dropped by the queue"),
        (counters.too_long, "longer than the MTU"),
        (counters.outage, "lost in an outage"),
        (counters.reordered, "held back"),
        (counters.duplicated, "doubled"),
        (counters.corrupted, "changed"),
        (background, "packets of background traffic"),
        (counters.background.dropped, "of them dropped by the queue"),
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
