//! Decides which characters of text received from a peer are safe to display.

/// Returns true if a character displays as itself in a single line of text. False for control
/// characters and format characters. Format characters that change the direction of the following
/// text (such as U+202E) make one name look like another; format characters without a width make
/// two different names look the same. The list holds the characters of Unicode 16 with general
/// category Cf, and the separators Zl and Zp.
#[must_use]
pub fn is_plain(c: char) -> bool {
    !c.is_control()
        && !matches!(
            c,
            '\u{ad}'
                | '\u{600}'..='\u{605}'
                | '\u{61c}'
                | '\u{6dd}'
                | '\u{70f}'
                | '\u{890}'..='\u{891}'
                | '\u{8e2}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{110bd}'
                | '\u{110cd}'
                | '\u{13430}'..='\u{1343f}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0001}'
                | '\u{e0020}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_of_all_scripts_are_plain_and_direction_and_hidden_characters_are_not() {
        assert!("aZ0 -.:é日本語עברית".chars().all(is_plain));
        let wrong = "\u{0}\u{7}\u{1b}\u{7f}\u{85}\u{ad}\u{61c}\u{200b}\u{200d}\u{200e}\u{2028}\u{202e}\u{2066}\u{feff}\u{e0041}";
        for c in wrong.chars() {
            assert!(!is_plain(c), "{}", c.escape_unicode());
        }
    }
}
