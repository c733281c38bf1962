//! A program that prints a line when it is ready, and writes a log of its events.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{ChildStdin, Command, ExitStatus},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{Error, RunningProgram, Said, ending, last_lines};

/// Maximum number of bytes and lines from the end of the log that an error shows.
const TAIL_BYTES: u64 = 2000;
const TAIL_LINES: usize = 4;
/// Interval at which a function that waits checks whether its caller wants it to stop waiting.
const LOOK: Duration = Duration::from_millis(100);

/// A program whose standard output is kept and whose standard error goes to a file. Dropping it kills the program.
pub struct LoggedProgram {
    name: String,
    running: RunningProgram,
    said: Said,
    events: PathBuf,
}

/// The time limit of a wait, and a flag that ends the wait earlier.
#[derive(Clone, Copy)]
pub struct WaitLimit<'a> {
    pub limit: Duration,
    /// When this flag is set, the waiting function returns [`Error::Stopped`] soon.
    pub stop: &'a AtomicBool,
}

/// A flag that is never set, for waits that the caller cannot stop.
static NEVER: AtomicBool = AtomicBool::new(false);

impl WaitLimit<'static> {
    /// Returns a limit without a flag: only the time ends the wait.
    #[must_use]
    pub fn of(limit: Duration) -> Self {
        Self { limit, stop: &NEVER }
    }
}

impl LoggedProgram {
    /// Starts a program. The standard error is appended to the file `events`. `name` is its role, for errors.
    ///
    /// Call this from a thread that lives as long as the program is needed: when that thread ends, the program
    /// gets the signal `when_we_die` (prctl(2), PR_SET_PDEATHSIG).
    ///
    /// # Errors
    /// [`Error::System`] if the program or its log cannot be started or opened.
    pub fn start(
        name: impl Into<String>,
        command: &mut Command,
        events: &Path,
        when_we_die: Signal,
    ) -> Result<Self, Error> {
        let name = name.into();
        let failed = || Error::system(format!("start {name}"));
        let said = Said::new().map_err(failed())?;
        let stderr = File::options().create(true).append(true).open(events);
        let stderr = stderr.map_err(Error::system(format!("write {}", events.display())))?;
        command.stdout(said.output().map_err(failed())?).stderr(stderr);
        let running = RunningProgram::start(command, when_we_die).map_err(failed())?;
        Ok(Self { name, running, said, events: events.to_owned() })
    }

    #[must_use]
    pub fn id(&self) -> u32 {
        self.running.id()
    }

