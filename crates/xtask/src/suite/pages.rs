//! Tests the documentation pages: every command that a page shows must exist with its options and
//! be run by a test, and every link must lead to an existing file.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::check::root;
use crate::steps::StepTally;

/// Time limit of a command with `--help`, which only prints text.
const LIMIT: Duration = Duration::from_secs(10);

/// A command line of the program, as a page of the documentation shows it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DocumentedCommand {
    command: String,
    options: Vec<String>,
}

/// Reads every page. Each different command line is a case, and so are each command and each link.
pub fn check(program: &Path) -> Result<StepTally> {
    let mut shown = BTreeSet::new();
    let pages = pages(&root())?;
    for page in pages.iter().filter(|page| is_for_users(page)) {
        shown.extend(commands(&fs::read_to_string(page)?));
    }
    ensure!(!shown.is_empty(), "no page shows a command");
    let root = root();
    let mut tally = StepTally::default();
    for DocumentedCommand { command, options } in &shown {
        let help = help(program, &[command])?;
        let known = |option: &String| help.contains(option.as_str());
        let unknown: Vec<&String> = options.iter().filter(|option| !known(option)).collect();
        if help.is_empty() || !unknown.is_empty() {
            println!("a page shows `forebay {command}` with {options:?}; unknown: {unknown:?}");
        }
        tally.count(!help.is_empty() && unknown.is_empty());
    }
    let commands: BTreeSet<&str> = shown.iter().map(|shown| &*shown.command).collect();
    for command in commands {
        let run = is_run(&root, command);
        if let Err(why) = &run {
            println!("a page shows `forebay {command}`: {why}");
        }
        tally.count(run.is_ok());
    }
    for page in &pages {
        let folder = page.parent().unwrap_or(&root);
        for link in links(&fs::read_to_string(page)?) {
            let leads = folder.join(&link).exists();
            if !leads {
                println!("{}: the link to {link} leads nowhere", page.display());
            }
            tally.count(leads);
        }
    }
    Ok(tally.with_note(format!("{} pages read", pages.len())))
}

/// Returns the help text of a command and of all its subcommands; empty if there is no such
/// command.
fn help(program: &Path, words: &[&str]) -> Result<String> {
    let help = program::run(Command::new(program).args(words).arg("--help"), LIMIT)?;
    if !help.success() {
        return Ok(String::new());
    }
    let mut all = help.output.clone();
    let below = help.output.lines().skip_while(|line| *line != "Commands:").skip(1);
    for line in below.take_while(|line| !line.is_empty()) {
        if let Some(name) = line.split_whitespace().next().filter(|name| *name != "help") {
            all += &self::help(program, &[words, &[name]].concat())?;
        }
    }
    Ok(all)
}

/// For each command of the program, a test file that runs it. A command that no test runs is in
/// [`NOT_RUN`].
const RUN_BY: [(&str, &str); 21] = [
    ("attach", "crates/forebay/tests/attach/main.rs"),
    ("check", "crates/forebay/tests/serving/settings.rs"),
    ("claim", "crates/forebay/tests/gateway/handover/mod.rs"),
    ("completions", "crates/forebay/tests/command_line.rs"),
    ("detach", "crates/forebay/tests/attach/main.rs"),
    ("forget", "crates/forebay/tests/serving/unit_state.rs"),
    ("gateway", "crates/forebay/tests/gateway_command.rs"),
    ("key", "crates/forebay/tests/serving/encrypt.rs"),
    ("lab", "crates/forebay/tests/lab.rs"),
    ("ls", "crates/forebay/tests/serve.rs"),
    ("man", "crates/forebay/tests/command_line.rs"),
    ("names", "crates/forebay/tests/serving/naming.rs"),
    ("object", "crates/forebay/tests/object/main.rs"),
    ("quickstart", "crates/forebay/tests/quickstart.rs"),
    ("reload", "crates/forebay/tests/serving/reload.rs"),
    ("resize", "crates/forebay/tests/serving/reload.rs"),
    ("secret", "crates/forebay/tests/login_access.rs"),
    ("serve", "crates/forebay/tests/support/mod.rs"),
    ("status", "crates/forebay/tests/support/mod.rs"),
    ("tunnel", "crates/forebay/tests/serving/tunnel.rs"),
    ("volume", "crates/forebay/tests/moves/main.rs"),
];
/// Commands that no test runs, each with the reason.
const NOT_RUN: [(&str, &str); 0] = [];

/// Fails unless a test runs the command, or [`NOT_RUN`] has a reason why none does.
fn is_run(root: &Path, command: &str) -> Result<()> {
    if NOT_RUN.iter().any(|(name, _)| *name == command) {
        return Ok(());
    }
    let found = RUN_BY.iter().find(|(name, _)| *name == command);
    let (_, test) = found.context("no test is listed that runs it")?;
    let text = fs::read_to_string(root.join(test)).with_context(|| test.to_string())?;
    ensure!(text.contains(&format!("\"{command}\"")), "{test} does not run it");
    Ok(())
}

/// Returns the paths of README, ARCHITECTURE, CHANGELOG and all pages below docs/.
fn pages(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root.join("docs")];
    let top = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(|name| root.join(name));
    found.extend(top);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// Returns true for the pages that show how to use the program: the top README, the pages directly in docs/, the
/// guides in docs/guide and the references in docs/reference.
fn is_for_users(page: &Path) -> bool {
    page.ends_with("README.md") && page.parent() == Some(root().as_path())
        || page.parent().is_some_and(|folder| {
            ["docs", "docs/guide", "docs/reference"].iter().any(|users| folder.ends_with(users))
        })
}

/// Returns the files that a page links to in the tree, without the `#heading` at the end of the
/// link.
fn links(page: &str) -> Vec<String> {
    let targets = page.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    let inside = targets.filter(|link| !link.contains("://") && !link.starts_with('#'));
    inside.filter_map(|link| Some(link.split('#').next()?.to_owned())).collect()
}

/// Returns the command lines of a page. They are in code only: indented or fenced lines, and text
/// in backquotes.
fn commands(page: &str) -> Vec<DocumentedCommand> {
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

/// Parses a piece of code that begins with `forebay` or `cargo run --release --`.
fn command(code: &str) -> Option<DocumentedCommand> {
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
    is_command
        .then(|| DocumentedCommand { command: command.to_owned(), options: options.collect() })
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
    fn links_are_found_without_their_anchor() {
        let page = "[a](b.md), [c](../d/e.rs#L3)\n[f](https://g) [h](#i) and f(x)[0](";
        assert_eq!(links(page), ["b.md", "../d/e.rs"]);
    }

    #[test]
    fn a_command_that_no_test_runs_is_noticed() {
        assert!(is_run(&root(), "serve").is_ok());
        assert!(is_run(&root(), "frobnicate").is_err());
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
