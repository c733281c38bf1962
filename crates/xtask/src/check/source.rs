//! Separates the text of a Rust source file into code, literals and comments. The lexer is `proc-macro2`'s.

use std::str::FromStr;

use anyhow::{Result, anyhow};
use proc_macro2::{Span, TokenStream, TokenTree};

/// Returns the code of a file: see [`ClassifiedSource::code`].
pub fn code(text: &str) -> Result<String> {
    ClassifiedSource::read(text)?.code()
}

/// The text of a source file, with the class of each byte: code, comment or string.
pub struct ClassifiedSource<'a> {
    text: &'a str,
    classes: Vec<Class>,
}

impl<'a> ClassifiedSource<'a> {
    /// Runs the lexer over the text of a file and classifies each byte.
    pub fn read(text: &'a str) -> Result<ClassifiedSource<'a>> {
        Ok(ClassifiedSource { text, classes: classes(text)? })
    }

    /// Returns the code of the file. Comments and the texts of literals become spaces, and lines keep their numbers.
    /// Numbers in the code stay.
    pub fn code(&self) -> Result<String> {
        let kept = self.text.bytes().zip(&self.classes).map(|(byte, class)| match class {
            Class::Code => byte,
            _ if byte == b'\n' => b'\n',
            _ => b' ',
        });
        Ok(String::from_utf8(kept.collect())?)
    }

    /// Returns the comments of the file, documentation included, line by line, with line numbers from 1.
    pub fn comments(&self) -> Vec<(usize, String)> {
        let of_line = |(line, classes): (&str, &[Class])| {
            let code_end = classes.iter().rposition(|class| *class != Class::Comment);
            line[code_end.map_or(0, |end| end + 1)..].trim().to_owned()
        };
        Self::numbered(self.lines().map(of_line))
    }

    /// Returns the texts of literals (strings and characters) of the file, line by line, with line numbers from 1.
    pub fn literals(&self) -> Vec<(usize, String)> {
        let of_line = |(line, classes): (&str, &[Class])| {
            let kept = line.char_indices().map(|(at, c)| match classes[at] {
                Class::Literal => c,
                _ => ' ',
            });
            kept.collect::<String>().trim().to_owned()
        };
        Self::numbered(self.lines().map(of_line))
    }

    /// Returns the lines of the file, each with the classes of its bytes.
    fn lines(&self) -> impl Iterator<Item = (&str, &[Class])> {
        let mut start = 0;
        self.text.split_inclusive('\n').map(move |line| {
            let classes = &self.classes[start..start + line.len()];
            start += line.len();
            (line, classes)
        })
    }

    /// Numbers the lines from 1 on, and omits empty lines.
    fn numbered(lines: impl Iterator<Item = String>) -> Vec<(usize, String)> {
        let numbered = lines.enumerate().map(|(n, line)| (n + 1, line));
        numbered.filter(|(_, line)| !line.is_empty()).collect()
    }
}

/// Returns code without the items that have the attribute `#[cfg(test)]`.
pub fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut out = String::new();
    let mut rest = code;
    while let Some(start) = rest.find(MARK) {
        out.push_str(&rest[..start]);
        rest = &rest[start + MARK.len()..];
        rest = &rest[item_end(rest)..];
    }
    out.push_str(rest);
    out
}

/// Returns the name of the module that a line such as `pub mod session;` declares.
pub fn declared_module(line: &str) -> Option<&str> {
    let line = line.trim();
    let line =
        line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub ")).unwrap_or(line);
    line.strip_prefix("mod ")?.strip_suffix(';').map(str::trim)
}

/// The kind of text to which a byte of a source file belongs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Class {
    Code,
    /// A byte of a string or of a character.
    Literal,
    /// A byte between two tokens: a comment or white space.
    Comment,
}

fn classes(text: &str) -> Result<Vec<Class>> {
    let tokens = TokenStream::from_str(text)
        .map_err(|error| anyhow!("line {}: {error}", error.span().start().line))?;
    let mut classes = vec![Class::Comment; text.len()];
    classify(tokens, text, &mut classes);
    Ok(classes)
}

fn classify(tokens: TokenStream, text: &str, classes: &mut [Class]) {
    for token in tokens {
        match token {
            TokenTree::Group(group) if is_comment(group.span(), text) => {}
            TokenTree::Group(group) => {
                mark(group.span_open(), Class::Code, text, classes);
                mark(group.span_close(), Class::Code, text, classes);
                classify(group.stream(), text, classes);
            }
            TokenTree::Literal(literal) => {
                let range = literal.span().byte_range();
                let is_text = text[range].contains(['"', '\'']);
                let class = if is_text { Class::Literal } else { Class::Code };
                mark(literal.span(), class, text, classes);
            }
            other => mark(other.span(), Class::Code, text, classes),
        }
    }
}

/// Sets the class of all bytes of a token. Does not change bytes of documentation comments, which have the class
/// `Comment` already.
fn mark(span: Span, class: Class, text: &str, classes: &mut [Class]) {
    if !is_comment(span, text) {
        classes[span.byte_range()].fill(class);
    }
}

/// Returns true if a token is a documentation comment, which the lexer returns as the tokens of an
/// attribute.
fn is_comment(span: Span, text: &str) -> bool {
    let token = &text[span.byte_range()];
    token.starts_with("//") || token.starts_with("/*")
}

/// Returns the offset of the end of the item at the start of `code`: its `;` or its closing brace.
fn item_end(code: &str) -> usize {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return at + 1,
            '}' => depth -= 1,
            ';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        assert_eq!(code(text).unwrap(), expected, "{text}");
    }

    #[test]
    fn comments_and_literals_are_blanked() {
        check("a // b\nc", "a     \nc");
        check("a /* b /* c */ d */ e", "a                   e");
        check(r#"f("x // y", '"', b'\'') // z"#, "f(        ,    ,      )     ");
        check("r#\"a \" b\"# c", "           c");
        check("fn a<'x>(b: &'x u8) {}", "fn a<'x>(b: &'x u8) {}");
        check("/// doc\nlet a = 3;", "       \nlet a = 3;");
    }

    #[test]
    fn blanking_keeps_the_line_numbers() {
        let text = "let a = \"one\ntwo\";\n/* three\nfour */\nlet b = 5;";
        let code = code(text).unwrap();
        assert_eq!(code.lines().count(), text.lines().count());
        assert_eq!(code.lines().last(), Some("let b = 5;"));
    }

    #[test]
    fn code_for_tests_only_is_left_out() {
        let text =
            "use a;\n#[cfg(test)]\nmod tests { fn b() { c } }\nuse d;\n#[cfg(test)] mod e;\nuse f;";
        let rest = without_tests(text);
        assert!(rest.contains("use a;") && rest.contains("use d;") && rest.contains("use f;"));
        assert!(!rest.contains("fn b") && !rest.contains("mod e"));
    }

    #[test]
    fn comments_come_with_their_lines() {
        let text = "a; // one\n\"// not\";\n/// three\n/* four\nfive */ b();\n";
        let comments = ClassifiedSource::read(text).unwrap().comments();
        let comments: Vec<(usize, &str)> =
            comments.iter().map(|(line, text)| (*line, text.as_str())).collect();
        assert_eq!(comments, [(1, "// one"), (3, "/// three"), (4, "/* four")]);
    }

    #[test]
    fn a_file_that_is_not_rust_is_refused_with_its_line() {
        assert_eq!(code("a;\n}").unwrap_err().to_string().split(':').next(), Some("line 2"));
    }
}
