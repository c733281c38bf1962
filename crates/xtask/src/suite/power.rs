//! Power cuts of the real program: node and gateways run on file systems that forget, reorder and
//! tear what was not synced, hosts write over iSCSI, the power fails, and after the restart every
//! sector is checked against a model.

mod model;
mod mode;
mod load;
mod site_settings;
mod site;
mod sites;
mod round;

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result, anyhow, bail};

use crate::node;
use crate::powercut::{Chance, missing, private_namespace};
use crate::steps::{Steps, Tally};

pub use mode::Mode;
pub use sites::SyncSite;

/// The power cuts to run: modes, number and seed.
pub struct Wanted {
    /// Only this mode; all if none is named.
    pub mode: Option<Mode>,
    /// Cuts of each mode.
    pub cuts: u32,
    /// Seed of the images after the cuts.
    pub seed: u64,
    /// The sync site whose syncs change nothing.
    pub ignored: Option<SyncSite>,
}

/// Modes, or sites that are ignored, side by side: each waits for its own processes most of the time.
const SIDE_BY_SIDE: usize = 3;

/// The step of the suite; no cuts leave it out.
pub fn steps(steps: &mut Steps, program: &Path, cuts: u32) {
    if cuts == 0 {
        return steps.leave_out("power cuts of the real program (--power-cuts 0)");
    }
    if let Some(why) = missing() {
        return steps.leave_out(format!("power cuts of the real program: {why}"));
    }
    let wanted = Wanted { mode: None, cuts, seed: SEED, ignored: None };
    steps.run("power cuts of the real program, every mode", || run(program, &wanted));
}

/// `cargo xtask power-cuts`; true if all held, or every ignored site was caught.
pub fn command(program: Option<PathBuf>, ignored: Option<&str>, wanted: &Wanted) -> Result<bool> {
    if let Some(why) = missing() {
        bail!("{why}");
    }
    let program = program.map_or_else(node::build, Ok)?;
    match ignored {
        Some("all") => ignore(&program, &SyncSite::all(), wanted),
        Some(number) => {
            let number = number.parse().with_context(|| format!("'{number}' is no number"))?;
            ignore(&program, &[SyncSite::numbered(number)?], wanted)
        }
        None => {
            let mut steps = Steps::default();
            steps.run("power cuts of the real program", || run(&program, wanted));
            Ok(steps.finish())
        }
    }
}

/// The seed of the suite: it tries the same moments in every run.
pub const SEED: u64 = 17;

/// Cuts the power of every wanted mode; every cut is one case.
pub fn run(program: &Path, wanted: &Wanted) -> Result<Tally> {
    let modes: Vec<Mode> = wanted.mode.map_or(Mode::ALL.to_vec(), |mode| vec![mode]);
    let left = Mutex::new(modes.into_iter());
    let done: Mutex<Vec<Outcome>> = Mutex::new(vec![]);
    let next = || left.lock().expect("no panic in here").next();
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                while let Some(mode) = next() {
                    let outcome = cuts(program, mode, wanted);
                    println!("{}: {}", mode.name(), outcome.tally.note);
                    done.lock().expect("no panic in here").push(outcome);
                }
            });
        }
    });
    let done = done.into_inner().map_err(|_| anyhow!("a mode panicked"))?;
    let sum = |of: fn(&Outcome) -> u64| done.iter().map(of).sum::<u64>();
    let tally = Tally {
        passed: sum(|outcome| outcome.tally.passed),
        failed: sum(|outcome| outcome.tally.failed),
        note: String::new(),
    };
    let (writes, sectors) = (sum(|outcome| outcome.writes), sum(|outcome| outcome.sectors));
    Ok(tally.with_note(format!("{writes} writes acknowledged, {sectors} sectors verified")))
}

/// How the cuts of one mode went.
struct Outcome {
    tally: Tally,
    /// The last sentence of the first cut that did not hold.
    first_fault: Option<String>,
    writes: u64,
    sectors: u64,
}

