//! What the length of packets and the size of windows do (section 4.3.1).

use super::{delays, far_side, share, way};
use crate::{
    Cell, Measured, Section, Table,
    paper::outsourcing::{MTU_APPLICATIONS, MTU_RANDOM_WRITE, WINDOW},
};

/// A workload that is measured with both: its word in the points' names, for people, and its figure's unit.
const WORKLOADS: [(&str, &str, &str); 2] =
    [("random-write", "random write of 8 KiB", "ms"), ("postmark", "PostMark", "1/s")];

/// The section.
pub fn section(measured: &Measured<'_>) -> Section {
    Section::new("Section 4.3.1: packet length and window")
        .text(&format!(
            "The paper finds a random write of 8 KB 15 % faster with an MTU of 8 KB than with 1500 bytes, and applications 1 to 9 % \
             faster while the delay is short ({} to {} as a ratio); windows of 64 KB and of 640 KB it finds alike. Ratios are so that \
             1 means alike and less means that the short packet or the small window costs something.",
            MTU_APPLICATIONS.least, MTU_APPLICATIONS.most
        ))
        .text(&far_side(measured, "mtu/"))
        .table(compared(measured, "MTU of 1500 bytes by 8192 bytes", "mtu", ["1500", "8192"], |workload, delay| {
            match workload {
                "random-write" => (delay == 0.0).then_some(1.0 / MTU_RANDOM_WRITE),
                _ => (delay == 0.0).then(|| MTU_APPLICATIONS.middle()),
            }
        }))
        .table(compared(measured, "Socket buffers of 64 KB by 640 KB", "window", ["64k", "640k"], |workload, _| {
            (workload == "postmark").then(|| WINDOW.middle())
        }))
}

/// Performance with the first of two settings by that with the second.
fn compared(
    measured: &Measured<'_>,
    title: &str,
    start: &str,
    settings: [&str; 2],
    paper: impl Fn(&str, f64) -> Option<f64>,
) -> Table {
    let mut table = Table::new(title, "one-way delay");
    for (_, name, unit) in WORKLOADS {
        for setting in settings {
            table = table.column_of(name, setting, unit);
        }
        table = table.column_of(name, "ratio", "performance");
    }
    table.rows(
        delays(),
        |(_, at)| way(at),
        |(delay, at)| {
            let mut cells: Vec<Cell> = vec![];
            for (workload, _, unit) in WORKLOADS {
                let both = settings.map(|setting| {
                    measured.cell(&format!("{start}/{workload}/{setting}/{at}"), "", unit)
                });
                // Of a time the shorter one is better.
                let ratio = if unit == "ms" {
                    share(&both[1], &both[0])
                } else {
                    share(&both[0], &both[1])
                };
                cells.extend(both);
                cells.push(ratio.beside(paper(workload, *delay)));
            }
            cells
        },
    )
}
