//! Initiator and target over two simulated links in virtual time: they understand each other, and a
//! command takes the least possible number of round trips.

#[path = "pair/machines.rs"]
mod machines;

use std::time::Duration;

use iscsi::{
    keys::{DigestPolicy, NegotiationOffer},
    session::{
        initiator::{CommandFailure, ConnectionTiming, InitiatorEvent},
        target,
    },
};
use machines::{Op, Pair, Scenario};
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);
const KIB: u32 = 1024;

/// One-way delay of the link; a round trip takes twice that.
const DELAY: Duration = Duration::from_millis(4);
const ROUND_TRIP: Duration = Duration::from_millis(8);

fn offer(initial_r2t: bool, immediate_data: bool) -> NegotiationOffer {
    NegotiationOffer { initial_r2t, immediate_data, ..NegotiationOffer::initiator() }
}

/// Returns the number of round trips of one command over a link with unlimited bandwidth.
fn round_trips(offer: NegotiationOffer, op: Op) -> u32 {
    let mut pair = Pair::new(Scenario { offer, ..Scenario::default() }, DELAY);
    let begun = pair.now();
    pair.submit(op);
    pair.run();
    assert_eq!(pair.take_done(), [op], "answered well");
    let taken = pair.now() - begun;
    assert_eq!(taken.as_nanos() % ROUND_TRIP.as_nanos(), 0, "{taken:?}");
    (taken.as_nanos() / ROUND_TRIP.as_nanos()) as u32
}

#[test]
fn immediate_data_saves_a_round_trip() {
    let write = Op::Write { seed: 1, length: 4 * KIB };
    assert_eq!(round_trips(offer(true, false), write), 2);
    assert_eq!(round_trips(offer(true, true), write), 1);
}

#[test]
fn unsolicited_data_saves_a_round_trip() {
    let write = Op::Write { seed: 1, length: 256 * KIB };
    // The target accepts 64 KiB in one PDU, so most of the data is unsolicited Data-Out.
    let mut small = offer(false, true);
    small.max_recv_data_segment_length = 64 * KIB;
    assert_eq!(round_trips(small, write), 1);
    assert_eq!(round_trips(offer(false, false), write), 1);
    assert_eq!(round_trips(offer(true, false), write), 2);
}

#[test]
fn a_read_takes_one_round_trip_whatever_its_length() {
    assert_eq!(round_trips(offer(false, true), Op::Read { seed: 1, length: 512 }), 1);
    assert_eq!(round_trips(offer(false, true), Op::Read { seed: 1, length: 4096 * KIB }), 1);
}

#[test]
fn r2ts_in_parallel_save_round_trips() {
    // The write has 256 KiB of unsolicited data and fifteen bursts with an R2T each.
    let write = Op::Write { seed: 1, length: 4096 * KIB };
    let bursts = |max_outstanding_r2t| NegotiationOffer {
        max_burst_length: 256 * KIB,
        max_outstanding_r2t,
        ..offer(false, true)
    };
    assert_eq!(round_trips(bursts(1), write), 16);
    assert_eq!(round_trips(bursts(8), write), 3);
    assert_eq!(round_trips(bursts(15), write), 2);
}

#[test]
fn commands_of_one_batch_share_a_round_trip() {
    let mut pair = Pair::new(Scenario::default(), DELAY);
    let begun = pair.now();
    let ops: Vec<_> = (0..64).map(|seed| Op::Read { seed, length: 4 * KIB }).collect();
    ops.iter().for_each(|&op| pair.submit(op));
    pair.run();
    assert_eq!(pair.take_done(), ops);
    assert_eq!(pair.now() - begun, ROUND_TRIP);
}

#[test]
fn a_closed_window_holds_commands_back() {
    let settings = target::Settings { queue_commands: 4, ..target::Settings::default() };
    let mut pair = Pair::new(Scenario { settings, ..Scenario::default() }, DELAY);
    pair.hold_answers = true;
    let ops: Vec<_> = (0..10).map(|seed| Op::Read { seed, length: 512 }).collect();
    ops.iter().for_each(|&op| pair.submit(op));
    pair.run();
    assert_eq!(pair.held(), 4, "the target sees no more than its window");
    assert_eq!(pair.initiator_session().waiting(), 6);
    // One answer opens the command window for one more command.
    pair.answer_held(1);
    pair.run();
    assert_eq!((pair.held(), pair.initiator_session().waiting()), (4, 5));
    pair.hold_answers = false;
    pair.answer_held(usize::MAX);
    pair.run();
    let mut done = pair.take_done();
    done.sort_by_key(|op| op.seed());
    assert_eq!(done, ops);
}

