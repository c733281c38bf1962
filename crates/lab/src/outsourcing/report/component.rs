//! Figure 2: where the time of a single 8 KiB request goes.

use workload::Figure;

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
             counted in our own path while the requests run, each as its mean.",
        )
        .text(&far_side(measured, "figure-2/"))
        .table(whole(measured));
    for way in ["read", "write"] {
        let Some(record) = measured.record(&format!("figure-2/{way}")) else { continue };
        let times: Vec<&Figure> = record.counted.iter().filter(|figure| is_time(figure)).collect();
        if times.is_empty() {
            continue;
        }
        let mut table =
            Table::new(&format!("Our parts of a {way} of 8 KiB"), "part").column("mean", "µs");
        for figure in times {
            let us = measured.value(&record.point, &figure.name, "us");
            table = table.row(
                &figure.name,
                [us.map_or_else(Cell::default, Cell::ours).tainted(&record.taints)],
            );
        }
        section = section.table(table);
    }
    section.table(papers())
}

fn is_time(figure: &Figure) -> bool {
    matches!(figure.unit.as_str(), "ns" | "us" | "ms")
}

fn whole(measured: &Measured<'_>) -> Table {
    let table = Table::new("One request over 0 ms", "request").column("the whole request", "ms");
    table.rows(
        ["read", "write"],
        |way| format!("{way} of 8 KiB"),
        |way| {
            // The paper's sum is what is added to the disk; ours is all of it.
            [measured.cell(&format!("figure-2/{way}"), "", "ms")]
        },
    )
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
