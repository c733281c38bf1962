//! Members share a model of their path (bandwidth and minimum round trip time), which BBR keeps for each
//! connection (draft-cardwell-iccrg-bbr-congestion-control-00). They estimate it from the data that all of
//! them deliver, and they probe the path and drain its queue together. Each member is paced at its part of
//! the rate.
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

mod slots;
mod measurement;
mod phases;
mod pacing;

use self::slots::{FULL, SK_PACING_NEEDED, STARTUP_GAIN, UNIT};
use crate::{
    asm::{
        Alu, If, Instruction,
        Register::{R0, R1, R2, R3},
        Unassembled,
    },
    control_block::at,
    program::{
        common_code::{BLOCK, Code, Maps, SK, private, private_double, private_word},
        kernel_layout::Kernel,
        shared_window::{self, STATE_LOSS},
    },
};

/// void init(struct sock *sk), called after the socket has joined an ensemble: starts pacing. The initial rate is 2.89
/// windows per round trip time (1 ms if none was measured yet).
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

/// void release(struct sock *sk), called before the member leaves: removes its values from the totals in the block.
pub(super) fn release(code: &mut Code<'_>) {
    code.a.load(R1, private_word(code.kernel, private::IN_FLIGHT));
    code.a.negate(R1);
    code.a.atomic_add(BLOCK.double(at::ALL_IN_FLIGHT), R1);
    code.a.load(R1, private_word(code.kernel, private::IS_ACTIVE));
    code.a.negate(R1);
    code.a.atomic_add(BLOCK.word(at::ACTIVE), R1);
    code.no_rate();
}

/// u32 ssthresh(struct sock *sk): called when a loss recovery begins. Saves the window to which the member returns
/// after the recovery.
pub(super) fn ssthresh(code: &mut Code<'_>) {
    let fields = code.kernel.fields;
    code.a.load(R3, SK.word(fields.snd_cwnd));
    code.a.load(R2, BLOCK.word(at::MODE));
    code.save();
    code.a.load(R0, SK.word(fields.snd_ssthresh));
}

/// u32 undo_cwnd(struct sock *sk): the loss was spurious. Restarts the detection of whether the path is full.
pub(super) fn undo_cwnd(code: &mut Code<'_>) {
    let is_full = code.a.label();
    code.a.store(BLOCK.double(at::FULL_RATE), 0);
    code.a.load(R1, BLOCK.double(at::FULL_ROUNDS));
    code.a.jump_if(R1, If::AtLeast, FULL, is_full);
    code.a.store(BLOCK.double(at::FULL_ROUNDS), 0);
    code.a.place(is_full);
    code.count(at::UNDONE, R1);
}

/// void set_state(struct sock *sk, u8 state), called at a timeout: restarts the detection of
/// whether the path is full, and removes the member's delivery rate from the sum.
pub(super) fn timed_out(code: &mut Code<'_>) {
    code.a.store(private_word(code.kernel, private::STATE), STATE_LOSS);
    code.a.store(BLOCK.double(at::FULL_RATE), 0);
    code.no_rate();
}

/// void cong_control(struct sock *sk, u32 ack, int flag, const struct rate_sample *rs), called at each acknowledgment.
/// Older kernels do not pass the two middle arguments.
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
