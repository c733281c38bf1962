//! Report section for Figures 11 and 12 of the STICS paper: the response times of the trace.

use workload::WorkloadSeries;

use crate::{
    Cell, Curve, MeasuredPoints, Plot, ReportTable, Section, deviation,
    paper::{
        PaperFigure,
        stics::{MISPRINTS, MOST_RESPONSES_MS, RESPONSE_MS},
    },
    rounded,
};

/// The words in the names of measured points, in the order of the paper's numbers.
const HOWS: [&str; 3] = ["immediate", "after-complete", "iscsi"];
/// The range of the axis of Figure 12, in ms. Nearly all response times of the paper are in it.
const HISTOGRAM_MS: [f64; 2] = [0.0, 40.0];
const BINS: usize = 80;

/// Returns the report section for Figures 11 and 12 of the STICS paper: response times of a trace.
pub(super) fn figures_11_and_12(measured: &MeasuredPoints<'_>) -> Section {
    let point = |how: &str| format!("figure-11/{how}");
    let mut table = ReportTable::new("Response times of the trace, 1 Gbit/s", "")
        .column("mean", "ms")
        .column("median", "ms")
        .column("99 %", "ms")
        .column("longest", "ms")
        .column("iSCSI's mean by this", "")
        .column("share where the paper's most are", "");
    let iscsi = measured.cell(&point("iscsi"), "response", "ms");
    let paper_iscsi = RESPONSE_MS[2].1;
    let mut section = Section::new("Figures 11 and 12: response times of a trace like EMC-tel").text(
        "EMC's trace is not public. Ours has the properties that the paper publishes (230,370 requests of 2 KiB, 89 % of them writes, 333 a second, \
         over 900 MB); how requests cluster is assumed. Each request is sent when it is due, even if earlier ones are not answered; its response \
         time counts from then. The node's disk has two arms here.",
    );
    for ((how, (name, paper)), most) in HOWS.into_iter().zip(RESPONSE_MS).zip(MOST_RESPONSES_MS) {
        let cell = |figure: &str| measured.cell(&point(how), figure, "ms");
        let mean = cell("response");
        let gain = iscsi.by(&mean).beside(paper_iscsi / paper);
        let series = measured.series(&point(how), "responses");
        let claim = PaperFigure::number("Figures 11 and 12", "mean response, ms", paper);
        let what = format!("mean response, {name}, in ms");
        let reasons = [waited(measured, &point(how)), log_or_disk(how)];
        section.deviations.extend(deviation(&what, &mean, &claim, reasons));
        let cells = [
            mean.beside(paper),
            cell("median response"),
            cell("99 % respond within"),
            cell("longest response"),
            gain,
            within(series, most),
        ];
        table = table.row(name, cells);
        let Some(series) = series else { continue };
        let scatter = Plot::new(&format!("{name}: each request"), "time, s", "response time, ms")
            .y_logarithmic()
            .curve(Curve::ours(name, series.points.iter().copied()).dots());
        let times = series.points.iter().map(|point| point[1]);
        let histogram = Plot::new(
            &format!("{name}: number of requests by response time"),
            "response time, ms",
            "number of requests",
        )
        .curve(Curve::histogram(name, times, HISTOGRAM_MS, BINS))
        .note("Requests that take longer than the axis are in the last bar.");
        section = section.plot(scatter).plot(histogram);
    }
    for misprint in MISPRINTS.iter().filter(|it| it.place == "Section 5.3.4") {
        section = section.misprint(&misprint.text());
    }
    section.table(table).text(
        "The paper's gateway served nothing while it emptied a full log segment (four requests waited 300 ms); ours serves requests meanwhile.",
    )
}

/// States the mean time of a write at a point: in the gateway if there is one, otherwise at the
/// node.
fn waited(measured: &MeasuredPoints<'_>, point: &str) -> Option<String> {
    let mean = |figure: &str| measured.value(point, figure, "ms").filter(|ms| *ms > 0.0);
    match mean("gateway cache time_write") {
        Some(ms) => Some(format!("A write takes {} ms in the gateway.", rounded(ms))),
        None => Some(format!(
            "A write takes {} ms in the node, with its simulated disk.",
            rounded(mean("node 1 time_write")?)
        )),
    }
}

/// Describes how the log or the disk of a measurement differs from the paper's.
fn log_or_disk(how: &str) -> Option<String> {
    Some(match how {
        "iscsi" => {
            "How requests cluster, and so wait for each other at the disk, is not published."
                .to_owned()
        }
        _ => "The log is a file on this machine's disk; the paper's is a disk with an arm."
            .to_owned(),
    })
}

/// Returns a cell with the share of responses that took between two times in ms.
fn within(series: Option<&WorkloadSeries>, [from, to]: [f64; 2]) -> Cell {
    let Some(series) = series.filter(|series| !series.points.is_empty()) else {
        return Cell::words("not measured");
    };
    let inside = series.points.iter().filter(|point| (from..=to).contains(&point[1])).count();
    Cell::ours(inside as f64 / series.points.len() as f64).note(&format!("{from} to {to} ms"))
}
