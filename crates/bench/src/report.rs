//! Writes the figures of a run as text, as a page and as JSON.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use rig::table::table;
use serde_json::json;

use crate::bars::{BARS, PerformanceBar};
use crate::figures::{BenchFigures, Samples};

/// A performance limit, with the measured value of its figure.
struct Judged {
    bar: &'static PerformanceBar,
    measured: Samples,
}

impl Judged {
    fn holds(&self) -> bool {
        self.bar.limit.holds(self.measured.median())
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.bar.name.to_owned(),
            self.measured.to_string(),
            self.bar.limit.to_string(),
            (if self.holds() { "pass" } else { "miss" }).to_owned(),
        ]
    }
}

fn judged(figures: &BenchFigures) -> Vec<Judged> {
    let measured =
        |bar: &'static PerformanceBar| Some(Judged { bar, measured: (bar.figure)(figures)? });
    BARS.iter().filter_map(measured).collect()
}

const BAR_HEADINGS: [&str; 4] = ["figure", "median [least..most] of the rounds", "bar", ""];

/// Prints points and bars. Returns true if every bar that was measured holds.
pub fn print(figures: &BenchFigures) -> bool {
    let judged = judged(figures);
    println!("\n{}", table(&BenchFigures::HEADINGS, figures.rows()));
    print!("{}", table(&BAR_HEADINGS, judged.iter().map(Judged::row)));
    let missed = judged.iter().filter(|bar| !bar.holds()).count();
    println!("{}", figures.disturbance());
    println!("{} bars pass, {missed} miss", judged.len() - missed);
    missed == 0
}

/// Writes the points of every round, and the bars, as JSON.
pub fn write_json(path: &Path, figures: &BenchFigures, command: &str) -> Result<()> {
    let bars: Vec<_> = judged(figures)
        .iter()
        .map(|bar| {
            json!({ "name": bar.bar.name, "median": bar.measured.median(),
                "limit": bar.bar.limit.to_string(), "pass": bar.holds() })
        })
        .collect();
    let all =
        json!({ "command": command, "machine": machine(), "bars": bars, "points": figures.json() });
    let text = serde_json::to_string_pretty(&all)?;
    fs::write(path, text + "\n").with_context(|| path.display().to_string())
}

/// Writes the results as a page for docs/results.
pub fn write_markdown(path: &Path, figures: &BenchFigures, command: &str) -> Result<()> {
    let bars = judged(figures);
    let page = format!(
        "# What the data path costs\n\n\
         Measured by `{command}`\non {}.\n\n\
         Servers run on CPU 0, the load generator on CPU 1. Every round measures all servers one right after\n\
         the other; ratios are taken per round. Server CPU is what all threads of the server used, per operation.\n\
         tgt runs with its defaults on a file in memory, confined to the same CPU.\n{}.\n\n\
         ## Bars\n\n{}\n## Points\n\nMedians of the rounds.\n\n{}",
        machine(),
        figures.disturbance(),
        markdown(&BAR_HEADINGS, bars.iter().map(Judged::row).collect()),
        markdown(&BenchFigures::HEADINGS, figures.rows()),
    );
    fs::write(path, page).with_context(|| path.display().to_string())
}

pub fn markdown(headings: &[&str], rows: Vec<Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = headings.iter().map(|heading| (*heading).to_owned()).collect();
    let rule: Vec<String> = headings.iter().map(|_| "---".to_owned()).collect();
    let body: String = rows.iter().map(|row| line(row)).collect();
    line(&head) + &line(&rule) + &body
}

/// Returns a text with processor, kernel, date and commit.
pub fn machine() -> String {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        processor.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cpus = processor.lines().filter(|line| line.starts_with("processor")).count();
    format!(
        "{} ({cpus} CPUs), Linux {}, {}, commit {}",
        model.map_or("unknown processor", |(_, name)| name),
        said_by("uname", &["-r"]),
        said_by("date", &["-u", "+%Y-%m-%d"]),
        said_by("git", &["rev-parse", "--short", "HEAD"]),
    )
}

fn said_by(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.ok().filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_a_page() {
        let rows = vec![vec!["x".to_owned(), "1".to_owned()]];
        assert_eq!(markdown(&["a", "b"], rows), "| a | b |\n| --- | --- |\n| x | 1 |\n");
    }

    #[test]
    fn the_machine_is_named() {
        assert!(machine().contains("Linux"));
    }
}
