//! Refuses marks of unfinished work, and paths of a developer's machine, in all files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::check::source::ClassifiedSource;

/// Macros whose use marks unfinished work.
const MACROS: &[&str] = &["todo!", "unimplemented!", "dbg!"];

/// Marks of unfinished work in comments. Each is written in two parts, so that this file passes its
/// own check.
const MARKS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Folders that exist only on the machine of a developer.
const MACHINE_PATHS: &[&str] =
    &[concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/ho", "me/")];

/// Names of files and folders that tools make, which the check skips. `.git` is a file in a linked
/// work tree.
const MADE: &[&str] = &[".git", "forebay-quickstart", "artifacts", "corpus"];

/// The folder for build results, which cargo makes next to a `Cargo.toml`. The check skips it there
/// only, since source folders may have this name, too.
const BUILT: &str = "target";

/// Checks every file below a folder.
pub fn check(root: &Path) -> Result<String> {
    let mut wrong = vec![];
    let files = files(root)?;
    for file in &files {
        let Ok(text) = String::from_utf8(fs::read(file)?) else { continue };
        let name = file.strip_prefix(root).unwrap_or(file).display().to_string();
        wrong.extend(violations(&name, &text).with_context(|| name.clone())?);
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(format!("{} files read", files.len()))
}

fn violations(name: &str, text: &str) -> Result<Vec<String>> {
    let mut wrong = vec![];
    for (n, line) in text.lines().enumerate() {
        for path in MACHINE_PATHS.iter().filter(|path| stands_alone(line, path)) {
            wrong.push(format!("{name}:{}: {path} is a path of one machine", n + 1));
        }
    }
    if !name.ends_with(".rs") {
        return Ok(wrong);
    }
    let source = ClassifiedSource::read(text)?;
    for (n, line) in source.code()?.lines().enumerate() {
        for name_of in MACROS.iter().filter(|name_of| stands_alone(line, name_of)) {
            wrong.push(format!("{name}:{}: {name_of} is unfinished work", n + 1));
        }
    }
    for (n, comment) in source.comments() {
        for mark in MARKS.iter().filter(|mark| stands_alone(&comment, mark)) {
            wrong.push(format!("{name}:{n}: {mark} is unfinished work"));
        }
    }
    Ok(wrong)
}

/// Returns true if `word` occurs in the line without a letter, a digit or one of `_`, `.`, `-` and `}` directly before
/// it.
fn stands_alone(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '}'))
    })
}

/// Returns all files below a folder, except those that tools made, in the order of their names.
pub fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![];
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let has_manifest = folder.join("Cargo.toml").exists();
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            let (kind, name) = (entry.file_type()?, entry.file_name());
            if MADE.iter().any(|made| name == *made) || (has_manifest && name == BUILT) {
                continue;
            }
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_work_is_named_with_its_line() {
        let text = format!("fn a() {{\n    {}()\n}}\n// {} b\n", MACROS[0], MARKS[0]);
        let wrong = violations("a.rs", &text).unwrap();
        assert!(wrong[0].starts_with("a.rs:2:") && wrong[1].starts_with("a.rs:4:"), "{wrong:?}");
    }

    #[test]
    fn words_in_strings_do_not_count_as_unfinished_work() {
        let wrong = violations("a.rs", "let a = \"todo!() dbg!\"; my_dbg!(a);").unwrap();
        assert_eq!(wrong, [""; 0]);
    }

    #[test]
    fn paths_of_one_machine_are_found_in_any_file() {
        let text = format!("see {}x", MACHINE_PATHS[1]);
        assert_eq!(violations("a.md", &text).unwrap().len(), 1);
        let wrong = violations("a.md", &format!("net{}x", MACHINE_PATHS[1])).unwrap();
        assert_eq!(wrong, [""; 0]);
    }

    #[test]
    fn a_source_folder_named_target_is_read_and_the_one_of_cargo_is_not() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["Cargo.toml", "target/built.rs", "src/target/session.rs"] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let found = files(dir.path()).unwrap();
        let expected = ["Cargo.toml", "src/target/session.rs"].map(|path| dir.path().join(path));
        assert_eq!(found, expected);
    }
}
