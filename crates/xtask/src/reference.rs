//! Makes the example of a settings file and the tables of all keys from the doc comments of the
//! settings.
//!
//! `crates/config/example.in.toml` is the example without the comments of its keys. A line `#@
//! Struct: title` in it names the struct of the keys that follow, up to the next table. The doc
//! comment of a field is written above its key. The title is the heading of the struct's table in
//! `docs/configuration.md`; a struct without a title has its table on another page.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::doc_comment::{doc, with_part};
use crate::{check, figure_tables, format_tables, message_page, protocol_tables};

/// Path of the skeleton: the example settings without the comments on its keys.
const SKELETON: &str = "crates/config/example.in.toml";
const EXAMPLE: &str = "forebay.example.toml";
const PAGE: &str = "docs/configuration.md";
/// The lines of `docs/configuration.md` before and after the tables.
const BEGIN: &str = "<!-- Tables of keys: written by `cargo xtask reference` -->";
const END: &str = "<!-- End of the tables of keys -->";
/// Longest comment line in the example, in characters.
const LINE: usize = 110;

/// For each struct of the settings, its keys with their doc comments, in the order of the source.
type StructDocs = BTreeMap<String, Vec<(String, String)>>;

pub fn write() -> Result<()> {
    for (path, text) in made()? {
        let path = check::root().join(path);
        fs::create_dir_all(path.parent().context("a file in a folder")?)?;
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Returns the generated files: the path and the content of each.
fn made() -> Result<[(&'static str, String); 6]> {
    let root = check::root();
    let read = |path: &str| fs::read_to_string(root.join(path)).with_context(|| path.to_owned());
    let skeleton = read(SKELETON)?;
    let docs = docs_in(&root.join("crates/config/src"))?;
    let page = page(&docs, &skeleton, &read(PAGE)?)?;
    let messages = message_page::page(&root)?;
    let figures = figure_tables::tables(&root)?;
    let figures = with_part(&read(figure_tables::PAGE)?, figure_tables::PART, &figures)?;
    let protocols = protocol_tables::page(&root, &read(protocol_tables::PAGE)?)?;
    let format = format_tables::page(&root, &read(format_tables::PAGE)?)?;
    Ok([
        (EXAMPLE, example(&docs, &skeleton)?),
        (PAGE, page),
        (message_page::PAGE, messages),
        (figure_tables::PAGE, figures),
        (protocol_tables::PAGE, protocols),
        (format_tables::PAGE, format),
    ])
}

/// Reads the doc comments of all structs below a folder.
fn docs_in(folder: &Path) -> Result<StructDocs> {
    let mut docs = StructDocs::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            docs.extend(docs_in(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            docs.extend(
                docs_of(&fs::read_to_string(&path)?).with_context(|| path.display().to_string())?,
            );
        }
    }
    Ok(docs)
}

fn docs_of(source: &str) -> Result<StructDocs> {
    let file = syn::parse_file(source)?;
    let structs = file.items.iter().filter_map(|item| match item {
        syn::Item::Struct(item) => Some(item),
        _ => None,
    });
    let fields = |item: &syn::ItemStruct| {
        let keys = item.fields.iter().filter(|field| !is_skipped(field));
        keys.filter_map(|field| Some((field.ident.as_ref()?.to_string(), doc(&field.attrs))))
            .collect()
    };
    Ok(structs.map(|item| (item.ident.to_string(), fields(item))).collect())
}

/// Returns true for a field with `#[serde(skip)]`, which is no key.
fn is_skipped(field: &syn::Field) -> bool {
    field.attrs.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("serde") && list.tokens.to_string() == "skip",
        _ => false,
    })
}

enum SkeletonLine<'a> {
    /// Names the struct of the keys below, and the title of the struct's table.
    Struct(&'a str, Option<&'a str>),
    /// The head of a TOML table.
    Table,
    /// The name of a key, and its value if the line gives the default.
    Key(&'a str, Option<&'a str>),
    /// A line without a key: text, or an empty line.
    Other,
}

fn classified(line: &str) -> SkeletonLine<'_> {
    if let Some(marker) = line.strip_prefix("#@ ") {
        return match marker.split_once(": ") {
            Some((name, title)) => SkeletonLine::Struct(name, Some(title)),
            None => SkeletonLine::Struct(marker, None),
        };
    }
    let bare = line.trim_start_matches('#');
    if bare.starts_with('[') {
        return SkeletonLine::Table;
    }
    let is_key = |name: &str| {
        !name.is_empty()
            && name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_')
    };
    match bare.split_once(" = ") {
        Some((name, value)) if is_key(name) => {
            let is_default = line.len() - bare.len() == 1;
            SkeletonLine::Key(name, is_default.then_some(value))
        }
        _ => SkeletonLine::Other,
    }
}

