//! Finds out whether an open file is still the one that its name leads to.

use std::{fmt, fs::File, io, os::unix::fs::MetadataExt, path::Path};

/// A change of an open file by another program: removed, renamed, replaced or truncated.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OpenFileChange {
    /// The file has no name any more: its data is lost when it is closed.
    Removed,
    /// The file has another name now, and its former name does not exist any more.
    Renamed,
    /// The file's name now belongs to another file.
    Replaced,
    /// The file has become smaller than the volume needs.
    CutShort {
        /// The present size of the file in bytes.
        found: u64,
        /// The size in bytes that the file must have at least.
        expected: u64,
    },
}

impl OpenFileChange {
    /// Returns the change of `file`, which was opened as `path` and must have at least `bytes` bytes; `None`
    /// if there is none. For a device only the size is compared. An error of the system counts as no change: a
    /// file system that does not answer, or that denies access, has not lost the file.
    #[must_use]
    pub fn of(file: &File, path: &Path, bytes: u64) -> Option<Self> {
        let own = file.metadata().ok()?;
        if own.is_file() {
            if own.nlink() == 0 {
                return Some(Self::Removed);
            }
            match std::fs::metadata(path) {
                Ok(found) if (found.dev(), found.ino()) != (own.dev(), own.ino()) => {
                    return Some(Self::Replaced);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Some(Self::Renamed);
                }
                _ => {}
            }
        }
        Self::of_size(file, bytes)
    }

    /// Returns [`Self::CutShort`] if a file or device has fewer than `bytes` bytes.
    pub(crate) fn of_size(file: &File, bytes: u64) -> Option<Self> {
        let found = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).ok()?;
        (found < bytes).then_some(Self::CutShort { found, expected: bytes })
    }

    /// Returns true if the file is complete and only its name has changed: writes can be allowed again once the
    /// administrator has restored the name.
    #[must_use]
    pub fn may_pass(self) -> bool {
        matches!(self, Self::Renamed | Self::Replaced)
    }
}

impl fmt::Display for OpenFileChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Removed => f.write_str("its file was removed while in use"),
            Self::Renamed => f.write_str("its file was renamed while in use"),
            Self::Replaced => f.write_str("another file took the name of its file while in use"),
            Self::CutShort { found, expected } => {
                write!(f, "its file was truncated to {found} of {expected} bytes while in use")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_change_of_a_file_is_reported_and_also_its_return() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, other) = (folder.path().join("file"), folder.path().join("other"));
        fs::write(&path, [1; 100]).expect("written");
        let file = File::options().read(true).write(true).open(&path).expect("opened");
        let change = || OpenFileChange::of(&file, &path, 100);
        assert_eq!(change(), None);
        fs::rename(&path, &other).expect("renamed");
        assert_eq!(change(), Some(OpenFileChange::Renamed));
        fs::write(&path, [1; 100]).expect("written");
        assert_eq!(change(), Some(OpenFileChange::Replaced));
        fs::rename(&other, &path).expect("renamed");
        assert_eq!(change(), None);
        file.set_len(200).expect("grown");
        assert_eq!(change(), None);
        file.set_len(99).expect("cut");
        assert_eq!(change(), Some(OpenFileChange::CutShort { found: 99, expected: 100 }));
        fs::remove_file(&path).expect("removed");
        assert_eq!(change(), Some(OpenFileChange::Removed));
    }
}
