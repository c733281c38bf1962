//! One power cut: load, cut, draw, restart, look.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::load::{Load, SHAPE, read};
use super::mode::{GATEWAY, Mode, NODE, Variant};
use super::model::Model;
use super::site::{Judge, Site};
use super::sites::SyncSite;
use crate::client::Session;
use crate::powercut::Chance;
use crate::powercut::supply::Cut;

/// A site with what is known of its volume.
pub struct Rig {
    site: Site,
    pub model: Model,
    variant: Variant,
}

impl Rig {
    fn new(program: &Path, mode: Mode, ignored: Option<SyncSite>) -> Result<Rig> {
        let judge: Judge = match ignored {
            Some(site) => Arc::new(move |disk, sync| !site.is_of(disk, sync)),
            None => Arc::new(|_, _| true),
        };
        let engine = ignored.and_then(|site| site.about().engine);
        let site = Site::new(program, mode, engine.unwrap_or("auto"), judge)?;
        if mode == Mode::Changing {
            site.make_keys()?;
        }
        Ok(Rig { site, model: Model::new(), variant: Variant::of(mode) })
    }

    pub fn events(&self) -> String {
        self.site.events()
    }

    pub fn stop(self) -> Result<()> {
        self.site.stop()
    }
}

/// One cut of a rig, which is made if there is none.
pub fn run(
    program: &Path,
    mode: Mode,
    rig: &mut Option<Rig>,
    seed: u64,
    ignored: Option<SyncSite>,
) -> Result<()> {
    let mut chance = Chance::new(seed);
    let rig = match rig {
        Some(rig) => rig,
        None => {
            let rig = rig.insert(Rig::new(program, mode, ignored)?);
            // Processes may be killed, and the power may fail, while the files are made for the first time.
            for _ in 0..chance.below(3) {
                let end = if chance.percent(50) { End::Kill } else { End::Power(chance.any()) };
                end_in_start(rig, end, &mut chance)?;
            }
            rig.site.raise(rig.variant)?;
            rig
        }
    };
    if mode == Mode::Changing {
        change_key(rig, &mut chance)?;
    }
    let seed = chance.any();
    let cut = draw_cut(mode, &mut chance);
    let machines = cut.machines.clone();
    work(rig, cut, seed, &mut chance)?;
    rig.site.check_claim()?;
    let before = rig.variant;
    if mode == Mode::Changing {
        rig.variant = changed(rig.variant, &mut chance);
    }
    let starts_fail = machines.contains(&GATEWAY) && chance.percent(20);
    let rose = rise(rig, &machines, starts_fail, &mut chance);
    rose.with_context(|| match mode {
        Mode::Changing => format!("{before:?}, then {:?}", rig.variant),
        _ => "after the cut".into(),
    })
}

/// Starts what the cut has ended, perhaps with one more cut while it starts, and checks every sector.
fn rise(rig: &mut Rig, machines: &[usize], starts_fail: bool, chance: &mut Chance) -> Result<()> {
    if starts_fail {
        let end = End::Power(chance.any());
        end_in_start(rig, end, chance)?;
    }
    // A gateway that goes on destages between two reads, and they see different epochs.
    let node_is_alone = [NODE, GATEWAY].iter().all(|machine| machines.contains(machine));
    if rig.site.mode == Mode::AtFlush && node_is_alone {
        rig.site.raise_one(NODE, rig.variant)?;
        let far = read(&rig.site.far()?).context("the node's volume alone")?;
        rig.model.verify_behind(&far).context("the node's volume alone")?;
    }
    let again = if starts_fail { " after a power cut in the start before" } else { "" };
    rig.site.raise(rig.variant).with_context(|| format!("the start{again}"))?;
    let found = read(&rig.site.near()?)?;
    rig.model.verify(&found)
}

/// Under load the power fails by then, however few operations there were.
const LOAD_LIMIT: Duration = Duration::from_secs(20);