/// Returns the example: the skeleton with the doc comment of each key above its first line.
fn example(docs: &StructDocs, skeleton: &str) -> Result<String> {
    let mut text = String::new();
    let mut fields: Option<(&str, &[(String, String)])> = None;
    let mut told = BTreeSet::new();
    for line in skeleton.lines() {
        match classified(line) {
            SkeletonLine::Struct(name, _) => {
                let found = docs.get(name).with_context(|| format!("there is no struct {name}"))?;
                fields = Some((name, found));
                continue;
            }
            SkeletonLine::Table => fields = None,
            SkeletonLine::Key(key, _) => {
                if let Some((name, fields)) = fields {
                    let field = fields.iter().find(|(field, _)| field == key);
                    let (_, doc) = field.with_context(|| format!("{name} has no key {key}"))?;
                    if told.insert((name, key)) {
                        text += &commented(doc);
                    }
                }
            }
            SkeletonLine::Other => {}
        }
        text += line;
        text.push('\n');
    }
    Ok(text)
}

/// Returns a text as comment lines of at most [`LINE`] characters.
fn commented(text: &str) -> String {
    let mut lines = vec![String::from("#")];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("it begins with one");
        if line.len() > 1 && line.len() + 1 + word.len() > LINE {
            lines.push(format!("# {word}"));
        } else {
            line.push(' ');
            line.push_str(word);
        }
    }
    lines.join("\n") + "\n"
}

/// Returns `page` with new tables of keys, in the order of the skeleton.
fn page(docs: &StructDocs, skeleton: &str, page: &str) -> Result<String> {
    let (before, rest) =
        page.split_once(BEGIN).with_context(|| format!("{PAGE} has no {BEGIN}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("{PAGE} has no {END}"))?;
    let defaults = defaults(skeleton);
    let mut tables = String::new();
    for line in skeleton.lines() {
        let SkeletonLine::Struct(name, Some(title)) = classified(line) else { continue };
        let fields = docs.get(name).with_context(|| format!("there is no struct {name}"))?;
        tables += &format!("\n### Keys: {title}\n\n| key | default | meaning |\n|---|---|---|\n");
        for (key, doc) in fields {
            let default = defaults.get(&(name, key.as_str()));
            let default = default.map_or(String::new(), |value| format!("`{value}`"));
            tables += &format!("| `{key}` | {default} | {} |\n", doc.replace('|', "\\|"));
        }
    }
    Ok(format!("{before}{BEGIN}\n{tables}\n{END}{after}"))
}

/// Returns the default values in the skeleton, by struct and key.
fn defaults(skeleton: &str) -> BTreeMap<(&str, &str), &str> {
    let mut defaults = BTreeMap::new();
    let mut within = None;
    for line in skeleton.lines() {
        match classified(line) {
            SkeletonLine::Struct(name, _) => within = Some(name),
            SkeletonLine::Table => within = None,
            SkeletonLine::Key(key, Some(value)) => {
                if let Some(name) = within {
                    defaults.insert((name, key), value);
                }
            }
            SkeletonLine::Key(_, None) | SkeletonLine::Other => {}
        }
    }
    defaults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_and_the_tables_of_keys_match_the_settings() {
        for (path, expected) in made().unwrap() {
            let found = fs::read_to_string(check::root().join(path)).unwrap();
            assert!(found == expected, "{path} differs: run `cargo xtask reference`");
        }
    }

    const SOURCE: &str = "/// A table.\npub struct Disk {\n    /// The length\n    /// in bytes.\n    pub size: u64,\n    \
                          /// Made later.\n    #[serde(skip)]\n    pub folder: u8,\n}\n";

    #[test]
    fn the_doc_comment_of_a_key_is_above_it_once() {
        let docs = docs_of(SOURCE).unwrap();
        assert_eq!(docs["Disk"], [("size".to_owned(), "The length in bytes.".to_owned())]);
        let skeleton =
            "# Text.\n[disk]\n#@ Disk: `[disk]`\n#size = 1\nsize = 2\n\n[other]\nsize = 3\n";
        let text = example(&docs, skeleton).unwrap();
        let expected =
            "# Text.\n[disk]\n# The length in bytes.\n#size = 1\nsize = 2\n\n[other]\nsize = 3\n";
        assert_eq!(text, expected);
        let tables = page(&docs, skeleton, &format!("a\n{BEGIN}\nold\n{END}\nb\n")).unwrap();
        assert!(tables.starts_with("a\n") && tables.ends_with("b\n") && !tables.contains("old"));
        assert!(tables.contains("| `size` | `1` | The length in bytes. |"), "{tables}");
    }

    #[test]
    fn a_key_without_a_field_is_an_error() {
        let docs = docs_of(SOURCE).unwrap();
        let error = example(&docs, "#@ Disk\nlength = 1\n").unwrap_err();
        assert_eq!(error.to_string(), "Disk has no key length");
        assert!(example(&docs, "#@ Tape\n").is_err());
    }

    #[test]
    fn comments_are_wrapped() {
        let text = commented(&"word ".repeat(50));
        assert!(text.lines().count() > 1);
        assert!(text.lines().all(|line| line.len() <= LINE && line.starts_with("# word")));
    }
}
