//! A folder for the files of a run. The run makes, marks and locks it. If the run is killed, the
//! next run removes its files. Folders without the mark are not touched.

use std::{
    fs::{self, DirBuilder, DirEntry, File},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::Error;

/// Name of the file that marks a folder as made by a run.
const MARK: &str = ".forebay-lab";
const WORDS: &str =
    "Made by `forebay lab run`. The next run here removes what is in this folder.\n";
/// Folder with a node's records about its storage, next to the node's settings. Remove it with the
/// files that the records describe.
const RECORDS: &str = "forebay-state";
/// Number of attempts to make and lock the folder. Another run that ends may remove the folder
/// while this one opens it, but not this many times.
const ATTEMPTS: usize = 8;

/// A folder that this run has locked. Dropping it removes the folder if it has no content besides
/// the mark.
pub(crate) struct LabRunFolder {
    path: PathBuf,
    /// The open folder, whose handle holds the lock against other runs.
    lock: File,
}

impl LabRunFolder {
    /// Makes the folder, or locks the one that an earlier run has left.
    ///
    /// # Errors
    /// [`Error::Folder`] if another run uses the folder, or it was not made by a run. Its content
    /// is unchanged then.
    pub fn take(path: &Path) -> Result<Self, Error> {
        for _ in 0..ATTEMPTS {
            if let Some(folder) = Self::attempt(path)? {
                return Ok(folder);
            }
        }
        Err(Error::Folder(format!("other runs use {}", path.display())))
    }

    fn attempt(path: &Path) -> Result<Option<Self>, Error> {
        let shown = path.display();
        let refused =
            |why: &str| Err(Error::Folder(format!("{shown} {why}; nothing in it was changed")));
        // Mode 711: servers of workloads run as other users, and must pass through the folder to
        // reach mounts in it. They cannot list its content.
        match DirBuilder::new().mode(0o711).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::file("make", path)(error));
            }
            _ => {}
        }
        let flags = (OFlags::DIRECTORY | OFlags::NOFOLLOW).bits().cast_signed();
        let lock = match File::options().read(true).custom_flags(flags).open(path) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(_) if !fs::symlink_metadata(path).is_ok_and(|it| it.is_dir()) => {
                return refused("is not a folder");
            }
            Err(error) => return Err(Error::file("open", path)(error)),
        };
        let opened = lock.metadata().map_err(Error::file("look at", path))?;
        if opened.uid() != rustix::process::geteuid().as_raw() {
            return refused("belongs to another user");
        }
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(Error::Folder(format!("another run uses {shown}")));
        }
        match fs::symlink_metadata(path) {
            Ok(now) if (now.dev(), now.ino()) == (opened.dev(), opened.ino()) => {}
            // Another run has removed the folder at the same time: try again.
            _ => return Ok(None),
        }
        let mark = path.join(MARK);
        if !fs::symlink_metadata(&mark).is_ok_and(|it| it.is_file()) {
            if fs::read_dir(path).map_err(Error::file("read", path))?.next().is_some() {
                return refused("was not made by a run of the laboratory");
            }
            let made = File::options().write(true).create_new(true).open(&mark);
            let written = made.and_then(|mut file| file.write_all(WORDS.as_bytes()));
            written.map_err(Error::file("write", &mark))?;
        }
        Ok(Some(Self { path: path.to_owned(), lock }))
    }

    /// Removes everything that an earlier run has left, including folders with content. Fails if a
    /// file system is mounted there.
    pub fn empty(&self) -> Result<(), Error> {
        let here = self.lock.metadata().map_err(Error::file("look at", &self.path))?.dev();
        for entry in self.entries()? {
            let path = entry.path();
            let about = fs::symlink_metadata(&path).map_err(Error::file("look at", &path))?;
            if about.dev() != here {
                return Err(Error::Folder(format!(
                    "something is mounted at {}: unmount it first",
                    path.display()
                )));
            }
            let removed =
                if about.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(Error::file("remove", &path))?;
        }
        Ok(())
    }

    /// Removes the files and empty folders of a site that has ended.
    pub fn clear(&self) -> Result<(), Error> {
        for entry in self.entries()? {
            let path = entry.path();
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if entry.file_name() == RECORDS {
                fs::remove_dir_all(&path).map_err(Error::file("remove", &path))?;
                continue;
            }
            let removed = if is_folder { fs::remove_dir(&path) } else { fs::remove_file(&path) };
            removed.map_err(Error::file("remove", &path))?;
        }
        Ok(())
    }

    /// Lists the content of the folder, without the mark.
    fn entries(&self) -> Result<Vec<DirEntry>, Error> {
        let failed = || Error::file("read", &self.path);
        let listed = fs::read_dir(&self.path).map_err(failed())?;
        let listed = listed.collect::<io::Result<Vec<_>>>().map_err(failed())?;
        Ok(listed.into_iter().filter(|entry| entry.file_name() != MARK).collect())
    }
}

impl Drop for LabRunFolder {
    fn drop(&mut self) {
        // Keep the mark of a folder with content, so that the next run can use the folder.
        if self.entries().is_ok_and(|left| left.is_empty()) {
            let _ = fs::remove_file(self.path.join(MARK));
            let _ = fs::remove_dir(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path) -> String {
        match LabRunFolder::take(path) {
            Err(Error::Folder(why)) => why,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("{} was taken", path.display()),
        }
    }

    #[test]
    fn a_run_folder_has_one_user_at_a_time_and_is_emptied_by_the_next_run() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("work");
        let first = LabRunFolder::take(&path).unwrap();
        fs::create_dir(path.join(RECORDS)).unwrap();
        fs::write(path.join(RECORDS).join("0a.storage"), "a record").unwrap();
        first.clear().unwrap();
        assert!(!path.join(RECORDS).exists(), "records go with the files they are about");
        fs::create_dir_all(path.join("volume/deep")).unwrap();
        fs::write(path.join("volume/deep/file"), "data").unwrap();
        assert!(refusal(&path).contains("another run uses"));
        assert!(first.clear().is_err(), "what is not empty stays");
        drop(first);
        assert!(path.join("volume/deep/file").exists(), "as after a run that was killed");
        let next = LabRunFolder::take(&path).unwrap();
        next.empty().unwrap();
        assert!(!path.join("volume").exists());
        assert!(refusal(&path).contains("another run uses"), "it is locked still");
        drop(next);
        assert!(!path.exists());
    }

    #[test]
    fn folders_that_no_run_has_made_are_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let own = place.path().join("own");
        fs::create_dir(&own).unwrap();
        fs::write(own.join("thesis"), "years of work").unwrap();
        assert!(refusal(&own).contains("not made by a run"));
        assert!(own.join("thesis").exists());
        let other = place.path().join("other");
        std::os::unix::fs::symlink(&own, &other).unwrap();
        assert!(refusal(&other).contains("is not a folder"));
        fs::write(place.path().join("file"), "").unwrap();
        assert!(refusal(&place.path().join("file")).contains("is not a folder"));
        if rustix::process::geteuid().is_root() {
            let foreign = place.path().join("foreign");
            fs::create_dir(&foreign).unwrap();
            std::os::unix::fs::chown(&foreign, Some(12345), None).unwrap();
            assert!(refusal(&foreign).contains("belongs to another user"));
            assert!(foreign.exists() && !foreign.join(MARK).exists());
        }
        assert_eq!(fs::read_dir(&own).unwrap().count(), 1);
    }
}
