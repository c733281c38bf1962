//! Report sections for Tables 3 to 6 of the STICS paper: the network packets, requests and SCSI
//! commands of PostMark.

use super::{counted, counted_cell, postmark::or_words};
use crate::{
    Cell, MeasuredPoints, ReportTable, Section, deviation,
    paper::{
        PaperFigure,
        stics::{self as paper, IscsiSticsPair},
    },
    rounded,
};

/// The names of the two points that the tables compare.
const ISCSI: &str = "figure-6/small/4096/iscsi";
const STICS: &str = "figure-6/small/4096/after-complete";

/// The classes of packet lengths in Table 3: the names of the link's counters, and the names in the
/// report.
const CLASSES: [(&str, &str); 6] = [
    ("to_64", "up to 64 bytes"),
    ("to_127", "65 to 127"),
    ("to_255", "128 to 255"),
    ("to_511", "256 to 511"),
    ("to_1023", "512 to 1023"),
    ("from_1024", "1024 and more"),
];

/// Bytes of an Ethernet frame in addition to its IP packet. The paper counted frames at a switch.
const FRAME_HEADER: f64 = 14.0;

/// Returns the report section for Tables 3 and 4 of the STICS paper: packets.
pub(super) fn packets(measured: &MeasuredPoints<'_>) -> Section {
    let of = |point: &str, class: &str| {
        let end = format!("packets_by_length {class}");
        counted_cell(measured, point, |name| name.starts_with("link ") && name.ends_with(&end))
    };
    let mut lengths = ReportTable::new("Packets by their length, both ways", "length of the frame")
        .column("iSCSI", "")
        .column("report after complete", "")
        .column("by iSCSI's", "");
    for ((class, name), paper) in CLASSES.into_iter().zip(paper::PACKETS) {
        let (plain, cached) = (of(ISCSI, class), of(STICS, class));
        let ratio = by(&cached, &plain, paper.stics as f64 / paper.iscsi as f64);
        let cells = [plain.beside(paper.iscsi as f64), cached.beside(paper.stics as f64), ratio];
        lengths = lengths.row(name, cells);
    }
    let totals = [ISCSI, STICS].map(|point| Totals::of(measured, point));
    let why = [ISCSI, STICS].map(|point| measured.why_not(point));
    let mut table = ReportTable::new("Network traffic", "")
        .column("iSCSI", "")
        .column("report after complete", "")
        .column("by iSCSI's", "");
    /// A row of a table: its name, a function that returns its figure, and the paper's numbers.
    type Row = (&'static str, fn(&Totals) -> f64, IscsiSticsPair<f64>);
    let rows: [Row; 4] = [
        ("packets", |it| it.packets, paper::TOTAL_PACKETS),
        (
            "packets of 1024 bytes and more by shorter ones",
            |it| it.full / (it.packets - it.full),
            paper::FULL_BY_PARTIAL,
        ),
        ("bytes", |it| it.bytes, paper::BYTES),
        ("bytes of a packet", |it| it.bytes / it.packets, paper::BYTES_A_PACKET),
    ];
    let mut deviations = vec![];
    for (name, value, paper) in rows {
        let [plain, cached] = [0, 1].map(|at| or_words(totals[at].as_ref().map(value), &why[at]));
        let ratio = by(&cached, &plain, paper.stics / paper.iscsi);
        deviations.extend(elsewhere(measured, "Table 4", name, &ratio));
        table = table.row(name, [plain.beside(paper.iscsi), cached.beside(paper.stics), ratio]);
    }
    let mut section = Section::new("Tables 3 and 4: packets and bytes on the wire")
        .text(
            "PostMark with the small pool and blocks of 4096 bytes at 100 Mbit/s, counted from before it begins until all data is at the node. The \
             number of transactions differs from the paper's: compare shares and ratios.",
        )
        .text(
            "Packets that only acknowledge have 66 bytes, here as in the paper. A segment that crosses the emulated link is counted as the packets \
             of 1500 bytes of which it consists.",
        )
        .table(lengths)
        .table(table);
    section.deviations = deviations;
    for misprint in paper::MISPRINTS.iter().filter(|it| it.place == "Table 4") {
        section = section.misprint(&misprint.text());
    }
    section
}

/// Returns a deviation if the ratio of two counts differs from the paper's ratio.
fn elsewhere(
    measured: &MeasuredPoints<'_>,
    place: &'static str,
    name: &str,
    ratio: &Cell,
) -> Option<String> {
    let printed = ratio.paper?;
    let claim = PaperFigure { place, what: "by iSCSI's", least: printed.least, most: printed.most };
    let what = format!("{name}, by iSCSI's");
    deviation(&what, ratio, &claim, [joined(measured), read(measured)])
}

/// Describes how the gateway merges writes: number and length of the writes that the gateway receives and of those that
/// it sends to the node.
fn joined(measured: &MeasuredPoints<'_>) -> Option<String> {
    let of = |figure: &str| {
        counted(measured, STICS, |name| name == format!("gateway cache {figure}"))
            .filter(|count| *count > 0.0)
    };
    let (writes, written) = (of("writes")?, of("written_bytes")?);
    let (runs, sent) = (of("destaged_runs")?, of("destaged_bytes")?);
    let kib = |bytes: f64, count: f64| rounded((bytes / count / 1024.0).round());
    Some(format!(
        "The gateway sends {} writes of {} KiB in the mean for {} of {} KiB that it gets: data that is overwritten before it is sent goes once, and \
         neighbouring blocks go together.",
        rounded(runs),
        kib(sent, runs),
        rounded(writes),
        kib(written, writes)
    ))
}

/// Compares the share of reads among the node's commands without a gateway, here and in the paper.
fn read(measured: &MeasuredPoints<'_>) -> Option<String> {
    let of = |command: &str| {
        counted(measured, ISCSI, |name| {
            name.starts_with("node ") && name.contains(&format!("commands_by_kind {command}("))
        })
    };
    let (reads, writes) = (of("READ").unwrap_or(0.0), of("WRITE")?);
    let [(_, paper_reads), (_, paper_writes), ..] = paper::COMMANDS;
    let percent = |reads: f64, writes: f64| rounded((100.0 * reads / (reads + writes)).round());
    Some(format!(
        "Without a gateway {} % of reads and writes are reads here and {} % in the paper, whose files did not fit in its host's memory.",
        percent(reads, writes),
        percent(paper_reads.iscsi, paper_writes.iscsi)
    ))
}

/// Returns a cell with the count with a gateway divided by the count without one, and with the paper's ratio.
fn by(cached: &Cell, plain: &Cell, paper: f64) -> Cell {
    if plain.ours == Some(0.0) {
        return Cell::words("iSCSI has none").beside(paper);
    }
    cached.by(plain).beside(paper)
}

/// The packet and byte counters of a point's link, summed over both directions.
struct Totals {
    packets: f64,
    full: f64,
    bytes: f64,
}

impl Totals {
    fn of(measured: &MeasuredPoints<'_>, point: &str) -> Option<Self> {
        let sum = |end: &str| {
            counted(measured, point, |name| {
                ["near_to_far", "far_to_near"].iter().any(|way| name == format!("link {way} {end}"))
            })
        };
        let packets = sum("packets")?;
        let full = sum("packets_by_length from_1024").unwrap_or(0.0);
        Some(Self { packets, full, bytes: sum("bytes")? + packets * FRAME_HEADER })
    }
}

/// Returns the report section for Table 5 of the STICS paper: requests, and which part of the
/// system answered them.
pub(super) fn requests(measured: &MeasuredPoints<'_>) -> Section {
    let blocks = |point: &str, part: &str| {
        counted(measured, point, |name| {
            name.starts_with(part)
                && [" READ(", " WRITE("].iter().any(|kind| name.contains(kind))
                && name.contains("commands_by_kind")
        })
    };
    let why = measured.why_not(STICS);
    let asked = blocks(STICS, "gateway ");
    let reads = |which: &str| {
        counted(measured, STICS, |name| name == format!("gateway cache reads_{which}"))
    };
    let local: Option<f64> = asked
        .map(|_| ["nvram", "dram", "log", "tier"].iter().filter_map(|which| reads(which)).sum());
    let at_node = blocks(STICS, "node ");
    let spared = asked.zip(at_node).map(|(asked, sent)| (asked - sent) / asked);
    let paper_share = paper::REQUESTS_FROM_STICS / paper::REQUESTS_TO_BLOCK.stics;
    let claim = PaperFigure::number("Table 5", "share that did not reach the node", paper_share);
    let held =
        deviation(claim.what, &or_words(spared, &why), &claim, [joined(measured), read(measured)]);
    let table =
        ReportTable::new("Requests and where they were answered, report after complete", "")
            .column("ours", "")
            .row(
                "reads and writes that the block layer sent",
                [or_words(asked, &why).beside(paper::REQUESTS_TO_BLOCK.stics)],
            )
            .row("reads answered by NVRAM, memory or log", [or_words(local, &why)])
            .row("reads and writes that the node got", [or_words(at_node, &why)])
            .row("share that did not reach the node", [or_words(spared, &why).beside(paper_share)]);
    let mut section = Section::new("Table 5: requests")
        .text(
            "The paper's changed kernel also counted the requests that its file system received (3,069,438, of which it answered 39.6 %); our \
             kernel is not changed, so the table begins at the block layer. There the paper's cache answered 896,582 of 1,854,554.",
        )
        .table(table);
    section.deviations.extend(held);
    section
}

/// Returns the report section for Table 6 of the STICS paper: SCSI commands that the node received.
pub(super) fn commands(measured: &MeasuredPoints<'_>) -> Section {
    let mut table = ReportTable::new("SCSI commands at the node", "command")
        .column("iSCSI", "")
        .column("report after complete", "")
        .column("by iSCSI's", "");
    let mut deviations = vec![];
    for (command, paper) in paper::COMMANDS {
        let at_node = |point: &str| {
            counted_cell(measured, point, |name| {
                let kind = name.split_once("commands_by_kind ").map(|(_, kind)| kind);
                // Count READ and WRITE with any CDB length, and INQUIRY. READ CAPACITY does not
                // count as READ; READ CAPACITY(16) is a service action.
                let is_one = |kind: &str| match kind.split('(').next() {
                    Some("SERVICE ACTION IN") => command == "READ CAPACITY",
                    kind => kind == Some(command),
                };
                name.starts_with("node ") && kind.is_some_and(is_one)
            })
        };
        let (plain, cached): (Cell, Cell) = (at_node(ISCSI), at_node(STICS));
        let ratio = by(&cached, &plain, paper.stics / paper.iscsi);
        // The numbers of commands without data depend on the initiator, as the text of the section
        // says, so they are not compared.
        if matches!(command, "READ" | "WRITE") {
            deviations.extend(elsewhere(measured, "Table 6", command, &ratio));
        }
        table = table.row(command, [plain.beside(paper.iscsi), cached.beside(paper.stics), ratio]);
    }
    let mut section = Section::new("Table 6: SCSI commands")
        .text("Counted from before PostMark begins until all data is at the node. Commands at the beginning of a session came earlier and are not \
               counted.")
        .text("INQUIRY, READ CAPACITY and TEST UNIT READY: our initiator sends them when it logs in, and asks for the size now and then; the \
               paper's host sent them all the time.")
        .table(table);
    section.deviations = deviations;
    section
}
