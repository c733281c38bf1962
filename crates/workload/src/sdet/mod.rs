//! Runs scripts like those of SPEC's SDET, which imitate a day of software development by the users of one machine.
//! Several scripts run concurrently; each is a fixed mix of Unix commands.
//!
//! SPEC's own scripts are not available. The mix is our own (`script`).

mod script;

use std::{
    fs,
    path::Path,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{
    Error, Tool, Workload, WorkloadResult, WorkloadRun, concurrent_runs::at_once,
    owned_folder::OwnedFolder, run_program, uncached_sums,
};

const TOOLS: [Tool; 9] = [
    Tool { program: "ed", package: "ed" },
    Tool { program: "nroff", package: "groff-base" },
    Tool { program: "cc", package: "gcc" },
    Tool { program: "awk", package: "mawk" },
    Tool { program: "diff", package: "diffutils" },
    Tool { program: "find", package: "findutils" },
    Tool { program: "grep", package: "grep" },
    Tool { program: "tar", package: "tar" },
    Tool { program: "cksum", package: "coreutils" },
];
/// Time limit of one script, which normally takes a second. If a link is so slow that this is not
/// enough, choose fewer scripts.
const LIMIT: Duration = Duration::from_secs(2 * 3600);
/// Maximum number of scripts. For each script a thread waits; the papers use 32 scripts at most.
const MOST_SCRIPTS: u32 = 1024;

/// Settings of the workload SDET.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, clap::Args)]
#[serde(deny_unknown_fields, default)]
pub struct Sdet {
    /// Number of concurrent scripts
    #[arg(long, default_value_t = 32)]
    pub scripts: u32,
    /// How often each script goes through its mix of 21 tasks
    #[arg(long, default_value_t = 2)]
    pub rounds: u32,
}

impl Default for Sdet {
    fn default() -> Self {
        Self { scripts: 32, rounds: 2 }
    }
}

impl Workload for Sdet {
    fn needs(&self) -> Vec<Tool> {
        TOOLS.to_vec()
    }

    fn check(&self) -> Result<(), Error> {
        if !(1..=MOST_SCRIPTS).contains(&self.scripts) || self.rounds == 0 {
            let what =
                format!("1 to {MOST_SCRIPTS} scripts run at once, each for at least one round");
            return Err(Error::Settings(what));
        }
        Ok(())
    }

    fn space(&self) -> u64 {
        // A script needs at most this much space at one time, rounded up: 1 MiB for each round.
        (u64::from(self.rounds) << 20).saturating_mul(self.scripts.into())
    }

    fn run(&self, run: &WorkloadRun<'_>) -> Result<WorkloadResult, Error> {
        let folder = run.folder("sdet")?;
        self.check()?;
        let scripts: Vec<String> =
            (0..self.scripts).map(|number| script::write(run.seed, number, self.rounds)).collect();
        // First run the scripts on this machine's own disk. Later their output and files are compared with those on the
        // storage under test.
        let all = 2.0 * f64::from(self.scripts);
        let done = AtomicU32::new(0);
        let one_done = || (run.progress)(f64::from(done.fetch_add(1, Ordering::Relaxed) + 1) / all);
        let here = OwnedFolder::make(run.scratch, "sdet", self.space())?;
        let (expected, _) = run_all(&scripts, here.path(), &one_done)?;
        let there = OwnedFolder::make(folder, "forebay-lab-sdet", self.space())?;
        let (said, took) = run_all(&scripts, there.path(), &one_done)?;
        compare(&expected, &said)?;
        uncached_sums::forget(there.path())?;
        let (expected, kept) =
            (uncached_sums::sums(here.path())?, uncached_sums::sums(there.path())?);
        if let Some(path) = uncached_sums::difference(&expected, &kept) {
            let what =
                format!("{} differs from the file that the script left elsewhere", path.display());
            return Err(Error::Wrong(what));
        }
        there.remove()?;
        Ok(WorkloadResult {
            verified: "the output of every script and its files, read from storage, with those of the same \
                       scripts elsewhere"
                .to_owned(),
            ..WorkloadResult::default()
        }
        .figure("scripts", "1/h", 3600.0 * f64::from(self.scripts) / took.as_secs_f64())
        .figure("time", "s", took.as_secs_f64()))
    }
}

/// Runs all scripts concurrently, each in its own folder. Returns their output, and the time until the last script has
/// ended.
fn run_all(
    scripts: &[String],
    folder: &Path,
    done: &(dyn Fn() + Sync),
) -> Result<(Vec<String>, Duration), Error> {
    let folders: Vec<_> =
        (0..scripts.len()).map(|number| folder.join(number.to_string())).collect();
    for own in &folders {
        fs::create_dir(own).map_err(Error::system(format!("make {}", own.display())))?;
    }
    let begun = Instant::now();
    let said = at_once(scripts.len() as u32, |number| {
        let (script, own) = (&scripts[number as usize], &folders[number as usize]);
        let mut command = Command::new("sh");
        let said = run_program::run(command.args(["-c", script]).current_dir(own), LIMIT);
        done();
        Ok(said?.0)
    })?;
    Ok((said, begun.elapsed()))
}

fn compare(expected: &[String], said: &[String]) -> Result<(), Error> {
    for (number, (expected, said)) in expected.iter().zip(said).enumerate() {
        let (mut wanted, mut got) = (expected.lines(), said.lines());
        let mut line = 0;
        loop {
            line += 1;
            match (wanted.next(), got.next()) {
                (None, None) => break,
                (wanted, got) if wanted == got => (),
                (wanted, got) => {
                    return Err(Error::Wrong(format!(
                        "script {number} printed {got:?} in line {line}, and elsewhere {wanted:?}"
                    )));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_folders::TrialFolders;

    #[test]
    fn sdet_runs_compares_its_output_and_leaves_nothing() {
        let Some(trial) = TrialFolders::with(&TOOLS) else { return };
        let outcome = trial.run(&Sdet { scripts: 2, rounds: 1 }).unwrap();
        assert!(outcome.get("scripts").unwrap() > 0.0, "{outcome:?}");
    }

    #[test]
    fn a_script_with_different_output_is_an_error() {
        let said = |text: &str| vec!["same\n".to_owned(), text.to_owned()];
        compare(&said("one\ntwo\n"), &said("one\ntwo\n")).unwrap();
        let error = compare(&said("one\ntwo\n"), &said("one\n")).unwrap_err().to_string();
        assert!(error.contains("script 1 printed None in line 2"), "{error}");
        assert!(compare(&said("one\n"), &said("One\n")).is_err());
    }
}
