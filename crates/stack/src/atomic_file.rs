//! Atomic replacement of files: after a crash, a file has either the old or the new content.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Replaces the content of a file that only its owner may read. Crash order: the new file is complete and stable before
/// it is renamed over the old one, and the renaming is stable when this returns.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    prepare(path, bytes)?;
    fs::rename(beside(path, "new"), path)?;
    settle_names(path)
}

/// Does the first step of [`replace`]: writes the new file next to the old one, with `new` appended to its name. The
/// new file is stable when this returns.
///
/// Removes a file of that name first, which a crash may have left. The new file is always created and never opened, so
/// that a link with that name cannot lead to another file.
pub fn prepare(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = beside(path, "new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(new)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Returns the path with `.` and `ending` appended.
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(ending);
    path.with_file_name(name)
}

/// Syncs the folder of this file, so that the names in the folder are stable.
pub fn settle_names(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Makes a folder and the missing ones above it, with this mode. All their names are stable when this returns: if a
/// power cut removed the name of a folder, the files in it would be lost, too.
pub fn make_folder(folder: &Path, mode: u32) -> io::Result<()> {
    let missing = folder.ancestors().take_while(|above| !above.exists()).count();
    DirBuilder::new().recursive(true).mode(mode).create(folder)?;
    // Sync the folders that exist already, too: a process that was killed may have made one without making its name
    // stable.
    folder.ancestors().take(missing.max(1)).try_for_each(settle_names)
}

/// Returns the content of a file that [`replace`] writes. Links are not followed.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    volume::open_own(path, false, false)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Making a name stable opens its parent folder, so the test counts these openings. A folder that a killed
    /// process has left must be synced, too: its name may not be stable.
    #[test]
    fn the_names_of_new_folders_and_of_replaced_files_are_synced() {
        let folder = tempfile::tempdir().unwrap();
        let deeper = folder.path().join("deeper");
        let state = deeper.join("state");
        let make = || make_folder(&state, 0o700).unwrap();
        assert_eq!(sim::openings_of(folder.path(), make).0, 1, "the name of the first folder");
        assert_eq!(sim::openings_of(&deeper, make).0, 1, "a name that a killed process has left");
        let write = || replace(&state.join("record"), b"bytes").unwrap();
        assert_eq!(sim::openings_of(&state, write).0, 1, "the name of a record");
    }

    #[test]
    fn a_link_in_the_place_of_a_record_or_of_its_new_file_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("record"), folder.path().join("victim"));
        fs::write(&victim, "untouched").unwrap();
        symlink(&victim, beside(&path, "new")).unwrap();
        replace(&path, b"first").unwrap();
        assert_eq!(read(&path).unwrap(), b"first");
        fs::remove_file(&path).unwrap();
        symlink(&victim, &path).unwrap();
        assert!(read(&path).is_err());
        replace(&path, b"second").unwrap();
        assert_eq!(read(&path).unwrap(), b"second");
        assert_eq!(fs::read(&victim).unwrap(), b"untouched");
    }
}
