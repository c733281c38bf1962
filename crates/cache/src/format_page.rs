//! Reads the tables of fields from the pages in docs/formats, for the tests that compare these pages with the
//! code.

/// Returns the rows of each table of fields on a page: name, offset and number of bytes.
pub(crate) fn tables(page: &str) -> Vec<Vec<(String, usize, usize)>> {
    let mut tables = Vec::new();
    for line in page.lines() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        if cells.get(1) == Some(&"field") {
            tables.push(Vec::new());
        } else if let [_, name, offset, bytes, ..] = cells[..]
            && let (Ok(offset), Ok(bytes)) = (offset.parse(), bytes.parse())
        {
            tables.last_mut().expect("after a head").push((name.to_owned(), offset, bytes));
        }
    }
    tables
}

pub(crate) fn rows(fields: &[(&str, usize, usize)]) -> Vec<(String, usize, usize)> {
    fields.iter().map(|&(name, offset, bytes)| (name.to_owned(), offset, bytes)).collect()
}
