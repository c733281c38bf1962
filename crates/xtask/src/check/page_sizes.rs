//! Bounds on the documentation pages: total number of words, words of a list item, characters of a line.
//!
//! Only text written by hand counts. A generated part of a page begins with a line `<!-- ...: written by ... -->` and
//! ends with a line `<!-- End of ... -->` or with the page.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::check::text;

/// Upper bound on the words of all pages, without tables.
const PROSE_WORDS: usize = 27_170;

/// Upper bound on the words in the tables of all pages. About half of these words are in the tables of formats,
/// protocols and attacks; tests compare these tables with the code.
const TABLE_WORDS: usize = 14_830;

/// Maximum number of words in a list item of a page.
const ITEM_WORDS: usize = 40;

/// Upper bound on the characters of a line. Rows of tables, code, and a line that is a single link
/// may be longer.
const LINE_CHARACTERS: usize = 100;

/// Checks all pages below the root of the workspace.
pub fn check(root: &Path) -> Result<String> {
    let mut wrong = vec![];
    let (mut prose, mut tables, mut pages) = (0, 0, 0);
    for file in text::files(root)? {
        if file.extension().is_none_or(|ending| ending != "md") {
            continue;
        }
        let name = file.strip_prefix(root)?.display().to_string();
        let page = fs::read_to_string(&file)?;
        pages += 1;
        for (_, line) in written(&page) {
            let words = if line.starts_with('|') { &mut tables } else { &mut prose };
            *words += words_in(line);
        }
        wrong.extend(violations(&name, &page));
    }
    println!(
        "  words written by hand: {prose} of prose, bound {PROSE_WORDS}; {tables} in tables, bound {TABLE_WORDS}"
    );
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    ensure!(prose <= PROSE_WORDS, "the pages have {prose} words, at most {PROSE_WORDS}");
    ensure!(tables <= TABLE_WORDS, "tables of pages have {tables} words, at most {TABLE_WORDS}");
    Ok(format!("{pages} pages"))
}

/// Returns the lines of a page that are written by hand, with their numbers from 1.
fn written(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_generated = false;
    page.lines().enumerate().filter_map(move |(n, line)| {
        if line.starts_with("<!--") {
            is_generated = line.contains(": written by ");
            return None;
        }
        (!is_generated).then_some((n + 1, line))
    })
}

/// Counts the words of a line. A word has at least one letter or digit.
fn words_in(line: &str) -> usize {
    line.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

fn violations(name: &str, page: &str) -> Vec<String> {
    let mut wrong = vec![];
    let mut is_fenced = false;
    // Line number and word count of the list item that the loop is in; `None` outside of a list
    // item.
    let mut item: Option<(usize, usize)> = None;
    let end_item = |item: &mut Option<(usize, usize)>, wrong: &mut Vec<String>| {
        if let Some((line, words)) = item.take()
            && words > ITEM_WORDS
        {
            wrong
                .push(format!("{name}:{line}: {words} words in a list item, at most {ITEM_WORDS}"));
        }
    };
    for (n, line) in written(page) {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        }
        let is_code = is_fenced || line.starts_with("    ") && item.is_none();
        let characters = line.chars().count();
        if characters > LINE_CHARACTERS && !is_code && !line.starts_with('|') && !is_link(line) {
            wrong.push(format!("{name}:{n}: {characters} characters, at most {LINE_CHARACTERS}"));
        }
        let words = words_in(line);
        if let Some(rest) = list_item(line).filter(|_| !is_code) {
            end_item(&mut item, &mut wrong);
            item = Some((n, words_in(rest)));
        } else if line.trim().is_empty() || is_code || line.starts_with(['|', '#']) {
            end_item(&mut item, &mut wrong);
        } else if let Some((_, sum)) = &mut item {
            *sum += words;
        }
    }
    end_item(&mut item, &mut wrong);
    wrong
}

/// Returns the text of a line that begins a list item.
fn list_item(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let rest = if number.len() < line.len() { number.strip_prefix(". ") } else { None };
    rest.or_else(|| line.strip_prefix("- ")).or_else(|| line.strip_prefix("* "))
}

/// Returns true if the line is a single link, which cannot be wrapped.
fn is_link(line: &str) -> bool {
    line.trim_start_matches(['-', ' ']).starts_with('[') && line.split_whitespace().count() <= 12
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(page: &str, expected: &[&str]) {
        assert_eq!(violations("a.md", page), expected, "{page}");
    }

    #[test]
    fn a_long_list_item_is_named_with_its_first_line() {
        let words = |n: usize| "word ".repeat(n).trim_end().to_owned();
        let item = format!("text\n\n- {}\n  {}\n  {}\n", words(15), words(15), words(11));
        check(&item, &["a.md:3: 41 words in a list item, at most 40"]);
        check(&format!("- {}\n- {}\n", words(15), words(15)), &[]);
        let numbered = format!("1. {}\n   {}\n   {}\n", words(15), words(15), words(11));
        check(&numbered, &["a.md:1: 41 words in a list item, at most 40"]);
    }

    #[test]
    fn a_long_line_is_named_unless_it_is_code_or_a_row_of_a_table() {
        let long = "x".repeat(101);
        check(&long, &["a.md:1: 101 characters, at most 100"]);
        check(&format!("    {long}\n| {long} |\n```\n{long}\n```\n"), &[]);
    }

    #[test]
    fn generated_parts_do_not_count() {
        let long = "x".repeat(101);
        let page = format!("<!-- Table: written by `a` -->\n{long}\n<!-- End of it -->\nb c\n");
        check(&page, &[]);
        assert_eq!(written(&page).collect::<Vec<_>>(), [(4, "b c")]);
    }
}
