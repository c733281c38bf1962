//! `forebay lab run`: measures the tables and figures of a paper and writes a report.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::IsTerminal,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use control::{Failure, WRONG_SETTINGS};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lab::{
    Experiment, ExperimentPoint, ExperimentScale, LabReport, LabStage, Lack, LeftOut, Means,
    MeasurementPlan, PointCount, PointRecord, Results, RunProgress, Section, Setting,
    engine::{self, LabRunSummary, Watcher},
};

use super::{arguments::Measure, install, signals};
use crate::output::{print, print_line, tell};

/// Measures all points of an experiment that have no result yet, and writes the report.
pub fn run(args: &Measure) -> Result<(), Failure> {
    // No measurement has begun, so the request itself is the cause of a failure.
    let PreparedLabRun { points, plan, mut results, mut stage, stop, beside, out } =
        begin(args).map_err(|failure| Failure { code: WRONG_SETTINGS, ..failure })?;
    let ended = if plan.run.is_empty() {
        LabRunSummary::default()
    } else {
        measure(&plan.run, &mut stage, &mut results, &stop)?
    };
    drop(stage);
    let progress = progress(&ended, &points, &results, args);
    let report = write(&points, &results, beside, &out, progress.clone())?;
    for line in report.summary() {
        print_line(line)?;
    }
    finish(&ended, &plan, args, &out, &progress)
}

/// A prepared run, whose plan has been printed.
struct PreparedLabRun {
    points: LabRunPoints,
    plan: MeasurementPlan,
    results: Results,
    stage: LabStage,
    stop: Arc<AtomicBool>,
    beside: Option<Section>,
    out: PathBuf,
}

struct LabRunPoints {
    experiment: Experiment,
    scale: ExperimentScale,
    all: Vec<ExperimentPoint>,
    chosen: Vec<ExperimentPoint>,
}

/// Checks the request, the earlier results and this machine, and prints the plan.
fn begin(args: &Measure) -> Result<PreparedLabRun, Failure> {
    let experiment = Experiment::from(args.experiment);
    let scale = if args.quick { ExperimentScale::Quick } else { ExperimentScale::Full };
    let all = experiment.points(scale);
    let chosen = chosen(args, &all)?;
    // Check the name even if no link is needed, because it becomes part of folder names.
    wan::check_name(&args.name).map_err(super::link_failure::failed)?;
    let beside = args.beside.as_deref().map(beside).transpose()?;
    let out = args.out.clone().unwrap_or_else(|| default_folder(experiment, scale));
    let mut results = Results::open(&out).map_err(|error| match error {
        error @ lab::Error::System { .. } => {
            Failure::new(error).remedy("choose an --out where you may write")
        }
        error => failed(error),
    })?;
    let stop = Arc::new(AtomicBool::new(false));
    stop_at_signals(Arc::clone(&stop), what_stays(args, &out))?;
    // Lock the results first. Otherwise a second run with the same name would leave out points for other reasons,
    // instead of reporting that the results are in use.
    let stage = stage(args, &out, &stop)?;
    let wanted: Vec<ExperimentPoint> =
        chosen.iter().filter(|point| args.again || results.of(point).is_none()).cloned().collect();
    let there = chosen.len() - wanted.len();
    let others = wanted.iter().filter(|point| results.is_of_others(point)).count();
    let plan = || {
        let folders = [&*out, &*in_memory(&args.name)];
        // Check the link only now: `stage` has made this run the owner of the name. After --install the plan is made
        // again, because the new packages may have provided what a link needs.
        let (name, link) = (&*args.name, link(&args.name));
        let means = Means::of_this_machine(&wanted, name, link, folders).map_err(failed)?;
        Ok::<MeasurementPlan, Failure>(means.plan(wanted.clone()))
    };
    let mut planned = plan()?;
    if args.install {
        install::packages(&planned.missing, &stop)?;
        if !stop.load(Ordering::Relaxed) {
            install::source(&wanted, &stop)?;
        }
        planned = plan()?;
    }
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::new("stopped; nothing was measured")
            .remedy("the same command starts it again"));
    }
    print(describe(args, &planned, [there, others], &out))?;
    if planned.run.is_empty() && there == 0 {
        let failure = Failure::new("no point can be measured on this machine");
        return Err(match remedy(args, &planned) {
            None => failure,
            Some(remedy) => failure.remedy(remedy),
        });
    }
    for LeftOut { point, left_out } in &planned.left_out {
        results.left_out(point, left_out).map_err(failed)?;
    }
    let points = LabRunPoints { experiment, scale, all, chosen };
    Ok(PreparedLabRun { points, plan: planned, results, stage, stop, beside, out })
}

