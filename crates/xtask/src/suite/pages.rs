//! The commands that README and the pages of docs/ show: the program must know them and their options.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::check::root;
use crate::process;
use crate::steps::Tally;

/// Help is printed at once.
const LIMIT: Duration = Duration::from_secs(10);

/// A command of the program as a page shows it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shown {
    command: String,
    options: Vec<String>,
}

/// Looks at every page; one case per different command line.
pub fn check(program: &Path) -> Result<Tally> {
    let mut shown = BTreeSet::new();
    let pages = pages(&root())?;
    for page in &pages {
        shown.extend(commands(&fs::read_to_string(page)?));
    }
    ensure!(!shown.is_empty(), "no page shows a command");
    let mut tally = Tally::default();
    for Shown { command, options } in &shown {
        let help = process::run(Command::new(program).args([command, "--help"]), LIMIT)?;
        let known = |option: &String| help.output.contains(option.as_str());
        let unknown: Vec<&String> = options.iter().filter(|option| !known(option)).collect();
        if !help.success() || !unknown.is_empty() {
            println!("a page shows `forebay {command}` with {options:?}; unknown: {unknown:?}");
        }
        tally.count(help.success() && unknown.is_empty());
    }
    Ok(tally.with_note(format!("{} pages read", pages.len())))
}

fn pages(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![root.join("README.md")];
    let docs = root.join("docs");
    for entry in fs::read_dir(&docs).with_context(|| docs.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    Ok(found)
}

/// The command lines of a page, in code only: indented or fenced lines, and text in backquotes.
fn commands(page: &str) -> Vec<Shown> {
    let mut fenced = false;
    let mut shown = vec![];
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced || line.starts_with("    ") {
            shown.extend(command(line));
        } else {
            shown.extend(line.split('`').skip(1).step_by(2).filter_map(command));
        }
    }
    shown
}

/// What `forebay` or `cargo run --release --` is told to do in a piece of code.
fn command(code: &str) -> Option<Shown> {
    let code = code.split('#').next().unwrap_or(code);
    let mut words = code
        .split_whitespace()
        .skip_while(|word| *word != "forebay" && !word.ends_with("/forebay") && *word != "--");
    let starts = words.next()?;
    if starts == "--" && !code.contains("cargo run") {
        return None;
    }
    let command = words.next()?;
    let is_command = command.chars().all(|c| c.is_ascii_lowercase());
    let options = words.filter(|word| word.starts_with("--")).map(|word| {
        word.split('=').next().unwrap_or(word).trim_end_matches([',', '.', ']']).to_owned()
    });
    is_command.then(|| Shown { command: command.to_owned(), options: options.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(page: &str, expected: &[(&str, &[&str])]) {
        let found = commands(page);
        let found: Vec<(&str, Vec<&str>)> = found
            .iter()
            .map(|shown| (&*shown.command, shown.options.iter().map(|option| &**option).collect()))
            .collect();
        let expected: Vec<(&str, Vec<&str>)> =
            expected.iter().map(|(command, options)| (*command, options.to_vec())).collect();
        assert_eq!(found, expected, "{page}");
    }

    #[test]
    fn commands_are_found_in_code() {
        check(
            "    target/release/forebay serve --config a.toml  # now",
            &[("serve", &["--config"])],
        );
        check("    cargo run --release -- quickstart --keep", &[("quickstart", &["--keep"])]);
        check("Say `forebay status --json` to forebay now.", &[("status", &["--json"])]);
        check("```\nforebay man\n```\nforebay is nice\n", &[("man", &[])]);
        check("    cargo test -- serve\n    [forebay]\n", &[]);
    }
}
