//! Runs fio from Debian, configured like three programs of the papers: Iometer, IOzone and vxbench (STICS, sections
//! 5.3.2 and 5.3.3). fio itself verifies the data.

use std::{ffi::OsString, fs, path::Path, process::Command, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    Error, Tool, Workload, WorkloadLocation, WorkloadResult, WorkloadRun,
    concurrent_runs::check_processes, owned_folder::OwnedFolder, run_program,
};

const TOOL: Tool = Tool { program: "fio", package: "fio" };
/// Time limit of each of the three calls of fio, in addition to the measured time. At 100 KB/s, the papers' data set of
/// 512 MB takes this long.
const LIMIT: Duration = Duration::from_secs(5400);

/// Settings of the workload fio. Each setting that is not given has the default of the shape.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
pub struct Fio {
    /// The program whose load fio imitates
    #[arg(long, value_enum, default_value_t = FioShape::Iometer)]
    pub shape: FioShape,
    /// Size of each read and write in KiB, 1 to 1024 [default: 8 for vxbench, else 4]
    #[arg(long)]
    pub block_kib: Option<u32>,
    /// Size of the data set in MiB, of all processes together
    #[arg(long, default_value_t = 512)]
    pub size_mib: u32,
    /// Percentage of reads [default: 67 for iometer, 0 for iozone, 50 for vxbench]
    #[arg(long, value_name = "PERCENT")]
    pub reads: Option<u8>,
    /// Read and write sequentially instead of in random order
    #[arg(long)]
    pub sequential: bool,
    /// Make each write stable before the next (O_SYNC) [default: true for iozone, else false]
    #[arg(long, value_name = "BOOL")]
    pub sync: Option<bool>,
    /// Bypass the page cache (O_DIRECT) [default: true for iometer, else false]
    #[arg(long, value_name = "BOOL")]
    pub direct: Option<bool>,
    /// Requests in flight in each process. More than one needs --direct true
    #[arg(long, default_value_t = 1)]
    pub depth: u32,
    /// Concurrent processes, each on its own part of the data set
    #[arg(long, default_value_t = 1)]
    pub processes: u32,
    /// Longest measurement in seconds. It ends earlier when every block was used once
    #[arg(long, default_value_t = 30)]
    pub seconds: u32,
}

/// The program of the papers whose load fio imitates.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum FioShape {
    /// Bypasses the page cache. By default with Iometer's access specification "Default": 67 %
    /// random reads.
    Iometer,
    /// Random reads or writes, synchronous.
    Iozone,
    /// Mixed reads and writes through the page cache.
    Vxbench,
}

impl Default for Fio {
    fn default() -> Self {
        Self {
            shape: FioShape::Iometer,
            block_kib: None,
            size_mib: 512,
            reads: None,
            sequential: false,
            sync: None,
            direct: None,
            depth: 1,
            processes: 1,
            seconds: 30,
        }
    }
}

impl Workload for Fio {
    fn needs(&self) -> Vec<Tool> {
        vec![TOOL]
    }

    fn check(&self) -> Result<(), Error> {
        check_processes("fio", self.processes)?;
        let wrong = Error::wrong_setting;
        match self {
            Self { block_kib: Some(0 | 1025..), .. } => wrong("blocks have 1 to 1024 KiB"),
            Self { reads: Some(101..), .. } => wrong("the share of reads is 0 to 100 %"),
            Self { depth: 0 | 257.., .. } => wrong("1 to 256 requests are in flight"),
            Self { seconds: 0 | 86_401.., .. } => wrong("fio runs for 1 s to a day"),
            Self { size_mib, processes, .. } if size_mib < processes => {
                wrong("each process has at least 1 MiB")
            }
            _ if self.depth > 1 && !self.direct() => {
                wrong("more than one request in flight needs direct I/O: --direct true")
            }
            _ => Ok(()),
        }
    }

    fn space(&self) -> u64 {
        u64::from(self.size_mib) << 20
    }

