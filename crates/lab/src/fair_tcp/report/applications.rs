//! Report sections for Table 5 and Figures 10 to 15 of the Fair-TCP paper: Bonnie++, PostMark and a
//! software build on ext4.

use super::{
    commands::{missed, ratio_curve, said},
    delays, point, row,
};
use crate::{
    Cell, MeasuredPoints, Plot, ReportTable, Section, deviation,
    fair_tcp::points::BOTH,
    paper::{
        PaperFigure,
        fair_tcp::{
            BONNIE_4_SEEKS, BONNIE_REWRITE_KB_S, BONNIE_SEEKS_S, KERNEL_COMPILE, POSTMARK_1,
            POSTMARK_10, RenoFairPair,
        },
    },
};

/// The bound that the report checks for PostMark with ten processes: its time with Reno divided by its time with an
/// ensemble must be at least this.
const PROMISED: f64 = 1.17;

/// Returns the report section for Figures 11 to 14 of the Fair-TCP paper: PostMark.
pub fn postmark(measured: &MeasuredPoints<'_>) -> Section {
    let one = times(measured, "postmark-1", "PostMark, one process", &POSTMARK_1, None);
    let ten =
        times(measured, "postmark-10", "PostMark, ten processes", &POSTMARK_10, Some(PROMISED));
    let mut plot = Plot::new(
        "PostMark: Reno's time divided by an ensemble's",
        "one-way delay, ms",
        "ratio of times",
    );
    for (name, experiment) in [("one process", "postmark-1"), ("ten processes", "postmark-10")] {
        let cells = delays().map(|(_, delay)| (delay, gain(measured, experiment, delay)));
        plot = plot.curve(ratio_curve(name, cells));
    }
    let section = Section::new("Figures 11 to 14: PostMark")
        .text(
            "Files of 500 bytes to 100 KB, as in the paper's Table 6, but fewer. The paper's 20,000 files and 50,000 transactions, 4 GB, did not \
             fit in the memory of its host (256 MB), so that PostMark waited for its writes. Here PostMark runs in a control group with 16 MiB of \
             memory, page cache included: a third of the size of its files.",
        )
        .text("The paper's throughputs (Figures 13 and 14) follow from its times. The bound: with ten processes Reno takes at least 1.17 times as \
               long as an ensemble.");
    let reason = "PostMark mostly waits for single commands, which take a round trip and the time for a few lost packets, whatever the window is";
    let section = missed(measured, section, &ten, "postmark-10", reason);
    let section = elsewhere(measured, section, &one, "postmark-1", |_| vec![(2, POSTMARK_1)]);
    let section = elsewhere(measured, section, &ten, "postmark-10", |_| vec![(2, POSTMARK_10)]);
    section.table(one).table(ten).plot(plot)
}

/// Adds a sentence to the report (a deviation) for each gain that differs from the paper's, with explanations from the
/// runs with Reno and with an ensemble. The table has a row for each delay. `claims` returns the paper's figures for a
/// row, each with the column of our figure.
fn elsewhere(
    measured: &MeasuredPoints<'_>,
    section: Section,
    table: &ReportTable,
    experiment: &str,
    claims: impl Fn(usize) -> Vec<(usize, PaperFigure)>,
) -> Section {
    let mut section = section;
    for (at, delay) in delays() {
        for (column, claim) in claims(at) {
            let Some(cell) = table.rows.get(at).and_then(|row| row.cells.get(column)) else {
                continue;
            };
            // Skip a cell whose figure misses its bound, because `missed` reports that.
            if cell.holds() == Some(false) {
                continue;
            }
            let run = Some(said(measured, experiment, delay)).filter(|said| !said.is_empty());
            let what = format!("{}, {} at {delay} ms", table.title, table.columns[column].name);
            section.deviations.extend(deviation(&what, cell, &claim, [run]));
        }
    }
    section
}

/// Returns the report section for Figure 15 of the Fair-TCP paper: a software build.
pub fn build(measured: &MeasuredPoints<'_>) -> Section {
    let mut builds = ReportTable::new("Builds", "one-way delay");
    for (windows, _) in BOTH {
        builds = builds.column(windows, "1/h");
    }
    let builds =
        builds.column("an ensemble's by Reno's", "times").rows(delays(), row, |(_, delay)| {
            let [reno, ensemble] =
                BOTH.map(|(windows, _)| measured.cell(&point("build", windows, *delay), "", "1/h"));
            let gain = ensemble.by(&reno).beside_printed(KERNEL_COMPILE.printed());
            [reno, ensemble, gain]
        });
    let section = Section::new("Figure 15: a software build").text(
        "Unpacking, configuring and making a package of Debian's archive instead of Linux 2.4.20. Most of the time is processor time.",
    );
    elsewhere(measured, section, &builds, "build", |_| vec![(2, KERNEL_COMPILE)]).table(builds)
}

