//! The random id of a volume file, in an extended attribute: it goes along when the file is renamed,
//! and two volumes never have the same.

use std::{io, os::fd::AsFd, path::Path};

use rustix::{
    fs::{XattrFlags, fgetxattr, fsetxattr, fsync, getxattr},
    io::Errno,
};

use crate::failure::Failure;

/// The id of an open file; none if it has none, or if its file system keeps none.
pub(super) fn of(file: impl AsFd) -> Option<String> {
    let mut value = [0; MOST_BYTES];
    let length = fgetxattr(file, ATTRIBUTE, &mut value).ok()?;
    id(&value[..length])
}

/// The id of the file at a path, which may be another file by the time it is opened.
pub(super) fn at(path: &Path) -> Option<String> {
    let mut value = [0; MOST_BYTES];
    let length = getxattr(path, ATTRIBUTE, &mut value).ok()?;
    id(&value[..length])
}

fn id(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?;
    let is_id = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_id.then(|| text.to_owned())
}

/// Gives an open file an id, stable when this returns. None where the file system keeps no extended
/// attributes. The path is for messages.
pub(super) fn put(file: impl AsFd, path: &Path, id: String) -> Result<Option<String>, Failure> {
    match fsetxattr(&file, ATTRIBUTE, id.as_bytes(), XattrFlags::empty()) {
        Ok(()) => {}
        // A file system without them, one that has no room for them, a device node.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::ACCESS | Errno::NOSPC) => {
            return Ok(None);
        }
        Err(error) => return Err(cannot(path, &error.into())),
    }
    // Otherwise a start after a power cut would find a file without an id and warn of it.
    fsync(&file).map_err(|error| cannot(path, &error.into()))?;
    Ok(Some(id))
}

/// A new id.
pub(super) fn random() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::new(format!("the system has no random bytes: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn cannot(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!(
        "cannot write the extended attribute {ATTRIBUTE} of {}: {error}",
        path.display()
    ))
    .remedy("see to its file system")
}

/// The attribute's name.
const ATTRIBUTE: &str = "user.forebay.volume";
/// More than an id has: a longer value is none.
const MOST_BYTES: usize = 64;
