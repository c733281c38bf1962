//! The list of the items that exceed a bound: exceptions, which may only shrink, and exemptions, which have a kind and
//! a reason.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use toml::Value;

/// The path of the list below the root of the workspace.
pub const FILE: &str = "crates/xtask/exceptions.toml";

/// Time limit of a git command, which reads a few files of the history.
const GIT_LIMIT: Duration = Duration::from_secs(60);

/// The contents of [`FILE`]: all items that may exceed a bound. A section of the file has either
/// exceptions or exemptions.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Exceptions {
    /// For each rule, the items that exceed its bound and their measured values. No commit may add an item or raise the
    /// sum of a rule's values.
    permitted: BTreeMap<String, BTreeMap<String, usize>>,
    /// For each kind of exemption, the items that may exceed the bound permanently, and the reason of each.
    exempt: BTreeMap<String, BTreeMap<String, String>>,
}

impl Exceptions {
    /// Reads the list. A list that does not exist is empty.
    pub fn read(root: &Path) -> Result<Exceptions> {
        let path = root.join(FILE);
        if !path.exists() {
            return Ok(Exceptions::default());
        }
        Exceptions::parse(&fs::read_to_string(&path)?).context(FILE)
    }

    /// Parses the text of a list: a number is the measured value of an exception, a text the reason of an exemption.
    pub fn parse(text: &str) -> Result<Exceptions> {
        let sections: BTreeMap<String, BTreeMap<String, Value>> = toml::from_str(text)?;
        let mut parsed = Exceptions::default();
        for (section, entries) in sections {
            for (name, entry) in entries {
                match entry {
                    Value::Integer(value) => {
                        let of_rule = parsed.permitted.entry(section.clone()).or_default();
                        of_rule.insert(name, value.try_into()?);
                    }
                    Value::String(reason) if !reason.is_empty() => {
                        parsed.exempt.entry(section.clone()).or_default().insert(name, reason);
                    }
                    _ => bail!("[{section}] {name}: neither a measured value nor a reason"),
                }
            }
        }
        Ok(parsed)
    }

    pub fn write(&self, root: &Path) -> Result<()> {
        let mut text = HEADER.to_owned();
        let mut add = |section: &str, lines: Vec<String>| {
            if !lines.is_empty() {
                text.push_str(&format!("\n[{section}]\n{}\n", lines.join("\n")));
            }
        };
        for (rule, values) in &self.permitted {
            add(rule, values.iter().map(|(name, value)| format!("\"{name}\" = {value}")).collect());
        }
        for (kind, reasons) in &self.exempt {
            let line = |(name, reason)| format!("\"{name}\" = {}", Value::String(reason));
            add(kind, reasons.clone().into_iter().map(line).collect());
        }
        Ok(fs::write(root.join(FILE), text)?)
    }

    pub fn sections(&self) -> impl Iterator<Item = &String> {
        self.permitted.keys().chain(self.exempt.keys())
    }

    /// Returns the permitted exceptions from the bound `rule`: each item with its measured value.
    pub fn of(&self, rule: &str) -> BTreeMap<String, usize> {
        self.permitted.get(rule).cloned().unwrap_or_default()
    }

    pub fn set(&mut self, rule: &str, values: BTreeMap<String, usize>) {
        self.permitted.insert(rule.to_owned(), values);
    }

    /// Returns the items that are exempt for the reason `kind`.
    pub fn exempt(&self, kind: &str) -> impl Iterator<Item = &String> {
        self.exempt.get(kind).into_iter().flat_map(BTreeMap::keys)
    }

    /// Compares this list with the one of an earlier commit. Returns the reason to refuse it: a rule has more entries
    /// than before, or their sum has grown. Entries may change their names, since a commit may rename files and types.
    fn growth_since(&self, earlier: &Exceptions) -> Option<String> {
        self.permitted.iter().find_map(|(rule, values)| {
            let before = earlier.permitted.get(rule)?;
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
#
# The sections with reasons instead of values exempt items from a bound for good: structs with one field for each setting
# (settings), or with the fields of a record on disk, on the wire or in the kernel (records); functions that are one table
# (tables, at most five); names that several types may have (type_names, at most ten).
";

/// Checks in the history that no commit let the list grow. Returns the number of versions of the list that the history
/// has.
pub fn check_history(root: &Path, now: &Exceptions) -> Result<usize> {
    let mut newer = now.clone();
    let log = git(root, &["log", "--format=%H", "--", FILE])?;
    let commits: Vec<&str> = log.lines().collect();
    for commit in &commits {
        // `git show` fails for a commit that removed the list: skip that commit.
        let Ok(text) = git(root, &["show", &format!("{commit}:{FILE}")]) else { continue };
        let older = Exceptions::parse(&text).with_context(|| format!("{FILE} in {commit}"))?;
        if let Some(growth) = newer.growth_since(&older) {
            anyhow::bail!("{FILE} has grown since commit {commit}: {growth}");
        }
        newer = older;
    }
    Ok(commits.len())
}

/// Runs git in the workspace, and returns its output.
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
    fn exemptions_have_a_reason_and_are_kept_when_the_list_is_written() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("crates/xtask")).unwrap();
        let text = "[file_lines]\n\"a.rs\" = 700\n[records]\n\"b.rs B\" = \"the \\\"header\\\"\"\n";
        list(text).write(dir.path()).unwrap();
        let read = Exceptions::read(dir.path()).unwrap();
        assert_eq!(read, list(text));
        assert_eq!(read.exempt("records").collect::<Vec<_>>(), ["b.rs B"]);
        assert!(Exceptions::parse("[records]\n\"b.rs B\" = \"\"\n").is_err());
    }

    #[test]
    fn an_exemption_is_no_growth() {
        let before = list("[struct_fields]\n\"a.rs A\" = 20\n");
        let after = list("[records]\n\"a.rs A\" = \"a header\"\n\"b.rs B\" = \"a header\"\n");
        assert_eq!(after.growth_since(&before), None);
    }

    #[test]
    fn a_commit_that_makes_the_list_longer_is_named() {
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
