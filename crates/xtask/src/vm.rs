//! `cargo xtask vm-test`: a real kernel's initiator against our target, and its target against our
//! initiator, in a virtual machine that is made from Debian packages.

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

/// What a run is asked for.
pub struct VmTestOptions {
    /// Names of scenarios; all if none.
    pub scenarios: Vec<String>,
    /// Everything of each, however long it takes.
    pub all: bool,
    /// Make the machine anew, from the packages of today.
    pub fresh: bool,
    /// Keep the files of each scenario.
    pub keep: bool,
    /// The program to test; if nothing, a debug build.
    pub program: Option<PathBuf>,
    /// Write a page with what was found to this file.
    pub markdown: Option<PathBuf>,
    /// Write what was measured to this file, as JSON.
    pub figures: Option<PathBuf>,
}

/// How a scenario went.
pub struct Played {
    /// The scenario.
    pub name: &'static str,
    /// What it is there to show.
    pub shows: &'static str,
    /// From boot to end.
    pub took: Duration,
    /// The release of the kernel.
    pub release: Option<String>,
    /// What held.
    pub held: Vec<String>,
    /// Steps that were not run, and why.
    pub not_run: Vec<(String, String)>,
    /// What it measured.
    pub figures: Vec<VmScenarioFigure>,
    /// Why it failed, if it did.
    pub failed: Option<String>,
}

/// Prints the names of the scenarios and what they show.
pub fn list() {
    let rows = scenario::SCENARIOS.iter();
    let rows = rows.map(|scenario| vec![scenario.name.to_owned(), scenario.shows.to_owned()]);
    print!("{}", table(&["scenario", "shows"], rows));
}

/// Plays what is wanted; true if all held.
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

/// What was measured, for programs: `forebay lab run --beside` takes it.
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
        ensure!(!stage.held.is_empty(), "it shows nothing");
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

/// The last events of every program of ours that a scenario started.
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

/// Prints the table, what was not run and, alone on the last line, the counts.
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

/// How many scenarios passed and failed, and how many steps of all of them were not run.
fn counts(played: &[Played]) -> String {
    let failed = played.iter().filter(|played| played.failed.is_some()).count();
    let not_run: usize = played.iter().map(|played| played.not_run.len()).sum();
    format!("{} passed, {failed} failed; steps not run: {not_run}", played.len() - failed)
}
