//! The report of the storage outsourcing experiments, which compares the results with the numbers
//! of the paper.

mod explanations;
mod application;
mod cache;
mod latency_breakdown;
mod congestion;
mod equation;
mod mtu_and_window;
mod microbenchmark;
mod peer;
mod claims;

use crate::{
    Cell, LabReport, MeasuredPoints, NOT_MEASURED, PointRecord, ReportColumn, ReportTable, because,
    paper::{PaperStatement, outsourcing as paper},
    rounded,
};

/// Returns the report of these records. `left_out` has the points without a record: name and
/// reason.
#[must_use]
pub fn report(records: &[PointRecord], left_out: &[(String, String)]) -> LabReport {
    let measured = MeasuredPoints::new(records).left_out(left_out.iter().cloned());
    LabReport::new("Storage outsourcing")
        .about(
            "What remote storage costs, measured again: the tables and figures of \"Obtaining High Performance for Storage Outsourcing\" (Ng, \
             Hillyer, Shriver, Gabber and Özden, FAST 2002), each with the paper's numbers next to ours.",
        )
        .about(
            "In the paper a host with FreeBSD or Windows uses its storage through two gateways, PCs of 700 MHz, over gigabit Ethernet with an added \
             delay, or over two routers with background traffic. Here a node, a link emulator and an attached device are in network namespaces of \
             one machine; the node's disks are simulated where a section says so. Absolute figures of programs are those of this machine: compare \
             how they change with distance and load.",
        )
        .findings(claims::findings(&measured))
        .section(microbenchmark::table_1(&measured))
        .section(equation::section(&measured))
        .section(microbenchmark::sweep(&measured))
        .section(latency_breakdown::figure_2(&measured))
        .section(application::table_2(&measured))
        .section(congestion::table_3(&measured))
        .section(application::figure_4(&measured))
        .section(cache::figure_5(&measured))
        .section(cache::figure_6(&measured))
        .section(cache::figure_7(&measured))
        .section(mtu_and_window::section(&measured))
        .section(peer::section(&measured))
}

/// Returns the name of a row in the report for a distance: "0 ms" for "0ms".
fn way(way: &str) -> String {
    way.strip_suffix("ms").map_or_else(|| way.to_owned(), |delay| format!("{delay} ms"))
}

/// Returns the name of a point of Table 1. The section about equation (1) uses the same points.
fn table_1_point(disk: &str, access: &str, way: &str) -> String {
    format!("table-1/{disk}/{access}/{way}")
}

/// Returns the delays in ms, each with its word in the names of measured points.
fn delays() -> impl Iterator<Item = (f64, &'static str)> {
    paper::DELAYS_MS.into_iter().zip(paper::WAYS.into_iter().skip(2))
}

/// Returns a sentence that describes the remote storage of the points whose names begin with
/// `start`.
fn storage_sentence(measured: &MeasuredPoints<'_>, start: &str) -> String {
    match measured.disks(start).as_str() {
        "" => "Nothing of this section was measured.".to_owned(),
        disks => format!("Our node's storage: {disks}."),
    }
}

/// Divides the number of one table cell by that of another. If a cell has no number, returns a cell with the reason why
/// it is missing.
fn share(of: &Cell, whole: &Cell) -> Cell {
    let quotient = of.by(whole);
    if quotient.ours.is_some() {
        return quotient;
    }
    let reasons = [of, whole].map(|cell| cell.note.as_str());
    let reason = reasons.into_iter().find(|reason| !reason.is_empty()).unwrap_or(NOT_MEASURED);
    Cell::words(reason)
}

/// Adds the paper's statement as a note to a cell with a number. A cell without a number keeps its
/// reason.
fn noted(cell: Cell, words: &PaperStatement) -> Cell {
    if cell.ours.is_some() { cell.note(&words.note()) } else { cell }
}

/// Returns for each column of a table of shares a sentence (a deviation) about the row that differs most from the
/// paper, if the difference is more than `tolerance`. `why` returns the explanations for a column (by index) and a row
/// (by name).
fn farthest(
    table: &ReportTable,
    tolerance: f64,
    why: impl Fn(usize, &str) -> Vec<Option<String>>,
) -> Vec<String> {
    let of_column = |(n, column): (usize, &ReportColumn)| {
        let cells = table.rows.iter().filter_map(|row| {
            let cell = row.cells.get(n)?;
            let (ours, paper) = (cell.ours?, cell.paper?);
            let off = (ours - paper.nearest(ours)).abs();
            (off > tolerance).then_some((row.name.as_str(), cell, ours, paper, off))
        });
        let (row, cell, ours, paper, _) = cells.max_by(|a, b| a.4.total_cmp(&b.4))?;
        let (ours, paper) = (rounded(ours), paper.sentence());
        let why = because(why(n, row), &cell.taints);
        Some(format!(
            "{}, {column}: farthest from the paper at {row}, {ours} instead of {paper}. {why}",
            table.title
        ))
    };
    table.columns.iter().enumerate().filter_map(of_column).collect()
}

#[cfg(test)]
mod tests;
