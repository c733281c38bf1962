//! Power cuts and kills of the real program. Node and gateways run on file systems that lose, reorder and tear unsynced
//! writes in a power cut. Hosts write over iSCSI until the power fails or processes are killed. After the restart every
//! sector is checked against a model.

mod model;
mod mode;
mod load;
mod site_settings;
mod site;
mod sites;
mod round;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rig::build;

use crate::powercut::{Chance, missing, private_namespace};
use crate::side_steps::{KernelChange, StepNeed};
use crate::step_list::StepList;
use crate::steps::{StepTally, Steps};

pub use mode::{PowerRoundFailure, PowerRoundMode};
pub use sites::SyncSite;

use round::{PowerRoundPlan, Rig};

pub struct PowerSuiteOptions {
    /// The only mode to run; `None` to run all modes.
    pub mode: Option<PowerRoundMode>,
    /// The kind of failure that ends the load of each round.
    pub failure: PowerRoundFailure,
    /// Number of rounds of each mode.
    pub rounds: u32,
    /// Seed of the moments of failure, and of the images that power cuts leave.
    pub seed: u64,
    /// The sync site whose syncs the file system ignores.
    pub ignored: Option<SyncSite>,
}

/// Number of rigs that run concurrently. The number is larger than that of processors, because a rig mostly waits for
/// its own processes, and the gateways of a pair wait for `dead_after`.
const SIDE_BY_SIDE: usize = 5;

/// Adds a step for each kind of failure. A kind with 0 rounds is left out.
pub fn steps<'a>(list: &mut StepList<'a>, program: &'a Path, kills: u32, cuts: u32) {
    let both = [
        (PowerRoundFailure::Kill, kills, "--kill-rounds 0"),
        (PowerRoundFailure::Power, cuts, "--power-cuts 0"),
    ];
    for (failure, rounds, none) in both {
        let name = title(failure);
        if rounds == 0 {
            list.leave_out(format!("{name} ({none})"));
        } else if let Some(why) = missing() {
            list.leave_out(format!("{name}: {why}"));
        } else {
            let wanted =
                PowerSuiteOptions { mode: None, failure, rounds, seed: SEED, ignored: None };
            // Each rig creates a mount namespace, and with it copies of other steps' mounts, which keep the devices of
            // these steps in use.
            let need = StepNeed::BUSY.changing(KernelChange::Namespaces);
            list.add_with(need, &format!("{name}, every mode"), move || run(program, &wanted));
        }
    }
}

fn title(failure: PowerRoundFailure) -> &'static str {
    match failure {
        PowerRoundFailure::Kill => "kill -9 rounds of the real program",
        PowerRoundFailure::Power => "power cuts of the real program",
    }
}

/// Runs `cargo xtask power-cuts` or `kill-rounds`. Returns true if no round found a fault. If `ignored` names syncs to
/// ignore, returns true if the file system lost data without each of these syncs, or the table has a reason why no loss
/// is seen.
pub fn command(
    program: Option<PathBuf>,
    ignored: Option<&str>,
    wanted: &PowerSuiteOptions,
) -> Result<bool> {
    if let Some(why) = missing() {
        bail!("{why}");
    }
    let program = program.map_or_else(build::build, Ok)?;
    match ignored {
        Some("all") => ignore(&program, &SyncSite::all(), wanted),
        Some(number) => {
            let number = number.parse().with_context(|| format!("'{number}' is no number"))?;
            ignore(&program, &[SyncSite::numbered(number)?], wanted)
        }
        None => {
            let mut steps = Steps::new(None);
            steps.run(title(wanted.failure), || run(&program, wanted));
            Ok(steps.finish())
        }
    }
}

/// The default seed. It is fixed, so that every run draws the same moments of failure.
pub const SEED: u64 = 17;

