//! The programs that the kernel gets, run by an interpreter, against the algorithm in plain Rust: the same
//! numbers everywhere.

mod support;

use fairtcp::BLOCK_BYTES;
use sim::Rng;
use support::{
    machine::Machine,
    path::{Path, run},
    sock::{Control, INFINITE_SSTHRESH, LOSS, Member, Sample, Sock},
    twin::{Block, Twin},
};

const BLOCKS: usize = 3;

/// One of the shapes a socket can have, also such as no kernel would make.
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
            is_cut: small(2),
            taken: u64::from(small(1 << 20)) * u64::from(small(3)),
            delivered: small(20),
        },
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
        // Now and then overdrawn by members that leave at the same time.
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

/// Both do one operation on the same socket and blocks.
fn agree(told_flags: bool, seed: u64) {
    let rng = &mut Rng::new(seed);
    let mut twin = Twin { blocks: (0..BLOCKS).map(|_| block(rng)).collect() };
    let mut machine = Machine::new(BLOCKS, false, told_flags);
    for number in 0..BLOCKS as u32 {
        machine.set_block(number, &twin.block(number));
    }
    let before = sock(rng);
    let (mut one, mut other) = (before, before);
    let (acked_sacked, losses) = (rng.below(5) as u32, rng.below(2) as u32);
    let mut flags = [0, 0x04, 0x400, 0x404][rng.below(4) as usize];
    if !told_flags {
        flags = if acked_sacked > 0 { 0x404 } else { 0 };
    }
    let prior_in_flight = rng.below(60) as u32;
    let sample = Sample { acked_sacked, losses, prior_in_flight, ack: 5, flags };
    let both: [&mut dyn Control; 2] = [&mut twin, &mut machine];
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
    let what = || format!("seed {seed}, operation {operation}, {sample:?}, {before:?}");
    assert_eq!(answers[0], answers[1], "{}", what());
    assert_eq!(one, other, "{}", what());
    for number in 0..BLOCKS as u32 {
        let blocks: [[u8; BLOCK_BYTES]; 2] = [twin.block(number), machine.block(number)];
        assert_eq!(blocks[0], blocks[1], "block {number}, {}", what());
    }
}

#[test]
fn any_operation_on_any_socket_and_block_gives_the_same() {
    (0..20_000).for_each(|seed| agree(true, seed));
}

#[test]
fn also_on_kernels_that_tell_less() {
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