    fn run(&self, run: &WorkloadRun<'_>) -> Result<WorkloadResult, Error> {
        self.check()?;
        let (own, place) = match run.place {
            WorkloadLocation::Device(device) => (None, device.as_path()),
            WorkloadLocation::Folder(folder) => (
                Some(OwnedFolder::make(folder, "forebay-lab-fio", self.space())?),
                folder.as_path(),
            ),
            WorkloadLocation::Url(_) => {
                let (wanted, place) = ("a folder or a block device", run.place.to_string());
                return Err(Error::Place { workload: "fio", wanted, place });
            }
        };
        let place = own.as_ref().map_or(place, OwnedFolder::path);
        let calls = FioCalls { task: self, run, place, is_device: own.is_none() };
        let outcome = calls.all()?;
        own.map_or(Ok(()), OwnedFolder::remove)?;
        Ok(outcome)
    }
}

impl Fio {
    fn block_kib(&self) -> u32 {
        self.block_kib.unwrap_or(if self.shape == FioShape::Vxbench { 8 } else { 4 })
    }

    fn reads(&self) -> u8 {
        self.reads.unwrap_or(match self.shape {
            FioShape::Iometer => 67,
            FioShape::Iozone => 0,
            FioShape::Vxbench => 50,
        })
    }

    fn sync(&self) -> bool {
        self.sync.unwrap_or(self.shape == FioShape::Iozone)
    }

    fn direct(&self) -> bool {
        self.direct.unwrap_or(self.shape == FioShape::Iometer)
    }
}

/// The calls of fio in one run. The first writes the data that will be read, the second is measured, and the third
/// verifies the data.
struct FioCalls<'a> {
    task: &'a Fio,
    run: &'a WorkloadRun<'a>,
    place: &'a Path,
    is_device: bool,
}

impl FioCalls<'_> {
    fn all(&self) -> Result<WorkloadResult, Error> {
        let (reads, progress) = (self.task.reads(), self.run.progress);
        // If the measured call only writes, fill the set without fio's verification data. A lost write then leaves a
        // block without such data, and the verification fails.
        let fill = if reads == 0 { &[][..] } else { &VERIFY };
        self.call("fill", &[&["--rw=write", "--bs=1m", "--end_fsync=1", "--do_verify=0"], fill])?;
        progress(0.3);
        let before = Processors::now()?;
        let shape = self.shape();
        let shape: Vec<&str> = shape.iter().map(String::as_str).collect();
        let runtime = format!("--runtime={}", self.task.seconds);
        let measured = ["--do_verify=0", "--verify_state_save=1", "--end_fsync=1", &runtime];
        let report = self.call("measured", &[&shape, &VERIFY, &measured])?;
        let busy = Processors::now()?.share_since(before);
        progress(0.8);
        let verified = match reads {
            0 => {
                let again = ["--verify_only=1", "--verify_state_load=1"];
                self.call("compare", &[&shape, &VERIFY, &again])?;
                "every block that was written, by fio (crc32c)"
            }
            100 => "every block that was read, by fio (crc32c)",
            _ => {
                self.call("compare", &[&["--rw=read", "--bs=1m"], &VERIFY])?;
                "every block of the set after the run, by fio (crc32c and place, but not if it holds its last write)"
            }
        };
        let mut outcome = report.outcome()?;
        outcome.verified = verified.to_owned();
        let processes = f64::from(self.task.processes);
        let own = report.number(&["usr_cpu"])? + report.number(&["sys_cpu"])?;
        Ok(outcome.figure("processor time of fio", "% of one", own * processes).figure(
            "processor time of this host",
            "% of all",
            busy * 100.0,
        ))
    }

    /// Returns the options that describe the measured load.
    fn shape(&self) -> Vec<String> {
        let task = self.task;
        let random = if task.sequential { "" } else { "rand" };
        let kind = match (task.reads(), task.sequential) {
            (0, _) => "write",
            (100, _) => "read",
            _ => "rw",
        };
        vec![
            format!("--rw={random}{kind}"),
            format!("--rwmixread={}", task.reads()),
            format!("--bs={}k", task.block_kib()),
            format!("--sync={}", u8::from(task.sync())),
            format!("--direct={}", u8::from(task.direct())),
            format!("--ioengine={}", if task.depth > 1 { "libaio" } else { "psync" }),
            format!("--iodepth={}", task.depth),
        ]
    }

    /// Runs fio once, and returns its JSON report.
    fn call(&self, name: &str, arguments: &[&[&str]]) -> Result<FioReport, Error> {
        let task = self.task;
        let said = self.run.scratch.join(format!("fio-{name}.json"));
        let mut command = Command::new(TOOL.find()?);
        // Use the same job name in all calls: fio derives from it the names of its files and of its
        // saved state.
        command.args(["--name=set", "--output-format=json", "--thread", "--group_reporting"]);
        command.arg(option("output", &said)).arg(option("aux-path", self.run.scratch));
        let each = task.size_mib / task.processes;
        command.arg(format!("--size={each}m")).arg(format!("--numjobs={}", task.processes));
        command.arg(format!("--randseed={}", self.run.seed));
        command.arg(format!("--verify_interval={}k", task.block_kib()));
        if self.is_device {
            command.arg(place("filename", self.place));
            command.arg(format!("--offset_increment={each}m"));
        } else {
            command.arg(place("directory", self.place));
        }
        command.args(arguments.concat());
        let ran = run_program::run(&mut command, LIMIT + Duration::from_secs(task.seconds.into()));
        match ran {
            Err(Error::Program { said, .. }) if said.contains("verify:") => Err(Error::Wrong(said)),
            ran => ran.map(drop),
        }?;
        let json = fs::read(&said).map_err(Error::system("read the report of fio"))?;
        let json = serde_json::from_slice(&json).map_err(|error| unreadable(error.to_string()))?;
        Ok(FioReport(json))
    }
}

