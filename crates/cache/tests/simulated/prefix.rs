//! Tests of consistent prefixes: a part that survives alone must hold the volume as it was at one
//! moment.
//!
//! This is checked for the lower volume alone after each destage round, and for the log after the
//! loss of its NVRAM with immediate report.

use std::sync::{Arc, atomic::Ordering};

use crate::support::{
    hardware::{End, Mutation},
    workload::{Script, World, contents, run},
};
use cache::{DestageOrder, LogErrorPolicy, Mutant, NvramSurvival, WriteMode};
use sim::{Rng, StableDiskImage};

/// Returns a script in which no write bypasses the log.
fn through_the_log(seed: u64) -> Script {
    let mut script = Script::new(seed);
    if matches!(script.settings.report, WriteMode::Through | WriteMode::Around) {
        script.settings.report = WriteMode::AfterComplete;
    }
    // Strict order: with relaxed order, the first read would flush, perhaps in the middle of a
    // round.
    script.settings.order = DestageOrder::Strict;
    script.settings.on_log_error = LogErrorPolicy::StopWrites;
    script.log_fails = false;
    script.log_blocks += 4096;
    script
}

/// Runs a script and checks the lower volume after each round. Returns the first violation of the
/// consistent prefix.
fn far_prefix_fault(script: &Script) -> Option<String> {
    let world = World::new(script);
    let (seen, bytes) = (Arc::clone(&world), script.geometry.bytes());
    let observer = move |image: &StableDiskImage| {
        let checked = seen.model.lock().check_prefix(&image.read(0..bytes), 0, &|_| false);
        if let Err(fault) = checked {
            seen.report(fault);
        }
    };
    run(script, &script.hardware().observed(Arc::new(observer)), &world, script.seed);
    let fault = world.fault.lock().take();
    let bypassed = world.statistics.lock().traffic.bypassed;
    assert_eq!(bypassed, 0, "seed {}: the script is not about that", script.seed);
    fault
}

#[test]
fn after_each_round_the_lower_volume_holds_a_consistent_prefix() {
    for seed in 1..=SCRIPTS {
        let fault = far_prefix_fault(&through_the_log(seed));
        assert_eq!(fault, None, "seed {seed}");
    }
}

#[test]
fn writes_that_overtake_the_log_are_detected() {
    for mutant in [Mutant::DestageUnlogged, Mutant::DiscardOvertakes] {
        let mutation = Mutation::Cache(mutant);
        let noticed = (1..=SCRIPTS)
            .any(|seed| far_prefix_fault(&Script { mutation, ..through_the_log(seed) }).is_some());
        assert!(noticed, "{mutant:?}");
    }
}

/// Returns a script with immediate report and a busy host.
fn immediate(seed: u64) -> Script {
    let mut script = Script::new(seed);
    script.settings.report = WriteMode::Immediate;
    // In every third script the NVRAM survives a power loss. The kind of crash depends on other
    // bits of the seed.
    if seed.is_multiple_of(3) {
        script.settings.nvram_survives = NvramSurvival::PowerLoss;
    } else {
        script.settings.nvram_survives = NvramSurvival::Restart;
    }
    script.nvram = true;
    script.log_fails = false;
    script.hosts += 1;
    script.steps += 10;
    script
}

/// Ends a script after this number of disk operations, erases its NVRAM, and checks the remaining
/// content.
fn check_prefix_without_nvram(script: &Script, operations: u64) -> Result<(), String> {
    let hardware = script.hardware();
    hardware.power.fail_after(operations);
    let world = World::new(script);
    run(script, &hardware, &world, script.seed);
    let mut rng = Rng::new(script.seed ^ operations << 32);
    let end = [End::Power, End::NearPower, End::Kill][rng.below(3) as usize];
    let mut remains = hardware.end(end, &mut rng);
    remains.nvram.fill(0);
    let mut accepting = script.clone();
    accepting.settings.accept_loss = true;
    let bytes = contents(&accepting, remains, script.seed)?;
    let flushed = match script.settings.nvram_survives {
        NvramSurvival::Restart => world.flushed.load(Ordering::Relaxed),
        // With an NVRAM that survives a power loss, a flush relies on the NVRAM, which is lost
        // here.
        NvramSurvival::PowerLoss => 0,
    };
    world.model.lock().check_prefix(&bytes, flushed, &|_| false)
}

#[test]
fn with_immediate_report_and_its_nvram_lost_the_log_holds_a_consistent_prefix() {
    for seed in 1..=NVRAM_SCRIPTS {
        let script = immediate(seed);
        let hardware = script.hardware();
        run(&script, &hardware, &World::new(&script), seed);
        let (operations, _) = hardware.operations();
        for operation in (seed % 3..operations).step_by(3) {
            let checked = check_prefix_without_nvram(&script, operation);
            assert_eq!(checked, Ok(()), "seed {seed}, after {operation} operations");
        }
    }
}

/// Maximum number of scripts with which a fault of destage may stay unnoticed: some hundred rounds.
const SCRIPTS: u64 = 300;
/// Number of scripts whose NVRAM is lost at every third operation.
const NVRAM_SCRIPTS: u64 = 120;