/// All cuts of one mode. Some follow each other on the same files, as long as they hold.
fn cuts(program: &Path, mode: Mode, wanted: &Wanted) -> Outcome {
    let mut outcome = Outcome { tally: Tally::default(), first_fault: None, writes: 0, sectors: 0 };
    if let Err(error) = private_namespace() {
        println!("{}: {error:#}", mode.name());
        outcome.tally.count(false);
        return outcome;
    }
    let mut rig = None;
    for cut in 0..wanted.cuts {
        let seed = seed_of(wanted.seed, mode, cut);
        // Files are made once, and the names of new ones are synced then.
        let cuts_of_a_rig = if wanted.ignored.is_some() { 2 } else { 5 };
        if cut % cuts_of_a_rig == 0 {
            outcome.add(rig.take());
        }
        let held = round::run(program, mode, &mut rig, seed, wanted.ignored);
        match held {
            Ok(()) => outcome.tally.count(true),
            Err(error) => {
                println!(
                    "{}: cut {cut} of --seed {}: {error:#}\n{}",
                    mode.name(),
                    wanted.seed,
                    rig.as_ref().map_or_else(String::new, round::Rig::events)
                );
                outcome.first_fault.get_or_insert_with(|| in_a_line(&error));
                outcome.add(rig.take());
                outcome.tally.count(false);
                if wanted.ignored.is_some() {
                    // One loss shows that the site is needed.
                    break;
                }
            }
        }
    }
    outcome.add(rig.take());
    let mut note = format!("{} cuts held", outcome.tally.passed);
    if outcome.tally.failed > 0 {
        note += &format!(", {} did not", outcome.tally.failed);
    }
    outcome.tally.note = note;
    outcome
}

/// The reason of a fault for one cell of a table: what the program said last, or the innermost error.
fn in_a_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let said = text.lines().find_map(|line| line.strip_prefix("forebay: "));
    let told = said.unwrap_or_else(|| text.lines().next().unwrap_or_default());
    told.replace('|', "/").chars().take(240).collect()
}

impl Outcome {
    fn add(&mut self, rig: Option<round::Rig>) {
        let Some(rig) = rig else { return };
        self.writes += rig.model.acknowledged;
        self.sectors += rig.model.verified;
        if let Err(error) = rig.stop() {
            println!("{error:#}");
        }
    }
}

/// Every cut of every mode has a seed of its own.
fn seed_of(seed: u64, mode: Mode, cut: u32) -> u64 {
    let mode = Mode::ALL.iter().position(|other| *other == mode).unwrap_or(0) as u64;
    Chance::new(seed ^ mode << 32 ^ u64::from(cut) << 40).any()
}

/// `cargo xtask power-cuts --ignore-site`: cuts until a loss shows that a site is needed. Prints a row
/// for each site.
fn ignore(program: &Path, sites: &[SyncSite], wanted: &Wanted) -> Result<bool> {
    let left = Mutex::new(sites.iter().copied());
    let rows: Mutex<Vec<(usize, String, bool)>> = Mutex::new(vec![]);
    let next = || left.lock().expect("no panic in here").next();
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                while let Some(site) = next() {
                    let (how, is_right) = ignore_one(program, site, wanted);
                    println!("site {} {}: {how}", site.about().number, site.place().name);
                    let row = (site.about().number, how, is_right);
                    rows.lock().expect("no panic in here").push(row);
                }
            });
        }
    });
    let mut rows = rows.into_inner().map_err(|_| anyhow!("a mode panicked"))?;
    rows.sort_unstable();
    println!("\n| site | makes stable | without it |\n| --- | --- | --- |");
    for (number, how, _) in &rows {
        println!("| {number} | {} | {how} |", SyncSite::numbered(*number)?.place().name);
    }
    Ok(rows.iter().all(|(.., is_right)| *is_right))
}

/// How the power cuts of a site's modes show that it is needed, and whether that is what its entry says.
fn ignore_one(program: &Path, site: SyncSite, wanted: &Wanted) -> (String, bool) {
    let about = site.about();
    let modes = wanted.mode.map_or(about.modes.to_vec(), |mode| vec![mode]);
    let mut tried = 0;
    for mode in modes {
        let wanted = Wanted { mode: Some(mode), ignored: Some(site), ..*wanted };
        // A thread of its own for each mode, since each makes a namespace.
        let outcome =
            std::thread::scope(|scope| scope.spawn(|| cuts(program, mode, &wanted)).join());
        let Ok(outcome) = outcome else { return ("panicked".to_owned(), false) };
        tried += outcome.tally.passed + outcome.tally.failed;
        if let Some(why) = outcome.first_fault {
            return (format!("{}, cut {tried}: {why}", mode.name()), true);
        }
    }
    match about.reason {
        Some(reason) if tried == 0 => (reason.to_owned(), true),
        Some(reason) => (format!("not found in {tried} cuts: {reason}"), true),
        None => (format!("NOT FOUND in {tried} cuts"), false),
    }
}
