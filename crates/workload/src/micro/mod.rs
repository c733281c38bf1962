//! The microbenchmarks of the paper on storage outsourcing (section 4.1, Table 1): reads or writes
//! of one size, one at a time on one thread.

mod sector_pattern;
mod block_store;
mod working_set;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use sim::Rng;

use self::{
    block_store::{Aligned, MicroStore},
    working_set::{Set, version_of},
};
use crate::{Error, Tool, Workload, WorkloadLocation, WorkloadResult, WorkloadRun};

/// The name of the file with the working set, if the workload runs in a folder.
const FILE: &str = "forebay-lab-micro";
/// Number of blocks that are read back after writes. With a round trip of 16 ms this takes four
/// seconds.
const SAMPLE: usize = 256;
/// Upper bound of a measurement in seconds: a day. No point of an experiment takes as long.
const MOST_SECONDS: u32 = 86_400;

/// Settings of the microbenchmark. The defaults are those of the paper's Table 1, except for the working set, which
/// should be several times larger than the caches of the storage.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
pub struct Micro {
    /// Kind of requests: reads or writes
    #[arg(long, value_enum, default_value_t = MicroAccess::Read)]
    pub access: MicroAccess,
    /// Order of the requests
    #[arg(long, value_enum, default_value_t = MicroAccessPattern::Random)]
    pub pattern: MicroAccessPattern,
    /// Size of each read or write in KiB: 1, 2, 4, 8, 16, 32 or 64
    #[arg(long, default_value_t = 8)]
    pub block_kib: u32,
    /// Size of the working set in MiB
    #[arg(long, default_value_t = 64)]
    pub set_mib: u32,
    /// Length of the measurement in seconds
    #[arg(long, default_value_t = 10)]
    pub seconds: u32,
    /// Number of requests to measure, instead of a time
    #[arg(long)]
    pub count: Option<u32>,
    /// Length of the warm-up in seconds, with the same requests
    #[arg(long, default_value_t = 1)]
    pub warm_up_seconds: u32,
    /// Make each write stable before the next
    #[arg(long)]
    pub stable: bool,
    /// Leave the working set in the folder for the next run. On a device it always stays
    #[arg(long)]
    pub keep: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum MicroAccess {
    /// Reads of existing blocks.
    Read,
    /// Writes to existing blocks.
    Write,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum MicroAccessPattern {
    /// A random block of the working set.
    Random,
    /// The next block; after the end of the working set, the first one.
    Sequential,
    /// Always the same block of the working set.
    Identical,
}

impl Default for Micro {
    fn default() -> Self {
        Self {
            access: MicroAccess::Read,
            pattern: MicroAccessPattern::Random,
            block_kib: 8,
            set_mib: 64,
            seconds: 10,
            count: None,
            warm_up_seconds: 1,
            stable: false,
            keep: false,
        }
    }
}

impl Workload for Micro {
    fn needs(&self) -> Vec<Tool> {
        Vec::new()
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = Error::wrong_setting;
        match self {
            Self { block_kib, .. } if !block_kib.is_power_of_two() || *block_kib > 64 => {
                wrong("blocks have 1, 2, 4, 8, 16, 32 or 64 KiB")
            }
            Self { set_mib: 0, .. } => wrong("the working set has at least 1 MiB"),
            Self { count: None, seconds: 0, .. } | Self { count: Some(0), .. } => {
                wrong("a run measures at least a second or a request")
            }
            Self { seconds, warm_up_seconds, .. }
                if *seconds > MOST_SECONDS || *warm_up_seconds > MOST_SECONDS =>
            {
                wrong("measurement and warm-up take at most a day")
            }
            _ => Ok(()),
        }
    }

    fn space(&self) -> u64 {
        Set::takes(self.set_bytes())
    }

    fn left_behind(&self, place: &WorkloadLocation) -> u64 {
        match place {
            WorkloadLocation::Folder(folder) => {
                fs::metadata(folder.join(FILE)).map_or(0, |file| file.len())
            }
            _ => 0,
        }
    }

    fn run(&self, run: &WorkloadRun<'_>) -> Result<WorkloadResult, Error> {
        self.check()?;
        let store = self.open(run)?;
        let _removed = match run.place {
            WorkloadLocation::Folder(folder) if !self.keep => Some(Removed(folder.join(FILE))),
            _ => None,
        };
        // Filling the working set counts as half of the progress: if the set must be filled, this takes longer than
        // everything else.
        let set =
            Set::open(&store, self.set_bytes(), run.seed, &|share| (run.progress)(share / 2.0))?;
        let mut measured = Measuring::new(self, set, run.seed)?;
        measured.go(Duration::from_secs(self.warm_up_seconds.into()), None, &|_| ())?;
        measured.forget();
        let limit = match self.count {
            Some(_) => Duration::MAX,
            None => Duration::from_secs(self.seconds.into()),
        };
        measured.go(limit, self.count, &|share| (run.progress)(0.5 + share / 2.0))?;
        store.flush()?;
        let verified = measured.read_back()?;
        Ok(measured.outcome(verified, store.is_direct()))
    }
}

impl Micro {
    fn set_bytes(&self) -> u64 {
        u64::from(self.set_mib) << 20
    }

    fn open(&self, run: &WorkloadRun<'_>) -> Result<MicroStore, Error> {
        match run.place {
            WorkloadLocation::Folder(_) => {
                let store = MicroStore::file(run.folder("micro")?.join(FILE), self.stable)?;
                Set::refuse_others(&store)?;
                Ok(store)
            }
            WorkloadLocation::Device(path) => MicroStore::device(path, self.stable),
            WorkloadLocation::Url(url) => {
                let store = MicroStore::remote(url, self.stable)?;
                match store.bytes() {
                    Some(free) if free < self.space() => {
                        Err(Error::Space { needed: self.space(), free })
                    }
                    _ => Ok(store),
                }
            }
        }
    }
}

/// Deletes this file when it is dropped.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = fs::remove_file(AsRef::<Path>::as_ref(&self.0));
    }
}

