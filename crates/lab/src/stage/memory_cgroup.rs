//! Limits the memory of a host with a control group (cgroups(7)). The limit includes the pages of files that the
//! programs of the group use. A program that writes more data than this must wait until some of it is on the volume.
//! Programs on the papers' hosts had to wait in the same way, since the hosts had less memory than data.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use crate::Error;

/// The mount point of control groups.
const GROUPS: &str = "/sys/fs/cgroup";

/// A control group with a memory limit. Dropping it removes the group; the programs in it must have
/// ended before.
pub(super) struct LabMemoryCgroup {
    folder: PathBuf,
}

impl LabMemoryCgroup {
    /// Makes a group with this name and limit. If a killed run has left a group of this name, uses
    /// that one.
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

    /// Makes the program that `command` starts run in the group.
    pub(super) fn take_in(&self, command: &mut Command) -> Result<(), Error> {
        let path = self.folder.join("cgroup.procs");
        let members = File::options().write(true).open(&path);
        let mut members = members.map_err(Error::file("open", &path))?;
        // SAFETY: between fork and exec the closure makes only one write(2) of existing bytes,
        // which is async-signal-safe. Writing 0 adds the writing process to the group.
        unsafe {
            command.pre_exec(move || members.write_all(b"0"));
        }
        Ok(())
    }
}

impl Drop for LabMemoryCgroup {
    fn drop(&mut self) {
        // Ignore an error: the next run uses a group that remains.
        let _ = fs::remove_dir(&self.folder);
    }
}

const NONE: &str = "this system has no control groups with a memory controller that we can use";

/// Checks if a host's memory can be limited, by making a control group. The group has the name that
/// the run `name` uses: if this process is killed now, the next run removes the group.
///
/// # Errors
/// The reason why memory cannot be limited.
pub(crate) fn can_be_limited(name: &str) -> Result<(), Error> {
    LabMemoryCgroup::limited(name, PROBE).map(drop)
}

/// Memory limit in bytes of the control group that [`can_be_limited`] creates as a test and in which no program runs.
const PROBE: u64 = 16 << 20;

/// Returns the folder in which control groups are made, and the name of the file with the memory limit. Uses version 2
/// of control groups if its root enables the memory controller for groups below it, otherwise version 1.
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

    /// Needs the privilege to make control groups. Without it the test prints a message and passes.
    #[test]
    fn a_program_that_exceeds_its_memory_is_killed_and_nothing_is_left() {
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
        // Leave a group behind, as a run does that is killed during the check.
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
