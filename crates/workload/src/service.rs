//! A program that runs beside a workload, such as a server, and ends with it.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Signal, kill_process};

use crate::{Error, child};

/// For a server that is told to drop everything.
const LAST_LIMIT: Duration = Duration::from_secs(10);

/// A program that runs until it is stopped or this is dropped.
pub(crate) struct Service {
    program: String,
    child: Child,
    /// What it says on both its outputs.
    said: File,
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
        let said = child::unnamed().map_err(failed())?;
        let again = |file: &File| file.try_clone().map_err(failed());
        command.stdin(Stdio::null()).stdout(again(&said)?).stderr(again(&said)?);
        child::tied(command, quit);
        let child = command.spawn().map_err(failed())?;
        Ok(Self { program, child, said, quit })
    }

    /// That it still runs.
    ///
    /// # Errors
    /// How it ended, and the last that it said.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        let failed = Error::system(format!("wait for {}", self.program));
        match self.child.try_wait().map_err(failed)? {
            None => Ok(()),
            Some(ending) => Err(self.ended(child::told(ending))),
        }
    }

    /// Asks it by a signal to end in good order, and waits until it has.
    ///
    /// # Errors
    /// If it fails, or takes longer.
    pub(crate) fn stop(mut self, by: Signal, limit: Duration) -> Result<(), Error> {
        let failed = || Error::system(format!("stop {}", self.program));
        kill_process(child::group(&self.child), by).map_err(|error| failed()(error.into()))?;
        let failed = failed();
        match child::ending(&mut self.child, limit).map_err(failed)? {
            Some(ending) if ending.success() => Ok(()),
            Some(ending) => Err(self.ended(child::told(ending))),
            None => Err(Error::Late { program: self.program.clone(), limit }),
        }
    }

    fn ended(&mut self, ending: String) -> Error {
        Error::Program { program: self.program.clone(), ending, said: child::tail(&self.said()) }
    }

    fn said(&mut self) -> String {
        let mut bytes = Vec::new();
        let _ = self.said.seek(SeekFrom::Start(0));
        let _ = self.said.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let _ = kill_process(child::group(&self.child), self.quit);
        if !matches!(child::ending(&mut self.child, LAST_LIMIT), Ok(Some(_))) {
            child::kill(&mut self.child);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{WaitOptions, waitpid};

    use super::*;

    fn shell(script: &str) -> Service {
        Service::start(Command::new("sh").args(["-c", script]), Signal::TERM).unwrap()
    }

    #[test]
    fn it_ends_when_it_is_asked_and_when_nobody_holds_it() {
        let mut service = shell("exec sleep 1000");
        service.check().unwrap();
        let process = child::group(&service.child);
        drop(service);
        assert!(rustix::process::test_kill_process(process).is_err(), "it still runs");
        // It says when it is ready to be asked.
        let mut service = shell("trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done");
        while !service.said().contains("ready") {
            service.check().unwrap();
        }
        service.stop(Signal::TERM, Duration::from_secs(20)).unwrap();
    }

    #[test]
    fn it_ends_with_the_thread_that_started_it() {
        let starting = std::thread::spawn(|| {
            let mut service = shell("exec sleep 1000");
            service.check().unwrap();
            let process = child::group(&service.child);
            // As if we were killed: nothing is dropped.
            std::mem::forget(service);
            process
        });
        let process = starting.join().unwrap();
        let (_, ended) = waitpid(Some(process), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(ended.terminating_signal(), Some(Signal::TERM.as_raw()));
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
