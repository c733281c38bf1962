//! Gateway, link and node under the crash simulator: the power of gateway or node fails at every operation, and the
//! gateway's log may be lost completely.
//!
//! 1. With the log, every acknowledged write is there.
//! 2. Without it, the node has a consistent prefix of the gateway's volume: there is a moment such that each
//!    sector holds its newest write that was acknowledged before that moment, or one that was in progress then;
//!    nothing submitted after it is there. The moment is no earlier than the last drain.
//!    With relaxed order only this holds: the node has all writes that preceded the last drain. Writes
//!    that bypassed a failing log disk may be at the node early.
//!
//! `FOREBAY_CRASH_POINTS=n` sets how many points `crash` tries; this test tries 3 for every 20 of them, the same ratio
//! as without the variable. `FOREBAY_CRASH_SEED=n` runs one script; `FOREBAY_CRASH_WRONG=name` injects only that
//! fault.

use std::{
    io::Write,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use crate::support::{
    hardware::Mutation,
    site::{Site, Trial, Wrong},
    workload::World,
};
use cache::Mutant;
use sim::Rng;

/// The operation during which the power fails.
#[derive(Clone, Copy, Debug)]
enum Point {
    Gateway(u64),
    Node(u64),
    Both(u64, u64),
}

fn fault(world: &World) -> Result<(), String> {
    world.fault.lock().take().map_or(Ok(()), Err)
}

/// Runs a trial up to one crash point and checks the result. Returns the counters of `Site::reached`.
fn crash(trial: &Trial, point: Point) -> Result<[u64; 6], String> {
    let site = Site::new(trial);
    let (gateway, node) = match point {
        Point::Gateway(n) => (n, u64::MAX),
        Point::Node(n) => (u64::MAX, n),
        Point::Both(gateway, node) => (gateway, node),
    };
    site.gateway.power.fail_after(gateway);
    site.node.lock().power.fail_after(node);
    let world = World::new(&trial.script);
    site.run(&world);
    fault(&world)?;
    let number = gateway.min(node);
    let mut rng = Rng::new(trial.script.seed.wrapping_add(number << 20));
    let mut left = site.end(&mut rng);
    left.node = site.check_node_alone(left.node, &world)?;
    site.check_both(left, &world, number % 4 == 0)?;
    let reached = *site.reached.lock();
    Ok(reached)
}

/// Crashes one trial at every operation. Returns the number of crashes and the sums of the counters.
fn crash_everywhere(trial: &Trial) -> Result<(u64, [u64; 6]), String> {
    let (gateway, node) = {
        let site = Site::new(trial);
        let world = World::new(&trial.script);
        site.run(&world);
        fault(&world).map_err(|fault| format!("without a crash: {fault}"))?;
        let node = site.node.lock().operations().0;
        (site.gateway.operations().0, node)
    };
    let mut rng = Rng::new(trial.script.seed);
    let both = |n| Point::Both(rng.below(gateway.max(1)), n);
    let points = (0..gateway).map(Point::Gateway);
    let points = points.chain((0..node).map(Point::Node)).chain((0..node).map(both));
    let (mut count, mut reached) = (0, [0; 6]);
    for point in points {
        let this = crash(trial, point).map_err(|fault| format!("{point:?}: {fault}"))?;
        reached.iter_mut().zip(this).for_each(|(sum, n)| *sum += n);
        count += 1;
    }
    Ok((count, reached))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn a_lost_gateway_leaves_a_consistent_prefix_and_a_lost_node_loses_nothing() {
    if let Some(seed) = number("FOREBAY_CRASH_SEED") {
        let trial = Trial::new(seed);
        println!("{trial:#?}");
        println!("{:?}", crash_everywhere(&trial).unwrap());
        return;
    }
    let wanted = number("FOREBAY_CRASH_POINTS").map_or(POINTS, |points| points * 3 / 20);
    let (next, done) = (AtomicU64::new(1), AtomicU64::new(0));
    let failure = Mutex::new(None);
    let sums = Mutex::new([0; 6]);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while done.load(Ordering::Relaxed) < wanted && failure.lock().unwrap().is_none() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    match crash_everywhere(&Trial::new(seed)) {
                        Ok((count, reached)) => {
                            done.fetch_add(count, Ordering::Relaxed);
                            let mut sums = sums.lock().unwrap();
                            sums.iter_mut().zip(reached).for_each(|(sum, n)| *sum += n);
                        }
                        Err(fault) => {
                            failure.lock().unwrap().get_or_insert(format!("seed {seed}: {fault}"));
                        }
                    }
                }
            });
        }
    });
    let [rounds, node_failures, split, rolled_back, followed, lost] = sums.into_inner().unwrap();
    writeln!(
        std::io::stdout(),
        "{} crash points in {} scripts of gateway and node, {:.1} s: {rounds} rounds ({split} split), \
         {node_failures} failures of the node, {rolled_back} roll-backs, {followed} flushes that writes \
         have followed, {lost} failures of such",
        done.load(Ordering::Relaxed),
        next.load(Ordering::Relaxed) - 1,
        started.elapsed().as_secs_f64()
    )
    .expect("stdout is there");
    let failure = failure.into_inner().unwrap();
    assert_eq!(failure, None, "set FOREBAY_CRASH_SEED to see that script alone");
    assert!(done.into_inner() >= wanted);
    assert!(rounds > 100 && node_failures > 100 && rolled_back > 10, "every path was gone");
    assert!(followed > 100 && lost > 10, "every path was gone");
}

