//! Report sections for Table 2 and Figures 2, 3 and 6 of the Fair-TCP paper: congestion windows,
//! sampled every 10 ms.

use super::{commands::missed, delays, point, row};
use crate::{
    Cell, Curve, MeasuredPoints, Plot, ReportTable, Section,
    fair_tcp::points::{ALL, BOTH, PER_ACK},
    paper::fair_tcp::{MeanDeviation, TWO_WINDOWS, WINDOW_DIFFERENCE_DEVIATION, WINDOWS},
};

/// The bound that the report checks: the spread (standard deviation) of an ensemble's window is at most this percentage
/// of the window's mean.
const MOST_SPREAD: f64 = 21.0;

/// Returns the report section for Table 2 of the Fair-TCP paper: the windows of a session's
/// connections.
pub fn table_2(measured: &MeasuredPoints<'_>) -> Section {
    let spread = table(measured, "writes", "Sum of the windows of a session's connections", &BOTH);
    let per_ack = table(measured, "per-ack", "The same, growing by acknowledgment", &PER_ACK);
    let by = ReportTable::new("Spread of an ensemble's window", "one-way delay")
        .column("ensemble", "% of its mean")
        .column("by reno's", "times");
    let by = by.rows(delays(), row, |(_, delay)| {
        let [reno, ensemble] = BOTH.map(|(windows, _)| {
            measured.cell(&point("writes", windows, *delay), "window spread", "%")
        });
        let ratio = ensemble.by(&reno).at_most(1.0);
        [ensemble.at_most(MOST_SPREAD), ratio]
    });
    let section = Section::new("Table 2: windows")
        .text(
            "The sum of the windows of all connections in segments, sampled every 10 ms from one second after the first data. The bounds: with an \
             ensemble the spread (deviation divided by mean) is at most 21 %, and less than Reno's.",
        )
        .text(
            "The paper's windows of about 15 segments are those of Linux 2.4, which increased a window with each acknowledgment and acknowledged \
             every other segment: 0.87 / sqrt(p) for each connection. Linux today counts acknowledged data: 1.22 / sqrt(p), which for 2.7 % is 7.4, \
             or about 30 for four connections. The last table has windows of our program that grow with each acknowledgment; compare it with the \
             paper's.",
        );
    missed(
        measured,
        section,
        &by,
        "writes",
        "a spread that was measured for a few seconds is accurate only to a percent or two",
    )
    .table(spread)
    .table(by)
    .table(per_ack)
}

fn table(
    measured: &MeasuredPoints<'_>,
    experiment: &str,
    title: &str,
    both: &[(&str, &str); 2],
) -> ReportTable {
    let mut table = ReportTable::new(title, "one-way delay");
    for (windows, _) in both {
        for (what, unit) in [("mean", "segments"), ("deviation", "segments"), ("spread", "%")] {
            table = table.column_of(windows, what, unit);
        }
    }
    table.rows(delays(), row, |(at, delay)| {
        let of = |windows: &str, paper: MeanDeviation| {
            let cell = |what: &str, unit: &str| {
                measured.cell(&point(experiment, windows, *delay), &format!("window {what}"), unit)
            };
            [
                cell("mean", "segments").beside(paper.mean),
                cell("deviation", "segments").beside(paper.deviation),
                cell("spread", "%").beside(paper.percent),
            ]
        };
        [of(both[0].0, WINDOWS[*at].reno), of(both[1].0, WINDOWS[*at].fair)].concat()
    })
}

/// The delay in milliseconds at which the paper recorded the windows of its Figures 2 and 3.
const TRACED: u32 = 4;

/// Returns the report section for Figures 2 and 3 of the Fair-TCP paper: windows over time.
pub fn figures_2_and_3(measured: &MeasuredPoints<'_>) -> Section {
    let mut section = Section::new("Figures 2 and 3: two connections").text(
        "Windows of the first two connections at 4 ms, and their difference. The paper draws those of Reno: 3.38 segments each, with deviations of \
         2.14 and 2.13, and of 3.06 for the difference.",
    );
    let of = |windows: &str, figure: &str| {
        measured.cell(&point("writes", windows, TRACED), figure, "segments")
    };
    let table = ReportTable::new("Two connections at 4 ms", "windows")
        .column("mean of one", "segments")
        .column("deviation of one", "segments")
        .column("deviation of the difference", "segments");
    let table = table.rows(
        BOTH,
        |(windows, _)| (*windows).to_owned(),
        |(windows, _)| {
            let is_paper = *windows == "reno";
            let paper = |value: f64| is_paper.then_some(value);
            [
                of(windows, "window of one mean").beside(paper(TWO_WINDOWS[0].mean)),
                of(windows, "window of one deviation").beside(paper(TWO_WINDOWS[0].deviation)),
                of(windows, "difference deviation").beside(paper(WINDOW_DIFFERENCE_DEVIATION)),
            ]
        },
    );
    section = section.table(table);
    for (windows, _) in BOTH {
        let series = |name: &str| measured.series(&point("writes", windows, TRACED), name);
        let curve = |name: &str, label: &str| {
            series(name).map(|series| Curve::ours(label, series.points.iter().copied()))
        };
        let two = [
            curve("window of connection 1", "connection 1"),
            curve("window of connection 2", "connection 2"),
        ];
        let title = format!("Figure 3: windows of two connections, {windows}");
        let plot = Plot::new(&title, "time, s", "congestion window, segments")
            .curves(two.into_iter().flatten());
        if !plot.curves.is_empty() {
            section = section.plot(plot);
        }
        let title = format!("Figure 2: difference of their windows, {windows}");
        let plot = Plot::new(&title, "time, s", "difference, segments")
            .curves(curve("difference of windows", "difference"));
        if !plot.curves.is_empty() {
            section = section.plot(plot);
        }
    }
    section
}

/// Returns the report section for Figure 6 of the Fair-TCP paper: retransmitted segments.
pub fn figure_6(measured: &MeasuredPoints<'_>) -> Section {
    let mut table = ReportTable::new("Segments sent again", "one-way delay");
    for (windows, _) in ALL {
        table = table.column_of(windows, "of all", "%").column_of(windows, "in vain", "");
    }
    table = table.column("timeouts, reno", "").column("timeouts, ensemble", "");
    let table = table.rows(delays(), row, |(_, delay)| {
        let cell = |windows: &str, figure: &str, unit: &str| -> Cell {
            measured.cell(&point("writes", windows, *delay), figure, unit)
        };
        let mut cells = vec![];
        for (windows, _) in ALL {
            cells.push(cell(windows, "retransmitted", "%"));
            cells.push(cell(windows, "false retransmits", ""));
        }
        cells.extend(BOTH.map(|(windows, _)| cell(windows, "timeouts", "")));
        cells
    });
    Section::new("Figure 6: retransmits")
        .text(
            "The paper draws fewer retransmits with Fair-TCP. Packets that are lost at random must be sent again with either, so that the share is \
             the link's 2.7 %. Unnecessary retransmits are few, since Linux now distinguishes reordering and late acknowledgments from loss.",
        )
        .table(table)
}
