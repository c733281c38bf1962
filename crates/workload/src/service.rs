//! A program, such as a server, that runs while a workload runs and ends with it.

use std::{process::Command, time::Duration};

use program::{RunningProgram, Said, ending};
use rustix::process::Signal;

use crate::{Error, run_program::tail};

/// Time limit for the program to exit after the signal `quit`.
const LAST_LIMIT: Duration = Duration::from_secs(10);

/// A running program. It ends when it is stopped or when the value is dropped.
pub(crate) struct Service {
    program: String,
    running: RunningProgram,
    /// The text of the program's standard output and standard error.
    said: Said,
    /// The signal at which the program exits at once, without completing its work.
    quit: Signal,
}

impl Service {
    /// Starts the program. The kernel sends it the signal `quit` when the calling thread ends, so
    /// that thread must live as long as the program is needed.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub(crate) fn start(command: &mut Command, quit: Signal) -> Result<Self, Error> {
        let program = command.get_program().to_string_lossy().into_owned();
        let failed = || Error::system(format!("run {program}"));
        let said = Said::new().map_err(failed())?;
        said.take_all_of(command).map_err(failed())?;
        let running = RunningProgram::start(command, quit).map_err(failed())?;
        Ok(Self { program, running, said, quit })
    }

    /// Checks that the program still runs.
    ///
    /// # Errors
    /// [`Error::Program`] with the exit status and the last lines of output.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        let failed = Error::system(format!("wait for {}", self.program));
        match self.running.ended(Duration::ZERO).map_err(failed)? {
            None => Ok(()),
            Some(status) => Err(self.failed(ending(status))),
        }
    }

    /// Sends the signal `by`, at which the program finishes its work and ends, and waits for that.
    ///
    /// # Errors
    /// If the program fails, or takes longer than `limit`.
    pub(crate) fn stop(mut self, by: Signal, limit: Duration) -> Result<(), Error> {
        let failed = || Error::system(format!("stop {}", self.program));
        self.running.signal(by).map_err(failed())?;
        let failed = failed();
        match self.running.ended(limit).map_err(failed)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.failed(ending(status))),
            None => Err(Error::Late { program: self.program.clone(), limit }),
        }
    }

    fn failed(&self, ending: String) -> Error {
        let said = tail(&self.said.text().unwrap_or_default());
        Error::Program { program: self.program.clone(), ending, said }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Ask the program to end and wait for a limited time. If it does not end, the drop of `running` kills it.
        let _ = self.running.signal(self.quit);
        let _ = self.running.ended(LAST_LIMIT);
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, test_kill_process};

    use super::*;

    fn shell(script: &str) -> Service {
        Service::start(Command::new("sh").args(["-c", script]), Signal::TERM).unwrap()
    }

    #[test]
    fn a_service_ends_on_request_and_when_it_is_dropped() {
        let mut service = shell("exec sleep 1000");
        service.check().unwrap();
        let process = Pid::from_raw(service.running.id().cast_signed()).unwrap();
        drop(service);
        assert!(test_kill_process(process).is_err(), "it still runs");
        // Wait until the script prints "ready", because it handles the signal only from then on.
        let mut service = shell("trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done");
        while !service.said.text().unwrap().contains("ready") {
            service.check().unwrap();
        }
        service.stop(Signal::TERM, Duration::from_secs(20)).unwrap();
    }

    #[test]
    fn an_unexpected_end_of_a_service_is_reported() {
        let mut service = shell("echo no room >&2; exit 3");
        let error = loop {
            if let Err(error) = service.check() {
                break error.to_string();
            }
        };
        assert_eq!(error, "sh ended with 3: no room");
    }
}
