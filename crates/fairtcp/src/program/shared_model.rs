//! Members that share a model of their path, bandwidth and least round trip time, as BBR keeps one for each
//! connection (draft-cardwell-iccrg-bbr-congestion-control-00). They learn of the path from what all of
//! them deliver, probe it together, drain its queue together, and each paces at its part.
//!
//! ```text
//! STARTUP    pace 2.89, window 2.89   until the rate has not grown by a quarter in three rounds
//! DRAIN      pace 0.34, window 2.89   until no more is in flight than the path holds
//! PROBE_BW   pace 1.25, 0.75, 1 x 6   a round trip each; the second until the queue is drained
//! PROBE_RTT  windows of 4             for 200 ms, when no round trip was about as short in 10 s
//! ```
//!
//! Where others keep a queue on the path, the drain ends after one round trip, as BBR's does: who waited until
//! their queue is gone would leave them the path. Without what BBR has against policers.

use super::{
    common_code::{BLOCK, Code, Maps, SK, private, private_double, private_word},
    kernel_layout::Kernel,
    shared_window::{self, INFINITE_SSTHRESH, LOSSES, STATE, STATE_LOSS, STATE_RECOVERY},
};
use crate::{
    asm::{
        Alu, BpfJumpLabel, BpfMemoryOperand, If, Instruction,
        Register::{R0, R1, R2, R3, R4, R5, R8, R9, R10},
        Unassembled,
    },
    control_block::{FRACTION_BITS, RATE_BITS, RATES, at},
};

// Beside those of `shared_window` on the stack.
/// Microseconds: now, when the newest of what arrived was preceded by a delivery, the newest round trip
/// (negative if there is none), and in what time something was delivered.
const NOW: BpfMemoryOperand = R10.double(-56);
const PRIOR: BpfMemoryOperand = R10.double(-64);
const RTT: BpfMemoryOperand = R10.double(-72);
const INTERVAL: BpfMemoryOperand = R10.double(-80);
/// Whether there was less to send than could be.
const LIMITED: BpfMemoryOperand = R10.double(-88);
/// Members with something to send, at least 1.
const SHARERS: BpfMemoryOperand = R10.double(-96);
/// Segments that a member may have beyond what the path holds.
const QUANTA: BpfMemoryOperand = R10.double(-104);
/// In flight of all before this acknowledgment, and of this member after it.
const BEFORE: BpfMemoryOperand = R10.double(-112);
const OWN: BpfMemoryOperand = R10.double(-120);
/// Whether no round trip was as short as the least for long.
const IS_OLD: BpfMemoryOperand = R10.double(-128);
/// Whether a round begins.
const BEGINS: BpfMemoryOperand = R10.double(-136);
/// The bandwidth.
const BEST: BpfMemoryOperand = R10.double(-144);
/// The least round trip time, microseconds.
const LEAST: BpfMemoryOperand = R10.double(-152);
/// Segments delivered in `INTERVAL`.
const DELIVERED: BpfMemoryOperand = R10.double(-160);

/// Gains are in parts of 256.
const UNIT: i32 = 256;
/// 2/ln(2), with which the rate doubles each round trip (draft, 4.3.2.1), and what undoes it.
const STARTUP_GAIN: i32 = UNIT * 2885 / 1000 + 1;
const DRAIN_GAIN: i32 = UNIT * 1000 / 2885;
/// Draft, 4.3.4.1.
const UP_GAIN: i32 = UNIT * 5 / 4;
const DOWN_GAIN: i32 = UNIT * 3 / 4;
const WINDOW_GAIN: i32 = 2 * UNIT;
/// The bandwidth is the best of so many rounds (draft, 4.1.2.1).
const ROUNDS: i32 = 10;
const RTT_WINDOW_US: i32 = 10_000_000;
const PROBE_RTT_US: i32 = 200_000;
/// A sixteenth more is about the same round trip time.
const ABOUT_BITS: i32 = 4;
const LEAST_WINDOW: i32 = 4;
/// So many round trips a drain may take.
const MOST_DRAIN: i32 = 4;
/// Where it is crowded, one drain of so many is whole nevertheless, to see whether it still is.
const LOOKS_EVERY: i32 = 4;
/// Beyond one and a half of the least round trip time.
const CROWDED_US: i32 = 500;
/// All of the bandwidth is used, not 99 % as by BBR: what is too much by a rounding goes with the next drain.
const MICROSECONDS: i32 = 1_000_000;

// As `at::MODE` has them.
const STARTUP: i32 = 0;
const DRAIN: i32 = 1;
const PROBE_BW: i32 = 2;
const PROBE_RTT: i32 = 3;

// enum sk_pacing
const SK_PACING_NEEDED: i32 = 1;

