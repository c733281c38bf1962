//! Checks that every test named in docs/attacks.md exists.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

#[test]
fn every_test_that_the_page_of_attacks_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/attacks.md")).expect("the page is there");
    let named: BTreeSet<&str> = page
        .lines()
        .filter(|line| line.starts_with("| "))
        .flat_map(|row| row.rsplit('|').nth(1).unwrap_or("").split('`').skip(1).step_by(2))
        .collect();
    assert!(named.len() > 60, "{} tests are named", named.len());
    let mut tests = BTreeSet::new();
    sources(&root.join("crates"), &mut |source| {
        let mut lines = source.lines();
        while let Some(line) = lines.next() {
            if line.trim_start().starts_with("#[test]") || line.contains("#[tokio::test") {
                // Skip further attributes between `#[test]` and the function.
                let function = lines.find(|line| line.contains("fn ")).unwrap_or("");
                let name = function.split("fn ").nth(1).and_then(|rest| rest.split('(').next());
                tests.extend(name.map(str::to_owned));
            }
        }
    });
    let missing: Vec<_> = named.into_iter().filter(|name| !tests.contains(*name)).collect();
    assert!(missing.is_empty(), "docs/attacks.md names tests that do not exist: {missing:#?}");
}

fn sources(folder: &Path, look: &mut impl FnMut(String)) {
    let entries = fs::read_dir(folder).expect("a folder of ours");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("read").path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            sources(&path, look);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            look(fs::read_to_string(&path).expect("a source of ours"));
        }
    }
}
