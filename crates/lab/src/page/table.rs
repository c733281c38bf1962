//! Formats a table as HTML: our number, the paper's number below it, the bound that our number must keep (bar), and
//! footnotes.

use std::fmt::{self, Write};

use crate::{
    Cell, CellBound, Doubt, NOT_MEASURED, ReportColumn, ReportTable, factor, html_escape::escaped,
    number,
};

/// Writes a table. `id` makes the names of its footnotes unique within the page.
pub fn write(out: &mut String, id: &str, table: &ReportTable, doubts: &[Doubt]) -> fmt::Result {
    if let Some(reasons) = reasons(table, doubts) {
        return writeln!(
            out,
            "<p class=\"none\">{}: {}.</p>",
            escaped(&table.title),
            escaped(&reasons.join("; "))
        );
    }
    let mut notes = Notes { id, doubts, texts: vec![] };
    write!(
        out,
        "<div class=\"scroll\" tabindex=\"0\"><table>\n<caption>{}</caption>\n<thead>\n",
        escaped(&table.title)
    )?;
    heads(out, table)?;
    out.push_str("</thead>\n<tbody>\n");
    for row in &table.rows {
        write!(out, "<tr><th scope=\"row\">{}</th>", escaped(&row.name))?;
        for cell in &row.cells {
            write_cell(out, cell, &mut notes)?;
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table></div>\n");
    notes.write(out)
}

/// Explains a table without any number: each reason once. If a reason is in the page's list of doubts, refers to its
/// number there.
fn reasons(table: &ReportTable, doubts: &[Doubt]) -> Option<Vec<String>> {
    let mut reasons: Vec<String> = vec![];
    for cell in table.rows.iter().flat_map(|row| &row.cells) {
        if cell.ours.is_some() || cell.paper.is_some() || cell.bar.is_some() {
            return None;
        }
        let reason = match doubts.iter().position(|doubt| doubt.is_of(&cell.note)) {
            Some(n) => format!("{NOT_MEASURED} (doubt {})", n + 1),
            None => cell.note.clone(),
        };
        if !reason.is_empty() && !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    if reasons.is_empty() {
        reasons.push(NOT_MEASURED.to_owned());
    }
    Some(reasons)
}

/// Writes the heads of the columns: in one line, or in two if neighbouring columns belong to a
/// group.
fn heads(out: &mut String, table: &ReportTable) -> fmt::Result {
    let corner = escaped(&table.corner);
    if table.columns.iter().any(|column| !column.group.is_empty()) {
        write!(out, "<tr><th rowspan=\"2\" scope=\"col\">{corner}</th>")?;
        for columns in table.columns.chunk_by(|a, b| a.group == b.group) {
            let group = escaped(&columns[0].group);
            write!(
                out,
                "<th class=\"group\" scope=\"colgroup\" colspan=\"{}\">{group}</th>",
                columns.len()
            )?;
        }
        out.push_str("</tr>\n<tr>");
    } else {
        write!(out, "<tr><th scope=\"col\">{corner}</th>")?;
    }
    for ReportColumn { name, unit, .. } in &table.columns {
        write!(out, "<th scope=\"col\">{}", escaped(name))?;
        if !unit.is_empty() {
            write!(out, "<span class=\"unit\">{}</span>", escaped(unit))?;
        }
        out.push_str("</th>");
    }
    out.push_str("</tr>\n");
    Ok(())
}

fn write_cell(out: &mut String, cell: &Cell, notes: &mut Notes<'_>) -> fmt::Result {
    out.push_str("<td>");
    match cell.ours {
        Some(ours) => {
            write!(out, "<span class=\"ours\">{}</span>", number(ours))?;
            if let Some([low, high]) = cell.quartiles {
                let [low, high] = [low, high].map(number);
                write!(out, "<span class=\"ref\">quartiles {low}, {high}</span>")?;
            }
        }
        None if cell.note.is_empty() && cell.paper.is_none() => {
            out.push_str("<span class=\"none\">–</span>");
        }
        None => {}
    }
    let mut marks: Vec<String> = vec![];
    for taint in &cell.taints {
        let mark = notes.mark(taint);
        if !marks.contains(&mark) {
            write!(out, "<sup class=\"taint\">†{mark}</sup>")?;
            marks.push(mark);
        }
    }
    match cell.note.as_str() {
        "" => {}
        note if cell.ours.is_none() && notes.doubt(note).is_some() => {
            write!(
                out,
                "<span class=\"word\">{NOT_MEASURED}<sup>{}</sup></span>",
                notes.mark(note)
            )?;
        }
        // Make a long note a footnote, because it would make the column wide.
        note if note.chars().count() > SHORT => {
            if cell.ours.is_none() {
                out.push_str("<span class=\"none\">–</span>");
            }
            write!(out, "<sup>{}</sup>", notes.mark(note))?;
        }
        note => write!(out, "<span class=\"word\">{}</span>", escaped(note))?,
    }
    if let Some(paper) = cell.paper {
        write!(out, "<span class=\"ref\">paper {}", paper.text())?;
        if cell.ours.is_some_and(|ours| paper.is_around(ours)) {
            out.push_str(", within");
        } else if let Some(ratio) = cell.ratio() {
            write!(out, ", {}", factor(ratio))?;
        }
        out.push_str("</span>");
    }
    if let Some(bar) = cell.bar {
        let (sign, value) = match bar {
            CellBound::Least(value) => ("≥", value),
            CellBound::Most(value) => ("≤", value),
        };
        let (class, word) = match cell.holds() {
            Some(true) => ("ref good", "holds"),
            Some(false) => ("ref bad", "missed"),
            None => ("ref", NOT_MEASURED),
        };
        write!(out, "<span class=\"{class}\">{sign} {}: {word}</span>", number(value))?;
    }
    out.push_str("</td>");
    Ok(())
}

/// Maximum number of letters of a note that is shown in its cell. Longer notes become footnotes; "not measured" is
/// short enough.
const SHORT: usize = 14;

/// The footnotes of a table. Notes with the same text share one footnote.
struct Notes<'a> {
    id: &'a str,
    doubts: &'a [Doubt],
    texts: Vec<String>,
}

impl Notes<'_> {
    /// Returns the number of a text in the list of doubts, if it is there.
    fn doubt(&self, text: &str) -> Option<usize> {
        self.doubts.iter().position(|doubt| doubt.is_of(text)).map(|n| n + 1)
    }

    /// Returns the mark that refers to a text: in the list of doubts if it is there, otherwise to a
    /// footnote, which is added if needed.
    fn mark(&mut self, text: &str) -> String {
        if let Some(n) = self.doubt(text) {
            return format!("<a href=\"#d{n}\">doubt {n}</a>");
        }
        let n = self.texts.iter().position(|known| known == text).unwrap_or_else(|| {
            self.texts.push(text.to_owned());
            self.texts.len() - 1
        });
        format!("<a href=\"#{}n{n}\">{}</a>", self.id, n + 1)
    }

    fn write(self, out: &mut String) -> fmt::Result {
        if self.texts.is_empty() {
            return Ok(());
        }
        out.push_str("<ol class=\"foot\">\n");
        for (n, text) in self.texts.iter().enumerate() {
            writeln!(out, "<li id=\"{}n{n}\">{}</li>", self.id, escaped(text))?;
        }
        out.push_str("</ol>\n");
        Ok(())
    }
}
