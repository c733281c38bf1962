//! This node's number, and how often it has told something else of itself: a file in the state folder.
//! `docs/formats/state.md` has its bytes.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use ::names::{Gln, MOST_COUNT};

use crate::{failure::Failure, state_folder, whole_file};

/// The file in a state folder.
pub fn path(state: &Path) -> PathBuf {
    state.join("gln")
}

/// What is in the file; a new number, if there is none.
pub fn load_or_make(path: &Path) -> Result<(Gln, u64), Failure> {
    let cannot = |what: &str, error: std::io::Error| {
        Failure::new(format!("cannot {what} this node's number in {}: {error}", path.display()))
            .remedy("let the user who serves read and write the `state` folder, or name another")
    };
    match whole_file::read(path) {
        Ok(text) => std::str::from_utf8(&text).ok().and_then(parse).ok_or_else(|| {
            Failure::new(format!("{} does not hold this node's number", path.display())).remedy(
                "restore it from a copy; or delete it, and this node takes part as a new one",
            )
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let folder = path.parent().unwrap_or(Path::new("."));
            state_folder::make(folder).map_err(|error| cannot("make the folder for", error))?;
            Ok((random()?, 0))
        }
        Err(error) => Err(cannot("read", error)),
    }
}

/// Puts the count into the file; it is stable when this returns.
pub fn keep(path: &Path, gln: Gln, version: u64) -> Result<(), Failure> {
    whole_file::replace(path, format!("{gln} {version}\n").as_bytes()).map_err(|error| {
        Failure::new(format!("cannot keep this node's number in {}: {error}", path.display()))
            .remedy("let the user who serves write the `state` folder, and have room there")
    })
}

/// A number that no other node has.
pub fn random() -> Result<Gln, Failure> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(Failure::new)?;
    Ok(Gln::new(random))
}

fn parse(text: &str) -> Option<(Gln, u64)> {
    let (gln, version) = text.strip_suffix('\n')?.split_once(' ')?;
    Some((gln.parse().ok()?, version.parse().ok().filter(|version| *version < MOST_COUNT)?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_number_lasts_and_is_never_taken_from_a_damaged_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(&folder.path().join("state"));
        let (gln, version) = load_or_make(&path).unwrap();
        assert_eq!(version, 0);
        keep(&path, gln, 7).unwrap();
        assert_eq!(load_or_make(&path).unwrap(), (gln, 7));
        let large = format!("{gln} {MOST_COUNT}\n");
        for damaged in ["", "\n", &format!("{gln} 7"), &format!("{gln} -1\n"), "x 7\n", &large] {
            fs::write(&path, damaged).unwrap();
            assert!(load_or_make(&path).is_err(), "{damaged:?}");
        }
    }
}
