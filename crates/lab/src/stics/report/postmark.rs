//! Report sections for Figures 6 and 7 and Table 8 of the STICS paper: PostMark.

use super::{Ratio, claimed, explanations::GatewayComparison, farthest};
use crate::{
    Cell, MeasuredPoints, Plot, ReportTable, Section, deviation,
    paper::{
        PaperFigure,
        stics::{self as paper, BLOCKS},
    },
    stics::points::POOLS,
};

/// Returns the report section for Figure 6 (100 Mbit/s) or 7 (1 Gbit/s) of the STICS paper:
/// PostMark.
pub(super) fn figure(measured: &MeasuredPoints<'_>, number: u8) -> Section {
    let (rate, after, immediate) = match number {
        6 => ("100 Mbit/s", paper::POSTMARK_100M, paper::POSTMARK_100M_IMMEDIATE),
        _ => ("1 Gbit/s", paper::POSTMARK_1G, paper::POSTMARK_1G_IMMEDIATE),
    };
    let point = |pool: &str, block: u32, how: &str| format!("figure-{number}/{pool}/{block}/{how}");
    let cell = |pool: &str, block: u32, how: &str| {
        measured.cell(&point(pool, block, how), "transactions", "1/s")
    };
    let mut table = ReportTable::new(&format!("PostMark at {rate}"), "pool, block size in bytes")
        .column_of("transactions", "iSCSI", "1/s")
        .column_of("transactions", "report after complete", "1/s")
        .column_of("transactions", "immediate report", "1/s")
        .column_of("by iSCSI's", "report after complete", "")
        .column_of("by iSCSI's", "immediate report", "");
    let mut ratios = [Vec::new(), Vec::new()];
    for pool in POOLS {
        for block in BLOCKS {
            let cells = ["iscsi", "after-complete", "immediate"].map(|how| cell(pool, block, how));
            if cells.iter().all(|cell| cell.ours.is_none()) {
                continue;
            }
            let gains = [cells[1].by(&cells[0]), cells[2].by(&cells[0])];
            let [first, second] = gains;
            let reports = [("after-complete", &first), ("immediate", &second)];
            for (ratios, (how, gain)) in ratios.iter_mut().zip(reports) {
                ratios.push(Ratio {
                    name: format!("{pool} pool, blocks of {block}, {}", how.replace('-', " ")),
                    cell: gain.clone(),
                    plain: point(pool, block, "iscsi"),
                    cached: point(pool, block, how),
                });
            }
            let gains = [claimed(first, &after), claimed(second, &immediate)];
            table = table.row(&format!("{pool}, {block}"), cells.into_iter().chain(gains));
        }
    }
    let mut section = Section::new(&format!("Figure {number}: PostMark at {rate}"));
    if !table.is_measured() {
        return section.text(&format!("PostMark at {rate} was not measured."));
    }
    for pool in POOLS {
        let mut plot = Plot::new(
            &format!("PostMark, {pool} pool, {rate}"),
            "block size, bytes",
            "transactions, 1/s",
        )
        .x_logarithmic();
        for (name, how) in [
            ("iSCSI", "iscsi"),
            ("report after complete", "after-complete"),
            ("immediate report", "immediate"),
        ] {
            let points = BLOCKS.map(|block| (f64::from(block), point(pool, block, how)));
            plot = plot.curve(measured.curve(name, points, "transactions", "1/s"));
        }
        section = section.plot(plot);
    }
    for (ratios, claim) in ratios.iter().zip([&after, &immediate]) {
        section = farthest(measured, section, ratios, claim);
    }
    section.table(table)
}

/// Returns the report section for Table 8 of the STICS paper: PostMark on several nodes
/// concurrently.
pub(super) fn table_8(measured: &MeasuredPoints<'_>) -> Section {
    let mut table =
        ReportTable::new("PostMark on all nodes at once, 1 Gbit/s", "nodes, block size in bytes")
            .column("iSCSI", "1/s")
            .column("report after complete", "1/s")
            .column("by iSCSI's", "");
    let mut deviations = vec![];
    for nodes in 1..=4 {
        for (block, both) in BLOCKS.into_iter().zip(paper::FOUR_TARGETS) {
            let cell = |how: &str, number: f64| {
                let point = format!("table-8/{nodes}/{block}/{how}");
                let cell = measured.cell(&point, "transactions", "1/s");
                cell.beside((nodes == 4).then_some(number))
            };
            let [iscsi, stics] = [cell("iscsi", both.iscsi), cell("after-complete", both.stics)];
            let ratio = stics.by(&iscsi).beside((nodes == 4).then_some(both.stics / both.iscsi));
            if nodes == 4 {
                let [plain, cached] =
                    ["iscsi", "after-complete"].map(|how| format!("table-8/{nodes}/{block}/{how}"));
                let pair = GatewayComparison { measured, plain: &plain, cached: &cached };
                let claim = PaperFigure::number("Table 8", "by iSCSI's", both.stics / both.iscsi);
                let what = format!("four nodes, blocks of {block}");
                deviations.extend(deviation(&what, &ratio, &claim, pair.all()));
            }
            if nodes == 4 || iscsi.ours.is_some() || stics.ours.is_some() {
                table = table.row(&format!("{nodes}, {block}"), [iscsi, stics, ratio]);
            }
        }
    }
    let mut section = Section::new("Table 8: one to four nodes")
        .text(
            "Each node has a volume and a PostMark of its own. All run at once, and their transactions are added. The paper has four nodes. All of \
             ours share two processors with the host.",
        )
        .table(table);
    section.deviations = deviations;
    for misprint in paper::MISPRINTS.iter().filter(|it| it.place == "Table 8") {
        section = section.misprint(&misprint.text());
    }
    let gain = |nodes: u8| {
        let of = |how: &str| {
            measured.value(&format!("table-8/{nodes}/4096/{how}"), "transactions", "1/s")
        };
        Some((nodes, of("after-complete")? / of("iscsi")?))
    };
    if let (Some((_, one)), Some((_, four))) = (gain(1), gain(4)) {
        section = section.text(&format!(
            "With blocks of 4096 bytes the gateway gains {one:.2} times with one node and {four:.2} times with four."
        ));
    }
    section
}

/// Returns a cell with this number, or with the words `why` if there is none.
pub(super) fn or_words(cell: Option<f64>, why: &str) -> Cell {
    cell.map_or_else(|| Cell::words(why), Cell::ours)
}