/// Options with which each block contains its position and a checksum. The first wrong block ends
/// the run.
const VERIFY: [&str; 2] = ["--verify=crc32c", "--verify_fatal=1"];

/// Returns an option whose value is a path.
fn option(option: &str, path: &Path) -> OsString {
    let mut text = OsString::from(format!("--{option}="));
    text.push(path);
    text
}

/// Escapes a path for an option that takes several paths, which fio separates by colons.
fn place(name: &str, path: &Path) -> OsString {
    option(name, Path::new(&path.display().to_string().replace(':', "\\:")))
}

/// The JSON report of one run of fio, with the sums over all its processes.
struct FioReport(serde_json::Value);

impl FioReport {
    fn number(&self, path: &[&str]) -> Result<f64, Error> {
        let job = &self.0["jobs"][0];
        let value = path.iter().fold(job, |value, name| &value[name]);
        value.as_f64().ok_or_else(|| unreadable(format!("there is no {}", path.join("."))))
    }

    fn outcome(&self) -> Result<WorkloadResult, Error> {
        let kinds = ["read", "write"];
        let sum = |name| {
            let [read, write] = kinds.map(|kind| self.number(&[kind, name]));
            Ok::<_, Error>([read?, write?])
        };
        let (bytes, operations, ms) = (sum("io_bytes")?, sum("total_ios")?, sum("runtime")?);
        // Reads and writes run for the same time, for which fio reports at least a millisecond.
        let seconds = ms[0].max(ms[1]).max(1.0) / 1e3;
        let mut outcome = WorkloadResult::default()
            .figure("throughput", "KiB/s", (bytes[0] + bytes[1]) / 1024.0 / seconds)
            .figure("operations", "1/s", (operations[0] + operations[1]) / seconds)
            .figure("time", "s", seconds);
        for (kind, _) in kinds.iter().zip(operations).filter(|(_, operations)| *operations > 0.0) {
            let mean = self.number(&[kind, "lat_ns", "mean"])?;
            let most = self.number(&[kind, "clat_ns", "percentile", "99.000000"])?;
            outcome = outcome.figure(&format!("{kind} response time"), "us", mean / 1e3).figure(
                &format!("{kind} response time, 99 %"),
                "us",
                most / 1e3,
            );
        }
        Ok(outcome)
    }
}

