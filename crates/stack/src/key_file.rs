//! The key of an encrypted volume, in a file that is encrypted (wrapped) with a secret: `docs/formats/volume-key.md`
//! has its bytes.
//!
//! Crash order of a renewal, which replaces the key and erases the old one:
//!
//! 1. A second name with the suffix `old` keeps the old file accessible.
//! 2. The new key is written next to the file and is stable.
//! 3. The new file is renamed over the old one. From then on the new key is in force, whatever fails later.
//! 4. The bytes of the old file are overwritten, and its second name is removed.
//!
//! The next renewal and the next start do step 4 if a crash has prevented it.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use aes_kw::{KeyInit, KwAes256};
use config::{
    EncryptLayerSettings, SecretWithSource,
    private_file::{self, PrivateFileRule},
    read_secret,
};
use control::Failure;
use crc_fast::{CrcAlgorithm, checksum};
use sha2::{Digest, Sha256};
use volume::{Error, Io, Keyring, Renewed, VolumeKey};
use zeroize::Zeroizing;

use crate::atomic_file;

/// The file with the encrypted key of a volume, and the secret that decrypts this key.
pub struct KeyFile(Arc<LockedKeyFile>);

struct LockedKeyFile {
    path: PathBuf,
    secret: Zeroizing<Vec<u8>>,
}

/// Implements `forebay key`: writes a new key to a new file. Never replaces an existing file.
pub fn make(
    path: &Path,
    secret_file: Option<&Path>,
    secret_env: Option<&str>,
) -> Result<(), Failure> {
    let secret = unlocking(secret_file, secret_env)?;
    let locked = LockedKeyFile { path: path.to_owned(), secret };
    let key = random().map_err(Failure::new)?;
    let bytes = locked.lock(&key).map_err(Failure::new)?;
    let file = File::options().write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| {
        file.write_all(&bytes)?;
        file.sync_all()?;
        // Sync the name: if a power cut took the key file, the encrypted data would be lost.
        atomic_file::settle_names(path)
    });
    written.map_err(|error| {
        let failure = Failure::new(format!("cannot create {}: {error}", path.display()));
        match error.kind() {
            io::ErrorKind::AlreadyExists => failure.remedy(
                "name another file; only if no volume is encrypted with this key, remove it",
            ),
            _ => failure,
        }
    })
}

pub fn open(settings: &EncryptLayerSettings) -> Result<(VolumeKey, KeyFile), Failure> {
    let path = settings.key.clone();
    let secret = unlocking(settings.secret_file.as_deref(), settings.secret_env.as_deref())?;
    let locked = LockedKeyFile { path, secret };
    let shown = locked.path.display();
    let read =
        private_file::read(&locked.path, "the volume's key", PrivateFileRule::Owned, MOST_BYTES);
    let bytes = read.map_err(|refusal| match refusal {
        private_file::PrivateFileError::Unfit(message, remedy) => {
            Failure::new(message).remedy(remedy)
        }
        private_file::PrivateFileError::Unreadable(error) => {
            let failure = Failure::new(format!("cannot read the volume's key {shown}: {error}"));
            match error.kind() {
                io::ErrorKind::NotFound => failure.remedy(format!(
                    "restore it: the encrypted data cannot be read without it; for a new volume, create it \
                     with `forebay key {shown} --secret-file FILE`"
                )),
                _ => failure.remedy("give the user of this process read access to it, and check its disk"),
            }
        }
    })?;
    let key = locked.unlock(&bytes).map_err(|refusal| match refusal {
        KeyUnlockError::NoKeyFile => {
            Failure::new(format!("{shown} is not a key file, or is damaged"))
                .remedy("restore it from a copy: the encrypted data cannot be read without it")
        }
        KeyUnlockError::OtherSecret => Failure::new(format!("the secret does not unlock {shown}"))
            .remedy("name the secret with which it was created, or the key file of this volume"),
    })?;
    // Remove the old key file that a crash during a renewal may have left. An error is only reported, because the
    // present key has been read.
    if let Err(error) = locked.end_renewal() {
        tracing::warn!(
            file = %shown, %error,
            remedy = "give the user of this process write access to the folder of the key file: the \
             next start removes the old file",
            "the old file of an erased key cannot be removed"
        );
    }
    Ok((key, KeyFile(Arc::new(locked))))
}

fn unlocking(file: Option<&Path>, env: Option<&str>) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let unusable = |(message, remedy)| Failure::settings(message).remedy(remedy);
    let remedy = "create one with `forebay secret FILE --characters 64`";
    match read_secret(file, env).map_err(unusable)? {
        Some(found) if found.secret.len() >= SECRET_BYTES => Ok(found.secret),
        Some(SecretWithSource { place, .. }) => {
            let message = format!("{place} has fewer than {SECRET_BYTES} characters");
            Err(Failure::settings(message).remedy(remedy))
        }
        None => Err(Failure::settings("the key file needs a secret").remedy(remedy)),
    }
}

