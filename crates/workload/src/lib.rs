//! What users do with storage, as programs that can be run on any mounted folder, block device or
//! volume: each says what it needs, checks what it reads, and answers with figures.
//!
//! Most are the real programs from Debian's archive. A [`WorkloadTask`] is one of them with its settings; the
//! settings are its command line, and what a report says of the run.

mod tool;
mod error;
mod at_once;
mod place;
mod remote;
mod outcome;
mod child;
mod service;
mod user;
mod workload;
mod own;
mod witness;
mod cold;
mod micro;
mod watch;
mod build;
mod sdet;
mod surge;
mod tpcc;
mod postmark;
mod bonnie;
mod fio;
mod commands;
mod trace;
mod task;
#[cfg(test)]
mod trial;

pub use bonnie::Bonnie;
pub use build::{Build, Fetched, fetch};
pub use commands::CommandsWorkload;
pub use error::Error;
pub use fio::{Fio, FioShape};
pub use micro::{Micro, MicroAccess, MicroAccessPattern};
pub use outcome::{WorkloadFigure, WorkloadResult, WorkloadSeries};
pub use place::WorkloadLocation;
pub use postmark::{Postmark, PostmarkRun};
pub use sdet::Sdet;
pub use surge::Surge;
pub use task::WorkloadTask;
pub use tool::{Missing, Tool};
pub use tpcc::Tpcc;
pub use trace::{TraceEvent, TraceEvents, TraceQueue, TraceWorkload};
pub use workload::{Workload, WorkloadRun};
