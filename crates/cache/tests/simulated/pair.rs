//! Tests of a pair of gateways: the power of either fails, links are cut, the unit is handed over, and hosts use
//! whichever gateway serves.
//!
//! 1. Every acknowledged write is there, whichever gateway serves later.
//! 2. After a later opening of the log has acknowledged a write, no earlier opening acknowledges any more.
//! 3. When all faults are repaired, one gateway serves and both legs hold all data, in bounded time.
//!
//! `FOREBAY_PAIR_SEEDS=n` sets how many histories are tried, `FOREBAY_PAIR_SEED=n` runs one.

use std::{io::Write, sync::Arc, time::Duration};

use crate::support::{
    gateway::{read, write},
    pair::{DEAD_AFTER, Nvram, Wire, World, Wrong},
    workload::runtime,
};
use parking_lot::Mutex;
use sim::Rng;
use tokio::time::{Instant, sleep, timeout};
use volume::Error;

/// The record of the hosts: for each slot, the newest acknowledged write and the newest attempted one.
#[derive(Default)]
struct Model {
    slots: Vec<(u8, u8)>,
    /// The opening that acknowledged the newest write of each slot, and the time.
    by: Vec<Option<(u64, Instant)>>,
    /// The number of the newest opening that has acknowledged a write.
    newest: u64,
    acknowledged: u64,
    /// Number of openings that have acknowledged a write.
    openings: u64,
    longest_pause: Duration,
    reads: u64,
    fault: Option<String>,
}

const SLOTS: u64 = 64;
/// Longest wait for a gateway that serves: an answer of the node may take ten seconds, and is needed at most twice.
const PATIENCE: Duration = Duration::from_secs(25);