enum KeyUnlockError {
    NoKeyFile,
    OtherSecret,
}

impl LockedKeyFile {
    /// Returns the content of a key file that holds `key`, wrapped with the secret.
    fn lock(&self, key: &VolumeKey) -> io::Result<Vec<u8>> {
        let mut salt = [0; SALT_BYTES];
        getrandom::fill(&mut salt).map_err(io::Error::other)?;
        let mut wrapped = [0; WRAPPED_BYTES];
        let wrapping = self.wrapping(&salt).wrap_key(key.bytes(), &mut wrapped);
        wrapping.map_err(|error| io::Error::other(error.to_string()))?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&salt);
        bytes.extend_from_slice(&wrapped);
        let sum = crc32c(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        Ok(bytes)
    }

    fn unlock(&self, bytes: &[u8]) -> Result<VolumeKey, KeyUnlockError> {
        let (rest, sum) = bytes.split_last_chunk().ok_or(KeyUnlockError::NoKeyFile)?;
        let head = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        let rest_is_whole = crc32c(rest) == u32::from_le_bytes(*sum);
        let body = rest.strip_prefix(&head[..]).filter(|_| rest_is_whole);
        let (salt, wrapped) = body
            .and_then(<[u8]>::split_first_chunk::<SALT_BYTES>)
            .ok_or(KeyUnlockError::NoKeyFile)?;
        if wrapped.len() != WRAPPED_BYTES {
            return Err(KeyUnlockError::NoKeyFile);
        }
        let mut key = Zeroizing::new([0; VolumeKey::BYTES]);
        let unwrapped = self.wrapping(salt).unwrap_key(wrapped, &mut key[..]);
        unwrapped.map_err(|_| KeyUnlockError::OtherSecret)?;
        VolumeKey::new(&key).ok_or(KeyUnlockError::NoKeyFile)
    }

    /// Derives the wrapping key. The secret is long and random, so one hash is sufficient.
    fn wrapping(&self, salt: &[u8; SALT_BYTES]) -> KwAes256 {
        let hash = Sha256::new()
            .chain_update(b"forebay volume key 1")
            .chain_update(salt)
            .chain_update(&self.secret[..])
            .finalize();
        KwAes256::new(&hash)
    }

    /// Replaces the key in the file. The bytes of the old file are overwritten as well.
    fn renew(&self) -> io::Result<Renewed> {
        self.end_renewal()?;
        let key = random()?;
        // Give the old file a second name, by which its bytes can be overwritten after the replacement.
        fs::hard_link(&self.path, atomic_file::beside(&self.path, OLD))?;
        atomic_file::prepare(&self.path, &self.lock(&key)?)?;
        atomic_file::settle_names(&self.path)?;
        fs::rename(atomic_file::beside(&self.path, "new"), &self.path)?;
        // Crash order: from here on the new key is in force, whatever fails later.
        let settled = atomic_file::settle_names(&self.path).and_then(|()| self.end_renewal());
        let settled = settled.map_err(|error| {
            self.tell(&error);
            Error::Device(error.to_string().into())
        });
        Ok(Renewed { key, settled })
    }

    /// Overwrites and removes the old file that a renewal has left. The old key is certainly erased only if the file
    /// system and the drive write in place.
    fn end_renewal(&self) -> io::Result<()> {
        let old = atomic_file::beside(&self.path, OLD);
        let found = match fs::symlink_metadata(&old) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        let current = fs::metadata(&self.path)?;
        // If both names lead to the same file, the crash was before the rename, and the file holds the present key:
        // keep its content.
        if (found.dev(), found.ino()) != (current.dev(), current.ino()) {
            let mut file = volume::open_own(&old, true, false)?;
            file.write_all(&[0; FILE_BYTES])?;
            file.sync_all()?;
        }
        fs::remove_file(&old)?;
        atomic_file::settle_names(&self.path)
    }

    fn tell(&self, error: &io::Error) {
        let file = self.path.display();
        tracing::error!(
            %file, %error,
            remedy = "make room in the folder of the key file, and give the user of this process write \
             access to both; then let the host repeat SANITIZE",
            "the volume's key cannot be renewed"
        );
    }
}

impl Keyring for KeyFile {
    fn renew(&self) -> Io<'_, Renewed> {
        let locked = Arc::clone(&self.0);
        // Write on a blocking thread, because a sync takes time. The write completes even if the caller drops this
        // future.
        let renewed = tokio::task::spawn_blocking(move || {
            locked.renew().inspect_err(|error| locked.tell(error))
        });
        Io::new(async move {
            let renewed = renewed.await.map_err(io::Error::other).flatten();
            renewed.map_err(|error| Error::Device(error.to_string().into()))
        })
    }
}