#[test]
fn a_command_beyond_the_queue_depth_is_returned_to_the_caller() {
    let mut pair = Pair::new(Scenario { depth: 2, ..Scenario::default() }, DELAY);
    pair.submit(Op::Read { seed: 0, length: 512 });
    pair.submit(Op::Read { seed: 1, length: 512 });
    assert!(pair.try_submit(Op::Read { seed: 2, length: 512 }).is_err());
    pair.run();
    assert!(pair.try_submit(Op::Read { seed: 2, length: 512 }).is_ok());
}

#[test]
fn an_idle_connection_is_pinged_and_stays() {
    let mut pair = Pair::new(Scenario::default(), DELAY);
    let pdus = pair.initiator_counters().pdus_out;
    pair.run_for(Duration::from_secs(26));
    assert_eq!(pair.initiator_counters().pdus_out - pdus, 5);
    assert!(!pair.is_broken());
}

#[test]
fn pings_of_the_target_are_answered() {
    let settings = target::Settings {
        ping_after: Duration::from_secs(1),
        dead_after: Duration::from_secs(2),
        ..target::Settings::default()
    };
    let mut pair = Pair::new(Scenario { settings, ..Scenario::default() }, DELAY);
    pair.run_for(Duration::from_secs(30));
    assert!(!pair.is_broken(), "the target counts us as alive");
}

#[test]
fn a_dead_link_is_detected_in_ten_seconds() {
    let mut pair = Pair::new(Scenario::default(), DELAY);
    let begun = pair.now();
    pair.cut_down_after(0);
    pair.keep_running_when_cut = true;
    while !pair.is_broken() {
        pair.run_for(100 * MS);
        assert!(pair.now() - begun < Duration::from_secs(11));
    }
    assert!(pair.now() - begun > Duration::from_secs(9));
}

#[test]
fn a_command_that_is_not_answered_is_aborted() {
    let mut pair = Pair::new(Scenario::default(), DELAY);
    pair.hold_answers = true;
    pair.submit(Op::Read { seed: 1, length: 512 });
    pair.run_for(Duration::from_secs(31));
    assert_eq!(pair.failures(), [(1, CommandFailure::TimedOut)]);
    assert_eq!(pair.aborted, 1, "the target received the abort");
    assert!(!pair.is_broken());
    // The session must still execute commands.
    pair.hold_answers = false;
    pair.submit(Op::Read { seed: 2, length: 512 });
    pair.run();
    assert_eq!(pair.take_done(), [Op::Read { seed: 2, length: 512 }]);
}

#[test]
fn a_command_that_could_not_be_sent_in_time_is_not_sent() {
    let settings = target::Settings { queue_commands: 1, ..target::Settings::default() };
    let mut pair = Pair::new(Scenario { settings, ..Scenario::default() }, DELAY);
    pair.hold_answers = true;
    pair.submit(Op::Read { seed: 1, length: 512 });
    pair.submit(Op::Read { seed: 2, length: 512 });
    pair.run_for(Duration::from_secs(31));
    let mut failures = pair.failures();
    failures.sort_by_key(|failure| failure.0);
    assert_eq!(failures, [(1, CommandFailure::TimedOut), (2, CommandFailure::TimedOut)]);
    assert_eq!(pair.held(), 1, "the second was never sent");
}

#[test]
fn a_command_that_the_caller_timed_out_is_aborted_at_once() {
    let settings = target::Settings { queue_commands: 1, ..target::Settings::default() };
    let mut pair = Pair::new(Scenario { settings, ..Scenario::default() }, DELAY);
    pair.hold_answers = true;
    // The first command is sent, and the second waits for the window.
    pair.submit(Op::Read { seed: 1, length: 512 });
    pair.submit(Op::Read { seed: 2, length: 512 });
    pair.run();
    pair.expire(1);
    pair.expire(2);
    pair.run_for(ROUND_TRIP);
    assert_eq!(pair.failures(), [(2, CommandFailure::TimedOut), (1, CommandFailure::TimedOut)]);
    assert_eq!(pair.aborted, 1);
}

