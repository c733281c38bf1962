//! Named steps with their run times and counts, and the table that is printed at the end.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use rig::table::table;

use crate::side_steps::{self, SideStep, SideStepEvent};
pub use crate::tally::StepTally;

/// Number of steps in the list of the longest steps.
const LISTED_STEPS: usize = 10;

/// The steps of one run of `cargo xtask`, with their results.
pub struct Steps {
    begun: Instant,
    filter: Option<String>,
    done: Vec<(String, Duration, StepTally)>,
    left_out: Vec<String>,
}

impl Steps {
    /// Starts a run that has no steps yet. Only steps whose name contains `filter` will run.
    pub fn new(filter: Option<String>) -> Steps {
        Steps { begun: Instant::now(), filter, done: vec![], left_out: vec![] }
    }

    /// Adds a step that ended before this process began, such as the build. Its time counts as part
    /// of the run.
    pub fn add_earlier(&mut self, name: &str, took: Duration) {
        self.begun = self.begun.checked_sub(took).unwrap_or(self.begun);
        self.add(name, took, StepTally::one());
    }

    /// Returns true if the filter on the command line selects the step `name`.
    pub fn wanted(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    }

    /// Returns true if the filter may let a step run whose name begins with `prefix`.
    pub fn may_want(&self, prefix: &str) -> bool {
        let filter = self.filter.as_deref();
        filter.is_none_or(|filter| prefix.contains(filter) || filter.starts_with(prefix))
    }

    /// Runs a step if the filter lets it. An error counts as one failed case.
    pub fn run(&mut self, name: &str, step: impl FnOnce() -> Result<StepTally>) {
        if self.wanted(name) {
            self.run_always(name, step);
        }
    }

    /// Runs a step that other steps depend on, even if the filter does not match its name. Returns
    /// true if no case failed.
    pub fn run_always(&mut self, name: &str, step: impl FnOnce() -> Result<StepTally>) -> bool {
        println!("==> {name}");
        let start = Instant::now();
        let tally = step().unwrap_or_else(|error| {
            println!("{name}: {error:#}");
            StepTally::of_error(&error)
        });
        let held = tally.failed == 0;
        self.add(name, start.elapsed(), tally);
        held
    }

    fn add(&mut self, name: &str, took: Duration, mut tally: StepTally) {
        self.left_out.append(&mut tally.left_out);
        self.done.push((name.to_owned(), took, tally));
    }

    /// Runs the steps that the filter lets run, up to `places` places at the same time. Prints the
    /// output of each step when it ends. The table lists them in the order of `steps`.
    pub fn run_side_by_side(&mut self, places: usize, steps: Vec<SideStep>) {
        let steps: Vec<_> = steps.into_iter().filter(|step| self.wanted(&step.name)).collect();
        let names: Vec<String> = steps.iter().map(|step| step.name.clone()).collect();
        let mut ended = vec![];
        side_steps::run(steps, places, |event| {
            let end = match event {
                SideStepEvent::Begun(name) => return println!("    {name} begins"),
                SideStepEvent::Ended(end) => end,
            };
            println!("==> {} ({:.1} s)", end.name, end.took.as_secs_f64());
            print!("{}", end.output);
            let tally = end.tally.unwrap_or_else(|error| {
                println!("{}: {error:#}", end.name);
                StepTally::of_error(&error)
            });
            ended.push((end.name, end.took, tally));
        });
        let place = |name: &String| names.iter().position(|other| other == name);
        ended.sort_by_key(|(name, ..)| place(name));
        for (name, took, tally) in ended {
            self.add(&name, took, tally);
        }
    }

    /// Records the steps `names` as failed without running them, because they depend on the step `needed`, which has
    /// failed. Skips names that the filter excludes.
    pub fn fail_all<'a>(&mut self, needed: &str, names: impl IntoIterator<Item = &'a str>) {
        for name in names {
            self.run(name, || Err(anyhow!("not run, since the step '{needed}' failed")));
        }
    }

    /// Records a thing that this run does not test, for the list that `finish` prints.
    pub fn leave_out(&mut self, what: impl Into<String>) {
        self.left_out.push(what.into());
    }

    /// Prints the table, the longest steps, everything that was left out, and on the last line the
    /// counts. Returns true if no case failed and at least one passed.
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

    /// Returns a line with the time of the whole run and the steps that took longest.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::side_steps::SideStepResult;

    #[test]
    fn an_error_is_one_failed_case() {
        let mut steps = Steps::new(None);
        steps.run("good", || Ok(StepTally { passed: 4, ..StepTally::default() }));
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
    fn the_whole_run_includes_what_was_done_before() {
        let mut steps = Steps::new(None);
        steps.add_earlier("build", Duration::from_secs(40));
        assert!(steps.longest().starts_with("whole run: 40 s"), "{}", steps.longest());
    }

    #[test]
    fn a_filter_leaves_steps_out() {
        let mut steps = Steps::new(Some("qemu".to_owned()));
        steps.run("interop: qemu-img", || Ok(StepTally::one()));
        steps.run("check", || panic!("must not run"));
        assert_eq!(steps.counts(), (1, 0));
    }

    #[test]
    fn steps_whose_build_failed_fail_without_running_and_only_if_they_are_wanted() {
        let named = |filter: &str| {
            let mut steps = Steps::new(Some(filter.to_owned()));
            if !steps.run_always("build", || anyhow::bail!("no compiler")) {
                steps.fail_all("build", ["kill", "kill again", "units"]);
            }
            let done = steps.done.iter();
            done.map(|(name, _, tally)| (name.clone(), tally.failed)).collect::<Vec<_>>()
        };
        let failed = |names: &[&str]| -> Vec<(String, u64)> {
            names.iter().map(|name| ((*name).to_owned(), 1)).collect()
        };
        assert_eq!(named("kill"), failed(&["build", "kill", "kill again"]));
        assert_eq!(named("units"), failed(&["build", "units"]));
    }

    #[test]
    fn a_filter_may_want_steps_whose_names_are_not_known_yet() {
        let may = |filter: &str| Steps::new(Some(filter.to_owned())).may_want("units: ");
        assert!(may("units") && may("units: cache") && Steps::new(None).may_want("units: "));
        assert!(!may("kill") && !may("pair"));
    }

    #[test]
    fn steps_that_run_side_by_side_are_listed_in_their_order_with_their_errors() {
        let step = |name: &str, pause: u64, result: fn() -> Result<StepTally>| {
            SideStep::new(name, move || {
                std::thread::sleep(Duration::from_millis(pause));
                SideStepResult { tally: result(), output: String::new() }
            })
        };
        let mut steps = Steps::new(Some("a".to_owned()));
        steps.run_side_by_side(
            2,
            vec![
                step("a 1", 50, || Ok(StepTally::one())),
                step("a 2", 0, || anyhow::bail!("broken")),
                step("b", 0, || panic!("left out")),
            ],
        );
        let done = steps.done.iter().map(|(name, _, tally)| (name.as_str(), tally.failed));
        assert_eq!(done.collect::<Vec<_>>(), [("a 1", 0), ("a 2", 1)]);
    }

    #[test]
    fn a_run_without_steps_fails() {
        assert!(!Steps::new(Some("nowhere".to_owned())).finish());
    }
}
