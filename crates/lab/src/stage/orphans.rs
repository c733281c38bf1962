//! Programs that nobody waits for any more: what workloads leave behind, which has come to be ours though we did not start
//! it, and what is left of a run that was killed.

use std::{
    fs,
    path::Path,
    str::FromStr,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::process::MARK;
use crate::Error;

/// A killed program is gone at once, but for one that waits for a disk: that one goes when its volume has ended.
const GONE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);
/// What is killed may have children, which come to us then; nobody's are as deep.
const ROUNDS: usize = 16;

/// Who comes to us, and who was there before.
pub(crate) struct Orphans {
    before: Vec<u32>,
}

impl Orphans {
    /// From now on orphans of our children are our children. Those that we have already are not ours to end: they are of a
    /// shell that has become this program, or of a container whose first process we are.
    pub fn adopt() -> Result<Self, Error> {
        let own = rustix::process::getpid();
        let before = children_of(own.as_raw_nonzero().get().cast_unsigned());
        let adopted = rustix::process::set_child_subreaper(Some(own));
        adopted.map_err(|error| Error::system("become the parent of orphans")(error.into()))?;
        Ok(Self { before })
    }

    /// Kills what was started by what we have started, known by our mark in its environment or, where a server has
    /// written over that, by what it has open below one of these folders. `ours` are those that go on.
    pub fn end(&self, ours: &[u32], folders: &[&Path]) {
        let own = std::process::id();
        let until = Instant::now() + GONE;
        for _ in 0..ROUNDS {
            let left: Vec<u32> = children_of(own)
                .into_iter()
                .filter(|child| !ours.contains(child) && !self.before.contains(child))
                .filter(|child| is_of(*child, own) || uses(*child, folders))
                .collect();
            if left.is_empty() {
                return;
            }
            for pid in left.iter().filter_map(|child| Pid::from_raw(child.cast_signed())) {
                let _ = kill_process(pid, Signal::KILL);
                while matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None)) {
                    if Instant::now() > until {
                        return;
                    }
                    std::thread::sleep(LOOK);
                }
            }
        }
    }
}

/// A process that was killed, told from a later one that has its number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Killed {
    pub process: u32,
    /// In ticks since the machine did (proc(5), `starttime`).
    pub began: u64,
}

/// Kills what is left of runs that were killed and had these folders, which are ours now: programs with the mark of a run
/// that use one of them. Answers with those. They get a signal when their run dies, but an attachment then waits for
/// the far side, which has ended: for ever.
pub(crate) fn end_left(folders: &[&Path]) -> Vec<Killed> {
    let own = std::process::id();
    let left: Vec<Killed> = processes()
        .filter(|process| *process != own)
        .filter(|process| run_of(*process).is_some() && uses(*process, folders))
        // That it has ended is nobody's to see afterwards.
        .filter_map(|process| Some(Killed { process, began: stat(process, 22)? }))
        .collect();
    let until = Instant::now() + GONE;
    for pid in left.iter().filter_map(|it| Pid::from_raw(it.process.cast_signed())) {
        // It may have ended since; its number is nobody else's as soon as that.
        let _ = kill_process(pid, Signal::KILL);
    }
    // One that is a child of somebody's who does not wait for it has its number still, and nothing open.
    while left.iter().any(|it| uses(it.process, folders)) && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
    left
}

/// Whether a process, or one that has led to it, was started by the run of this number.
fn is_of(process: u32, run: u32) -> bool {
    run_of(process) == Some(run)
}

/// The number of the run that has started a process, or one that has led to it.
fn run_of(process: u32) -> Option<u32> {
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    // The last one is that of who has started it.
    environment.split(|byte| *byte == 0).rev().find_map(|variable| {
        std::str::from_utf8(variable).ok()?.strip_prefix(MARK)?.strip_prefix('=')?.parse().ok()
    })
}

