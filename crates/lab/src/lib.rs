//! The laboratory: nodes, gateways and hosts with distance between them on one machine, workloads run
//! there, and a report that sets what a paper says beside what was found.

mod record;
mod report;

pub use record::Record;
pub use report::{Axis, Bar, Cell, Curve, Drawn, Part, Plot, Report, Section, Source, Table};
