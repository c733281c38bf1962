//! A folder that a workload makes in its place, for itself.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::Error;

/// A folder of one run, which goes with all that is in it when this is dropped, whatever became of
/// the run.
pub(crate) struct Made(PathBuf);

impl Made {
    /// Makes it below `folder`, with a name that nobody else has.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn folder(folder: &Path, name: &str) -> Result<Self, Error> {
        let own = folder.join(format!("forebay-{name}-{}", std::process::id()));
        fs::create_dir(&own).map_err(Error::system(format!("make {}", own.display())))?;
        Ok(Self(own))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
