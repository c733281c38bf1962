//! Rust source with what is not code blanked out: comments, literals, and what only tests compile.

/// The code of a file: comments and the insides of literals become spaces, lines stay lines.
pub fn code(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = skipped(&chars, at);
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            out.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    out
}

/// The comments of a file, with the number of the line each piece stands on, from 1.
pub fn comments(text: &str) -> Vec<(usize, String)> {
    let blanked = code(text);
    let lines = text.lines().zip(blanked.lines()).enumerate();
    lines.filter_map(|(n, (line, code))| Some((n + 1, comment(line, code)?))).collect()
}

/// Code without the items that `#[cfg(test)]` stands before.
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

/// Which module a line such as `pub mod session;` declares.
pub fn declared_module(line: &str) -> Option<&str> {
    let line = line.trim();
    let line =
        line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub ")).unwrap_or(line);
    line.strip_prefix("mod ")?.strip_suffix(';').map(str::trim)
}

/// Where the comment or literal that starts at `at` ends; `at` itself if none starts there.
fn skipped(chars: &[char], at: usize) -> usize {
    let starts =
        |pattern: &str| pattern.chars().enumerate().all(|(n, c)| chars.get(at + n) == Some(&c));
    if starts("//") {
        return position(chars, at, |rest| rest[0] == '\n');
    }
    if starts("/*") {
        return block_comment_end(chars, at);
    }
    let in_word = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    match chars[at] {
        '"' => string_end(chars, at + 1),
        'r' if !in_word => raw_string_end(chars, at + 1).unwrap_or(at),
        'b' if !in_word && starts("br") => raw_string_end(chars, at + 2).unwrap_or(at),
        '\'' => char_end(chars, at).unwrap_or(at),
        _ => at,
    }
}

fn position(chars: &[char], from: usize, found: impl Fn(&[char]) -> bool) -> usize {
    (from..chars.len()).find(|at| found(&chars[*at..])).unwrap_or(chars.len())
}

fn block_comment_end(chars: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string_end(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() {
        match chars[at] {
            '"' => return at + 1,
            '\\' => at += 2,
            _ => at += 1,
        }
    }
    chars.len()
}

fn raw_string_end(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars[at..].iter().take_while(|c| **c == '#').count();
    (chars.get(at + hashes) == Some(&'"')).then_some(())?;
    let closes = |rest: &[char]| {
        rest[0] == '"' && rest.len() > hashes && rest[1..=hashes].iter().all(|c| *c == '#')
    };
    Some((position(chars, at + hashes + 1, closes) + hashes + 1).min(chars.len()))
}

/// A character literal; a lifetime is none.
fn char_end(chars: &[char], at: usize) -> Option<usize> {
    match (chars.get(at + 1)?, chars.get(at + 2)?) {
        ('\\', _) => Some(position(chars, at + 3, |rest| rest[0] == '\'') + 1),
        (_, '\'') => Some(at + 3),
        _ => None,
    }
}

/// Where the item at the start of `code` ends: at its `;` or its closing brace.
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

fn comment(line: &str, code: &str) -> Option<String> {
    let kept = code.trim_end().chars().count();
    let tail: String = line.chars().skip(kept).collect();
    let start = tail.find("//").or_else(|| tail.find("/*"))?;
    Some(tail[start..].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        assert_eq!(code(text), expected, "{text}");
    }

    #[test]
    fn comments_and_literals_are_blanked() {
        check("a // b\nc", "a     \nc");
        check("a /* b /* c */ d */ e", "a                   e");
        check(r#"f("x // y", '"', b'\'') // z"#, "f(        ,    , b    )     ");
        check("r#\"a \" b\"# c", "           c");
        check("fn a<'x>(b: &'x u8) {}", "fn a<'x>(b: &'x u8) {}");
    }

    #[test]
    fn lines_stay_lines() {
        let text = "let a = \"one\ntwo\";\n/* three\nfour */\nlet b = 5;";
        assert_eq!(code(text).lines().count(), text.lines().count());
        assert_eq!(code(text).lines().last(), Some("let b = 5;"));
    }

    #[test]
    fn what_only_tests_compile_is_left_out() {
        let text =
            "use a;\n#[cfg(test)]\nmod tests { fn b() { c } }\nuse d;\n#[cfg(test)] mod e;\nuse f;";
        let rest = without_tests(text);
        assert!(rest.contains("use a;") && rest.contains("use d;") && rest.contains("use f;"));
        assert!(!rest.contains("fn b") && !rest.contains("mod e"));
    }

    #[test]
    fn comments_come_with_their_lines() {
        let text = "a; // one\n\"// not\";\n/// three\n";
        assert_eq!(comments(text), [(1, "// one".to_owned()), (3, "/// three".to_owned())]);
    }
}
