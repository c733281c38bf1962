//! Report sections for Figures 5 to 7 of the outsourcing paper: caches that hide the network's
//! delay.

use super::{
    congestion::BACKBONE_MBIT_S, delays, explanations, farthest, noted, share, storage_sentence,
    way,
};
use crate::{
    Cell, Curve, MeasuredPoints, Plot, ReportTable, Section, TOLERANCE, contradiction, deviation,
    paper::{
        Misprint,
        outsourcing::{
            CONGESTION, FIGURE_5_HOST, FIGURE_5_NODE, FIGURE_6_BOUND_AT, FIGURE_6_FILTERED,
            FIGURE_7_CACHE_AT_8_MS, FIGURE_7_CACHE_AT_70, FIGURE_7_MASKED, FIGURE_7_PLAIN,
            FIGURE_7_TOLERATED, MISPRINTS, PaperCongestion,
        },
    },
    rounded,
};

/// Returns the report section for Figure 5 of the outsourcing paper: the place of a cache.
pub fn figure_5(measured: &MeasuredPoints<'_>) -> Section {
    let places = [("none", "no cache"), ("node", "at the node"), ("host", "at the host")];
    let point = |place: &str, at: &str| format!("figure-5/{place}/{at}");
    let cell = |place: &str, at: &str| measured.cell(&point(place, at), "", TRANSACTIONS.unit);
    let host = share(&cell("host", "8ms"), &cell("host", "0ms"));
    let node = ["0ms", "8ms"].map(|at| (at, share(&cell("node", at), &cell("none", at))));
    let mut words = ReportTable::new(WORDS, "claim")
        .column("ratio", "")
        .row(FIGURE_5_HOST.what, [noted(host.clone(), &FIGURE_5_HOST)]);
    let mut deviations = vec![contradiction(FIGURE_5_HOST.what, &host, &FIGURE_5_HOST, [])];
    for (at, ratio) in &node {
        let what = format!("{}, at {}", FIGURE_5_NODE.what, way(at));
        words = words.row(&what, [noted(ratio.clone(), &FIGURE_5_NODE)]);
        let [none, cached] = ["none", "node"].map(|place| point(place, at));
        let reason = explanations::writes_at_node(
            measured,
            [(&none, "without a cache"), (&cached, "with one before its disk")],
        );
        deviations.push(contradiction(&what, ratio, &FIGURE_5_NODE, [reason]));
    }
    let mut section = Section::new("Figure 5: where a cache stands")
        .text(
            "PostMark with a small cache at the host's end of the link, at the node's end, or without one. The paper's cache has 1 MB; ours is a \
             log of 8 MiB, the smallest possible. The paper's figure is a drawing without numbers; its text says that a cache at the host's end \
             hides nearly all of the delay, and that the other two curves coincide. The paper's caption says Soft Updates; ours is on ext4 with \
             sync and dirsync, where PostMark waits for its writes.",
        )
        .text(&storage_sentence(measured, "figure-5/"))
        .table(words)
        .table(by_delay(measured, TRANSACTIONS, &places, point))
        .plot(delay_plot(measured, TRANSACTIONS, "PostMark with a small cache", &places, point));
    section.deviations.extend(deviations.into_iter().flatten());
    section
}

/// Title of a table with the numbers that the paper's text states about a figure. The figure itself
/// is a drawing without numbers.
const WORDS: &str = "What the paper says in words";

/// Returns the name of a point of Figure 6: a cache, and the background load in percent.
fn figure_6_point(cache: &str, load: u32) -> String {
    format!("figure-6/{cache}/{load}")
}

/// Returns the paper's number for PostMark in Table 3, with Soft Updates and without a cache.
fn soft_updates(row: &PaperCongestion) -> Option<f64> {
    row.postmark.map(|[_, soft, _]| soft)
}

/// Returns as text the background load above which bandwidth limits PostMark, for each of the
/// paper's caches.
fn figure_6_bounds() -> String {
    FIGURE_6_BOUND_AT
        .iter()
        .map(|(cache, load)| match *cache {
            "none" => format!("{load} % without a cache"),
            cache => format!("{load} % with {cache} %"),
        })
        .collect::<Vec<_>>()
        .join(", ")
}

/// Returns a table with the rate of PostMark without a cache, divided by its rate without background load.
fn figure_6_shares(measured: &MeasuredPoints<'_>) -> ReportTable {
    let table = ReportTable::new("Without a cache: as a share of no load", "load, % of 155 Mbit/s")
        .column("PostMark", "of no load");
    table.rows(
        CONGESTION,
        |row| row.load.to_string(),
        |row| {
            let [of, whole] = [row.load, 0]
                .map(|load| measured.cell(&figure_6_point("none", load), "", TRANSACTIONS.unit));
            let first = soft_updates(&CONGESTION[0]);
            let paper = soft_updates(row).zip(first).map(|(paper, first)| paper / first);
            [share(&of, &whole).beside(paper)]
        },
    )
}

