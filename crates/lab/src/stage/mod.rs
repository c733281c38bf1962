//! Turns a site into processes: a link in this process, nodes at the link's far end, a gateway and
//! attached volumes at its near end, and workloads on these volumes.

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

/// Runs points on sites. [`LabStage`] does it with real processes; tests have their own
/// implementation.
pub trait Scene {
    /// Makes sure that exactly this site is running.
    ///
    /// # Errors
    /// The error of the part that does not start. No site is running then.
    fn set(&mut self, site: &LabSite) -> Result<(), Error>;

    /// Runs a point's task once on the running site. All runs of a point have the same seed, so that their results
    /// differ only because of the machine.
    ///
    /// # Errors
    /// If the task fails, or takes much longer than the point's estimate.
    fn run(&mut self, point: &ExperimentPoint) -> Result<PointRunResult, Error>;

    /// Ends the running site.
    ///
    /// # Errors
    /// The error of a process that did not end by itself and was killed.
    fn clear(&mut self) -> Result<(), Error>;
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PointRunResult {
    pub outcome: WorkloadResult,
    /// Figures that were counted while the workload ran, such as bytes over the link.
    pub counted: Vec<WorkloadFigure>,
    /// Reasons why the figures may be wrong.
    pub taints: Vec<String>,
    pub notes: BTreeMap<String, String>,
}

/// Runs each site as real processes.
pub struct LabStage {
    place: Setting,
    standing: Option<RunningSite>,
    /// `None` before the first site is started.
    orphans: Option<Orphans>,
    /// The folders `memory` and `disk` of the stage. They are dropped after the processes that use
    /// them.
    folders: [LabRunFolder; 2],
}

/// The program, names and folders that a stage uses.
#[derive(Clone, Debug)]
pub struct Setting {
    pub program: PathBuf,
    /// Name of the link, whose network namespaces are `NAME-near` and `NAME-far`.
    pub name: String,
    /// The folder on the disk for volumes and logs. The stage makes and removes it. An existing
    /// folder is used only if an earlier run has left it.
    pub disk: PathBuf,
    /// The folder in memory for settings, control sockets, NVRAM and mount points. It is made and
    /// removed like `disk`.
    pub memory: PathBuf,
    /// A flag that the caller sets to stop the run.
    pub stop: Arc<AtomicBool>,
}

/// Name of a figure: the seconds during which processor time was counted.
pub(crate) const TIME_COUNTED: &str = "time counted";

/// The time limit of a run is its estimate times this factor, plus [`AT_LEAST`]. The estimate was
/// made on another machine.
const SLOWER: f64 = 10.0;
const AT_LEAST: Duration = Duration::from_secs(120);

impl Setting {
    fn folders(&self) -> Folders<'_> {
        Folders { disk: &self.disk, memory: &self.memory }
    }
}

impl LabStage {
    /// Makes the folders of the stage. Removes everything that a killed run has left in them:
    /// processes, mounts and files.
    ///
    /// # Errors
    /// [`Error::Folder`] if another run uses a folder, or the folder was not made by a run; or if
    /// the folders cannot be made.
    pub fn new(place: Setting) -> Result<Self, Error> {
        // Lock both folders before a file in either of them is changed.
        let folders = [LabRunFolder::take(&place.memory)?, LabRunFolder::take(&place.disk)?];
        // End the programs of an earlier run that was killed; they still use these folders.
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
            self.standing.as_ref().ok_or_else(|| Error::Settings("no site runs".to_owned()))?;
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
        // Remove the file of an earlier run: an error message shows the last lines of this file,
        // and they must be from this run.
        let _ = fs::remove_file(&events);
        let mut process =
            process::start("the workload", &mut command, standing.near(), &events, Signal::KILL)?;
        let given = serde_json::to_vec(task).map_err(|error| Error::Settings(error.to_string()))?;
        if let Some(mut stdin) = process.stdin() {
            // Ignore a write error: it means that the program has ended, and its exit status has
            // the reason.
            let _ = stdin.write_all(&given);
        }
        Ok(process)
    }

