//! Stops a workload after a signal: ends its programs, and lets the workload remove its files.

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

use control::Failure;
use rustix::process::{Pid, Signal, kill_process_group};

use super::signals;
use crate::output::tell;

/// How often programs are told to end: a workload may be about to start another one.
const AGAIN: Duration = Duration::from_millis(250);
/// How long programs may take to end as after Ctrl-C; then they get SIGTERM. A database writes its data then.
const IN_ORDER: Duration = Duration::from_secs(3);
/// After this time they are killed.
const AT_ALL: Duration = Duration::from_secs(6);

/// Set when the workload has to stop.
pub struct WorkloadStopSignal(Arc<AtomicBool>);

/// The payload that unwinds a workload which is not waiting for a program.
struct Stopped;

impl WorkloadStopSignal {
    /// Starts to listen for signals. `stays` describes what a second signal leaves behind.
    pub fn at_signals(stays: String) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&stop);
        // A shell that has become this program by exec leaves its children to it.
        let others = children();
        let first = move || {
            set.store(true, Ordering::Relaxed);
            tell("stopping: what was made is removed; at a second signal it is left");
            thread::spawn(move || end_programs(&others));
        };
        signals::act(first, move || tell(format_args!("left as it is: {stays}")))?;
        Ok(Self(stop))
    }

    /// Checks for a stop. Call this now and then on the thread that has called [`WorkloadStopSignal::run`]. It does
    /// not return after a stop: it unwinds, and dropped values remove their files.
    pub fn look(&self) {
        if self.0.load(Ordering::Relaxed) {
            // Unwind without a panic, so that nothing is printed.
            resume_unwind(Box::new(Stopped));
        }
    }

    /// Runs some work.
    ///
    /// # Errors
    /// If it was stopped: then it has no result, whatever the ended programs have returned.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T, Failure> {
        let done = catch_unwind(AssertUnwindSafe(work));
        if self.0.load(Ordering::Relaxed) {
            return Err(Failure::new("stopped by a signal: there is no outcome"));
        }
        done.map_err(|panic: Box<dyn Any + Send>| resume_unwind(panic))
    }
}

/// Tells all programs that this process has started to end, repeatedly until it ends itself.
fn end_programs(others: &BTreeSet<i32>) {
    let begun = Instant::now();
    loop {
        let signal = match begun.elapsed() {
            passed if passed < IN_ORDER => Signal::INT,
            passed if passed < AT_ALL => Signal::TERM,
            _ => Signal::KILL,
        };
        // Each leads a process group. A program that has ended but was not waited for ignores the signal.
        for group in children().difference(others).filter_map(|child| Pid::from_raw(*child)) {
            let _ = kill_process_group(group, signal);
        }
        thread::sleep(AGAIN);
    }
}

/// Returns the children of all threads of this process (proc(5), /proc/PID/task/TID/children).
fn children() -> BTreeSet<i32> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return BTreeSet::new() };
    let of = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children"));
    let listed: Vec<String> = threads.flatten().filter_map(|it| of(it).ok()).collect();
    listed.iter().flat_map(|line| line.split_whitespace()).flat_map(str::parse).collect()
}