/// Returns the share of the written bytes that the large cache does not send over the link.
fn figure_6_filtered(measured: &MeasuredPoints<'_>) -> Cell {
    let point = figure_6_point("large", 0);
    explanations::filtered(measured, &point).map_or_else(
        || Cell::words(&measured.why_not(&point)),
        |share| {
            let taints = measured.cell(&point, "", TRANSACTIONS.unit).taints;
            Cell::ours(share).tainted(&taints)
        },
    )
}

/// Explains why our large cache sends a smaller share of the writes over the link than the paper's.
fn figure_6_held(measured: &MeasuredPoints<'_>) -> Option<String> {
    let point = figure_6_point("large", 0);
    let of = |figure: &str| measured.value(&point, &format!("gateway cache {figure}"), "MiB");
    let (written, sent) = (of("written_bytes")?, of("destaged_bytes")?);
    Some(format!(
        "Ours merges data that is overwritten before it is sent: of {} MiB it sent {} MiB, from a log that is larger than all of the data and is \
         emptied when PostMark has ended.",
        rounded(written),
        rounded(sent)
    ))
}

/// Returns the report section for Figure 6 of the outsourcing paper: write caches under congestion.
pub fn figure_6(measured: &MeasuredPoints<'_>) -> Section {
    let caches = [("none", "none"), ("small", "log of 8 MiB"), ("large", "log of 256 MiB")];
    let kept = figure_6_shares(measured);
    let mut deviations = farthest(&kept, TOLERANCE, |_, load| {
        let Ok(load) = load.parse::<u32>() else { return vec![] };
        let own =
            measured.value(&figure_6_point("none", 0), "", "1/s").zip(soft_updates(&CONGESTION[0]));
        vec![
            explanations::sent(measured, &figure_6_point("none", load), BACKBONE_MBIT_S, load),
            own.and_then(|(ours, paper)| explanations::own_time(ours, paper)),
        ]
    });
    let filtered = figure_6_filtered(measured);
    deviations.extend(deviation(
        FIGURE_6_FILTERED.what,
        &filtered,
        &FIGURE_6_FILTERED,
        [figure_6_held(measured)],
    ));
    let words = ReportTable::new(WORDS, "claim")
        .column("share", "")
        .row(FIGURE_6_FILTERED.what, [filtered.beside_printed(FIGURE_6_FILTERED.printed())]);
    let mut section = Section::new("Figure 6: write caches under congestion")
        .text(&format!(
            "PostMark with background traffic and a cache at the host's end. Our caches are the smallest possible log, and one that is larger than \
             all written data; the paper's are shares of PostMark's set. The paper's text gives these numbers for its drawing: bandwidth limits \
             from a background of {}; a cache of 10 % keeps {} of the writes from the link. Without a cache it is PostMark of Table 3, whose \
             numbers are shown for comparison. The paper's caption says Soft Updates; ours is on ext4 with sync and dirsync, where PostMark waits \
             for its writes.",
            figure_6_bounds(),
            FIGURE_6_FILTERED.printed().text()
        ))
        .text(&storage_sentence(measured, "figure-6/"))
        .table(words)
        .table(kept)
        .table(by_load(measured, TRANSACTIONS, &caches, figure_6_point))
        .plot(load_plot(measured, TRANSACTIONS, "PostMark with a write cache", &caches, figure_6_point));
    section.deviations = deviations;
    section.misprints.extend(MISPRINTS[2..3].iter().map(Misprint::text));
    section
}

/// Returns the report section for Figure 7 of the outsourcing paper: read caches of several sizes.
pub fn figure_7(measured: &MeasuredPoints<'_>) -> Section {
    let caches = [("none", "none"), ("10", "10 %"), ("30", "30 %"), ("60", "60 %")];
    let under_load = |cache: &str, load: u32| format!("figure-7/load/{cache}/{load}");
    let over_delay = |cache: &str, at: &str| format!("figure-7/delay/{cache}/{at}");
    let rate = |point: &str| measured.cell(point, "", TRANSACTIONS.unit);
    let plain = under_load("none", 0);
    let rows = [
        (
            format!("{FIGURE_7_CACHE_AT_70} % at a load of 70 %"),
            under_load(&FIGURE_7_CACHE_AT_70.to_string(), 70),
            under_load("none", 70),
            plain.clone(),
            &FIGURE_7_TOLERATED,
        ),
        (
            format!("{FIGURE_7_CACHE_AT_8_MS} % at 8 ms"),
            over_delay(&FIGURE_7_CACHE_AT_8_MS.to_string(), "8ms"),
            over_delay("none", "8ms"),
            over_delay("none", "0ms"),
            &FIGURE_7_MASKED,
        ),
    ];
    let mut words = ReportTable::new(WORDS, "claim")
        .column("without a cache", "1/s")
        .column("with it", "1/s")
        .column("with it, by none without load and delay", "")
        .row(
            "no cache, no background",
            [rate(&plain).beside(FIGURE_7_PLAIN), Cell::default(), Cell::default()],
        );
    let mut deviations = vec![];
    for (what, cached, bare, whole, said) in &rows {
        let kept = share(&rate(cached), &rate(whole));
        let held = contradiction(
            what,
            &kept,
            said,
            [
                explanations::reads_at_gateway(measured, cached),
                of_its_own(measured, whole, bare, cached),
            ],
        );
        deviations.extend(held);
        words = words.row(what, [rate(bare), rate(cached), noted(kept, said)]);
    }
    let mut section = Section::new("Figure 7: read caches")
        .text(&format!(
            "PostMark with a cache at the host's end of the link that holds a share of its files in memory. The host's own cache holds only a small \
             part of them: a tenth with the paper's Windows NT; ours runs in 12 MiB of memory with 24 MiB of files in a quick run, and in 16 MiB \
             with 96 MiB in a full one. Besides its memory our cache has a log of 8 MiB, the smallest possible, from which it also answers reads. \
             The paper's figure is a drawing; the first table has the numbers of its text: {FIGURE_7_PLAIN} transactions a second without a cache \
             and without background, and which cache keeps about as many."
        ))
        .text(&storage_sentence(measured, "figure-7/"))
        .table(words)
        .table(by_load(measured, TRANSACTIONS, &caches, under_load))
        .plot(load_plot(measured, TRANSACTIONS, "PostMark under load", &caches, under_load))
        .table(by_delay(measured, TRANSACTIONS, &caches, over_delay))
        .plot(delay_plot(measured, TRANSACTIONS, "PostMark over a distance", &caches, over_delay));
    section.deviations = deviations;
    section
}

