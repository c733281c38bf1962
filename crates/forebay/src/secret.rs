//! `forebay secret`: writes a random CHAP secret to a new file.

use std::{
    fs::File,
    io::{ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use control::Failure;
use stack::atomic_file;
use zeroize::Zeroizing;

use crate::cli::SecretArgs;

/// Alphabet of secrets, six bits per character (base64). Every initiator accepts these characters in its settings.
const CHARACTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Creates a file with a random secret. Fails if the file exists.
pub fn make(args: &SecretArgs) -> Result<(), Failure> {
    let mut random = Zeroizing::new(vec![0; args.characters.into()]);
    getrandom::fill(&mut random).map_err(Failure::new)?;
    let mut text = Zeroizing::new(Vec::with_capacity(random.len() + 1));
    text.extend(random.iter().map(|byte| CHARACTERS[usize::from(byte % 64)]));
    text.push(b'\n');
    create(&args.file, &text)
}

/// Creates a file that only its owner can read. Fails if the file exists.
pub fn create(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let file = File::options().write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()?;
        // Sync the name of the file, too: if a power cut lost the secret, a key that it wraps would be useless.
        atomic_file::settle_names(path)
    });
    written.map_err(|error| {
        let failure = Failure::new(format!("cannot make {}: {error}", path.display()));
        match error.kind() {
            ErrorKind::AlreadyExists => failure.remedy("name another file, or remove this one"),
            _ => failure,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without this sync, a power cut can lose the file's name, and with the secret every key that it wraps.
    #[test]
    fn the_name_of_a_new_secret_is_synced() {
        let folder = tempfile::tempdir().unwrap();
        let secret = SecretArgs { file: folder.path().join("secret"), characters: 64 };
        assert_eq!(sim::openings_of(folder.path(), || make(&secret).is_ok()), (1, true));
    }
}
