//! Runs PostMark from Debian. It simulates mail and news servers with many small files (Katcher,
//! TR3022).

use std::{fs, path::Path, process::Command, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    Error, Tool, Workload, WorkloadResult, WorkloadRun,
    concurrent_runs::{at_once, check_processes},
    owned_folder::OwnedFolder,
    run_program,
    witness_files::WitnessFiles,
};

const TOOL: Tool = Tool { program: "postmark", package: "postmark" };
/// Time limit of one run. The papers' longest runs took hours on their remote disks; ours are
/// scaled to minutes.
const LIMIT: Duration = Duration::from_secs(3 * 3600);

/// Settings of the workload PostMark. The defaults are PostMark's, except for the block size.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
pub struct Postmark {
    /// Number of files in each process
    #[arg(long, default_value_t = 500)]
    pub files: u32,
    /// Transactions of each process
    #[arg(long, default_value_t = 500)]
    pub transactions: u32,
    /// Bytes of the smallest file
    #[arg(long, default_value_t = 500)]
    pub least: u32,
    /// Bytes of the largest file
    #[arg(long, default_value_t = 9770)]
    pub most: u32,
    /// Bytes of each read and write
    #[arg(long, default_value_t = 4096)]
    pub block: u32,
    /// Concurrent processes, each with its own files
    #[arg(long, default_value_t = 1)]
    pub processes: u32,
}

impl Default for Postmark {
    fn default() -> Self {
        Self { files: 500, transactions: 500, least: 500, most: 9770, block: 4096, processes: 1 }
    }
}

/// The duration of one PostMark process, and the data that it has transferred.
#[derive(Clone, Copy, Debug)]
pub struct PostmarkRun {
    /// The time from the start of the process to its exit.
    pub took: Duration,
    /// Bytes read and bytes written. PostMark prints both with three digits only.
    pub moved: [f64; 2],
}

impl Workload for Postmark {
    fn needs(&self) -> Vec<Tool> {
        vec![TOOL]
    }

    fn check(&self) -> Result<(), Error> {
        check_processes("PostMark", self.processes)?;
        let wrong = Error::wrong_setting;
        match self {
            Self { files: 0, .. } | Self { block: 0, .. } => {
                wrong("PostMark needs files, and blocks of some bytes")
            }
            Self { least, most, .. } if least > most => {
                wrong("the smallest file is larger than the largest")
            }
            _ => Ok(()),
        }
    }

    fn space(&self) -> u64 {
        // Bytes per file: twice the largest size, because PostMark appends to files. The number of files stays about
        // constant, since PostMark creates and deletes files equally often.
        let each = u64::from(self.files).saturating_mul(u64::from(self.most) * 2);
        each.saturating_mul(self.processes.into()).saturating_add(WitnessFiles::SPACE)
    }

    fn run(&self, run: &WorkloadRun<'_>) -> Result<WorkloadResult, Error> {
        let folder = run.folder("postmark")?;
        self.check()?;
        let witness = WitnessFiles::write(folder, run.seed)?;
        let all = OwnedFolder::make(folder, "forebay-lab-postmark", self.space())?;
        let one = |process: u32| -> Result<PostmarkRun, Error> {
            let own = all.path().join(process.to_string());
            fs::create_dir(&own).map_err(Error::system(format!("make {}", own.display())))?;
            let script = run.scratch.join(format!("postmark-{process}"));
            let seed = run.seed.wrapping_add(process.into()) % (1 << 31);
            let done = self.run_once(&own, &script, seed, LIMIT)?;
            // This fails if a file is left in the folder: PostMark must delete every file that it
            // has created.
            fs::remove_dir(&own).map_err(Error::system("remove PostMark's folder"))?;
            Ok(done)
        };
        let runs = at_once(self.processes, one)?;
        let moved = [0, 1].map(|way| runs.iter().map(|run| run.moved[way]).sum::<f64>());
        all.remove()?;
        witness.compare()?;
        let longest = runs.iter().map(|run| run.took.as_secs_f64()).fold(0.0, f64::max);
        let transactions = f64::from(self.transactions) * f64::from(self.processes);
        Ok(WorkloadResult {
            verified: format!(
                "that each file existed until it was deleted, but not its content; {}",
                WitnessFiles::VERIFIED
            ),
            ..WorkloadResult::default()
        }
        .figure("transactions", "1/s", transactions / longest)
        .figure("time", "s", longest)
        .figure("read", "MB/s", moved[0] / longest / 1e6)
        .figure("written", "MB/s", moved[1] / longest / 1e6))
    }
}

impl Postmark {
    /// Runs one process of PostMark, independently of [`Postmark::processes`]. PostMark creates its
    /// files in `folder` and deletes them again. `script` is the file to which its commands are
    /// written. `seed` is the seed of its random numbers and must be below 2^31; the program's own
    /// default is 42.
    ///
    /// # Errors
    /// [`Error::Missing`]; [`Error::Program`] or [`Error::Unreadable`] if PostMark fails;
    /// [`Error::Late`] after `limit`.
    pub fn run_once(
        &self,
        folder: &Path,
        script: &Path,
        seed: u64,
        limit: Duration,
    ) -> Result<PostmarkRun, Error> {
        let tool = TOOL.find()?;
        fs::write(script, self.script(folder, seed)).map_err(Error::system("write a script"))?;
        let (said, took) = run_program::run(Command::new(&tool).arg(script), limit)?;
        let moved = data(&said).ok_or_else(|| Error::Unreadable {
            program: TOOL.program.to_owned(),
            what: run_program::tail(&said),
        })?;
        Ok(PostmarkRun { took, moved })
    }

    fn script(&self, folder: &Path, seed: u64) -> String {
        let Self { files, transactions, least, most, block, .. } = self;
        let place = folder.display();
        format!(
            "set location {place}\nset number {files}\nset transactions {transactions}\nset size {least} {most}\n\
             set read {block}\nset write {block}\nset seed {seed}\nset report verbose\nrun\nquit\n"
        )
    }
}

/// Parses PostMark's verbose report: bytes read and bytes written. Returns `None` if the output is
/// no report or contains an error.
fn data(said: &str) -> Option<[f64; 2]> {
    if said.contains("Error") {
        return None;
    }
    let of = |what: &str| {
        let line = said.lines().find(|line| line.contains(what))?;
        let mut words = line.split_whitespace();
        let (number, unit) = (words.next()?.parse::<f64>().ok()?, words.next()?);
        let scale = match unit {
            "bytes" => 1.0,
            "kilobytes" => 1024.0,
            "megabytes" => 1024.0 * 1024.0,
            _ => return None,
        };
        Some(number * scale)
    };
    Some([of("bytes read (")?, of("bytes written (")?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_folders::TrialFolders;

    #[test]
    fn a_report_is_read() {
        let said = "\t250.90 kilobytes read (250.90 kilobytes per second)\n\
                    \t2.00 megabytes written (598.76 kilobytes per second)\n";
        assert_eq!(data(said), Some([250.9 * 1024.0, 2.0 * 1024.0 * 1024.0]));
        assert_eq!(data("Error: cannot open"), None);
    }

    #[test]
    fn postmark_runs_and_leaves_nothing() {
        let Some(trial) = TrialFolders::with(&[TOOL]) else { return };
        let task = Postmark { files: 20, transactions: 50, processes: 2, ..Postmark::default() };
        let outcome = trial.run(&task).unwrap();
        assert!(outcome.get("transactions").unwrap() > 0.0, "{outcome:?}");
    }
}
