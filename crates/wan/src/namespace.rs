//! Network namespaces with a name: made, marked as ours, found again after a crash, removed. By the
//! program `ip`, which knows where names are kept and how.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::Error;

/// A network namespace of ours. Removed when dropped.
#[derive(Debug)]
pub(crate) struct LinkNamespace {
    name: String,
}

/// Where `ip` keeps the names.
const NAMES: &str = "/run/netns";
/// What `ip` may be called: not every user's PATH has the folders of the system's programs.
const PROGRAMS: [&str; 3] = ["ip", "/usr/sbin/ip", "/sbin/ip"];
/// The mark is the alias of the loopback device in the namespace: it goes where the namespace goes.
/// After it the number of the process that made it, and when that began.
const MARK: &str = "forebay-wan";

/// Whose a namespace is.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum NamespaceOwner {
    /// There is none of this name.
    Nobody,
    /// A link that is running.
    Running(u32),
    /// A link that ended without removing it.
    Left,
    /// Not a link.
    Other,
}

impl LinkNamespace {
    /// Makes it. What a link of the same name left is removed first.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::Foreign`], or what `ip` says.
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

    /// What stands before an act of `ip` in it, and the act.
    pub fn ip(&self, arguments: &[&str]) -> Result<String, Error> {
        ip(&[&["-n", &self.name], arguments].concat())
    }

    /// Several acts of `ip` in it, a line each.
    pub fn ip_batch(&self, lines: &str) -> Result<(), Error> {
        run(&["-n", &self.name, "-batch", "-"], lines).map(drop)
    }

    /// Moves this thread into it. To be done in a thread that ends soon.
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
        // If it does not go, the next link of this name finds it by its mark.
        let _ = ip(&["netns", "delete", &self.name]);
    }
}

/// Makes sure that there is none of this name: removes what a link left behind. True if it did.
pub(crate) fn clear(name: &str) -> Result<bool, Error> {
    let namespace = name.to_owned();
    match owner(name)? {
        NamespaceOwner::Nobody => Ok(false),
        NamespaceOwner::Left => ip(&["netns", "delete", name]).map(|_| true),
        NamespaceOwner::Running(process) => Err(Error::InUse { namespace, process }),
        NamespaceOwner::Other => Err(Error::Foreign { namespace }),
    }
}

/// Whose the namespace of this name is.
pub(crate) fn owner(name: &str) -> Result<NamespaceOwner, Error> {
    if fs::symlink_metadata(path(name)).is_err() {
        return Ok(NamespaceOwner::Nobody);
    }
    // A name without a namespace behind it is not ours either: we have no other way to know.
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

/// Where a namespace is, for who wants to enter it.
pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(NAMES).join(name)
}

fn read_mark(mark: &str) -> Option<(u32, u64)> {
    let (process, begun) = mark.trim().split_once(' ')?;
    Some((process.parse().ok()?, begun.parse().ok()?))
}

/// When a process began, in ticks since the machine did; `None` if there is none of this number. With the
/// number it names one process for ever.
fn began(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name may hold anything; after it, the third field is the state, the 22nd the time (proc(5)).
    let (_, after) = stat.rsplit_once(") ")?;
    after.split(' ').nth(22 - 3)?.parse().ok()
}

/// The name of the program, if it is there.
pub(crate) fn find_ip() -> Result<&'static str, Error> {
    let is_there = |program: &&&str| {
        let mut command = Command::new(program);
        let shown = command.arg("-Version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        !shown.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    };
    PROGRAMS.iter().find(is_there).copied().ok_or(Error::NoIp)
}

/// What runs a program in a namespace; its name and arguments are to be added.
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
            // What it does not read it says below.
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
    fn a_process_is_known_by_when_it_began() {
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