/// Writes increasing numbers to random slots, at whichever gateway serves.
async fn host(world: Arc<World>, model: Arc<Mutex<Model>>, first: u64, mut rng: Rng) {
    let mut last = Instant::now();
    loop {
        let slot = first + 2 * rng.below(SLOTS / 2);
        let value = {
            let mut model = model.lock();
            let value = model.slots[slot as usize].1 + 1;
            if value > 250 {
                return;
            }
            model.slots[slot as usize].1 = value;
            value
        };
        let mut at = rng.below(2) as usize;
        loop {
            at = 1 - at;
            let Some((opening, cache)) = world.served(at) else {
                sleep(Duration::from_millis(20)).await;
                continue;
            };
            let written = timeout(DEAD_AFTER * 5, write(&cache, slot * 8, value, 8)).await;
            // A gateway without power cannot answer: ignore the result.
            let is_there = world.served(at).is_some_and(|(number, _)| number == opening);
            if is_there && matches!(written, Ok(Ok(()))) {
                let mut model = model.lock();
                if opening < model.newest {
                    let newest = model.newest;
                    model.fault = Some(format!("{opening} acknowledges after {newest} has"));
                }
                model.openings += u64::from(opening > model.newest);
                model.newest = model.newest.max(opening);
                model.slots[slot as usize].0 = value;
                model.by[slot as usize] = Some((opening, Instant::now()));
                model.acknowledged += 1;
                model.longest_pause = model.longest_pause.max(last.elapsed());
                last = Instant::now();
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
        sleep(Duration::from_millis(1 + rng.below(400))).await;
    }
}

/// Reads from whichever gateway answers. The result must not be older than the last acknowledged write.
async fn reader(world: Arc<World>, model: Arc<Mutex<Model>>, mut rng: Rng) {
    loop {
        sleep(Duration::from_millis(1 + rng.below(100))).await;
        let (at, slot) = (rng.below(2) as usize, rng.below(SLOTS));
        let Some((opening, cache)) = world.served(at) else { continue };
        let least = model.lock().slots[slot as usize].0;
        let found = timeout(DEAD_AFTER * 5, read(&cache, slot * 8, 8)).await;
        let is_there = world.served(at).is_some_and(|(number, _)| number == opening);
        if let Ok(Ok(found)) = found
            && is_there
        {
            let mut model = model.lock();
            model.reads += 1;
            let most = model.slots[slot as usize].1;
            if found.iter().any(|&value| value < least || value > most) {
                let by = model.by[slot as usize].map(|(by, at)| (by, at.elapsed()));
                model.fault.get_or_insert(format!(
                    "{opening} gives {found:?} of slot {slot}: {least} was acknowledged ({by:?}), {most} \
                     tried; {}",
                    world.describe()
                ));
            }
        }
    }
}

/// Injects faults into the two gateways, the node and their links.
async fn misfortune(world: &Arc<World>, rng: &mut Rng) {
    for _ in 0..12 {
        let pause = Duration::from_millis(rng.below(9000));
        match rng.below(9) {
            0..3 => {
                let index = rng.below(2) as usize;
                // Data is lost if both NVRAMs are lost, so the power fails only while both gateways hold all data.
                if world.nvram == Nvram::SurvivesProcess && !world.is_whole() {
                    world.end_process(index);
                } else {
                    world.kill(index);
                }
                sleep(Duration::from_millis(rng.below(12_000))).await;
                if rng.chance(80) {
                    world.start(index);
                }
            }
            3 => world.set(Wire::Gateways, rng.chance(50)),
            4 => world.set(Wire::ToNode(rng.below(2) as usize), rng.chance(50)),
            5 => {
                world.set(Wire::ToNode(0), false);
                world.set(Wire::ToNode(1), false);
            }
            6 => {
                let _ = world.change_places(rng.below(2) as usize);
            }
            7 => {
                // Isolate one gateway from its partner and from the node: only hosts can reach it.
                world.set(Wire::Gateways, false);
                world.set(Wire::ToNode(rng.below(2) as usize), false);
            }
            _ => restore_all(world),
        }
        sleep(pause).await;
    }
}

fn restore_all(world: &Arc<World>) {
    world.set(Wire::Gateways, true);
    for index in 0..2 {
        world.set(Wire::ToNode(index), true);
        world.start(index);
    }
}

async fn until_whole(world: &World, within: Duration) -> Result<(), String> {
    let whole = async {
        while !world.is_whole() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    let late = |_| format!("it does not become whole: {}", world.describe());
    timeout(within, whole).await.map_err(late)
}

async fn check(world: &World, model: &Mutex<Model>) -> Result<(), String> {
    // Read until a gateway answers: a handover may be in progress, or a gateway may wait for the node's grant to
    // continue alone.
    let begun = Instant::now();
    let data = loop {
        let found = match (0..2).find_map(|index| world.served(index)) {
            Some((_, cache)) => read(&cache, 0, (SLOTS * 8) as u32).await,
            None => Err(Error::Busy("no gateway serves")),
        };
        match found {
            Ok(data) => break data,
            Err(Error::Busy(_) | Error::Fenced(_)) if begun.elapsed() < PATIENCE => {
                sleep(Duration::from_millis(50)).await;
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    let model = model.lock();
    if let Some(fault) = &model.fault {
        return Err(fault.clone());
    }
    for (slot, &(least, most)) in model.slots.iter().enumerate() {
        let found = &data[slot * 8..][..8];
        if found.iter().any(|&value| value != found[0] || value < least || value > most) {
            return Err(format!(
                "slot {slot} holds {found:?}: {least} was acknowledged, {most} tried"
            ));
        }
    }
    Ok(())
}

/// Runs one random history of writes and faults. Returns the number of acknowledged writes and the number of openings
/// that acknowledged them.
async fn history(seed: u64, wrong: Wrong, nvram: Nvram) -> Result<(u64, u64), String> {
    let mut rng = Rng::new(seed);
    let world = World::with_nvram(seed, wrong, nvram);
    let slots = vec![(0, 0); SLOTS as usize];
    let model =
        Arc::new(Mutex::new(Model { slots, by: vec![None; SLOTS as usize], ..Model::default() }));
    restore_all(&world);
    until_whole(&world, Duration::from_secs(60))
        .await
        .map_err(|error| format!("at first, {error}"))?;
    let hosts = [0, 1].map(|first| {
        tokio::spawn(host(Arc::clone(&world), Arc::clone(&model), first, rng.fork())).abort_handle()
    });
    let reader = reader(Arc::clone(&world), Arc::clone(&model), rng.fork());
    let reader = tokio::spawn(reader).abort_handle();
    misfortune(&world, &mut rng).await;
    restore_all(&world);
    let whole = until_whole(&world, Duration::from_secs(300)).await;
    hosts.iter().for_each(tokio::task::AbortHandle::abort);
    reader.abort();
    let fault = model.lock().fault.take();
    fault.map_or(Ok(()), Err)?;
    whole?;
    check(&world, &model).await?;
    // Kill the active gateway, to check that the standby gateway also has all data.
    until_whole(&world, Duration::from_secs(60)).await?;
    let active = usize::from(world.served(0).is_none());
    world.kill(active);
    let begun = Instant::now();
    while world.served(1 - active).is_none() {
        if begun.elapsed() > PATIENCE {
            return Err(format!("the partner does not take over: {}", world.describe()));
        }
        sleep(Duration::from_millis(50)).await;
    }
    check(&world, &model).await?;
    let model = model.lock();
    if model.reads < model.acknowledged / 10 {
        return Err(format!("{} reads, {} writes", model.reads, model.acknowledged));
    }
    Ok((model.acknowledged, model.openings))
}

fn run(seed: u64, wrong: Wrong, nvram: Nvram) -> Result<(u64, u64), String> {
    let ended = runtime().block_on(history(seed, wrong, nvram));
    ended.map_err(|fault| format!("seed {seed}, {nvram:?}: {fault}"))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn no_acknowledged_write_is_lost_and_two_gateways_never_acknowledge_concurrently() {
    histories(Nvram::None, SEEDS);
}

#[test]
fn no_write_that_both_nvrams_have_is_lost_though_power_fails_at_both() {
    histories(Nvram::SurvivesPower, NVRAM_SEEDS);
}

#[test]
fn no_write_that_both_nvrams_have_is_lost_with_one_of_them() {
    histories(Nvram::SurvivesProcess, NVRAM_SEEDS);
}

fn histories(nvram: Nvram, seeds: u64) {
    if let Some(seed) = number("FOREBAY_PAIR_SEED") {
        println!("{:?}", run(seed, Wrong::Nothing, nvram).unwrap());
        return;
    }
    let seeds = number("FOREBAY_PAIR_SEEDS").unwrap_or(seeds);
    let (mut acknowledged, mut openings) = (0, 0);
    for seed in 1..=seeds {
        let (writes, openings_here) = run(seed, Wrong::Nothing, nvram).unwrap();
        acknowledged += writes;
        openings += openings_here;
    }
    let text = format!(
        "{seeds} histories, {nvram:?}: {acknowledged} writes, acknowledged by {openings} openings"
    );
    writeln!(std::io::stdout(), "{text}").expect("stdout is there");
    assert!(openings > 2 * seeds, "{text}");
}

/// The active gateway is cut off from the node and from its partner, but hosts still reach it. Its partner takes over
/// and may acknowledge writes. Reads at the first gateway must fail from then on, because they would return old data.
#[test]
fn a_gateway_that_is_cut_off_returns_no_stale_data() {
    runtime().block_on(async {
        let world = World::new(1, Wrong::Nothing);
        restore_all(&world);
        until_whole(&world, Duration::from_secs(60)).await.unwrap();
        let cut_off = usize::from(world.served(0).is_none());
        let (_, before) = world.served(cut_off).expect("it serves");
        write(&before, 0, 1, 8).await.unwrap();
        assert_eq!(read(&before, 0, 8).await.unwrap(), [1; 8]);
        world.set(Wire::Gateways, false);
        world.set(Wire::ToNode(cut_off), false);
        let taken_over = async {
            loop {
                match world.served(1 - cut_off) {
                    Some((_, cache)) => break cache,
                    None => sleep(Duration::from_millis(20)).await,
                }
            }
        };
        let after = timeout(Duration::from_secs(20), taken_over).await.expect("taken over");
        assert!(read(&before, 0, 8).await.is_err(), "the partner may have taken a write");
        write(&after, 0, 2, 8).await.unwrap();
        assert_eq!(read(&after, 0, 8).await.unwrap(), [2; 8]);
        assert!(read(&before, 0, 8).await.is_err());
    });
}

/// A gateway was cut off from the node and from its partner. The partner has taken over, has acknowledged a write, and
/// is restarted; then it lends its leg of the log again. The gateway that was cut off must not accept this leg and
/// serve: the write is only on the leg of the partner.
#[test]
fn a_gateway_that_was_cut_off_returns_no_stale_data_when_its_partner_is_back() {
    runtime().block_on(async {
        let world = World::new(1, Wrong::Nothing);
        restore_all(&world);
        until_whole(&world, Duration::from_secs(60)).await.unwrap();
        let cut_off = usize::from(world.served(0).is_none());
        let (_, before) = world.served(cut_off).expect("it serves");
        write(&before, 0, 1, 8).await.unwrap();
        world.set(Wire::Gateways, false);
        world.set(Wire::ToNode(cut_off), false);
        let taken_over = async {
            loop {
                match world.served(1 - cut_off) {
                    Some((_, cache)) => break cache,
                    None => sleep(Duration::from_millis(20)).await,
                }
            }
        };
        let after = timeout(Duration::from_secs(20), taken_over).await.expect("taken over");
        let written = async {
            while write(&after, 0, 2, 8).await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(20), written).await.expect("acknowledged");
        world.kill(1 - cut_off);
        world.set(Wire::Gateways, true);
        world.start(1 - cut_off);
        for _ in 0..200 {
            sleep(Duration::from_millis(100)).await;
            let found = read(&before, 0, 8).await;
            assert!(found.is_err(), "the partner has taken a write: {found:?}");
        }
        // Connect the gateway to the node again. The claim at the node shows which leg is the newest.
        world.set(Wire::ToNode(cut_off), true);
        until_whole(&world, Duration::from_secs(60)).await.unwrap();
        let newest = async {
            loop {
                let served = (0..2).find_map(|index| world.served(index));
                let (_, now) = served.expect("one serves");
                match read(&now, 0, 8).await {
                    Ok(found) => break found,
                    Err(_) => sleep(Duration::from_millis(50)).await,
                }
            }
        };
        assert_eq!(timeout(PATIENCE, newest).await.expect("it is answered"), [2; 8]);
    });
}

/// Waits until a gateway of the pair serves the unit, and returns its cache.
async fn server(world: &World) -> Arc<cache::Cache> {
    let served = async {
        loop {
            match (0..2).find_map(|index| world.served(index)) {
                Some((_, cache)) => break cache,
                None => sleep(Duration::from_millis(20)).await,
            }
        }
    };
    timeout(Duration::from_secs(60), served).await.expect("somebody serves")
}

async fn write_slots(world: &World, value: u8, slots: u64) {
    let cache = server(world).await;
    for slot in 0..slots {
        let written = async {
            while write(&cache, slot * 8, value, 8).await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, written).await.expect("acknowledged");
    }
}

async fn expect_slots(world: &World, value: u8, slots: u64) {
    let cache = server(world).await;
    for slot in 0..slots {
        let found = async {
            loop {
                match read(&cache, slot * 8, 8).await {
                    Ok(found) => break found,
                    Err(_) => sleep(Duration::from_millis(20)).await,
                }
            }
        };
        let found = timeout(PATIENCE, found).await.expect("it is answered");
        assert_eq!(found, [value; 8], "slot {slot}");
    }
}

/// One leg is restored from a backup of the same run. The labels of both legs have the same epoch, and neither says
/// "used alone". The restored leg must be filled from the other one all the same.
#[test]
fn a_leg_restored_from_a_backup_of_this_run_is_filled_again() {
    for (index, is_paused) in [(0, false), (0, true), (1, false), (1, true)] {
        runtime().block_on(async {
            let world = World::calm(1);
            restore_all(&world);
            until_whole(&world, Duration::from_secs(60)).await.unwrap();
            write_slots(&world, 1, 20).await;
            if is_paused {
                server(&world).await.pause();
            }
            let backup = world.backup(index);
            write_slots(&world, 2, 20).await;
            (0..2).for_each(|index| world.kill(index));
            world.put_back(index, backup);
            restore_all(&world);
            // The gateway with the complete leg must serve the unit and fill the partner's leg.
            let filled = async {
                while !world.describe().contains("Filling") {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(Duration::from_secs(60), filled).await.expect("it is filled");
            assert!(world.served(1 - index).is_some(), "{}", world.describe());
            until_whole(&world, Duration::from_secs(60)).await.unwrap();
            expect_slots(&world, 2, 20).await;
            // Kill the other gateway: the restored leg must be complete, so its gateway must serve all data.
            world.kill(1 - index);
            sleep(DEAD_AFTER * 5).await;
            assert!(world.served(index).is_some(), "{}", world.describe());
            expect_slots(&world, 2, 20).await;
        });
    }
}

/// While the partner is off, a leg is restored from a backup and serves: no one can detect that the leg is old. When
/// the partner returns, neither leg may be overwritten, because each has writes that the other lacks.
#[test]
fn a_leg_restored_while_its_partner_was_off_does_not_overwrite_the_partner() {
    for is_paused in [false, true] {
        runtime().block_on(async {
            let world = World::calm(1);
            restore_all(&world);
            until_whole(&world, Duration::from_secs(60)).await.unwrap();
            write_slots(&world, 1, 20).await;
            if is_paused {
                server(&world).await.pause();
            }
            let backup = world.backup(0);
            write_slots(&world, 2, 20).await;
            (0..2).for_each(|index| world.kill(index));
            world.put_back(0, backup);
            world.start(0);
            write_slots(&world, 3, 2).await;
            world.start(1);
            sleep(Duration::from_secs(60)).await;
            assert!(!world.is_whole() && world.served(0).is_some(), "{}", world.describe());
            let reason = world.reason(0).expect("it tells why");
            assert!(reason.contains("restored from a backup"), "{reason}");
        });
    }
}

/// Kills gateway `dead`, waits until its partner continues alone, and writes 20 slots.
async fn go_on_alone(world: &World, dead: usize, value: u8) {
    world.kill(dead);
    sleep(DEAD_AFTER * 5).await;
    assert!(world.served(1 - dead).is_some(), "{}", world.describe());
    write_slots(world, value, 20).await;
}

/// A leg was used alone, and the node granted its claim. The other leg was then filled from it and got newer writes.
/// When the first leg is restored to its earlier state, it must not overrule the other leg.
#[test]
fn a_leg_restored_to_when_it_was_alone_does_not_overrule_the_leg_filled_from_it() {
    for is_seen in [false, true] {
        runtime().block_on(async {
            let world = World::calm(1);
            restore_all(&world);
            until_whole(&world, Duration::from_secs(60)).await.unwrap();
            go_on_alone(&world, 1, 1).await;
            let backup = world.backup(0);
            restore_all(&world);
            until_whole(&world, Duration::from_secs(60)).await.unwrap();
            write_slots(&world, 2, 20).await;
            (0..2).for_each(|index| world.kill(index));
            world.put_back(0, backup);
            if is_seen {
                restore_all(&world);
                until_whole(&world, Duration::from_secs(60)).await.unwrap();
                expect_slots(&world, 2, 20).await;
            } else {
                world.start(0);
                write_slots(&world, 3, 2).await;
                world.start(1);
                sleep(Duration::from_secs(60)).await;
                assert!(!world.is_whole() && world.served(0).is_some(), "{}", world.describe());
                let reason = world.reason(0).expect("it tells why");
                assert!(reason.contains("restored from a backup"), "{reason}");
            }
        });
    }
}

/// Both labels say "used alone". The node knows which of them was used last: the older leg must not serve.
#[test]
fn of_two_legs_marked_as_used_alone_the_older_one_does_not_serve() {
    runtime().block_on(async {
        let world = World::calm(1);
        restore_all(&world);
        until_whole(&world, Duration::from_secs(60)).await.unwrap();
        go_on_alone(&world, 1, 1).await;
        let backup = world.backup(0);
        restore_all(&world);
        until_whole(&world, Duration::from_secs(60)).await.unwrap();
        go_on_alone(&world, 0, 2).await;
        world.kill(1);
        world.put_back(0, backup);
        world.start(0);
        sleep(Duration::from_secs(60)).await;
        assert!(world.served(0).is_none(), "{}", world.describe());
        world.start(1);
        until_whole(&world, Duration::from_secs(60)).await.unwrap();
        expect_slots(&world, 2, 20).await;
    });
}

#[test]
fn a_unit_that_cannot_be_handed_over_is_served_again_at_once() {
    runtime().block_on(async {
        let world = World::calm(1);
        restore_all(&world);
        until_whole(&world, Duration::from_secs(60)).await.unwrap();
        let active = usize::from(world.served(0).is_none());
        write_slots(&world, 1, 20).await;
        // Cut the link while the cache is stopped, so that the partner does not receive the end of the log.
        world.change_places(active).expect("both have everything");
        while world.served(active).is_some() {
            sleep(Duration::from_micros(10)).await;
        }
        world.set(Wire::Gateways, false);
        sleep(Duration::from_millis(100)).await;
        world.set(Wire::Gateways, true);
        let again = async {
            while world.served(active).is_none() {
                sleep(Duration::from_millis(50)).await;
            }
        };
        let served = timeout(DEAD_AFTER * 5, again).await;
        assert!(served.is_ok(), "no other gateway can serve it: {}", world.describe());
        expect_slots(&world, 1, 20).await;
    });
}

#[test]
fn every_omitted_rule_is_detected() {
    for wrong in
        [Wrong::NoWitness, Wrong::EveryClaimGranted, Wrong::LateWrites, Wrong::StrayAnswers]
    {
        // Only a lost acknowledged write counts as noticing the fault. A pair that stops serving does not count.
        let is_loss = |fault: &String| fault.contains("acknowledge");
        let ends = (1..=MUTANT_SEEDS).map(|seed| run(seed, wrong, Nvram::None));
        let noticed = ends.filter_map(Result::err).find(is_loss);
        println!("{wrong:?}: {noticed:?}");
        assert!(noticed.is_some(), "{wrong:?} is not noticed");
    }
}

/// Number of histories if FOREBAY_PAIR_SEEDS is not set.
const SEEDS: u64 = 60;
/// Number of histories with each kind of NVRAM.
const NVRAM_SEEDS: u64 = 40;
/// Maximum number of histories with which a fault may stay unnoticed.
const MUTANT_SEEDS: u64 = 100;