#[test]
fn a_logout_is_answered() {
    let mut pair = Pair::new(Scenario::default(), DELAY);
    pair.log_out();
    pair.run();
    assert!(matches!(pair.events[..], [InitiatorEvent::LoggedOut { .. }]), "{:?}", pair.events);
}

#[test]
fn a_target_that_requests_a_logout_gets_it_after_the_commands() {
    let mut pair = Pair::new(Scenario::default(), DELAY);
    pair.hold_answers = true;
    pair.submit(Op::Read { seed: 1, length: 512 });
    pair.run();
    pair.ask_for_logout(10);
    pair.run();
    pair.submit(Op::Read { seed: 2, length: 512 });
    assert!(
        matches!(pair.events[..], [InitiatorEvent::LogoutRequested { .. }]),
        "{:?}",
        pair.events
    );
    pair.answer_held(usize::MAX);
    pair.run();
    assert_eq!(pair.take_done(), [Op::Read { seed: 1, length: 512 }]);
    assert!(matches!(pair.events[1], InitiatorEvent::LoggedOut { .. }), "{:?}", pair.events);
    // The second command was submitted after the logout request, so it is left for the next
    // session.
    assert_eq!(pair.take_unanswered(), [Op::Read { seed: 2, length: 512 }]);
}

#[test]
fn a_logout_requested_by_the_target_is_not_delayed_for_ever() {
    let mut pair = Pair::new(Scenario::default(), DELAY);
    pair.hold_answers = true;
    pair.submit(Op::Read { seed: 1, length: 512 });
    pair.run();
    pair.ask_for_logout(3);
    pair.run_for(Duration::from_millis(2500));
    let expected = matches!(
        pair.events[..],
        [InitiatorEvent::LogoutRequested { .. }, InitiatorEvent::LoggedOut { .. }]
    );
    assert!(expected, "{:?}", pair.events);
    assert_eq!(pair.take_unanswered(), [Op::Read { seed: 1, length: 512 }]);
}

#[test]
fn discovery_returns_every_target() {
    let mut pair = Pair::new(Scenario { discovery: true, ..Scenario::default() }, DELAY);
    // With 2000 targets, the answer does not fit into one text PDU.
    pair.targets = (0..2000).map(|n| format!("iqn.2026-11.x:{n}")).collect();
    let expected: String = pair.targets.iter().map(|name| format!("TargetName={name}\0")).collect();
    pair.send_targets();
    pair.run();
    match &pair.events[..] {
        [InitiatorEvent::Text(text)] => assert!(text[..] == *expected.as_bytes()),
        other => panic!("{other:?}"),
    }
}

fn digests() -> NegotiationOffer {
    let (header_digest, data_digest) = (DigestPolicy::Require, DigestPolicy::Require);
    NegotiationOffer {
        header_digest,
        data_digest,
        max_recv_data_segment_length: 1024,
        ..NegotiationOffer::initiator()
    }
}

/// Returns reads and writes of several sizes, none of which is a multiple of another.
fn mixed_ops() -> Vec<Op> {
    let lengths = [512, 4096, 1000, 3, 20_000];
    let op = |(seed, &length): (u32, &u32)| match seed % 2 {
        0 => Op::Read { seed, length },
        _ => Op::Write { seed, length },
    };
    (0..10).zip(lengths.iter().cycle()).map(op).collect()
}

#[test]
fn with_digests_no_flipped_bit_is_accepted_as_data() {
    let ops = mixed_ops();
    let whole = bytes_of(&ops, digests());
    let mut broken = 0;
    // In each direction, flip a bit in every 97th byte after the login.
    for (upwards, range) in [(true, whole.0), (false, whole.1)] {
        for offset in range.step_by(97) {
            let scenario = Scenario { offer: digests(), ..Scenario::default() };
            let mut pair = Pair::new(scenario, DELAY);
            pair.corrupt(upwards, offset, 1 << (offset % 8));
            ops.iter().for_each(|&op| pair.submit(op));
            // The pair panics if a wrong byte is accepted as data.
            pair.run_for(Duration::from_secs(60));
            let (done, left) = (pair.take_done(), pair.take_unanswered());
            for op in &ops {
                let well = done.contains(op);
                let told = pair.failed_or_refused(op.seed()) || left.contains(op);
                assert!(well != told, "{op:?}: {well} {told}, byte {offset}, upwards: {upwards}");
            }
            broken += u32::from(pair.is_broken());
        }
    }
    assert!(broken > 50, "the faults were noticed: {broken}");
}

