//! Members share a model of their path (bandwidth and minimum round trip time), which BBR keeps for each connection
//! (draft-cardwell-iccrg-bbr-congestion-control-00). They estimate it from the data that all of them deliver, probe
//! the path together, drain its queue together, and each is paced at its part of the rate.
//!
//! ```text
//! STARTUP    pace 2.89, window 2.89   until the rate has not grown by a quarter in three rounds
//! DRAIN      pace 0.34, window 2.89   until no more is in flight than the path holds
//! PROBE_BW   pace 1.25, 0.75, 1 x 6   a round trip each; the second until the queue is drained
//! PROBE_RTT  windows of 4             for 200 ms, when no round trip was about as short in 10 s
//! ```
//!
//! If other flows keep a queue on the path, the drain ends after one round trip, as in BBR: waiting until their queue
//! is empty would leave them the bandwidth. BBR's policer detection is not implemented.

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

// Stack slots, in addition to those of `shared_window`.
/// In microseconds: now; the last delivery before the newest acknowledged segment was sent; the last round trip time
/// (negative if there is none); the interval of the rate sample.
const NOW: BpfMemoryOperand = R10.double(-56);
const PRIOR: BpfMemoryOperand = R10.double(-64);
const RTT: BpfMemoryOperand = R10.double(-72);
const INTERVAL: BpfMemoryOperand = R10.double(-80);
/// Whether the sample was application-limited.
const LIMITED: BpfMemoryOperand = R10.double(-88);
/// Number of members with data to send, at least 1.
const SHARERS: BpfMemoryOperand = R10.double(-96);
/// Segments that a member may have in flight in addition to its part of the path's capacity.
const QUANTA: BpfMemoryOperand = R10.double(-104);
/// Segments in flight of all members before this acknowledgment, and of this member after it.
const BEFORE: BpfMemoryOperand = R10.double(-112);
const OWN: BpfMemoryOperand = R10.double(-120);
/// Whether the minimum round trip time has expired.
const IS_OLD: BpfMemoryOperand = R10.double(-128);
/// Whether a round begins.
const BEGINS: BpfMemoryOperand = R10.double(-136);
/// The bandwidth estimate.
const BEST: BpfMemoryOperand = R10.double(-144);
/// The minimum round trip time, microseconds.
const LEAST: BpfMemoryOperand = R10.double(-152);
/// Segments delivered in `INTERVAL`.
const DELIVERED: BpfMemoryOperand = R10.double(-160);

/// Gains are in units of 1/256.
const UNIT: i32 = 256;
/// 2/ln(2), which doubles the rate each round trip (draft, 4.3.2.1), and its inverse.
const STARTUP_GAIN: i32 = UNIT * 2885 / 1000 + 1;
const DRAIN_GAIN: i32 = UNIT * 1000 / 2885;
/// Draft, 4.3.4.1.
const UP_GAIN: i32 = UNIT * 5 / 4;
const DOWN_GAIN: i32 = UNIT * 3 / 4;
const WINDOW_GAIN: i32 = 2 * UNIT;
/// The bandwidth is the maximum of this number of rounds (draft, 4.1.2.1).
const ROUNDS: i32 = 10;
const RTT_WINDOW_US: i32 = 10_000_000;
const PROBE_RTT_US: i32 = 200_000;
/// A round trip time is similar to the minimum if it exceeds it by at most a sixteenth.
const ABOUT_BITS: i32 = 4;
const LEAST_WINDOW: i32 = 4;
/// Maximum length of a drain in round trips.
const MOST_DRAIN: i32 = 4;
/// On a crowded path one drain of this number is complete nevertheless, to find out whether it is still crowded.
const LOOKS_EVERY: i32 = 4;
/// Tolerance in addition to one and a half of the minimum round trip time.
const CROWDED_US: i32 = 500;
/// All of the bandwidth is used, not 99 % as in BBR: the next drain removes the queue caused by rounding.
const MICROSECONDS: i32 = 1_000_000;

