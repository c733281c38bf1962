//! Runs a program until it ends, and collects its output.

use std::{
    io,
    path::PathBuf,
    process::{Command, ExitStatus},
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{RunningProgram, Said, WaitLimit};

/// The exit status and the output of a program that has ended.
#[derive(Clone, Debug)]
pub struct ProgramResult {
    /// The exit status; `None` if the program did not end in time and was killed.
    pub status: Option<ExitStatus>,
    /// All output of the program to standard output and standard error, in the order of its writes.
    pub output: String,
    /// Time between the start and the end of the program.
    pub took: Duration,
}

impl ProgramResult {
    /// Returns true if the program ended in time with exit code 0.
    #[must_use]
    pub fn success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Returns the exit code; `None` if a signal or the time limit ended the program.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }

    /// Describes for a report how the program ended.
    #[must_use]
    pub fn ending(&self) -> String {
        match self.status {
            None => "did not end within its time limit".to_owned(),
            Some(status) => status.to_string(),
        }
    }

    /// Returns the last lines of the output.
    #[must_use]
    pub fn tail(&self, lines: usize) -> String {
        let all: Vec<&str> = self.output.trim_end().lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

/// Starts a program that is killed when the calling thread ends.
///
/// # Errors
/// The system's error, with the name of the program.
pub fn start(command: &mut Command) -> io::Result<RunningProgram> {
    RunningProgram::start(command, Signal::KILL).map_err(|error| {
        let program = command.get_program().display();
        io::Error::new(error.kind(), format!("cannot start {program}: {error}"))
    })
}

/// Runs a program to its end, without standard input. The program is killed after `limit`.
///
/// # Errors
/// The system's error, with the name of the program if it cannot be started. An unsuccessful end is no error.
pub fn run(command: &mut Command, limit: Duration) -> io::Result<ProgramResult> {
    let said = Said::new()?;
    said.take_all_of(command)?;
    let begun = Instant::now();
    let running = start(command)?;
    finish(running, &said, begun, WaitLimit::of(limit))
}

/// Runs a program to its end like [`run`], and kills it also as soon as `stop` is set. When the calling thread
/// ends, the program gets SIGTERM.
///
/// # Errors
/// The system's error. An unsuccessful end is no error.
pub fn run_unless(
    command: &mut Command,
    limit: Duration,
    stop: &AtomicBool,
) -> io::Result<ProgramResult> {
    let said = Said::new()?;
    said.take_all_of(command)?;
    let begun = Instant::now();
    let running = RunningProgram::start(command, Signal::TERM)?;
    finish(running, &said, begun, WaitLimit { limit, stop })
}

fn finish(
    mut running: RunningProgram,
    said: &Said,
    begun: Instant,
    wait: WaitLimit<'_>,
) -> io::Result<ProgramResult> {
    let status = running.ended_unless(wait.stop, wait.limit)?;
    let took = begun.elapsed();
    // A program that has not ended is killed here, so that it prints nothing more.
    drop(running);
    Ok(ProgramResult { status, output: said.text()?, took })
}

/// Looks for a program in `PATH` and in the folders of system programs, which are not in the `PATH` of every user.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/local/sbin"].into_iter().map(PathBuf::from);
    let mut files = std::env::split_paths(&path).chain(system).map(|folder| folder.join(program));
    files.find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_exceeds_its_time_limit_is_killed() {
        let finished = run(Command::new("sleep").arg("60"), Duration::from_millis(20)).unwrap();
        assert!(finished.status.is_none() && !finished.success());
        assert_eq!(finished.ending(), "did not end within its time limit");
    }

    #[test]
    fn output_and_exit_code_are_kept() {
        let script = "echo one; echo two >&2; exit 3";
        let finished =
            run(Command::new("sh").args(["-c", script]), Duration::from_secs(10)).unwrap();
        assert_eq!((finished.code(), finished.output.as_str()), (Some(3), "one\ntwo\n"));
        assert_eq!(finished.tail(1), "two");
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let error = run(&mut Command::new("/no/such/program"), Duration::from_secs(10));
        assert!(error.unwrap_err().to_string().starts_with("cannot start /no/such/program: "));
    }
}
