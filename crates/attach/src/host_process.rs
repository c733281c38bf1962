//! Identifies a process by number and start time, so that a later process with the same number is not
//! mistaken for it.

use std::{fmt, fs, io};

/// A process of this host. The start time distinguishes it from a later process with the same number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HostProcess {
    pub id: u32,
    /// The start time in ticks since the boot of the host (proc(5), `starttime`).
    pub started: u64,
}

impl HostProcess {
    /// Returns the id and start time of this process.
    ///
    /// # Errors
    /// If `/proc` is not available.
    pub fn this() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/self/stat")?;
        let started = Stat::parse(&text).map(|stat| stat.started);
        let started =
            started.ok_or_else(|| io::Error::other("/proc/self/stat is not as expected"))?;
        Ok(Self { id: std::process::id(), started })
    }

    /// Returns true if the process is still running. Returns false for a process in another container that is
    /// not visible here.
    #[must_use]
    pub fn is_running(self) -> bool {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.id)).unwrap_or_default();
        Stat::parse(&text).is_some_and(|stat| stat.started == self.started && !stat.has_ended)
    }

    /// Parses the text that [`Display`](fmt::Display) writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (id, started) = text.split_once('.')?;
        Some(Self { id: id.parse().ok()?, started: started.parse().ok()? })
    }
}

impl fmt::Display for HostProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.id, self.started)
    }
}

/// The fields of `/proc/PID/stat` that this program needs.
struct Stat {
    /// True for a zombie: the process has ended, but its parent has not asked for its exit status.
    has_ended: bool,
    started: u64,
}

impl Stat {
    /// Parses `PID (NAME) STATE …`, where NAME may contain any character.
    fn parse(line: &str) -> Option<Self> {
        let (_, fields) = line.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace();
        let has_ended = matches!(fields.next()?, "Z" | "X" | "x");
        Some(Self { has_ended, started: fields.nth(18)?.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_number_and_its_start() {
        let this = HostProcess::this().unwrap();
        assert!(this.is_running());
        assert!(!HostProcess { started: this.started + 1, ..this }.is_running());
        assert_eq!(HostProcess::parse(&this.to_string()), Some(this));
        assert_eq!(HostProcess::parse("12"), None);
    }

    #[test]
    fn a_killed_process_counts_as_ended_before_its_parent_collects_it() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let process = HostProcess { id: child.id(), started: Stat::parse(&text).unwrap().started };
        assert!(process.is_running());
        child.kill().unwrap();
        // Wait until the process is a zombie, without collecting its exit status.
        let id = rustix::process::Pid::from_child(&child);
        let ended = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(id), ended).unwrap();
        assert!(!process.is_running());
        child.wait().unwrap();
        assert!(!process.is_running());
    }

    #[test]
    fn a_process_name_with_spaces_and_parentheses_is_parsed() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        let stat = Stat::parse(&format!("7 (a) Z 9 (b) {fields}")).unwrap();
        assert!(stat.started == 4711 && !stat.has_ended);
        assert!(Stat::parse("7 (a) S 1").is_none() && Stat::parse("").is_none());
    }
}
