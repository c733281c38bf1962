//! A list of steps that can be run by name, each in a process of its own.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::side_steps::{SideStep, SideStepResult, StepNeed};
use crate::steps::{StepTally, Steps};

/// Time limit of a step in a process of its own: 30 days. It only ends a process that hangs. Each step has shorter
/// limits inside, but a run of 100,000 rounds takes days.
const LIMIT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Steps in the order in which they were added. `'a` is the lifetime of what their closures borrow.
#[derive(Default)]
pub struct StepList<'a> {
    steps: Vec<ListedStep<'a>>,
    left_out: Vec<String>,
}

struct ListedStep<'a> {
    name: String,
    need: StepNeed,
    run: Box<dyn FnOnce() -> Result<StepTally> + 'a>,
}

impl<'a> StepList<'a> {
    /// Adds a step that takes one of the places for concurrent steps, as most steps do.
    pub fn add(&mut self, name: &str, run: impl FnOnce() -> Result<StepTally> + 'a) {
        self.add_with(StepNeed::PLACE, name, run);
    }

    /// Adds a step that needs more than one place, or that must run alone.
    pub fn add_with(
        &mut self,
        need: StepNeed,
        name: &str,
        run: impl FnOnce() -> Result<StepTally> + 'a,
    ) {
        self.steps.push(ListedStep { name: name.to_owned(), need, run: Box::new(run) });
    }

    /// Records something that the steps of this list do not test. The output ends with a list of these.
    pub fn leave_out(&mut self, what: impl Into<String>) {
        self.left_out.push(what.into());
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().map(|step| step.name.as_str())
    }

    /// Runs the steps one after the other in this process.
    pub fn run_here(self, steps: &mut Steps) {
        self.left_out.into_iter().for_each(|what| steps.leave_out(what));
        for step in self.steps {
            steps.run(&step.name, step.run);
        }
    }

    /// Runs the step with this name in this process, and writes the step's result to the file `result`. The process
    /// that started this one reads the file.
    pub fn run_for_another(self, name: &str, result: &Path) -> Result<()> {
        let step = self.steps.into_iter().find(|step| step.name == name);
        let step = step.with_context(|| format!("there is no step '{name}'"))?;
        let tally = (step.run)().unwrap_or_else(|error| {
            println!("{name}: {error:#}");
            StepTally::of_error(&error)
        });
        Ok(fs::write(result, tally.to_json())?)
    }

    /// Converts the list to steps for [`Steps::run_side_by_side`]. Each step starts a process of this program with
    /// `arguments`, followed by the name of the step and the file for its result. These arguments must make the program
    /// call [`StepList::run_for_another`].
    pub fn beside(self, steps: &mut Steps, arguments: &[OsString]) -> Vec<SideStep> {
        self.left_out.into_iter().for_each(|what| steps.leave_out(what));
        let beside = self.steps.into_iter().map(|step| {
            let (name, arguments) = (step.name.clone(), arguments.to_vec());
            let run = move || {
                in_own_process(&name, &arguments).unwrap_or_else(|error| SideStepResult {
                    tally: Err(error),
                    output: String::new(),
                })
            };
            SideStep::new(&step.name, run).needs(step.need)
        });
        beside.collect()
    }
}

fn in_own_process(name: &str, arguments: &[OsString]) -> Result<SideStepResult> {
    let folder = tempfile::tempdir()?;
    let result = folder.path().join("result.json");
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments).arg(name).arg(&result);
    let ended = program::run(&mut command, LIMIT)?;
    let tally = || {
        ensure!(ended.success(), "the process of the step {}", ended.ending());
        StepTally::from_json(&fs::read_to_string(&result)?)
    };
    Ok(SideStepResult { tally: tally(), output: ended.output.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_runs_by_its_name_and_leaves_its_tally() {
        let folder = tempfile::tempdir().unwrap();
        let result = folder.path().join("result");
        let list = || {
            let mut list = StepList::default();
            list.add("good", || Ok(StepTally::one()));
            list.add_with(StepNeed::MACHINE, "bad", || anyhow::bail!("broken"));
            list
        };
        assert_eq!(list().names().collect::<Vec<_>>(), ["good", "bad"]);
        let tally = |name: &str| {
            list().run_for_another(name, &result).unwrap();
            StepTally::from_json(&fs::read_to_string(&result).unwrap()).unwrap()
        };
        assert_eq!(tally("good"), StepTally::one());
        let bad = tally("bad");
        assert_eq!((bad.failed, bad.note.as_str()), (1, "broken"));
        assert!(list().run_for_another("none", &result).is_err());
    }
}
