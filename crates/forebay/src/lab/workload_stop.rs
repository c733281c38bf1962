//! A workload that is stopped by a signal: its programs are ended, and what it made is removed.

use std::{
    any::Any,
    collections::BTreeSet,
    fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};

use super::signals;
use crate::{failure::Failure, output::tell};

/// How often programs are told to end: a workload that was about to start one still does.
const AGAIN: Duration = Duration::from_millis(250);
/// For programs to end as at Ctrl-C, after which they are told otherwise; a database writes out what it has.
const IN_ORDER: Duration = Duration::from_secs(3);
/// After this they are killed.
const AT_ALL: Duration = Duration::from_secs(6);

/// Whether it is to stop.
pub struct WorkloadStopSignal(Arc<AtomicBool>);

/// What unwinds a workload of ours that is not in a program.
struct Stopped;

impl WorkloadStopSignal {
    /// Listens to signals from now on; `stays` says what a second one leaves behind.
    pub fn at_signals(stays: String) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&stop);
        // A shell that became this program by exec has left it its jobs.
        let others = children();
        let first = move || {
            set.store(true, Ordering::Relaxed);
            tell("stopping: what was made is removed; at a second signal it is left");
            thread::spawn(move || end_programs(&others));
        };
        signals::act(first, move || tell(format_args!("left as it is: {stays}")))?;
        Ok(Self(stop))
    }

    /// To be called now and then by the thread that called [`WorkloadStopSignal::run`], when it is in `work`. Does not return
    /// when it is to stop: what has to be removed is removed by what is dropped.
    pub fn look(&self) {
        if self.0.load(Ordering::Relaxed) {
            // No panic: nothing is printed.
            resume_unwind(Box::new(Stopped));
        }
    }

    /// What comes of some work.
    ///
    /// # Errors
    /// If it was stopped: then it has no outcome, whatever it says of the programs that were ended.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T, Failure> {
        let done = catch_unwind(AssertUnwindSafe(work));
        if self.0.load(Ordering::Relaxed) {
            return Err(Failure::new("stopped by a signal: there is no outcome"));
        }
        done.map_err(|panic: Box<dyn Any + Send>| resume_unwind(panic))
    }
}

/// Tells all programs that this process has started to end, until it ends itself.
fn end_programs(others: &BTreeSet<i32>) {
    let begun = Instant::now();
    loop {
        let signal = match begun.elapsed() {
            passed if passed < IN_ORDER => Signal::INT,
            passed if passed < AT_ALL => Signal::TERM,
            _ => Signal::KILL,
        };
        // Each is a group of its own; one that has ended and is not yet waited for hears nothing.
        for group in children().difference(others).filter_map(|child| Pid::from_raw(*child)) {
            let _ = kill_process_group(group, signal);
        }
        thread::sleep(AGAIN);
    }
}

/// The children of all threads of this process (proc(5), /proc/PID/task/TID/children).
fn children() -> BTreeSet<i32> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return BTreeSet::new() };
    let of = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children"));
    let listed: Vec<String> = threads.flatten().filter_map(|it| of(it).ok()).collect();
    listed.iter().flat_map(|line| line.split_whitespace()).flat_map(str::parse).collect()
}
