//! Reads doc comments from the source, and replaces the generated parts of documentation pages.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::check::text;

/// Returns the items of all source files below a folder, in the order of the paths.
pub fn items_in(folder: &Path) -> Result<Vec<syn::Item>> {
    let mut paths = text::files(folder)?;
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "rs"));
    paths.sort();
    let mut items = vec![];
    for path in paths {
        let file = syn::parse_file(&fs::read_to_string(&path)?);
        items.extend(file.with_context(|| path.display().to_string())?.items);
    }
    Ok(items)
}

/// Returns the text of a doc comment without line breaks.
pub fn doc(attributes: &[syn::Attribute]) -> String {
    lines(attributes).join(" ")
}

fn lines(attributes: &[syn::Attribute]) -> Vec<String> {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        syn::Meta::NameValue(meta) if meta.path.is_ident("doc") => match &meta.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    });
    lines.map(|line| line.trim().to_owned()).collect()
}

/// Returns the first paragraph of a doc comment without line breaks. Generated pages show only this paragraph; the
/// others are for readers of the code.
pub fn first_paragraph(attributes: &[syn::Attribute]) -> String {
    let lines = lines(attributes);
    let first = lines.iter().take_while(|line| !line.is_empty());
    first.map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// Replaces the generated part `title` of a page by `text`, and returns the new page. The part stands between the lines
/// `<!-- title: written by ... -->` and `<!-- End of title -->`.
pub fn with_part(page: &str, title: &str, text: &str) -> Result<String> {
    let begin = format!("<!-- {title}: written by `cargo xtask reference` -->\n");
    let end = format!("<!-- End of {title} -->\n");
    let (before, rest) =
        page.split_once(&begin).with_context(|| format!("the page has no line {begin}"))?;
    let (_, after) =
        rest.split_once(&end).with_context(|| format!("the page has no line {end}"))?;
    Ok(format!("{before}{begin}{text}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_part_with_the_title_is_replaced() {
        let part = |title: &str, text: &str| {
            format!(
                "<!-- {title}: written by `cargo xtask reference` -->\n{text}<!-- End of {title} -->\n"
            )
        };
        let page = |text: &str| format!("a\n{}b\n{}c\n", part("One", "1\n"), part("Two", text));
        assert_eq!(with_part(&page("old\n"), "Two", "new\n").unwrap(), page("new\n"));
        assert!(with_part(&page(""), "Three", "").is_err());
        assert!(with_part(&page("").replace("End of Two", "End"), "Two", "").is_err());
    }
}
