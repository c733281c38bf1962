//! A host with little memory: a control group (cgroups(7)) whose programs have so many bytes for themselves and for
//! the pages of files that they use. A program that writes more than that has to wait for what it writes, as on
//! the papers' hosts, whose memory was smaller than their sets.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use crate::Error;

/// Where control groups are.
const GROUPS: &str = "/sys/fs/cgroup";

/// A group. Removed when dropped: its programs have ended before.
pub(super) struct LabMemoryCgroup {
    folder: PathBuf,
}

impl LabMemoryCgroup {
    /// A group of this name. One that a run that was killed has left is taken up.
    pub(super) fn limited(name: &str, bytes: u64) -> Result<Self, Error> {
        let (parent, file) =
            place(Path::new(GROUPS)).ok_or_else(|| Error::Settings(NONE.to_owned()))?;
        let folder = parent.join(format!("forebay-lab-{name}"));
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(Error::file("make", &folder)(error));
            }
            _ => {}
        }
        let group = Self { folder };
        let limit = group.folder.join(file);
        fs::write(&limit, bytes.to_string()).map_err(Error::file("write", &limit))?;
        Ok(group)
    }

    /// Has a program begin in it.
    pub(super) fn take_in(&self, command: &mut Command) -> Result<(), Error> {
        let path = self.folder.join("cgroup.procs");
        let members = File::options().write(true).open(&path);
        let mut members = members.map_err(Error::file("open", &path))?;
        // SAFETY: between fork and exec one write(2) is made, of bytes that are there; it is async-signal-safe. 0 is
        // whoever writes it.
        unsafe {
            command.pre_exec(move || members.write_all(b"0"));
        }
        Ok(())
    }
}

impl Drop for LabMemoryCgroup {
    fn drop(&mut self) {
        // If it does not go, the next run takes it up.
        let _ = fs::remove_dir(&self.folder);
    }
}

const NONE: &str = "this system has no control groups with a memory controller for us";

/// Tries whether a host's memory can be limited, by the group of the run of this name: if it is killed just then, its next
/// takes that away.
///
/// # Errors
/// Why not.
pub(crate) fn can_be_limited(name: &str) -> Result<(), Error> {
    LabMemoryCgroup::limited(name, PROBE).map(drop)
}

/// Nothing runs in the group that is tried.
const PROBE: u64 = 16 << 20;

/// Where groups are made, and the file of the limit: of version 2 where that has the memory controller for groups
/// below its root, else of version 1.
fn place(groups: &Path) -> Option<(PathBuf, &'static str)> {
    let list = fs::read_to_string(groups.join("cgroup.subtree_control")).unwrap_or_default();
    if list.split_whitespace().any(|word| word == "memory") {
        return Some((groups.to_owned(), "memory.max"));
    }
    let (first, limit) = (groups.join("memory"), "memory.limit_in_bytes");
    first.join(limit).is_file().then_some((first, limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Needs the right to make groups; where it is missing the test says so and ends.
    #[test]
    fn a_program_that_takes_more_is_ended_and_nothing_is_left() {
        let name = format!("test-{}", std::process::id());
        let group = match LabMemoryCgroup::limited(&name, 16 << 20) {
            Ok(group) => group,
            Err(error) => return println!("not run: {error}"),
        };
        let folder = group.folder.clone();
        let run = |bytes: &str| {
            let mut command = Command::new("dd");
            command.args(["if=/dev/zero", "of=/dev/null", "count=1", &format!("bs={bytes}")]);
            group.take_in(&mut command).unwrap();
            command.output().unwrap().status.success()
        };
        assert!(run("1M"));
        assert!(!run("64M"), "it has a buffer of 64 MiB in a group of 16");
        drop(group);
        assert!(!folder.exists());
        // As of a run that was killed when it tried.
        std::mem::forget(LabMemoryCgroup::limited(&name, PROBE).unwrap());
        assert!(folder.exists());
        can_be_limited(&name).unwrap();
        assert!(!folder.exists());
    }

    #[test]
    fn groups_are_made_where_the_controller_is() {
        let groups = tempfile::tempdir().unwrap();
        let (here, control) = (groups.path(), groups.path().join("cgroup.subtree_control"));
        assert_eq!(place(here), None, "nothing is mounted");
        fs::write(&control, "cpu io pids\n").unwrap();
        assert_eq!(place(here), None, "version 2, and memory is not for groups below");
        fs::write(&control, "cpu io memory pids\n").unwrap();
        assert_eq!(place(here), Some((here.to_owned(), "memory.max")));
        fs::remove_file(&control).unwrap();
        fs::create_dir(here.join("memory")).unwrap();
        assert_eq!(place(here), None, "a folder is no controller");
        fs::write(here.join("memory/memory.limit_in_bytes"), "1").unwrap();
        assert_eq!(place(here), Some((here.join("memory"), "memory.limit_in_bytes")));
    }
}