/// void init(struct sock *sk), once it is a member: paces from now on, until more is known by its window a
/// round trip, twice and more.
pub(super) fn init(code: &mut Code<'_>) {
    let fields = code.kernel.fields;
    for word in [private::STATE, private::IN_FLIGHT, private::IS_ACTIVE, private::SAVED] {
        code.a.store(private_word(code.kernel, word), 0);
    }
    code.a.store(private_word(code.kernel, private::PROBES_RTT), 0);
    code.a.store(private_double(code.kernel, private::CONSERVES_FROM), 0);
    code.a.store(private_double(code.kernel, private::RATE), 0);
    let (paced, measured) = (code.a.label(), code.a.label());
    code.a.load(R1, SK.word(fields.pacing_status));
    code.a.jump_if(R1, If::Differs, 0, paced);
    code.a.set(R1, SK_PACING_NEEDED);
    code.a.store(SK.word(fields.pacing_status), R1);
    code.a.place(paced);
    code.a.load(R1, SK.word(fields.snd_cwnd));
    code.a.load(R2, SK.word(fields.mss_cache));
    code.a.alu(Alu::Mul, R1, R2);
    code.a.alu(Alu::Mul, R1, 1_000_000 / UNIT);
    code.a.alu(Alu::Mul, R1, STARTUP_GAIN);
    code.a.load(R2, SK.word(fields.srtt_us));
    code.a.alu(Alu::ShiftRight, R2, 3);
    code.a.jump_if(R2, If::Differs, 0, measured);
    code.a.set(R2, 1000);
    code.a.place(measured);
    code.a.alu(Alu::Div, R1, R2);
    code.a.store(SK.double(fields.pacing_rate), R1);
}

/// void release(struct sock *sk), before it leaves.
pub(super) fn release(code: &mut Code<'_>) {
    code.a.load(R1, private_word(code.kernel, private::IN_FLIGHT));
    code.a.negate(R1);
    code.a.atomic_add(BLOCK.double(at::ALL_IN_FLIGHT), R1);
    code.a.load(R1, private_word(code.kernel, private::IS_ACTIVE));
    code.a.negate(R1);
    code.a.atomic_add(BLOCK.word(at::ACTIVE), R1);
    code.no_rate();
}

/// u32 ssthresh(struct sock *sk): a recovery begins; the window to come back to.
pub(super) fn ssthresh(code: &mut Code<'_>) {
    let fields = code.kernel.fields;
    code.a.load(R3, SK.word(fields.snd_cwnd));
    code.a.load(R2, BLOCK.word(at::MODE));
    code.save();
    code.a.load(R0, SK.word(fields.snd_ssthresh));
}

/// u32 undo_cwnd(struct sock *sk): it was not full for that.
pub(super) fn undo_cwnd(code: &mut Code<'_>) {
    let is_full = code.a.label();
    code.a.store(BLOCK.double(at::FULL_RATE), 0);
    code.a.load(R1, BLOCK.double(at::FULL_ROUNDS));
    code.a.jump_if(R1, If::AtLeast, FULL, is_full);
    code.a.store(BLOCK.double(at::FULL_ROUNDS), 0);
    code.a.place(is_full);
    code.count(at::UNDONE, R1);
}

/// void set_state(struct sock *sk, u8 state), at a timeout.
pub(super) fn timed_out(code: &mut Code<'_>) {
    code.a.store(private_word(code.kernel, private::STATE), STATE_LOSS);
    code.a.store(BLOCK.double(at::FULL_RATE), 0);
    code.no_rate();
}

/// So many rounds without growth, and the path is full.
const FULL: i32 = 3;

/// void cong_control(struct sock *sk, u32 ack, int flag, const struct rate_sample *rs), or without the
/// two in the middle.
pub(super) fn cong_control(kernel: &Kernel, maps: Maps) -> Result<Vec<Instruction>, Unassembled> {
    let mut code = Code::new(kernel, maps);
    let (plain, end) = (code.a.label(), code.a.label());
    code.rate_sample();
    code.arguments();
    code.find_block(plain);
    code.round_trip_time();
    code.count_in();
    code.least_rtt(end);
    code.round();
    code.rate();
    code.best();
    code.phase();
    code.look_for_full();
    code.drain();
    code.probe_rtt();
    code.pace_together();
    code.window_together();
    code.a.place(end);
    code.a.exit();
    code.a.place(plain);
    shared_window::plain(&mut code);
    code.a.finish()
}

