//! The number of this node and the version of its record: a file in the state folder. `docs/formats/state.md` has its
//! bytes.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use ::names::{Gln, MOST_COUNT};
use control::Failure;
use stack::{atomic_file, state_folder};

/// Returns the path of the file in the state folder that holds this node's number (GLN).
pub fn path(state: &Path) -> PathBuf {
    state.join("gln")
}

/// Reads this node's number (GLN) and version from the file; draws a new number if the file is missing.
pub fn load_or_make(path: &Path) -> Result<(Gln, u64), Failure> {
    if let Some(found) = load(path)? {
        return Ok(found);
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    state_folder::make(folder).map_err(|error| cannot("create the folder of", path, &error))?;
    Ok((random()?, 0))
}

/// Reads the number from the file; `None` if there is no file and no record of a move next to it. Changes nothing.
pub fn load(path: &Path) -> Result<Option<(Gln, u64)>, Failure> {
    match atomic_file::read(path) {
        Ok(text) => {
            let found = std::str::from_utf8(&text).ok().and_then(parse);
            found.map(Some).ok_or_else(|| {
                Failure::new(format!("{} does not contain this node's number", path.display())).remedy(
                    "restore it from a copy; or delete it: this node is then a new node to the others",
                )
            })
        }
        // Do not draw a new number: other nodes ask this node about its moves by its old number.
        Err(error) if error.kind() == ErrorKind::NotFound && has_moved(path) => {
            let moved = path.with_file_name("moved");
            let (path, moved) = (path.display(), moved.display());
            let what =
                format!("{path}, this node's number, is missing, and {moved} has records of moves");
            Err(Failure::new(what).remedy(format!(
                "restore {path} from a copy; if there is none, find the nodes of the volumes named in {moved} \
                 (`forebay names` at another node), remove the volumes of other nodes from the settings, and \
                 move {moved} away: this node is then a new node to the others"
            )))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(cannot("read", path, &error)),
    }
}

/// Returns true if there are records of moves next to the file. An I/O error counts as none: reading the records
/// reports it.
fn has_moved(path: &Path) -> bool {
    let entries = std::fs::read_dir(path.with_file_name("moved")).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.path().extension().is_some_and(|it| it == "volume"))
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot {what} this node's number in {}: {error}", path.display()))
        .remedy("give the user of this process read and write access to the `state` folder, or name another")
}

/// Writes the node's number (GLN) and version to the file, and makes them stable.
pub fn keep(path: &Path, gln: Gln, version: u64) -> Result<(), Failure> {
    atomic_file::replace(path, format!("{gln} {version}\n").as_bytes()).map_err(|error| {
        Failure::new(format!("cannot save this node's number in {}: {error}", path.display()))
            .remedy("give the user of this process write access to the `state` folder, and make room there")
    })
}

/// Draws a random node number, which is practically unique.
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

    #[test]
    fn a_missing_node_number_is_not_created_again_if_records_of_moves_exist() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(folder.path());
        let moved = folder.path().join("moved");
        fs::create_dir(&moved).unwrap();
        assert_eq!(load(&path).unwrap(), None);
        load_or_make(&path).unwrap();
        fs::write(moved.join("payroll.volume"), "").unwrap();
        let failure = load_or_make(&path).unwrap_err();
        assert!(failure.message.contains("is missing"), "{failure}");
        let gln = random().unwrap();
        keep(&path, gln, 3).unwrap();
        assert_eq!(load_or_make(&path).unwrap(), (gln, 3));
    }
}
