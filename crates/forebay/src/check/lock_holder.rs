//! Finds the process that has locked a file, as the kernel reports it.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

/// Returns the process that holds a lock on the file of `flock(2)`: number and name. `None` if the kernel shows none,
/// for example a process in another container.
pub fn holder(path: &Path) -> Option<String> {
    let file = fs::metadata(path).ok()?;
    let (major, minor) = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
    let id = format!("{major:02x}:{minor:02x}:{}", file.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let process = locks.lines().find_map(|line| process_of(line, &id))?;
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    Some(format!("{process} ({})", name.trim()))
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
        assert_eq!(holder(file.path()), None);
        file.as_file().lock().expect("free");
        let holder = holder(file.path()).expect("locked");
        assert!(holder.starts_with(&format!("{} (", std::process::id())), "{holder}");
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
