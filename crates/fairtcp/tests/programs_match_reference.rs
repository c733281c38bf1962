//! Compares the BPF programs, run by an interpreter, with the same algorithm in Rust. All numbers must be equal.

mod support;

use fairtcp::program::EnsembleAlgorithm;
use sim::Rng;
use support::{
    bpf_interpreter::Machine,
    path::{Path, run},
    reference_model::{
        BandwidthCycle, Measure, Mode, Model, ModelEnsemble, Models, PathEstimate, RttProbe,
        StartupProgress,
    },
    reference_window::{Block, Twin},
    sock::{Control, Follower, INFINITE_SSTHRESH, LOSS, Member, Sample, Sock},
};

const BLOCKS: usize = 3;

/// Returns a random state of a socket, which may be one that no kernel produces.
fn sock(rng: &mut Rng) -> Sock {
    let mut small = |bound: u64| rng.below(bound) as u32;
    let mut sock = Sock {
        snd_cwnd: small(60),
        snd_ssthresh: small(60),
        snd_cwnd_clamp: small(80),
        prior_cwnd: small(60),
        prr_out: small(20),
        packets_out: small(60),
        sacked_out: small(20),
        lost_out: small(20),
        retrans_out: small(10),
        max_packets_out: small(40),
        srtt_us: small(80_000),
        rttvar_us: small(9_000),
        mss_cache: small(9_000),
        pacing_rate: 7,
        max_pacing_rate: u64::MAX,
        is_cwnd_limited: small(2) == 0,
        state: small(5) as u8,
        assigned: None,
        member: Member {
            ensemble: small(BLOCKS as u64 + 1),
            is_cut: small(3),
            taken: u64::from(small(1 << 20)) * u64::from(small(3)),
            delivered: small(20),
        },
        ..Sock::default()
    };
    match rng.below(8) {
        0 => sock.snd_cwnd_clamp = u32::MAX,
        1 => sock.snd_cwnd = 100_000_000,
        2 => sock.snd_ssthresh = INFINITE_SSTHRESH,
        3 => sock.srtt_us = 0,
        4 => sock.max_pacing_rate = rng.below(1 << 30),
        5 => sock.assigned = Some(rng.below(BLOCKS as u64 + 2) as u32),
        _ => {}
    }
    sock
}

fn block(rng: &mut Rng) -> Block {
    let count = |rng: &mut Rng| rng.below(1 << 40);
    Block {
        // The window is sometimes negative, as after several members have left at the same time.
        window: rng.below(80 << 16) as i64 - (8 << 16),
        threshold: match rng.below(3) {
            0 => i64::from(INFINITE_SSTHRESH) << 16,
            _ => rng.below(80 << 16) as i64,
        },
        members: rng.below(6) as u32,
        per_ack: rng.below(4) == 0,
        srtt: 3,
        rttvar: 4,
        grown: count(rng),
        cuts: count(rng),
        floored: count(rng),
        late_cuts: count(rng),
        undone: count(rng),
        timeouts: count(rng),
    }
}

/// Runs a random operation in the BPF program and in the Rust implementation, on the same socket and blocks, and
/// compares the results.
fn agree(told_flags: bool, seed: u64) {
    let rng = &mut Rng::new(seed);
    let mut twin = Twin { blocks: (0..BLOCKS).map(|_| block(rng)).collect() };
    let mut machine = Machine::new(BLOCKS, false, told_flags);
    for number in 0..BLOCKS as u32 {
        machine.set_block(number, &twin.block(number));
    }
    let before = sock(rng);
    let after = operate(rng, before, told_flags, seed, &mut twin, &mut machine);
    for number in 0..BLOCKS as u32 {
        assert_eq!(twin.block(number), machine.block(number), "block {number}, {after}");
    }
}

