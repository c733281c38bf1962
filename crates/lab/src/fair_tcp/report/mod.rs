//! The report of the Fair-TCP experiments, which compares the results with the numbers of the
//! paper.

mod applications;
mod commands;
mod windows;
mod claims;

use crate::{LabReport, MeasuredPoints, PointRecord, Section, paper::fair_tcp::MISPRINTS};

/// Returns the report of these records. `left_out` has the points without a record: name and
/// reason.
#[must_use]
pub fn report(records: &[PointRecord], left_out: &[(String, String)]) -> LabReport {
    let measured = MeasuredPoints::new(records).left_out(left_out.iter().cloned());
    let report = LabReport::new("Fair-TCP")
        .about(
            "What iSCSI gains if the TCP connections of a session share a congestion window: the tables and figures of \"Performance Evaluation of \
             Multiple TCP connections in iSCSI\" (Kumar, Narayan and Gopinath), measured again.",
        )
        .about(
            "As in the paper (section 3.2): four connections in a session, socket buffers of 512 KiB, an MTU of 1500 bytes, and 2.7 % of packets \
             lost at random. Packets are lost in the direction of the data: from the host to the node for writes, from the node for reads, and in \
             both directions under a file system. The link has no rate limit, so that the windows limit the throughput. The node's volume is in \
             memory.",
        )
        .about(
            "Columns: reno is the kernel's own congestion control; each is our program with a window for each connection, which differs from Reno \
             only in that windows also grow during recovery; ensemble is one window for all four connections. CUBIC, BBR and model, an ensemble \
             that shares one model of the path where BBR has one for each connection, are shown for comparison; the paper has none of the three. \
             The kernel's default is never used.",
        )
        .findings(claims::findings(&measured))
        .section(commands::writes(&measured))
        .section(commands::turnaround(&measured))
        .section(windows::table_2(&measured))
        .section(windows::figures_2_and_3(&measured))
        .section(windows::figure_6(&measured))
        .section(commands::reads(&measured))
        .section(applications::bonnie(&measured))
        .section(applications::postmark(&measured))
        .section(applications::build(&measured));
    let errors = Section::new("Errors in print");
    report.section(MISPRINTS.iter().fold(errors, |section, it| section.misprint(&it.text())))
}

/// Returns the delays of the paper: the row number in its tables, and the delay in milliseconds.
fn delays() -> impl Iterator<Item = (usize, u32)> {
    super::points::DELAYS.into_iter().enumerate()
}

fn row(delay: &(usize, u32)) -> String {
    format!("{} ms", delay.1)
}

fn point(experiment: &str, windows: &str, delay: u32) -> String {
    format!("{experiment}/{windows}/{delay}ms")
}

#[cfg(test)]
mod tests;
