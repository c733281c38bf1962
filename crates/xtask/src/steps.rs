//! Named steps, each timed and counted, and the table at their end.

use std::time::{Duration, Instant};

use anyhow::Result;
use rig::table::table;

/// What one step counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepTally {
    /// Cases that held.
    pub passed: u64,
    /// Cases that did not.
    pub failed: u64,
    /// One line for the table.
    pub note: String,
}

impl StepTally {
    /// A step that is one case, and it held.
    pub fn one() -> StepTally {
        StepTally { passed: 1, ..StepTally::default() }
    }

    /// The same with a line for the table.
    pub fn with_note(mut self, note: impl Into<String>) -> StepTally {
        self.note = note.into();
        self
    }

    /// Counts one more case.
    pub fn count(&mut self, held: bool) {
        *(if held { &mut self.passed } else { &mut self.failed }) += 1;
    }
}

/// How many of the steps that took longest are listed at the end.
const LISTED_STEPS: usize = 10;

/// The steps of one run.
pub struct Steps {
    begun: Instant,
    filter: Option<String>,
    done: Vec<(String, Duration, StepTally)>,
    left_out: Vec<String>,
    /// A step that runs before the next one that the filter lets run.
    before_next: Option<(String, StepFunction)>,
    /// The failed step that the following ones need.
    missing: Option<String>,
}

type StepFunction = Box<dyn FnOnce() -> Result<StepTally>>;

impl Steps {
    /// Begins a run without steps. Only steps whose name contains `filter` will run.
    pub fn new(filter: Option<String>) -> Steps {
        Steps {
            begun: Instant::now(),
            filter,
            done: vec![],
            left_out: vec![],
            before_next: None,
            missing: None,
        }
    }

    /// Whether the filter lets a step of this name run.
    pub fn wanted(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    }

    /// Runs a step, unless the filter leaves it out. An error counts as one failed case.
    pub fn run(&mut self, name: &str, step: impl FnOnce() -> Result<StepTally>) {
        if !self.wanted(name) {
            return;
        }
        if let Some((needed, first)) = self.before_next.take() {
            self.run_always(&needed, first);
            let failed = self.done.last().is_some_and(|(_, _, tally)| tally.failed > 0);
            self.missing = failed.then_some(needed);
        }
        match &self.missing {
            None => self.run_always(name, step),
            Some(needed) => {
                let error = anyhow::anyhow!("not run, since the step '{needed}' failed");
                self.run_always(name, || Err(error));
            }
        }
    }

    /// Keeps a step back until the filter lets a following one run, and runs it before that. If it fails, the following
    /// steps fail without running.
    pub fn run_before_next(
        &mut self,
        name: &str,
        step: impl FnOnce() -> Result<StepTally> + 'static,
    ) {
        self.before_next = Some((name.to_owned(), Box::new(step)));
    }

    /// Ends the effect of [`Steps::run_before_next`]: the following steps do not need its step.
    pub fn forget_before_next(&mut self) {
        self.before_next = None;
        self.missing = None;
    }

    /// Runs a step that others need, whatever the filter says.
    pub fn run_always(&mut self, name: &str, step: impl FnOnce() -> Result<StepTally>) {
        println!("==> {name}");
        let start = Instant::now();
        let tally = step().unwrap_or_else(|error| {
            println!("{name}: {error:#}");
            StepTally { failed: 1, ..StepTally::default() }
                .with_note(first_line(&format!("{error:#}")))
        });
        self.done.push((name.to_owned(), start.elapsed(), tally));
    }

    /// Remembers what this run does not show, for its last lines.
    pub fn leave_out(&mut self, what: impl Into<String>) {
        self.left_out.push(what.into());
    }

    /// Prints the table, the steps that took longest, what was left out and, alone on the last line, the counts. Returns
    /// whether all cases held.
    pub fn finish(self) -> bool {
        print!("\n{}\n{}", self.table(), self.longest());
        for what in &self.left_out {
            println!("left out: {what}");
        }
        if let Some(filter) = &self.filter {
            println!("left out: every step without '{filter}' in its name");
        }
        let (passed, failed) = self.counts();
        println!("{passed} passed, {failed} failed");
        failed == 0 && passed > 0
    }

