//! Named network namespaces. They are made, marked, found after a crash and removed with the program `ip`,
//! which keeps their names.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::Error;

/// A network namespace at one end of a link. Dropping this removes the namespace.
#[derive(Debug)]
pub(crate) struct LinkNamespace {
    name: String,
}

/// The folder in which `ip` keeps the names.
const NAMES: &str = "/run/netns";
/// Possible paths of `ip`: not every user's PATH has the folders of system programs.
const PROGRAMS: [&str; 3] = ["ip", "/usr/sbin/ip", "/sbin/ip"];
/// The mark that identifies our namespaces. The mark is set as alias of the loopback device in the namespace, because
/// that device ends with the namespace. After the mark, the alias has the id and the start time of the process that
/// made the namespace.
const MARK: &str = "forebay-wan";

#[derive(Debug, Eq, PartialEq)]
pub(crate) enum NamespaceOwner {
    Absent,
    /// The namespace belongs to a running link, which the process with this number has created.
    Running(u32),
    /// A link that has ended without removing the namespace.
    Left,
    /// A network namespace of this name exists, but it does not belong to an emulated link.
    Other,
}

impl LinkNamespace {
    /// Makes a namespace. Removes a namespace with this name that a link has left behind.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::Foreign`], or those of `ip`.
    pub fn make(name: String) -> Result<Self, Error> {
        clear(&name)?;
        ip(&["netns", "add", &name])?;
        let made = Self { name };
        let process = std::process::id();
        let begun = began(process).unwrap_or(0);
        let mark = format!("{MARK} {process} {begun}");
        made.ip(&["link", "set", "dev", "lo", "alias", &mark])?;
        Ok(made)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs the program `ip` for this namespace.
    pub fn ip(&self, arguments: &[&str]) -> Result<String, Error> {
        ip(&[&["-n", &self.name], arguments].concat())
    }

    /// Runs several commands of the program `ip` for this namespace, one for each line of `lines`.
    pub fn ip_batch(&self, lines: &str) -> Result<(), Error> {
        run(&["-n", &self.name, "-batch", "-"], lines).map(drop)
    }

    /// Moves the calling thread into the namespace. The thread cannot return, so use one that ends soon.
    pub fn enter(&self) -> Result<(), Error> {
        let failed = || Error::system(format!("enter the namespace {}", self.name));
        let file = File::open(path(&self.name)).map_err(failed())?;
        let kind = Some(LinkNameSpaceType::Network);
        let moved = move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), kind);
        moved.map_err(|error| failed()(error.into()))
    }
}

impl Drop for LinkNamespace {
    fn drop(&mut self) {
        // If the removal fails, the next link with this name finds the namespace by its mark.
        let _ = ip(&["netns", "delete", &self.name]);
    }
}

/// Makes sure that there is no namespace with this name. Removes one that a link has left behind, and returns
/// true then.
pub(crate) fn clear(name: &str) -> Result<bool, Error> {
    let namespace = name.to_owned();
    match owner(name)? {
        NamespaceOwner::Absent => Ok(false),
        NamespaceOwner::Left => ip(&["netns", "delete", name]).map(|_| true),
        NamespaceOwner::Running(process) => Err(Error::InUse { namespace, process }),
        NamespaceOwner::Other => Err(Error::Foreign { namespace }),
    }
}

pub(crate) fn owner(name: &str) -> Result<NamespaceOwner, Error> {
    if fs::symlink_metadata(path(name)).is_err() {
        return Ok(NamespaceOwner::Absent);
    }
    // If a name exists without a namespace, treat it as foreign, because the program that made it is unknown.
    let shown = match ip(&["-n", name, "link", "show", "dev", "lo"]) {
        Err(Error::Ip { .. }) => return Ok(NamespaceOwner::Other),
        shown => shown?,
    };
    let marked =
        shown.lines().find_map(|line| line.trim().strip_prefix("alias ")?.strip_prefix(MARK));
    let Some((process, begun)) = marked.and_then(read_mark) else {
        return Ok(NamespaceOwner::Other);
    };
    Ok(if began(process) == Some(begun) {
        NamespaceOwner::Running(process)
    } else {
        NamespaceOwner::Left
    })
}

/// Returns the path of the network namespace `name`, which a process can enter.
pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(NAMES).join(name)
}

fn read_mark(mark: &str) -> Option<(u32, u64)> {
    let (process, begun) = mark.trim().split_once(' ')?;
    Some((process.parse().ok()?, begun.parse().ok()?))
}

/// Returns the start time of a process in ticks since the boot of the machine; `None` if there is no such process.
/// Together with its number it identifies the process uniquely.
fn began(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name may contain any character. After it, the third field is the state, the 22nd the start time (proc(5)).
    let (_, after) = stat.rsplit_once(") ")?;
    after.split(' ').nth(22 - 3)?.parse().ok()
}

/// Returns the path of the program `ip`. Fails if it is not installed.
pub(crate) fn find_ip() -> Result<&'static str, Error> {
    let is_there = |program: &&&str| {
        let mut command = Command::new(program);
        let shown = command.arg("-Version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        !shown.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    };
    PROGRAMS.iter().find(is_there).copied().ok_or(Error::NoIp)
}

/// Returns a command that runs a program in a namespace. The caller adds the program and its arguments.
pub(crate) fn command(name: &str) -> Result<Command, Error> {
    let mut command = Command::new(find_ip()?);
    command.args(["netns", "exec", name]);
    Ok(command)
}

fn ip(arguments: &[&str]) -> Result<String, Error> {
    run(arguments, "")
}

fn run(arguments: &[&str], input: &str) -> Result<String, Error> {
    let failed = || Error::system("run `ip`");
    for program in PROGRAMS {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = match command.spawn() {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            child => child.map_err(failed())?,
        };
        if let Some(mut stdin) = child.stdin.take() {
            // Ignore an error: if `ip` does not read all its input, its error message says why.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output().map_err(failed())?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::Ip { arguments: arguments.join(" "), said });
    }
    Err(Error::NoIp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_recognized_by_its_start_time() {
        let own = std::process::id();
        assert!(began(own).is_some());
        assert_eq!(began(own), began(own));
        assert_eq!(began(u32::MAX), None);
    }

    #[test]
    fn a_mark_reads_back() {
        assert_eq!(read_mark(" 12 345"), Some((12, 345)));
        for wrong in ["", " 12", " x 1", " 1 2 3"] {
            assert_eq!(read_mark(wrong), None, "{wrong}");
        }
    }
}
