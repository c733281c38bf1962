//! Quotes paths as words of a shell command, for remedies that name a command.

use std::{borrow::Cow, path::Path};

/// Quotes a path as one word for a shell: in single quotes if it contains a special character.
pub fn quoted(path: &Path) -> Cow<'_, str> {
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%=".contains(c);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) {
        return text;
    }
    // Programs read a word that begins with a hyphen as an option, even if it is quoted.
    let here = if text.starts_with('-') { "./" } else { "" };
    format!("'{here}{}'", text.replace('\'', "'\\''")).into()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_quoted_path_is_one_word_to_a_shell() {
        assert_eq!(quoted(Path::new("/srv/db-1.log")), "/srv/db-1.log");
        for path in ["/srv/a b", "/srv/$HOME", "it's", "a;b", "`x`", "\"", "*", "\\", "a\nb", "ä"]
        {
            let script = format!("printf %s {}", quoted(Path::new(path)));
            let output = Command::new("sh").args(["-c", &script]).output().expect("it runs");
            assert_eq!(String::from_utf8_lossy(&output.stdout), path, "{script}");
        }
        assert_eq!(quoted(Path::new("-rf")), "'./-rf'");
    }
}
