//! The beginning of a page: the finding, the state of the run, the other claims, and the doubts.

use std::fmt::{self, Write};

use super::list;
use crate::{ClaimResult, Finding, LabReport, html_escape::escaped, rounded};

/// Writes the three sentences about the most important result, and whether the run is complete.
pub fn finding(out: &mut String, report: &LabReport) -> fmt::Result {
    if let Some([claim, measured, verdict]) = report.opening() {
        let [claim, measured, verdict] = [claim, measured, verdict].map(|text| escaped(&text));
        writeln!(out, "<p class=\"found\">{claim}\n{measured}\n<strong>{verdict}</strong></p>")?;
    }
    if let Some(progress) = &report.progress {
        writeln!(out, "<p class=\"found\">{}</p>", escaped(&progress.sentence()))?;
        if let Some(command) = &progress.stopped {
            writeln!(out, "<pre><code>{}</code></pre>", escaped(command))?;
        }
    }
    Ok(())
}

/// Writes a table of the papers' statements that are not at the beginning of the page, and names those without results.
pub fn other_claims(out: &mut String, report: &LabReport) -> fmt::Result {
    let first = report.first_finding();
    let others = report.findings.iter().filter(|it| first != Some(it));
    let (others, unknown): (Vec<_>, Vec<_>) = others.partition(|it| !it.ratios.is_empty());
    let mut places: Vec<&str> = unknown.iter().map(|it| it.claim.place).collect();
    places.dedup();
    if !others.is_empty() {
        claims(out, &others)?;
    }
    if !places.is_empty() {
        let places = escaped(&places.join("; "));
        writeln!(out, "<p>Claims whose points have no results: {places}.</p>")?;
    }
    Ok(())
}

fn claims(out: &mut String, findings: &[&Finding]) -> fmt::Result {
    out.push_str(
        "<div class=\"scroll\" tabindex=\"0\"><table class=\"claims\">\n<caption>Other claims of the paper</caption>\n<thead>\n<tr>\
         <th scope=\"col\">claim</th><th scope=\"col\">median ratio</th><th scope=\"col\">quartiles</th>\
         <th scope=\"col\">number of ratios</th><th scope=\"col\">result</th></tr>\n</thead>\n<tbody>\n",
    );
    for finding in findings {
        claim(out, finding)?;
    }
    out.push_str("</tbody>\n</table></div>\n");
    Ok(())
}

fn claim(out: &mut String, finding: &Finding) -> fmt::Result {
    let (result, why) = finding.result();
    let (class, word) = match result {
        ClaimResult::Held => ("good", "held"),
        ClaimResult::NotHeld => ("bad", "not held"),
        ClaimResult::Undecided => ("none", "not decided"),
    };
    let [median, spread] = match finding.quartiles() {
        Some([low, median, high]) => {
            [rounded(median), format!("{}, {}", rounded(low), rounded(high))]
        }
        None => ["–", "–"].map(str::to_owned),
    };
    writeln!(
        out,
        "<tr><th scope=\"row\">{}: {}<span class=\"ref\">ratio of {}</span></th><td>{median}</td><td>{spread}</td><td>{}</td>\
         <td><span class=\"{class}\">{word}</span><span class=\"ref\">{}</span></td></tr>",
        escaped(finding.claim.place),
        escaped(finding.claim.statement),
        escaped(finding.claim.ratio),
        finding.ratios.len(),
        escaped(&why),
    )
}

/// Writes a list of the reasons to doubt measurements. Each reason is in the list once, with the number of points that
/// it concerns. Marks in tables refer to this list.
pub fn doubts(out: &mut String, report: &LabReport) -> fmt::Result {
    if report.doubts.is_empty() {
        return Ok(());
    }
    out.push_str("<div class=\"apart\"><h3>Doubts</h3>\n<ol>\n");
    for (n, doubt) in (1..).zip(&report.doubts) {
        writeln!(out, "<li id=\"d{n}\">{}</li>", escaped(&doubt.sentence()))?;
    }
    out.push_str("</ol></div>\n");
    Ok(())
}

/// Writes how many measured figures keep their bounds, and which figures miss theirs.
pub fn bounds(out: &mut String, report: &LabReport) -> fmt::Result {
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
    if held as usize + missed.len() + unmeasured as usize > 0 {
        write!(out, "<p>Figures with a bound: <span class=\"good\">{held} within it</span>")?;
        if !missed.is_empty() {
            write!(out, ", <span class=\"bad\">{} not</span>", missed.len())?;
        }
        if unmeasured > 0 {
            write!(out, ", {unmeasured} not measured")?;
        }
        out.push_str(".</p>\n");
        list(
            out,
            missed.iter().map(|(n, text)| format!("<a href=\"#s{n}\">{}</a>", escaped(text))),
        )?;
    }
    if empty > 0 {
        writeln!(out, "<p>Figures of the paper that were not measured here: {empty}.</p>")?;
    }
    if tainted > 0 {
        writeln!(
            out,
            "<p class=\"taint\">Figures in doubt: {tainted}, each with a dagger (†) and the number of the doubt.</p>"
        )?;
    }
    let deviations: usize = report.sections.iter().map(|section| section.deviations.len()).sum();
    writeln!(out, "<p>Described differences from the paper: {deviations}.</p>\n</div>")
}
