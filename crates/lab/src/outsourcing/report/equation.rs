//! Report section that compares equation (1) and the masking rule with Table 1, as measured by us
//! and as printed in the paper.

use super::{delays, table_1_point, way};
use crate::{
    Cell, MeasuredPoints, ReportTable, Section,
    latency_model::{Fit, LatencyRule, ModelRequest, TOLERANCE, protocol_time},
    paper::outsourcing::{ACCESSES, ANSWER_MS, DISKS, DISKS_SHOWN, ISCSI_MS, RESPONSE_MS, WAYS},
    rounded,
};

/// The index of random writes in [`ACCESSES`].
const RANDOM_WRITE: usize = 1;

/// Returns true if a rule assumes that the disk's cache accepts this request while the disk
/// executes earlier ones: random writes, on the first disks of [`DISKS`]. The paper's text says
/// this about the single disks; its table shows it for the array, too.
fn is_behind(rule: LatencyRule, disk: usize, access: usize) -> bool {
    let disks = match rule {
        LatencyRule::Sum | LatencyRule::Masked => 2,
        LatencyRule::Answered => 3,
    };
    access == RANDOM_WRITE && disk < disks
}

/// The times of Table 1, measured by us or printed in the paper.
trait ResponseTimeSource {
    fn time(&self, disk: usize, access: usize, way: &str) -> Option<f64>;
    /// Returns the response time of disk number `disk` for a write that its cache accepts.
    fn answer(&self, disk: usize) -> Option<f64>;

    /// Returns a request over this delay as the input of the rule, and its measured time.
    fn request(
        &self,
        rule: LatencyRule,
        disk: usize,
        access: usize,
        (delay, way): (f64, &str),
    ) -> Option<(ModelRequest, f64)> {
        let request = ModelRequest {
            disk: self.time(disk, access, "local")?,
            answer: self.answer(disk).unwrap_or(0.0),
            round_trip: 2.0 * delay,
            is_behind: is_behind(rule, disk, access),
        };
        Some((request, self.time(disk, access, way)?))
    }

    /// Returns all requests over a distance whose time was measured.
    fn requests(&self, rule: LatencyRule) -> Vec<(ModelRequest, f64)> {
        let cells =
            (0..DISKS.len()).flat_map(|disk| (0..ACCESSES.len()).map(move |access| (disk, access)));
        cells
            .flat_map(|(disk, access)| {
                delays().filter_map(move |at| self.request(rule, disk, access, at))
            })
            .collect()
    }

    fn fit(&self, rule: LatencyRule, iscsi: f64) -> Fit {
        let requests = self.requests(rule);
        Fit::of(requests.iter().map(|(request, time)| (*time, rule.time(request, iscsi))))
    }
}

impl ResponseTimeSource for MeasuredPoints<'_> {
    fn time(&self, disk: usize, access: usize, way: &str) -> Option<f64> {
        self.value(&table_1_point(DISKS[disk], ACCESSES[access], way), "", "ms")
    }

    fn answer(&self, disk: usize) -> Option<f64> {
        let hit = |access| self.value(&table_1_point(DISKS[disk], access, "local"), "", "ms");
        hit("identical-write").or_else(|| hit("sequential-write"))
    }
}

/// The response times that Table 1 of the paper prints.
struct PaperResponseTimes;

impl ResponseTimeSource for PaperResponseTimes {
    fn time(&self, disk: usize, access: usize, way: &str) -> Option<f64> {
        let row = WAYS.iter().position(|known| *known == way)?;
        Some(RESPONSE_MS[row][disk][access])
    }

    fn answer(&self, disk: usize) -> Option<f64> {
        Some(ANSWER_MS[disk])
    }
}

/// Returns the time that our protocol takes (`T_iSCSI`), in ms.
pub fn protocol(measured: &MeasuredPoints<'_>) -> Option<f64> {
    protocol_time(&measured.requests(LatencyRule::Answered))
}

/// Returns the time in ms that [`LatencyRule::Answered`] predicts for one of our requests, or `None` if the disk's time
/// without a network was not measured.
pub fn foretold(
    measured: &MeasuredPoints<'_>,
    disk: usize,
    access: usize,
    at: &str,
    delay: f64,
    iscsi: f64,
) -> Option<f64> {
    let (request, _) = measured.request(LatencyRule::Answered, disk, access, (delay, at))?;
    Some(LatencyRule::Answered.time(&request, iscsi))
}

