//! `forebay lab workload`: runs a workload on a folder, a device or a volume.

use std::{
    io::{ErrorKind, IsTerminal},
    sync::atomic::AtomicBool,
};

use clap::Subcommand;
use control::Failure;
use indicatif::{ProgressBar, ProgressStyle};
use workload::{Error, Missing, WorkloadResult, WorkloadRun, WorkloadTask};

use super::{
    arguments::{LabFetchArgs, LabWorkloadArgs},
    workload_stop::WorkloadStopSignal,
};
use crate::output::print_line;

/// Number of steps of the progress bar.
const PARTS: u64 = 1000;

pub fn run(args: &LabWorkloadArgs) -> Result<(), Failure> {
    let task = task(args)?;
    if args.on.is_overwritten() && !args.overwrite {
        let failure = Failure::settings(format!("the content of {} would be lost", args.on));
        return Err(failure.remedy("add --overwrite if it is no longer needed"));
    }
    let scratch = Scratch::make()?;
    let bar = ProgressBar::hidden();
    if std::io::stderr().is_terminal() {
        bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
    }
    bar.set_length(PARTS);
    let style = ProgressStyle::with_template("{wide_bar} {percent} % {elapsed}, {eta} to go");
    bar.set_style(style.map_err(Failure::new)?);
    let stays = format!("{} and forebay-lab-... on {}", scratch.0.display(), args.on);
    let stop = WorkloadStopSignal::at_signals(stays)?;
    let our_thread = std::thread::current().id();
    let progress = |share: f64| {
        bar.set_position((share * PARTS as f64) as u64);
        // Only this thread checks for signals. Other threads of the workload end when the programs that they wait for
        // are killed.
        if std::thread::current().id() == our_thread {
            stop.look();
        }
    };
    let run =
        WorkloadRun { place: &args.on, scratch: &scratch.0, seed: args.seed, progress: &progress };
    let outcome = stop.run(|| task.run(&run))?.map_err(failed)?;
    bar.finish_and_clear();
    if args.json {
        return print_line(serde_json::to_string(&outcome).map_err(Failure::new)?);
    }
    print_line(for_people(&outcome))
}

pub fn fetch(args: &LabFetchArgs) -> Result<(), Failure> {
    let fetched = workload::fetch(args.into.as_deref(), &AtomicBool::new(false)).map_err(failed)?;
    let what = if fetched.was_there { "is there already" } else { "fetched" };
    print_line(format!("{}: {what}", fetched.file.display()))
}

/// Reads the workload from the command line or from standard input.
fn task(args: &LabWorkloadArgs) -> Result<WorkloadTask, Failure> {
    match (&args.task, args.given) {
        (Some(task), false) => Ok(task.clone()),
        (None, true) => serde_json::from_reader(std::io::stdin()).map_err(|error| {
            Failure::settings(format!("standard input is not a workload: {error}")).remedy(
                "name a workload in place of --given; `forebay lab workload --help` lists \
                 them",
            )
        }),
        (Some(_), true) => Err(Failure::settings("either a workload or --given")
            .remedy("leave out --given; `forebay lab workload --help` describes the workloads")),
        (None, false) => {
            let all = WorkloadTask::augment_subcommands(clap::Command::new("all"));
            let names: Vec<_> = all.get_subcommands().map(clap::Command::get_name).collect();
            let failure = Failure::settings("no workload is named");
            Err(failure.remedy(format!("name one of {}; --help describes them", names.join(", "))))
        }
    }
}

/// A temporary folder for a workload. Dropping this removes it.
struct Scratch(std::path::PathBuf);

/// Maximum number of folders that killed workloads with the same process number may have left.
const MOST_LEFT: u32 = 1000;

impl Scratch {
    fn make() -> Result<Self, Failure> {
        Self::make_in(&std::env::temp_dir())
    }

    /// Creates a folder with an unused name. A killed workload leaves its folder, and its process number may be reused.
    fn make_in(parent: &std::path::Path) -> Result<Self, Failure> {
        let own = std::process::id();
        let mut left = 0;
        loop {
            let folder = parent.join(format!("forebay-lab-{own}-{left}"));
            match std::fs::create_dir(&folder) {
                Ok(()) => return Ok(Self(folder)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists && left < MOST_LEFT => {
                    left += 1;
                }
                Err(error) => {
                    let folder = folder.display();
                    return Err(Failure::new(format!("cannot make {folder}: {error}")));
                }
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn for_people(outcome: &WorkloadResult) -> String {
    let figures = outcome.figures.iter().map(|figure| {
        let value = format!("{:.3} {}", figure.value, figure.unit);
        format!("{:<24} {}", figure.name, value.trim_end())
    });
    let verified = (!outcome.verified.is_empty()).then(|| format!("checked: {}", outcome.verified));
    figures.chain(verified).collect::<Vec<_>>().join("\n")
}

fn failed(error: Error) -> Failure {
    let failure = Failure::new(&error);
    match &error {
        Error::Missing(Missing(tool)) => {
            failure.remedy(format!("apt-get install {}", tool.package))
        }
        Error::Settings(_) | Error::Place { .. } | Error::Absent(_) => Failure::settings(&error),
        Error::InUse(device) => {
            let device = device.display();
            failure.remedy(format!(
                "`lsblk {device}` shows by whom; unmount it there, or take another"
            ))
        }
        Error::Space { .. } => failure.remedy("free space, or choose smaller settings"),
        Error::Wrong(_) => {
            failure.remedy("do not trust this storage: look at its log and its disks")
        }
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a leftover folder with the same process number made a point of an experiment be left out.
    #[test]
    fn a_leftover_folder_with_this_process_number_does_not_stop_a_workload() {
        let parent = tempfile::tempdir().unwrap();
        let left = Scratch::make_in(parent.path()).unwrap();
        let made = Scratch::make_in(parent.path()).unwrap();
        assert!(left.0.is_dir() && made.0.is_dir() && left.0 != made.0);
    }
}
