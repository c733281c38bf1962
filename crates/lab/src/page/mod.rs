//! Formats a report as a single HTML file, which loads no other file and needs no script.

mod table;

use std::fmt::{self, Write};

use crate::{LabReport, Section, SectionPart, draw, html_escape::escaped, number};

/// Returns a report as an HTML page.
#[must_use]
pub fn page(report: &LabReport) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut out, report);
    out
}

fn write(out: &mut String, report: &LabReport) -> fmt::Result {
    let title = escaped(&report.title);
    write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n",
        include_str!("style.css"),
    )?;
    paragraphs(out, &report.about)?;
    facts(out, &report.facts)?;
    summary(out, report)?;
    contents(out, report)?;
    for (n, section) in report.sections.iter().enumerate() {
        write_section(out, n + 1, section)?;
    }
    write!(out, "<footer>\n{HOW_TO_READ}</footer>\n</main>\n</body>\n</html>\n")
}

/// The footer of every page: explains how to read the tables.
const HOW_TO_READ: &str = "<p>How to read the tables: the upper number was measured here. Below it is the paper's \
    number, followed by ours divided by the paper's. A figure with a bar shows if the bar holds. A dagger marks figures \
    that may be wrong; the reason is below the table. In drawings measurements are full lines, the paper's numbers dashed, \
    and predictions of a formula dotted; curves of one colour belong to the same subject.</p>\n";

fn paragraphs(out: &mut String, text: &[String]) -> fmt::Result {
    for paragraph in text {
        writeln!(out, "<p>{}</p>", escaped(paragraph))?;
    }
    Ok(())
}

fn facts(out: &mut String, facts: &[(String, String)]) -> fmt::Result {
    if facts.is_empty() {
        return Ok(());
    }
    out.push_str("<dl>\n");
    for (name, value) in facts {
        writeln!(out, "<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(value))?;
    }
    out.push_str("</dl>\n");
    Ok(())
}

/// Writes the summary at the top of the page: how many bars hold, which ones do not, and how many
/// figures are missing.
fn summary(out: &mut String, report: &LabReport) -> fmt::Result {
    let [mut held, mut unmeasured, mut tainted, mut empty] = [0_u32; 4];
    let mut missed = vec![];
    for (n, section) in report.sections.iter().enumerate() {
        for (table, row, column, cell) in section.cells() {
            tainted += u32::from(!cell.taints.is_empty());
            empty += u32::from(cell.ours.is_none() && (cell.paper.is_some() || cell.bar.is_some()));
            match cell.holds() {
                Some(true) => held += 1,
                Some(false) => missed.push((n + 1, format!("{}: {row}, {column}", table.title))),
                None => unmeasured += u32::from(cell.bar.is_some()),
            }
        }
    }
    out.push_str("<div class=\"sum\">\n");
    let promised = held as usize + missed.len() + unmeasured as usize;
    if promised > 0 {
        write!(out, "<p>Of {promised} figures with a bar <span class=\"good\">{held} hold</span>")?;
        if !missed.is_empty() {
            write!(out, ", <span class=\"bad\">{} do not</span>", missed.len())?;
        }
        if unmeasured > 0 {
            write!(out, ", not measured: {unmeasured}")?;
        }
        out.push_str(".</p>\n");
        list(
            out,
            missed.iter().map(|(n, text)| format!("<a href=\"#s{n}\">{}</a>", escaped(text))),
        )?;
    }
    if empty > 0 {
        writeln!(
            out,
            "<p>{} figures of the paper were not measured here.</p>",
            number(f64::from(empty))
        )?;
    }
    if tainted > 0 {
        writeln!(
            out,
            "<p class=\"taint\">† {} figures may be wrong; the reasons are below their tables.</p>",
            number(f64::from(tainted))
        )?;
    }
    let deviations: usize = report.sections.iter().map(|section| section.deviations.len()).sum();
    writeln!(out, "<p>Deviations described: {deviations}.</p>\n</div>")
}

fn contents(out: &mut String, report: &LabReport) -> fmt::Result {
    if report.sections.len() < 2 {
        return Ok(());
    }
    out.push_str("<nav><ol>\n");
    for (n, section) in report.sections.iter().enumerate() {
        writeln!(out, "<li><a href=\"#s{}\">{}</a></li>", n + 1, escaped(&section.title))?;
    }
    out.push_str("</ol></nav>\n");
    Ok(())
}

fn write_section(out: &mut String, n: usize, section: &Section) -> fmt::Result {
    writeln!(out, "<section id=\"s{n}\">\n<h2>{}</h2>", escaped(&section.title))?;
    paragraphs(out, &section.text)?;
    for (part_n, part) in section.parts.iter().enumerate() {
        match part {
            SectionPart::Table(table) => table::write(out, &format!("s{n}t{part_n}"), table)?,
            SectionPart::Plot(plot) => out.push_str(&draw::figure(plot)),
        }
    }
    apart(out, "Deviations", &section.deviations)?;
    apart(out, "Misprints of the paper", &section.misprints)?;
    out.push_str("</section>\n");
    Ok(())
}

fn apart(out: &mut String, heading: &str, texts: &[String]) -> fmt::Result {
    if texts.is_empty() {
        return Ok(());
    }
    writeln!(out, "<div class=\"apart\"><h3>{heading}</h3>")?;
    list(out, texts.iter().map(|text| escaped(text)))?;
    out.push_str("</div>\n");
    Ok(())
}

/// Writes an HTML list, or nothing if there are no items.
fn list(out: &mut String, items: impl ExactSizeIterator<Item = String>) -> fmt::Result {
    if items.len() == 0 {
        return Ok(());
    }
    out.push_str("<ul>\n");
    for item in items {
        writeln!(out, "<li>{item}</li>")?;
    }
    out.push_str("</ul>\n");
    Ok(())
}

#[cfg(test)]
mod tests;
