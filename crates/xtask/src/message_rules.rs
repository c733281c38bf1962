//! Rules for the page of messages: every message has a remedy, and the commands, keys, pages and sections that a remedy
//! names exist. The options of commands are checked by the step `pages`, which runs the program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use regex_lite::Regex;

use crate::message_page::{self, MessageHelp};
use crate::message_scan::Messages;
use crate::step_list::StepList;
use crate::steps::StepTally;

/// Adds the check as a step.
pub fn steps(list: &mut StepList<'_>) {
    list.add("check: messages", || Ok(StepTally::one().with_note(check(&crate::check::root())?)));
}

fn check(root: &Path) -> Result<String> {
    let (parts, help) = (message_page::parts(root)?, message_page::help(root)?);
    let known = KnownNames::read(root)?;
    let mut wrong = orphans(&parts, &help);
    let mut count = 0;
    for messages in &parts {
        for ((_, text), found) in messages {
            count += 1;
            let remedies = message_page::remedies(text, found, &help);
            if remedies.is_empty() {
                wrong.push(format!("`{text}` has no remedy"));
            }
            for remedy in remedies {
                let unknown = known.unknown_in(remedy);
                wrong.extend(unknown.into_iter().map(|it| format!("`{text}`: {it}: {remedy}")));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(format!("{count} messages with remedies"))
}

/// Returns the rows of `messages.toml` for which no message exists, or which add no information.
fn orphans(parts: &[Messages], help: &[MessageHelp]) -> Vec<String> {
    let texts: BTreeSet<&str> =
        parts.iter().flat_map(|part| part.keys().map(|(_, text)| text.as_str())).collect();
    let mut wrong = vec![];
    for MessageHelp { text, meaning, remedy } in help {
        if !texts.contains(text.as_str()) {
            wrong.push(format!("{}: there is no message `{text}`", message_page::TABLE));
        } else if meaning.is_none() && remedy.is_none() {
            wrong.push(format!("{}: the row `{text}` is empty", message_page::TABLE));
        }
    }
    wrong
}

/// The names that a remedy may use.
struct KnownNames {
    commands: BTreeSet<String>,
    keys: BTreeSet<String>,
    /// The names of the tables in the settings, such as `names`.
    tables: BTreeSet<String>,
    /// The figures of the status, and the variables of events.
    figures: BTreeSet<String>,
    /// The pages below docs/, each as path and text.
    pages: Vec<(String, String)>,
}

impl KnownNames {
    fn read(root: &Path) -> Result<Self> {
        let read = |path: &str| fs::read_to_string(root.join(path)).context(path.to_owned());
        let settings = read("docs/configuration.md")?;
        let mut pages = vec![];
        for file in crate::check::text::files(&root.join("docs"))? {
            if file.extension().is_some_and(|ending| ending == "md") {
                let name = file.strip_prefix(root)?.display().to_string();
                pages.push((name, fs::read_to_string(&file)?));
            }
        }
        let heading = Regex::new(r"(?m)^### Keys: `\[+([a-z_.]+)\]+`")?;
        Ok(Self {
            commands: commands(&read("crates/forebay/src/cli.rs")?)?,
            keys: first_cells(&settings),
            tables: heading.captures_iter(&settings).map(|found| found[1].to_owned()).collect(),
            figures: first_cells(&read("docs/reference/figures.md")?),
            pages,
        })
    }

    /// Returns the names in a remedy for which nothing exists, such as an unknown command.
    fn unknown_in(&self, remedy: &str) -> Vec<String> {
        let mut wrong = vec![];
        for (at, piece) in remedy.split('`').enumerate() {
            let unknown = match at % 2 {
                1 => self.unknown_code(piece).into_iter().collect(),
                _ => self.unquoted(piece),
            };
            wrong.extend(unknown);
        }
        wrong.extend(self.unknown_pages(remedy));
        wrong
    }

    /// Checks text in backquotes of a remedy: the program must have this command, settings key (with or without a value)
    /// or figure of the status. Returns what it does not have; `None`: nothing is wrong.
    fn unknown_code(&self, code: &str) -> Option<String> {
        let mut words = code.split_whitespace();
        let first = words.next()?;
        if first == "forebay" {
            let command = words.next().unwrap_or_default();
            let is_value = command.starts_with('…');
            let is_known = is_value || self.commands.contains(command);
            return (!is_known).then(|| format!("there is no command `forebay {command}`"));
        }
        let is_name = first.starts_with(|c: char| c.is_ascii_lowercase())
            && first.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_');
        let next = words.next();
        match next {
            Some("=") if is_name && !self.keys.contains(first) => {
                Some(format!("there is no setting `{first}`"))
            }
            None if is_name && !self.keys.contains(first) && !self.figures.contains(first) => {
                Some(format!("there is no setting or figure `{first}`"))
            }
            _ => None,
        }
    }

    /// Checks text without backquotes: commands must be in backquotes, so that the step `pages` finds them, and tables of
    /// the settings must exist.
    fn unquoted(&self, text: &str) -> Vec<String> {
        let mut wrong = vec![];
        let words: Vec<&str> = text.split_whitespace().collect();
        for pair in words.windows(2) {
            let command = pair[1].trim_end_matches([',', '.', ';', ':']);
            if pair[0] == "forebay" && self.commands.contains(command) {
                wrong.push(format!("`forebay {command}` is not in backquotes"));
            }
        }
        for word in words {
            let table = word.trim_end_matches([',', '.', ';', ':', ')']);
            let table = table.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            let Some(table) = table.map(|table| table.trim_matches(['[', ']'])) else { continue };
            if !self.tables.contains(table) {
                wrong.push(format!("the settings have no table [{table}]"));
            }
        }
        wrong
    }

    /// Checks the pages that a remedy names, such as `docs/a.md`, `docs/a.md#section` and `docs/a.md, "Section"`.
    fn unknown_pages(&self, remedy: &str) -> Vec<String> {
        let named = Regex::new(r#"(docs/[a-z0-9/._-]+\.md)(#[\w-]+)?(?:, "([^"]+)")?"#);
        let named = named.expect("a valid pattern");
        let mut wrong = vec![];
        for found in named.captures_iter(remedy) {
            let page = &found[1];
            let Some((_, text)) = self.pages.iter().find(|(name, _)| name == page) else {
                wrong.push(format!("there is no page {page}"));
                continue;
            };
            let headings = || text.lines().filter_map(|line| line.strip_prefix('#'));
            let headings = || headings().map(|line| line.trim_start_matches('#').trim());
            let anchor = found.get(2).map(|anchor| &anchor.as_str()[1..]);
            if let Some(anchor) = anchor.filter(|it| !headings().any(|line| slug(line) == **it)) {
                wrong.push(format!("{page} has no section #{anchor}"));
            }
            let title = found.get(3).map(|title| title.as_str());
            if let Some(title) = title.filter(|title| !headings().any(|line| line == *title)) {
                wrong.push(format!("{page} has no section \"{title}\""));
            }
        }
        wrong
    }
}

/// Returns the commands of the program, which are the variants of its enum of commands.
fn commands(source: &str) -> Result<BTreeSet<String>> {
    let file = syn::parse_file(source)?;
    let commands = file.items.iter().find_map(|item| match item {
        syn::Item::Enum(item) if item.ident == "ForebayCommand" => Some(item),
        _ => None,
    });
    let commands = commands.context("there is no enum ForebayCommand")?;
    Ok(commands.variants.iter().map(|variant| variant.ident.to_string().to_lowercase()).collect())
}

/// Returns the names in backquotes in the first cells of all tables of a page.
fn first_cells(page: &str) -> BTreeSet<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    let names = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names.map(str::to_owned).collect()
}

/// Returns the anchor of a heading.
fn slug(heading: &str) -> String {
    let lower = heading.to_lowercase();
    let kept = lower.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::root;

    #[test]
    fn every_message_has_a_remedy_that_names_only_what_exists() {
        if let Err(wrong) = super::check(&root()) {
            panic!("{wrong}");
        }
    }

    fn check(remedy: &str, expected: &[&str]) {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let known = KnownNames {
            commands: names(&["status"]),
            keys: names(&["log_size"]),
            tables: names(&["names"]),
            figures: names(&["dirty_bytes"]),
            pages: vec![("docs/a.md".to_owned(), "# A\n\n## What it prints\n".to_owned())],
        };
        assert_eq!(known.unknown_in(remedy), expected, "{remedy}");
    }

    #[test]
    fn a_remedy_that_names_an_unknown_key_or_figure_is_refused() {
        check("raise `log_size`, or set `log_size = \"1GiB\"`; see `dirty_bytes`", &[]);
        check("raise `log_sise`", &["there is no setting or figure `log_sise`"]);
        check("set `dirty_bytes = 1`", &["there is no setting `dirty_bytes`"]);
        check("add a [names] table, or a [[nodes]] one", &["the settings have no table [nodes]"]);
    }

    #[test]
    fn a_remedy_that_names_an_unknown_command_is_refused() {
        check("`forebay status --all` shows it; `df -h …` and `forebay …` too", &[]);
        check("`forebay stats` shows it", &["there is no command `forebay stats`"]);
        check("see forebay status.", &["`forebay status` is not in backquotes"]);
    }

    #[test]
    fn a_remedy_that_names_an_unknown_page_or_section_is_refused() {
        check("see docs/a.md#what-it-prints, docs/a.md, and docs/a.md, \"What it prints\"", &[]);
        check("see docs/b.md", &["there is no page docs/b.md"]);
        check("see docs/a.md#b", &["docs/a.md has no section #b"]);
        check("see docs/a.md, \"B\"", &["docs/a.md has no section \"B\""]);
    }

    #[test]
    fn a_row_of_the_table_without_a_message_is_refused() {
        let row = |text: &str, remedy: Option<&str>| MessageHelp {
            text: text.to_owned(),
            meaning: None,
            remedy: remedy.map(str::to_owned),
        };
        let kind = crate::message_scan::MessageKind::Failure;
        let messages = Messages::from([((kind, "a".to_owned()), BTreeSet::new())]);
        let found = orphans(&[messages], &[row("a", Some("b")), row("b", Some("c"))]);
        assert_eq!(found, ["crates/xtask/messages.toml: there is no message `b`"]);
    }
}
