//! One round of the power suite: load, failure, restart, and the check of every sector against the
//! model.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use rawclient::ClientSession;

use super::load::{PowerRoundLoad, SHAPE, read};
use super::mode::{GATEWAY, NODE, PARTNER, PowerRoundFailure, PowerRoundMode, Variant};
use super::model::Model;
use super::site::{Judge, PowerSuiteSite};
use super::sites::SyncSite;
use crate::powercut::Chance;
use crate::powercut::supply::{Cut, MachineEnding};

/// The settings that all rounds of a mode have in common.
#[derive(Clone, Copy)]
pub struct PowerRoundPlan<'a> {
    pub program: &'a Path,
    pub mode: PowerRoundMode,
    pub failure: PowerRoundFailure,
    /// The sync site whose syncs the file system ignores.
    pub ignored: Option<SyncSite>,
}

/// A test site with its running processes, and the model of the volume that it serves.
pub struct Rig {
    site: PowerSuiteSite,
    pub model: Model,
    variant: Variant,
    failure: PowerRoundFailure,
}

/// Marks an error as a fault of the program: it has lost data or the record of a claim. An error without this mark,
/// such as a timeout, may come from the machine or the test.
#[derive(Debug)]
struct DataLossFault;

impl fmt::Display for DataLossFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a loss")
    }
}

/// Returns true if an error shows a loss: data, or the record of a gateway's exclusive right to write (claim), is
/// missing, or the program refused to start.
pub fn shows_a_loss(error: &Error) -> bool {
    error.downcast_ref::<DataLossFault>().is_some()
        || matches!(error.downcast_ref(), Some(program::Error::NotReady { .. }))
}

impl Rig {
    fn new(plan: &PowerRoundPlan<'_>) -> Result<Rig> {
        let judge: Judge = match plan.ignored {
            Some(site) => Arc::new(move |disk, sync| !site.is_of(disk, sync)),
            None => Arc::new(|_, _| true),
        };
        let engine = plan.ignored.and_then(|site| site.about().engine);
        let site = PowerSuiteSite::new(plan.program, plan.mode, engine.unwrap_or("auto"), judge)?;
        if plan.mode == PowerRoundMode::Changing {
            site.make_keys()?;
        }
        let variant = Variant::of(plan.mode);
        Ok(Rig { site, model: Model::new(), variant, failure: plan.failure })
    }

    pub fn events(&self) -> String {
        self.site.events()
    }

    /// Destages everything to the node, stops the gateway, makes the node fail once more, and
    /// checks the node's own volume. If the node has not made destaged data stable, this check
    /// finds the loss.
    pub fn finish(&mut self) -> Result<()> {
        self.site.settle().context("sending everything to the node")?;
        let ending = match self.failure {
            PowerRoundFailure::Kill => MachineEnding::Kill,
            PowerRoundFailure::Power => MachineEnding::Power { lag: Duration::ZERO },
        };
        self.site.supply.arm(Cut { operation: u64::MAX, machines: vec![NODE], ending });
        self.site.supply.cut_now();
        match self.failure {
            PowerRoundFailure::Kill => self.site.fall_alone(&[NODE])?,
            PowerRoundFailure::Power => self.site.fall(&[NODE], self.model.acknowledged)?,
        }
        self.site.raise_one(NODE, self.variant)?;
        let found = read(&self.site.far()?).context("the node's volume at the end")?;
        self.model.verify(&found).context(DataLossFault).context("the node's volume at the end")?;
        self.site.stop_one(NODE)
    }
}

