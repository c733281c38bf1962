//! Makes the tables of `docs/formats/object-drive.md` from the constants of `crates/drive/src/store/format.rs`, whose tests
//! compare them with the code. The first paragraph of a constant's doc comment is the heading of its table, and the
//! others are the text above it.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use syn::{Expr, Item, Lit};

use crate::doc_comment::{doc, first_paragraph, with_part};

pub const PAGE: &str = "docs/formats/object-drive.md";
const SOURCE: &str = "crates/drive/src/store/format.rs";

/// Returns `page` with its tables made again from the source.
pub fn page(root: &Path, page: &str) -> Result<String> {
    let source = std::fs::read_to_string(root.join(SOURCE)).context(SOURCE)?;
    let mut tables = String::new();
    for item in syn::parse_file(&source)?.items {
        let Item::Const(item) = item else { continue };
        let Expr::Reference(value) = &*item.expr else { bail!("{} is no list", item.ident) };
        let Expr::Array(rows) = &*value.expr else { bail!("{} is no list", item.ident) };
        let rows: Vec<Vec<String>> = rows.elems.iter().map(cells).collect::<Result<_>>()?;
        let heads = match rows.first().map(Vec::len) {
            Some(3) => "| key | about | row |\n|---|---|---|",
            Some(4) => "| field | offset | bytes | meaning |\n|---|---|---|---|",
            _ => bail!("{} has no rows of three or four cells", item.ident),
        };
        let heading = first_paragraph(&item.attrs);
        let text = doc(&item.attrs);
        let text = text.strip_prefix(&heading).unwrap_or_default().trim();
        let text = if text.is_empty() { String::new() } else { format!("{text}\n\n") };
        write!(tables, "\n## {heading}\n\n{text}{heads}\n")?;
        for row in rows {
            writeln!(tables, "| {} |", row.join(" | ").replace("|  |", "| |"))?;
        }
    }
    with_part(page, "Tables of the format", &(tables + "\n"))
}

/// Returns the cells of a row. A length of zero is left empty, because it depends on the drive; so is the offset then.
fn cells(row: &Expr) -> Result<Vec<String>> {
    let Expr::Tuple(row) = row else { bail!("a row is no tuple") };
    let cell = |cell: &Expr| match cell {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Ok(text.value()),
            Lit::Int(number) => Ok(number.base10_digits().to_owned()),
            _ => bail!("a cell is neither text nor a number"),
        },
        _ => bail!("a cell is no literal"),
    };
    let mut cells: Vec<String> = row.elems.iter().map(cell).collect::<Result<_>>()?;
    if let [_, offset, bytes, _] = &mut cells[..]
        && bytes == "0"
    {
        bytes.clear();
        if offset == "0" {
            offset.clear();
        }
    }
    Ok(cells)
}
