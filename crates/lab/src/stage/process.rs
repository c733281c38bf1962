//! A program of a stage: started in its namespace, ended in order, and gone when we are.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    os::{
        fd::AsFd,
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, set_parent_process_death_signal},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::Error;

/// What is told of a program's events when it fails.
const TAIL_BYTES: u64 = 2000;
const TAIL_LINES: usize = 4;
/// In the environment of all that is started here, with our number: what they start has it, too.
pub(crate) const MARK: &str = "FOREBAY_LAB_RUN";
/// A killed program is gone at once, but for one that waits for a disk: it goes when its volume has ended, and must
/// not keep us from ending that.
const GONE: Duration = Duration::from_secs(5);
/// How often a wait looks whether somebody asked to stop.
const LOOK: Duration = Duration::from_millis(100);

/// A program that runs. Killed when dropped.
pub(crate) struct Process {
    name: String,
    child: Child,
    /// What it says on stdout, as a file without a name: it never waits for a reader.
    said: File,
    events: std::path::PathBuf,
}

/// A network namespace; `None` is ours.
pub(crate) type Namespace = Option<File>;

/// How long something may take, and who may end it before.
#[derive(Clone, Copy)]
pub(crate) struct Patience<'a> {
    pub limit: Duration,
    pub stop: &'a AtomicBool,
}

impl Process {
    /// Starts it in a namespace; what it says on stderr goes to the file `events`.
    ///
    /// To be called by a thread that lives as long as the program is needed: when that thread ends, the program
    /// gets the signal `when_we_die` (prctl(2), PR_SET_PDEATHSIG).
    pub fn start(
        name: impl Into<String>,
        command: &mut Command,
        namespace: &Namespace,
        events: &Path,
        when_we_die: Signal,
    ) -> Result<Self, Error> {
        let name = name.into();
        let failed = || Error::system(format!("start {name}"));
        let said = unnamed().map_err(failed())?;
        let stdout = said.try_clone().map_err(failed())?;
        let stderr = File::options().create(true).append(true).open(events);
        let stderr = stderr.map_err(Error::file("write", events))?;
        command.stdout(stdout).stderr(stderr).process_group(0);
        command.env(MARK, std::process::id().to_string());
        let entered = namespace.as_ref().map(File::try_clone).transpose().map_err(failed())?;
        // SAFETY: between fork and exec only system calls are made, which are async-signal-safe, and nothing is
        // allocated.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(when_we_die))?;
                if let Some(namespace) = &entered {
                    let kind = Some(LinkNameSpaceType::Network);
                    move_into_link_name_space(namespace.as_fd(), kind)?;
                }
                Ok(())
            });
        }
        let child = command.spawn().map_err(failed())?;
        Ok(Self { name, child, said, events: events.to_owned() })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it reads.
    pub fn stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    /// Its first line, once it has said one.
    pub fn line(&mut self, patience: Patience<'_>) -> Result<String, Error> {
        let deadline = Instant::now() + patience.limit;
        loop {
            let said = self.said()?;
            if let Some((line, _)) = said.split_once('\n') {
                return Ok(line.to_owned());
            }
            if self.ended(LOOK / 10)?.is_some() {
                return Err(self.failed("ended before it was ready"));
            }
            if patience.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            if Instant::now() > deadline {
                let (name, limit) = (self.name.clone(), patience.limit);
                return Err(Error::Late { name, what: "ready", limit });
            }
        }
    }

    /// Waits until it has ended well, and answers with what it said.
    pub fn finish(&mut self, patience: Patience<'_>) -> Result<String, Error> {
        let deadline = Instant::now() + patience.limit;
        let status = loop {
            if let Some(status) = self.ended(LOOK)? {
                break status;
            }
            if patience.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            if Instant::now() > deadline {
                let (name, limit) = (self.name.clone(), patience.limit);
                return Err(Error::Late { name, what: "done", limit });
            }
        };
        if status.success() { self.said() } else { Err(self.failed(&told(status))) }
    }

    /// Asks it to end (SIGTERM), and kills it if it does not.
    pub fn end(mut self, limit: Duration) -> Result<(), Error> {
        self.ask_to_end(limit)
    }

    /// The same for who has it as a part.
    pub fn ask_to_end(&mut self, limit: Duration) -> Result<(), Error> {
        let failed = Error::system(format!("end {}", self.name));
        if self.ended(Duration::ZERO)?.is_none() {
            kill_process(Pid::from_child(&self.child), Signal::TERM)
                .map_err(|error| failed(error.into()))?;
        }
        match self.ended(limit)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.failed(&told(status))),
            None => Err(Error::Late { name: self.name.clone(), what: "ended", limit }),
        }
    }

    /// How it ended, if it does within this time.
    fn ended(&mut self, within: Duration) -> Result<Option<ExitStatus>, Error> {
        let failed = || Error::system(format!("wait for {}", self.name));
        if let Some(status) = self.child.try_wait().map_err(failed())? {
            return Ok(Some(status));
        }
        let handle = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty());
        let handle = handle.map_err(|error| failed()(error.into()))?;
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).expect("limits are of minutes");
            match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout)) {
                Ok(_) => return self.child.try_wait().map_err(failed()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed()(error.into())),
            }
        }
    }

    fn said(&self) -> Result<String, Error> {
        let failed = || Error::system(format!("read what {} says", self.name));
        // Another descriptor of the same open file would share its place with the program, which writes there.
        use std::os::unix::fs::FileExt;
        let length = self.said.metadata().map_err(failed())?.len();
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        self.said.read_exact_at(&mut bytes, 0).map_err(failed())?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn failed(&self, what: &str) -> Error {
        let said = tail(&self.events);
        Error::Program { name: self.name.clone(), what: what.to_owned(), said }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.ended(GONE);
    }
}