/// Returns a sentence with the time of a transaction in three cases: `whole` without cache, load and delay; `bare` with
/// load or delay and no cache; `cached` with load or delay and a cache.
fn of_its_own(
    measured: &MeasuredPoints<'_>,
    whole: &str,
    bare: &str,
    cached: &str,
) -> Option<String> {
    let ms = |point: &str| Some(rounded(1000.0 / measured.value(point, "", "1/s")?));
    Some(format!(
        "A transaction takes {} ms without cache, load and delay, {} ms with load or delay, and {} ms with the cache, too.",
        ms(whole)?,
        ms(bare)?,
        ms(cached)?
    ))
}

/// Title, axis label and unit of a table or plot that compares caches.
#[derive(Clone, Copy)]
struct CacheFigureLabels {
    title: &'static str,
    axis: &'static str,
    unit: &'static str,
}

const TRANSACTIONS: CacheFigureLabels = CacheFigureLabels {
    title: "PostMark, transactions a second",
    axis: "transactions, 1/s",
    unit: "1/s",
};

/// Returns a table with a column for each cache. `caches` has the words in the names of measured
/// points, and the names in the report.
fn by_delay(
    measured: &MeasuredPoints<'_>,
    of: CacheFigureLabels,
    caches: &[(&str, &str)],
    point: impl Fn(&str, &str) -> String,
) -> ReportTable {
    let table = ReportTable::new(of.title, "one-way delay");
    columns(table, of, caches)
        .rows(
            delays(),
            |(_, at)| way(at),
            |(_, at)| {
                caches
                    .iter()
                    .map(|(cache, _)| measured.cell(&point(cache, at), "", of.unit))
                    .collect::<Vec<_>>()
            },
        )
        .without_blanks()
}

fn by_load(
    measured: &MeasuredPoints<'_>,
    of: CacheFigureLabels,
    caches: &[(&str, &str)],
    point: impl Fn(&str, u32) -> String,
) -> ReportTable {
    let table = ReportTable::new(of.title, "load, % of 155 Mbit/s");
    columns(table, of, caches)
        .rows(
            CONGESTION,
            |row| row.load.to_string(),
            |row| {
                caches
                    .iter()
                    .map(|(cache, _)| measured.cell(&point(cache, row.load), "", of.unit))
                    .collect::<Vec<_>>()
            },
        )
        .without_blanks()
}

fn columns(table: ReportTable, of: CacheFigureLabels, caches: &[(&str, &str)]) -> ReportTable {
    caches.iter().fold(table, |table, (_, shown)| table.column_of("cache", shown, of.unit))
}

fn delay_plot(
    measured: &MeasuredPoints<'_>,
    of: CacheFigureLabels,
    title: &str,
    caches: &[(&str, &str)],
    point: impl Fn(&str, &str) -> String,
) -> Plot {
    let curve = |(cache, shown): &(&str, &str)| {
        measured.curve(shown, delays().map(|(delay, at)| (delay, point(cache, at))), "", of.unit)
    };
    Plot::new(title, "one-way delay, ms", of.axis).curves(caches.iter().map(curve))
}

fn load_plot(
    measured: &MeasuredPoints<'_>,
    of: CacheFigureLabels,
    title: &str,
    caches: &[(&str, &str)],
    point: impl Fn(&str, u32) -> String,
) -> Plot {
    let curve = |(cache, shown): &(&str, &str)| -> Curve {
        let sweep = CONGESTION.iter().map(|row| (f64::from(row.load), point(cache, row.load)));
        measured.curve(shown, sweep, "", of.unit)
    };
    Plot::new(title, "background load, % of 155 Mbit/s", of.axis).curves(caches.iter().map(curve))
}
