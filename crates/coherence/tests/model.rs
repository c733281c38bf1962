//! A model check of the gateways and the node with few requests and few faults; the transition function is that of
//! the state machines themselves. Messages are lost, duplicated and reordered, gateways and the node crash, and time
//! passes at any moment.
//!
//! About the first 200,000 states are searched breadth first, a part of all states. Then follow many long random
//! paths with a fixed seed. All clocks run at the same speed and in steps that are longer than the margin of a lease,
//! so the purpose of the margin is not tested here. `late_messages.rs` has single sequences that this search missed.
//! `cargo test --release -p coherence --test model -- --ignored --nocapture` searches further.

mod world;

use std::time::Instant;

use stateright::{Checker, Model, UniformChooser};
use world::{Budget, Fault, Scene};

const NEAR: usize = 200_000;
const FAR: usize = 100_000;

fn scene(gateways: usize, ranges: u32, budget: Budget) -> Scene {
    Scene { gateways, ranges, budget, fault: Fault::None }
}

/// Searches about `near` states breadth first and `far` states on random paths. Returns the first violation.
fn search(scene: &Scene, near: usize, far: usize) -> Option<String> {
    let breadth = scene.clone().checker().threads(2).target_state_count(near);
    report("breadth first", &breadth.spawn_bfs().join()).or_else(|| {
        let random = scene.clone().checker().threads(2).target_state_count(far);
        let random = random.target_max_depth(LONGEST);
        report("at random", &random.spawn_simulation(SEED, UniformChooser).join())
    })
}

fn report(how: &str, checker: &impl Checker<Scene>) -> Option<String> {
    let (all, new) = (checker.state_count(), checker.unique_state_count());
    println!("{how}: {all} states, {new} of them new, to depth {}", checker.max_depth());
    let (name, path) = checker.discoveries().into_iter().next()?;
    let state = path.last_state().violated;
    let acts: Vec<_> = path.into_actions().iter().map(|act| format!("{act:?}")).collect();
    Some(format!("not so: {name} ({state:?}), after\n  {}", acts.join("\n  ")))
}

#[track_caller]
fn holds(scene: Scene, near: usize, far: usize) {
    let began = Instant::now();
    let found = search(&scene, near, far);
    println!("{:.1} s: {:?}", began.elapsed().as_secs_f32(), scene.budget);
    if let Some(found) = found {
        panic!("{found}");
    }
}

#[track_caller]
fn is_found(fault: Fault, budget: Budget) {
    let scene = Scene { fault, ..scene(2, 1, budget) };
    let found = search(&scene, NEAR, 4 * FAR).expect("the model does not notice");
    println!("{found}");
}

#[test]
fn gateways_that_die_and_restart() {
    let budget = Budget { uses: 4, gateway_crashes: 2, ..Budget::NONE };
    holds(scene(2, 1, budget), NEAR, FAR);
}

#[test]
fn a_node_that_restarts() {
    let budget = Budget { uses: 4, node_crashes: 2, gateway_crashes: 1, ticks: 2, ..Budget::NONE };
    holds(scene(2, 1, budget), NEAR, FAR);
}

#[test]
fn leases_that_end_while_messages_are_lost() {
    holds(scene(2, 1, Budget { uses: 4, losses: 3, ticks: 8, ..Budget::NONE }), NEAR, FAR);
}

#[test]
fn messages_that_arrive_twice() {
    holds(scene(2, 1, Budget { uses: 5, repeats: 3, ticks: 1, ..Budget::NONE }), NEAR, FAR);
}

#[test]
fn three_gateways_and_two_ranges() {
    holds(scene(3, 2, Budget { uses: 6, ticks: 8, ..FAULTS }), NEAR, 2 * FAR);
}

#[test]
#[ignore = "takes minutes"]
fn three_gateways_and_two_ranges_at_length() {
    holds(scene(3, 2, Budget { uses: 8, ticks: 12, ..FAULTS }), MANY, 10_000_000);
}

const FAULTS: Budget =
    Budget { gateway_crashes: 2, node_crashes: 1, losses: 2, repeats: 2, ..Budget::NONE };

#[test]
fn an_exclusive_token_that_ends_with_its_lease_is_detected() {
    let budget = Budget { uses: 2, ticks: 5, gateway_crashes: 1, ..Budget::NONE };
    is_found(Fault::ExclusiveEndsWithLease, budget);
}

#[test]
fn a_node_that_does_not_wait_for_gateways_after_a_restart_is_detected() {
    is_found(Fault::RestartDoesNotWait, Budget { uses: 2, node_crashes: 1, ..Budget::NONE });
}

#[test]
fn a_lease_counted_from_the_answer_is_detected() {
    is_found(Fault::LeaseFromTheAnswer, Budget { uses: 2, ticks: 8, ..Budget::NONE });
}

#[test]
fn a_release_before_destage_is_detected() {
    is_found(Fault::ReleaseBeforeDestage, Budget { uses: 2, ..Budget::NONE });
}

#[test]
fn cached_data_that_is_kept_without_a_token_is_detected() {
    is_found(Fault::CachedIsKept, Budget { uses: 3, ..Budget::NONE });
}

#[test]
fn late_writes_are_detected() {
    let budget = Budget { uses: 3, gateway_crashes: 1, ..Budget::NONE };
    is_found(Fault::LateWritesAreTaken, budget);
}

/// Number of states of a long breadth-first search. A state that waits for its search takes up to 2 KB, and most
/// states wait.
const MANY: usize = 3_000_000;
/// Length of a random path: more steps than all of the requests need.
const LONGEST: usize = 300;
/// Seed of the random paths; any value will do.
const SEED: u64 = 20_240_406;
