//! Formats the tables that commands print.

/// Returns rows under headings as text. Each column is as wide as its widest cell. Numbers are
/// aligned to the right, except in the last column.
pub fn table(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let rows: Vec<Vec<String>> = rows.into_iter().collect();
    let head: Vec<String> = headings.iter().map(|heading| (*heading).to_owned()).collect();
    let mut widths = vec![0; headings.len()];
    for row in rows.iter().chain([&head]) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in [&head].into_iter().chain(&rows) {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let last = column + 1 == widths.len();
            let number = !last && cell.trim_end_matches(" s").parse::<f64>().is_ok();
            let padding = " ".repeat(width - cell.chars().count());
            let (before, after) =
                if number { (padding, String::new()) } else { (String::new(), padding) };
            line.push_str(&format!("{before}{cell}{after}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_aligned_right() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [row(["read", "7", "9 b"]), row(["w", "12", "c"])];
        assert_eq!(table(&["what", "n", ""], rows), "what  n\nread   7  9 b\nw     12  c\n");
    }
}