/// The state of a run: its settings, the blocks that it uses, and the times that it has measured.
struct Measuring<'a> {
    task: &'a Micro,
    set: Set<'a>,
    buffer: Aligned,
    rng: Rng,
    /// The number of the next block for sequential requests.
    next: u64,
    /// Two numbers that make the version of each write: the number of this run among the runs that have written to the
    /// working set, and the number of this run's last write.
    writes: [u32; 2],
    /// For each block, the version of the data that this run has written last.
    written: BTreeMap<u64, u64>,
    /// Response times of the measured requests, in nanoseconds.
    times: Histogram<u64>,
    total: Duration,
}

impl<'a> Measuring<'a> {
    fn new(task: &'a Micro, mut set: Set<'a>, seed: u64) -> Result<Self, Error> {
        let number = match task.access {
            MicroAccess::Read => 0,
            MicroAccess::Write => set.begin_writing()?,
        };
        Ok(Self {
            task,
            set,
            buffer: Aligned::zeros(task.block_kib as usize * 1024),
            rng: Rng::new(seed),
            next: 0,
            writes: [number, 0],
            written: BTreeMap::new(),
            times: Histogram::new_with_bounds(1, LONGEST_NANOS, 3).expect("bounds in order"),
            total: Duration::ZERO,
        })
    }

    /// Performs requests until the time `limit` is over, or `count` requests are done if that is a number.
    fn go(
        &mut self,
        limit: Duration,
        count: Option<u32>,
        progress: &dyn Fn(f64),
    ) -> Result<(), Error> {
        let begun = Instant::now();
        let mut done = 0;
        while begun.elapsed() < limit && count.is_none_or(|count| done < count) {
            self.one()?;
            done += 1;
            if done % TOLD_EVERY == 0 {
                progress(match count {
                    Some(count) => f64::from(done) / f64::from(count),
                    None => begun.elapsed().as_secs_f64() / limit.as_secs_f64(),
                });
            }
        }
        Ok(())
    }

    /// Performs one request. Only the access to the storage is timed; making and comparing the data is not.
    fn one(&mut self) -> Result<(), Error> {
        let at = self.place();
        let took = match self.task.access {
            MicroAccess::Read => {
                let begun = Instant::now();
                self.set.read(at, &mut self.buffer)?;
                let took = begun.elapsed();
                self.set.check(at, &self.buffer, None)?;
                took
            }
            MicroAccess::Write => {
                let [run, write] = &mut self.writes;
                *write = write.checked_add(1).ok_or_else(|| {
                    Error::Settings(
                        "too many writes to count: choose a shorter measurement".to_owned(),
                    )
                })?;
                let version = version_of(*run, *write);
                self.set.content(at, version, &mut self.buffer);
                let begun = Instant::now();
                self.set.write(at, &self.buffer)?;
                let took = begun.elapsed();
                self.written.insert(at, version);
                took
            }
        };
        self.times.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        self.total += took;
        Ok(())
    }

