//! What users do with storage, as programs that can be run on any mounted folder, block device or
//! volume: each says what it needs, checks what it reads, and answers with figures.
//!
//! Most are the real programs from Debian's archive. A [`Task`] is one of them with its settings; the
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
pub use commands::Commands;
pub use error::Error;
pub use fio::{Fio, Shape};
pub use micro::{Access, Micro, Pattern};
pub use outcome::{Figure, Outcome, Series};
pub use place::Place;
pub use postmark::Postmark;
pub use sdet::Sdet;
pub use surge::Surge;
pub use task::Task;
pub use tool::{Missing, Tool};
pub use tpcc::Tpcc;
pub use trace::Trace;
pub use workload::{Run, Workload};
