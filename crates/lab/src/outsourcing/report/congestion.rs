//! Report section for Table 3 of the outsourcing paper: background traffic on a backbone of 155
//! Mbit/s.

use super::{explanations, farthest, share, storage_sentence};
use crate::{
    Cell, Curve, MeasuredPoints, Plot, ReportTable, Section,
    paper::outsourcing::{CONGESTION, PaperCongestion},
};

/// A column of Table 3: workload, file system, unit, and a function that returns the paper's number
/// of a row.
type CongestionColumn =
    (&'static str, &'static str, &'static str, fn(&PaperCongestion) -> Option<f64>);

const COLUMNS: [(&str, CongestionColumn); 3] = [
    ("PostMark, ext4", ("postmark", "soft", "1/s", |row| row.postmark.map(|[_, soft, _]| soft))),
    ("PostMark, ext4, sync", ("postmark", "sync", "1/s", |row| row.postmark.map(|[ffs, ..]| ffs))),
    ("TPC-C", ("tpcc", "soft", "1/min", |row| Some(row.tpcc))),
];

/// Returns the report section for Table 3 of the outsourcing paper: applications under congestion.
pub fn table_3(measured: &MeasuredPoints<'_>) -> Section {
    let cell = |(workload, meta, unit, _): &CongestionColumn, load: u32| {
        measured.cell(&format!("table-3/{workload}/{meta}/{load}"), "", unit)
    };
    let mut rates = ReportTable::new("What runs beside the background", "load, % of 155 Mbit/s");
    let mut shares = ReportTable::new("As a share of no load", "load, % of 155 Mbit/s");
    let mut plot = Plot::new(
        "Performance under load",
        "background load, % of 155 Mbit/s",
        "throughput, as a share of that without load",
    );
    for (name, column) in &COLUMNS {
        rates = rates.column(name, column.2);
        shares = shares.column(name, "of no load");
        let first = cell(column, 0);
        let ours = CONGESTION
            .iter()
            .filter_map(|row| Some([f64::from(row.load), cell(column, row.load).by(&first).ours?]));
        let paper = CONGESTION.iter().filter_map(|row| {
            Some([f64::from(row.load), (column.3)(row)? / (column.3)(&CONGESTION[0])?])
        });
        plot = plot.curve(Curve::ours(name, ours)).curve(Curve::paper(name, paper));
    }
    let load = |row: &PaperCongestion| row.load.to_string();
    let rates = rates.rows(CONGESTION, load, |row| {
        COLUMNS.map(|(_, column)| cell(&column, row.load).beside((column.3)(row)))
    });
    let shares = shares.rows(CONGESTION, load, |row| {
        COLUMNS.map(|(_, column)| {
            let kept: Cell = share(&cell(&column, row.load), &cell(&column, 0));
            let first = (column.3)(&CONGESTION[0]);
            kept.beside((column.3)(row).zip(first).map(|(paper, first)| paper / first))
        })
    });
    let deviations = farthest(&shares, DIFFERENT, |n, load| why(measured, n, load));
    let mut section = Section::new("Table 3: congestion")
        .text(
            "A backbone of 155 Mbit/s with background traffic of the paper's profile (TCP 95 %, UDP 5 %; half of the packets below 44 bytes, three \
             quarters below 576, nearly all below 1500). In the paper two hardware generators make it between two routers, and hosts have 100 \
             Mbit/s; here the emulator puts it into its queue. Our PostMark is compared with the paper's Soft Updates and FFS, our TPC-C with its \
             NTFS on Windows NT. Our figures of PostMark are for the whole run, with creation and deletion of the files; without sync it has little \
             memory, so that it waits for its writes and reads.",
        )
        .text(&storage_sentence(measured, "table-3/"))
        .table(rates)
        .table(shares)
        .plot(plot)
        .table(profile());
    section.deviations = deviations;
    section
}

/// Returns possible explanations for the result in column `n` under the background load `load`.
fn why(measured: &MeasuredPoints<'_>, n: usize, load: &str) -> Vec<Option<String>> {
    let (Some((_, (workload, meta, unit, paper))), Ok(load)) =
        (COLUMNS.get(n), load.parse::<u32>())
    else {
        return vec![];
    };
    let point = |load: u32| format!("table-3/{workload}/{meta}/{load}");
    let own = measured.value(&point(0), "", unit).zip(paper(&CONGESTION[0]));
    let seconds = if *unit == "1/min" { 60.0 } else { 1.0 };
    vec![
        explanations::sent(measured, &point(load), BACKBONE_MBIT_S, load),
        own.and_then(|(ours, paper)| explanations::own_time(ours / seconds, paper / seconds)),
    ]
}

/// Rate of the backbone in the paper's congestion testbed, in Mbit/s.
pub(super) const BACKBONE_MBIT_S: f64 = 155.0;

/// Shares that differ by more than this are reported: twice the mean variation of the paper's runs
/// (Table 2).
const DIFFERENT: f64 = 0.1;

/// Returns a table that shows how the paper's background traffic affects the network itself.
fn profile() -> ReportTable {
    let table = ReportTable::new("The paper's background", "load, % of 155 Mbit/s")
        .column("mean", "Mbit/s")
        .column("deviation", "Mbit/s")
        .column("round trip", "ms")
        .column("packets lost", "share");
    table.rows(
        CONGESTION,
        |row| row.load.to_string(),
        |row| [row.background[0], row.background[1], row.round_trip_ms, row.loss].map(Cell::paper),
    )
}
