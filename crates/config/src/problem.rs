//! Locates an error in a settings file: converts the path of a key, or a byte range, to line, column, key and remedy.

use std::{
    fmt,
    ops::Range,
    path::{Path, PathBuf},
};

use control::Failure;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::quantity::REMEDY;

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum KeyPathStep {
    /// Step from a table to the value that it has under this key.
    Key(String),
    /// Step from an array to its element with this index, counted from 0.
    Index(usize),
}

/// The path from the top of a settings file to a value.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct KeyPath(Vec<KeyPathStep>);

impl KeyPath {
    /// Returns the path extended by a step into a table.
    pub fn key(&self, name: &str) -> Self {
        let mut path = self.clone();
        path.0.push(KeyPathStep::Key(name.to_owned()));
        path
    }

    /// Returns the path extended by a step into an array.
    pub fn index(&self, index: usize) -> Self {
        let mut path = self.clone();
        path.0.push(KeyPathStep::Index(index));
        path
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                KeyPathStep::Key(name) if at == 0 => write!(f, "{name}")?,
                KeyPathStep::Key(name) => write!(f, ".{name}")?,
                KeyPathStep::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// An error in a settings file, with the place of the error and a remedy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SettingsFileProblem {
    pub file: PathBuf,
    /// Line, counted from 1; 0 if the file could not be read.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    pub key: KeyPath,
    pub message: String,
    pub remedy: String,
}

impl SettingsFileProblem {
    /// Makes a problem of a file that cannot be read.
    pub fn unreadable(file: &Path, error: &std::io::Error) -> Self {
        Self {
            file: file.to_owned(),
            line: 0,
            column: 0,
            key: KeyPath::default(),
            message: format!("cannot read the settings: {error}"),
            remedy: "name an existing TOML file with --config; forebay.example.toml is one to \
            start from"
                .into(),
        }
    }

    /// Makes a problem of an error of the TOML parser or of serde.
    pub fn from_toml(file: &Path, text: &str, error: &toml::de::Error) -> Self {
        let span = error.span().unwrap_or(0..0);
        let key = DeTable::parse(text).map(|top| key_at(&top, &span)).unwrap_or_default();
        let (message, remedy) = match error.message().split_once(REMEDY) {
            Some((message, remedy)) => (message.to_owned(), remedy.to_owned()),
            None if error.message().contains("expected a sequence") => {
                (one_line(error.message()), as_list(&key, text.get(span.clone())))
            }
            None => (one_line(error.message()), remedy_for(error.message())),
        };
        let (line, column) = line_and_column(text, span.start);
        Self { file: file.to_owned(), line, column, key, message, remedy }
    }

    /// Makes a problem of a broken rule, located at the value on the path `key`, or at the nearest table on the way to
    /// it.
    pub fn at(file: &Path, text: &str, key: KeyPath, message: String, remedy: String) -> Self {
        let start = DeTable::parse(text).map(|top| start_of(&top, &key.0)).unwrap_or(0);
        let (line, column) = line_and_column(text, start);
        Self { file: file.to_owned(), line, column, key, message, remedy }
    }
}

impl fmt::Display for SettingsFileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if !self.key.0.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.message)
    }
}

impl From<SettingsFileProblem> for Failure {
    fn from(problem: SettingsFileProblem) -> Self {
        Self::settings(&problem).remedy(&problem.remedy)
    }
}

/// Returns a remedy that shows how to write a value as a list of one element.
fn as_list(key: &KeyPath, value: Option<&str>) -> String {
    let name = key.0.iter().rev().find_map(|step| match step {
        KeyPathStep::Key(name) => Some(name.as_str()),
        KeyPathStep::Index(_) => None,
    });
    let value = value.filter(|value| value.lines().count() == 1).unwrap_or("VALUE");
    format!("write a list: {} = [{value}]", name.unwrap_or("KEY"))
}

/// Returns a remedy for a message of serde or of the TOML parser, which report only what they expected.
fn remedy_for(message: &str) -> String {
    let (found, known) = names_in(message);
    if message.starts_with("unknown field") || message.starts_with("unknown variant") {
        return match (closest(&found, &known), known.is_empty()) {
            (Some(name), _) => format!("did you mean `{name}`?"),
            (None, false) => format!("use one of {}", known.join(", ")),
            (None, true) => "remove it".into(),
        };
    }
    if message.starts_with("invalid type") || message.starts_with("invalid value") {
        return match message.split_once("expected ") {
            Some((_, expected)) => format!("write {}", one_line(expected)),
            None => "write a value of the right type; see forebay.example.toml".into(),
        };
    }
    if message.starts_with("duplicate key") {
        return "keep one of them".into();
    }
    "correct the line; forebay.example.toml shows every key in use".into()
}

