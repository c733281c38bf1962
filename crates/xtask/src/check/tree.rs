//! The Rust source files of all crates, parsed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use syn::{Attribute, Item, Meta};

use crate::check::text;

/// A source file: its path in the workspace, and its parsed text.
pub struct SourceFile {
    /// Folder of the crate that contains the file, such as `crates/cache`.
    pub krate: String,
    /// The path below the root of the workspace.
    pub path: String,
    pub lines: usize,
    /// True if only tests compile the file.
    pub is_test: bool,
    pub syntax: syn::File,
}

/// All source files of the workspace, sorted by path.
pub struct SourceTree {
    pub files: Vec<SourceFile>,
}

/// The folders of the workspace that contain source files.
const FOLDERS: [&str; 2] = ["crates", "fuzz"];

impl SourceTree {
    /// Reads and parses all files below the root of the workspace.
    pub fn read(root: &Path) -> Result<SourceTree> {
        let mut sources = vec![];
        for folder in FOLDERS {
            for file in text::files(&root.join(folder))? {
                if file.extension().is_some_and(|ending| ending == "rs") {
                    let path = file.strip_prefix(root)?.display().to_string();
                    sources.push((path, fs::read_to_string(&file)?));
                }
            }
        }
        SourceTree::parse(&sources)
    }

    /// Parses files, given as path and text.
    pub fn parse(sources: &[(String, String)]) -> Result<SourceTree> {
        let mut files = vec![];
        for (path, text) in sources {
            let syntax = syn::parse_file(text).with_context(|| path.clone())?;
            let krate = match path.find("/src/").or_else(|| path.find("/tests/")) {
                Some(end) => path[..end].to_owned(),
                None => path.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned(),
            };
            let is_test = !path.contains("/src/");
            let lines = text.lines().count();
            files.push(SourceFile { krate, path: path.clone(), lines, is_test, syntax });
        }
        let modules: BTreeSet<String> = files.iter().flat_map(test_modules).collect();
        for file in &mut files {
            let mut stems = ancestors(&file.path);
            file.is_test |= stems.any(|stem| modules.contains(stem));
        }
        Ok(SourceTree { files })
    }

    /// Returns the source files of the program, without those that are compiled only for tests.
    pub fn program(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().filter(|file| !file.is_test)
    }
}

/// Returns true if an item is compiled for tests only.
pub fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string().trim() == "test",
        _ => false,
    })
}

/// Returns the modules in other files that this file declares for tests, as paths without `.rs`.
fn test_modules(file: &SourceFile) -> Vec<String> {
    let stem = stem(&file.path);
    let folder = match stem.rsplit_once('/') {
        Some((folder, "lib" | "main")) => folder,
        _ => stem,
    };
    let declared = file.syntax.items.iter().filter_map(|item| match item {
        Item::Mod(module) if module.content.is_none() && is_test_only(&module.attrs) => {
            Some(format!("{folder}/{}", module.ident))
        }
        _ => None,
    });
    declared.collect()
}

/// Returns the path of the module in a file: without `.rs`, and without `/mod.rs`.
pub fn stem(path: &str) -> &str {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    stem.strip_suffix("/mod").unwrap_or(stem)
}

/// Returns the path of the module in a file, and those of all folders around it.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(stem(path)), |path| Some(path.rsplit_once('/')?.0))
}

/// Parses the files of a test, given as path and text.
#[cfg(test)]
pub fn tree_of(sources: &[(&str, &str)]) -> SourceTree {
    let owned: Vec<(String, String)> =
        sources.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    SourceTree::parse(&owned).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_for_tests_and_all_below_them_are_tests() {
        let tree = tree_of(&[
            ("crates/a/src/lib.rs", "mod b;\n#[cfg(test)]\nmod harness;\n"),
            ("crates/a/src/b.rs", "#[cfg(test)]\nmod tests;\n"),
            ("crates/a/src/b/tests.rs", ""),
            ("crates/a/src/harness/mod.rs", "mod deep;"),
            ("crates/a/src/harness/deep.rs", ""),
            ("crates/a/tests/all.rs", ""),
        ]);
        let program: Vec<&str> = tree.program().map(|file| file.path.as_str()).collect();
        assert_eq!(program, ["crates/a/src/lib.rs", "crates/a/src/b.rs"]);
        assert!(tree.files.iter().all(|file| file.krate == "crates/a"));
    }
}
