//! The report of the STICS experiments, which compares the results with the numbers of the paper.

mod explanations;
mod device;
mod postmark;
mod traffic;
mod trace;
mod claims;

use crate::{Cell, LabReport, MeasuredPoints, PointRecord, Section, deviation, paper::PaperFigure};
use explanations::GatewayComparison;

/// Returns the report of these records. `left_out` has the points without a record: name and
/// reason.
#[must_use]
pub fn report(records: &[PointRecord], left_out: &[(String, String)]) -> LabReport {
    let measured = MeasuredPoints::new(records).left_out(left_out.iter().cloned());
    LabReport::new("STICS")
        .about(
            "What a cache between SCSI and IP gains, measured again: the tables and figures of \"STICS: SCSI-to-IP cache for storage area \
             networks\" (He, Zhang and Yang), each with the paper's numbers next to ours. \"iSCSI\" is a node without a gateway; \"report after \
             complete\" and \"immediate report\" are a gateway next to the host.",
        )
        .about(
            "The paper uses PCs with Linux 2.4, a switch of 100 Mbit/s or 1 Gbit/s, and a target that solicits all data of writes. Here node, \
             gateway and host are processes in network namespaces of one machine with an emulated link of that rate between them; the node's disk \
             is simulated (IBM O7N3200 of Table 2, write cache on), the gateway's log is on this machine's disk. Forebay without a gateway sends \
             the data of small writes with the command, which saves a round trip that the paper's iSCSI needs.",
        )
        .about(
            "The paper's hosts have 128 MB of memory and work on more data. Here the file system is mounted with \"sync,dirsync\" instead, so that \
             writes do not stay in the host's memory; pools are smaller, and transactions fewer. Figures 6 to 10 are drawings without printed \
             numbers: the numbers in the paper's text are compared with ours.",
        )
        .findings(claims::findings(&measured))
        .section(postmark::figure(&measured, 6))
        .section(traffic::packets(&measured))
        .section(traffic::requests(&measured))
        .section(traffic::commands(&measured))
        .section(postmark::figure(&measured, 7))
        .section(device::figure_8(&measured))
        .section(device::figures_9_and_10(&measured))
        .section(trace::figures_11_and_12(&measured))
        .section(postmark::table_8(&measured))
}

/// Adds the paper's number to a cell with one of our ratios. Returns a cell without a measured ratio unchanged.
fn claimed(ratio: Cell, claim: &PaperFigure) -> Cell {
    if ratio.ours.is_none() {
        return ratio;
    }
    ratio.beside_printed(claim.printed())
}

/// Adds one sentence to the report (a deviation) for several ratios to which the same claim of the paper applies. The
/// sentence describes the ratio that differs most, with explanations, and states how many ratios differ.
fn farthest(
    measured: &MeasuredPoints<'_>,
    section: Section,
    ratios: &[Ratio],
    claim: &PaperFigure,
) -> Section {
    let far = |ratio: &Ratio| {
        let value = ratio.cell.ours?;
        let nearest = claim.printed().nearest(value);
        Some((value / nearest).ln().abs())
    };
    let told = ratios.iter().filter_map(|ratio| {
        let pair = GatewayComparison { measured, plain: &ratio.plain, cached: &ratio.cached };
        let text = deviation(&ratio.name, &ratio.cell, claim, pair.all())?;
        Some((far(ratio)?, text))
    });
    let told: Vec<(f64, String)> = told.collect();
    let Some((_, text)) = told.iter().max_by(|a, b| a.0.total_cmp(&b.0)) else { return section };
    let of = ratios.iter().filter(|ratio| ratio.cell.ours.is_some()).count();
    let others = match told.len() {
        1 => format!("The other {} agree with the paper.", of - 1),
        _ => format!("It has the largest difference of {} of {of} that differ.", told.len()),
    };
    section.deviation(&if of > 1 { format!("{text} {others}") } else { text.clone() })
}

/// The gain of a gateway: a ratio, and the names of the two points whose figures are divided.
struct Ratio {
    name: String,
    cell: Cell,
    plain: String,
    cached: String,
}

/// Returns the sum of those counters of a point whose names `is_one` selects. Returns `None` if the
/// point or the counters are missing.
fn counted(
    measured: &MeasuredPoints<'_>,
    point: &str,
    is_one: impl Fn(&str) -> bool,
) -> Option<f64> {
    let figures = measured.record(point)?.counted.iter().filter(|figure| is_one(&figure.name));
    let values: Vec<f64> = figures.map(|figure| figure.value).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

/// Returns a cell with the sum of counters of a point and the reasons to doubt the point (taints). If the point was not
/// measured, the cell has the reason. Counters that a record lacks are 0, because a record omits counters that did not
/// change.
fn counted_cell(measured: &MeasuredPoints<'_>, point: &str, is_one: impl Fn(&str) -> bool) -> Cell {
    match measured.record(point) {
        None => Cell::words(&measured.why_not(point)),
        Some(record) => {
            Cell::ours(counted(measured, point, is_one).unwrap_or(0.0)).tainted(&record.taints)
        }
    }
}

#[cfg(test)]
mod tests;
