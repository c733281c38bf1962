//! Runs Bonnie++ from Debian in its fast mode: it writes, rewrites and reads a large file in blocks, then seeks in the
//! file (Coker; the Fair-TCP paper, section 4.3).

use std::{path::Path, process::Command, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    Error, Tool, Workload, WorkloadResult, WorkloadRun,
    concurrent_runs::{at_once, check_processes},
    owned_folder::OwnedFolder,
    run_program,
    witness_files::WitnessFiles,
};

const TOOL: Tool = Tool { program: "bonnie++", package: "bonnie++" };
/// Time limit of a run. With the paper's slowest rewrites, 279 KB/s, a gigabyte takes an hour.
const LIMIT: Duration = Duration::from_secs(3 * 3600);
/// Time limit of a call of Bonnie++ that only makes or removes semaphores.
const AT_ONCE: Duration = Duration::from_secs(20);

/// Settings of the workload Bonnie++; the defaults are the paper's.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
pub struct Bonnie {
    /// Size of the file of each process in MiB. More than twice this machine's memory leaves
    /// nothing of the file in the page cache
    #[arg(long, default_value_t = 1024)]
    pub file_mib: u32,
    /// Memory size that Bonnie++ assumes for this machine, in MiB: it refuses files that are not
    /// twice as large. 0 allows any file
    #[arg(long, default_value_t = 0)]
    pub ram_mib: u32,
    /// Bytes of each read and write: a power of two, 256 to 1048576
    #[arg(long, default_value_t = 1024)]
    pub block: u32,
    /// Seeks of each process
    #[arg(long, default_value_t = 8192)]
    pub seeks: u32,
    /// Concurrent seeking processes, in each process
    #[arg(long, default_value_t = 3)]
    pub seekers: u32,
    /// Concurrent processes, each with its own file. They begin each test together
    #[arg(long, default_value_t = 1)]
    pub processes: u32,
}

impl Default for Bonnie {
    fn default() -> Self {
        let (file_mib, ram_mib, block) = (1024, 0, 1024);
        Self { file_mib, ram_mib, block, seeks: 8192, seekers: 3, processes: 1 }
    }
}

impl Workload for Bonnie {
    fn needs(&self) -> Vec<Tool> {
        vec![TOOL]
    }

    fn check(&self) -> Result<(), Error> {
        check_processes("Bonnie++", self.processes)?;
        let wrong = Error::wrong_setting;
        match self {
            Self { file_mib: 0, .. } => wrong("Bonnie++ needs a file of some MiB"),
            Self { block, .. } if !block.is_power_of_two() || !(256..=1 << 20).contains(block) => {
                wrong("Bonnie++ takes blocks of 256 to 1048576 bytes, powers of two")
            }
            Self { seeks: 0, .. } | Self { seekers: 0 | 65.., .. } => {
                wrong("Bonnie++ needs seeks, and 1 to 64 processes that do them")
            }
            _ => Ok(()),
        }
    }

    fn space(&self) -> u64 {
        let files = (u64::from(self.file_mib) << 20).saturating_mul(self.processes.into());
        files.saturating_add(WitnessFiles::SPACE)
    }

    fn run(&self, run: &WorkloadRun<'_>) -> Result<WorkloadResult, Error> {
        let folder = run.folder("bonnie")?;
        self.check()?;
        let witness = WitnessFiles::write(folder, run.seed)?;
        let all = OwnedFolder::make(folder, "forebay-lab-bonnie", self.space())?;
        let together = (self.processes > 1).then(|| Together::make(self.processes)).transpose()?;
        let one = |process: u32| {
            let own = OwnedFolder::make(all.path(), &process.to_string(), 0)?;
            let ran = self.process(own.path(), run.seed, together.is_some());
            if let (Err(_), Some(together)) = (&ran, &together) {
                // One process of Bonnie++ has failed. Remove the semaphores, or the other processes would wait for this
                // one.
                together.remove();
            }
            ran
        };
        let tables = at_once(self.processes, one)?;
        drop(together);
        all.remove()?;
        witness.compare()?;
        let verified = format!("no data that Bonnie++ itself reads; {}", WitnessFiles::VERIFIED);
        outcome(&tables, WorkloadResult { verified, ..WorkloadResult::default() })
    }
}

impl Bonnie {
    /// Runs one process of bonnie++ until it ends, and returns the values in its line of output.
    fn process(&self, folder: &Path, seed: u64, together: bool) -> Result<BonnieResults, Error> {
        let Self { file_mib, ram_mib, block, seeks, seekers, .. } = self;
        let mut command = bonnie()?;
        command.arg("-d").arg(folder).args(["-f", "-q", "-n", "0", "-m", NAME]);
        command.arg("-s").arg(format!("{file_mib}:{block}:{seeks}:{seekers}"));
        command.arg("-r").arg(ram_mib.to_string()).arg("-z").arg((seed % (1 << 31)).to_string());
        if together {
            command.arg("-ys");
        }
        let (said, _) = run_program::run(&mut command, LIMIT)?;
        BonnieResults::read(&said).ok_or_else(|| unreadable(run_program::tail(&said)))
    }
}