/// Whether a process works in one of these folders or has a file there open.
fn uses(process: u32, folders: &[&Path]) -> bool {
    let below = |link: &Path| {
        fs::read_link(link).is_ok_and(|to| folders.iter().any(|folder| to.starts_with(folder)))
    };
    let about = Path::new("/proc").join(process.to_string());
    let open = fs::read_dir(about.join("fd")).into_iter().flatten().flatten();
    below(&about.join("cwd")) || open.into_iter().any(|entry| below(&entry.path()))
}

fn children_of(parent: u32) -> Vec<u32> {
    processes().filter(|process| parent_of(*process) == Some(parent)).collect()
}

fn processes() -> impl Iterator<Item = u32> {
    let listed = fs::read_dir("/proc").into_iter().flatten().flatten();
    listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn parent_of(process: u32) -> Option<u32> {
    stat(process, 4)
}

/// A field of what the system says of a process, from 3, the state, on (proc(5)).
fn stat<T: FromStr>(process: u32, field: usize) -> Option<T> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name before may hold anything.
    stat.rsplit_once(") ")?.1.split(' ').nth(field - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::{
        process::{Child, Command, Stdio},
        sync::atomic::AtomicBool,
    };

    use program::WaitLimit;

    use super::*;
    use crate::stage::process;

    const LONG: Duration = Duration::from_secs(20);

    /// A shell that starts a program, says its number, and ends: the program comes to us.
    fn leaves(script: &str, folder: &Path, by_us: bool) -> u32 {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{script} >&2 & echo $!")]).stdin(Stdio::null());
        let said = if by_us {
            let events = folder.join("events");
            let mut process =
                process::start("a shell", &mut command, &None, &events, Signal::KILL).unwrap();
            let stop = AtomicBool::new(false);
            process.finish(WaitLimit { limit: LONG, stop: &stop }).unwrap()
        } else {
            let output = command.stderr(Stdio::null()).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        said.trim().parse().unwrap()
    }

    fn runs(process: u32) -> bool {
        parent_of(process).is_some()
    }

    #[test]
    fn what_is_left_of_a_run_that_was_killed_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let sleeps = |mark: bool, at: &Path| {
            let mut command = Command::new("sleep");
            command.arg("100").current_dir(at).env_remove(MARK);
            if mark {
                command.env(MARK, "4194305");
            }
            command.spawn().unwrap()
        };
        let mut left = sleeps(true, folder.path());
        let mut others = [sleeps(false, folder.path()), sleeps(true, other.path())];
        let began = stat(left.id(), 22).unwrap();
        assert_eq!(end_left(&[folder.path()]), [Killed { process: left.id(), began }]);
        assert!(!left.wait().unwrap().success());
        for child in &mut others {
            assert_eq!(child.try_wait().unwrap(), None);
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn only_what_workloads_have_left_is_ended() {
        // In a process of its own: other tests have children, too.
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "stage::orphans::tests::in_a_process_of_its_own", "--ignored"]);
        let output = again.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    #[ignore = "run by only_what_workloads_have_left_is_ended"]
    fn in_a_process_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let job = || Command::new("sleep").arg("100").spawn().unwrap();
        let mut before = job();
        let orphans = Orphans::adopt().unwrap();
        let (mut ours, path) = (job(), folder.path());
        let left = leaves("sleep 100", path, true);
        let at = format!("cd {} && exec env -i sleep 100", path.display());
        let there = leaves(&format!("({at})"), path, false);
        // As a daemon of a container whose first process we are.
        let stranger = leaves("sleep 100", path, false);
        assert_eq!([left, there, stranger].map(runs), [true; 3]);
        let begun = Instant::now();
        while !uses(there, &[path]) {
            assert!(begun.elapsed() < LONG);
        }
        orphans.end(&[ours.id()], &[path]);
        assert_eq!([left, there, stranger].map(runs), [false, false, true]);
        let still = |child: &mut Child| child.try_wait().unwrap().is_none();
        assert!(still(&mut before) && still(&mut ours));
        for process in [before.id(), ours.id(), stranger] {
            let pid = Pid::from_raw(process.cast_signed()).unwrap();
            kill_process(pid, Signal::KILL).unwrap();
            waitpid(Some(pid), WaitOptions::empty()).unwrap();
        }
    }
}
