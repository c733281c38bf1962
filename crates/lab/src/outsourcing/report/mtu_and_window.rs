//! Report section on the effect of packet length and window size (section 4.3.1).

use super::{delays, farthest, noted, share, storage_sentence, way};
use crate::{
    Cell, MeasuredPoints, Printed, ReportTable, Section, contradiction,
    paper::{
        PaperStatement,
        outsourcing::{MTU_APPLICATIONS, MTU_RANDOM_WRITE, WINDOW},
    },
};

/// A workload that is measured with two settings of the MTU or of the socket buffers. The fields are the word in the
/// names of measured points, the name in the report, the unit of the workload's figure, and the paper's result for the
/// ratio of the two settings: either a number or range, possibly for one delay only, or a statement in words.
struct Compared {
    word: &'static str,
    name: &'static str,
    unit: &'static str,
    paper: Option<(f64, Printed)>,
    words: Option<&'static PaperStatement>,
}

impl Compared {
    /// Returns the performance with the first setting, the performance with the second one, and their ratio.
    fn cells(
        &self,
        measured: &MeasuredPoints<'_>,
        start: &str,
        settings: [&str; 2],
        at: &str,
    ) -> [Cell; 3] {
        let Self { word, unit, .. } = self;
        let [first, second] = settings
            .map(|setting| measured.cell(&format!("{start}/{word}/{setting}/{at}"), "", unit));
        // For times, invert the ratio: a shorter time is better.
        let ratio = if *unit == "ms" { share(&second, &first) } else { share(&first, &second) };
        [first, second, ratio]
    }
}

pub fn section(measured: &MeasuredPoints<'_>) -> Section {
    let frames = [
        Compared {
            word: "random-write",
            name: "random write of 8 KiB",
            unit: "ms",
            paper: Some((0.0, Printed::from(1.0 / MTU_RANDOM_WRITE))),
            words: None,
        },
        Compared {
            word: "postmark",
            name: "PostMark",
            unit: "1/s",
            paper: Some((0.0, MTU_APPLICATIONS.printed())),
            words: None,
        },
    ];
    let windows = [
        Compared {
            word: "sequential-write",
            name: "sequential write of 64 KiB",
            unit: "ms",
            paper: None,
            words: None,
        },
        Compared {
            word: "postmark",
            name: "PostMark",
            unit: "1/s",
            paper: None,
            words: Some(&WINDOW),
        },
    ];
    let frames =
        table(measured, "MTU of 1500 bytes by 8192 bytes", "mtu", ["1500", "8192"], &frames);
    let harmed = harmed(measured, &windows);
    let windows = table(measured, "Socket buffers of 64 KB by 640 KB", "window", WINDOWS, &windows);
    // Only the columns with ratios have numbers of the paper.
    let together = |n: usize, row: &str| {
        let longer = frames.rows.iter().find(|it| it.name == row)?.cells.get(n)?;
        (longer.ours? > longer.paper?.most).then(|| TOGETHER.to_owned())
    };
    let mut deviations = farthest(&frames, DIFFERENT, |n, row| vec![together(n, row)]);
    deviations.extend(harmed);
    let mut section = Section::new("Section 4.3.1: packet length and window")
        .text(&format!(
            "The paper finds a random write of 8 KB 15 % faster with an MTU of 8 KB than with 1500 bytes, and applications 1 to 9 % faster while \
             the delay is short ({} to {} as a ratio); a window of 64 KB does no harm compared with 640 KB. A ratio of 1 means no difference, a \
             smaller one that the short packets or the small window cost performance.",
            MTU_APPLICATIONS.least, MTU_APPLICATIONS.most
        ))
        .text(&storage_sentence(measured, "mtu/"))
        .table(frames)
        .table(windows);
    section.deviations = deviations;
    section
}

const WINDOWS: [&str; 2] = ["64k", "640k"];

/// Returns a sentence (a deviation) if performance is lower with the small window, contrary to the paper's statement.
/// The sentence names the delay at which the small window costs most.
fn harmed(measured: &MeasuredPoints<'_>, windows: &[Compared]) -> Vec<String> {
    let of = |compared: &Compared| {
        let words = compared.words?;
        let ratios = delays().filter_map(|(_, at)| {
            let [.., ratio] = compared.cells(measured, "window", WINDOWS, at);
            Some((ratio.ours?, at, ratio))
        });
        let (_, at, ratio) = ratios.min_by(|a, b| a.0.total_cmp(&b.0))?;
        let what = format!("{}, {}, at {}", compared.name, words.what, way(at));
        contradiction(&what, &ratio, words, [])
    };
    windows.iter().filter_map(of).collect()
}

/// Explains in the report why short packets cost less here than in the paper.
const TOGETHER: &str = "The packets of a segment cross the emulated link together (segmentation offload at both ends), so that more packets cost \
                        almost nothing; in the paper each packet costs an interrupt at both ends and both gateways.";

/// A ratio that differs from the paper's by more than this is reported. This value is a quarter of the effect that
/// packet length has in the paper.
const DIFFERENT: f64 = 0.04;

/// Returns a table of the performance with both settings, for each delay.
fn table(
    measured: &MeasuredPoints<'_>,
    title: &str,
    start: &str,
    settings: [&str; 2],
    workloads: &[Compared],
) -> ReportTable {
    let mut table = ReportTable::new(title, "one-way delay");
    for Compared { name, unit, .. } in workloads {
        for setting in settings {
            table = table.column_of(name, setting, unit);
        }
        table = table.column_of(name, "ratio", "performance");
    }
    let cells = |&(delay, at): &(f64, &str)| {
        let mut cells: Vec<Cell> = vec![];
        for compared in workloads {
            let [first, second, ratio] = compared.cells(measured, start, settings, at);
            let paper = compared.paper.filter(|(only, _)| *only == delay);
            let ratio = match paper {
                Some((_, printed)) => ratio.beside_printed(printed),
                None => ratio,
            };
            let ratio = match compared.words {
                Some(words) => noted(ratio, words),
                None => ratio,
            };
            cells.extend([first, second, ratio]);
        }
        cells
    };
    table.rows(delays(), |(_, at)| way(at), cells).without_blanks()
}
