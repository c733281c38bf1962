//! The random id of a volume file, in an extended attribute: it goes along when the file is renamed,
//! and two volumes never have the same.

use std::{fs::File, io, path::Path};

use rustix::{
    fs::{XattrFlags, getxattr, setxattr},
    io::Errno,
};

use crate::failure::Failure;

/// The id of the file; none if it has none, or if its file system keeps none.
pub(super) fn of(path: &Path) -> Option<String> {
    let mut value = [0; MOST_BYTES];
    let length = getxattr(path, ATTRIBUTE, &mut value).ok()?;
    let text = std::str::from_utf8(&value[..length]).ok()?;
    let is_id = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_id.then(|| text.to_owned())
}

/// Gives the file an id, stable when this returns. None where the file system keeps no extended
/// attributes.
pub(super) fn put(path: &Path, id: String) -> Result<Option<String>, Failure> {
    match setxattr(path, ATTRIBUTE, id.as_bytes(), XattrFlags::empty()) {
        Ok(()) => {}
        // A file system without them, one that has no room for them, a device node.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::ACCESS | Errno::NOSPC) => {
            return Ok(None);
        }
        Err(error) => return Err(cannot(path, &error.into())),
    }
    // Otherwise a start after a power cut would find a file without an id and warn of it.
    File::open(path).and_then(|file| file.sync_all()).map_err(|error| cannot(path, &error))?;
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