/// The moment and the machines of a cut.
fn draw_cut(mode: Mode, chance: &mut Chance) -> Cut {
    let victims = mode.victims();
    let machines = victims[chance.below(victims.len() as u64) as usize].to_vec();
    let window = [30, 300, 1500][chance.below(3) as usize];
    let operation = 1 + chance.below(window);
    Cut { operation, machines, lag: Duration::from_micros(chance.below(3000)) }
}

/// Writes until the power fails, and leaves on the disks what the seed draws.
fn work(rig: &mut Rig, cut: Cut, seed: u64, chance: &mut Chance) -> Result<()> {
    let machines = cut.machines.clone();
    let mut session = Session::open(&rig.site.near()?, SHAPE)?;
    rig.site.supply.arm(cut);
    let promise = rig.variant.promise();
    let Rig { site, model, variant } = rig;
    let supply = Arc::clone(&site.supply);
    let mut load = Load { model, chance, supply: &supply, promise, writes: 0, wrong: None };
    let node_only = machines == [NODE];
    let (ended, fallen) = std::thread::scope(|scope| {
        // The load has a thread of its own, since commands in flight may wait for the node to come back.
        // The machines fall and rise in this thread: the kernel kills a process that we started when
        // the thread that started it ends (PR_SET_PDEATHSIG).
        let loading = scope.spawn(|| {
            let ended = session.run(&mut load);
            let was_cut = supply.is_cut();
            supply.cut_now();
            match ended {
                // The gateway lives: everything in flight is answered, and its answers count.
                Ok(()) if node_only => session.drain(&mut load).map_err(|error| (error, false)),
                Ok(()) => Ok(()),
                Err(error) => Err((error, was_cut && !node_only)),
            }
        });
        supply.wait_cut(LOAD_LIMIT);
        supply.cut_now();
        let mut fallen = site.fall(&machines, seed);
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
    if let Err((error, false)) = ended {
        return Err(error.context("the session ended though its gateway had power"));
    }
    drop(session);
    rig.model.lost_contact();
    Ok(())
}

/// How processes end while they start.
enum End {
    /// `kill -9`: the system keeps what they wrote.
    Kill,
    /// The power fails, and this seed draws what is left.
    Power(u64),
}

/// Starts what is down, and ends everything while it starts.
fn end_in_start(rig: &mut Rig, end: End, chance: &mut Chance) -> Result<()> {
    let machines: Vec<usize> = (0..rig.site.mode.machines()).collect();
    // The first operations are those that make files and their names.
    let window = [12, 80][chance.below(2) as usize];
    let operation = 1 + chance.below(window);
    let lag = Duration::from_micros(chance.below(1000));
    rig.site.supply.arm(Cut { operation, machines: machines.clone(), lag });
    let raised = rig.site.raise(rig.variant);
    if let Err(error) = raised {
        ensure!(rig.site.supply.is_cut(), "a start whose power was to fail: {error:#}");
    }
    rig.site.supply.cut_now();
    match end {
        End::Kill => rig.site.fall_alone(&machines),
        End::Power(seed) => rig.site.fall(&machines, seed),
    }
}

/// Other settings for the gateway, by chance, for the start after a cut.
fn changed(variant: Variant, chance: &mut Chance) -> Variant {
    let mut pick = |of: &[&'static str]| of[chance.below(of.len() as u64) as usize];
    Variant {
        report: pick(&["after-complete", "immediate", "through"]),
        order: pick(&["strict", "relaxed"]),
        nvram_survives: pick(&["restart", "power-loss"]),
        ..variant
    }
}

/// Another key for the log, by chance: it takes one when nothing is in it, after a stop.
fn change_key(rig: &mut Rig, chance: &mut Chance) -> Result<()> {
    let key = chance.below(3);
    if key == rig.variant.key || chance.percent(50) {
        return Ok(());
    }
    rig.site.settle()?;
    rig.variant.key = key;
    rig.site.raise(rig.variant)
}