/// Runs a program to its end.
pub(crate) fn run(
    name: &str,
    command: &mut Command,
    namespace: &Namespace,
    events: &Path,
    patience: Patience<'_>,
) -> Result<String, Error> {
    command.stdin(Stdio::null());
    Process::start(name, command, namespace, events, Signal::KILL)?.finish(patience)
}

/// A file without a name, gone when it is closed.
fn unnamed() -> std::io::Result<File> {
    use rustix::fs::{MemfdFlags, memfd_create};
    Ok(memfd_create("said", MemfdFlags::CLOEXEC)?.into())
}

fn told(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => status.to_string(),
    }
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
    let said = String::from_utf8_lossy(&read().unwrap_or_default()).into_owned();
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn shell(script: &str, folder: &Path) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null());
        Process::start("a script", &mut command, &None, &folder.join("events"), Signal::KILL)
            .unwrap()
    }

    #[test]
    fn a_program_gets_ready_and_is_ended_as_asked() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let patience = Patience { limit: LONG, stop: &stop };
        let script = "trap 'exit 0' TERM; echo ready 1; while :; do sleep 0.01; done";
        let mut process = shell(script, folder.path());
        assert_eq!(process.line(patience).unwrap(), "ready 1");
        process.end(LONG).unwrap();
    }

    #[test]
    fn what_went_wrong_is_told_with_the_last_words() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let patience = Patience { limit: LONG, stop: &stop };
        let error = shell("echo no room >&2; exit 3", folder.path()).line(patience).unwrap_err();
        assert_eq!(error.to_string(), "a script ended before it was ready: no room");
        let error = shell("exit 3", folder.path()).finish(patience).unwrap_err().to_string();
        assert!(error.contains("ended with 3"), "{error}");
    }

    #[test]
    fn nobody_waits_longer_than_allowed_or_after_being_told_to_stop() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let short = Patience { limit: Duration::from_millis(50), stop: &stop };
        let error = shell("exec sleep 100", folder.path()).finish(short).unwrap_err();
        assert!(matches!(error, Error::Late { .. }), "{error}");
        let deaf = shell("trap '' TERM; echo; exec sleep 100", folder.path());
        // It has set its trap when it has said a line.
        let mut deaf = deaf;
        deaf.line(Patience { limit: LONG, stop: &stop }).unwrap();
        assert!(matches!(deaf.end(Duration::from_millis(50)), Err(Error::Late { .. })));
        stop.store(true, Ordering::Relaxed);
        let patience = Patience { limit: LONG, stop: &stop };
        let error = shell("exec sleep 100", folder.path()).finish(patience).unwrap_err();
        assert!(matches!(error, Error::Stopped), "{error}");
    }
}