fn unreadable(what: String) -> Error {
    Error::Unreadable { program: TOOL.program.to_owned(), what }
}

/// CPU time of all processors of this machine together, in clock ticks.
#[derive(Clone, Copy)]
struct Processors {
    busy: f64,
    all: f64,
}

impl Processors {
    fn now() -> Result<Self, Error> {
        let text = fs::read_to_string("/proc/stat").map_err(Error::system("read /proc/stat"))?;
        Self::read(&text).ok_or_else(|| Error::Unreadable {
            program: "the kernel".to_owned(),
            what: "the first line of /proc/stat".to_owned(),
        })
    }

    /// Parses the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal
    /// (proc(5)).
    fn read(text: &str) -> Option<Self> {
        let ticks = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let ticks: Vec<f64> = ticks.take(8).map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let all = ticks.iter().sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Self { busy: all - idle, all })
    }

    fn share_since(self, before: Self) -> f64 {
        (self.busy - before.busy) / (self.all - before.all).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_folders::TrialFolders;

    #[test]
    fn the_share_of_time_that_processors_work() {
        let before = Processors::read("cpu  10 0 10 70 10 0 0 0 5 5\ncpu0 1\n").unwrap();
        let after = Processors::read("cpu  30 0 20 120 20 5 5 0 9 9\n").unwrap();
        assert!((after.share_since(before) - 0.4).abs() < 1e-9);
        assert!(Processors::read("intr 5").is_none());
    }

    fn small(shape: FioShape) -> Fio {
        Fio { shape, size_mib: 4, seconds: 1, direct: Some(false), ..Fio::default() }
    }

    #[test]
    fn every_shape_of_fio_runs_and_leaves_nothing() {
        for task in [
            small(FioShape::Iometer),
            small(FioShape::Iozone),
            Fio { reads: Some(100), ..small(FioShape::Iozone) },
            Fio { processes: 2, sequential: true, ..small(FioShape::Vxbench) },
        ] {
            let Some(trial) = TrialFolders::with(&[TOOL]) else { return };
            let outcome = trial.run(&task).unwrap();
            assert!(outcome.get("throughput").unwrap() > 0.0, "{outcome:?}");
            let has = |kind: &str| outcome.get(&format!("{kind} response time, 99 %")).is_some();
            assert_eq!((has("read"), has("write")), (task.reads() > 0, task.reads() < 100));
        }
    }

    /// The test overwrites the file with zeros after the measured writes, as if the writes had been
    /// lost.
    #[test]
    fn a_lost_write_is_found() {
        let Some(trial) = TrialFolders::with(&[TOOL]) else { return };
        let task = small(FioShape::Iozone);
        trial.given(|run| {
            let calls = FioCalls { task: &task, run, place: trial.folder(), is_device: false };
            let shape = calls.shape();
            let shape: Vec<&str> = shape.iter().map(String::as_str).collect();
            let measured = ["--do_verify=0", "--verify_state_save=1", "--number_ios=100"];
            calls.call("measured", &[&shape, &VERIFY, &measured]).unwrap();
            let again = ["--verify_only=1", "--verify_state_load=1"];
            fs::write(trial.folder().join("set.0.0"), vec![0; 4 << 20]).unwrap();
            let error = calls.call("compare", &[&shape, &VERIFY, &again]).err().unwrap();
            assert!(matches!(error, Error::Wrong(_)), "{error}");
        });
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        for task in [
            Fio { block_kib: Some(0), ..Fio::default() },
            Fio { reads: Some(101), ..Fio::default() },
            Fio { depth: 2, ..small(FioShape::Vxbench) },
            Fio { processes: 5, ..small(FioShape::Iozone) },
            Fio { seconds: 0, ..Fio::default() },
        ] {
            assert!(matches!(task.check(), Err(Error::Settings(_))), "{task:?}");
        }
    }
}