    /// Returns the standard input if the command has a pipe there. Later calls return `None`.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.running.stdin()
    }

    /// Waits for the first line that the program prints.
    ///
    /// # Errors
    /// [`Error::NotReady`] if it ends first, [`Error::Late`], [`Error::Stopped`] or [`Error::System`].
    pub fn line(&mut self, wait: WaitLimit<'_>) -> Result<String, Error> {
        self.wait("ready", wait, |process| {
            if let Some((line, _)) = process.said()?.split_once('\n') {
                return Ok(Some(line.to_owned()));
            }
            match process.ended(LOOK / 10)? {
                Some(_) => Err(process.not_ready()),
                None => Ok(None),
            }
        })
    }

    /// Waits until the program has ended with exit code 0. Returns its standard output.
    ///
    /// # Errors
    /// [`Error::Failed`] for another ending, [`Error::Late`], [`Error::Stopped`] or [`Error::System`].
    pub fn finish(&mut self, wait: WaitLimit<'_>) -> Result<String, Error> {
        let status = self.wait("done", wait, |process| process.ended(LOOK))?;
        if status.success() { self.said() } else { Err(self.failed(&ending(status))) }
    }

    /// Calls `look` again and again until it returns a result. The loop has no pause of its own, since `look` waits for
    /// some milliseconds itself.
    fn wait<T>(
        &mut self,
        what: &'static str,
        wait: WaitLimit<'_>,
        look: impl Fn(&mut Self) -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let deadline = Instant::now() + wait.limit;
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if wait.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            if Instant::now() > deadline {
                let (name, limit) = (self.name.clone(), wait.limit);
                return Err(Error::Late { name, what, limit });
            }
        }
    }

    /// Sends SIGTERM and waits for exit code 0. The program is killed if it does not end in time.
    ///
    /// # Errors
    /// [`Error::Failed`] for another ending, [`Error::Late`] or [`Error::System`].
    pub fn end(mut self, limit: Duration) -> Result<(), Error> {
        self.ask_to_end(limit)
    }

    /// Sends SIGTERM and waits for exit code 0. If the program does not end in time, it continues to run.
    ///
    /// # Errors
    /// [`Error::Failed`] for another ending, [`Error::Late`] or [`Error::System`].
    pub fn ask_to_end(&mut self, limit: Duration) -> Result<(), Error> {
        let failed = Error::system(format!("end {}", self.name));
        self.running.signal(Signal::TERM).map_err(failed)?;
        match self.ended(limit)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.failed(&ending(status))),
            None => Err(Error::Late { name: self.name.clone(), what: "ended", limit }),
        }
    }

    /// Waits for the end of the program, at most for `within`. Returns `None` if the program still runs.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn ended(&mut self, within: Duration) -> Result<Option<ExitStatus>, Error> {
        self.running.ended(within).map_err(Error::system(format!("wait for {}", self.name)))
    }

    /// Returns the standard output so far.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn said(&self) -> Result<String, Error> {
        self.said.text().map_err(Error::system(format!("read the output of {}", self.name)))
    }

    /// Sends a signal, unless the program has ended.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn signal(&mut self, signal: Signal) -> Result<(), Error> {
        let failed = Error::system(format!("send a signal to {}", self.name));
        self.running.signal(signal).map_err(failed)
    }

    /// Kills the program with all that it has started in its group, and waits until it has ended.
    ///
    /// # Errors
    /// [`Error::Late`] if it does not end within `limit`, or [`Error::System`].
    pub fn kill(&mut self, limit: Duration) -> Result<(), Error> {
        self.running.kill();
        match self.ended(limit)? {
            Some(_) => Ok(()),
            None => Err(Error::Late { name: self.name.clone(), what: "ended", limit }),
        }
    }

    fn not_ready(&self) -> Error {
        Error::NotReady { name: self.name.clone(), said: tail(&self.events) }
    }

    fn failed(&self, what: &str) -> Error {
        let said = tail(&self.events);
        Error::Failed { name: self.name.clone(), what: what.to_owned(), said }
    }
}

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
    use std::process::Stdio;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn shell(script: &str, folder: &Path) -> LoggedProgram {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null());
        LoggedProgram::start("a script", &mut command, &folder.join("events"), Signal::KILL)
            .unwrap()
    }

    #[test]
    fn a_program_becomes_ready_and_ends_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let wait = WaitLimit { limit: LONG, stop: &stop };
        let script = "trap 'exit 0' TERM; echo ready 1; while :; do sleep 0.01; done";
        let mut process = shell(script, folder.path());
        assert_eq!(process.line(wait).unwrap(), "ready 1");
        process.end(LONG).unwrap();
    }

    #[test]
    fn a_failure_is_reported_with_the_last_output() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let wait = WaitLimit { limit: LONG, stop: &stop };
        let error = shell("echo no room >&2; exit 3", folder.path()).line(wait).unwrap_err();
        assert_eq!(error.to_string(), "a script ended before it was ready: no room");
        let error = shell("exit 3", folder.path()).finish(wait).unwrap_err().to_string();
        assert!(error.contains("ended with 3"), "{error}");
    }

    #[test]
    fn a_wait_ends_at_its_limit_or_when_a_stop_is_requested() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let short = WaitLimit { limit: Duration::from_millis(50), stop: &stop };
        let error = shell("exec sleep 100", folder.path()).finish(short).unwrap_err();
        assert!(matches!(error, Error::Late { .. }), "{error}");
        let error = shell("exec sleep 100", folder.path()).line(short).unwrap_err();
        assert!(error.to_string().contains("was not ready"), "{error}");
        let deaf = shell("trap '' TERM; echo; exec sleep 100", folder.path());
        // Wait for the first line: the program prints it when it has begun to ignore SIGTERM.
        let mut deaf = deaf;
        deaf.line(WaitLimit { limit: LONG, stop: &stop }).unwrap();
        assert!(matches!(deaf.end(Duration::from_millis(50)), Err(Error::Late { .. })));
        stop.store(true, Ordering::Relaxed);
        let wait = WaitLimit { limit: LONG, stop: &stop };
        let error = shell("exec sleep 100", folder.path()).finish(wait).unwrap_err();
        assert!(matches!(error, Error::Stopped), "{error}");
    }
}
