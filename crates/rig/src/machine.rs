//! The machine on which a benchmark runs: assigns CPUs to processes, and measures the CPU time that
//! they use.

use std::fs;
use std::num::NonZeroU64;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use rustix::thread::CpuSet;

pub const SERVER_CPU: usize = 0;

pub const CLIENT_CPU: usize = 1;

/// Fails unless the user is root. The error names `command`, which makes network namespaces.
pub fn require_root(command: &str) -> Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    ensure!(is_root, "{command} makes network namespaces: run it as root");
    Ok(())
}

/// Makes a program run on one CPU only and with raised priority (see [`prefer`]).
pub fn pinned(command: &mut Command, cpu: usize) -> &mut Command {
    // SAFETY: between fork and exec only system calls are made that are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            confine(cpu)?;
            prefer();
            Ok(())
        })
    }
}

/// Makes the calling thread, and the threads that it starts later, run on one CPU only.
pub fn confine(cpu: usize) -> std::io::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &cpus)?)
}

/// True if [`prefer`] uses real-time scheduling. Set this once, before any program is started.
static REALTIME: AtomicBool = AtomicBool::new(false);

/// Makes all later calls of [`prefer`] ask for real-time scheduling, so that measurements are possible on a machine
/// that is busy with other work. Real-time scheduling is not the default, since it also changes how programs with
/// several threads behave.
pub fn realtime() {
    REALTIME.store(true, Ordering::Relaxed);
}

/// Raises the priority of the calling thread, and of the threads and programs that it will start. If the process lacks
/// the privilege, the priority does not change, and other programs disturb measurements more.
pub fn prefer() {
    if REALTIME.load(Ordering::Relaxed) {
        let lowest = libc::sched_param { sched_priority: 1 };
        // SAFETY: the call reads one structure, which outlives it; 0 is the calling thread.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &lowest) };
    } else {
        let _ = rustix::process::setpriority_process(None, -10);
    }
}

/// Runs `work` with a timer slack of 1 ns, so that the timers of this thread end when they are due and not up to 50 us
/// later. Do not start programs in `work`: they would inherit the slack.
pub fn wake_on_time<T>(work: impl FnOnce() -> T) -> T {
    let before = rustix::thread::current_timer_slack().ok().and_then(NonZeroU64::new);
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let done = work();
    let _ = rustix::thread::set_current_timer_slack(before);
    done
}

/// Raises the priority of a program (see [`prefer`]), on any CPU.
pub fn preferred(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec only system calls are made that are async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            prefer();
            Ok(())
        })
    }
}

/// CPU time and context switches of a process so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BenchProcessUsage {
    /// CPU time of all living threads, nanoseconds.
    pub cpu_ns: u64,
    /// Context switches of all living threads, voluntary or not.
    pub switches: u64,
    /// CPU time in user space of all living threads, in hundredths of a second. The kernel counts it by samples at its
    /// timer ticks: for a sufficient accuracy, use sums over ten seconds or more.
    pub user_ticks: u64,
    /// CPU time in the kernel, counted like `user_ticks`.
    pub kernel_ticks: u64,
}

impl BenchProcessUsage {
    /// Returns the sum of the CPU times and context switches of these processes.
    pub fn of_all(processes: &[u32]) -> Result<BenchProcessUsage> {
        processes.iter().try_fold(BenchProcessUsage::default(), |sum, process| {
            let usage = BenchProcessUsage::of(*process)?;
            Ok(BenchProcessUsage {
                cpu_ns: sum.cpu_ns + usage.cpu_ns,
                switches: sum.switches + usage.switches,
                user_ticks: sum.user_ticks + usage.user_ticks,
                kernel_ticks: sum.kernel_ticks + usage.kernel_ticks,
            })
        })
    }

    /// Returns the sum over the living threads of a process.
    pub fn of(process: u32) -> Result<BenchProcessUsage> {
        let mut usage = BenchProcessUsage::default();
        for task in fs::read_dir(format!("/proc/{process}/task")).context("the server has ended")? {
            let task = task?.path();
            // Skip a thread that has ended since the list was read; its CPU time is missing in the sum.
            let Ok(schedule) = fs::read_to_string(task.join("schedstat")) else { continue };
            let Ok(status) = fs::read_to_string(task.join("status")) else { continue };
            let Ok(stat) = fs::read_to_string(task.join("stat")) else { continue };
            let (user, kernel) = ticks(&stat).context("stat")?;
            usage.cpu_ns += on_cpu(&schedule).context("schedstat")?;
            usage.switches += switches(&status);
            usage.user_ticks += user;
            usage.kernel_ticks += kernel;
        }
        Ok(usage)
    }

