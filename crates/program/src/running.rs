//! Starts a program, sends signals to it, and waits until it ends.

use std::{
    io,
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{
        Pid, PidfdFlags, Signal, getppid, kill_process, kill_process_group, pidfd_open,
        set_parent_process_death_signal,
    },
};

use crate::reset_signals;

/// Time limit of the wait for the end of a killed program. A program ends at once, unless it waits for storage that
/// does not answer. The limit is short, since the caller may be the one that has to remove this storage, and the
/// program ends only then.
const GONE: Duration = Duration::from_secs(5);
/// Interval at which a wait checks the `stop` flag. A user does not notice a delay of this length.
const LOOK: Duration = Duration::from_millis(100);

/// A program that leads a process group. If it has not ended when this is dropped, it is killed with its
/// group.
#[derive(Debug)]
pub struct RunningProgram {
    child: Child,
}

impl RunningProgram {
    /// Starts the program with default signal dispositions (see [`reset_signals`]).
    ///
    /// Call this from a thread that lives as long as the program is needed: when that thread ends, the
    /// program gets the signal `when_we_die` (prctl(2), PR_SET_PDEATHSIG). Therefore the program does not
    /// survive if this process is killed. Programs that it has started itself may survive.
    ///
    /// # Errors
    /// The error of the system.
    pub fn start(command: &mut Command, when_we_die: Signal) -> io::Result<Self> {
        let starter = std::process::id();
        let tie = move || {
            set_parent_process_death_signal(Some(when_we_die))?;
            // If the thread that starts this program has already ended, the kernel sends no signal. Therefore check
            // that the starting process is still the parent.
            let parent = getppid().map(|parent| parent.as_raw_nonzero().get());
            if parent.is_some_and(|parent| parent.cast_unsigned() == starter) {
                return Ok(());
            }
            Err(io::Error::from(rustix::io::Errno::SRCH))
        };
        reset_signals(command);
        // SAFETY: between fork and exec only these two system calls are made; nothing is allocated or locked.
        unsafe { command.process_group(0).pre_exec(tie) };
        Ok(Self { child: command.spawn()? })
    }

    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the standard input if the command has a pipe there. Later calls return `None`.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Returns the reading end of the program's standard output if the command has a pipe there. Later calls
    /// return `None`.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Returns the reading end of the program's standard error if the command has a pipe there. Later calls return
    /// `None`.
    pub fn stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Waits for the end of the program, at most for `within`. Returns `None` if the program is still running.
    ///
    /// # Errors
    /// The error of the system.
    pub fn ended(&mut self, within: Duration) -> io::Result<Option<ExitStatus>> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(Some(status));
        }
        let handle = pidfd_open(self.pid(), PidfdFlags::empty())?;
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).expect("a time limit fits into a timespec");
            match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&left)) {
                Ok(_) => return self.child.try_wait(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits for the end of the program, at most for `within` and only until `stop` is set. Returns `None` if the
    /// program is still running.
    ///
    /// # Errors
    /// The error of the system.
    pub fn ended_unless(
        &mut self,
        stop: &AtomicBool,
        within: Duration,
    ) -> io::Result<Option<ExitStatus>> {
        let deadline = Instant::now() + within;
        loop {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let ended = self.ended(left.min(LOOK))?;
            if ended.is_some() || left.is_zero() {
                return Ok(ended);
            }
        }
    }

    /// Sends a signal to the program and all programs of its group. If it has not ended within this time,
    /// kills them.
    pub fn end(&mut self, signal: Signal, within: Duration) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process_group(self.pid(), signal);
            let _ = self.ended(within);
            self.kill();
        }
    }

    /// Sends a signal to the program only. Does nothing if it has ended.
    ///
    /// # Errors
    /// The error of the system.
    pub fn signal(&mut self, signal: Signal) -> io::Result<()> {
        // Check first that the program has not ended: once its end has been waited for, another process may have its
        // id.
        if self.child.try_wait()?.is_none() {
            kill_process(self.pid(), signal)?;
        }
        Ok(())
    }

    /// Kills the program with its group, and waits at most 5 s for its end.
    pub fn kill(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process_group(self.pid(), Signal::KILL);
            let _ = self.ended(GONE);
        }
    }

    /// Returns the process id, which is also the number of the group.
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Describes in words how a program has ended, for messages.
#[must_use]
pub fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{WaitOptions, test_kill_process, waitpid};

    use super::*;
    use crate::Said;

    const LONG: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> (RunningProgram, Said) {
        let said = Said::new().unwrap();
        let mut command = Command::new("sh");
        said.take_all_of(command.args(["-c", script])).unwrap();
        (RunningProgram::start(&mut command, Signal::TERM).unwrap(), said)
    }

    /// Waits for the first line of the output.
    fn line(said: &Said) -> String {
        let begun = Instant::now();
        loop {
            if let Some((line, _)) = said.text().unwrap().split_once('\n') {
                return line.to_owned();
            }
            assert!(begun.elapsed() < LONG, "it says nothing");
        }
    }

    #[test]
    fn the_way_in_which_a_program_ended_is_reported() {
        let ended = |script: &str| ending(shell(script).0.ended(LONG).unwrap().unwrap());
        assert_eq!(ended("exit 3"), "ended with 3");
        assert_eq!(ended("kill -9 $$"), "was ended by signal 9");
    }

    #[test]
    fn an_ended_program_keeps_its_exit_status_and_gets_no_signal() {
        let (mut running, _said) = shell("exit 3");
        assert_eq!(running.ended(LONG).unwrap().unwrap().code(), Some(3));
        assert_eq!(running.ended(Duration::ZERO).unwrap().unwrap().code(), Some(3));
        running.signal(Signal::TERM).unwrap();
        running.kill();
    }

    #[test]
    fn a_wait_for_the_end_has_a_limit() {
        let (mut running, _said) = shell("exec sleep 1000");
        assert!(running.ended(Duration::from_millis(20)).unwrap().is_none());
        running.signal(Signal::TERM).unwrap();
        assert_eq!(ending(running.ended(LONG).unwrap().unwrap()), "was ended by signal 15");
    }

    #[test]
    fn a_requested_stop_ends_the_wait_for_a_program() {
        let (mut running, _said) = shell("exec sleep 1000");
        let (stop, begun) = (AtomicBool::new(false), Instant::now());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| running.ended_unless(&stop, LONG * 2));
            stop.store(true, Ordering::Relaxed);
            assert!(waits.join().unwrap().unwrap().is_none());
        });
        assert!(begun.elapsed() < LONG);
        running.end(Signal::INT, LONG);
        assert_eq!(ending(running.ended(LONG).unwrap().unwrap()), "was ended by signal 2");
    }

    #[test]
    fn a_program_has_default_signals_although_we_ignore_them() {
        // Run the test in a process of its own: dispositions belong to the whole process.
        let again = r#"trap "" HUP INT QUIT TERM; exec "$0" "$@""#;
        let mut command = Command::new("sh");
        command.args(["-c", again]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", "running::tests::a_requested_stop_ends_the_wait_for_a_program"]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    fn a_program_that_ignores_its_signal_is_killed() {
        let (mut running, said) = shell("trap '' INT; echo ready; while :; do sleep 1000; done");
        line(&said);
        running.end(Signal::INT, Duration::from_millis(20));
        assert_eq!(ending(running.ended(LONG).unwrap().unwrap()), "was ended by signal 9");
    }

    #[test]
    fn a_dropped_program_is_killed_with_its_process_group() {
        let (running, said) = shell("sleep 1000 & echo $!; wait");
        let other: i32 = line(&said).parse().unwrap();
        let pid = running.pid();
        drop(running);
        assert!(test_kill_process(pid).is_err());
        // The process is now a child of the system's reaper, which may take a moment to collect it.
        let state = || std::fs::read_to_string(format!("/proc/{other}/stat"));
        let begun = Instant::now();
        while state().is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(begun.elapsed() < LONG, "it still runs");
        }
    }

    #[test]
    fn a_program_ends_with_the_thread_that_started_it() {
        let starting = std::thread::spawn(|| {
            let (running, said) = shell("echo ready; exec sleep 1000");
            line(&said);
            let pid = running.pid();
            // Do not drop `running`, since the drop would kill the program. A process that is killed drops nothing
            // either.
            std::mem::forget(running);
            pid
        });
        let pid = starting.join().unwrap();
        let (_, ended) = waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(ended.terminating_signal(), Some(Signal::TERM.as_raw()));
    }
}
