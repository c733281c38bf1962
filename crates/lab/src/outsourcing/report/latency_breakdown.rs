//! Report section for Figure 2 of the outsourcing paper: the parts of the time of a single 8 KiB
//! request.

use super::storage_sentence;
use crate::{
    Cell, MeasuredPoints, ReportTable, Section, deviation, number,
    paper::{
        PaperFigure,
        outsourcing::{COMPONENTS_US, DISK_MS, ISCSI_MS},
    },
};

/// Returns the report section for Figure 2 of the outsourcing paper: the time of a request by
/// component.
pub fn figure_2(measured: &MeasuredPoints<'_>) -> Section {
    let mut section = Section::new("Figure 2: a request's time by component")
        .text(
            "The paper measures the parts of one request of 8 KB over 0 ms in its kernels. Its T_iSCSI of 408 µs is twice SCSI, gateway and TCP/IP \
             and once the switch, each for 8 KB of data and for the answer of 64 bytes. Our parts are different: times that the node counts while \
             the requests run, and the time that each part adds to a request that passes through it.",
        )
        .text(&storage_sentence(measured, "figure-2/"))
        .table(whole(measured));
    for way in WAYS {
        let cell = measured.cell(&format!("figure-2/device/{way}"), "", "ms");
        let what = format!("a {way} from an attached device");
        let claim = PaperFigure::number("Figure 2", "T_iSCSI, ms", ISCSI_MS);
        section.deviations.extend(deviation(&what, &cell, &claim, [made_of(measured, way)]));
        section = section.table(parts(measured, way));
    }
    section.table(papers())
}

/// Lists the parts of the time of a request, ours and the paper's.
fn made_of(measured: &MeasuredPoints<'_>, way: &str) -> Option<String> {
    let ours = times(measured, way)
        .into_iter()
        .map(|(part, us)| Some(format!("{part} {} µs", number(us?))))
        .collect::<Option<Vec<_>>>()?;
    let paper = COMPONENTS_US.map(|(name, [answer, _, data])| {
        // A request passes each part twice, once in each direction, but the switch once.
        let times = if name == "switch" { 1.0 } else { 2.0 };
        format!("{name} {} µs", number(times * (answer + data)))
    });
    Some(format!("Ours is {}; the paper's is {}.", ours.join(", "), paper.join(", ")))
}

const WAYS: [&str; 2] = ["read", "write"];

/// The kinds of requests: the word in the names of measured points, and the name in the report.
const HOWS: [(&str, &str); 3] = [
    ("device", "from an attached device"),
    ("url", "from our initiator, without the kernel's block layer"),
    ("loopback", "the same, without a link"),
];

fn whole(measured: &MeasuredPoints<'_>) -> ReportTable {
    let table = ReportTable::new("One request of 8 KiB over 0 ms", "request")
        .column("read", "ms")
        .column("write", "ms");
    // The paper's number does not include the time of the disk. Ours does, but it was measured with a simulated disk
    // that answers at once.
    table.rows(
        HOWS,
        |(_, shown)| (*shown).to_owned(),
        |(how, _)| {
            let paper = (*how == "device").then_some(ISCSI_MS);
            WAYS.map(|way| measured.cell(&format!("figure-2/{how}/{way}"), "", "ms").beside(paper))
        },
    )
}

/// Returns the mean time in µs that each component adds to a request of 8 KiB. A component's time is the difference
/// between a request that passes through it and one that does not; the node's time comes from the node's own counters.
fn times(measured: &MeasuredPoints<'_>, way: &str) -> [(&'static str, Option<f64>); 4] {
    let whole = |how: &str| measured.value(&format!("figure-2/{how}/{way}"), "", "us");
    let node =
        measured.value(&format!("figure-2/loopback/{way}"), &format!("node 1 time_{way}"), "us");
    let less = |of: Option<f64>, without: Option<f64>| Some(of? - without?);
    [
        ("kernel's block layer, loop device and FUSE", less(whole("device"), whole("url"))),
        ("link of no delay", less(whole("url"), whole("loopback"))),
        ("initiator, and TCP on both ends", less(whole("loopback"), node)),
        ("node, from command to answer, with its disk", node),
    ]
}

fn parts(measured: &MeasuredPoints<'_>, way: &str) -> ReportTable {
    let cell = |us: Option<f64>| us.map_or_else(|| Cell::words("not measured"), Cell::ours);
    let mut table =
        ReportTable::new(&format!("Our parts of a {way} of 8 KiB"), "part").column("mean", "µs");
    for (part, us) in times(measured, way) {
        table = table.row(part, [cell(us)]);
    }
    table
}

fn papers() -> ReportTable {
    let mut table = ReportTable::new("The paper's parts", "part")
        .column("64 B", "µs")
        .column("1.5 KB", "µs")
        .column("8 KB", "µs");
    for (name, times) in COMPONENTS_US {
        table = table.row(name, times.map(Cell::paper));
    }
    let sum = Cell::paper(ISCSI_MS * 1000.0).note("data and answer, there and back");
    table = table.row("T_iSCSI", [Cell::default(), Cell::default(), sum]);
    for (name, [hit, random]) in DISK_MS {
        for (what, ms) in [("cache hit", hit), ("random block", random)] {
            table = table.row(
                &format!("{name}, {what}"),
                [Cell::default(), Cell::default(), Cell::paper(ms * 1000.0)],
            );
        }
    }
    table
}
