//! Figures 5 to 7: caches that hide the network's delay.

use super::{delays, far_side, way};
use crate::{
    Cell, Curve, Measured, Plot, Section, Table,
    paper::{
        Misprint,
        outsourcing::{
            CONGESTION, FIGURE_6_BOUND_AT, FIGURE_6_FILTERED, FIGURE_7_CACHE_AT_8_MS,
            FIGURE_7_CACHE_AT_70, FIGURE_7_PLAIN, MISPRINTS,
        },
    },
};

/// Figure 5.
pub fn figure_5(measured: &Measured<'_>) -> Section {
    let places = [("none", "no cache"), ("node", "at the node"), ("host", "at the host")];
    Section::new("Figure 5: where a cache stands")
        .text(
            "PostMark with a small cache at the host's end of the link, at the node's end, or nowhere: the paper's has 1 MB, ours a log of 8 MiB, \
             the least that it can be. The paper's figure is a drawing without numbers; its text says that a cache at the host's end hides nearly all of the delay, and that the other \
             two curves are one. The paper's caption says Soft Updates; ours is on ext4 with sync and dirsync, where PostMark waits for its writes.",
        )
        .text(&far_side(measured, "figure-5/"))
        .table(by_delay(measured, TRANSACTIONS, &places, |place, at| format!("figure-5/{place}/{at}")))
        .plot(delay_plot(measured, TRANSACTIONS, "PostMark with a small cache", &places, |place, at| format!("figure-5/{place}/{at}")))
}

/// Figure 6.
pub fn figure_6(measured: &Measured<'_>) -> Section {
    let caches = [("none", "none"), ("small", "log of 8 MiB"), ("large", "log of 256 MiB")];
    let bound = FIGURE_6_BOUND_AT
        .iter()
        .map(|(cache, load)| match *cache {
            "none" => format!("{load} % without a cache"),
            cache => format!("{load} % with {cache} %"),
        })
        .collect::<Vec<_>>()
        .join(", ");
    let mut section = Section::new("Figure 6: write caches under congestion")
        .text(&format!(
            "PostMark beside background traffic, with a cache at the host's end: ours as small as its log can be, and larger than all that is \
             written; the paper's as large as a share of PostMark's set. Of the paper's drawing its text has these numbers: bandwidth binds from a background of {bound}; 10 % keeps {FIGURE_6_FILTERED} of the \
             writes from the link. The paper's caption says Soft Updates; ours is on ext4 with sync and dirsync, where PostMark waits for its writes."
        ))
        .text(&far_side(measured, "figure-6/"))
        .table(by_load(measured, TRANSACTIONS, &caches, |cache, load| format!("figure-6/{cache}/{load}")))
        .plot(load_plot(measured, TRANSACTIONS, "PostMark with a write cache", &caches, |cache, load| format!("figure-6/{cache}/{load}")));
    section.misprints.extend(MISPRINTS[2..3].iter().map(Misprint::text));
    section
}

/// Figure 7.
pub fn figure_7(measured: &Measured<'_>) -> Section {
    let caches = [("none", "none"), ("10", "10 %"), ("30", "30 %"), ("60", "60 %")];
    let under_load = |cache: &str, load: u32| format!("figure-7/load/{cache}/{load}");
    let over_delay = |cache: &str, at: &str| format!("figure-7/delay/{cache}/{at}");
    // Of a single thread twice the time is half the rate.
    let kept = |point: &str, over: &str| {
        let [cached, plain] = [point, over].map(|point| measured.cell(point, "", "ms"));
        super::share(&plain, &cached).beside(1.0)
    };
    let claims = Table::new("What the paper says in words", "claim")
        .column("one read", "ms")
        .column("rate by none, no load", "")
        .row(
            "no cache, no background",
            [measured.cell(&under_load("none", 0), "", "ms"), Cell::default()],
        )
        .row(
            &format!("{FIGURE_7_CACHE_AT_70} % at a load of 70 %"),
            [
                measured.cell(&under_load("30", 70), "", "ms"),
                kept(&under_load("30", 70), &under_load("none", 0)),
            ],
        )
        .row(
            &format!("{FIGURE_7_CACHE_AT_8_MS} % at 8 ms"),
            [
                measured.cell(&over_delay("60", "8ms"), "", "ms"),
                kept(&over_delay("60", "8ms"), &over_delay("none", "0ms")),
            ],
        );
    Section::new("Figure 7: read caches")
        .text(
            &format!(
                "The paper runs PostMark on a system with little cache of its own (Windows NT), at {FIGURE_7_PLAIN} transactions a second \
                 without a cache and without background. PostMark on Linux reads from the page cache: ours are random reads of 8 KiB \
                 that pass it by, with a cache at the host's end as large as a share of the set. The paper's figure is a drawing; what \
                 its text has of it is the first table. In its last row ours is set against our own 0 ms without a cache."
            ),
        )
        .text(&far_side(measured, "figure-7/"))
        .table(claims)
        .table(by_load(measured, READS, &caches, under_load))
        .plot(load_plot(measured, READS, "Reads under load", &caches, under_load))
        .table(by_delay(measured, READS, &caches, over_delay))
        .plot(delay_plot(measured, READS, "Reads over a distance", &caches, over_delay))
}

/// What a table or plot is of.
#[derive(Clone, Copy)]
struct Of {
    title: &'static str,
    axis: &'static str,
    unit: &'static str,
}

const TRANSACTIONS: Of =
    Of { title: "PostMark, transactions a second", axis: "transactions a second", unit: "1/s" };
const READS: Of = Of { title: "A random read of 8 KiB, ms", axis: "response time, ms", unit: "ms" };

/// For each delay, a column for each cache: word of the points' names, and for people.
fn by_delay(
    measured: &Measured<'_>,
    of: Of,
    caches: &[(&str, &str)],
    point: impl Fn(&str, &str) -> String,
) -> Table {
    let table = Table::new(of.title, "one-way delay");
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
    measured: &Measured<'_>,
    of: Of,
    caches: &[(&str, &str)],
    point: impl Fn(&str, u32) -> String,
) -> Table {
    let table = Table::new(of.title, "load, % of 155 Mbit/s");
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

fn columns(table: Table, of: Of, caches: &[(&str, &str)]) -> Table {
    caches.iter().fold(table, |table, (_, shown)| table.column_of("cache", shown, of.unit))
}

fn delay_plot(
    measured: &Measured<'_>,
    of: Of,
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
    measured: &Measured<'_>,
    of: Of,
    title: &str,
    caches: &[(&str, &str)],
    point: impl Fn(&str, u32) -> String,
) -> Plot {
    let curve = |(cache, shown): &(&str, &str)| -> Curve {
        let sweep = CONGESTION.iter().map(|row| (f64::from(row.load), point(cache, row.load)));
        measured.curve(shown, sweep, "", of.unit)
    };
    Plot::new(title, "background, % of 155 Mbit/s", of.axis).curves(caches.iter().map(curve))
}
