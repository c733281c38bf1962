//! Files that are replaced as a whole: after a crash it is the old one or the new one.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Puts `bytes` in place of what is in the file, which only its owner reads. The new file is whole
/// and stable before it takes the old one's name, and the name is stable before this returns.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    prepare(path, bytes)?;
    fs::rename(beside(path, "new"), path)?;
    settle_names(path)
}

/// The first part of that: the new file lies beside the old one, stable, with `new` behind its name.
pub fn prepare(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = beside(path, "new");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(new)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The path with this behind its name.
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(ending);
    path.with_file_name(name)
}

/// Makes the names in the folder of this file stable.
pub fn settle_names(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
