//! What the length of packets and the size of windows do (section 4.3.1).

use super::{delays, far_side, farthest, share, way};
use crate::{
    Cell, Measured, Section, Table,
    paper::outsourcing::{MTU_APPLICATIONS, MTU_RANDOM_WRITE, WINDOW},
};

/// A workload that is measured with two settings: its word in the points' names, for people, its figure's unit,
/// and what the paper has for the first setting by the second, at which delay alone.
struct Compared {
    word: &'static str,
    name: &'static str,
    unit: &'static str,
    paper: Option<f64>,
    at: Option<f64>,
}

/// The section.
pub fn section(measured: &Measured<'_>) -> Section {
    let frames = [
        Compared {
            word: "random-write",
            name: "random write of 8 KiB",
            unit: "ms",
            paper: Some(1.0 / MTU_RANDOM_WRITE),
            at: Some(0.0),
        },
        Compared {
            word: "postmark",
            name: "PostMark",
            unit: "1/s",
            paper: Some(MTU_APPLICATIONS.middle()),
            at: Some(0.0),
        },
    ];
    let windows = [
        Compared {
            word: "sequential-write",
            name: "sequential write of 64 KiB",
            unit: "ms",
            paper: None,
            at: None,
        },
        Compared {
            word: "postmark",
            name: "PostMark",
            unit: "1/s",
            paper: Some(WINDOW.middle()),
            at: None,
        },
    ];
    let frames =
        table(measured, "MTU of 1500 bytes by 8192 bytes", "mtu", ["1500", "8192"], &frames);
    let windows =
        table(measured, "Socket buffers of 64 KB by 640 KB", "window", ["64k", "640k"], &windows);
    // Columns of ratios alone have a paper's number beside them.
    let together = |n: usize, row: &str| {
        let longer = frames.rows.iter().find(|it| it.name == row)?.cells.get(n)?;
        (longer.ours? > longer.paper?).then(|| TOGETHER.to_owned())
    };
    let deviations = [
        farthest(&frames, DIFFERENT, |n, row| vec![together(n, row)]),
        farthest(&windows, DIFFERENT, |_, _| vec![]),
    ]
    .concat();
    let mut section = Section::new("Section 4.3.1: packet length and window")
        .text(&format!(
            "The paper finds a random write of 8 KB 15 % faster with an MTU of 8 KB than with 1500 bytes, and applications 1 to 9 % \
             faster while the delay is short ({} to {} as a ratio); windows of 64 KB and of 640 KB it finds alike. Ratios are so that \
             1 means alike and less means that the short packet or the small window costs something.",
            MTU_APPLICATIONS.least, MTU_APPLICATIONS.most
        ))
        .text(&far_side(measured, "mtu/"))
        .table(frames)
        .table(windows);
    section.deviations = deviations;
    section
}

/// Why short packets cost less here than in the paper.
const TOGETHER: &str = "The packets of a segment cross the emulated link together (segmentation offload of its two ends), so that \
    more of them cost next to nothing; the paper's cost an interrupt each, at both ends and both gateways.";

/// Ratios that differ by more are told of: a quarter of what the paper finds for packets.
const DIFFERENT: f64 = 0.04;

/// Performance with the first of two settings, with the second, and the one by the other.
fn table(
    measured: &Measured<'_>,
    title: &str,
    start: &str,
    settings: [&str; 2],
    workloads: &[Compared],
) -> Table {
    let mut table = Table::new(title, "one-way delay");
    for Compared { name, unit, .. } in workloads {
        for setting in settings {
            table = table.column_of(name, setting, unit);
        }
        table = table.column_of(name, "ratio", "performance");
    }
    let cells = |&(delay, at): &(f64, &str)| {
        let mut cells: Vec<Cell> = vec![];
        for Compared { word, unit, paper, at: only, .. } in workloads {
            let both = settings
                .map(|setting| measured.cell(&format!("{start}/{word}/{setting}/{at}"), "", unit));
            // Of a time the shorter one is better.
            let ratio =
                if *unit == "ms" { share(&both[1], &both[0]) } else { share(&both[0], &both[1]) };
            cells.extend(both);
            cells.push(ratio.beside(paper.filter(|_| only.is_none_or(|only| only == delay))));
        }
        cells
    };
    table.rows(delays(), |(_, at)| way(at), cells).without_blanks()
}
