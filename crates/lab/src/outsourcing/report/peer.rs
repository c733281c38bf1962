//! The section of the report on other targets, measured at the same points as Forebay.

use super::{delays, storage_sentence, way};
use crate::{Cell, Curve, MeasuredPoints, Plot, ReportTable, Section};

/// The peers: the word in the names of measured points, and the name in the report.
const PEERS: [(&str, &str); 4] = [
    ("forebay", "Forebay"),
    ("tgt", "tgt"),
    ("qemu-storage-daemon", "qemu-storage-daemon"),
    ("nbdkit", "qemu-storage-daemon, nbdkit"),
];

/// The accesses of Table 1, and reads and writes of one identical block (cache hits).
const ACCESSES: [&str; 6] = [
    "random-read",
    "random-write",
    "sequential-read",
    "sequential-write",
    "identical-read",
    "identical-write",
];

pub fn section(measured: &MeasuredPoints<'_>) -> Section {
    let mut section = Section::new("Peers")
        .text(
            "Single requests of 8 KiB over the same link: Forebay at both ends, Debian's tgt as the node, and qemu-storage-daemon as the initiator \
             of our node and of nbdkit, which speaks NBD instead of iSCSI. The last two columns show the effect of another node and protocol with \
             the same initiator. The paper has no such column.",
        )
        .text(&storage_sentence(measured, "peers/"));
    let point = |who: &str, access: &str, at: &str| format!("peers/{who}/{access}/{at}");
    let is_there = |access: &&str| {
        PEERS
            .iter()
            .any(|(who, _)| measured.starting(&format!("peers/{who}/{access}/")).next().is_some())
    };
    for access in ACCESSES.into_iter().filter(is_there) {
        let title = format!("Response time of a {}", access.replace('-', " "));
        let mut table = ReportTable::new(&title, "one-way delay");
        let mut plot = Plot::new(&title, "one-way delay, ms", "response time, ms");
        for (who, name) in PEERS {
            table = table.column(name, "ms");
            let sweep = delays().map(|(delay, at)| (delay, point(who, access, at)));
            let curve: Curve = measured.curve(name, sweep, "", "ms");
            plot = plot.curve(curve);
        }
        let table = table.rows(
            delays(),
            |(_, at)| way(at),
            |(_, at)| -> Vec<Cell> {
                PEERS
                    .iter()
                    .map(|(who, _)| measured.cell(&point(who, access, at), "", "ms"))
                    .collect()
            },
        );
        section = section.table(table.without_blanks()).plot(plot);
    }
    section
}
