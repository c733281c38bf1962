//! Creates and reads files with the master key of a drive.

use std::path::Path;

use config::private_file::{self, PrivateFileError, PrivateFileRule};
use control::Failure;
use initiator::KeyChain;
use zeroize::Zeroizing;

use super::hex;
use crate::secret::create;

/// Maximum number of bytes of a key file that are read. A key has fewer: in a longer file, the message names the wrong
/// line.
const FILE_BYTES: u64 = 4096;

/// Creates a file with a random master key. Fails if the file exists: the key of a drive must never be lost.
pub fn make(path: &Path) -> Result<(), Failure> {
    let mut random = Zeroizing::new([0; 64]);
    getrandom::fill(&mut *random).map_err(Failure::new)?;
    let (authentication, generation) = random.split_at(32);
    let lines = [authentication, generation].map(|key| Zeroizing::new(hex::encode(key)));
    let text = Zeroizing::new(format!("{}\n{}\n", *lines[0], *lines[1]));
    create(path, text.as_bytes())
}

pub fn read(path: &Path) -> Result<KeyChain, Failure> {
    let shown = path.display();
    let read = private_file::read(path, "the key file", PrivateFileRule::Secret, FILE_BYTES);
    let content = read.map_err(|error| refused(error, &format!("the key file {shown}")))?;
    KeyChain::parse(&content).map_err(|error| {
        Failure::settings(format!("the key file {shown} {error}"))
            .remedy("restore it from a copy, or name the file that `forebay object key` has made for this drive")
    })
}

/// Returns the failure for a secret file that cannot be used. `what` names the file in the message.
pub fn refused(error: PrivateFileError, what: &str) -> Failure {
    match error {
        PrivateFileError::Unreadable(error) => {
            Failure::settings(format!("cannot read {what}: {error}"))
                .remedy("name a file that exists and that you can read")
        }
        PrivateFileError::Unfit(message, remedy) => Failure::settings(message).remedy(remedy),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn a_new_key_is_private_and_replaces_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("drive.key");
        make(&path).unwrap();
        let content = fs::read_to_string(&path).unwrap();
        assert!(content.lines().all(|line| line.len() == 64) && content.lines().count() == 2);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(make(&path).unwrap_err().remedy.is_some());
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
        read(&path).unwrap();
    }

    #[test]
    fn a_key_file_that_is_wrong_or_open_to_others_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("drive.key");
        let said = || {
            let failure = read(&path).unwrap_err();
            assert!(failure.remedy.is_some(), "{}", failure.message);
            failure.message
        };
        assert!(said().contains("cannot read the key file"));
        let (line, other) = ("0a".repeat(32), "0b".repeat(32));
        for (content, reason) in [
            (String::new(), "has 1 lines"),
            (format!("{line}\n"), "has 1 lines"),
            (format!("{line}\n{other}\n{line}\n"), "has 3 lines"),
            (format!("{line}\n{other}0\n"), "line 2 has 65 characters"),
            (format!("{line}\n{line}\n"), "two equal lines"),
            (format!("{line}\n{}\n", "0x".repeat(32)), "line 2 has a character"),
            ("0".repeat(5000), "more than 4096 bytes"),
        ] {
            create(&path, content.as_bytes()).unwrap();
            let said = said();
            assert!(said.contains(reason) && !said.contains(&line), "{said}");
            fs::remove_file(&path).unwrap();
        }
        make(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(said().contains("open to others"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        read(&path).unwrap();
    }
}