/// Returns the first name in backquotes in an error message, and all others.
fn names_in(message: &str) -> (String, Vec<String>) {
    let mut quoted = message.split('`').skip(1).step_by(2).map(str::to_owned);
    (quoted.next().unwrap_or_default(), quoted.collect())
}

/// Returns the known name that differs from `found` in at most two letters.
fn closest(found: &str, known: &[String]) -> Option<String> {
    let same = |name: &str| {
        name.replace('-', "_").to_lowercase() == found.replace('-', "_").to_lowercase()
    };
    let near = known.iter().map(|name| (distance(found, name), name)).min()?;
    let exact = known.iter().find(|name| same(name));
    exact.or((near.0 <= 2 && near.0 < found.len()).then_some(near.1)).cloned()
}

/// Returns the Levenshtein distance of two texts in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns line and column of the byte offset `at`, both counted from 1, the column in characters.
fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    (line, column)
}

/// Returns the path of the deepest key whose name or value contains the byte range `span`.
fn key_at(top: &Spanned<DeTable<'_>>, span: &Range<usize>) -> KeyPath {
    let mut path = KeyPath::default();
    in_table(top.get_ref(), span, &mut path);
    path
}

fn in_table(table: &DeTable<'_>, span: &Range<usize>, path: &mut KeyPath) -> bool {
    for (key, value) in table {
        path.0.push(KeyPathStep::Key(key.get_ref().to_string()));
        if holds(&key.span(), span) || in_value(value, span, path) {
            return true;
        }
        path.0.pop();
    }
    false
}

/// Searches the children before it compares the span of the value itself, because a table with a header such as
/// `[[target]]` has the span of the header only.
fn in_value(value: &Spanned<DeValue<'_>>, span: &Range<usize>, path: &mut KeyPath) -> bool {
    let inside = match value.get_ref() {
        DeValue::Table(table) => in_table(table, span, path),
        DeValue::Array(array) => array.iter().enumerate().any(|(index, value)| {
            path.0.push(KeyPathStep::Index(index));
            let found = in_value(value, span, path);
            if !found {
                path.0.pop();
            }
            found
        }),
        _ => false,
    };
    inside || holds(&value.span(), span)
}

fn holds(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// Returns the byte offset of the value on this path. If the file lacks a step of the path, returns the offset of the
/// last value before that step.
fn start_of(top: &Spanned<DeTable<'_>>, path: &[KeyPathStep]) -> usize {
    let mut start = top.span().start;
    let mut table = Some(top.get_ref());
    let mut array = None;
    for step in path {
        let value = match step {
            KeyPathStep::Key(name) => table.and_then(|table| table.get(name.as_str())),
            KeyPathStep::Index(index) => {
                array.and_then(|array: &toml::de::DeArray<'_>| array.get(*index))
            }
        };
        let Some(value) = value else { break };
        start = value.span().start;
        (table, array) = match value.get_ref() {
            DeValue::Table(inside) => (Some(inside), None),
            DeValue::Array(inside) => (None, Some(inside)),
            _ => (None, None),
        };
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_proposed() {
        let known: Vec<_> = ["listen", "control", "log_size"].map(String::from).into();
        assert_eq!(closest("lisen", &known).as_deref(), Some("listen"));
        assert_eq!(closest("log-size", &known).as_deref(), Some("log_size"));
        assert_eq!(closest("zebra", &known), None);
        assert_eq!(closest("", &[]), None);
    }

    #[test]
    fn a_path_finds_its_line() {
        let text = "a = 1\n[[b]]\nc = [ { d = 2 },\n  { d = 3 } ]\n";
        let path = KeyPath::default().key("b").index(0).key("c").index(1).key("d");
        let problem =
            SettingsFileProblem::at(Path::new("f"), text, path, "wrong".into(), "right".into());
        assert_eq!(problem.to_string(), "f:4:9: b[0].c[1].d: wrong");
        let absent = KeyPath::default().key("b").index(0).key("x");
        let problem =
            SettingsFileProblem::at(Path::new("f"), text, absent, "missing".into(), String::new());
        assert_eq!(problem.line, 2);
    }

    #[test]
    fn columns_count_characters() {
        assert_eq!(line_and_column("ä = 'ö'\nß", 5), (1, 5));
        assert_eq!(line_and_column("a\nb", 2), (2, 1));
        assert_eq!(line_and_column("a", 99), (1, 2));
    }
}
