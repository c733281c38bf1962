//! The crash simulator: the real cache loses its power, or is killed, at every operation.
//!
//! After recovery every sector must hold its last acknowledged value or a later submitted one, and nothing else. The
//! test prints the number of crash points; `FOREBAY_CRASH_POINTS=n` sets how many are tried, and
//! `FOREBAY_CRASH_SEED=n` runs a single script.

use std::{
    io::Write,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use crate::support::{
    hardware::{End, Mutation},
    workload::{Script, World, check, run},
};
use cache::Mutant;
use sim::Rng;

/// The operation during which a run ends.
#[derive(Clone, Copy, Debug)]
enum Point {
    Disk(u64),
    Nvram(u64),
}

/// Runs a script up to one crash point, recovers, and checks the result.
fn crash(script: &Script, point: Point) -> Result<(), String> {
    let seed = script.seed;
    let hardware = script.hardware();
    match point {
        Point::Disk(n) => hardware.power.fail_after(n),
        Point::Nvram(n) => hardware.fail_nvram_after(n),
    }
    let world = World::new(script);
    run(script, &hardware, &world, seed);
    fault(&world)?;
    let number = match point {
        Point::Disk(n) | Point::Nvram(n) => n,
    };
    let mut rng = Rng::new(seed.wrapping_add(number << 20));
    let mut end = [End::Power, End::Power, End::NearPower, End::Kill][rng.below(4) as usize];
    // The fault `OpeningNotFlushed` shows only if the process is killed and the power fails soon afterwards.
    let is_of_opening = script.mutation == Mutation::OpeningNotFlushed;
    if is_of_opening {
        end = End::Kill;
    }
    let remains = hardware.end(end, &mut rng);
    drop(hardware);
    world.check_drained(&remains.lower_contents().read(0..script.geometry.bytes()))?;
    // With the fault `OpeningNotFlushed`, do not open the cache in between, because that would make everything
    // stable.
    let remains = match is_of_opening {
        true => remains,
        false => check(script, remains, &world, number % 4 == 0, rng.next_u64())?,
    };
    // Continue some scripts with the disk contents after the crash, up to a second crash.
    if is_of_opening || number % 5 == 0 {
        let seed = rng.next_u64() >> 8;
        let hardware = crate::support::hardware::Hardware::reopen(remains, seed)
            .mutated(script.mutation)
            .with_delays(script.delay, script.log_delay);
        hardware.power.fail_after(rng.below(60));
        run(script, &hardware, &world, seed);
        fault(&world)?;
        let remains = hardware.end(End::Power, &mut rng);
        check(script, remains, &world, false, rng.next_u64())?;
    }
    Ok(())
}

fn fault(world: &World) -> Result<(), String> {
    world.fault.lock().take().map_or(Ok(()), Err)
}

/// Returns the numbers of disk and NVRAM operations of a script that runs without a crash.
fn operations(script: &Script) -> Result<(u64, u64), String> {
    let hardware = script.hardware();
    let world = World::new(script);
    run(script, &hardware, &world, script.seed);
    fault(&world)?;
    Ok(hardware.operations())
}

/// Runs a script once for each of its operations and crashes there. Returns the number of crashes.
fn crash_everywhere(script: &Script) -> Result<u64, String> {
    let (disk, nvram) = operations(script).map_err(|fault| format!("without a crash: {fault}"))?;
    let points = (0..disk).map(Point::Disk).chain((0..nvram).map(Point::Nvram));
    let mut count = 0;
    for point in points {
        crash(script, point).map_err(|fault| format!("{point:?}: {fault}"))?;
        count += 1;
    }
    Ok(count)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn nothing_acknowledged_is_lost_at_any_crash_point() {
    if let Some(seed) = number("FOREBAY_CRASH_SEED") {
        let script = Script::new(seed);
        println!("{script:#?}");
        println!("{} crash points", crash_everywhere(&script).unwrap());
        return;
    }
    let wanted = number("FOREBAY_CRASH_POINTS").unwrap_or(POINTS);
    let (next, done) = (AtomicU64::new(1), AtomicU64::new(0));
    let failure = Mutex::new(None);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while done.load(Ordering::Relaxed) < wanted {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    match crash_everywhere(&Script::new(seed)) {
                        Ok(count) => drop(done.fetch_add(count, Ordering::Relaxed)),
                        Err(fault) => {
                            failure.lock().unwrap().get_or_insert(format!("seed {seed}: {fault}"));
                            return;
                        }
                    }
                    if failure.lock().unwrap().is_some() {
                        return;
                    }
                }
            });
        }
    });
    // Write to stdout directly: the test harness hides the output of a test that passes.
    writeln!(
        std::io::stdout(),
        "{} crash points in {} scripts, {:.1} s",
        done.load(Ordering::Relaxed),
        next.load(Ordering::Relaxed) - 1,
        started.elapsed().as_secs_f64()
    )
    .expect("stdout is there");
    let failure = failure.into_inner().unwrap();
    assert_eq!(failure, None, "set FOREBAY_CRASH_SEED to see that script alone");
    assert!(done.into_inner() >= wanted);
}

