//! Makes the page of messages from the source: each message that the program can print, with its
//! remedy.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::check::text;
use crate::message_scan::{MessageKind, Messages, SharedRemedies, scan, shared_remedies};

/// The path of the page in the workspace.
pub const PAGE: &str = "docs/reference/messages.md";

/// The parts of the program that print messages: folder of the source, heading, introduction.
pub const PARTS: [(&str, &str, &str); 7] = [
    ("config", "Settings", "`forebay check` and `forebay serve` find these in the settings file."),
    (
        "stack",
        "Volumes, logs and caches",
        "Printed at the start, at a reload, and while units are served.",
    ),
    ("node", "Targets, pairs and moves", "Printed by `forebay serve`."),
    ("forebay", "Commands", "Printed by the command that failed."),
    ("attach", "Attached volumes", "Printed by `forebay attach`."),
    ("cache", "Events of the cache", "Printed by `forebay serve` of a gateway."),
    ("target", "Events of the target", "Printed by `forebay serve`."),
];

/// The file with remedies and meanings for messages that the program prints without them.
pub const TABLE: &str = "crates/xtask/messages.toml";

#[derive(Deserialize)]
pub struct MessageHelpTable {
    pub message: Vec<MessageHelp>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageHelp {
    /// The text of the message, with `…` for each value.
    pub text: String,
    /// The meaning of the message, if its text is not clear enough.
    pub meaning: Option<String>,
    /// The remedy, if the source has none.
    pub remedy: Option<String>,
}

const OPENING: &str = "\
# Messages
<!-- Messages: written by `cargo xtask reference` -->

This page lists the errors and warnings of `forebay` with their remedies. In a message, `…` stands for a
value. Paths such as docs/guide/recover.md are in the source of Forebay. Events begin with their time and level; failures of a command are printed to stderr, and the command
ends with exit code 1, or 2 if the settings or the command line are wrong.
";

/// Returns the text of the page for the source below `root`.
pub fn page(root: &Path) -> Result<String> {
    let help = help(root)?;
    let mut page = OPENING.to_owned();
    for ((_, heading, introduction), messages) in PARTS.into_iter().zip(parts(root)?) {
        page += &format!("\n## {heading}\n\n{introduction}\n");
        for (kind, title) in [
            (MessageKind::Failure, "Failures"),
            (MessageKind::Error, "Events of level error"),
            (MessageKind::Warning, "Events of level warn"),
        ] {
            page += &table(title, kind, &messages, &help);
        }
    }
    Ok(page)
}

/// Reads the rows of [`TABLE`].
pub fn help(root: &Path) -> Result<Vec<MessageHelp>> {
    let text = fs::read_to_string(root.join(TABLE)).context(TABLE)?;
    let table: MessageHelpTable = toml::from_str(&text).context(TABLE)?;
    let mut texts = BTreeSet::new();
    for row in &table.message {
        ensure!(texts.insert(&row.text), "{TABLE}: `{}` has two rows", row.text);
    }
    Ok(table.message)
}

/// Returns the messages of each of [`PARTS`], with the remedies that the source gives them.
pub fn parts(root: &Path) -> Result<Vec<Messages>> {
    let folders = PARTS.map(|(krate, ..)| root.join("crates").join(krate).join("src"));
    let mut shared = SharedRemedies::new();
    for folder in &folders {
        for file in sources(folder)? {
            shared.extend(shared_remedies(&fs::read_to_string(&file)?)?);
        }
    }
    folders.iter().map(|folder| messages(folder, &shared)).collect()
}

/// Returns the remedies for a message from the source, and the one from [`TABLE`].
pub fn remedies<'a>(
    text: &str,
    found: &'a BTreeSet<String>,
    help: &'a [MessageHelp],
) -> Vec<&'a str> {
    let row = help.iter().find(|row| row.text == text);
    let own = row.and_then(|row| row.remedy.as_deref());
    found.iter().map(String::as_str).chain(own).collect()
}

/// Returns the messages of the source files below a folder.
fn messages(folder: &Path, shared: &SharedRemedies) -> Result<Messages> {
    let mut messages = Messages::new();
    for file in sources(folder)? {
        let source = fs::read_to_string(&file)?;
        let found = scan(&source, shared).with_context(|| file.display().to_string())?;
        for (message, remedies) in found {
            messages.entry(message).or_default().extend(remedies);
        }
    }
    Ok(messages)
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = text::files(folder)?;
    files.retain(|file| file.extension().is_some_and(|ending| ending == "rs"));
    Ok(files)
}

/// Returns the table of the messages of one kind, with a row for each text; nothing if there is none.
fn table(title: &str, kind: MessageKind, messages: &Messages, help: &[MessageHelp]) -> String {
    let mut rows = String::new();
    for ((_, text), found) in messages.iter().filter(|((of, _), _)| *of == kind) {
        let row = help.iter().find(|row| row.text == *text);
        let meaning = row.and_then(|row| row.meaning.as_deref());
        let meaning = meaning.map(|it| format!("<br>({})", in_table(it))).unwrap_or_default();
        let remedies = remedies(text, found, help).into_iter().map(in_table);
        let remedies = remedies.collect::<Vec<_>>().join("<br>or: ");
        rows += &format!("| {}{meaning} | {remedies} |\n", in_table(text));
    }
    if rows.is_empty() {
        return rows;
    }
    format!("\n### {title}\n\n| message | what to do |\n|---|---|\n{rows}")
}

/// Escapes the characters that would end a table cell or begin an HTML tag.
fn in_table(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").replace('|', "\\|").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;

    #[test]
    fn the_page_of_messages_is_what_the_source_says() {
        let found = fs::read_to_string(check::root().join(PAGE)).unwrap();
        assert!(
            found == page(&check::root()).unwrap(),
            "{PAGE} differs: run `cargo xtask reference`"
        );
    }

    #[test]
    fn a_message_has_one_row_with_all_its_remedies() {
        let mut messages = Messages::new();
        let remedies = ["make <room>", "wait"].map(str::to_owned);
        messages.insert((MessageKind::Failure, "no | room".to_owned()), remedies.into());
        let plain = table("Failures", MessageKind::Failure, &messages, &[]);
        assert!(plain.ends_with("| no \\| room | make &lt;room><br>or: wait |\n"), "{plain}");
        let text = "no | room".to_owned();
        let (meaning, remedy) = (Some("it is full".to_owned()), Some("ask".to_owned()));
        let help = [MessageHelp { text, meaning, remedy }];
        let helped = table("Failures", MessageKind::Failure, &messages, &help);
        let row = "| no \\| room<br>(it is full) | make &lt;room><br>or: wait<br>or: ask |\n";
        assert!(helped.ends_with(row), "{helped}");
    }
}
