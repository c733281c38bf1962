//! Escapes arbitrary text for HTML and SVG.

/// Escapes text for the content of an element or the value of a quoted attribute. Control characters, which are valid
/// in neither, become U+FFFD.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_so_that_it_contains_no_markup() {
        let text = "<script>alert('\"&\0')</script>";
        assert_eq!(
            escaped(text),
            "&lt;script&gt;alert(&#39;&quot;&amp;\u{fffd}&#39;)&lt;/script&gt;"
        );
    }
}
