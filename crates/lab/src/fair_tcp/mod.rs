//! The experiments of the Fair-TCP paper: connections of one iSCSI session that share their congestion window.

mod points;
mod report;

pub use points::points;
pub use report::report;
