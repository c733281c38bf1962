//! The experiments that the laboratory can run, one for each paper.

use crate::{
    ExperimentPoint, ExperimentScale, LabReport, PointRecord, doubts, fair_tcp, outsourcing, stics,
};

/// The tables and figures of one paper, which are measured again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Experiment {
    /// The paper on storage outsourcing (FAST 2002).
    Outsourcing,
    /// The paper on STICS (SCSI-to-IP cache storage).
    Stics,
    FairTcp,
}

impl Experiment {
    /// Returns the name of the experiment on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Outsourcing => "outsourcing",
            Self::Stics => "stics",
            Self::FairTcp => "fair-tcp",
        }
    }

    /// Returns the points to measure in this experiment, in the order of their measurement.
    #[must_use]
    pub fn points(self, scale: ExperimentScale) -> Vec<ExperimentPoint> {
        match self {
            Self::Outsourcing => outsourcing::points(scale),
            Self::Stics => stics::points(scale),
            Self::FairTcp => fair_tcp::points(scale),
        }
    }

    /// Returns the report, which compares the records with the paper's numbers. `left_out` has the
    /// names of points without a record and the reasons.
    #[must_use]
    pub fn report(self, records: &[PointRecord], left_out: &[(String, String)]) -> LabReport {
        let report = match self {
            Self::Outsourcing => outsourcing::report(records, left_out),
            Self::Stics => stics::report(records, left_out),
            Self::FairTcp => fair_tcp::report(records, left_out),
        };
        LabReport { doubts: doubts(records, left_out), ..report }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{SectionPart, engine::estimate};

    const ALL: [Experiment; 3] = [Experiment::Outsourcing, Experiment::Stics, Experiment::FairTcp];

    #[test]
    fn every_point_has_a_unique_name_and_consistent_settings() {
        for (experiment, scale) in
            ALL.iter().flat_map(|it| [(it, ExperimentScale::Quick), (it, ExperimentScale::Full)])
        {
            let points = experiment.points(scale);
            let names: BTreeSet<&str> = points.iter().map(|point| point.name.as_str()).collect();
            assert_eq!(names.len(), points.len());
            for point in &points {
                crate::stage::check(&point.site)
                    .unwrap_or_else(|it| panic!("{}: {it}", point.name));
                let wanted = point.task.workload().space();
                assert!(wanted < point.site.bytes, "{} takes {wanted}", point.name);
            }
        }
    }

    #[test]
    fn every_axis_has_a_quantity_and_a_unit() {
        for plot in ALL.iter().flat_map(|it| it.report(&[], &[]).sections).flat_map(|it| it.parts) {
            let SectionPart::Plot(plot) = plot else { continue };
            for axis in [&plot.x, &plot.y] {
                let is_number =
                    ["number of ", "ratio of "].iter().any(|it| axis.name.starts_with(it));
                let has_unit = axis.name.contains(", ") || !axis.labels.is_empty();
                assert!(is_number || has_unit, "{}: {}", plot.title, axis.name);
            }
        }
    }

    #[test]
    fn quick_is_quick_and_full_ends() {
        for experiment in ALL {
            let [quick, full] = [ExperimentScale::Quick, ExperimentScale::Full]
                .map(|scale| estimate(&experiment.points(scale)));
            assert!(quick < 600.0, "{}: {quick} s", experiment.name());
            assert!(full < 3.0 * 3600.0 && full > quick, "{}: {full} s", experiment.name());
        }
    }
}
