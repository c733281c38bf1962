//! Opens and reads files with secrets. The owner, type and mode of a file are checked before it is read, so that a
//! pipe, a link or a file of another user is never used in its place.

use std::{
    io::{self, Read},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use volume::{OpenNamed, UntrustedLink, is_ours};
use zeroize::Zeroizing;

/// The owner and mode that a file must have, or it is not read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PrivateFileRule {
    /// A file that may have any owner and mode, such as a certificate.
    Public,
    /// The file belongs to root or to the user of this process: a wrapped key, which other users must not be able to
    /// replace.
    Owned,
    /// As with `Owned`, and other users must not have any access to the file.
    Secret,
}

/// The reason why a file is not read.
pub enum PrivateFileError {
    /// The system could not open or read the file.
    Unreadable(io::Error),
    /// The file must not be used: the reason, and the remedy.
    Unfit(String, String),
}

/// Returns the content of a plain file of at most `most` bytes. `what` names it in messages ("the secret").
pub fn read(
    path: &Path,
    what: &str,
    guard: PrivateFileRule,
    most: u64,
) -> Result<Zeroizing<Vec<u8>>, PrivateFileError> {
    let shown = path.display();
    let unfit = |why: String, remedy: String| {
        PrivateFileError::Unfit(format!("{what} {shown} {why}"), remedy)
    };
    let opened =
        OpenNamed::default().open(path).map_err(|error| match UntrustedLink::of(&error) {
            Some(link) => unfit(format!("cannot be used: {link}"), link.remedy()),
            None => PrivateFileError::Unreadable(error),
        })?;
    let mut file = opened.file;
    let found = file.metadata().map_err(PrivateFileError::Unreadable)?;
    if !found.is_file() {
        return Err(unfit("is not a plain file".into(), "name a plain file".into()));
    }
    if guard != PrivateFileRule::Public && !is_ours(&found) {
        let us = rustix::process::geteuid().as_raw();
        return Err(unfit(
            format!("belongs to another user (user number {})", found.uid()),
            format!("if its content is yours, chown {us} {shown}; else name another file"),
        ));
    }
    let mode = found.permissions().mode();
    if guard == PrivateFileRule::Secret && mode & 0o077 != 0 {
        return Err(unfit(
            format!("is open to others (mode {:03o})", mode & 0o777),
            format!("chmod 600 {shown}"),
        ));
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(found.len().min(most) as usize + 1));
    (&mut file).take(most + 1).read_to_end(&mut bytes).map_err(PrivateFileError::Unreadable)?;
    if bytes.len() as u64 > most {
        return Err(unfit(format!("has more than {most} bytes"), "name the right file".into()));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn why(path: &Path, guard: PrivateFileRule) -> Option<String> {
        match read(path, "the secret", guard, 100) {
            Ok(_) => None,
            Err(PrivateFileError::Unreadable(error)) => Some(error.to_string()),
            Err(PrivateFileError::Unfit(why, remedy)) => Some(format!("{why}; {remedy}")),
        }
    }

    fn make(path: &Path, bytes: &[u8], mode: u32) {
        fs::write(path, bytes).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_pipe_in_the_place_of_a_secret_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
        for guard in [PrivateFileRule::Public, PrivateFileRule::Owned, PrivateFileRule::Secret] {
            assert!(why(&pipe, guard).unwrap().contains("is not a plain file"));
            assert!(why(folder.path(), guard).unwrap().contains("is not a plain file"));
        }
    }

    #[test]
    fn a_secret_of_another_user_is_refused_by_root_too() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        make(&file, b"twelve bytes", 0o600);
        if std::os::unix::fs::chown(&file, Some(65534), None).is_err() {
            eprintln!("left out: it needs the right to give a file away");
            return;
        }
        for guard in [PrivateFileRule::Owned, PrivateFileRule::Secret] {
            let why = why(&file, guard).unwrap();
            assert!(why.contains("another user (user number 65534)"), "{why}");
            assert!(why.contains(&format!("chown 0 {}", file.display())), "{why}");
        }
        assert_eq!(why(&file, PrivateFileRule::Public), None);
    }

    #[test]
    fn a_secret_that_is_too_long_or_behind_a_link_of_others_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("secret"), folder.path().join("link"));
        make(&file, &[7; 100], 0o600);
        assert_eq!(why(&file, PrivateFileRule::Secret), None);
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(why(&link, PrivateFileRule::Secret), None, "no other user can replace the link");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(why(&link, PrivateFileRule::Secret).unwrap().contains("chmod go-w"));
        make(&file, &[7; 101], 0o600);
        assert!(why(&file, PrivateFileRule::Secret).unwrap().contains("more than 100 bytes"));
    }
}
