//! The random id of a volume file, in an extended attribute. A renamed file keeps its id, and two recorded
//! volumes never have the same one.

use std::{io, os::fd::AsFd, path::Path};

use control::Failure;
use rustix::{
    fs::{XattrFlags, fgetxattr, fsetxattr, fsync, getxattr},
    io::Errno,
};

/// Returns the id of an open file; `None` if it has none, or if its file system keeps none.
pub(super) fn of(file: impl AsFd) -> Option<String> {
    let mut value = [0; MOST_BYTES];
    let length = fgetxattr(file, ATTRIBUTE, &mut value).ok()?;
    id(&value[..length])
}

/// Returns the id of the file at a path. Another program may replace the file right after this call.
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

/// Gives an open file an id, which is stable when this returns. Returns `None` if the file system keeps no
/// extended attributes. The path is for messages.
pub(super) fn put(file: impl AsFd, path: &Path, id: String) -> Result<Option<String>, Failure> {
    match fsetxattr(&file, ATTRIBUTE, id.as_bytes(), XattrFlags::empty()) {
        Ok(()) => {}
        // Continue without an id: the file system has no extended attributes or no room for one, or the file is a
        // device node.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::ACCESS | Errno::NOSPC) => {
            return Ok(None);
        }
        Err(error) => return Err(cannot(path, &error.into())),
    }
    // Without this sync, a start after a power cut could find a file without an id and warn of it.
    fsync(&file).map_err(|error| cannot(path, &error.into()))?;
    Ok(Some(id))
}

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
    .remedy("check its file system")
}

const ATTRIBUTE: &str = "user.forebay.volume";
/// Maximum length of the attribute that is read; a longer value is not an id.
const MOST_BYTES: usize = 64;
