//! Writes the tables of a report as one CSV file (RFC 4180), with a line for each figure.

use crate::{Cell, CellBound, LabReport, Printed};

/// The heads of the columns, in order.
const HEADS: [&str; 9] =
    ["section", "table", "row", "column", "ours", "paper", "ratio", "unit", "note"];

/// Returns the tables of a report as CSV. Numbers have all digits and a decimal point; a missing measurement is an
/// empty field.
#[must_use]
pub fn csv(report: &LabReport) -> String {
    let mut out = line(&HEADS.map(str::to_owned));
    for section in &report.sections {
        for (table, row, column, cell) in section.cells() {
            out.push_str(&line(&[
                section.title.clone(),
                table.title.clone(),
                row.to_owned(),
                column.to_string(),
                figure(cell.ours),
                cell.paper.map(Printed::digits).unwrap_or_default(),
                figure(cell.ratio()),
                column.unit.clone(),
                notes(cell),
            ]));
        }
    }
    out
}

fn line(fields: &[String; 9]) -> String {
    format!("{}\r\n", fields.each_ref().map(|field| quoted(field)).join(","))
}

/// Returns the text of a CSV field, in quotes if its characters require them.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\r', '\n']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

fn figure(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map(|value| value.to_string()).unwrap_or_default()
}

/// Joins all text of a cell: its note, whether its number keeps the required bound (bar), and the reasons to doubt it
/// (taints).
fn notes(cell: &Cell) -> String {
    let mut notes = vec![];
    if !cell.note.is_empty() {
        notes.push(cell.note.clone());
    }
    if let Some(bar) = cell.bar {
        let bar = match bar {
            CellBound::Least(value) => format!("at least {value}"),
            CellBound::Most(value) => format!("at most {value}"),
        };
        let word = match cell.holds() {
            Some(true) => "holds",
            Some(false) => "missed",
            None => "not measured",
        };
        notes.push(format!("{bar}: {word}"));
    }
    notes.extend(cell.taints.iter().map(|taint| format!("tainted: {taint}")));
    notes.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ReportTable, Section};

    /// Parses lines and fields according to RFC 4180.
    fn read(text: &str) -> Vec<Vec<String>> {
        let mut lines = vec![vec![String::new()]];
        let (mut chars, mut is_quoted) = (text.chars().peekable(), false);
        while let Some(c) = chars.next() {
            let field = lines.last_mut().and_then(|line| line.last_mut()).unwrap();
            match (c, is_quoted) {
                ('"', true) if chars.peek() == Some(&'"') => field.extend(chars.next()),
                ('"', _) => is_quoted = !is_quoted,
                (',', false) => lines.last_mut().unwrap().push(String::new()),
                ('\r', false) => {}
                ('\n', false) => lines.push(vec![String::new()]),
                _ => field.push(c),
            }
        }
        lines.pop();
        lines
    }

    #[test]
    fn every_figure_reads_back() {
        let odd = "a, \"b\"\r\nc";
        let taints = [odd.to_owned()];
        let table = ReportTable::new(odd, "delay, ms")
            .column_of("Reno", odd, "ms")
            .column("Fair-TCP", "")
            .row(
                "0",
                [
                    Cell::ours(0.1 + 0.2).beside(0.5).at_least(1.0).tainted(&taints),
                    Cell::words(odd),
                ],
            );
        let text = csv(&LabReport::new("r").section(Section::new("s, 1").table(table)));
        let lines = read(&text);
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0], HEADS);
        let note = format!("at least 1: missed; tainted: {odd}");
        let column = format!("Reno {odd}");
        let ratio = (0.1 + 0.2) / 0.5;
        assert_eq!(
            lines[1],
            [
                "s, 1",
                odd,
                "0",
                &column,
                "0.30000000000000004",
                "0.5",
                &ratio.to_string(),
                "ms",
                &note
            ]
        );
        assert_eq!(lines[2], ["s, 1", odd, "0", "Fair-TCP", "", "", "", "", odd]);
        assert_eq!(lines[1][4].parse::<f64>(), Ok(0.1 + 0.2));
    }

    #[test]
    fn a_range_of_the_paper_is_a_range() {
        let printed = Printed { least: 0.91, most: 0.99 };
        let cells = [0.93, 1.98].map(|ours| Cell::ours(ours).beside_printed(printed));
        let table = ReportTable::new("t", "r").column("c", "").column("d", "").row("r", cells);
        let text = csv(&LabReport::new("r").section(Section::new("s").table(table)));
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines, ["s,t,r,c,0.93,0.91-0.99,1,,", "s,t,r,d,1.98,0.91-0.99,2,,"]);
    }

    #[test]
    fn values_that_are_not_numbers_are_empty_cells() {
        let table = ReportTable::new("t", "r")
            .column("c", "")
            .row("r", [Cell::ours(f64::NAN).beside(f64::INFINITY)]);
        let text = csv(&LabReport::new("r").section(Section::new("s").table(table)));
        assert_eq!(text.lines().last(), Some("s,t,r,c,,,,,"));
    }
}
