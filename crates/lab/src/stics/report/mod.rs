//! What was found, beside what the paper says.

mod device;
mod postmark;
mod traffic;
mod trace;

use crate::{Cell, Measured, Record, Report, paper::Claim};

/// The report of these records, and of the points that were left out: name and reason.
#[must_use]
pub fn report(records: &[Record], left_out: &[(String, String)]) -> Report {
    let measured = Measured::new(records).left_out(left_out.iter().cloned());
    Report::new("STICS")
        .about(
            "What a cache between SCSI and IP gains, measured again: the tables and figures of \"STICS: SCSI-to-IP cache for storage \
             area networks\" (He, Zhang and Yang), each with the paper's numbers beside ours. \"iSCSI\" is a node without a gateway; \
             \"report after complete\" and \"immediate report\" are a gateway beside the host.",
        )
        .about(
            "In the paper, PCs with Linux 2.4 and a switch of 100 Mbit/s or 1 Gbit/s, and a target that solicits all data of writes. Here \
             node, gateway and host are processes in network namespaces of one machine with an emulated link of that rate between them; \
             the node's disk is simulated (IBM O7N3200 of Table 2, write cache on), the gateway's log lies on this machine's disk. \
             Forebay without a gateway sends the data of small writes with the command, which saves a round trip that the paper's iSCSI pays.",
        )
        .about(
            "The paper's hosts have 128 MB of memory and work on more. Here the file system is mounted \"sync,dirsync\" in place of that, so \
             that writes do not stay in the host's memory, and pools and transactions are fewer. Figures 6 to 10 are drawings without \
             printed numbers: what the text says of them is set beside ours.",
        )
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

/// A ratio of ours with what the paper says of it, in words.
fn claimed(ratio: Cell, claim: &Claim) -> Cell {
    if ratio.ours.is_none() {
        return ratio;
    }
    ratio.note(&format!("the paper: {} to {}", claim.least, claim.most))
}

/// Ratios that are not where the paper has them, as a sentence; `None` if all are.
fn deviation<'a>(
    ratios: impl IntoIterator<Item = &'a Cell>,
    claim: &Claim,
    why: &str,
) -> Option<String> {
    let measured: Vec<f64> = ratios.into_iter().filter_map(|cell| cell.ours).collect();
    let outside = measured.iter().filter(|ratio| !claim.holds(**ratio)).count();
    if outside == 0 {
        return None;
    }
    let (least, most) =
        measured.iter().fold((f64::MAX, f64::MIN), |(l, m), it| (l.min(*it), m.max(*it)));
    Some(format!(
        "{} has {} to {} times iSCSI's; ours are {least:.2} to {most:.2}, {outside} of {} outside that range. {why}",
        claim.place,
        claim.least,
        claim.most,
        measured.len()
    ))
}

/// The sum of what was counted around a point under names that `is_one` picks; `None` without the point, or if nothing of
/// the kind was counted.
fn counted(measured: &Measured<'_>, point: &str, is_one: impl Fn(&str) -> bool) -> Option<f64> {
    let figures = measured.record(point)?.counted.iter().filter(|figure| is_one(&figure.name));
    let values: Vec<f64> = figures.map(|figure| figure.value).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

/// A cell of it, with the taints of its point or the reason why it is not there. What was never counted is 0, since counts
/// that did not change are not kept.
fn counted_cell(measured: &Measured<'_>, point: &str, is_one: impl Fn(&str) -> bool) -> Cell {
    match measured.record(point) {
        None => Cell::words(&measured.why_not(point)),
        Some(record) => {
            Cell::ours(counted(measured, point, is_one).unwrap_or(0.0)).tainted(&record.taints)
        }
    }
}

#[cfg(test)]
mod tests;
