//! Workloads: programs that use storage as applications do. Each runs on any mounted folder, block device or volume,
//! states what it needs, verifies what it reads, and returns its results.
//!
//! Most are real programs from Debian's archive. A [`WorkloadTask`] is one of them with its settings, which are its
//! command line and part of the report.

mod tool;
mod error;
mod concurrent_runs;
mod location;
mod remote_unit;
mod workload_result;
mod run_program;
mod service;
mod unprivileged_user;
mod workload;
mod owned_folder;
mod witness_files;
mod uncached_sums;
mod micro;
mod timed_run;
mod build;
mod sdet;
mod surge;
mod tpcc;
mod postmark;
mod bonnie;
mod fio;
mod commands;
mod trace;
mod workload_task;
#[cfg(test)]
mod test_folders;

pub use bonnie::Bonnie;
pub use build::{Build, Fetched, fetch};
pub use commands::CommandsWorkload;
pub use error::Error;
pub use fio::{Fio, FioShape};
pub use location::WorkloadLocation;
pub use micro::{Micro, MicroAccess, MicroAccessPattern};
pub use postmark::{Postmark, PostmarkRun};
pub use sdet::Sdet;
pub use surge::Surge;
pub use tool::{Missing, Tool};
pub use tpcc::Tpcc;
pub use trace::{TraceEvent, TraceEvents, TraceQueue, TraceWorkload};
pub use workload::{Workload, WorkloadRun};
pub use workload_result::{WorkloadFigure, WorkloadResult, WorkloadSeries};
pub use workload_task::WorkloadTask;