    /// Returns the offset of the block for the next request, in bytes from the start of the set.
    fn place(&mut self) -> u64 {
        let block = self.buffer.len() as u64;
        let blocks = self.task.set_bytes() / block;
        let number = match self.task.pattern {
            MicroAccessPattern::Random => self.rng.below(blocks),
            MicroAccessPattern::Sequential => {
                let number = self.next;
                self.next = (number + 1) % blocks;
                number
            }
            MicroAccessPattern::Identical => 0,
        };
        number * block
    }

    /// Discards the results of the warm-up.
    fn forget(&mut self) {
        self.times.reset();
        self.total = Duration::ZERO;
    }

    /// Reads a sample of the written blocks and compares them. Returns a text for the report that states how many
    /// blocks were verified.
    fn read_back(&mut self) -> Result<String, Error> {
        if self.task.access == MicroAccess::Read {
            return Ok("every block that was read: its place, and all of its content".to_owned());
        }
        // Always include the block that was written last.
        let last = self.written.iter().max_by_key(|(_, version)| **version);
        let last = last.map(|(at, version)| (*at, *version));
        let every = self.written.len().div_ceil(SAMPLE).max(1);
        let some = self.written.iter().step_by(every).map(|(at, version)| (*at, *version));
        let sample: BTreeMap<u64, u64> = some.chain(last).collect();
        for (at, version) in &sample {
            self.set.read(*at, &mut self.buffer)?;
            self.set.check(*at, &self.buffer, Some(*version))?;
        }
        let (compared, all) = (sample.len(), self.written.len());
        Ok(format!("{compared} of the {all} blocks that were written: each held its last write"))
    }

    fn outcome(&self, verified: String, direct: bool) -> WorkloadResult {
        let count = self.times.len();
        let mean = self.total.as_secs_f64() / count.max(1) as f64;
        let us = |nanos: u64| nanos as f64 / 1e3;
        let kib = f64::from(self.task.block_kib);
        WorkloadResult { verified, ..WorkloadResult::default() }
            .figure("throughput", "MB/s of 1000 KiB", kib / 1000.0 / mean)
            .figure("response time", "us", mean * 1e6)
            .figure("response time, median", "us", us(self.times.value_at_quantile(0.5)))
            .figure("response time, 99 %", "us", us(self.times.value_at_quantile(0.99)))
            .figure("response time, longest", "us", us(self.times.max()))
            .figure("operations", "", count as f64)
            .figure("past the page cache", "", f64::from(u8::from(direct)))
    }
}

/// Upper bound of the histogram in nanoseconds: a longer response time is recorded as an hour.
const LONGEST_NANOS: u64 = 3_600_000_000_000;