/// Returns the points that `--only` selects; all points without that option.
fn chosen(args: &Measure, all: &[ExperimentPoint]) -> Result<Vec<ExperimentPoint>, Failure> {
    let parts = || format!("its parts are {}", sections(all).join(", "));
    for word in &args.only {
        if word.is_empty() {
            return Err(Failure::settings("--only has an empty value").remedy(parts()));
        }
        if !all.iter().any(|point| point.name.contains(word.as_str())) {
            let failure = format!("no point of this experiment has `{word}` in its name");
            return Err(Failure::settings(failure).remedy(parts()));
        }
    }
    Ok(all.iter().filter(|point| args.wants(&point.name)).cloned().collect())
}

/// Checks whether an emulated link with this name can be created on this machine.
fn link(name: &str) -> Result<(), Lack> {
    let name = name.to_owned();
    let options = wan::LinkOptions { name, settings: Default::default(), seed: 1, capture: None };
    wan::check(&options).map_err(|error| match error {
        // The general remedy for this error suggests quickstart, which cannot measure the points of a paper.
        wan::Error::Privilege => {
            Lack { why: error.to_string(), remedy: Some("be root".to_owned()) }
        }
        error => {
            let Failure { message: why, remedy, .. } = super::link_failure::failed(error);
            Lack { why, remedy }
        }
    })
}

/// Prints the plan: the points to measure, those left out with the reasons, and the estimated time; also how many
/// points have results, and how many of these are from other programs or machines.
fn describe(
    args: &Measure,
    plan: &MeasurementPlan,
    [there, others]: [usize; 2],
    out: &Path,
) -> String {
    let name = Experiment::from(args.experiment).name();
    let mut text = format!("{name}, into {}\n", out.display());
    let about = minutes(Duration::from_secs_f64(plan.seconds));
    text += &format!("  to be measured: {} points, about {about}\n", plan.run.len());
    for (part, points) in counted(plan.run.iter().map(|point| point.name.as_str())) {
        text += &format!("    {part}: {points}\n");
    }
    if there > 0 {
        text += &format!("  there already: {there} (--again measures them again)\n");
    }
    if others > 0 {
        text += &format!(
            "  measured by another program or on another machine: {others} points, to be measured again\n"
        );
    }
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for LeftOut { point, left_out } in &plan.left_out {
        reasons.entry(left_out).or_default().push(point);
    }
    if !reasons.is_empty() {
        text += &format!("  left out: {} points\n", plan.left_out.len());
    }
    for (reason, points) in reasons {
        let parts = counted(points.into_iter()).into_iter();
        let parts: Vec<String> = parts.map(|(part, points)| format!("{part} {points}")).collect();
        text += &format!("    {reason}: {}\n", parts.join(", "));
    }
    if let Some(remedy) = remedy(args, plan) {
        text += &format!("    to have them all: {remedy}\n");
    }
    text
}

/// Returns a remedy that names everything that the machine lacks; `None` if it lacks nothing.
fn remedy(args: &Measure, plan: &MeasurementPlan) -> Option<String> {
    let packages = install::names(&plan.missing).join(" ");
    let install = (!packages.is_empty()).then(|| {
        // With --install, the program has already tried to install packages: do not suggest that again.
        let or = if args.install { "" } else { ", or --install" };
        format!("apt-get install {packages}{or}")
    });
    let all: Vec<String> = plan.remedies.iter().cloned().chain(install).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Counts the names that begin with the same word, in the order of their first occurrence.
fn counted<'a>(names: impl Iterator<Item = &'a str>) -> Vec<(&'a str, usize)> {
    let mut parts: Vec<(&str, usize)> = Vec::new();
    for name in names {
        let part = part(name);
        match parts.iter_mut().find(|(known, _)| *known == part) {
            Some((_, count)) => *count += 1,
            None => parts.push((part, 1)),
        }
    }
    parts
}

fn part(name: &str) -> &str {
    name.split('/').next().unwrap_or(name)
}

fn sections(points: &[ExperimentPoint]) -> Vec<&str> {
    counted(points.iter().map(|point| point.name.as_str()))
        .into_iter()
        .map(|(part, _)| part)
        .collect()
}

/// Name of the folder for volumes and logs during a run, inside the results folder.
const WORK: &str = "forebay-lab-work";

/// Returns the folder for files of a run that are kept in memory.
fn in_memory(name: &str) -> PathBuf {
    let folders = ["/dev/shm", "/tmp"].map(PathBuf::from);
    let folder = folders.into_iter().find(|folder| folder.is_dir());
    folder.unwrap_or_else(std::env::temp_dir).join(format!("forebay-lab-{name}"))
}