/// Returns true if the simulator notices the fault with one of the seeds from `first` on.
fn is_noticed(wrong: Wrong, first: u64) -> bool {
    (first..first + MUTANT_SCRIPTS).any(|seed| {
        let noticed = crash_everywhere(&Trial::new(seed).with(wrong)).err();
        if let Some(how) = &noticed {
            println!("{wrong:?}, seed {seed}: {how}");
        }
        noticed.is_some()
    })
}

#[test]
fn every_omitted_sync_and_rule_is_detected() {
    // Start with a seed that is known to notice the fault, to save time.
    let all = [
        (Wrong::Gateway(Mutation::LogNotStable), 1),
        (Wrong::Gateway(Mutation::SuperblockNotStable), 2),
        (Wrong::Gateway(Mutation::NvramForgets), 3),
        (Wrong::Gateway(Mutation::Cache(Mutant::DestageUnlogged)), 4),
        (Wrong::Node(Mutation::LogNotStable), 1),
        (Wrong::Node(Mutation::SuperblockNotStable), 1),
        (Wrong::Node(Mutation::LowerNotFlushed), 1),
        (Wrong::FlushNotSent, 2),
        (Wrong::FlushNotAwaited, 2),
        (Wrong::HalfFlushed, 41),
        (Wrong::NoMarkers, 10),
        (Wrong::Bypass, 4),
        (Wrong::NotRolledBack, 36),
        (Wrong::FlushOvertaken, 24),
        (Wrong::FlushSentAgain, 8),
        (Wrong::Gateway(Mutation::Cache(Mutant::DiscardOvertakes)), 4),
        (Wrong::Gateway(Mutation::Cache(Mutant::BypassNotFlushed)), 3),
        (Wrong::Gateway(Mutation::Cache(Mutant::BypassNotRecorded)), 3),
    ];
    let only = std::env::var("FOREBAY_CRASH_WRONG").unwrap_or_default();
    let wanted = all.into_iter().filter(|(wrong, _)| format!("{wrong:?}").contains(&only));
    let survivors: Vec<_> = wanted.filter(|&(wrong, first)| !is_noticed(wrong, first)).collect();
    assert_eq!(survivors, []);
}

/// Number of crash points if FOREBAY_CRASH_POINTS is not set.
const POINTS: u64 = 3_000;
/// Number of threads: a small machine has as many cores.
const THREADS: usize = 2;
/// Maximum number of scripts with which a fault may stay unnoticed.
const MUTANT_SCRIPTS: u64 = 60;