// The values of `at::MODE`.
const STARTUP: i32 = 0;
const DRAIN: i32 = 1;
const PROBE_BW: i32 = 2;
const PROBE_RTT: i32 = 3;

// enum sk_pacing
const SK_PACING_NEEDED: i32 = 1;

/// void init(struct sock *sk), after it has joined: starts pacing. The initial rate is 2.89 windows per round trip
/// time (1 ms if it is not measured yet).
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

/// u32 ssthresh(struct sock *sk): a recovery begins; saves the window to restore.
pub(super) fn ssthresh(code: &mut Code<'_>) {
    let fields = code.kernel.fields;
    code.a.load(R3, SK.word(fields.snd_cwnd));
    code.a.load(R2, BLOCK.word(at::MODE));
    code.save();
    code.a.load(R0, SK.word(fields.snd_ssthresh));
}

/// u32 undo_cwnd(struct sock *sk): the loss was spurious; detects again whether the path is full.
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

/// The path is full after this number of rounds without growth.
const FULL: i32 = 3;

/// void cong_control(struct sock *sk, u32 ack, int flag, const struct rate_sample *rs), or without the two middle
/// arguments.
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
    /// Saves the arguments that the model needs, while R1 still points to them.
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

    /// Adds this member's segments in flight, and whether it has data to send, to the totals.
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

        // Bounds the count, which may be wrong if a leaving member was not reported or after concurrent changes.
        self.members(R2);
        self.a.load(R1, BLOCK.word(at::ACTIVE));
        self.at_most(R1, R2);
        self.at_least(R1, 1);
        self.a.store(SHARERS, R1);

        // Three times what the kernel sends at a time, about a millisecond's worth (tcp_tso_autosize()).
        self.a.load(R1, SK.double(fields.pacing_rate));
        self.a.load(R2, SK.word(fields.mss_cache));
        self.a.alu(Alu::ShiftRight, R1, 10);
        self.a.alu(Alu::Div, R1, R2);
        self.at_least(R1, 2);
        self.at_most(R1, 44);
        self.a.alu(Alu::Mul, R1, 3);
        self.a.store(QUANTA, R1);
    }

    /// LEAST = the minimum round trip time of all members; jumps to `unknown` if there is none yet.
    fn least_rtt(&mut self, unknown: BpfJumpLabel) {
        let a = &mut self.a;
        let (fresh, known, shorter, measured) = (a.label(), a.label(), a.label(), a.label());
        // R1 = minimum, R2 = last sample, R3 = now, R4 = whether the minimum has expired
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
        // A similar round trip time confirms the minimum without PROBE_RTT, since drains empty the queue.
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

    /// Begins a round if data that was sent after the last round began has been acknowledged.
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

    /// round = the base address which, with the offset `at::RATES`, is the slot of this round.
    fn slot(&mut self, round: crate::asm::Register) {
        self.a.alu(Alu::And, round, i32::from(RATES) - 1);
        self.a.alu(Alu::ShiftLeft, round, 3);
        self.a.alu(Alu::Add, round, BLOCK);
    }

    /// Updates the sum of the delivery rates with the last one of this member. If a member was application-limited or
    /// in PROBE_RTT during the sample, the sum is used only if it exceeds the estimate. The rates are those of the
    /// kernel, which divides by the longer of the send and the acknowledgment interval: a rate computed from all
    /// members' deliveries would be too high if acknowledgments arrive in bursts.
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

    /// Removes the member's rate from the sum. Loses R1.
    fn no_rate(&mut self) {
        let own = private_double(self.kernel, private::RATE);
        self.a.load(R1, own);
        self.a.negate(R1);
        self.a.atomic_add(BLOCK.double(at::RATE), R1);
        self.a.store(own, 0);
    }

    /// BEST = R0 = the maximum rate of the last rounds. Loses R1.
    fn best(&mut self) {
        self.a.load(R0, BLOCK.double(at::RATES));
        for slot in 1..RATES {
            self.a.load(R1, BLOCK.double(at::RATES + 8 * slot));
            self.at_least(R0, R1);
        }
        self.a.store(BEST, R0);
    }

    /// R0 = the path's bandwidth-delay product times the gain. Loses R1.
    fn held(&mut self, gain: impl Into<crate::asm::Operand>) {
        self.a.load(R0, BEST);
        self.a.load(R1, LEAST);
        self.a.alu(Alu::Mul, R0, R1);
        self.a.alu(Alu::Mul, R0, gain);
        self.a.alu(Alu::Div, R0, UNIT);
        self.a.alu(Alu::Add, R0, (1 << RATE_BITS) - 1);
        self.a.alu(Alu::ShiftRight, R0, RATE_BITS);
    }

    /// Like `held`, plus the segments that the members may have in addition. Loses R1 and R2.
    fn flight(&mut self, gain: impl Into<crate::asm::Operand>) {
        self.held(gain);
        self.a.load(R1, QUANTA);
        self.a.load(R2, SHARERS);
        self.a.alu(Alu::Mul, R1, R2);
        self.a.alu(Alu::Add, R0, R1);
    }

    /// Advances the cycle of PROBE_BW when a phase is over (draft, 4.3.4.3). If no round trip time in a cycle was
    /// near the minimum, the path is crowded: another flow has a queue on it.
    ///
    /// ```text
    /// up    a round trip, and a loss or the intended number in flight
    /// down  crowded: a round trip, or no more in flight than intended
    ///       else:    no more in flight than the path holds without a queue, or four round trips
    /// other a round trip
    /// ```
    fn phase(&mut self) {
        let (end, over) = (self.a.label(), self.a.label());
        let (even, up, crowded) = (self.a.label(), self.a.label(), self.a.label());
        self.a.load(R1, BLOCK.word(at::MODE));
        self.a.jump_if(R1, If::Differs, PROBE_BW, end);
        // R3 = now, R4 = when the phase has lasted a round trip, R5 = phase, R9 = in flight
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

    /// Detects that the path is full (draft, 4.3.2.2).
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

    /// Changes from STARTUP to DRAIN when the path is full, and to PROBE_BW when the queue is drained.
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
        // The limit is twice that of a drain in PROBE_BW, because the queue is longer.
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

    /// Enters PROBE_BW in any phase except the draining one, so that not all ensembles of a path probe together.
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

    /// Enters PROBE_RTT when the minimum has expired; leaves it after 200 ms and two round trips (draft, 4.3.5).
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

    /// R3 = the pacing gain of the mode or of the phase of PROBE_BW. Loses R1.
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

    /// Sets the pacing rate: the member's part of the bandwidth in bytes/s. Until the path is full it only rises.
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

    /// Sets the member's saved window to R3; in a recovery, or if R2 is PROBE_RTT, to the larger of the two. Loses
    /// R1.
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

    /// Sets the member's window: approaches its part of twice the path's capacity by the acknowledged segments; less
    /// in a recovery (draft, 4.2.3). R3 = the window in the whole function.
    fn window_together(&mut self) {
        let (kernel, fields) = (self.kernel, self.kernel.fields);
        let probes = private_word(kernel, private::PROBES_RTT);
        let saved = private_word(kernel, private::SAVED);
        let (same, leaves, done) = (self.a.label(), self.a.label(), self.a.label());
        // R4 = whether the mode is PROBE_RTT
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

    /// Reduces the window by the lost segments. In the first round trip of a recovery packets are conserved (jumps to
    /// `done`); after it the previous window is restored (draft, 4.2.3.4).
    fn recover(&mut self, done: BpfJumpLabel) {
        let kernel = self.kernel;
        let (state, saved) =
            (private_word(kernel, private::STATE), private_word(kernel, private::SAVED));
        let conserves = private_double(kernel, private::CONSERVES_FROM);
        // R2 = state, R1 = previous state, R4 = start of packet conservation, R5 = the window that conserves packets
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

    /// R3 = the window, moved towards the member's part.
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
        // Only for the status.
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
