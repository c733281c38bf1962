//! Report sections for Figures 8 to 10 of the STICS paper: records at random positions of a device.

use super::{Ratio, claimed, farthest};
use crate::{
    MeasuredPoints, Plot, ReportTable, Section,
    paper::stics::{IOZONE, VXBENCH},
    stics::points::SIZES_KIB,
};

/// The name and unit of the workload's figure for throughput.
const THROUGHPUT: (&str, &str) = ("throughput", "MB/s of 1000 KiB");

/// Returns the report section for Figure 8 of the STICS paper: random reads and writes.
pub(super) fn figure_8(measured: &MeasuredPoints<'_>) -> Section {
    let mut section = Section::new("Figure 8: random reads and writes, 100 Mbit/s").text(
        "One thread; each write is stable before the next. The paper uses IOzone on a file of 512 MB, we use the block device itself.",
    );
    let mut ratios = Vec::new();
    for access in ["read", "write"] {
        let point = |kib: u32, how: &str| format!("figure-8/{access}/{kib}k/{how}");
        let mut table = ReportTable::new(&format!("Random {access}s"), "record, KiB")
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
            let [of_plain, of_cached] = ["iscsi", "after-complete"].map(|how| point(kib, how));
            ratios.push(Ratio {
                name: format!("{access}s of {kib} KiB"),
                cell: ratio.clone(),
                plain: of_plain,
                cached: of_cached,
            });
            table = table.row(&kib.to_string(), [plain, cached, claimed(ratio, &IOZONE)]);
        }
        let mut plot = Plot::new(
            &format!("Random {access}s"),
            "record size, KiB",
            "throughput, MB/s of 1000 KiB",
        )
        .x_logarithmic();
        for (name, how) in [("iSCSI", "iscsi"), ("report after complete", "after-complete")] {
            let points = SIZES_KIB.map(|kib| (f64::from(kib), point(kib, how)));
            plot = plot.curve(measured.curve(name, points, THROUGHPUT.0, THROUGHPUT.1));
        }
        section = section.plot(plot).table(table);
    }
    if ratios.is_empty() {
        section = section.text("This was not measured here.");
    }
    farthest(measured, section, &ratios, &IOZONE)
}

/// Returns the report section for Figures 9 and 10 of the STICS paper: random writes and a mix of
/// reads and writes, with the processor time that they take.
pub(super) fn figures_9_and_10(measured: &MeasuredPoints<'_>) -> Section {
    let mut table = ReportTable::new("Like vxbench, 100 Mbit/s", "load")
        .column_of("throughput", "iSCSI", "KiB/s")
        .column_of("throughput", "report after complete", "KiB/s")
        .column_of("by iSCSI's", "throughput", "")
        .column_of("processor time of this machine", "iSCSI", "% of all")
        .column_of("processor time of this machine", "report after complete", "% of all");
    let mut ratios = Vec::new();
    for (access, name) in [("write", "random writes"), ("mixed", "half reads, half writes")] {
        let of = |how: &str, figure: &str, unit: &str| {
            measured.cell(&format!("figure-9/{access}/{how}"), figure, unit)
        };
        let rates = ["iscsi", "after-complete"].map(|how| of(how, "throughput", "KiB/s"));
        let busy = ["iscsi", "after-complete"]
            .map(|how| of(how, "processor time of this host", "% of all"));
        let ratio = rates[1].by(&rates[0]);
        let [plain, cached] =
            ["iscsi", "after-complete"].map(|how| format!("figure-9/{access}/{how}"));
        ratios.push(Ratio { name: name.to_owned(), cell: ratio.clone(), plain, cached });
        let ratio = claimed(ratio, &VXBENCH);
        table = table.row(name, rates.into_iter().chain([ratio]).chain(busy));
    }
    let section = Section::new("Figures 9 and 10: throughput and processor time")
        .text(
            "vxbench is VERITAS's program for Solaris; here fio replaces it, with blocks of 8 KiB at random places of the device. Processor time is \
             that of host, gateway, node and link together; in the paper it is that of the host alone.",
        )
        .table(table);
    farthest(measured, section, &ratios, &VXBENCH)
}