    pub fn since(self, earlier: BenchProcessUsage) -> BenchProcessUsage {
        BenchProcessUsage {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            switches: self.switches.saturating_sub(earlier.switches),
            user_ticks: self.user_ticks.saturating_sub(earlier.user_ticks),
            kernel_ticks: self.kernel_ticks.saturating_sub(earlier.kernel_ticks),
        }
    }
}

/// CPU time of all programs on this machine, and in it the CPU time of this process and of the programs that it
/// started. The rest is CPU time of other programs, which disturbs a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Others {
    all_ns: u64,
    ours_ns: u64,
}

impl Others {
    /// Reads the CPU times since the start of the machine and of the processes.
    pub fn now() -> Result<Others> {
        let own = std::process::id();
        let mut ours_ns = BenchProcessUsage::of(own)?.cpu_ns;
        for child in children(own)? {
            // The child may have ended since the listing.
            ours_ns += BenchProcessUsage::of(child).map_or(0, |usage| usage.cpu_ns);
        }
        let all = fs::read_to_string("/proc/stat")?;
        let all_ns = programs_ticks(&all).context("/proc/stat")? * NS_PER_TICK;
        Ok(Others { all_ns, ours_ns })
    }

    /// Returns the number of CPUs that other programs kept busy since `earlier`, which was read
    /// `time` ago.
    pub fn cpus_since(self, earlier: Others, time: std::time::Duration) -> f64 {
        let all = self.all_ns.saturating_sub(earlier.all_ns);
        let ours = self.ours_ns.saturating_sub(earlier.ours_ns);
        all.saturating_sub(ours) as f64 / time.as_nanos() as f64
    }
}

/// /proc/stat counts hundredths of a second (USER_HZ, fixed for programs).
const NS_PER_TICK: u64 = 10_000_000;

/// Returns the time, in hundredths of a second, that all CPUs spent in programs, and in the kernel on their behalf: the
/// fields user, nice and system.
fn programs_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    (0..3).map(|_| fields.next()?.parse::<u64>().ok()).sum()
}

fn children(process: u32) -> Result<Vec<u32>> {
    let mut found = vec![];
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let list = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        found.extend(list.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
    }
    Ok(found)
}

fn on_cpu(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

/// Returns user and kernel time from the `stat` file of a thread (proc(5), fields 14 and 15). The
/// second field is the name of the program in parentheses, which may contain spaces.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn switches(status: &str) -> u64 {
    let kinds = ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"];
    kinds.iter().filter_map(|kind| field(status, kind)).sum()
}

/// Returns the number in the line that starts with `name`.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_thread_are_read() {
        let status =
            "VmRSS:\t 12 kB\nvoluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t4\n";
        assert_eq!((switches(status), field(status, "VmRSS:")), (7, Some(12)));
        assert_eq!(on_cpu("123 45 6\n"), Some(123));
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 99 0 0 0 31 12 0 0 20 0 1 0 5 6 7";
        assert_eq!(ticks(stat), Some((31, 12)));
    }

    #[test]
    fn time_of_programs_is_read() {
        assert_eq!(programs_ticks("cpu  10 2 30 400 5 6 7\ncpu0 1 2 3\n"), Some(42));
        assert_eq!(programs_ticks("intr 1"), None);
    }

    #[test]
    fn our_own_work_is_not_counted_as_that_of_other_processes() {
        let time = std::time::Duration::from_secs(1);
        let at = |all_ns, ours_ns| Others { all_ns, ours_ns };
        assert_eq!(at(1_500_000_000, 700_000_000).cpus_since(at(0, 200_000_000), time), 1.0);
        assert_eq!(at(1, 5).cpus_since(at(0, 0), time), 0.0);
        assert!(Others::now().unwrap().ours_ns > 0);
    }

    #[test]
    fn work_shows_in_the_usage() {
        let own = std::process::id();
        let before = BenchProcessUsage::of(own).unwrap();
        let mut state = 1_u64;
        while BenchProcessUsage::of(own).unwrap().since(before).cpu_ns < 1_000_000 {
            state = std::hint::black_box(state.wrapping_mul(3));
        }
    }
}