fn random() -> io::Result<VolumeKey> {
    let mut bytes = Zeroizing::new([0; VolumeKey::BYTES]);
    getrandom::fill(&mut bytes[..]).map_err(io::Error::other)?;
    VolumeKey::new(&bytes).ok_or_else(|| io::Error::other("random bytes that are not random"))
}

fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Maximum length of a key file in bytes. A longer file cannot be a key file.
const MOST_BYTES: u64 = 4096;
const MAGIC: &[u8; 8] = b"FBYVLKEY";
const VERSION: u32 = 1;
const SALT_BYTES: usize = 32;
const FILE_BYTES: usize = 120;
/// Suffix of the second name of a file that is being replaced.
const OLD: &str = "old";
/// Length of a wrapped key: key wrap (RFC 3394) adds eight bytes.
const WRAPPED_BYTES: usize = VolumeKey::BYTES + 8;
/// Minimum length of a secret in bytes: 32 characters of six bits are 192 bits. A secret of that length cannot be
/// guessed, so no slow hash is needed.
const SECRET_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn locked(path: &Path, secret: &[u8]) -> LockedKeyFile {
        LockedKeyFile { path: path.to_owned(), secret: Zeroizing::new(secret.to_vec()) }
    }

    #[test]
    fn a_key_comes_back_with_its_secret_only() {
        let key = random().unwrap();
        let file = locked(Path::new("x"), &[7; 32]);
        let bytes = file.lock(&key).unwrap();
        assert_eq!((bytes.len(), &bytes[..12]), (120, &b"FBYVLKEY\x01\0\0\0"[..]));
        assert!(file.unlock(&bytes).is_ok_and(|found| found.bytes() == key.bytes()));
        let other = locked(Path::new("x"), &[8; 32]).unlock(&bytes);
        assert!(matches!(other, Err(KeyUnlockError::OtherSecret)));
        assert_ne!(file.lock(&key).unwrap(), bytes, "another salt each time");
        assert!(!bytes.windows(16).any(|part| key.bytes().windows(16).any(|clear| clear == part)));
    }

    /// If a power failure removed the name of the key file, the encrypted data could not be read.
    #[test]
    fn the_name_of_a_new_key_is_synced() {
        let (folder, secrets) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let secret = secrets.path().join("secret");
        fs::write(&secret, "s".repeat(64)).unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let make = || make(&folder.path().join("key"), Some(&secret), None).is_ok();
        assert_eq!(sim::openings_of(folder.path(), make), (1, true));
    }

    #[test]
    fn a_damaged_file_is_no_key() {
        let file = locked(Path::new("x"), &[7; 32]);
        let bytes = file.lock(&random().unwrap()).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert!(matches!(file.unlock(&damaged), Err(KeyUnlockError::NoKeyFile)), "{at}");
            assert!(matches!(file.unlock(&bytes[..at]), Err(KeyUnlockError::NoKeyFile)), "{at}");
        }
    }

    #[test]
    fn a_renewal_overwrites_the_former_key_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let file = locked(&path, &[7; 32]);
        let key = random().unwrap();
        atomic_file::replace(&path, &file.lock(&key).unwrap()).unwrap();
        let link = folder.path().join("what it was");
        fs::hard_link(&path, &link).unwrap();
        let new = file.renew().unwrap();
        assert!(new.settled.is_ok());
        assert_ne!(new.key.bytes(), key.bytes());
        let found = file.unlock(&fs::read(&path).unwrap()).ok().unwrap();
        assert_eq!(found.bytes(), new.key.bytes());
        assert!(fs::read(&link).unwrap().iter().all(|byte| *byte == 0));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
    }

    #[test]
    fn the_next_start_completes_a_key_renewal_that_a_crash_interrupted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let file = locked(&path, &[7; 32]);
        let (key, other) = (random().unwrap(), random().unwrap());
        atomic_file::replace(&path, &file.lock(&key).unwrap()).unwrap();
        // Crash before the rename: the old key is in force.
        let old = atomic_file::beside(&path, OLD);
        fs::hard_link(&path, &old).unwrap();
        file.end_renewal().unwrap();
        assert!(!old.exists());
        assert!(file.unlock(&fs::read(&path).unwrap()).is_ok_and(|k| k.bytes() == key.bytes()));
        // Crash after the rename: the old file has to be removed.
        fs::hard_link(&path, &old).unwrap();
        let third = folder.path().join("third name");
        fs::hard_link(&path, &third).unwrap();
        atomic_file::replace(&path, &file.lock(&other).unwrap()).unwrap();
        file.end_renewal().unwrap();
        assert!(!old.exists());
        assert!(fs::read(&third).unwrap().iter().all(|byte| *byte == 0));
        assert!(file.unlock(&fs::read(&path).unwrap()).is_ok_and(|k| k.bytes() == other.bytes()));
    }
}
