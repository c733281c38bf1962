//! `docs/protocols.md` and the tables of the code say the same.

use scsi::OPERATIONS;

const PAGE: &str = include_str!("../../../docs/protocols.md");

/// The first cells of the table below a heading.
fn first_column(heading: &str) -> Vec<&'static str> {
    let (_, section) = PAGE.split_once(&format!("\n## {heading}\n")).expect("the heading is there");
    let table = section.lines().skip_while(|line| !line.starts_with('|'));
    let rows = table.take_while(|line| line.starts_with('|')).skip(2);
    rows.filter_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.trim().split(", ")).collect()
}

#[test]
fn the_page_lists_the_commands_that_are_known() {
    let mut codes: Vec<String> = OPERATIONS
        .iter()
        .map(|operation| match operation.service_action {
            Some(action) => format!("{:02X}/{action:02X}", operation.opcode),
            None => format!("{:02X}", operation.opcode),
        })
        .collect();
    let mut listed = first_column("Commands");
    codes.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, codes);
}