pub fn section(measured: &MeasuredPoints<'_>) -> Section {
    let iscsi = protocol(measured);
    let mut section = Section::new("Equation (1) and masking")
        .text(
            "The paper predicts the time of a request as T_disk + 2 × T_netDelay + T_iSCSI. A write that a disk's cache accepts while the disk \
             still works on the previous one costs only the longer of disk time and round trip (section 4.1). Beyond the paper, the last rule \
             counts the answer of the disk's cache as part of the round trip: max(T_disk, 2 × T_netDelay + T_ack) + T_iSCSI. It also holds for the \
             array's random writes, of which the paper's text says that the delay shows.",
        )
        .text(&match iscsi {
            Some(iscsi) => format!(
                "T_disk and T_ack are our own local times, and T_iSCSI is the median of what remains after disk and round trip in all requests that \
                 nothing masks: {} ms here, {ISCSI_MS} ms in the paper (the sum of its Figure 2). The paper's column compares its rules with its \
                 own table.",
                rounded(iscsi)
            ),
            None => "Our own disk and protocol times were not measured: there is only the paper's column, which compares its rules with its own \
                     table."
                .to_owned(),
        })
        .table(fits(measured, iscsi));
    if let Some(iscsi) = iscsi {
        section = section.table(residuals(measured, iscsi));
        section.deviations.extend(far_from_rule(measured, iscsi));
    }
    section
}

fn fits(measured: &MeasuredPoints<'_>, iscsi: Option<f64>) -> ReportTable {
    let table = ReportTable::new("How well each rule foretells Table 1", "rule")
        .column("mean |residual|", "ms")
        .column("within 10 %", "share of requests")
        .column(&format!("within 10 % or {TOLERANCE} ms"), "share of requests")
        .column("farthest", "ms")
        .column("requests", "");
    table.rows(
        LatencyRule::ALL,
        |rule| rule.name().to_owned(),
        |rule| {
            let ours = iscsi.map(|iscsi| measured.fit(*rule, iscsi)).filter(|fit| fit.count > 0);
            let paper = PaperResponseTimes.fit(*rule, ISCSI_MS);
            let cell = |of: fn(&Fit) -> f64| {
                let ours = ours
                    .as_ref()
                    .map_or_else(|| Cell::words("not measured"), |fit| Cell::ours(of(fit)));
                ours.beside(of(&paper))
            };
            [
                cell(|fit| fit.mean_residual),
                cell(|fit| fit.within_tenth as f64 / fit.count as f64),
                cell(|fit| fit.share().unwrap_or(0.0)),
                cell(|fit| fit.worst),
                cell(|fit| fit.count as f64),
            ]
        },
    )
}

/// Returns a table with the measured times minus the predictions of [`LatencyRule::Answered`].
fn residuals(measured: &MeasuredPoints<'_>, iscsi: f64) -> ReportTable {
    let title = format!("Measured less foretold, {}", LatencyRule::Answered.name());
    let mut table = ReportTable::new(&title, "one-way delay");
    for disk in DISKS_SHOWN {
        for access in ACCESSES {
            table = table.column_of(disk, &access.replace('-', " "), "ms");
        }
    }
    table.rows(
        delays(),
        |(_, at)| way(at),
        |at| {
            let mut cells = vec![];
            for (disk, disk_name) in DISKS.iter().enumerate() {
                for (access, access_name) in ACCESSES.iter().enumerate() {
                    let point = table_1_point(disk_name, access_name, at.1);
                    cells.push(match measured.request(LatencyRule::Answered, disk, access, *at) {
                        Some((request, time)) => {
                            let taints = measured.cell(&point, "", "ms").taints;
                            Cell::ours(time - LatencyRule::Answered.time(&request, iscsi))
                                .tainted(&taints)
                        }
                        None => Cell::words(&measured.why_not(&point)),
                    });
                }
            }
            cells
        },
    )
}

/// Returns a sentence for the report (a deviation) for each disk and access that [`LatencyRule::Answered`] does not
/// predict well, at the delay with the largest difference.
fn far_from_rule(measured: &MeasuredPoints<'_>, iscsi: f64) -> Vec<String> {
    let mut deviations = vec![];
    for (disk, shown) in DISKS_SHOWN.iter().enumerate() {
        for (access, access_name) in ACCESSES.iter().enumerate() {
            let told = |at: (f64, &str)| {
                let (request, time) = measured.request(LatencyRule::Answered, disk, access, at)?;
                Some((at.0, time, LatencyRule::Answered.time(&request, iscsi)))
            };
            let missed = delays()
                .filter_map(told)
                .filter(|(_, time, foretold)| Fit::of([(*time, *foretold)]).within == 0)
                .max_by(|a, b| (a.1 - a.2).abs().total_cmp(&(b.1 - b.2).abs()));
            if let Some((delay, time, foretold)) = missed {
                deviations.push(format!(
                    "{shown}, {}: farthest from the rule at {delay} ms, {} ms instead of {} ms.",
                    access_name.replace('-', " "),
                    rounded(time),
                    rounded(foretold),
                ));
            }
        }
    }
    deviations
}
