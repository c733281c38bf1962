//! `cargo xtask vm-test`: a real kernel's initiator against our target, and a real kernel's target
//! against our initiator. The kernel runs in a virtual machine that is made from Debian packages.

pub mod host;
pub mod packages;
pub mod cpio;
pub mod image;
pub mod monitor;
pub mod guest;
pub mod stage;
pub mod scenario;
pub mod page;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rig::build;
use rig::table::table;
use serde_json::{Value, json};

use crate::check;
use crate::vm::image::VmImage;
use crate::vm::scenario::Scenario;
use crate::vm::stage::{VmScenarioFigure, VmScenarioStage};

pub struct VmTestOptions {
    /// Names of the scenarios to run; empty for all.
    pub scenarios: Vec<String>,
    /// Run every part of a scenario, also the parts that take long.
    pub all: bool,
    /// Build the image of the virtual machine again, from the current packages.
    pub fresh: bool,
    /// Keep the files of each scenario after the run.
    pub keep: bool,
    /// The program to test; `None` to build it in the debug profile.
    pub program: Option<PathBuf>,
    /// The file to which a page with the results is written.
    pub markdown: Option<PathBuf>,
    /// The file to which the measurements are written as JSON.
    pub figures: Option<PathBuf>,
}

pub struct Played {
    pub name: &'static str,
    /// Describes for the output what the scenario shows.
    pub shows: &'static str,
    /// Time from the boot of the virtual machine to the end of the scenario.
    pub took: Duration,
    /// Release of the kernel in the machine, if a machine booted.
    pub release: Option<String>,
    /// The statements that the scenario has checked and found true.
    pub held: Vec<String>,
    /// Steps that were not run, each with the reason.
    pub not_run: Vec<(String, String)>,
    pub figures: Vec<VmScenarioFigure>,
    /// The error with which the scenario has failed; `None` if it has passed.
    pub failed: Option<String>,
}

/// Prints the names of all scenarios, and what each one shows.
pub fn list() {
    let rows = scenario::SCENARIOS.iter();
    let rows = rows.map(|scenario| vec![scenario.name.to_owned(), scenario.shows.to_owned()]);
    print!("{}", table(&["scenario", "shows"], rows));
}

/// Runs the scenarios that `wanted` selects. Returns true if none failed.
pub fn test(wanted: &VmTestOptions) -> Result<bool> {
    let scenarios = scenario::named(&wanted.scenarios)?;
    println!("==> host tools\n    {}", host::provide()?);
    let program = match &wanted.program {
        Some(program) => {
            fs::canonicalize(program).with_context(|| program.display().to_string())?
        }
        None => {
            println!("==> build");
            check::cargo(&["build", "--package", "forebay"])?;
            build::target_folder()?.join("debug/forebay")
        }
    };
    println!("==> machine");
    let folder = build::target_folder()?.join("vm");
    fs::create_dir_all(&folder)?;
    let image = VmImage::provide(&folder, wanted.fresh)?;
    let emulated = !host::has_virtualisation();
    println!(
        "    Debian kernel {}, {}",
        image.kernel_version,
        if emulated { "emulated (the CPU has neither svm nor vmx)" } else { "KVM" }
    );
    let played: Vec<Played> = scenarios
        .into_iter()
        .map(|scenario| play(scenario, &program, &image, wanted))
        .collect::<Result<_>>()?;
    if let Some(markdown) = &wanted.markdown {
        fs::write(markdown, page::page(&image, &played, emulated))
            .with_context(|| markdown.display().to_string())?;
    }
    if let Some(file) = &wanted.figures {
        fs::write(file, figures(&played)).with_context(|| file.display().to_string())?;
    }
    Ok(finish(&played))
}

/// Returns the measurements as JSON, which `forebay lab run --beside` reads.
fn figures(played: &[Played]) -> String {
    let all = played.iter().flat_map(|played| &played.figures);
    let all = all
        .map(|it| json!({ "what": it.what, "with": it.name, "unit": it.unit, "value": it.value }));
    Value::Array(all.collect()).to_string()
}

fn play(
    scenario: &Scenario,
    program: &Path,
    image: &VmImage,
    wanted: &VmTestOptions,
) -> Result<Played> {
    println!("==> {}: {}", scenario.name, scenario.shows);
    let start = Instant::now();
    let folder = tempfile::Builder::new().prefix("forebay-vm-").tempdir()?;
    let mut stage = VmScenarioStage::new(program, image, folder.path().to_owned(), wanted.all);
    let played = (scenario.play)(&mut stage);
    let played = played.and_then(|()| {
        ensure!(!stage.held.is_empty(), "the scenario shows nothing");
        Ok(())
    });
    let failed = played.err().map(|error| format!("{error:#}"));
    if let Some(failed) = &failed {
        println!("{}{}", stage.consoles(), events(folder.path()));
        println!("{} failed: {failed}", scenario.name);
    }
    stage.held.iter().for_each(|what| println!("    held: {what}"));
    stage.not_run.iter().for_each(|(what, why)| println!("    not run: {what}: {why}"));
    let VmScenarioStage { release, held, not_run, figures, .. } = stage;
    figures.iter().for_each(|it| println!("    {}: {:.1} {}", it.name, it.value, it.unit));
    if wanted.keep {
        println!("    files kept in {}", folder.keep().display());
    }
    let Scenario { name, shows, .. } = *scenario;
    Ok(Played { name, shows, took: start.elapsed(), release, held, not_run, figures, failed })
}

/// Returns the last 20 events of each of our processes that a scenario started.
fn events(folder: &Path) -> String {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|end| end == "events")).collect();
    files.sort();
    let texts = files.iter().map(|path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let name = path.file_stem().unwrap_or_default().display();
        format!("--- events of {name}\n{}\n", lines[lines.len().saturating_sub(20)..].join("\n"))
    });
    texts.collect()
}

/// Prints the table, the steps that were not run, and on the last line the counts. Returns true if
/// no scenario failed.
fn finish(played: &[Played]) -> bool {
    let rows = played.iter().map(|played| {
        let result = match &played.failed {
            Some(failed) => format!("FAILED: {}", failed.lines().next().unwrap_or_default()),
            None => format!("{} held", played.held.len()),
        };
        vec![played.name.to_owned(), format!("{:.1} s", played.took.as_secs_f64()), result]
    });
    print!("\n{}", table(&["scenario", "time", "result"], rows));
    for Played { name, not_run, .. } in played {
        not_run.iter().for_each(|(what, why)| println!("not run by {name}: {what}: {why}"));
    }
    println!("{}", counts(played));
    played.iter().all(|played| played.failed.is_none())
}

/// Returns a line with the numbers of scenarios that passed and failed, and of steps that were not
/// run.
fn counts(played: &[Played]) -> String {
    let failed = played.iter().filter(|played| played.failed.is_some()).count();
    let not_run: usize = played.iter().map(|played| played.not_run.len()).sum();
    format!("{} passed, {failed} failed; steps not run: {not_run}", played.len() - failed)
}