/// Regression: the write of the second superblock failed in the middle, and the next write began with the first copy.
/// A crash during that write left both copies damaged.
#[test]
fn a_superblock_copy_whose_write_failed_is_rewritten_before_the_intact_copy() {
    crash_everywhere(&Script::new(167)).unwrap();
}

#[test]
fn the_scripts_reach_every_path() {
    let mut sums = [0; 17];
    for seed in 1..=REACHING_SCRIPTS {
        let script = Script::new(seed);
        let world = World::new(&script);
        run(&script, &script.hardware(), &world, seed);
        fault(&world).unwrap();
        let s = world.statistics.lock().clone();
        let counted = [
            s.hits.hits_nvram,
            s.hits.hits_dram,
            s.hits.hits_log,
            s.hits.hits_tier,
            s.hits.misses,
            s.hits.read_ahead_bytes,
            s.log.commits,
            s.destage.rounds,
            s.destage.destaged_runs,
            s.destage.absorbed_slots,
            s.traffic.bypassed,
            s.traffic.refused_busy,
            s.lower.errors,
            s.traffic.flushes,
            world.resizes.load(Ordering::Relaxed),
            world.drains.load(Ordering::Relaxed),
            world.log_failures.load(Ordering::Relaxed),
        ];
        sums.iter_mut().zip(counted).for_each(|(sum, n)| *sum += n);
    }
    println!("{sums:?}");
    assert!(sums.iter().all(|&sum| sum >= LEAST_REACHED), "{sums:?}");
}

/// Returns the first seed with which the simulator notices the mutation.
fn noticed(mutation: Mutation, first: u64) -> Option<u64> {
    (first..first + MUTANT_SCRIPTS).find(|&seed| {
        let script = Script { mutation, ..Script::new(seed) };
        let noticed = crash_everywhere(&script).err();
        if let Some(how) = &noticed {
            println!("{mutation:?}, seed {seed}: {how}");
        }
        noticed.is_some()
    })
}

/// Leaves out each sync on which the cache relies, one at a time, and injects other faults. The simulator must notice
/// each of them; otherwise it would not notice such a bug.
#[test]
fn every_omitted_sync_is_detected() {
    // Start with a seed that is known to notice the fault, to save time.
    let all = [
        (Mutation::LogNotStable, 2),
        (Mutation::SuperblockNotStable, 2),
        (Mutation::OpeningNotFlushed, 1),
        (Mutation::LowerNotFlushed, 1),
        (Mutation::RoundNotFlushed, 2),
        (Mutation::DiscardNotFlushed, 1),
        (Mutation::BypassNotStable, 1),
        (Mutation::NvramForgets, 3),
        (Mutation::Cache(Mutant::RoundIgnoresClaims), 3),
        (Mutation::Cache(Mutant::BypassDoesNotWait), 5),
        (Mutation::Cache(Mutant::BypassDropsTheRest), 3),
        (Mutation::Cache(Mutant::BypassNotFlushed), 1),
        (Mutation::Cache(Mutant::BypassNotRecorded), 3),
        (Mutation::Cache(Mutant::BypassRecordedFirst), 3),
        (Mutation::Cache(Mutant::BypassAnsweredEarly), 3),
        (Mutation::Cache(Mutant::DrainDoesNotWait), 2),
        (Mutation::Cache(Mutant::ReadTellsEarly), 1),
    ];
    let first = all.map(|(mutation, first)| (mutation, noticed(mutation, first)));
    println!("{first:?}");
    let survivors: Vec<_> = first.iter().filter(|(_, seed)| seed.is_none()).collect();
    assert!(survivors.is_empty(), "{survivors:?}");
}

/// The index only saves reads at the start: without a stable index, the log is read instead, and no data is lost.
#[test]
fn an_index_that_is_not_stable_loses_nothing() {
    for seed in 1..=5 {
        let script = Script { mutation: Mutation::IndexNotStable, ..Script::new(seed) };
        crash_everywhere(&script).unwrap();
    }
}

/// Number of crash points if FOREBAY_CRASH_POINTS is not set.
const POINTS: u64 = 20_000;
/// Number of threads: a small machine has as many cores.
const THREADS: usize = 2;
/// Minimum number of times that the scripts reach each path.
const LEAST_REACHED: u64 = 20;
/// Number of scripts whose counters are added up.
const REACHING_SCRIPTS: u64 = 400;
/// Maximum number of scripts with which a mutation may stay unnoticed.
const MUTANT_SCRIPTS: u64 = 60;