/// Runs a random operation in the BPF program and in the Rust implementation, each on a copy of the socket, and
/// compares the two copies. Returns the name of the operation.
fn operate(
    rng: &mut Rng,
    before: Sock,
    told_flags: bool,
    seed: u64,
    twin: &mut dyn Control,
    machine: &mut dyn Control,
) -> String {
    let (mut one, mut other) = (before, before);
    let (acked_sacked, losses) = (rng.below(5) as u32, rng.below(2) as u32);
    let mut flags = [0, 0x04, 0x400, 0x404][rng.below(4) as usize];
    if !told_flags {
        flags = if acked_sacked > 0 { 0x404 } else { 0 };
    }
    let prior_in_flight = rng.below(60) as u32;
    let now_us = 20_000_000 + rng.below(1 << 20);
    let sample = Sample {
        acked_sacked,
        losses,
        prior_in_flight,
        ack: 5,
        flags,
        now_us,
        delivered: rng.below(100) as u32,
        interval_us: rng.below(3) * rng.below(50_000),
        prior_us: now_us - rng.below(50_000),
        rtt_us: [None, Some(rng.below(50_000) as u32)][rng.below(2) as usize],
        is_app_limited: rng.below(4) == 0,
    };
    let both: [&mut dyn Control; 2] = [twin, machine];
    let operation = rng.below(7);
    let mut answers = vec![];
    for (control, sock) in both.into_iter().zip([&mut one, &mut other]) {
        answers.push(match operation {
            0 => {
                control.init(sock);
                0
            }
            1 => {
                control.release(sock);
                0
            }
            2 => control.ssthresh(sock),
            3 => control.undo_cwnd(sock),
            4 => {
                let state = sock.state.max(LOSS * u8::from(losses > 0));
                control.set_state(sock, state);
                0
            }
            _ => {
                control.cong_control(sock, &sample);
                0
            }
        });
    }
    let what = format!("seed {seed}, operation {operation}, {sample:?}, {before:?}");
    assert_eq!(answers[0], answers[1], "{what}");
    assert_eq!(one, other, "{what}");
    what
}

/// Returns a random path model, which may be one that no real path causes.
fn model(rng: &mut Rng) -> Model {
    let now = 20_000_000;
    let probes = Mode::ProbeBandwidth;
    let mode = [Mode::Startup, Mode::Drain, Mode::ProbeRtt, probes, probes, probes, probes];
    let mut model = Model {
        measure: Measure::Ensemble,
        ensemble: ModelEnsemble {
            window: rng.below(80 << 16),
            threshold: u64::from(INFINITE_SSTHRESH) << 16,
            members: rng.below(6) as u32,
            active: rng.below(6) as u32,
            ..ModelEnsemble::default()
        },
        mode: mode[rng.below(7) as usize],
        path: PathEstimate {
            // The sum of the members' rates is at least the rate of one member.
            rate: (1 << 20) + rng.below(1 << 20),
            in_flight: rng.below(200) as i64 - 20,
            round: rng.below(40),
            round_began: now - rng.below(60_000) + 30_000,
            limited_at: rng.below(2) * (now - rng.below(100_000)),
            least_rtt: u64::from(rng.below(8) > 0) * rng.below(40_000),
            least_rtt_at: now - rng.below(18_000_000),
            ..PathEstimate::default()
        },
        startup: StartupProgress { full_rate: rng.below(1 << 20), full_rounds: rng.below(5) },
        cycle: BandwidthCycle {
            phase: [0, 1, 1, 2, 7][rng.below(5) as usize],
            phase_began: now + 1_000_000 - rng.below(1_300_000),
            ..BandwidthCycle::default()
        },
        probe: RttProbe { probe_ends: now + rng.below(1 << 21) - (1 << 20), ..RttProbe::default() },
    };
    model.cycle.is_crowded = rng.below(2) == 0;
    model.cycle.cycles = rng.below(9);
    // Often draw values near two thresholds of the program: the round trip time from which a path is crowded, and the
    // path's capacity.
    model.cycle.cycle_rtt = rng.below(4).min(1) * (model.path.least_rtt * 3 / 2 + rng.below(1000));
    let best = 1 << (12 + rng.below(7));
    model.path.rates.iter_mut().for_each(|it| *it = rng.below(best));
    model
}

