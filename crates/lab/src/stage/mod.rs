//! From a site to processes: a link in this process, nodes at its far end, a gateway and the attached
//! volumes at its near end, and workloads there.

mod run_folder;
mod process;
mod orphans;
mod mounts;
mod settings;
mod stage_counters;
mod memory_cgroup;
mod forebay_server;
mod attachment;
pub(crate) mod peer;
mod running_site;

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use program::{LoggedProgram, WaitLimit};
use rustix::process::Signal;
use workload::{WorkloadFigure, WorkloadLocation, WorkloadResult, WorkloadTask};

use self::{
    memory_cgroup::LabMemoryCgroup,
    orphans::Orphans,
    run_folder::LabRunFolder,
    running_site::RunningSite,
    settings::Folders,
    stage_counters::{MachineCpuTime, processor_here},
};
pub(crate) use self::{
    memory_cgroup::can_be_limited,
    running_site::{available, check},
};
use crate::{Error, ExperimentPoint, LabSite, Sampler};

/// Where points are run.
pub trait Scene {
    /// Makes sure that this site stands, and nothing else.
    ///
    /// # Errors
    /// What does not start; then nothing stands.
    fn set(&mut self, site: &LabSite) -> Result<(), Error>;

    /// Runs a point's task once on the site that stands. Its chance is the same each time: runs differ by
    /// the machine alone.
    ///
    /// # Errors
    /// If it fails, or takes much longer than the point says.
    fn run(&mut self, point: &ExperimentPoint) -> Result<PointRunResult, Error>;

    /// Ends what stands.
    ///
    /// # Errors
    /// What did not end in order; it was killed.
    fn clear(&mut self) -> Result<(), Error>;
}

/// What one run gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PointRunResult {
    /// What the workload found.
    pub outcome: WorkloadResult,
    /// What was counted around it.
    pub counted: Vec<WorkloadFigure>,
    /// Why the figures may not be trusted.
    pub taints: Vec<String>,
    /// Other notes.
    pub notes: BTreeMap<String, String>,
}

/// The scene of real processes.
pub struct LabStage {
    place: Setting,
    standing: Option<RunningSite>,
    /// From the first site on.
    orphans: Option<Orphans>,
    /// Those of the place: removed after what stands in them.
    folders: [LabRunFolder; 2],
}

/// What a stage is made with.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The program: `forebay`.
    pub program: PathBuf,
    /// The link's name: namespaces are `NAME-near` and `NAME-far`.
    pub name: String,
    /// A folder on the disk for volumes and logs. It is made, and removed; one that is there is taken only if a run has
    /// left it.
    pub disk: PathBuf,
    /// The same in memory, for settings, control sockets, NVRAM and mount points.
    pub memory: PathBuf,
    /// Set by who wants the run to end.
    pub stop: Arc<AtomicBool>,
}

/// The figure of how long processor time was counted, in seconds of the clock.
pub(crate) const TIME_COUNTED: &str = "time counted";

/// A run may take this many times as long as its point says, and then some: the estimate is of another
/// machine.
const SLOWER: f64 = 10.0;
const AT_LEAST: Duration = Duration::from_secs(120);

impl Setting {
    fn folders(&self) -> Folders<'_> {
        Folders { disk: &self.disk, memory: &self.memory }
    }
}

impl LabStage {
    /// Takes up what a run that was killed has left in the same folders.
    ///
    /// # Errors
    /// [`Error::Folder`] if another run has them, or they are no run's; or if they cannot be made.
    pub fn new(place: Setting) -> Result<Self, Error> {
        // Both are ours before anything in one is touched.
        let folders = [LabRunFolder::take(&place.memory)?, LabRunFolder::take(&place.disk)?];
        // What still runs in them has lost who started it.
        let ended = orphans::end_left(&[&place.memory, &place.disk]);
        mounts::unmount_left(&place.memory, &ended);
        for folder in &folders {
            folder.empty()?;
        }
        Ok(Self { place, standing: None, orphans: None, folders })
    }

    fn workload(
        &self,
        number: usize,
        place: &WorkloadLocation,
        task: &WorkloadTask,
        memory: Option<&LabMemoryCgroup>,
    ) -> Result<LoggedProgram, Error> {
        let standing =
            self.standing.as_ref().ok_or_else(|| Error::Settings("no site stands".to_owned()))?;
        let mut command = Command::new(&self.place.program);
        command.args(["lab", "workload", "--on", &place.to_string(), "--json", "--given"]);
        if !matches!(place, WorkloadLocation::Folder(_)) {
            command.arg("--overwrite");
        }
        if let Some(memory) = memory {
            memory.take_in(&mut command)?;
        }
        command.stdin(Stdio::piped());
        let events = self.place.memory.join(format!("workload-{number}.events"));
        // Of this run only: what it says last is told if it fails.
        let _ = fs::remove_file(&events);
        let mut process =
            process::start("the workload", &mut command, standing.near(), &events, Signal::KILL)?;
        let given = serde_json::to_vec(task).map_err(|error| Error::Settings(error.to_string()))?;
        if let Some(mut stdin) = process.stdin() {
            // If it has ended, its end says why.
            let _ = stdin.write_all(&given);
        }
        Ok(process)
    }

