//! The experiments by name.

use crate::{Point, Record, Report, Scale, fair_tcp, outsourcing, stics};

/// The tables and figures of one paper.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Experiment {
    /// Storage outsourcing (FAST 2002).
    Outsourcing,
    /// STICS: SCSI-to-IP cache storage.
    Stics,
    /// Fair-TCP.
    FairTcp,
}

impl Experiment {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Outsourcing => "outsourcing",
            Self::Stics => "stics",
            Self::FairTcp => "fair-tcp",
        }
    }

    /// What it measures, in the order in which it is run.
    #[must_use]
    pub fn points(self, scale: Scale) -> Vec<Point> {
        match self {
            Self::Outsourcing => outsourcing::points(scale),
            Self::Stics => stics::points(scale),
            Self::FairTcp => fair_tcp::points(scale),
        }
    }

    /// What was found, beside the paper; `left_out` has the names and reasons of points that have no record.
    #[must_use]
    pub fn report(self, records: &[Record], left_out: &[(String, String)]) -> Report {
        match self {
            Self::Outsourcing => outsourcing::report(records, left_out),
            Self::Stics => stics::report(records, left_out),
            Self::FairTcp => fair_tcp::report(records, left_out),
        }
    }
}
