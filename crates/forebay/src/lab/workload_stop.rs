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

/// Interval at which programs are signalled again: a workload may be about to start another one.
const AGAIN: Duration = Duration::from_millis(250);
/// Time that programs have to end after SIGINT, as after Ctrl-C. Then they get SIGTERM, after which a database still
/// writes its data.
const IN_ORDER: Duration = Duration::from_secs(3);
/// Time after the first signal at which programs get SIGKILL.
const AT_ALL: Duration = Duration::from_secs(6);

/// A flag that is set when the workload has to stop.
pub struct WorkloadStopSignal(Arc<AtomicBool>);

/// Panic payload that unwinds a workload which does not wait for a program.
struct Stopped;

impl WorkloadStopSignal {
    /// Starts to handle signals. `stays` describes the files that remain after a second signal.
    pub fn at_signals(stays: String) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&stop);
        // These children were started by a shell that then replaced itself by this program (exec). Do not end them:
        // they are not programs of the workload.
        let others = children();
        let first = move || {
            set.store(true, Ordering::Relaxed);
            tell("stopping: created files are removed; a second signal leaves them");
            thread::spawn(move || end_programs(&others));
        };
        signals::act(first, move || tell(format_args!("these remain: {stays}")))?;
        Ok(Self(stop))
    }

    /// Unwinds the workload if it has to stop. Call this now and then on the thread that called
    /// [`WorkloadStopSignal::run`]. Values that are dropped during the unwinding remove their files.
    pub fn look(&self) {
        if self.0.load(Ordering::Relaxed) {
            // Unwind without a panic, so that no message is printed.
            resume_unwind(Box::new(Stopped));
        }
    }

    /// Runs the work, and catches the unwinding of a stop.
    ///
    /// # Errors
    /// If the work was stopped. It has no result then, because its programs were ended.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T, Failure> {
        let done = catch_unwind(AssertUnwindSafe(work));
        if self.0.load(Ordering::Relaxed) {
            return Err(Failure::new("stopped by a signal: there is no result")
                .remedy("the same command starts it again"));
        }
        done.map_err(|panic: Box<dyn Any + Send>| resume_unwind(panic))
    }
}

/// Signals all programs that this process has started, again and again until this process ends.
fn end_programs(others: &BTreeSet<i32>) {
    let begun = Instant::now();
    loop {
        let signal = match begun.elapsed() {
            passed if passed < IN_ORDER => Signal::INT,
            passed if passed < AT_ALL => Signal::TERM,
            _ => Signal::KILL,
        };
        // Each program leads a process group. One that has ended but was not waited for ignores the signal.
        for group in children().difference(others).filter_map(|child| Pid::from_raw(*child)) {
            let _ = kill_process_group(group, signal);
        }
        thread::sleep(AGAIN);
    }
}

/// Returns the process ids of all children of this process (proc(5), /proc/PID/task/TID/children).
fn children() -> BTreeSet<i32> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return BTreeSet::new() };
    let of = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children"));
    let listed: Vec<String> = threads.flatten().filter_map(|it| of(it).ok()).collect();
    listed.iter().flat_map(|line| line.split_whitespace()).flat_map(str::parse).collect()
}