/// Runs one round on `rig`, which is created first if there is none.
pub fn run(plan: &PowerRoundPlan<'_>, rig: &mut Option<Rig>, seed: u64) -> Result<()> {
    let mut chance = Chance::new(seed);
    let rig = match rig {
        Some(rig) => rig,
        None => {
            let rig = rig.insert(Rig::new(plan)?);
            // Let the machines fail up to two times during the first start, in which the program creates its files.
            for _ in 0..chance.below(3) {
                let is_kill = plan.failure == PowerRoundFailure::Kill || chance.percent(50);
                let failure =
                    if is_kill { PowerRoundFailure::Kill } else { PowerRoundFailure::Power };
                fail_in_start(rig, failure, &mut chance)?;
            }
            rig.site.raise(rig.variant)?;
            rig
        }
    };
    if plan.mode == PowerRoundMode::Changing {
        change_key(rig, &mut chance)?;
        change_sizes(rig, &mut chance)?;
    }
    let mut window = [30, 300, 1500][chance.below(3) as usize];
    if plan.failure == PowerRoundFailure::Power && chance.percent(20) {
        // Kill the processes, start them again, and cut the power without a read in between. At its start the program
        // must make stable what the killed process had written but not synced, since that process may have acknowledged
        // the data.
        let kill = draw(plan.mode, PowerRoundFailure::Kill, window, &mut chance);
        fail_under_load(rig, kill, &mut chance).context("a kill before the cut")?;
        change_settings(rig, &mut chance);
        if chance.percent(50) {
            let machines: Vec<usize> = (0..plan.mode.machines()).collect();
            fail_in_start(rig, PowerRoundFailure::Power, &mut chance)
                .context("the start after a kill")?;
            return rise(rig, &machines, &mut chance)
                .context("after a cut in the start after a kill");
        }
        rig.site.raise(rig.variant).context("the start after a kill")?;
        window = AFTER_KILL;
    }
    let cut = draw(plan.mode, plan.failure, window, &mut chance);
    let mut machines = cut.machines.clone();
    fail_under_load(rig, cut, &mut chance)?;
    if plan.mode.is_pair() && machines.len() == 1 && chance.percent(50) {
        // The surviving gateway takes writes without its partner. Then the surviving gateway fails, too, alone or
        // together with the node.
        let survivor = GATEWAY + PARTNER - machines[0];
        let victims = if chance.percent(50) { vec![survivor] } else { vec![NODE, survivor] };
        let cut = draw(plan.mode, plan.failure, ALONE, &mut chance);
        if rig.site.takes_over(survivor).context("one gateway was away")? {
            machines.extend(&victims);
            let cut = Cut { machines: victims, ..cut };
            fail_under_load(rig, cut, &mut chance).context("one gateway was away")?;
        }
    }
    rig.site.check_claim().context(DataLossFault)?;
    let before = rig.variant;
    change_settings(rig, &mut chance);
    rise(rig, &machines, &mut chance).with_context(|| match plan.mode {
        PowerRoundMode::Changing => format!("{before:?}, then {:?}", rig.variant),
        _ => "after the failure".into(),
    })
}

/// After processes were killed and started again, the power fails within this many operations. A later cut would test
/// nothing, since flushes of the load would have made all earlier writes stable.
const AFTER_KILL: u64 = 80;

/// The surviving gateway of a pair fails within this many operations. The takeover itself takes some of these
/// operations.
const ALONE: u64 = 1500;

/// Starts all machines that are down, sometimes with another failure during the start, and checks every sector.
fn rise(rig: &mut Rig, machines: &[usize], chance: &mut Chance) -> Result<()> {
    let starts_fail = machines.contains(&GATEWAY) && chance.percent(20);
    if starts_fail {
        fail_in_start(rig, rig.failure, chance)?;
    }
    // Read the node's own volume only while no gateway runs. A running gateway destages between two reads, so the reads
    // would see different epochs.
    let node_is_alone = [NODE, GATEWAY].iter().all(|machine| machines.contains(machine));
    if rig.site.mode == PowerRoundMode::AtFlush && node_is_alone {
        rig.site.raise_one(NODE, rig.variant)?;
        let far = read(&rig.site.far()?).context("the node's volume alone")?;
        rig.model.verify_behind(&far).context(DataLossFault).context("the node's volume alone")?;
    }
    let again = if starts_fail { " after a failure in the start before" } else { "" };
    rig.site.raise(rig.variant).with_context(|| format!("the start{again}"))?;
    let found = read(&rig.site.near(rig.site.serving()?)?)?;
    rig.model.verify(&found).context(DataLossFault)
}

/// The failure under load comes after this time at the latest, even if too few operations were counted.
const LOAD_LIMIT: Duration = Duration::from_secs(20);

/// Draws the moment and the machines of a failure.
fn draw(mode: PowerRoundMode, failure: PowerRoundFailure, window: u64, chance: &mut Chance) -> Cut {
    let victims = mode.victims(failure);
    let machines = victims[chance.below(victims.len() as u64) as usize].to_vec();
    Cut { operation: 1 + chance.below(window), machines, ending: ending(failure, 3000, chance) }
}

/// Draws how the processes end in a failure. In a power cut the processors continue to run for less than `most_lag`
/// microseconds.
fn ending(failure: PowerRoundFailure, most_lag: u64, chance: &mut Chance) -> MachineEnding {
    match failure {
        PowerRoundFailure::Kill => MachineEnding::Kill,
        PowerRoundFailure::Power => {
            MachineEnding::Power { lag: Duration::from_micros(chance.below(most_lag)) }
        }
    }
}