    fn end_orphans(&self, ours: &[u32]) {
        if let Some(orphans) = &self.orphans {
            orphans.end(ours, &[&self.place.memory, &self.place.disk]);
        }
    }

    /// Runs the task of a point on all volumes concurrently.
    fn run_all(&self, point: &ExperimentPoint) -> Result<WorkloadResult, Error> {
        let standing =
            self.standing.as_ref().ok_or_else(|| Error::Settings("no site runs".to_owned()))?;
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
                let [name, what] =
                    ["the workload", "printed a result that cannot be read"].map(str::to_owned);
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
            self.standing.as_ref().ok_or_else(|| Error::Settings("no site runs".to_owned()))?;
        let stop = &self.place.stop;
        let mut taints = Vec::new();
        if standing.drain(&self.place.memory, stop)?.is_none() {
            taints.push("earlier data was not written in time and is counted here".to_owned());
        }
        standing.begin()?;
        let (before, machine, began) =
            (standing.counted(stop)?, MachineCpuTime::now(), Instant::now());
        let (own, children) = processor_here();
        let sampler = point.windows.then(|| standing.watch(&self.place.name)).flatten();
        let sampler = sampler
            .map(Sampler::start)
            .transpose()
            .map_err(Error::system("sample the windows of connections"))?;
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
        // Wait until the data that the workload has written has crossed the link, since the link's
        // counters must include it.
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
                "not all data was written in time: the link's figures lack the rest".to_owned(),
            ),
        }
        let mut counted = after.since(&before);
        let seconds = |name: &str, value: f64| WorkloadFigure {
            name: name.to_owned(),
            unit: "s".to_owned(),
            value,
        };
        if windows.missed > 0 {
            taints.push(format!("{} samples of windows were not answered", windows.missed));
        }
        counted.extend(windows.figures);
        counted.push(seconds("cpu link", own_after - own));
        counted.push(seconds("cpu workload", children_after - children));
        counted.push(seconds("cpu machine", now.busy - machine.busy));
        // The processor times cover the whole workload, which is longer than the time that the
        // workload measures.
        counted.push(seconds(TIME_COUNTED, elapsed.as_secs_f64()));
        Ok(PointRunResult { outcome, counted, taints, notes })
    }

    fn clear(&mut self) -> Result<(), Error> {
        let standing = self.standing.take();
        let ours = standing.as_ref().map(RunningSite::processes).unwrap_or_default();
        self.end_orphans(&ours);
        let ended = standing.map_or(Ok(()), |standing| standing.end(&self.place.memory));
        // End programs that waited for a volume, now that its process has ended. Then unmount file
        // systems without a process.
        self.end_orphans(&[]);
        mounts::unmount_all(&self.place.memory);
        // Remove all files of the site: volumes may be as large as a disk, and the settings have port numbers that are
        // no longer valid.
        let cleared: Result<(), Error> = self.folders.iter().try_for_each(LabRunFolder::clear);
        ended.and(cleared)
    }
}

impl Drop for LabStage {
    fn drop(&mut self) {
        // Ignore an error: a caller who needs it has called `clear` before the drop.
        let _ = self.clear();
    }
}

/// Figures without a unit that are flags: 1 for yes, 0 for no.
const FLAGS: [&str; 1] = ["past the page cache"];

/// Combines the results of concurrent workloads. Rates and amounts are added. Times are those of the slowest workload.
/// Shares (unit "%", or a name that begins with "share") are averaged. Figures without a unit are counts and are added,
/// but [`FLAGS`] are 1 only if they are 1 in each result. Series are not combined: the name of each gets the number of
/// its workload.
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
    fn results_of_several_nodes_become_one_result() {
        let of = |rate: f64, time: f64| {
            WorkloadResult::default().figure("transactions", "1/s", rate).figure("time", "s", time)
        };
        assert_eq!(together(vec![of(3.0, 4.0)]), of(3.0, 4.0));
        assert_eq!(together(vec![of(3.0, 4.0), of(5.0, 2.0)]), of(8.0, 4.0));
        assert_eq!(together(Vec::new()), WorkloadResult::default());
    }

    #[test]
    fn only_amounts_are_added_and_all_verification_texts_are_kept() {
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