impl Code<'_> {
    /// What the model wants of the arguments, while R1 still leads to them, and does.
    fn rate_sample(&mut self) {
        let fields = self.kernel.fields;
        let told = self.kernel.control_is_told_flags;
        let a = &mut self.a;
        a.load(R2, R1.double(if told { 24 } else { 8 }));
        for (from, to) in [
            (R2.double(fields.prior_mstamp), PRIOR),
            (R2.double(fields.interval_us), INTERVAL),
            (R2.double(fields.rtt_us), RTT),
            (R2.word(fields.delivered), DELIVERED),
            (R2.byte(fields.is_app_limited), LIMITED),
            (SK.double(fields.tcp_mstamp), NOW),
        ] {
            a.load(R3, from);
            a.store(to, R3);
        }
    }

    /// What this member has in flight and whether it has something to send, counted for all.
    fn count_in(&mut self) {
        let (kernel, fields) = (self.kernel, self.kernel.fields);
        let in_flight = private_word(kernel, private::IN_FLIGHT);
        let is_active = private_word(kernel, private::IS_ACTIVE);
        self.in_flight();
        self.a.store(OWN, R1);
        self.a.load(R2, in_flight);
        self.a.store(in_flight, R1);
        self.a.load(R3, BLOCK.double(at::ALL_IN_FLIGHT));
        self.a.alu(Alu::Sub, R3, R2);
        self.signed_at_least(R3, 0);
        self.a.load(R4, shared_window::IN_FLIGHT);
        self.a.alu(Alu::Add, R3, R4);
        self.a.store(BEFORE, R3);
        self.a.alu(Alu::Sub, R1, R2);
        self.a.atomic_add(BLOCK.double(at::ALL_IN_FLIGHT), R1);

        let (active, known) = (self.a.label(), self.a.label());
        self.a.load(R1, SK.word(fields.packets_out));
        self.a.jump_if(R1, If::Differs, 0, active);
        self.a.load(R2, SK.word(fields.write_seq));
        self.a.load(R3, SK.word(fields.snd_nxt));
        self.a.jump_if(R2, If::Equal, R3, known);
        self.a.place(active);
        self.a.set(R1, 1);
        self.a.place(known);
        self.a.load(R2, is_active);
        self.a.store(is_active, R1);
        self.a.alu(Alu::Sub, R1, R2);
        self.a.atomic_add(BLOCK.word(at::ACTIVE), R1);

        // What a member left behind whose leaving was not told, or several at the same time, is bounded.
        self.members(R2);
        self.a.load(R1, BLOCK.word(at::ACTIVE));
        self.at_most(R1, R2);
        self.at_least(R1, 1);
        self.a.store(SHARERS, R1);

        // Three times what the kernel sends at once, about a millisecond's worth (tcp_tso_autosize()).
        self.a.load(R1, SK.double(fields.pacing_rate));
        self.a.load(R2, SK.word(fields.mss_cache));
        self.a.alu(Alu::ShiftRight, R1, 10);
        self.a.alu(Alu::Div, R1, R2);
        self.at_least(R1, 2);
        self.at_most(R1, 44);
        self.a.alu(Alu::Mul, R1, 3);
        self.a.store(QUANTA, R1);
    }

    /// LEAST = the least round trip time that a member has measured lately; on to `unknown` if none has.
    fn least_rtt(&mut self, unknown: BpfJumpLabel) {
        let a = &mut self.a;
        let (fresh, known, shorter, measured) = (a.label(), a.label(), a.label(), a.label());
        // R1 = least, R2 = the newest, R3 = now, R4 = whether the least is old
        a.load(R1, BLOCK.double(at::LEAST_RTT));
        a.load(R3, NOW);
        a.set(R4, 0);
        a.load(R5, BLOCK.double(at::LEAST_RTT_AT));
        a.alu(Alu::Add, R5, RTT_WINDOW_US);
        a.jump_if(R1, If::Equal, 0, fresh);
        a.jump_if(R3, If::AtMost, R5, fresh);
        a.set(R4, 1);
        a.place(fresh);
        a.store(IS_OLD, R4);
        a.load(R2, RTT);
        a.jump_if(R2, If::SignedBelow, 0, known);
        a.jump_if(R2, If::Differs, 0, measured);
        a.set(R2, 1);
        a.place(measured);

        let (no_less, take) = (a.label(), a.label());
        a.load(R5, BLOCK.double(at::CYCLE_RTT));
        a.jump_if(R5, If::Equal, 0, shorter);
        a.jump_if(R2, If::AtLeast, R5, no_less);
        a.place(shorter);
        a.store(BLOCK.double(at::CYCLE_RTT), R2);
        a.place(no_less);
        a.jump_if(R1, If::Equal, 0, take);
        a.jump_if(R4, If::Differs, 0, take);
        // About as short is as good: the drains have seen to it, and windows stay as they are.
        a.set(R5, R1);
        a.alu(Alu::ShiftRight, R5, ABOUT_BITS);
        a.alu(Alu::Add, R5, R1);
        a.jump_if(R2, If::Above, R5, known);
        a.store(BLOCK.double(at::LEAST_RTT_AT), R3);
        a.jump_if(R2, If::AtLeast, R1, known);
        a.place(take);
        a.set(R1, R2);
        a.store(BLOCK.double(at::LEAST_RTT), R1);
        a.store(BLOCK.double(at::LEAST_RTT_AT), R3);
        a.place(known);
        a.store(LEAST, R1);
        a.jump_if(R1, If::Equal, 0, unknown);
    }

    /// A round of all: what was sent after the last began has arrived.
    fn round(&mut self) {
        let a = &mut self.a;
        let same = a.label();
        a.store(BEGINS, 0);
        a.load(R1, INTERVAL);
        a.jump_if(R1, If::SignedAtMost, 0, same);
        a.load(R1, PRIOR);
        a.load(R2, BLOCK.double(at::ROUND_BEGAN));
        a.jump_if(R1, If::Below, R2, same);
        a.store(BEGINS, 1);
        a.load(R1, NOW);
        a.store(BLOCK.double(at::ROUND_BEGAN), R1);
        a.load(R1, BLOCK.double(at::ROUND));
        a.alu(Alu::Add, R1, 1);
        a.store(BLOCK.double(at::ROUND), R1);
        a.set(R2, R1);
        self.slot(R2);
        self.a.store(R2.double(at::RATES), 0);
        self.a.alu(Alu::Sub, R1, ROUNDS);
        self.slot(R1);
        self.a.store(R1.double(at::RATES), 0);
        self.a.place(same);
    }

    /// round = what leads, with `at::RATES`, to its best rate.
    fn slot(&mut self, round: crate::asm::Register) {
        self.a.alu(Alu::And, round, i32::from(RATES) - 1);
        self.a.alu(Alu::ShiftLeft, round, 3);
        self.a.alu(Alu::Add, round, BLOCK);
    }

    /// The rates of all that have something to send, with the newest of this member. What it says of a time in
    /// which somebody had less to send, or the round trip time was probed, counts only if it is better than
    /// what is known. Each rate is the kernel's, which takes the longer of the times that the segments were
    /// sent and acknowledged in: what all had delivered in a time looks like more where acknowledgments come in
    /// bursts.
    fn rate(&mut self) {
        let own = private_double(self.kernel, private::RATE);
        let (unlimited, limited) = (self.a.label(), self.a.label());
        let (end, idle, known) = (self.a.label(), self.a.label(), self.a.label());
        self.a.load(R1, LIMITED);
        self.a.jump_if(R1, If::Differs, 0, limited);
        self.a.load(R1, BLOCK.word(at::MODE));
        self.a.jump_if(R1, If::Differs, PROBE_RTT, unlimited);
        self.a.place(limited);
        self.a.load(R1, NOW);
        self.a.store(BLOCK.double(at::LIMITED_AT), R1);
        self.a.place(unlimited);

        self.a.load(R1, private_word(self.kernel, private::IS_ACTIVE));
        self.a.jump_if(R1, If::Equal, 0, idle);
        self.a.load(R2, INTERVAL);
        self.a.load(R1, LEAST);
        self.a.jump_if(R2, If::SignedBelow, R1, end);
        self.a.load(R4, DELIVERED);
        self.a.alu(Alu::ShiftLeft, R4, RATE_BITS);
        self.a.alu(Alu::Div, R4, R2);
        self.a.load(R1, own);
        self.a.store(own, R4);
        self.a.set(R2, R4);
        self.a.alu(Alu::Sub, R2, R1);
        self.a.atomic_add(BLOCK.double(at::RATE), R2);
        self.a.load(R4, BLOCK.double(at::RATE));
        self.a.load(R1, PRIOR);
        self.a.load(R2, BLOCK.double(at::LIMITED_AT));
        self.a.jump_if(R2, If::Equal, 0, known);
        self.a.jump_if(R1, If::Above, R2, known);
        self.best();
        self.a.jump_if(R4, If::Below, R0, end);
        self.a.place(known);
        self.a.load(R2, BLOCK.double(at::ROUND));
        self.slot(R2);
        self.a.load(R1, R2.double(at::RATES));
        self.at_least(R4, R1);
        self.a.store(R2.double(at::RATES), R4);
        self.a.jump(end);
        self.a.place(idle);
        self.no_rate();
        self.a.place(end);
    }

    /// The member's rate counts no more. Loses R1.
    fn no_rate(&mut self) {
        let own = private_double(self.kernel, private::RATE);
        self.a.load(R1, own);
        self.a.negate(R1);
        self.a.atomic_add(BLOCK.double(at::RATE), R1);
        self.a.store(own, 0);
    }

    /// BEST = R0 = the best rate of the last rounds. Loses R1.
    fn best(&mut self) {
        self.a.load(R0, BLOCK.double(at::RATES));
        for slot in 1..RATES {
            self.a.load(R1, BLOCK.double(at::RATES + 8 * slot));
            self.at_least(R0, R1);
        }
        self.a.store(BEST, R0);
    }

    /// R0 = what the path holds at its bandwidth, with this gain. Loses R1.
    fn held(&mut self, gain: impl Into<crate::asm::Operand>) {
        self.a.load(R0, BEST);
        self.a.load(R1, LEAST);
        self.a.alu(Alu::Mul, R0, R1);
        self.a.alu(Alu::Mul, R0, gain);
        self.a.alu(Alu::Div, R0, UNIT);
        self.a.alu(Alu::Add, R0, (1 << RATE_BITS) - 1);
        self.a.alu(Alu::ShiftRight, R0, RATE_BITS);
    }

    /// The same, with what the members may have beyond. Loses R1 and R2.
    fn flight(&mut self, gain: impl Into<crate::asm::Operand>) {
        self.held(gain);
        self.a.load(R1, QUANTA);
        self.a.load(R2, SHARERS);
        self.a.alu(Alu::Mul, R1, R2);
        self.a.alu(Alu::Add, R0, R1);
    }

    /// The next phase of PROBE_BW, if this is over (draft, 4.3.4.3). A cycle in which no round trip came
    /// near the least has somebody else's queue in it.
    ///
    /// ```text
    /// up    a round trip, and something was lost or the path holds what it should
    /// down  crowded: a round trip, or no more in flight than it should be
    ///       else:    as much in flight as the path holds without a queue, or four round trips
    /// other a round trip
    /// ```
    fn phase(&mut self) {
        let (end, over) = (self.a.label(), self.a.label());
        let (even, up, crowded) = (self.a.label(), self.a.label(), self.a.label());
        self.a.load(R1, BLOCK.word(at::MODE));
        self.a.jump_if(R1, If::Differs, PROBE_BW, end);
        // R3 = now, R4 = when a round trip of this phase is over, R5 = phase, R9 = in flight
        self.a.load(R3, NOW);
        self.a.load(R4, BLOCK.double(at::PHASE_BEGAN));
        self.a.load(R1, LEAST);
        self.a.alu(Alu::Add, R4, R1);
        self.a.load(R5, BLOCK.double(at::PHASE));
        self.a.load(R9, BEFORE);
        self.a.jump_if(R5, If::Equal, 0, up);
        self.a.jump_if(R5, If::Differs, 1, even);
        let drains = self.a.label();
        self.a.load(R1, BLOCK.double(at::IS_CROWDED));
        self.a.jump_if(R1, If::Equal, 0, drains);
        self.a.load(R1, BLOCK.double(at::CYCLES));
        self.a.alu(Alu::And, R1, LOOKS_EVERY - 1);
        self.a.jump_if(R1, If::Differs, 0, crowded);
        self.a.place(drains);
        self.held(UNIT);
        self.a.jump_if(R9, If::AtMost, R0, over);
        self.a.load(R1, LEAST);
        self.a.alu(Alu::Mul, R1, MOST_DRAIN - 1);
        self.a.alu(Alu::Add, R4, R1);
        self.a.jump_if(R3, If::Above, R4, over);
        self.a.jump(end);
        self.a.place(crowded);
        self.a.jump_if(R3, If::Above, R4, over);
        self.flight(UNIT);
        self.a.jump_if(R9, If::AtMost, R0, over);
        self.a.jump(end);
        self.a.place(up);
        self.a.jump_if(R3, If::AtMost, R4, end);
        self.a.load(R1, LOSSES);
        self.a.jump_if(R1, If::Differs, 0, over);
        self.flight(UP_GAIN);
        self.a.jump_if(R9, If::AtLeast, R0, over);
        self.a.jump(end);
        self.a.place(even);
        self.a.jump_if(R3, If::AtMost, R4, end);

        self.a.place(over);
        self.a.store(BLOCK.double(at::PHASE_BEGAN), R3);
        self.a.alu(Alu::Add, R5, 1);
        self.a.alu(Alu::And, R5, 7);
        self.a.store(BLOCK.double(at::PHASE), R5);
        self.a.jump_if(R5, If::Differs, 0, end);
        let quiet = self.a.label();
        self.a.load(R2, LEAST);
        self.a.set(R1, R2);
        self.a.alu(Alu::ShiftRight, R1, 1);
        self.a.alu(Alu::Add, R2, R1);
        self.a.alu(Alu::Add, R2, CROWDED_US);
        self.a.set(R4, 0);
        self.a.load(R1, BLOCK.double(at::CYCLE_RTT));
        self.a.jump_if(R1, If::AtMost, R2, quiet);
        self.a.set(R4, 1);
        self.a.place(quiet);
        self.a.store(BLOCK.double(at::IS_CROWDED), R4);
        self.a.store(BLOCK.double(at::CYCLE_RTT), 0);
        self.count(at::CYCLES, R1);
        self.a.place(end);
    }

    /// Draft, 4.3.2.2.
    fn look_for_full(&mut self) {
        let (end, same) = (self.a.label(), self.a.label());
        self.a.load(R1, BEGINS);
        self.a.jump_if(R1, If::Equal, 0, end);
        self.a.load(R1, LIMITED);
        self.a.jump_if(R1, If::Differs, 0, end);
        self.a.load(R3, BLOCK.double(at::FULL_ROUNDS));
        self.a.jump_if(R3, If::AtLeast, FULL, end);
        self.a.load(R1, BEST);
        self.a.load(R2, BLOCK.double(at::FULL_RATE));
        self.a.alu(Alu::Mul, R2, 5);
        self.a.alu(Alu::ShiftRight, R2, 2);
        self.a.alu(Alu::Add, R3, 1);
        self.a.jump_if(R1, If::Below, R2, same);
        self.a.store(BLOCK.double(at::FULL_RATE), R1);
        self.a.set(R3, 0);
        self.a.place(same);
        self.a.store(BLOCK.double(at::FULL_ROUNDS), R3);
        self.a.place(end);
    }

    /// From STARTUP to DRAIN when the path is full, and on when what is too much has left it.
    fn drain(&mut self) {
        let (end, filling, drained) = (self.a.label(), self.a.label(), self.a.label());
        self.a.load(R1, BLOCK.word(at::MODE));
        self.a.jump_if(R1, If::Above, DRAIN, end);
        self.a.jump_if(R1, If::Equal, DRAIN, filling);
        self.a.load(R1, BLOCK.double(at::FULL_ROUNDS));
        self.a.jump_if(R1, If::Below, FULL, end);
        self.a.store(BLOCK.word(at::MODE), DRAIN);
        self.a.load(R1, NOW);
        self.a.store(BLOCK.double(at::PHASE_BEGAN), R1);
        self.a.place(filling);
        self.flight(UNIT);
        self.a.load(R1, BLOCK.double(at::ALL_IN_FLIGHT));
        self.a.jump_if(R1, If::SignedAtMost, R0, drained);
        // As of a drain in PROBE_BW, and more, since there is more of it.
        self.a.load(R1, LEAST);
        self.a.alu(Alu::Mul, R1, 2 * MOST_DRAIN);
        self.a.load(R2, BLOCK.double(at::PHASE_BEGAN));
        self.a.alu(Alu::Add, R1, R2);
        self.a.load(R2, NOW);
        self.a.jump_if(R2, If::AtMost, R1, end);
        self.a.place(drained);
        self.probe_bandwidth();
        self.a.place(end);
    }

    /// PROBE_BW, in any phase but the one that drains: those of a path should not all probe at once.
    fn probe_bandwidth(&mut self) {
        let up = self.a.label();
        self.a.store(BLOCK.word(at::MODE), PROBE_BW);
        self.a.load(R1, NOW);
        self.a.store(BLOCK.double(at::PHASE_BEGAN), R1);
        self.a.set(R2, R1);
        self.a.alu(Alu::Div, R2, 7);
        self.a.alu(Alu::Mul, R2, 7);
        self.a.alu(Alu::Sub, R1, R2);
        self.a.jump_if(R1, If::Equal, 0, up);
        self.a.alu(Alu::Add, R1, 1);
        self.a.place(up);
        self.a.store(BLOCK.double(at::PHASE), R1);
        self.a.store(BLOCK.double(at::CYCLE_RTT), 0);
    }

    /// PROBE_RTT when the least round trip time is old, for a time and what was in flight (draft, 4.3.5).
    fn probe_rtt(&mut self) {
        let (end, probing, young, startup) =
            (self.a.label(), self.a.label(), self.a.label(), self.a.label());
        self.a.load(R3, NOW);
        self.a.load(R1, BLOCK.word(at::MODE));
        self.a.jump_if(R1, If::Equal, PROBE_RTT, probing);
        self.a.load(R1, IS_OLD);
        self.a.jump_if(R1, If::Equal, 0, young);
        self.a.store(BLOCK.word(at::MODE), PROBE_RTT);
        self.a.load(R1, LEAST);
        self.a.alu(Alu::ShiftLeft, R1, 1);
        self.a.alu(Alu::Add, R1, PROBE_RTT_US);
        self.a.alu(Alu::Add, R1, R3);
        self.a.store(BLOCK.double(at::PROBE_ENDS), R1);
        self.count(at::PROBES, R1);
        self.a.place(young);
        self.a.jump(end);
        self.a.place(probing);
        self.a.load(R1, BLOCK.double(at::PROBE_ENDS));
        self.a.jump_if(R3, If::AtMost, R1, end);
        self.a.store(BLOCK.double(at::LEAST_RTT_AT), R3);
        self.a.load(R1, BLOCK.double(at::FULL_ROUNDS));
        self.a.jump_if(R1, If::Below, FULL, startup);
        self.probe_bandwidth();
        self.a.jump(end);
        self.a.place(startup);
        self.a.store(BLOCK.word(at::MODE), STARTUP);
        self.a.place(end);
    }

    /// R3 = the gain of the mode: of each, and of the two phases of PROBE_BW that have others. Loses R1.
    fn pace_gain(&mut self) {
        let (known, draining, unit) = (self.a.label(), self.a.label(), self.a.label());
        self.a.load(R1, BLOCK.word(at::MODE));
        self.a.set(R3, STARTUP_GAIN);
        self.a.jump_if(R1, If::Equal, STARTUP, known);
        self.a.jump_if(R1, If::Equal, DRAIN, draining);
        self.a.jump_if(R1, If::Equal, PROBE_RTT, unit);
        self.a.load(R1, BLOCK.double(at::PHASE));
        self.a.set(R3, UP_GAIN);
        self.a.jump_if(R1, If::Equal, 0, known);
        self.a.set(R3, DOWN_GAIN);
        self.a.jump_if(R1, If::Equal, 1, known);
        self.a.place(unit);
        self.a.set(R3, UNIT);
        self.a.jump(known);
        self.a.place(draining);
        self.a.set(R3, DRAIN_GAIN);
        self.a.place(known);
    }

    /// The member's part of the bandwidth, in bytes a second. Before the path is full, only upwards.
    fn pace_together(&mut self) {
        let fields = self.kernel.fields;
        let (end, set) = (self.a.label(), self.a.label());
        self.pace_gain();
        self.a.load(R1, BEST);
        self.a.jump_if(R1, If::Equal, 0, end);
        self.a.alu(Alu::Mul, R1, R3);
        self.a.alu(Alu::Div, R1, UNIT);
        self.a.load(R2, SHARERS);
        self.a.alu(Alu::Div, R1, R2);
        self.a.load(R2, SK.word(fields.mss_cache));
        self.a.alu(Alu::Mul, R1, R2);
        self.a.alu(Alu::Mul, R1, MICROSECONDS);
        self.a.alu(Alu::ShiftRight, R1, RATE_BITS);
        self.a.load(R2, SK.double(fields.max_pacing_rate));
        self.at_most(R1, R2);
        self.a.load(R2, BLOCK.double(at::FULL_ROUNDS));
        self.a.jump_if(R2, If::AtLeast, FULL, set);
        self.a.load(R2, SK.double(fields.pacing_rate));
        self.a.jump_if(R1, If::AtMost, R2, end);
        self.a.place(set);
        self.a.store(SK.double(fields.pacing_rate), R1);
        self.a.place(end);
    }

    /// The member's saved window becomes R3, or, in a recovery or where R2 is PROBE_RTT, the larger of the two.
    /// Loses R1.
    fn save(&mut self) {
        let saved = private_word(self.kernel, private::SAVED);
        let (larger, set) = (self.a.label(), self.a.label());
        self.a.jump_if(R2, If::Equal, PROBE_RTT, larger);
        self.a.load(R1, private_word(self.kernel, private::STATE));
        self.a.jump_if(R1, If::Below, STATE_RECOVERY, set);
        self.a.place(larger);
        self.a.load(R1, saved);
        self.at_least(R3, R1);
        self.a.place(set);
        self.a.store(saved, R3);
    }

    /// The member's window: its part of twice what the path holds, approached by what is acknowledged; while it
    /// recovers, less (draft, 4.2.3). R3 = the window, all the way.
    fn window_together(&mut self) {
        let (kernel, fields) = (self.kernel, self.kernel.fields);
        let probes = private_word(kernel, private::PROBES_RTT);
        let saved = private_word(kernel, private::SAVED);
        let (same, leaves, done) = (self.a.label(), self.a.label(), self.a.label());
        // R4 = whether the round trip time is probed
        let other = self.a.label();
        self.a.load(R3, SK.word(fields.snd_cwnd));
        self.a.set(R4, 0);
        self.a.load(R1, BLOCK.word(at::MODE));
        self.a.jump_if(R1, If::Differs, PROBE_RTT, other);
        self.a.set(R4, 1);
        self.a.place(other);
        self.a.load(R1, probes);
        self.a.jump_if(R1, If::Equal, R4, same);
        self.a.store(probes, R4);
        self.a.jump_if(R4, If::Equal, 0, leaves);
        self.a.set(R9, R3);
        self.a.set(R2, 0);
        self.save();
        self.a.set(R3, R9);
        self.a.jump(same);
        self.a.place(leaves);
        self.a.load(R1, saved);
        self.at_least(R3, R1);
        self.a.place(same);
        self.a.jump_if(R8, If::Equal, 0, done);
        self.recover(done);
        self.approach();
        self.a.place(done);
        self.a.load(R1, SK.word(fields.snd_cwnd_clamp));
        self.at_most(R3, R1);
        let free = self.a.label();
        self.a.load(R1, BLOCK.word(at::MODE));
        self.a.jump_if(R1, If::Differs, PROBE_RTT, free);
        self.at_most(R3, LEAST_WINDOW);
        self.a.place(free);
        self.at_least(R3, 1);
        self.a.store(SK.word(fields.snd_cwnd), R3);
    }

    /// Less by what is lost; for the first round trip of a recovery no more than arrives, and on to `done`
    /// then; after it the window of before (draft, 4.2.3.4).
    fn recover(&mut self, done: BpfJumpLabel) {
        let kernel = self.kernel;
        let (state, saved) =
            (private_word(kernel, private::STATE), private_word(kernel, private::SAVED));
        let conserves = private_double(kernel, private::CONSERVES_FROM);
        // R2 = state, R1 = state before, R4 = from when it conserves, R5 = what keeps the flight as it is
        let (whole, begun, leaves, known) =
            (self.a.label(), self.a.label(), self.a.label(), self.a.label());
        self.a.load(R1, LOSSES);
        self.a.jump_if(R1, If::Equal, 0, whole);
        self.a.alu(Alu::Sub, R3, R1);
        self.signed_at_least(R3, 1);
        self.a.place(whole);
        self.a.load(R5, OWN);
        self.a.alu(Alu::Add, R5, R8);
        self.a.load(R4, conserves);
        self.a.load(R1, PRIOR);
        self.a.jump_if(R1, If::Below, R4, begun);
        self.a.set(R4, 0);
        self.a.place(begun);
        self.a.load(R2, STATE);
        self.a.load(R1, state);
        self.a.store(state, R2);
        self.a.jump_if(R2, If::Below, STATE_RECOVERY, leaves);
        self.a.jump_if(R2, If::Above, STATE_RECOVERY, known);
        self.a.jump_if(R1, If::Equal, STATE_RECOVERY, known);
        self.a.load(R4, NOW);
        self.a.set(R3, R5);
        self.a.jump(known);
        self.a.place(leaves);
        self.a.jump_if(R1, If::Below, STATE_RECOVERY, known);
        self.a.load(R1, saved);
        self.at_least(R3, R1);
        self.a.set(R4, 0);
        self.a.place(known);
        let free = self.a.label();
        self.a.store(conserves, R4);
        self.a.jump_if(R4, If::Equal, 0, free);
        self.at_least(R3, R5);
        self.a.jump(done);
        self.a.place(free);
    }

    /// R3 = the window, nearer to the member's part.
    fn approach(&mut self) {
        let (gain, known, growing, end) =
            (self.a.label(), self.a.label(), self.a.label(), self.a.label());
        // R9 = gain, then the target
        self.a.load(R1, BLOCK.word(at::MODE));
        self.a.set(R9, STARTUP_GAIN);
        self.a.jump_if(R1, If::AtMost, DRAIN, gain);
        self.a.set(R9, WINDOW_GAIN);
        self.a.jump_if(R1, If::Equal, PROBE_BW, gain);
        self.a.set(R9, UNIT);
        self.a.place(gain);
        self.flight(R9);
        // For people.
        self.a.set(R1, R0);
        self.a.alu(Alu::ShiftLeft, R1, FRACTION_BITS);
        self.a.store(BLOCK.double(at::WINDOW), R1);
        self.a.load(R1, SHARERS);
        self.a.alu(Alu::Add, R0, R1);
        self.a.alu(Alu::Sub, R0, 1);
        self.a.alu(Alu::Div, R0, R1);
        self.a.set(R9, R0);
        self.a.load(R1, BEST);
        self.a.jump_if(R1, If::Differs, 0, known);
        self.a.set(R9, INFINITE_SSTHRESH);
        self.a.place(known);
        self.a.load(R1, BLOCK.double(at::FULL_ROUNDS));
        self.a.jump_if(R1, If::Below, FULL, growing);
        self.a.alu(Alu::Add, R3, R8);
        self.at_most(R3, R9);
        self.a.jump(end);
        self.a.place(growing);
        self.a.jump_if(R3, If::AtLeast, R9, end);
        self.a.alu(Alu::Add, R3, R8);
        self.a.place(end);
        self.at_least(R3, LEAST_WINDOW);
    }
}
