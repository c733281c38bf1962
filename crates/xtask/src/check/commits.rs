//! Checks the subjects of commits: `area: what changed`, at most 72 characters.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::check::exceptions::git;

/// The last commit before the rule on subjects was introduced. Only later commits are checked.
const RULE_SINCE: &str = "5039d61";

const MOST_CHARACTERS: usize = 72;

/// Checks the subjects of all commits after [`RULE_SINCE`].
pub fn check(root: &Path) -> Result<String> {
    let range = format!("{RULE_SINCE}..HEAD");
    let Ok(log) = git(root, &["log", "--no-merges", "--format=%h %s", &range]) else {
        return Ok(format!("the history does not reach back to {RULE_SINCE}: not checked"));
    };
    let wrong: Vec<String> = log.lines().filter_map(violation).collect();
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(format!(
        "{} commits have an area and at most {MOST_CHARACTERS} characters",
        log.lines().count()
    ))
}

/// Takes a line of `git log` (hash and subject) and returns the reason why the subject breaks the
/// rule, if it does.
fn violation(line: &str) -> Option<String> {
    let (hash, subject) = line.split_once(' ').unwrap_or((line, ""));
    let characters = subject.chars().count();
    if characters > MOST_CHARACTERS {
        return Some(format!(
            "commit {hash}: the subject has {characters} characters, at most {MOST_CHARACTERS} are permitted: {subject}"
        ));
    }
    let is_area = |area: &str| {
        !area.is_empty()
            && area
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_,/.- ".contains(c))
    };
    let has_area =
        subject.split_once(": ").is_some_and(|(area, what)| is_area(area) && !what.is_empty());
    (!has_area)
        .then(|| format!("commit {hash}: the subject is not `area: what changed`: {subject}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_needs_an_area_and_at_most_72_characters() {
        assert_eq!(violation("1234567 cache: a window measures the rate"), None);
        assert_eq!(violation("1234567 bench far, docs: more rounds"), None);
        assert!(violation("1234567 A ratio is rounded as it is").is_some());
        assert!(violation("1234567 cache:").is_some());
        assert_eq!(violation(&format!("1234567 cache: {}", "x".repeat(65))), None);
        assert!(violation(&format!("1234567 cache: {}", "x".repeat(66))).is_some());
    }
}
