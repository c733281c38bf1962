//! A program that runs beside a workload, such as a server, and ends with it.

use std::{process::Command, time::Duration};

use program::{RunningProgram, Said, ending};
use rustix::process::Signal;

use crate::{Error, run_program::tail};

/// For a server that is told to drop everything.
const LAST_LIMIT: Duration = Duration::from_secs(10);

/// A program that runs until it is stopped or this is dropped.
pub(crate) struct Service {
    program: String,
    running: RunningProgram,
    /// What it says on both its outputs.
    said: Said,
    /// The signal at which it drops everything at once.
    quit: Signal,
}

impl Service {
    /// Starts it. The thread that does has to live as long as the program shall: it is told to end with
    /// the thread.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start(command: &mut Command, quit: Signal) -> Result<Self, Error> {
        let program = command.get_program().to_string_lossy().into_owned();
        let failed = || Error::system(format!("run {program}"));
        let said = Said::new().map_err(failed())?;
        said.take_all_of(command).map_err(failed())?;
        let running = RunningProgram::start(command, quit).map_err(failed())?;
        Ok(Self { program, running, said, quit })
    }

    /// That it still runs.
    ///
    /// # Errors
    /// How it ended, and the last that it said.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        let failed = Error::system(format!("wait for {}", self.program));
        match self.running.ended(Duration::ZERO).map_err(failed)? {
            None => Ok(()),
            Some(status) => Err(self.failed(ending(status))),
        }
    }

    /// Asks it by a signal to end in good order, and waits until it has.
    ///
    /// # Errors
    /// If it fails, or takes longer.
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
        // What does not end so is killed when `running` is dropped.
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
    fn it_ends_when_it_is_asked_and_when_nobody_holds_it() {
        let mut service = shell("exec sleep 1000");
        service.check().unwrap();
        let process = Pid::from_raw(service.running.id().cast_signed()).unwrap();
        drop(service);
        assert!(test_kill_process(process).is_err(), "it still runs");
        // It says when it is ready to be asked.
        let mut service = shell("trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done");
        while !service.said.text().unwrap().contains("ready") {
            service.check().unwrap();
        }
        service.stop(Signal::TERM, Duration::from_secs(20)).unwrap();
    }

    #[test]
    fn how_it_ended_by_itself_is_told() {
        let mut service = shell("echo no room >&2; exit 3");
        let error = loop {
            if let Err(error) = service.check() {
                break error.to_string();
            }
        };
        assert_eq!(error, "sh ended with 3: no room");
    }
}
