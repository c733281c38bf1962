//! Figure 2: where the time of a single 8 KiB request goes.

use super::far_side;
use crate::{
    Cell, Measured, Section, Table,
    paper::outsourcing::{COMPONENTS_US, DISK_MS, ISCSI_MS},
};

/// Figure 2.
pub fn figure_2(measured: &Measured<'_>) -> Section {
    let mut section = Section::new("Figure 2: a request's time by component")
        .text(
            "The paper times its kernels' parts of one request of 8 KB over 0 ms: its T_iSCSI of 408 µs is twice SCSI, gateway and \
             TCP/IP and once the switch, each for 8 KB of data and for the answer of 64 bytes. Our parts are other ones: what is \
             counted at the node while the requests run, and what a request takes longer for each part that it goes through.",
        )
        .text(&far_side(measured, "figure-2/"))
        .table(whole(measured));
    for way in WAYS {
        section = section.table(parts(measured, way));
    }
    section.table(papers())
}

const WAYS: [&str; 2] = ["read", "write"];

/// How a request is made, by the names of points, and for people.
const HOWS: [(&str, &str); 3] = [
    ("device", "from an attached device"),
    ("url", "from our initiator, without the kernel's block layer"),
    ("loopback", "the same, without a link"),
];

fn whole(measured: &Measured<'_>) -> Table {
    let table = Table::new("One request of 8 KiB over 0 ms", "request")
        .column("read", "ms")
        .column("write", "ms");
    // The paper's sum is what is added to the disk; ours is all of it.
    table.rows(
        HOWS,
        |(_, shown)| (*shown).to_owned(),
        |(how, _)| WAYS.map(|way| measured.cell(&format!("figure-2/{how}/{way}"), "", "ms")),
    )
}

/// What each part adds: differences between requests that go through it and such that do not, and what
/// the node counted itself.
fn parts(measured: &Measured<'_>, way: &str) -> Table {
    let whole = |how: &str| measured.value(&format!("figure-2/{how}/{way}"), "", "us");
    let node =
        measured.value(&format!("figure-2/loopback/{way}"), &format!("node 1 time_{way}"), "us");
    let less = |of: Option<f64>, without: Option<f64>| Some(of? - without?);
    let parts = [
        ("kernel's block layer, loop device and FUSE", less(whole("device"), whole("url"))),
        ("link of no delay", less(whole("url"), whole("loopback"))),
        ("initiator, and TCP on both ends", less(whole("loopback"), node)),
        ("node, from command to answer, with its disk", node),
    ];
    let cell = |us: Option<f64>| us.map_or_else(|| Cell::words("not measured"), Cell::ours);
    let mut table =
        Table::new(&format!("Our parts of a {way} of 8 KiB"), "part").column("mean", "µs");
    for (part, us) in parts {
        table = table.row(part, [cell(us)]);
    }
    table
}

fn papers() -> Table {
    let mut table = Table::new("The paper's parts", "part")
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
