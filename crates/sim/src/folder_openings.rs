//! Counts how often a folder is opened: a program that makes names stable must open their folder to sync it.

use std::{io, mem::MaybeUninit, path::Path};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

/// Counts how often a process opens the folder itself while `act` runs. The number does not include openings of files
/// in the folder.
///
/// # Panics
/// If the system cannot watch the folder.
pub fn openings_of<T>(folder: &Path, act: impl FnOnce() -> T) -> (usize, T) {
    let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).expect("inotify");
    inotify::add_watch(&watch, folder, WatchFlags::OPEN | WatchFlags::ONLYDIR).expect("a watch");
    let done = act();
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = Reader::new(watch, &mut buffer);
    let mut count = 0;
    loop {
        match events.next() {
            Ok(event)
                if event.file_name().is_none() && event.events().contains(ReadFlags::OPEN) =>
            {
                count += 1;
            }
            Ok(_) => {}
            Err(error) => {
                assert_eq!(io::Error::from(error).kind(), io::ErrorKind::WouldBlock);
                return (count, done);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openings_of_a_folder_are_counted_and_openings_of_its_files_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = || std::fs::write(folder.path().join("file"), "").expect("written");
        assert_eq!(openings_of(folder.path(), write).0, 0);
        let open = || std::fs::File::open(folder.path()).expect("opened");
        assert_eq!(openings_of(folder.path(), open).0, 1);
    }
}