/// Runs the rounds of all modes that `wanted` selects. Each round counts as one test case.
pub fn run(program: &Path, wanted: &PowerSuiteOptions) -> Result<StepTally> {
    let modes: Vec<PowerRoundMode> =
        wanted.mode.map_or(PowerRoundMode::ALL.to_vec(), |mode| vec![mode]);
    let rigs = (0..wanted.rounds).step_by(ROUNDS_OF_A_RIG as usize);
    let left = Mutex::new(rigs.flat_map(|first| modes.iter().map(move |mode| (*mode, first))));
    let outcomes = modes.iter().map(|mode| (*mode, PowerRoundResults::default())).collect();
    let outcomes: Mutex<Vec<(PowerRoundMode, PowerRoundResults)>> = Mutex::new(outcomes);
    let progress =
        Mutex::new(PowerSuiteProgress::of(u64::from(wanted.rounds) * modes.len() as u64));
    let next = || left.lock().expect("no panic in here").next();
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                while let Some((mode, first)) = next() {
                    let numbers = first..(first + ROUNDS_OF_A_RIG).min(wanted.rounds);
                    let found = rounds(program, mode, wanted, numbers);
                    let mut outcomes = outcomes.lock().expect("no panic in here");
                    let of_mode = outcomes.iter_mut().find(|(other, _)| *other == mode);
                    let outcome = &mut of_mode.expect("each mode has one").1;
                    outcome.add(found);
                    if outcome.rounds() == u64::from(wanted.rounds) {
                        println!("{}: {}", mode.name(), outcome.note());
                    }
                    progress.lock().expect("no panic in here").report(&outcomes);
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().map_err(|_| anyhow!("a mode panicked"))?;
    let mut all = PowerRoundResults::default();
    outcomes.into_iter().for_each(|(_, outcome)| all.add(outcome));
    let note = format!("{} writes acknowledged, {} sectors verified", all.writes, all.sectors);
    Ok(all.tally.with_note(note))
}

/// The progress of a long run, printed once a minute.
struct PowerSuiteProgress {
    rounds: u64,
    begun: Instant,
    reported: Instant,
}

impl PowerSuiteProgress {
    fn of(rounds: u64) -> PowerSuiteProgress {
        let now = Instant::now();
        PowerSuiteProgress { rounds, begun: now, reported: now }
    }

    fn report(&mut self, outcomes: &[(PowerRoundMode, PowerRoundResults)]) {
        if self.reported.elapsed() < REPORT_EVERY {
            return;
        }
        self.reported = Instant::now();
        let done: u64 = outcomes.iter().map(|(_, outcome)| outcome.rounds()).sum();
        let failed: u64 = outcomes.iter().map(|(_, outcome)| outcome.tally.failed).sum();
        let minutes = self.begun.elapsed().as_secs() / 60;
        println!("{minutes} min: {done} of {} rounds, {failed} did not hold", self.rounds);
    }
}

const REPORT_EVERY: Duration = Duration::from_secs(60);

/// A rig is a set of processes and their files. One rig runs this number of rounds. After a round with a fault, the
/// next round gets new files.
const ROUNDS_OF_A_RIG: u32 = 5;

/// Number of rounds that a rig runs with an ignored sync. The number is small, since a rig creates its files only in
/// the first round, and some syncs matter only while files are created.
const IGNORING_ROUNDS_OF_A_RIG: u32 = 2;

/// The sums over several rounds of one mode.
#[derive(Default)]
struct PowerRoundResults {
    tally: StepTally,
    /// Why the first round that lost data has failed, in one line.
    first_loss: Option<String>,
    writes: u64,
    sectors: u64,
}

impl PowerRoundResults {
    fn add(&mut self, other: PowerRoundResults) {
        self.tally.passed += other.tally.passed;
        self.tally.failed += other.tally.failed;
        self.first_loss = self.first_loss.take().or(other.first_loss);
        self.writes += other.writes;
        self.sectors += other.sectors;
    }

    /// Adds the counters of a rig to the results. Dropping the rig ends its processes.
    fn add_rig(&mut self, rig: Option<Rig>) {
        if let Some(rig) = rig {
            self.writes += rig.model.acknowledged;
            self.sectors += rig.model.verified;
        }
    }

    fn rounds(&self) -> u64 {
        self.tally.passed + self.tally.failed
    }

    fn note(&self) -> String {
        match &self.tally {
            StepTally { passed, failed: 0, .. } => format!("{passed} rounds held"),
            StepTally { passed, failed, .. } => format!("{passed} rounds held, {failed} did not"),
        }
    }
}

/// Runs some rounds of one mode on one rig. After a round with a fault, the next round makes a new rig.
fn rounds(
    program: &Path,
    mode: PowerRoundMode,
    wanted: &PowerSuiteOptions,
    numbers: Range<u32>,
) -> PowerRoundResults {
    let mut outcome = PowerRoundResults::default();
    if let Err(error) = private_namespace() {
        println!("{}: {error:#}", mode.name());
        outcome.tally.failed += u64::from(numbers.end - numbers.start);
        return outcome;
    }
    let plan = PowerRoundPlan { program, mode, failure: wanted.failure, ignored: wanted.ignored };
    let mut rig = None;
    for number in numbers.clone() {
        let mut held = round::run(&plan, &mut rig, seed_of(wanted.seed, mode, number));
        let is_last = number + 1 == numbers.end;
        if let Some(rig) = rig.as_mut().filter(|_| is_last && held.is_ok()) {
            held = rig.finish();
        }
        outcome.tally.count(held.is_ok());
        let Err(error) = held else { continue };
        let (name, seed) = (mode.name(), wanted.seed);
        let events = rig.as_ref().map_or_else(String::new, Rig::events);
        println!("{name}: round {number} of --seed {seed}: {error:#}\n{events}");
        outcome.add_rig(rig.take());
        if round::shows_a_loss(&error) {
            outcome.first_loss.get_or_insert_with(|| in_a_line(&error));
        }
    }
    outcome.add_rig(rig);
    outcome
}

/// Returns the reason of a failed round for a table cell: the program's own error message if there is one, else the
/// first line of the error.
fn in_a_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let said = text.lines().find_map(|line| line.strip_prefix("forebay: "));
    let told = said.unwrap_or_else(|| text.lines().next().unwrap_or_default());
    told.replace('|', "/").chars().take(240).collect()
}

