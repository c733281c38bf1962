//! Refuses phrases that the project does not use, and counts doc comments that say nothing.
//!
//! The phrases, each with its replacement, are in `crates/xtask/phrases.toml`. They are looked for in comments, in string
//! literals (messages), in names of functions and types, and in pages.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use regex_lite::{Regex, RegexBuilder};
use serde::Deserialize;

use crate::check::source::ClassifiedSource;
use crate::check::text;

/// The path of the file with the phrases.
const LIST: &str = "crates/xtask/phrases.toml";

/// A doc comment with at most this number of words only repeats the name.
const SHORT_WORDS: usize = 3;

/// Upper bound on the number of doc comments with at most [`SHORT_WORDS`] words.
const SHORT_COMMENTS: usize = 150;

/// Words with which a sentence without a subject begins.
const OPENINGS: [&str; 8] = ["What", "Of", "Who", "It", "Its", "Nothing", "So", "That"];

/// Maximum number of doc comments that begin with one of [`OPENINGS`].
const OPENED_COMMENTS: usize = 150;

/// A phrase that the project does not use.
struct Phrase {
    pattern: Regex,
    instead: String,
}

/// The contents of the file with the phrases ([`LIST`]).
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PhraseList {
    phrase: Vec<ListedPhrase>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedPhrase {
    pattern: String,
    instead: String,
}

/// A piece of text, with the number of its line from 1 on.
type Numbered = (usize, String);

/// Numbers of doc comments: all of them, the short ones, and those that begin with one of [`OPENINGS`].
#[derive(Debug, Default, PartialEq, Eq)]
struct CommentCounts {
    all: usize,
    short: usize,
    opened: usize,
}

/// Checks all source files and pages below the root of the workspace.
pub fn check(root: &Path) -> Result<String> {
    let list = fs::read_to_string(root.join(LIST)).context(LIST)?;
    let phrases = phrases(&list).context(LIST)?;
    let mut wrong = vec![];
    let mut counts = CommentCounts::default();
    for file in text::files(root)? {
        let name = file.strip_prefix(root)?.display().to_string();
        let read = || fs::read_to_string(&file).with_context(|| name.clone());
        let pieces = if name.ends_with(".rs") {
            let text = read()?;
            counts.add(&text);
            pieces_of_source(&text).with_context(|| name.clone())?
        } else if name.ends_with(".md") {
            pieces_of_page(&read()?)
        } else {
            continue;
        };
        wrong.extend(violations(&name, &pieces, &phrases));
    }
    println!(
        "  doc comments: {} of {}, bound {SHORT_COMMENTS}, have at most {SHORT_WORDS} words; \
         {}, bound {OPENED_COMMENTS}, begin with {}",
        counts.short,
        counts.all,
        counts.opened,
        OPENINGS.join(", ")
    );
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    ensure!(counts.short <= SHORT_COMMENTS, "too many doc comments say no more than the name");
    ensure!(counts.opened <= OPENED_COMMENTS, "too many doc comments begin without a subject");
    Ok(format!("none of {} phrases is used", phrases.len()))
}

fn phrases(list: &str) -> Result<Vec<Phrase>> {
    let list: PhraseList = toml::from_str(list)?;
    let compile = |ListedPhrase { pattern, instead }| {
        let pattern = RegexBuilder::new(&pattern).case_insensitive(true).build()?;
        Ok(Phrase { pattern, instead })
    };
    list.phrase.into_iter().map(compile).collect()
}

fn violations(name: &str, pieces: &[Numbered], phrases: &[Phrase]) -> Vec<String> {
    let mut wrong = vec![];
    for (line, piece) in pieces {
        for phrase in phrases {
            if let Some(found) = phrase.pattern.find(piece) {
                wrong.push(format!(
                    "{name}:{line}: write \"{}\" in place of \"{}\"",
                    phrase.instead,
                    found.as_str()
                ));
            }
        }
    }
    wrong
}

/// Returns the comments, literals and declared names of a source file.
fn pieces_of_source(text: &str) -> Result<Vec<Numbered>> {
    let source = ClassifiedSource::read(text)?;
    let mut pieces = source.comments();
    pieces.extend(source.literals());
    for (n, line) in source.code()?.lines().enumerate() {
        pieces.extend(declared_names(line).map(|name| (n + 1, words_of(name))));
    }
    Ok(pieces)
}

/// Returns the names of functions and types that a line of code declares.
fn declared_names(line: &str) -> impl Iterator<Item = &str> {
    const KEYWORDS: [&str; 5] = ["fn", "struct", "enum", "trait", "type"];
    let is_separator = |c: char| !c.is_alphanumeric() && c != '_';
    let mut words = line.split(is_separator).filter(|word| !word.is_empty());
    std::iter::from_fn(move || {
        words.by_ref().find(|word| KEYWORDS.contains(word))?;
        words.next()
    })
}

/// Returns the words of a name: `is_past` and `IsPast` become "is past".
fn words_of(name: &str) -> String {
    let mut words = String::new();
    for c in name.chars() {
        if c == '_' {
            words.push(' ');
        } else {
            if c.is_uppercase() && !words.is_empty() && !words.ends_with(' ') {
                words.push(' ');
            }
            words.extend(c.to_lowercase());
        }
    }
    words
}

/// Returns the text of a page without blocks of code, text in backquotes and targets of links.
fn pieces_of_page(page: &str) -> Vec<Numbered> {
    let mut is_fenced = false;
    let mut pieces = vec![];
    for (n, line) in page.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced && !line.starts_with("    ") {
            let prose: Vec<&str> = line.split('`').step_by(2).collect();
            pieces.push((n + 1, without_targets(&prose.join("`"))));
        }
    }
    pieces
}

