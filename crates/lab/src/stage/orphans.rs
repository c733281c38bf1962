//! Ends programs whose parent has ended: those that workloads leave behind, which become children
//! of this process, and those of an earlier run that was killed.

use std::{
    fs,
    path::Path,
    str::FromStr,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::process::MARK;
use crate::Error;

/// Time limit until a killed program has ended. Most end at once; a program that waits for a disk
/// ends only when the process of its volume has ended.
const GONE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);
/// Maximum number of rounds of killing. The children of a killed program become children of this
/// process, and are killed in the next round.
const ROUNDS: usize = 16;

/// Makes this process the parent of orphans among its descendants, and ends them. `before` has the children that this
/// process had before it adopted any. These children are never ended.
pub(crate) struct Orphans {
    before: Vec<u32>,
}

impl Orphans {
    /// Makes this process the parent of all orphans among its descendants. Children that this process has already are
    /// never killed. They are not programs of the run: a shell that replaced itself by this program (exec) started
    /// them, or they belong to a container in which this is the first process.
    pub fn adopt() -> Result<Self, Error> {
        let own = rustix::process::getpid();
        let before = children_of(own.as_raw_nonzero().get().cast_unsigned());
        let adopted = rustix::process::set_child_subreaper(Some(own));
        adopted.map_err(|error| Error::system("become the parent of orphans")(error.into()))?;
        Ok(Self { before })
    }

    /// Kills children of this process that descend from programs of this run, except for `ours`. A
    /// program of the run is recognised by [`MARK`](super::process::MARK) in its environment. A
    /// server may have overwritten its environment; it is recognised by files that it has open in
    /// these folders.
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

/// A process that was killed. The start time distinguishes it from a later process with the same
/// id.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Killed {
    pub process: u32,
    /// Start time in clock ticks since the machine was started (proc(5), `starttime`).
    pub began: u64,
}

/// Kills the programs that earlier, killed runs have left in these folders, which this run has
/// locked, and returns them. Such a program got a signal when its run died, but `forebay attach`
/// then waits forever for its remote volume, whose node has ended.
pub(crate) fn end_left(folders: &[&Path]) -> Vec<Killed> {
    let own = std::process::id();
    let left: Vec<Killed> = processes()
        .filter(|process| *process != own)
        .filter(|process| run_of(*process).is_some() && uses(*process, folders))
        // Read the start time before the kill: the start time is unknown after the process has ended.
        .filter_map(|process| Some(Killed { process, began: stat(process, 22)? }))
        .collect();
    let until = Instant::now() + GONE;
    for pid in left.iter().filter_map(|it| Pid::from_raw(it.process.cast_signed())) {
        // The process may have ended meanwhile. This cannot kill a foreign process, since the kernel does not reuse an
        // id this soon.
        let _ = kill_process(pid, Signal::KILL);
    }
    // Wait until the killed processes have closed their files. Do not wait until their ids are free: a process keeps
    // its id until its parent has waited for it.
    while left.iter().any(|it| uses(it.process, folders)) && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
    left
}

/// Returns true if a process descends from the run whose process id is `run`.
fn is_of(process: u32, run: u32) -> bool {
    run_of(process) == Some(run)
}

/// Returns the process id of the run that started a process or an ancestor of it.
fn run_of(process: u32) -> Option<u32> {
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    // If there are several marks, the last one is of the run that started the process.
    environment.split(|byte| *byte == 0).rev().find_map(|variable| {
        std::str::from_utf8(variable).ok()?.strip_prefix(MARK)?.strip_prefix('=')?.parse().ok()
    })
}

/// Returns true if a process has its working folder or an open file in one of these folders.
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

/// Returns a field of /proc/PROCESS/stat (proc(5)). The fields begin with 3, the state; 1 and 2
/// cannot be read.
fn stat<T: FromStr>(process: u32, field: usize) -> Option<T> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field is the name of the program, which may contain any characters.
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

    /// Runs a shell that starts a program, prints the program's process id, and ends. The program then becomes a child
    /// of this process. If `by_us` is true, the shell has the mark of this run.
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
    fn leftover_processes_of_a_killed_run_are_ended() {
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
    fn only_leftover_processes_of_workloads_are_ended() {
        // Run this in a process of its own, since other tests have child processes, too.
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "stage::orphans::tests::in_a_process_of_its_own", "--ignored"]);
        let output = again.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    #[ignore = "run by only_leftover_processes_of_workloads_are_ended"]
    fn in_a_process_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let job = || Command::new("sleep").arg("100").spawn().unwrap();
        let mut before = job();
        let orphans = Orphans::adopt().unwrap();
        let (mut ours, path) = (job(), folder.path());
        let left = leaves("sleep 100", path, true);
        let at = format!("cd {} && exec env -i sleep 100", path.display());
        let there = leaves(&format!("({at})"), path, false);
        // A child without the mark of a run, such as a daemon in a container in which this is the first process. The
        // child must not be killed.
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
