//! Finds the process that has locked a file, as the kernel reports it.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

/// Returns the number of the process that holds a lock on the file of `flock(2)`. `None` if the kernel shows none, for
/// example a process in another container.
pub fn process(path: &Path) -> Option<u32> {
    let file = fs::metadata(path).ok()?;
    let (major, minor) = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
    let id = format!("{major:02x}:{minor:02x}:{}", file.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| process_of(line, &id))
}

/// Returns the number and the name of a process.
pub fn describe(process: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    format!("{process} ({})", name.trim())
}

/// Returns true if the process has the number `own` here, or in the container in which it runs.
pub fn has_number(process: u32, own: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mut numbers = status.lines().filter_map(|line| line.strip_prefix("NSpid:"));
    let inner = numbers.next().and_then(|numbers| numbers.split_whitespace().next_back());
    process == own || inner.and_then(|inner| inner.parse().ok()) == Some(own)
}

/// Returns the number of the process, if the line is a lock on the file with this id. A line such as
/// `1: FLOCK  ADVISORY  WRITE 10394 fe:00:9979254 0 EOF` is a lock that is held; with `->` it waits.
fn process_of(line: &str, id: &str) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        [_, "FLOCK", _, _, process, file, ..] if file == id => process.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_that_has_a_file_locked_is_found() {
        let file = tempfile::NamedTempFile::new().expect("made");
        assert_eq!(process(file.path()), None);
        file.as_file().lock().expect("free");
        let holder = process(file.path()).expect("locked");
        let own = std::process::id();
        assert!(describe(holder).starts_with(&format!("{own} (")), "{}", describe(holder));
        assert!(has_number(holder, own) && !has_number(holder, own + 1));
    }

    #[test]
    fn a_lock_that_waits_and_one_on_another_file_do_not_count() {
        let line = "1: FLOCK  ADVISORY  WRITE 10394 fe:00:9979254 0 EOF";
        assert_eq!(process_of(line, "fe:00:9979254"), Some(10394));
        assert_eq!(process_of(line, "fe:00:997925"), None);
        let waits = "1: -> FLOCK  ADVISORY  WRITE 10395 fe:00:9979254 0 EOF";
        assert_eq!(process_of(waits, "fe:00:9979254"), None);
        assert_eq!(process_of("", "fe:00:9979254"), None);
    }
}