    fn counts(&self) -> (u64, u64) {
        self.done.iter().fold((0, 0), |(passed, failed), (_, _, tally)| {
            (passed + tally.passed, failed + tally.failed)
        })
    }

    fn table(&self) -> String {
        let rows = self.done.iter().map(|(name, took, tally)| {
            vec![
                name.clone(),
                format!("{:.1} s", took.as_secs_f64()),
                tally.passed.to_string(),
                tally.failed.to_string(),
                tally.note.clone(),
            ]
        });
        table(&["step", "time", "passed", "failed", ""], rows)
    }

    /// Returns the time of the whole run, and the steps that took longest.
    fn longest(&self) -> String {
        let whole = self.begun.elapsed().as_secs_f64();
        let mut steps: Vec<(&str, f64)> =
            self.done.iter().map(|(name, took, _)| (name.as_str(), took.as_secs_f64())).collect();
        steps.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let listed = steps.iter().take(LISTED_STEPS);
        let listed: Vec<String> =
            listed.map(|(name, took)| format!("{name} {took:.0} s")).collect();
        format!("whole run: {whole:.0} s; longest steps: {}\n", listed.join(", "))
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_failed_case() {
        let mut steps = Steps::new(None);
        steps.run("good", || Ok(StepTally { passed: 4, failed: 0, note: String::new() }));
        steps.run("bad", || anyhow::bail!("no such thing\nat all"));
        assert_eq!(steps.counts(), (4, 1));
        assert_eq!(steps.done[1].2.note, "no such thing");
        assert!(!steps.finish());
    }

    #[test]
    fn the_longest_steps_are_listed_with_the_longest_first() {
        let mut steps = Steps::new(None);
        for (name, seconds) in (0..12).map(|n| (format!("step {n}"), n)) {
            steps.done.push((name, Duration::from_secs(seconds), StepTally::one()));
        }
        let listed = steps.longest();
        let (_, listed) = listed.trim_end().split_once("longest steps: ").unwrap();
        let listed: Vec<&str> = listed.split(", ").collect();
        assert_eq!((listed.len(), listed[0], listed[9]), (10, "step 11 11 s", "step 2 2 s"));
    }

    #[test]
    fn a_filter_leaves_steps_out() {
        let mut steps = Steps::new(Some("qemu".to_owned()));
        steps.run("interop: qemu-img", || Ok(StepTally::one()));
        steps.run("check", || panic!("must not run"));
        assert_eq!(steps.counts(), (1, 0));
    }

    #[test]
    fn a_step_that_others_need_runs_once_and_only_with_one_of_them() {
        let run = |filter: &str, build: fn() -> Result<StepTally>| {
            let mut steps = Steps::new(Some(filter.to_owned()));
            steps.run_before_next("build", build);
            steps.run("kill", || Ok(StepTally::one()));
            steps.run("kill again", || Ok(StepTally::one()));
            steps.forget_before_next();
            steps.run("units", || Ok(StepTally::one()));
            steps
                .done
                .iter()
                .map(|(name, _, tally)| (name.clone(), tally.failed))
                .collect::<Vec<_>>()
        };
        let named = |names: &[(&str, u64)]| -> Vec<(String, u64)> {
            names.iter().map(|(name, failed)| ((*name).to_owned(), *failed)).collect()
        };
        let good = || Ok(StepTally::one());
        assert_eq!(run("kill", good), named(&[("build", 0), ("kill", 0), ("kill again", 0)]));
        assert_eq!(run("units", good), named(&[("units", 0)]));
        let bad = || anyhow::bail!("no compiler");
        assert_eq!(run("kill", bad), named(&[("build", 1), ("kill", 1), ("kill again", 1)]));
        assert_eq!(run("units", bad), named(&[("units", 0)]));
    }

    #[test]
    fn nothing_run_is_no_success() {
        assert!(!Steps::new(Some("nowhere".to_owned())).finish());
    }
}