    fn end_orphans(&self, ours: &[u32]) {
        if let Some(orphans) = &self.orphans {
            orphans.end(ours, &[&self.place.memory, &self.place.disk]);
        }
    }

    /// Runs a task on every place at once.
    fn run_all(&self, point: &ExperimentPoint) -> Result<WorkloadResult, Error> {
        let standing =
            self.standing.as_ref().ok_or_else(|| Error::Settings("no site stands".to_owned()))?;
        let limit = Duration::from_secs_f64((point.seconds * SLOWER).clamp(0.0, 1e6)) + AT_LEAST;
        let patience = WaitLimit { limit, stop: &self.place.stop };
        let places = standing.places();
        let limited = |bytes| LabMemoryCgroup::limited(&self.place.name, bytes);
        let memory = point.site.memory.map(limited).transpose()?;
        let started = (0..)
            .zip(&places)
            .map(|(number, place)| self.workload(number, place, &point.task, memory.as_ref()));
        let mut started = started.collect::<Result<Vec<_>, _>>()?;
        let outcomes = started.iter_mut().map(|process| {
            let said = process.finish(patience)?;
            serde_json::from_str(&said).map_err(|error| {
                let said = error.to_string();
                let [name, what] = ["the workload", "said what cannot be read"].map(str::to_owned);
                Error::from(program::Error::Failed { name, what, said })
            })
        });
        Ok(together(outcomes.collect::<Result<Vec<WorkloadResult>, _>>()?))
    }
}

impl Scene for LabStage {
    fn set(&mut self, site: &LabSite) -> Result<(), Error> {
        if let Some(standing) = &mut self.standing
            && standing.becomes(site)?
        {
            return Ok(());
        }
        if self.orphans.is_none() {
            self.orphans = Some(Orphans::adopt()?);
        }
        self.clear()?;
        self.standing = Some(RunningSite::raise(&self.place, site)?);
        Ok(())
    }

    fn run(&mut self, point: &ExperimentPoint) -> Result<PointRunResult, Error> {
        let standing =
            self.standing.as_ref().ok_or_else(|| Error::Settings("no site stands".to_owned()))?;
        let stop = &self.place.stop;
        let mut taints = Vec::new();
        if standing.drain(&self.place.memory, stop)?.is_none() {
            taints.push(
                "what was there before was not written in time: it is counted here".to_owned(),
            );
        }
        standing.begin()?;
        let (before, machine, began) =
            (standing.counted(stop)?, MachineCpuTime::now(), Instant::now());
        let (own, children) = processor_here();
        let sampler = point.windows.then(|| standing.watch(&self.place.name)).flatten();
        let sampler = sampler
            .map(Sampler::start)
            .transpose()
            .map_err(Error::system("look at the windows of connections"))?;
        let outcome = self.run_all(point);
        let windows = sampler.map(Sampler::stop).unwrap_or_default();
        let mut outcome = outcome?;
        outcome.series.extend(windows.series);
        let (own_after, children_after) = processor_here();
        let (now, elapsed) = (MachineCpuTime::now(), began.elapsed());
        let mut after = standing.counted(stop)?;
        let standing_time = after.processor() - before.processor();
        taints.extend(
            now.taints(machine, standing_time + (own_after - own) + (children_after - children)),
        );
        taints.extend(standing.taints()?);
        let mut notes = BTreeMap::new();
        if let Ok(load) = fs::read_to_string("/proc/loadavg") {
            notes.insert("load after".to_owned(), load.trim().to_owned());
        }
        // What the workload has left to be sent crosses the link, too.
        match standing.drain(&self.place.memory, stop)? {
            Some(took) => {
                let processors = after.processors();
                after = standing.counted(stop)?;
                after.set_processors(processors);
                if took > Duration::from_secs(1) {
                    notes
                        .insert("drained after".to_owned(), format!("{:.1} s", took.as_secs_f64()));
                }
            }
            None => taints.push(
                "not all was written in time: the link's figures lack what was kept".to_owned(),
            ),
        }
        let mut counted = after.since(&before);
        let seconds = |name: &str, value: f64| WorkloadFigure {
            name: name.to_owned(),
            unit: "s".to_owned(),
            value,
        };
        if windows.missed > 0 {
            taints.push(format!("{} looks at windows had no answer", windows.missed));
        }
        counted.extend(windows.figures);
        counted.push(seconds("cpu link", own_after - own));
        counted.push(seconds("cpu workload", children_after - children));
        counted.push(seconds("cpu machine", now.busy - machine.busy));
        // What the processor times are of: all that the workload does, more than the time that it tells.
        counted.push(seconds(TIME_COUNTED, elapsed.as_secs_f64()));
        Ok(PointRunResult { outcome, counted, taints, notes })
    }

