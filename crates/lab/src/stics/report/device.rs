//! Figures 8 to 10: records at random places of a device.

use super::{claimed, deviation};
use crate::{
    Measured, Plot, Section, Table,
    paper::stics::{IOZONE, VXBENCH},
    stics::points::SIZES_KIB,
};

/// What the workload calls its rate.
const THROUGHPUT: (&str, &str) = ("throughput", "MB/s of 1000 KiB");
const WHY: &str = "A write that the gateway has in its log waits for neither disk nor link; a read that it does not have waits for both, as without it.";

/// Figure 8.
pub(super) fn figure_8(measured: &Measured<'_>) -> Section {
    let mut section = Section::new("Figure 8: random reads and writes, 100 Mbit/s").text(
        "One thread, each write stable before the next; the paper has IOzone on a file of 512 MB, here the block device itself.",
    );
    let mut ratios = Vec::new();
    for access in ["read", "write"] {
        let point = |kib: u32, how: &str| format!("figure-8/{access}/{kib}k/{how}");
        let mut table = Table::new(&format!("Random {access}s"), "record, KiB")
            .column("iSCSI", THROUGHPUT.1)
            .column("report after complete", THROUGHPUT.1)
            .column("by iSCSI's", "");
        for kib in SIZES_KIB {
            let [plain, cached] = ["iscsi", "after-complete"]
                .map(|how| measured.cell(&point(kib, how), THROUGHPUT.0, THROUGHPUT.1));
            if plain.ours.is_none() && cached.ours.is_none() {
                continue;
            }
            let ratio = cached.by(&plain);
            ratios.push(ratio.clone());
            table = table.row(&kib.to_string(), [plain, cached, claimed(ratio, &IOZONE)]);
        }
        let mut plot =
            Plot::new(&format!("Random {access}s"), "record, KiB", THROUGHPUT.1).x_logarithmic();
        for (name, how) in [("iSCSI", "iscsi"), ("report after complete", "after-complete")] {
            let points = SIZES_KIB.map(|kib| (f64::from(kib), point(kib, how)));
            plot = plot.curve(measured.curve(name, points, THROUGHPUT.0, THROUGHPUT.1));
        }
        section = section.plot(plot).table(table);
    }
    if ratios.is_empty() {
        section = section.text(&format!("Here: {}.", measured.why_not("figure-8")));
    }
    match deviation(&ratios, &IOZONE, WHY) {
        Some(text) => section.deviation(&text),
        None => section,
    }
}

/// Figures 9 and 10: the same with what it costs of the processors.
pub(super) fn figures_9_and_10(measured: &Measured<'_>) -> Section {
    let mut table =
        Table::new("Random writes and reads of 4 KiB or more: processor time", "record")
            .column_of("iSCSI", "throughput", THROUGHPUT.1)
            .column_of("iSCSI", "processors of the machine", "s")
            .column_of("report after complete", "throughput", THROUGHPUT.1)
            .column_of("report after complete", "processors of the machine", "s")
            .column_of("by iSCSI's", "throughput", "");
    for access in ["write", "read"] {
        for kib in SIZES_KIB {
            let point = |how: &str| format!("figure-8/{access}/{kib}k/{how}");
            let rate = |how: &str| measured.cell(&point(how), THROUGHPUT.0, THROUGHPUT.1);
            let cpu = |how: &str| measured.cell(&point(how), "cpu machine", "s");
            let (plain, cached) = (rate("iscsi"), rate("after-complete"));
            if plain.ours.is_none() && cached.ours.is_none() {
                continue;
            }
            let ratio = cached.by(&plain);
            let ratio = if access == "write" { claimed(ratio, &VXBENCH) } else { ratio };
            let cells = [plain, cpu("iscsi"), cached, cpu("after-complete"), ratio];
            table = table.row(&format!("{access}, {kib} KiB"), cells);
        }
    }
    Section::new("Figures 9 and 10: throughput and processor time")
        .text(
            "The paper ran vxbench, which is VERITAS's and for Solaris, with random writes and a mix of reads and writes. Its stand-in are the \
             points of Figure 8, random writes first; a mix is not among them. Processor time is that of host, gateway, node and link together, over the \
             whole of a point.",
        )
        .table(table)
        .deviation("The mixed load of Figures 9 and 10 is left out: there is no program here that does what vxbench calls so, and the paper does not say in which shares.")
}
