//! Tables for terminal output.

use comfy_table::{Table, presets};

/// Returns a table with this header, without rows, and with lines around its cells.
pub fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(head);
    table
}

/// Returns an empty table without lines, so that more fits on a screen.
pub fn plain_table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(head);
    table
}