/// Returns the byte ranges that the PDUs of these operations take in each direction, after the login.
fn bytes_of(ops: &[Op], offer: NegotiationOffer) -> (std::ops::Range<u64>, std::ops::Range<u64>) {
    let mut pair = Pair::new(Scenario { offer, ..Scenario::default() }, DELAY);
    let (up, down) = pair.sent();
    ops.iter().for_each(|&op| pair.submit(op));
    pair.run();
    assert_eq!(pair.take_done().len(), ops.len());
    (up..pair.sent().0, down..pair.sent().1)
}

#[test]
fn a_link_cut_anywhere_loses_no_command() {
    let ops = mixed_ops();
    let small =
        NegotiationOffer { max_recv_data_segment_length: 1024, ..NegotiationOffer::initiator() };
    let whole = bytes_of(&ops, small.clone());
    for (upwards, range) in [(true, whole.0), (false, whole.1)] {
        for offset in range.step_by(113) {
            let mut pair =
                Pair::new(Scenario { offer: small.clone(), ..Scenario::default() }, DELAY);
            if upwards {
                pair.cut_up_after(offset)
            } else {
                pair.cut_down_after(offset)
            }
            ops.iter().for_each(|&op| pair.submit(op));
            pair.run();
            let (mut done, left) = (pair.take_done(), pair.take_unanswered());
            assert_eq!(done.len() + left.len(), ops.len());
            assert!(left.is_sorted_by_key(|op| op.seed()), "in the order of submission: {left:?}");
            // Submit all unanswered commands again in a new session.
            let mut next =
                Pair::new(Scenario { offer: small.clone(), ..Scenario::default() }, DELAY);
            left.iter().for_each(|&op| next.submit(op));
            next.run();
            done.extend(next.take_done());
            done.sort_by_key(|op| op.seed());
            assert_eq!(done, ops);
        }
    }
}

fn any_scenario() -> impl Strategy<Value = Scenario> {
    let segment = prop_oneof![Just(512), 512u32..9000, Just(262_144)];
    let bursts = (512u32..20_000, 512u32..20_000).prop_map(|(a, b)| (a.min(b), a.max(b)));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let counts = (1u16..5, 1u32..9);
    (segment.clone(), segment, bursts, flags, counts).prop_map(
        |(
            ours,
            theirs,
            (first, max),
            (initial_r2t, immediate_data, header, data),
            (r2ts, queue),
        )| {
            let policy = |on| if on { DigestPolicy::Require } else { DigestPolicy::Off };
            let offer = NegotiationOffer {
                initial_r2t,
                immediate_data,
                max_recv_data_segment_length: ours,
                first_burst_length: first,
                max_burst_length: max,
                max_outstanding_r2t: r2ts,
                header_digest: policy(header),
                data_digest: policy(data),
                ..NegotiationOffer::initiator()
            };
            let settings =
                target::Settings { queue_commands: queue, ..target::Settings::default() };
            Scenario { offer, target_segment: theirs, settings, ..Scenario::default() }
        },
    )
}

fn any_op() -> impl Strategy<Value = (bool, u32)> {
    (any::<bool>(), prop_oneof![0u32..5, 500u32..530, 0u32..70_000])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// With any negotiated parameters, all data arrives unchanged in both directions (the pair
    /// compares it).
    #[test]
    fn data_arrives_whole_under_any_parameters(
        scenario in any_scenario(),
        ops in proptest::collection::vec(any_op(), 1..12),
        rate in prop_oneof![Just(None), (50_000u64..50_000_000).prop_map(Some)],
        piece in prop_oneof![Just(usize::MAX), 1usize..3000],
    ) {
        let ops: Vec<Op> = (0..).zip(ops).map(|(seed, (write, length))| {
            if write { Op::Write { seed, length } } else { Op::Read { seed, length } }
        }).collect();
        let mut pair = Pair::with_rate(scenario, MS, rate);
        pair.piece = piece;
        ops.iter().for_each(|&op| pair.submit(op));
        pair.run();
        prop_assert!(!pair.is_broken(), "{:?}", pair.broken);
        let mut done = pair.take_done();
        done.sort_by_key(|op| op.seed());
        prop_assert_eq!(done, ops);
    }
}

#[test]
fn the_default_ping_times_sum_to_10_s() {
    let timing = ConnectionTiming::default();
    assert_eq!(timing.ping_after + timing.ping_time_out, Duration::from_secs(10));
}
