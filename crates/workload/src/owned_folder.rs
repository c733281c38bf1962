//! A temporary folder of a workload.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use rustix::fs::statvfs;

use crate::Error;

/// A folder that a workload has made. Dropping the value removes the folder with its content.
pub(crate) struct OwnedFolder(PathBuf);

impl OwnedFolder {
    /// Makes a folder with this name in `parent`, which must have `space` bytes free.
    ///
    /// # Errors
    /// [`Error::Space`]; or if the folder exists. An existing folder is not used, since its owner
    /// is unknown.
    pub(crate) fn make(parent: &Path, name: &str, space: u64) -> Result<Self, Error> {
        let about = statvfs(parent).map_err(|error| {
            Error::system(format!("look at {}", parent.display()))(error.into())
        })?;
        let free = about.f_bavail * about.f_frsize;
        if free < space {
            return Err(Error::Space { needed: space, free });
        }
        // Make the path absolute, because programs with another working directory get it.
        let failed = Error::system(format!("find {}", parent.display()));
        let path = parent.canonicalize().map_err(failed)?.join(name);
        match fs::create_dir(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let path = path.display();
                let what = "another run uses it, or a run that was killed left it; remove it if no other run uses it";
                return Err(Error::Settings(format!("{path} exists already: {what}")));
            }
            made => made.map_err(Error::system(format!("make {}", path.display())))?,
        }
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Removes the folder now.
    ///
    /// # Errors
    /// If the file system refuses it, which indicates a fault of the storage.
    pub(crate) fn remove(self) -> Result<(), Error> {
        fs::remove_dir_all(&self.0).map_err(Error::system(format!("remove {}", self.0.display())))
    }
}

impl Drop for OwnedFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_existed_before_is_not_removed() {
        let parent = tempfile::tempdir().unwrap();
        let own = OwnedFolder::make(parent.path(), "own", 1).unwrap();
        fs::write(own.path().join("file"), "x").unwrap();
        assert!(OwnedFolder::make(parent.path(), "own", 1).is_err());
        assert!(own.path().join("file").exists());
        drop(own);
        assert!(!parent.path().join("own").exists());
        let error = OwnedFolder::make(parent.path(), "own", u64::MAX).err().unwrap();
        assert!(matches!(error, Error::Space { .. }), "{error}");
    }
}
