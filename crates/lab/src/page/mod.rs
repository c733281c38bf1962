//! Formats a report as a single HTML file, which loads no other file and needs no script.

mod table;
mod opening;

use std::fmt::{self, Write};

use crate::{Doubt, LabReport, Section, SectionPart, draw, html_escape::escaped};

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
    opening::finding(out, report)?;
    opening::doubts(out, report)?;
    opening::other_claims(out, report)?;
    opening::bounds(out, report)?;
    paragraphs(out, &report.about)?;
    facts(out, &report.facts)?;
    contents(out, report)?;
    for (n, section) in report.sections.iter().enumerate() {
        write_section(out, n + 1, section, &report.doubts)?;
    }
    write!(out, "<footer>\n{HOW_TO_READ}</footer>\n</main>\n</body>\n</html>\n")
}

/// The footer of every report page, which explains its tables.
const HOW_TO_READ: &str = "<p>How to read the tables: the upper number was measured here, the median if a point was run several times; \
    the quartiles of these runs are below it. Then follows the paper's \
    number, followed by ours divided by the paper's. A figure with a bound shows whether it is within the bound. A dagger \
    marks figures that may be wrong, with the number of the reason in the list of doubts. A point is one workload with one \
    arrangement of disk, node, link, gateway and host. In drawings measurements are full lines, the paper's numbers dashed, \
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

fn write_section(out: &mut String, n: usize, section: &Section, doubts: &[Doubt]) -> fmt::Result {
    writeln!(out, "<section id=\"s{n}\">\n<h2>{}</h2>", escaped(&section.title))?;
    paragraphs(out, &section.text)?;
    for (part_n, part) in section.parts.iter().enumerate() {
        match part {
            SectionPart::Table(table) => {
                table::write(out, &format!("s{n}t{part_n}"), table, doubts)?
            }
            SectionPart::Plot(plot) => out.push_str(&draw::figure(plot)),
        }
    }
    apart(out, "Differences from the paper", &section.deviations)?;
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

/// Writes an HTML list, unless `items` is empty.
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