    fn clear(&mut self) -> Result<(), Error> {
        let standing = self.standing.take();
        let ours = standing.as_ref().map(RunningSite::processes).unwrap_or_default();
        self.end_orphans(&ours);
        let ended = standing.map_or(Ok(()), |standing| standing.end(&self.place.memory));
        // One that waited for a volume that has ended now; and what is mounted with nobody behind it.
        self.end_orphans(&[]);
        mounts::unmount_all(&self.place.memory);
        // A disk's worth of volumes, and settings with the old ports.
        let cleared: Result<(), Error> = self.folders.iter().try_for_each(LabRunFolder::clear);
        ended.and(cleared)
    }
}

impl Drop for LabStage {
    fn drop(&mut self) {
        // Who wants to know what went wrong has called `clear`.
        let _ = self.clear();
    }
}

/// Figures without a unit that say whether something was so, 1, or not, 0.
const FLAGS: [&str; 1] = ["past the page cache"];

/// One outcome of several at once: rates and amounts add up, times are those of the slowest, and a share,
/// which is in "%" or called so, is the mean. What has no unit is a count and adds up, but a flag, 0 or 1
/// at each, is one of all: 1 only where it is at each. Series have the number of their place in their names.
fn together(mut outcomes: Vec<WorkloadResult>) -> WorkloadResult {
    if outcomes.len() < 2 {
        return outcomes.pop().unwrap_or_default();
    }
    let mut sum = outcomes[0].clone();
    for figure in &mut sum.figures {
        let all: Vec<f64> =
            outcomes.iter().filter_map(|outcome| outcome.get(&figure.name)).collect();
        let total: f64 = all.iter().sum();
        figure.value = match figure.unit.as_str() {
            "s" | "ms" | "us" => all.iter().copied().fold(0.0, f64::max),
            "%" => total / all.len() as f64,
            "" if figure.name.starts_with("share") => total / all.len() as f64,
            "" if FLAGS.contains(&figure.name.as_str()) => {
                all.iter().copied().fold(f64::INFINITY, f64::min)
            }
            _ => total,
        };
    }
    let mut verified: Vec<String> = Vec::new();
    for outcome in &outcomes {
        if !verified.contains(&outcome.verified) {
            verified.push(outcome.verified.clone());
        }
    }
    sum.verified = verified.join("; ");
    sum.series = (1..)
        .zip(&mut outcomes)
        .flat_map(|(number, outcome)| {
            outcome.series.drain(..).map(move |mut series| {
                series.name = format!("{}, place {number}", series.name);
                series
            })
        })
        .collect();
    sum
}

#[cfg(test)]
mod tests {
    use workload::WorkloadSeries;

    use super::*;

    #[test]
    fn what_several_nodes_did_is_one_outcome() {
        let of = |rate: f64, time: f64| {
            WorkloadResult::default().figure("transactions", "1/s", rate).figure("time", "s", time)
        };
        assert_eq!(together(vec![of(3.0, 4.0)]), of(3.0, 4.0));
        assert_eq!(together(vec![of(3.0, 4.0), of(5.0, 2.0)]), of(8.0, 4.0));
        assert_eq!(together(Vec::new()), WorkloadResult::default());
    }

    #[test]
    fn what_is_no_amount_does_not_add_up_and_nothing_that_was_compared_is_lost() {
        let of = |direct: f64, share: f64, verified: &str| {
            let series = WorkloadSeries {
                name: "rate".to_owned(),
                x: "time, s".to_owned(),
                y: "1/s".to_owned(),
                points: vec![[0.0, share]],
            };
            WorkloadResult {
                verified: verified.to_owned(),
                series: vec![series],
                ..WorkloadResult::default()
            }
            .figure("past the page cache", "", direct)
            .figure("share of connection 1", "", share)
            .figure("spread", "%", 100.0 * share)
            .figure("commands", "", 10.0)
        };
        let all = together(vec![of(1.0, 0.25, "3 of 9"), of(0.0, 0.75, "9"), of(1.0, 0.5, "9")]);
        let names = ["past the page cache", "share of connection 1", "spread", "commands"];
        assert_eq!(names.map(|name| all.get(name).unwrap()), [0.0, 0.5, 50.0, 30.0]);
        assert_eq!(all.verified, "3 of 9; 9");
        let series: Vec<&str> = all.series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(series, ["rate, place 1", "rate, place 2", "rate, place 3"]);
    }
}
