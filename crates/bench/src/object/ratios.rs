//! The ratios of a run, with their bars.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use rig::table::table;
use serde_json::json;

use crate::bars::Limit;
use crate::figures::{Samples, short};
use crate::report;

/// One figure with its value of each round.
struct ObjectRatio {
    name: String,
    /// `None` for a figure that explains another one.
    limit: Option<Limit>,
    values: Samples,
}

impl ObjectRatio {
    fn verdict(&self) -> &'static str {
        match self.limit.map(|limit| limit.holds(self.values.median())) {
            Some(true) => "pass",
            Some(false) => "miss",
            None => "",
        }
    }

    fn row(&self) -> Vec<String> {
        let quartiles = [0.25, 0.75].map(|part| short(self.values.quantile(part)));
        vec![
            self.name.clone(),
            format!("{} [{}..{}]", short(self.values.median()), quartiles[0], quartiles[1]),
            self.limit.map_or_else(String::new, |limit| limit.to_string()),
            self.verdict().to_owned(),
        ]
    }
}

/// All figures of a run, in the order in which they were first measured.
#[derive(Default)]
pub struct ObjectRatios {
    ratios: Vec<ObjectRatio>,
}

const HEADINGS: [&str; 4] = ["figure", "median [quartiles] of the rounds", "bar", ""];

impl ObjectRatios {
    /// Adds one round's value of a figure that is at least `limit`.
    pub fn least(&mut self, name: impl Into<String>, limit: f64, value: f64) {
        self.add(name.into(), Some(Limit::Least(limit)), value);
    }

    /// Adds one round's value of a figure that is at most `limit`.
    pub fn most(&mut self, name: impl Into<String>, limit: f64, value: f64) {
        self.add(name.into(), Some(Limit::Most(limit)), value);
    }

    /// Adds one round's value of a figure without a bar.
    pub fn note(&mut self, name: impl Into<String>, value: f64) {
        self.add(name.into(), None, value);
    }

    fn add(&mut self, name: String, limit: Option<Limit>, value: f64) {
        match self.ratios.iter_mut().find(|ratio| ratio.name == name) {
            Some(ratio) => ratio.values.push(value),
            None => self.ratios.push(ObjectRatio { name, limit, values: Samples::one(value) }),
        }
    }

    /// Prints the ratios. Returns true if every bar holds.
    pub fn print(&self) -> bool {
        print!("\n{}", table(&HEADINGS, self.ratios.iter().map(ObjectRatio::row)));
        let missed = self.ratios.iter().filter(|ratio| ratio.verdict() == "miss").count();
        println!("{} bars pass, {missed} miss", self.with_bars() - missed);
        missed == 0
    }

    fn with_bars(&self) -> usize {
        self.ratios.iter().filter(|ratio| ratio.limit.is_some()).count()
    }

    /// Writes the ratios of every round as JSON.
    pub fn write_json(&self, path: &Path, command: &str) -> Result<()> {
        let ratios: Vec<_> = self
            .ratios
            .iter()
            .map(|ratio| {
                let [low, high] = [0.25, 0.75].map(|part| ratio.values.quantile(part));
                json!({
                    "name": ratio.name, "rounds": ratio.values.values(),
                    "median": ratio.values.median(), "quartiles": [low, high],
                    "limit": ratio.limit.map(|limit| limit.to_string()),
                    "pass": ratio.limit.map(|limit| limit.holds(ratio.values.median())),
                })
            })
            .collect();
        let all = json!({ "command": command, "machine": report::machine(), "ratios": ratios });
        let text = serde_json::to_string_pretty(&all)?;
        fs::write(path, text + "\n").with_context(|| path.display().to_string())
    }

    /// Writes the ratios as a part of a page.
    pub fn write_markdown(&self, path: &Path) -> Result<()> {
        let rows = self.ratios.iter().map(ObjectRatio::row).collect();
        let page = format!(
            "<!-- Ratios: written by `cargo xtask bench object --markdown` -->\n{}<!-- End of the ratios -->\n",
            report::markdown(&HEADINGS, rows)
        );
        fs::write(path, page).with_context(|| path.display().to_string())
    }

    #[cfg(test)]
    pub fn bars(&self) -> usize {
        self.with_bars()
    }

    /// Returns true if every value is a positive number.
    #[cfg(test)]
    pub fn are_positive(&self) -> bool {
        let is_positive = |value: &f64| value.is_finite() && *value > 0.0;
        self.ratios.iter().all(|ratio| ratio.values.values().iter().all(is_positive))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_judged_by_the_median_of_its_rounds() {
        let mut ratios = ObjectRatios::default();
        for value in [0.1, 0.9, 0.95] {
            ratios.least("held", 0.85, value);
            ratios.most("missed", 0.85, value);
            ratios.note("shown", value);
        }
        let rows: Vec<_> = ratios.ratios.iter().map(ObjectRatio::row).collect();
        assert_eq!(rows[0], ["held", "0.90 [0.50..0.93]", "≥ 0.85", "pass"]);
        assert_eq!(rows[1][3], "miss");
        assert_eq!(rows[2][2..], ["", ""]);
        assert!(!ratios.print());
    }
}
