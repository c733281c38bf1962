//! A program of a stage: started in its namespace, ended in order, and gone when we are.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    os::{fd::AsFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{ChildStdin, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use program::{RunningProgram, Said, ending, last_lines};
use rustix::{
    process::Signal,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::Error;

/// What is told of a program's events when it fails.
const TAIL_BYTES: u64 = 2000;
const TAIL_LINES: usize = 4;
/// In the environment of all that is started here, with our number: what they start has it, too.
pub(crate) const MARK: &str = "FOREBAY_LAB_RUN";
/// How often a wait looks whether somebody asked to stop.
const LOOK: Duration = Duration::from_millis(100);

/// A program that runs. Killed when dropped.
pub(crate) struct StageProcess {
    name: String,
    running: RunningProgram,
    /// What it says on stdout.
    said: Said,
    events: PathBuf,
}

/// A network namespace; `None` is ours.
pub(crate) type StageNamespace = Option<File>;

/// How long something may take, and who may end it before.
#[derive(Clone, Copy)]
pub(crate) struct StageWaitLimit<'a> {
    pub limit: Duration,
    pub stop: &'a AtomicBool,
}

impl StageProcess {
    /// Starts it in a namespace; what it says on stderr goes to the file `events`.
    ///
    /// To be called by a thread that lives as long as the program is needed: when that thread ends, the program
    /// gets the signal `when_we_die` (prctl(2), PR_SET_PDEATHSIG).
    pub fn start(
        name: impl Into<String>,
        command: &mut Command,
        namespace: &StageNamespace,
        events: &Path,
        when_we_die: Signal,
    ) -> Result<Self, Error> {
        let name = name.into();
        let failed = || Error::system(format!("start {name}"));
        let said = Said::new().map_err(failed())?;
        let stderr = File::options().create(true).append(true).open(events);
        let stderr = stderr.map_err(Error::file("write", events))?;
        command.stdout(said.output().map_err(failed())?).stderr(stderr);
        command.env(MARK, std::process::id().to_string());
        if let Some(namespace) = namespace {
            let namespace = namespace.try_clone().map_err(failed())?;
            let kind = Some(LinkNameSpaceType::Network);
            let enter = move || Ok(move_into_link_name_space(namespace.as_fd(), kind)?);
            // SAFETY: between fork and exec only this one system call is made; nothing is allocated or locked.
            unsafe { command.pre_exec(enter) };
        }
        let running = RunningProgram::start(command, when_we_die).map_err(failed())?;
        Ok(Self { name, running, said, events: events.to_owned() })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.running.id()
    }

    /// What it reads.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.running.stdin()
    }

    /// Its first line, once it has said one.
    pub fn line(&mut self, patience: StageWaitLimit<'_>) -> Result<String, Error> {
        self.wait("ready", patience, |process| {
            if let Some((line, _)) = process.said()?.split_once('\n') {
                return Ok(Some(line.to_owned()));
            }
            match process.ended(LOOK / 10)? {
                Some(_) => Err(process.failed("ended before it was ready")),
                None => Ok(None),
            }
        })
    }

    /// Waits until it has ended well, and answers with what it said.
    pub fn finish(&mut self, patience: StageWaitLimit<'_>) -> Result<String, Error> {
        let status = self.wait("done", patience, |process| process.ended(LOOK))?;
        if status.success() { self.said() } else { Err(self.failed(&ending(status))) }
    }

    /// Looks, which itself takes a moment, until something is found.
    fn wait<T>(
        &mut self,
        what: &'static str,
        patience: StageWaitLimit<'_>,
        look: impl Fn(&mut Self) -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let deadline = Instant::now() + patience.limit;
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if patience.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            if Instant::now() > deadline {
                let (name, limit) = (self.name.clone(), patience.limit);
                return Err(Error::Late { name, what, limit });
            }
        }
    }

    /// Asks it to end (SIGTERM), and kills it if it does not.
    pub fn end(mut self, limit: Duration) -> Result<(), Error> {
        self.ask_to_end(limit)
    }

    /// The same for who has it as a part.
    pub fn ask_to_end(&mut self, limit: Duration) -> Result<(), Error> {
        let failed = Error::system(format!("end {}", self.name));
        self.running.signal(Signal::TERM).map_err(failed)?;
        match self.ended(limit)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.failed(&ending(status))),
            None => Err(Error::Late { name: self.name.clone(), what: "ended", limit }),
        }
    }

    /// How it ended, if it does within this time.
    fn ended(&mut self, within: Duration) -> Result<Option<ExitStatus>, Error> {
        self.running.ended(within).map_err(Error::system(format!("wait for {}", self.name)))
    }

    fn said(&self) -> Result<String, Error> {
        self.said.text().map_err(Error::system(format!("read what {} says", self.name)))
    }

    fn failed(&self, what: &str) -> Error {
        let said = tail(&self.events);
        Error::Program { name: self.name.clone(), what: what.to_owned(), said }
    }
}

/// Runs a program to its end.
pub(crate) fn run(
    name: &str,
    command: &mut Command,
    namespace: &StageNamespace,
    events: &Path,
    patience: StageWaitLimit<'_>,
) -> Result<String, Error> {
    command.stdin(Stdio::null());
    StageProcess::start(name, command, namespace, events, Signal::KILL)?.finish(patience)
}

/// The last lines of a file of events.
fn tail(events: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(events)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    last_lines(&String::from_utf8_lossy(&read().unwrap_or_default()), TAIL_LINES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn shell(script: &str, folder: &Path) -> StageProcess {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null());
        StageProcess::start("a script", &mut command, &None, &folder.join("events"), Signal::KILL)
            .unwrap()
    }

    #[test]
    fn a_program_gets_ready_and_is_ended_as_asked() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let patience = StageWaitLimit { limit: LONG, stop: &stop };
        let script = "trap 'exit 0' TERM; echo ready 1; while :; do sleep 0.01; done";
        let mut process = shell(script, folder.path());
        assert_eq!(process.line(patience).unwrap(), "ready 1");
        process.end(LONG).unwrap();
    }

    #[test]
    fn what_went_wrong_is_told_with_the_last_words() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let patience = StageWaitLimit { limit: LONG, stop: &stop };
        let error = shell("echo no room >&2; exit 3", folder.path()).line(patience).unwrap_err();
        assert_eq!(error.to_string(), "a script ended before it was ready: no room");
        let error = shell("exit 3", folder.path()).finish(patience).unwrap_err().to_string();
        assert!(error.contains("ended with 3"), "{error}");
    }

    #[test]
    fn nobody_waits_longer_than_allowed_or_after_being_told_to_stop() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let short = StageWaitLimit { limit: Duration::from_millis(50), stop: &stop };
        let error = shell("exec sleep 100", folder.path()).finish(short).unwrap_err();
        assert!(matches!(error, Error::Late { .. }), "{error}");
        let deaf = shell("trap '' TERM; echo; exec sleep 100", folder.path());
        // It has set its trap when it has said a line.
        let mut deaf = deaf;
        deaf.line(StageWaitLimit { limit: LONG, stop: &stop }).unwrap();
        assert!(matches!(deaf.end(Duration::from_millis(50)), Err(Error::Late { .. })));
        stop.store(true, Ordering::Relaxed);
        let patience = StageWaitLimit { limit: LONG, stop: &stop };
        let error = shell("exec sleep 100", folder.path()).finish(patience).unwrap_err();
        assert!(matches!(error, Error::Stopped), "{error}");
    }
}