fn agree_on_a_model(told_flags: bool, seed: u64) {
    let rng = &mut Rng::new(seed);
    let mut twin = Models { models: (0..BLOCKS).map(|_| model(rng)).collect() };
    let mut machine = Machine::with(EnsembleAlgorithm::Model, BLOCKS, told_flags);
    for number in 0..BLOCKS as u32 {
        machine.set_block(number, &twin.block(number));
    }
    let member = sock(rng);
    let small = |rng: &mut Rng, bound: u64| rng.below(bound) as u32;
    let follower = Follower {
        ensemble: member.member.ensemble,
        state: small(rng, 5),
        in_flight: small(rng, 60),
        is_active: small(rng, 2),
        saved: small(rng, 80),
        probes_rtt: small(rng, 2),
        rate: rng.below(1 << 20),
        conserves_from: rng.below(2) * (20_000_000 + rng.below(1 << 20) - 60_000),
    };
    let before = Sock {
        member: Member::default(),
        follower,
        has_unsent: rng.below(2) == 0,
        pacing_status: small(rng, 3),
        pacing_rate: rng.below(1 << 26),
        ..member
    };
    let after = operate(rng, before, told_flags, seed, &mut twin, &mut machine);
    for number in 0..BLOCKS as u32 {
        assert_eq!(twin.block(number), machine.block(number), "block {number}, {after}");
    }
}

#[test]
fn any_operation_on_any_model_gives_the_same() {
    (0..20_000).for_each(|seed| agree_on_a_model(true, seed));
    (0..20_000).for_each(|seed| agree_on_a_model(false, seed));
}

#[test]
fn a_whole_transfer_by_a_model_is_the_same() {
    let path = Path {
        one_way_us: 4000,
        lost_per_million: 27_000,
        bits_per_second: 100_000_000,
        queue_segments: 30,
    };
    let mut twin = Models::new([Measure::Ensemble]);
    let mut machine = Machine::with(EnsembleAlgorithm::Model, 1, true);
    let in_rust = run(&path, &mut twin, 4, |_| 0, 12, 1);
    let in_the_machine = run(&path, &mut machine, 4, |_| 0, 12, 1);
    assert!(in_rust.retransmitted > 100, "{}", in_rust.retransmitted);
    assert_eq!(in_rust, in_the_machine);
    assert_eq!(twin.block(0), machine.block(0));
    let model = &twin.models[0];
    assert_eq!(
        (model.ensemble.members, model.ensemble.active, model.path.in_flight),
        (0, 0, 0),
        "all have left"
    );
}

#[test]
fn any_operation_on_any_socket_and_block_gives_the_same() {
    (0..20_000).for_each(|seed| agree(true, seed));
}

#[test]
fn any_operation_gives_the_same_on_kernels_that_pass_fewer_arguments() {
    (0..20_000).for_each(|seed| agree(false, seed));
}

#[test]
fn a_whole_transfer_over_a_bad_path_is_the_same() {
    let path = Path {
        one_way_us: 4000,
        lost_per_million: 27_000,
        bits_per_second: 1_000_000_000,
        queue_segments: 1000,
    };
    for per_ack in [false, true] {
        let (mut twin, mut machine) = (Twin::new(1, per_ack), Machine::new(1, per_ack, true));
        let in_rust = run(&path, &mut twin, 4, |_| 0, 3, 1);
        let in_the_machine = run(&path, &mut machine, 4, |_| 0, 3, 1);
        assert!(in_rust.retransmitted > 100, "{}", in_rust.retransmitted);
        assert_eq!(in_rust, in_the_machine);
        assert_eq!(twin.block(0), machine.block(0));
        assert_eq!(twin.blocks[0].members, 0, "all have left");
    }
}
