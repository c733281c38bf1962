//! Computes checksums of files as they are on the storage. The page cache is bypassed.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    hash::{DefaultHasher, Hasher},
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::fs::{Advice, fadvise, syncfs};

use crate::Error;

/// Bytes of one read. It is large, so that the cost of system calls does not matter.
const PIECE: usize = 256 * 1024;

/// Size, time and checksum of a file, for comparisons.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Sum {
    pub(crate) length: u64,
    /// Time of the last modification, in seconds since 1970.
    pub(crate) changed: i64,
    /// Checksum of a file's content (SipHash, 64 bits), which detects errors but no attacks.
    pub(crate) hash: u64,
}

/// Writes out all files of a folder and drops them from the page cache, so that the next read comes from the storage.
///
/// # Errors
/// If the storage fails to write data. The application may not have waited for that data.
pub(crate) fn forget(folder: &Path) -> Result<(), Error> {
    let failed = || Error::system(format!("write out {}", folder.display()));
    let whole = File::open(folder).map_err(failed())?;
    syncfs(&whole).map_err(|error| failed()(error.into()))?;
    for path in files(folder)? {
        let file = File::open(&path).map_err(Error::system(format!("open {}", path.display())))?;
        // This call drops clean pages only. If a file system does not support the call, later reads
        // come from memory.
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
    }
    Ok(())
}

/// Returns the checksum of every file in a folder, by the path of the file in it.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn sums(folder: &Path) -> Result<BTreeMap<PathBuf, Sum>, Error> {
    let of = |path: PathBuf| {
        let sum = sum(&path).map_err(Error::system(format!("read {}", path.display())))?;
        Ok((path.strip_prefix(folder).expect("it is in it").to_owned(), sum))
    };
    files(folder)?.into_iter().map(of).collect()
}

/// Compares the checksums of the files in two folders. Returns the first path at which they differ.
pub(crate) fn difference<'a>(
    one: &'a BTreeMap<PathBuf, Sum>,
    other: &'a BTreeMap<PathBuf, Sum>,
) -> Option<&'a Path> {
    let held = |sums: &BTreeMap<PathBuf, Sum>, path: &PathBuf| {
        sums.get(path).map(|sum| (sum.length, sum.hash))
    };
    let mut all = one.keys().chain(other.keys());
    all.find(|path| held(one, path) != held(other, path)).map(PathBuf::as_path)
}

fn sum(path: &Path) -> std::io::Result<Sum> {
    let mut file = File::open(path)?;
    let about = file.metadata()?;
    let (mut hasher, mut piece, mut length) = (DefaultHasher::new(), vec![0; PIECE], 0);
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 {
            return Ok(Sum { length, changed: about.mtime(), hash: hasher.finish() });
        }
        hasher.write(&piece[..read]);
        length += read as u64;
    }
}

/// Lists the files in a folder and its subfolders, without symbolic links.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |path: &Path| Error::system(format!("read {}", path.display()));
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(failed(&folder))? {
            let entry = entry.map_err(failed(&folder))?;
            let kind = entry.file_type().map_err(failed(&folder))?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_a_lost_and_a_new_file_are_differences() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("d")).unwrap();
        fs::write(path("d/a"), "one").unwrap();
        fs::write(path("b"), "two").unwrap();
        let before = sums(folder.path()).unwrap();
        forget(folder.path()).unwrap();
        assert_eq!(difference(&before, &sums(folder.path()).unwrap()), None);
        fs::write(path("d/a"), "onE").unwrap();
        let after = sums(folder.path()).unwrap();
        assert_eq!(difference(&before, &after), Some(Path::new("d/a")));
        fs::write(path("d/a"), "one").unwrap();
        fs::write(path("c"), "").unwrap();
        assert_eq!(difference(&before, &sums(folder.path()).unwrap()), Some(Path::new("c")));
        fs::remove_file(path("c")).unwrap();
        fs::remove_file(path("b")).unwrap();
        assert_eq!(difference(&before, &sums(folder.path()).unwrap()), Some(Path::new("b")));
    }
}