/// Prepares empty folders for a run.
fn stage(args: &Measure, out: &Path, stop: &Arc<AtomicBool>) -> Result<LabStage, Failure> {
    let program = std::env::current_exe().map_err(|error| {
        Failure::new(format!("cannot find this program: {error}"))
            .remedy("mount /proc, and start the program again")
    })?;
    let out = fs::canonicalize(out)
        .map_err(|error| Failure::new(format!("{}: {error}", out.display())))?;
    if out.to_str().is_none() {
        // The path becomes part of node settings, which are UTF-8 text.
        return Err(Failure::settings(format!("the path {} is not UTF-8", out.display()))
            .remedy("choose an --out with another name"));
    }
    let setting = Setting {
        program,
        name: args.name.clone(),
        disk: out.join(WORK),
        memory: in_memory(&args.name),
        stop: Arc::clone(stop),
    };
    LabStage::new(setting).map_err(failed)
}

fn measure(
    points: &[ExperimentPoint],
    stage: &mut LabStage,
    results: &mut Results,
    stop: &AtomicBool,
) -> Result<LabRunSummary, Failure> {
    let mut bar = LabProgressBar::new()?;
    let ended = engine::run(points, stage, results, &mut bar, stop);
    let ended = ended.map_err(|error| failed(error).remedy(ROOM))?;
    bar.bar.finish_and_clear();
    Ok(ended)
}

/// Sets the flag on SIGINT, SIGTERM and SIGHUP, so that the run ends in order. A second signal ends the process at
/// once.
fn stop_at_signals(stop: Arc<AtomicBool>, stays: String) -> Result<(), Failure> {
    let first = move || {
        stop.store(true, Ordering::Relaxed);
        tell("stopping: started programs are ended in order; a second signal leaves them");
    };
    signals::act(first, move || tell(format_args!("these remain: {stays}")))
}

/// Describes the files that remain if a run ends at once, and how to remove them.
fn what_stays(args: &Measure, out: &Path) -> String {
    let (name, disk, memory) = (&args.name, out.join(WORK), in_memory(&args.name));
    format!(
        "the namespaces {name}-near and {name}-far, {} and {}; the same command removes them \
         before it continues",
        disk.display(),
        memory.display()
    )
}

struct LabProgressBar {
    bar: ProgressBar,
    /// Kinds of doubts about the measured results that this run has printed already.
    doubts: BTreeSet<String>,
}

impl LabProgressBar {
    fn new() -> Result<Self, Failure> {
        let bar = ProgressBar::hidden();
        if std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg} {elapsed}");
        bar.set_style(style.map_err(Failure::new)?);
        Ok(Self { bar, doubts: BTreeSet::new() })
    }

    fn say(&self, line: &str) {
        if self.bar.is_hidden() { tell(line) } else { self.bar.println(line) }
    }
}

impl Watcher for LabProgressBar {
    fn begins(&mut self, point: &ExperimentPoint, number: usize, of: usize, left: Duration) {
        self.bar.set_length(of as u64);
        self.bar.set_position(number as u64 - 1);
        self.bar.set_message(format!("{}, {} to go", point.name, minutes(left)));
        self.bar.enable_steady_tick(Duration::from_secs(1));
        if self.bar.is_hidden() {
            tell(format_args!("{number}/{of} {}, {} to go", point.name, minutes(left)));
        }
    }

    fn ends(&mut self, point: &ExperimentPoint, result: Result<&PointRecord, &str>) {
        match result {
            Err(reason) => self.say(&format!("{} is left out: {reason}", point.name)),
            // The report has each doubt with the number of its points, so print it for the first of them only.
            Ok(record) => {
                for taint in &record.taints {
                    if self.doubts.insert(lab::doubt_kind(taint)) {
                        self.say(&format!("{} is in doubt: {taint}", point.name));
                    }
                }
            }
        }
    }
}

/// Formats an approximate duration for people.
fn minutes(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..=90 => format!("{seconds} s"),
        seconds @ 91..=5400 => format!("{} min", (seconds + 30) / 60),
        seconds => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}

/// Returns how many points have results, and the command that continues a stopped run.
fn progress(
    ended: &LabRunSummary,
    points: &LabRunPoints,
    results: &Results,
    args: &Measure,
) -> RunProgress {
    let count = |points: &[ExperimentPoint]| PointCount {
        measured: points.iter().filter(|point| results.of(point).is_some()).count(),
        all: points.len(),
    };
    let requested = match count(&points.chosen) {
        requested if ended.stopped && args.again => {
            PointCount { measured: ended.measured, ..requested }
        }
        requested => requested,
    };
    RunProgress {
        requested,
        experiment: count(&points.all),
        again: args.again,
        stopped: ended.stopped.then(|| args.command()),
    }
}