/// Removes the targets of links: a heading of another page may be part of its address.
fn without_targets(line: &str) -> String {
    let mut parts = line.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push(']');
        text.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    text
}

impl CommentCounts {
    /// Counts the doc comments of a file: adjacent lines of one kind are one comment.
    fn add(&mut self, text: &str) {
        let mut comment = String::new();
        let mut kind = "";
        for line in text.lines().chain([""]) {
            let line = line.trim_start();
            let of_line =
                ["///", "//!"].into_iter().find(|kind| line.starts_with(kind)).unwrap_or("");
            if of_line != kind {
                self.add_comment(&comment);
                comment.clear();
                kind = of_line;
            }
            if !of_line.is_empty() {
                comment.push_str(&line[of_line.len()..]);
            }
        }
    }

    fn add_comment(&mut self, comment: &str) {
        let words: Vec<&str> = comment.split_whitespace().collect();
        let Some(first) = words.first() else { return };
        self.all += 1;
        self.short += usize::from(words.len() <= SHORT_WORDS);
        let first = first.trim_end_matches([',', ':']);
        self.opened += usize::from(OPENINGS.contains(&first));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "[[phrase]]\npattern = '\\bbad (word|one)\\b'\ninstead = \"good word\"\n";

    fn check(name: &str, pieces: &[Numbered], expected: &[&str]) {
        assert_eq!(violations(name, pieces, &phrases(LIST).unwrap()), expected, "{pieces:?}");
    }

    #[test]
    fn a_phrase_is_refused_in_a_comment_a_message_and_a_name() {
        let of = |text: &str| pieces_of_source(text).unwrap();
        let wrong = "a.rs:1: write \"good word\" in place of \"bad word\"";
        check("a.rs", &of("// A bad word.\n"), &[wrong]);
        check("a.rs", &of("f(\"a bad word\");\n"), &[wrong]);
        check("a.rs", &of("pub fn is_bad_word() {}\n"), &[wrong]);
        check("a.rs", &of("struct BadWord;\n"), &[wrong]);
        check("a.rs", &of("// A badword.\nlet bad_word = 1;\n"), &[]);
    }

    #[test]
    fn a_phrase_is_refused_in_the_prose_of_a_page_only() {
        let page = "A Bad one.\n`bad one` [x](#bad-one)\n    bad one\n```\nbad one\n```\n";
        let wrong = "a.md:1: write \"good word\" in place of \"Bad one\"";
        check("a.md", &pieces_of_page(page), &[wrong]);
    }

    #[test]
    fn short_doc_comments_and_those_without_a_subject_are_counted() {
        let mut counts = CommentCounts::default();
        counts.add(
            "//! What this is, in\n//! two lines.\n\n/// Its name.\na: u8,\n/// A real sentence here.\n",
        );
        assert_eq!(counts, CommentCounts { all: 3, short: 1, opened: 2 });
    }

    #[test]
    fn the_list_of_the_project_is_read() {
        let list = fs::read_to_string(crate::check::root().join(super::LIST)).unwrap();
        assert!(phrases(&list).unwrap().iter().all(|phrase| !phrase.instead.is_empty()));
    }
}
