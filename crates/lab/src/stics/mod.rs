//! The experiments of the STICS paper, "SCSI-to-IP cache storage".

mod points;
mod report;

pub use points::points;
pub use report::report;