/// Writes the page, the CSV file and the settings, from all results in the folder. Returns the content of the page.
fn write(
    points: &LabRunPoints,
    results: &Results,
    beside: Option<Section>,
    out: &Path,
    progress: RunProgress,
) -> Result<LabReport, Failure> {
    let LabRunPoints { experiment, scale, all, .. } = points;
    let (records, left_out) = results.of_all(all);
    let left_out: Vec<(String, String)> =
        left_out.into_iter().map(|it| (it.point, it.left_out)).collect();
    let facts = facts(*scale, results);
    let mut report = experiment.report(&records, &left_out);
    report.progress = Some(progress);
    report.facts.extend(facts.iter().cloned());
    report.sections.extend(beside);
    let facts: BTreeMap<String, String> = facts.into_iter().collect();
    let settings =
        serde_json::json!({ "experiment": experiment.name(), "facts": facts, "points": all });
    let settings = serde_json::to_string_pretty(&settings).map_err(Failure::new)?;
    for (name, text) in [
        ("report.html", lab::page(&report)),
        ("report.csv", lab::csv(&report)),
        ("settings.json", settings),
    ] {
        let path = out.join(name);
        fs::write(&path, text).map_err(|error| {
            Failure::new(format!("cannot write {}: {error}", path.display())).remedy(ROOM)
        })?;
    }
    Ok(report)
}

/// Remedy if results cannot be written.
const ROOM: &str = "free space there; the same command continues";

/// Reads figures that were measured elsewhere, for a section of the report.
fn beside(file: &Path) -> Result<Section, Failure> {
    let text = fs::read_to_string(file).map_err(|error| {
        Failure::new(format!("cannot read {}: {error}", file.display()))
            .remedy("name a file that this user may read with --beside")
    })?;
    lab::beside(&text).map_err(failed)
}

/// Returns the facts for the head of the report: its scale, the programs and machines that measured the results, and
/// the time.
fn facts(scale: ExperimentScale, results: &Results) -> Vec<(String, String)> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = jiff::Timestamp::from_second(now.as_secs() as i64).map(|it| it.to_string());
    let scale = if scale == ExperimentScale::Quick { "quick" } else { "full" };
    let mut facts = vec![("scale".to_owned(), scale.to_owned())];
    facts.extend(results.maker().clone());
    facts.extend(now.ok().map(|now| ("written".to_owned(), now)));
    facts
}

fn default_folder(experiment: Experiment, scale: ExperimentScale) -> PathBuf {
    let quick = if scale == ExperimentScale::Quick { "-quick" } else { "" };
    PathBuf::from(format!("forebay-lab-{}{quick}", experiment.name()))
}

/// Prints the outcome of the run and returns the exit code.
fn finish(
    ended: &LabRunSummary,
    plan: &MeasurementPlan,
    args: &Measure,
    out: &Path,
    progress: &RunProgress,
) -> Result<(), Failure> {
    let report = out.join("report.html");
    print_line(format_args!("report: {}", report.display()))?;
    if let Some(untidy) = &ended.untidy {
        tell(format_args!("not all ended in order: {untidy}"));
    }
    if let Some(command) = &progress.stopped {
        let PointCount { measured, all } = progress.requested;
        let stopped = format!("stopped after {measured} of {all} points");
        if progress.again {
            return Err(
                Failure::new(stopped).remedy(format!("this measures all of them again: {command}"))
            );
        }
        return Err(Failure::new(stopped).remedy(format!("the same command goes on: {command}")));
    }
    if ended.failed > 0 {
        return Err(Failure::new(format!("{} points failed", ended.failed))
            .remedy("the report says why; the same command tries them again"));
    }
    if !plan.left_out.is_empty() {
        let failure = Failure::new(format!("{} points were left out", plan.left_out.len()));
        return Err(failure.remedy(
            remedy(args, plan)
                .unwrap_or_else(|| "see why in the list, or in the report".to_owned()),
        ));
    }
    Ok(())
}

fn failed(error: lab::Error) -> Failure {
    match error {
        lab::Error::Link(error) => super::link_failure::failed(error),
        lab::Error::Settings(_) => Failure::settings(error),
        lab::Error::Folder(_) => {
            Failure::settings(error).remedy("choose another --out, or another --name")
        }
        error => Failure::new(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_in_their_order() {
        let names = ["table-2/a", "table-1/b/c", "table-2/d"];
        assert_eq!(counted(names.into_iter()), [("table-2", 2), ("table-1", 1)]);
    }

    #[test]
    fn times_are_for_people() {
        let told = [5, 90, 100, 3600, 9000].map(|seconds| minutes(Duration::from_secs(seconds)));
        assert_eq!(told, ["5 s", "90 s", "2 min", "60 min", "2.5 h"]);
    }
}
