//! The experiments of "Obtaining High Performance for Storage Outsourcing" (FAST 2002).

mod points;
mod report;

pub use points::points;
pub use report::report;
