//! Programs that are not part of Forebay, and the Debian packages that contain them.

use std::{fmt, path::PathBuf};

/// A program that a workload needs, and the Debian package that contains it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Tool {
    pub program: &'static str,
    pub package: &'static str,
}

/// A program that is not installed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0} is not installed (Debian's package {package})", package = .0.package)]
pub struct Missing(pub Tool);

impl Tool {
    /// Returns the path of the installed program.
    ///
    /// # Errors
    /// [`Missing`].
    pub fn find(self) -> Result<PathBuf, Missing> {
        program::find(self.program)
            .or_else(|| {
                let mut files = of_postgresql().into_iter().map(|folder| folder.join(self.program));
                files.find(|file| file.is_file())
            })
            .ok_or(Missing(self))
    }
}

/// Returns the folders in which Debian installs PostgreSQL's programs, the newest version first.
fn of_postgresql() -> Vec<PathBuf> {
    let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let folders = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = folders.map(|entry| entry.path()).collect();
    folders.sort_by_key(|path| std::cmp::Reverse(version(path)));
    folders.into_iter().map(|folder| folder.join("bin")).collect()
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program)
    }
}