/// Writes until the failure begins, and then removes the killed processes from the site.
fn fail_under_load(rig: &mut Rig, cut: Cut, chance: &mut Chance) -> Result<()> {
    let Cut { machines, ending, .. } = cut.clone();
    let seed = chance.any();
    let serving = rig.site.serving()?;
    let mut session = ClientSession::open(&rig.site.near(serving)?, SHAPE)?;
    rig.site.supply.arm(cut);
    let promise = rig.variant.promise(rig.failure);
    let Rig { site, model, variant, .. } = rig;
    let supply = Arc::clone(&site.supply);
    let mut load =
        PowerRoundLoad { model, chance, supply: &supply, promise, writes: 0, wrong: None };
    let node_only = machines == [NODE];
    let is_victim = machines.contains(&serving);
    let (ended, fallen) = std::thread::scope(|scope| {
        // Run the load in another thread, since its commands may wait until this thread restarts the node. Start
        // processes in this thread, which outlives the load: the kernel kills a process when the thread that started it
        // ends (PR_SET_PDEATHSIG).
        let loading = scope.spawn(|| {
            let ended = session.run(&mut load);
            let was_cut = supply.is_cut();
            supply.cut_now();
            match ended {
                // Only the node has failed. The gateway must answer all commands in flight, and the model records the
                // answers.
                Ok(()) if node_only => session.drain(&mut load).map_err(|error| (error, false)),
                // The failed gateway has closed the connection: count the answers that it had sent before.
                Ok(()) if is_victim => {
                    let _ = session.drain(&mut load);
                    Ok(())
                }
                Ok(()) => Ok(()),
                Err(error) => Err((error, was_cut && is_victim)),
            }
        });
        supply.wait_cut(LOAD_LIMIT);
        supply.cut_now();
        let mut fallen = match ending {
            MachineEnding::Kill => site.fall_alone(&machines),
            MachineEnding::Power { .. } => site.fall(&machines, seed),
        };
        if node_only {
            fallen = fallen.and_then(|()| site.raise_one(NODE, *variant));
        }
        (loading.join(), fallen)
    });
    fallen?;
    let ended = ended.map_err(|_| anyhow!("the load panicked"))?;
    if let Some(wrong) = load.wrong.take() {
        bail!("{wrong}");
    }
    if let Err((error, false)) = ended
        && (is_victim || !rig.site.was_taken_over(serving)?)
    {
        return Err(error.context("the session ended though its gateway had power"));
    }
    drop(session);
    rig.model.lost_contact();
    Ok(())
}

/// Starts all machines that are down, and makes all of them fail during the start.
fn fail_in_start(rig: &mut Rig, failure: PowerRoundFailure, chance: &mut Chance) -> Result<()> {
    let machines: Vec<usize> = (0..rig.site.mode.machines()).collect();
    // The first 12 operations of a start create files and their names, so let half of the failures occur in this short
    // window.
    let window = [12, 80][chance.below(2) as usize];
    let operation = 1 + chance.below(window);
    let ending = ending(failure, 1000, chance);
    rig.site.supply.arm(Cut { operation, machines: machines.clone(), ending });
    let raised = rig.site.raise(rig.variant);
    if let Err(error) = raised {
        ensure!(rig.site.supply.is_cut(), "a start failed before the planned failure: {error:#}");
    }
    rig.site.supply.cut_now();
    match failure {
        PowerRoundFailure::Kill => rig.site.fall_alone(&machines),
        PowerRoundFailure::Power => rig.site.fall(&machines, chance.any()),
    }
}

/// In [`PowerRoundMode::Changing`], draws new settings for the gateway, which is down.
fn change_settings(rig: &mut Rig, chance: &mut Chance) {
    if rig.site.mode == PowerRoundMode::Changing {
        rig.variant = changed(rig.variant, chance);
    }
}

fn changed(variant: Variant, chance: &mut Chance) -> Variant {
    let mut pick = |of: &[&'static str]| of[chance.below(of.len() as u64) as usize];
    Variant {
        report: pick(&["after-complete", "immediate", "through", "around"]),
        order: pick(&["strict", "relaxed"]),
        nvram_survives: pick(&["restart", "power-loss"]),
        ..variant
    }
}

/// Sometimes changes the key of the log or removes it. A log takes a new key only while it is empty, so the gateway
/// drains and stops first.
fn change_key(rig: &mut Rig, chance: &mut Chance) -> Result<()> {
    let key = chance.below(3);
    if key == rig.variant.key || chance.percent(50) {
        return Ok(());
    }
    rig.site.settle()?;
    rig.variant.key = key;
    rig.site.raise(rig.variant)
}

/// Sometimes changes the size of the log or of the volume while they are in use. The program must make the new size
/// stable before it confirms the change: after a failure, it refuses to start with a file that is shorter than its
/// recorded size.
fn change_sizes(rig: &mut Rig, chance: &mut Chance) -> Result<()> {
    match chance.below(10) {
        0 | 1 => rig.site.resize_log([8, 12][chance.below(2) as usize]),
        2 if rig.variant.volume_mib < LARGEST_VOLUME => {
            rig.variant.volume_mib += 1;
            rig.site.grow_volume(rig.variant)
        }
        _ => Ok(()),
    }
}

/// Largest size of the volume in MiB. It starts at 4 MiB, and a rig lets it grow by at most four steps of 1 MiB.
const LARGEST_VOLUME: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_losses_and_refused_starts_show_that_a_sync_is_needed() {
        let lost =
            Err::<(), _>(anyhow!("3 sectors")).context(DataLossFault).context("after the failure");
        assert!(shows_a_loss(&lost.unwrap_err()));
        let refused = program::Error::NotReady { name: "node".to_owned(), said: String::new() };
        let refused = Err::<(), _>(Error::from(refused)).context("node does not get ready");
        assert!(shows_a_loss(&refused.context("the start").unwrap_err()));
        assert!(!shows_a_loss(&anyhow!("no line within 60s").context("the start")));
    }
}
