//! Makes the page of messages from the source: each message that the program can print, with its
//! remedy.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::check::text;
use crate::message_scan::{MessageKind, Messages, scan};

/// The path of the page in the workspace.
pub const PAGE: &str = "docs/reference/messages.md";

/// The parts of the program that print messages: folder of the source, heading, introduction.
const PARTS: [(&str, &str, &str); 7] = [
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

const OPENING: &str = "\
# Messages
<!-- Messages: written by `cargo xtask reference` -->

This page lists the errors and warnings of `forebay` with their remedies. In a message, `…` stands for a
value. Events begin with their time and level; failures of a command are printed to stderr, and the command
ends with exit code 1, or 2 if the settings or the command line are wrong.
";

/// Returns the text of the page for the source below `root`.
pub fn page(root: &Path) -> Result<String> {
    let mut page = OPENING.to_owned();
    for (krate, heading, introduction) in PARTS {
        let messages = messages(&root.join("crates").join(krate).join("src"))?;
        page += &format!("\n## {heading}\n\n{introduction}\n");
        for (kind, title) in [
            (MessageKind::Failure, "Failures"),
            (MessageKind::Error, "Events of level error"),
            (MessageKind::Warning, "Events of level warn"),
        ] {
            page += &table(title, kind, &messages);
        }
    }
    Ok(page)
}

/// Returns the messages of the source files below a folder.
fn messages(folder: &Path) -> Result<Messages> {
    let mut messages = Messages::new();
    for file in text::files(folder)? {
        if file.extension().is_some_and(|ending| ending == "rs") {
            let source = fs::read_to_string(&file)?;
            let found = scan(&source).with_context(|| file.display().to_string())?;
            for (message, remedies) in found {
                messages.entry(message).or_default().extend(remedies);
            }
        }
    }
    Ok(messages)
}

/// Returns the table of the messages of one kind, with a row for each text; an empty string if there are none.
fn table(title: &str, kind: MessageKind, messages: &Messages) -> String {
    let mut rows = String::new();
    for ((_, text), remedies) in messages.iter().filter(|((of, _), _)| *of == kind) {
        let remedies: Vec<String> = remedies.iter().map(|remedy| in_table(remedy)).collect();
        rows += &format!("| {} | {} |\n", in_table(text), remedies.join("<br>or: "));
    }
    if rows.is_empty() {
        return rows;
    }
    format!("\n### {title}\n\n| message | what to do |\n|---|---|\n{rows}")
}

/// Escapes the characters that would end a table cell or begin HTML.
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
        let table = table("Failures", MessageKind::Failure, &messages);
        assert!(table.ends_with("| no \\| room | make &lt;room><br>or: wait |\n"), "{table}");
    }
}