/// Returns the report section for Table 5 and Figure 10 of the Fair-TCP paper: Bonnie++.
pub fn bonnie(measured: &MeasuredPoints<'_>) -> Section {
    let alone = ReportTable::new("Bonnie++, one process", "one-way delay");
    let alone = with_columns(alone).rows(delays(), row, |(at, delay)| {
        let of = |figure: &str, unit: &str, paper: RenoFairPair<f64>| {
            let [reno, ensemble] = BOTH.map(|(windows, _)| {
                measured.cell(&point("bonnie-1", windows, *delay), figure, unit)
            });
            let gain = ensemble.by(&reno).beside(paper.fair / paper.reno);
            [reno.beside(paper.reno), ensemble.beside(paper.fair), gain]
        };
        let rewrites = of("rewrite", "KiB/s", BONNIE_REWRITE_KB_S[*at]);
        let seeks = of("seeks", "1/s", BONNIE_SEEKS_S[*at]);
        [rewrites, seeks].concat()
    });
    let four = ReportTable::new("Bonnie++, four processes", "one-way delay");
    let four = with_columns(four).rows(delays(), row, |(_, delay)| {
        let of = |figure: &str, unit: &str| {
            let [reno, ensemble] = BOTH.map(|(windows, _)| {
                measured.cell(&point("bonnie-4", windows, *delay), figure, unit)
            });
            let gain = ensemble.by(&reno);
            [reno, ensemble, gain]
        };
        let [reno, ensemble, gain] = of("seeks", "1/s");
        let seeks = [reno, ensemble, gain.beside_printed(BONNIE_4_SEEKS.printed())];
        [of("rewrite", "KiB/s"), seeks].concat()
    });
    let gains = |at: usize| {
        let gain = |rates: [RenoFairPair<f64>; 6]| {
            PaperFigure::number("Table 5", "gain", rates[at].fair / rates[at].reno)
        };
        vec![(2, gain(BONNIE_REWRITE_KB_S)), (5, gain(BONNIE_SEEKS_S))]
    };
    let section = Section::new("Table 5 and Figure 10: Bonnie++").text(
        "Files of 64 MiB in all instead of 1 GB, with 16 MiB of memory. The paper's block writes and reads are similar to its file writes and \
         reads, and are not printed.",
    );
    let section = elsewhere(measured, section, &alone, "bonnie-1", gains);
    let section = elsewhere(measured, section, &four, "bonnie-4", |_| vec![(5, BONNIE_4_SEEKS)]);
    section.table(alone).table(four)
}

fn with_columns(table: ReportTable) -> ReportTable {
    ["rewrites", "seeks"].into_iter().zip(["KiB/s", "1/s"]).fold(table, |table, (what, unit)| {
        let of = |windows| format!("{what}, {windows}");
        table
            .column(&of("reno"), unit)
            .column(&of("ensemble"), unit)
            .column(&format!("{what}, ensemble by reno"), "times")
    })
}

fn time(measured: &MeasuredPoints<'_>, experiment: &str, windows: &str, delay: u32) -> Cell {
    measured.cell(&point(experiment, windows, delay), "time", "s")
}

/// Returns the speed-up by an ensemble: the time with Reno divided by the time with the ensemble.
fn gain(measured: &MeasuredPoints<'_>, experiment: &str, delay: u32) -> Cell {
    let [reno, ensemble] = BOTH.map(|(windows, _)| time(measured, experiment, windows, delay));
    reno.by(&ensemble)
}

fn times(
    measured: &MeasuredPoints<'_>,
    experiment: &str,
    title: &str,
    claim: &PaperFigure,
    promised: Option<f64>,
) -> ReportTable {
    let mut table = ReportTable::new(title, "one-way delay");
    for (windows, _) in BOTH {
        table = table.column(windows, "s");
    }
    table = table.column("Reno's by an ensemble's", "times");
    table.rows(delays(), row, |(_, delay)| {
        let [reno, ensemble] = BOTH.map(|(windows, _)| time(measured, experiment, windows, *delay));
        let gain = gain(measured, experiment, *delay).beside_printed(claim.printed());
        let gain = match promised {
            Some(least) => gain.at_least(least),
            None => gain,
        };
        [reno, ensemble, gain]
    })
}