/// Returns the seed of one round of one mode; no two rounds share a seed.
fn seed_of(seed: u64, mode: PowerRoundMode, round: u32) -> u64 {
    let mode = PowerRoundMode::ALL.iter().position(|other| *other == mode).unwrap_or(0) as u64;
    Chance::new(seed ^ mode << 32 ^ u64::from(round) << 40).any()
}

/// Runs `cargo xtask power-cuts --ignore-site`: for each site, cuts the power until a loss shows that its sync is
/// needed. Prints a table row for each site.
fn ignore(program: &Path, sites: &[SyncSite], wanted: &PowerSuiteOptions) -> Result<bool> {
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

/// Cuts the power in each mode of a site while the file system ignores the site's syncs. Returns the result as text,
/// and true if it agrees with the site's entry in the table.
fn ignore_one(program: &Path, site: SyncSite, wanted: &PowerSuiteOptions) -> (String, bool) {
    let about = site.about();
    let modes = wanted.mode.map_or(about.modes.to_vec(), |mode| vec![mode]);
    let (mut tried, mut others) = (0, 0);
    for mode in modes {
        let wanted = PowerSuiteOptions { mode: Some(mode), ignored: Some(site), ..*wanted };
        for first in (0..wanted.rounds).step_by(IGNORING_ROUNDS_OF_A_RIG as usize) {
            let numbers = first..(first + IGNORING_ROUNDS_OF_A_RIG).min(wanted.rounds);
            let outcome = rounds(program, mode, &wanted, numbers);
            tried += outcome.rounds();
            others += outcome.tally.failed;
            if let Some(why) = outcome.first_loss {
                return (format!("{}, cut {tried}: {why}", mode.name()), true);
            }
        }
    }
    if others > 0 {
        return (format!("{others} of {tried} cuts failed without showing a loss"), false);
    }
    match about.reason {
        Some(reason) if tried == 0 => (reason.to_owned(), true),
        Some(reason) => (format!("not found in {tried} cuts: {reason}"), true),
        None => (format!("NOT FOUND in {tried} cuts"), false),
    }
}
