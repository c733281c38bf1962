//! The state folder. It is created with access for its owner only. It is refused if it belongs to another
//! user or if others may write to it: they could replace reservations, claims and records of moves.

use std::{
    fmt, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use control::Failure;
use rustix::fs::Access;
use volume::is_ours;

use crate::atomic_file;

/// Creates a folder of records with mode 0700 if it does not exist, and refuses it as [`check`] does. Missing folders
/// above it are created, too. All their names are stable on return: if a power cut removed the name of a folder, the
/// records in it would be lost.
///
/// # Errors
/// The system's error; [`io::ErrorKind::PermissionDenied`] if the folder belongs to another user or others may write
/// to it.
pub fn make(folder: &Path) -> io::Result<()> {
    atomic_file::make_folder(folder, 0o700)?;
    match refusal(folder)? {
        Some(refusal) => Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal.to_string())),
        None => Ok(()),
    }
}

/// Fails if a folder belongs to another user (neither root nor the user of this process), or if group or others may
/// write to it. Accepts a missing folder, which will be created.
pub fn check(folder: &Path) -> Result<(), Failure> {
    match refusal(folder) {
        Ok(None) => Ok(()),
        Ok(Some(refusal)) => Err(Failure::new(&refusal).remedy(refusal.remedy())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => {
            let message = format!("cannot look at the state folder {}: {error}", folder.display());
            Err(Failure::new(message).remedy("name a folder of this user with `state`"))
        }
    }
}

/// Checks that records can be written into a folder, or that it can be created. Changes nothing.
pub fn can_be_used(folder: &Path) -> Result<(), Failure> {
    let cannot = |error: io::Error| {
        Failure::new(format!("the state folder {} cannot be used: {error}", folder.display()))
            .remedy("give the user of this process write access to it, or name another folder with `state`")
    };
    let found = folder.ancestors().find_map(|above| Some((above, above.metadata().ok()?)));
    let Some((above, found)) = found else { return Ok(()) };
    if !found.is_dir() {
        let what = format!("{} is not a folder", above.display());
        return Err(cannot(io::Error::new(io::ErrorKind::NotADirectory, what)));
    }
    let access = Access::WRITE_OK | Access::EXEC_OK;
    rustix::fs::access(above, access).map_err(|error| cannot(error.into()))
}

/// A state folder that is refused because another user may write to it.
struct UnsafeStateFolder {
    folder: PathBuf,
    /// User id of the folder's owner, if that is neither root nor the user of this process.
    other: Option<u32>,
    mode: u32,
}

impl UnsafeStateFolder {
    fn remedy(&self) -> String {
        let folder = self.folder.display();
        match self.other {
            Some(_) => format!(
                "chown {} {folder}, and check its content; or start forebay as the user that owns it",
                rustix::process::geteuid().as_raw()
            ),
            None => format!("chmod go-w {folder}, and check its content"),
        }
    }
}

impl fmt::Display for UnsafeStateFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, other, mode } = self;
        let folder = folder.display();
        match other {
            Some(owner) => write!(
                f,
                "the state folder {folder} belongs to another user (number {owner}), who could replace its content"
            ),
            None => write!(
                f,
                "group or others may write to the state folder {folder} (mode {mode:04o})"
            ),
        }
    }
}

/// Returns the reason why `folder` cannot be used safely as a state folder; `None` if it can.
fn refusal(folder: &Path) -> io::Result<Option<UnsafeStateFolder>> {
    let found = std::fs::metadata(folder)?;
    if !found.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is not a folder"));
    }
    let (mode, other) = (found.mode() & 0o7777, (!is_ours(&found)).then_some(found.uid()));
    let is_refused = other.is_some() || mode & 0o022 != 0;
    Ok(is_refused.then(|| UnsafeStateFolder { folder: folder.to_owned(), other, mode }))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, chown},
    };

    use super::*;

    #[test]
    fn a_folder_that_others_may_write_to_is_refused_and_a_new_one_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("deeper/state");
        check(&state).unwrap();
        make(&state).unwrap();
        assert_eq!(fs::metadata(&state).unwrap().mode() & 0o7777, 0o700);
        for mode in [0o777, 0o1777, 0o770] {
            fs::set_permissions(&state, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(make(&state).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            let failure = check(&state).unwrap_err();
            assert!(failure.message.contains(&format!("(mode {mode:04o})")), "{failure}");
            assert!(failure.remedy.unwrap().starts_with("chmod go-w "));
        }
        fs::set_permissions(&state, fs::Permissions::from_mode(0o755)).unwrap();
        make(&state).unwrap();
        check(&state).unwrap();
    }

    #[test]
    fn a_folder_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("left out: it needs the right to give a folder to another user");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        make(&state).unwrap();
        chown(&state, Some(65_534), None).unwrap();
        assert_eq!(make(&state).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        let failure = check(&state).unwrap_err();
        assert!(failure.message.contains("belongs to another user (number 65534)"), "{failure}");
        assert!(failure.remedy.unwrap().starts_with("chown 0 "));
        chown(&state, Some(0), None).unwrap();
        make(&state).unwrap();
        check(&state).unwrap();
    }
}