/// The semaphores with which Bonnie++'s processes begin each test at the same time. A host has one set of them: if
/// another run uses it, Bonnie++ reports that.
struct Together;

impl Together {
    fn make(processes: u32) -> Result<Self, Error> {
        run_program::run(bonnie()?.args(["-p", &processes.to_string()]), AT_ONCE)?;
        Ok(Self)
    }

    fn remove(&self) {
        let _ =
            bonnie().and_then(|mut command| run_program::run(command.args(["-p", "-1"]), AT_ONCE));
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Returns a command that runs `bonnie++`; if the caller is root, with the option `-u`, which bonnie++ then requires.
fn bonnie() -> Result<Command, Error> {
    let mut command = Command::new(TOOL.find()?);
    if rustix::process::geteuid().is_root() {
        command.args(["-u", "0:0"]);
    }
    Ok(command)
}

/// The version of the output format that this module reads: the first field of the line of values.
const FORMAT: &str = "1.98";
/// The host name that is passed on the command line. Bonnie++ prints it in the line of values.
const NAME: &str = "forebay";
/// The reported values: name, unit, and position in the line.
const VALUES: [(&str, &str, usize); 4] = [
    ("rewrite", "KiB/s", 13),
    ("seeks", "1/s", 19),
    ("block write", "KiB/s", 11),
    ("block read", "KiB/s", 17),
];

/// The values of one process in the order of [`VALUES`]; `None` for a test that was too short to
/// measure.
struct BonnieResults([Option<f64>; 4]);

impl BonnieResults {
    fn read(said: &str) -> Option<Self> {
        let lines = said.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let mut ours = lines.filter(|line| line.len() > 20 && line[0] == FORMAT && line[2] == NAME);
        let line = ours.next()?;
        // Bonnie++ prints "+++++" for a test of less than half a second. Any other text means that the format is
        // unknown.
        let is_known = |text: &str| text.starts_with('+') || text.parse::<f64>().is_ok();
        let known = VALUES.iter().all(|(.., at)| is_known(line[*at]));
        known.then(|| Self(VALUES.map(|(.., at)| line[at].parse().ok())))
    }
}

/// Adds to `outcome` the sum of each value over all processes. A value is left out if a process did not measure it.
fn outcome(tables: &[BonnieResults], mut outcome: WorkloadResult) -> Result<WorkloadResult, Error> {
    for (number, (name, unit, _)) in VALUES.into_iter().enumerate() {
        let sum: Option<f64> = tables.iter().map(|table| table.0[number]).sum();
        if let Some(sum) = sum {
            outcome = outcome.figure(name, unit, sum);
        }
    }
    if outcome.figures.is_empty() {
        let what = "every test took less than half a second, for which Bonnie++ reports no number: use a larger file";
        return Err(unreadable(what.to_owned()));
    }
    Ok(outcome)
}

fn unreadable(what: String) -> Error {
    Error::Unreadable { program: TOOL.program.to_owned(), what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_folders::TrialFolders;

    #[test]
    fn a_line_of_values_is_read() {
        let said = "Using uid:0, gid:0.\n1.98,2.00a,forebay,1,7,512M,,1000,3,,,190865,62,422988,78,,,\
                    +++++,+++,93.9,+++,,,,,,,,,,,,,,,,,,,19075us,8454us,,11168us,46us,,,,,,\n";
        let table = BonnieResults::read(said).unwrap();
        assert_eq!(table.0, [Some(422_988.0), Some(93.9), Some(190_865.0), None]);
        let both = outcome(&[table, BonnieResults::read(said).unwrap()], WorkloadResult::default())
            .unwrap();
        assert_eq!(both.get("seeks"), Some(187.8));
        assert_eq!(both.get("block read"), None);
        assert!(BonnieResults::read(&said.replace("1.98", "1.99")).is_none());
        assert!(BonnieResults::read(&said.replace("93.9", "x")).is_none());
        assert!(BonnieResults::read("Can't open file").is_none());
    }

    #[test]
    fn one_or_several_processes_run_and_leave_nothing() {
        let Some(trial) = TrialFolders::with(&[TOOL]) else { return };
        for processes in [1, 2] {
            // With so small a file, most machines run the tests of Bonnie++ too fast to measure a value.
            let task = Bonnie { file_mib: 16, seeks: 500, processes, ..Bonnie::default() };
            match trial.run(&task) {
                Ok(outcome) => assert!(outcome.figures[0].value > 0.0),
                Err(Error::Unreadable { what, .. }) => {
                    assert!(what.contains("half a second"), "{what}");
                }
                Err(error) => panic!("{error}"),
            }
        }
        // The file is smaller than twice the assumed memory, so Bonnie++ refuses to start. No process may wait
        // forever for one that did not start.
        let task = Bonnie { file_mib: 16, ram_mib: 64, processes: 2, ..Bonnie::default() };
        let error = trial.run(&task).unwrap_err();
        assert!(matches!(error, Error::Program { .. }), "{error}");
    }
}
