//! The list of what exceeds a bound. It may only shrink.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// The path of the list below the root of the workspace.
pub const FILE: &str = "crates/xtask/exceptions.toml";

/// A git command reads a few files of the history.
const GIT_LIMIT: Duration = Duration::from_secs(60);

/// The permitted excesses: for each rule, what exceeds its bound and the measured value.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Exceptions(BTreeMap<String, BTreeMap<String, usize>>);

impl Exceptions {
    /// Reads the list. A list that does not exist is empty.
    pub fn read(root: &Path) -> Result<Exceptions> {
        let path = root.join(FILE);
        if !path.exists() {
            return Ok(Exceptions::default());
        }
        Exceptions::parse(&fs::read_to_string(&path)?).context(FILE)
    }

    fn parse(text: &str) -> Result<Exceptions> {
        Ok(Exceptions(toml::from_str(text)?))
    }

    /// Writes the list.
    pub fn write(&self, root: &Path) -> Result<()> {
        let mut text = HEADER.to_owned();
        for (rule, values) in self.0.iter().filter(|(_, values)| !values.is_empty()) {
            text.push_str(&format!("\n[{rule}]\n"));
            for (name, value) in values {
                text.push_str(&format!("\"{name}\" = {value}\n"));
            }
        }
        Ok(fs::write(root.join(FILE), text)?)
    }

    /// Returns the values listed for a rule.
    pub fn of(&self, rule: &str) -> BTreeMap<String, usize> {
        self.0.get(rule).cloned().unwrap_or_default()
    }

    /// Sets the values listed for a rule.
    pub fn set(&mut self, rule: &str, values: BTreeMap<String, usize>) {
        self.0.insert(rule.to_owned(), values);
    }

    /// Returns why this list must not follow `earlier`: a rule has more entries than before, or their sum has grown. Entries
    /// may change their names, since files and types are renamed.
    fn growth_since(&self, earlier: &Exceptions) -> Option<String> {
        self.0.iter().find_map(|(rule, values)| {
            let before = earlier.0.get(rule)?;
            let (sum, sum_before) = (values.values().sum::<usize>(), before.values().sum());
            if values.len() > before.len() {
                return Some(format!("{rule} had {} entries, now {}", before.len(), values.len()));
            }
            (sum > sum_before)
                .then(|| format!("the values of {rule} were {sum_before} together, now {sum}"))
        })
    }
}

const HEADER: &str = "\
# What exceeds a bound of `cargo xtask check`, with its measured value. The check fails if a value has grown, if something
# else exceeds a bound, or if a value here is larger than needed. `cargo xtask check --shrink` lowers the values and
# removes entries that are no longer needed. No commit may add an entry or raise a value.
";

/// Checks in the history that no commit let the list grow. Returns the number of versions.
pub fn check_history(root: &Path, now: &Exceptions) -> Result<usize> {
    let mut newer = now.clone();
    let log = git(root, &["log", "--format=%H", "--", FILE])?;
    let commits: Vec<&str> = log.lines().collect();
    for commit in &commits {
        // A commit that removes the list leaves nothing to read.
        let Ok(text) = git(root, &["show", &format!("{commit}:{FILE}")]) else { continue };
        let older = Exceptions::parse(&text).with_context(|| format!("{FILE} in {commit}"))?;
        if let Some(growth) = newer.growth_since(&older) {
            anyhow::bail!("{FILE} has grown since commit {commit}: {growth}");
        }
        newer = older;
    }
    Ok(commits.len())
}

/// Runs git in the workspace and returns its output.
pub fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    let finished = program::run(Command::new("git").current_dir(root).args(arguments), GIT_LIMIT)?;
    ensure!(finished.success(), "git {} {}", arguments.join(" "), finished.ending());
    Ok(finished.output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Exceptions {
        Exceptions::parse(text).unwrap()
    }

    #[test]
    fn a_list_that_gets_entries_or_larger_values_has_grown() {
        let before = list("[file_lines]\n\"a.rs\" = 700\n\"b.rs\" = 650\n");
        let growth = |text: &str| list(text).growth_since(&before);
        assert_eq!(growth("[file_lines]\n\"c.rs\" = 700\n"), None);
        assert_eq!(growth("[file_lines]\n\"a.rs\" = 700\n\"c.rs\" = 650\n"), None);
        assert!(growth("[file_lines]\n\"a.rs\" = 701\n\"b.rs\" = 650\n").is_some());
        assert!(growth("[file_lines]\n\"a.rs\" = 601\n\"b.rs\" = 602\n\"c.rs\" = 603\n").is_some());
    }

    #[test]
    fn a_commit_that_lets_the_list_grow_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("crates/xtask")).unwrap();
        let commit = |text: &str| {
            list(text).write(root).unwrap();
            let who = ["-c", "user.name=t", "-c", "user.email=t@t.example"];
            git(root, &[&who[..], &["commit", "-q", "-a", "-m", "x"]].concat()).unwrap();
        };
        git(root, &["init", "-q"]).unwrap();
        fs::write(root.join(FILE), "").unwrap();
        git(root, &["add", "."]).unwrap();
        commit("[file_lines]\n\"a.rs\" = 700\n");
        commit("[file_lines]\n\"a.rs\" = 650\n");
        assert_eq!(check_history(root, &Exceptions::read(root).unwrap()).unwrap(), 2);
        commit("[file_lines]\n\"a.rs\" = 660\n");
        commit("[file_lines]\n\"a.rs\" = 640\n");
        let error = check_history(root, &Exceptions::read(root).unwrap()).unwrap_err();
        assert!(error.to_string().contains("650 together, now 660"), "{error}");
    }
}