/// Progress is reported once per this number of requests. This is often enough for requests of 20 ms, and too rare to
/// affect the results.
const TOLD_EVERY: u32 = 16;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn small(access: MicroAccess, pattern: MicroAccessPattern) -> Micro {
        let count = Some(300);
        Micro { access, pattern, set_mib: 1, count, warm_up_seconds: 0, ..Micro::default() }
    }

    fn run(folder: &Path, task: &Micro, seed: u64) -> Result<WorkloadResult, Error> {
        let place = WorkloadLocation::Folder(folder.to_owned());
        task.run(&WorkloadRun { place: &place, scratch: folder, seed, progress: &|_| () })
    }

    #[test]
    fn every_pattern_is_measured_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        for access in [MicroAccess::Read, MicroAccess::Write] {
            for pattern in [
                MicroAccessPattern::Random,
                MicroAccessPattern::Sequential,
                MicroAccessPattern::Identical,
            ] {
                for block_kib in [4, 64] {
                    let task = Micro { block_kib, ..small(access, pattern) };
                    let outcome = run(folder.path(), &task, 1).unwrap();
                    assert_eq!(outcome.get("operations"), Some(300.0));
                    let ms = outcome.get("response time").unwrap() / 1e3;
                    let [median, longest] = ["median", "longest"]
                        .map(|of| outcome.get(&format!("response time, {of}")).unwrap() / 1e3);
                    assert!(median > 0.0 && median <= longest && ms <= longest, "{outcome:?}");
                    let expected = f64::from(block_kib) / ms;
                    let throughput = outcome.get("throughput").unwrap();
                    assert!((throughput / expected - 1.0).abs() < 1e-9, "{outcome:?}");
                    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
                }
            }
        }
    }

    #[test]
    fn a_measurement_by_time_lasts_that_long() {
        let folder = tempfile::tempdir().unwrap();
        let task = Micro {
            count: None,
            seconds: 1,
            ..small(MicroAccess::Read, MicroAccessPattern::Random)
        };
        let begun = Instant::now();
        run(folder.path(), &task, 1).unwrap();
        assert!(begun.elapsed() >= Duration::from_secs(1));
    }

    /// The second run has another seed. This run must nevertheless use the data set that the first run has filled.
    #[test]
    fn a_set_that_is_kept_is_not_filled_again() {
        let folder = tempfile::tempdir().unwrap();
        let keep = |access| Micro { keep: true, ..small(access, MicroAccessPattern::Random) };
        let fills = |task: &Micro, seed| {
            let place = WorkloadLocation::Folder(folder.path().to_owned());
            let told = std::sync::Mutex::new(0);
            let progress = |share: f64| *told.lock().unwrap() += usize::from(share < 0.5);
            let run =
                WorkloadRun { place: &place, scratch: folder.path(), seed, progress: &progress };
            task.run(&run).unwrap();
            *told.lock().unwrap() > 0
        };
        assert!(fills(&keep(MicroAccess::Read), 1));
        assert!(!fills(&keep(MicroAccess::Write), 2));
        assert!(!fills(&keep(MicroAccess::Write), 2));
        assert!(!fills(&keep(MicroAccess::Read), 3));
        assert!(fills(&Micro { set_mib: 2, ..keep(MicroAccess::Read) }, 4), "it is too small");
        assert!(!fills(&small(MicroAccess::Read, MicroAccessPattern::Random), 5));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_another_run_uses_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let other = MicroStore::file(path.clone(), false).unwrap();
        let error = run(folder.path(), &small(MicroAccess::Write, MicroAccessPattern::Random), 1)
            .unwrap_err();
        assert!(error.to_string().contains("another run uses"), "{error}");
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        drop(other);
        run(folder.path(), &small(MicroAccess::Write, MicroAccessPattern::Random), 1).unwrap();
    }

    #[test]
    fn a_file_that_is_no_set_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let refused = |why: &str| {
            let error =
                run(folder.path(), &small(MicroAccess::Write, MicroAccessPattern::Random), 1)
                    .unwrap_err();
            assert!(matches!(error, Error::Settings(_)), "{error}");
            assert!(error.to_string().contains(why), "{error}");
        };
        for content in [vec![7; 10], vec![7; 100_000]] {
            fs::write(&path, &content).unwrap();
            refused("no working set");
            assert_eq!(fs::read(&path).unwrap(), content);
        }
        let other = folder.path().join("other");
        fs::rename(&path, &other).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        refused("symbolic link");
        assert_eq!(fs::read(&other).unwrap(), vec![7; 100_000]);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(
            run(folder.path(), &small(MicroAccess::Write, MicroAccessPattern::Random), 1).is_err()
        );
        assert!(path.exists());
    }

    #[test]
    fn wrong_data_is_an_error_and_gives_no_figure() {
        let folder = tempfile::tempdir().unwrap();
        let task = Micro { keep: true, ..small(MicroAccess::Read, MicroAccessPattern::Sequential) };
        run(folder.path(), &task, 1).unwrap();
        let file = fs::OpenOptions::new().read(true).write(true).open(folder.path().join(FILE));
        let (file, mut byte) = (file.unwrap(), [0]);
        file.read_exact_at(&mut byte, 70_000).unwrap();
        file.write_all_at(&[byte[0] ^ 1], 70_000).unwrap();
        let error = run(folder.path(), &task, 1).unwrap_err();
        assert!(matches!(error, Error::Wrong(_)), "{error}");
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let usual = small(MicroAccess::Read, MicroAccessPattern::Random);
        for task in [
            Micro { block_kib: 0, ..usual.clone() },
            Micro { block_kib: 3, ..usual.clone() },
            Micro { block_kib: 128, ..usual.clone() },
            Micro { set_mib: 0, ..usual.clone() },
            Micro { count: Some(0), ..usual.clone() },
            Micro { seconds: u32::MAX, ..usual },
        ] {
            let error = run(folder.path(), &task, 1).unwrap_err();
            assert!(matches!(error, Error::Settings(_)), "{error}");
        }
    }
}
