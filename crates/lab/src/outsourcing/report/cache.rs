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
            "PostMark with a cache of 1 MB at the host's end of the link, at the node's end, or nowhere. The paper's figure is a \
             drawing without numbers; its text says that a cache at the host's end hides nearly all of the delay, and that the other \
             two curves are one.",
        )
        .text(&far_side(measured, "figure-5/"))
        .table(by_delay(measured, &places, |place, at| format!("figure-5/{place}/{at}")))
        .plot(delay_plot(measured, "PostMark with a cache of 1 MB", &places, |place, at| format!("figure-5/{place}/{at}")))
}

/// Figure 6.
pub fn figure_6(measured: &Measured<'_>) -> Section {
    let caches = [("none", "none"), ("0.1", "0.1 %"), ("1", "1 %"), ("10", "10 %"), ("30", "30 %")];
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
            "PostMark beside background traffic, with a cache at the host's end as large as a share of PostMark's set. Of the paper's \
             drawing its text has these numbers: bandwidth binds from a background of {bound}; 10 % keeps {FIGURE_6_FILTERED} of the \
             writes from the link."
        ))
        .text(&far_side(measured, "figure-6/"))
        .table(by_load(measured, &caches, |cache, load| format!("figure-6/{cache}/{load}")))
        .plot(load_plot(measured, "PostMark with a write cache", &caches, |cache, load| format!("figure-6/{cache}/{load}")));
    section.misprints.extend(MISPRINTS[2..].iter().map(Misprint::text));
    section
}

/// Figure 7.
pub fn figure_7(measured: &Measured<'_>) -> Section {
    let caches = [("none", "none"), ("10", "10 %"), ("30", "30 %"), ("60", "60 %")];
    let under_load = |cache: &str, load: u32| format!("figure-7/load/{cache}/{load}");
    let over_delay = |cache: &str, at: &str| format!("figure-7/delay/{cache}/{at}");
    let plain = measured.cell(&under_load("none", 0), "", "1/s").beside(FIGURE_7_PLAIN);
    let kept = |point: &str, over: &str| {
        let cell = measured.cell(point, "", "1/s");
        super::share(&cell, &measured.cell(over, "", "1/s")).beside(1.0)
    };
    let claims = Table::new("What the paper says in words", "claim")
        .column("transactions", "1/s")
        .column("by none, no load", "")
        .row("no cache, no background", [plain, Cell::default()])
        .row(
            &format!("{FIGURE_7_CACHE_AT_70} % at a load of 70 %"),
            [
                measured.cell(&under_load("30", 70), "", "1/s"),
                kept(&under_load("30", 70), &under_load("none", 0)),
            ],
        )
        .row(
            &format!("{FIGURE_7_CACHE_AT_8_MS} % at 8 ms"),
            [
                measured.cell(&over_delay("60", "8ms"), "", "1/s"),
                kept(&over_delay("60", "8ms"), &over_delay("none", "0ms")),
            ],
        );
    Section::new("Figure 7: read caches")
        .text(
            "PostMark that reads much, because its file system has little cache (Windows NT in the paper), with a cache at the \
             host's end as large as a share of its set. The paper's figure is a drawing; what its text has of it is the first table. \
             In its last row ours is set against our own 0 ms without a cache.",
        )
        .text(&far_side(measured, "figure-7/"))
        .table(claims)
        .table(by_load(measured, &caches, under_load))
        .plot(load_plot(measured, "Reads under load", &caches, under_load))
        .table(by_delay(measured, &caches, over_delay))
        .plot(delay_plot(measured, "Reads over a distance", &caches, over_delay))
}

/// Transactions for each delay, a column for each cache: word of the points' names, and for people.
fn by_delay(
    measured: &Measured<'_>,
    caches: &[(&str, &str)],
    point: impl Fn(&str, &str) -> String,
) -> Table {
    let table = Table::new("PostMark, transactions a second", "one-way delay");
    columns(table, caches).rows(
        delays(),
        |(_, at)| way(at),
        |(_, at)| {
            caches
                .iter()
                .map(|(cache, _)| measured.cell(&point(cache, at), "", "1/s"))
                .collect::<Vec<_>>()
        },
    )
}

fn by_load(
    measured: &Measured<'_>,
    caches: &[(&str, &str)],
    point: impl Fn(&str, u32) -> String,
) -> Table {
    let table = Table::new("PostMark, transactions a second", "load, % of 155 Mbit/s");
    columns(table, caches).rows(
        CONGESTION,
        |row| row.load.to_string(),
        |row| {
            caches
                .iter()
                .map(|(cache, _)| measured.cell(&point(cache, row.load), "", "1/s"))
                .collect::<Vec<_>>()
        },
    )
}

fn columns(table: Table, caches: &[(&str, &str)]) -> Table {
    caches.iter().fold(table, |table, (_, shown)| table.column_of("cache", shown, "1/s"))
}

fn delay_plot(
    measured: &Measured<'_>,
    title: &str,
    caches: &[(&str, &str)],
    point: impl Fn(&str, &str) -> String,
) -> Plot {
    let curve = |(cache, shown): &(&str, &str)| {
        measured.curve(shown, delays().map(|(delay, at)| (delay, point(cache, at))), "", "1/s")
    };
    Plot::new(title, "one-way delay, ms", "transactions a second").curves(caches.iter().map(curve))
}

fn load_plot(
    measured: &Measured<'_>,
    title: &str,
    caches: &[(&str, &str)],
    point: impl Fn(&str, u32) -> String,
) -> Plot {
    let curve = |(cache, shown): &(&str, &str)| -> Curve {
        let sweep = CONGESTION.iter().map(|row| (f64::from(row.load), point(cache, row.load)));
        measured.curve(shown, sweep, "", "1/s")
    };
    Plot::new(title, "background, % of 155 Mbit/s", "transactions a second")
        .curves(caches.iter().map(curve))
}
