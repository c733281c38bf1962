//! `cong_control` with a shared window: how the window reacts to each acknowledgment. The program sets the window in
//! every state, so that the kernel does not change it while acknowledgments arrive.

use super::{
    common_code::{BLOCK, Code, LEAST_SEGMENTS, Maps, SK, private, private_word},
    kernel_layout::Kernel,
};
use crate::{
    asm::{
        Alu, BpfJumpLabel, BpfMemoryOperand, If, Instruction,
        Register::{R0, R1, R2, R3, R4, R5, R8, R9, R10},
        Unassembled,
    },
    control_block::{FRACTION_BITS, at},
};

// Stack slots. In the whole program, R8 holds the number of segments that this acknowledgment acknowledges, selectively
// or not.
/// Stack slot: number of segments that this acknowledgment has marked as lost.
pub(super) const LOSSES: BpfMemoryOperand = R10.double(-16);
/// Stack slot: number of segments in flight before this acknowledgment.
pub(super) const IN_FLIGHT: BpfMemoryOperand = R10.double(-24);
/// Stack slot: the kernel's flags for this acknowledgment.
const FLAGS: BpfMemoryOperand = R10.double(-32);
/// Stack slot: the sequence number up to which data is acknowledged.
const ACK: BpfMemoryOperand = R10.double(-40);
/// Stack slot: the state of the connection (`tcp_ca_state`).
pub(super) const STATE: BpfMemoryOperand = R10.double(-48);
/// Stack slot: zero while the member is in a recovery; otherwise the value that its `IS_CUT` had before this
/// acknowledgment. A value other than zero means that a recovery has just ended.
const ENDED: BpfMemoryOperand = R10.double(-56);

// Constants from net/ipv4/tcp_input.c.
const FLAG_DATA_ACKED: i32 = 0x04;
const FLAG_SND_UNA_ADVANCED: i32 = 0x400;

// Values of the kernel's enum tcp_ca_state.
/// In this state and those above it, the window is reduced. The states below it are Open and Disorder.
pub(super) const STATE_CWR: i32 = 2;
pub(super) const STATE_RECOVERY: i32 = 3;
pub(super) const STATE_LOSS: i32 = 4;

// The kernel's TCP_INFINITE_SSTHRESH in net/tcp.h, which stands for "no loss has occurred yet".
pub(super) const INFINITE_SSTHRESH: i32 = 0x7fff_ffff;

/// void cong_control(struct sock *sk, u32 ack, int flag, const struct rate_sample *rs), called at each acknowledgment.
/// Older kernels do not pass the two middle arguments.
pub(super) fn cong_control(kernel: &Kernel, maps: Maps) -> Result<Vec<Instruction>, Unassembled> {
    let mut code = Code::new(kernel, maps);
    let (alone, settle, pace) = (code.a.label(), code.a.label(), code.a.label());
    code.arguments();
    code.a.store(ENDED, 0);
    code.find_block(alone);
    code.round_trip_time();
    code.late_cut();
    code.grow();
    code.share();
    code.unless_reduced(settle);
    code.reduce(pace);
    code.a.place(settle);
    code.settle();
    code.a.place(pace);
    code.pace();
    code.a.exit();
    code.a.place(alone);
    plain(&mut code);
    code.a.finish()
}

/// Emits the part of `cong_control` for a socket that belongs to no ensemble.
pub(super) fn plain(code: &mut Code<'_>) {
    let (grow, pace) = (code.a.label(), code.a.label());
    code.own_share();
    code.unless_reduced(grow);
    code.reduce(pace);
    code.a.place(grow);
    code.data_acknowledged();
    code.grow_plain(pace);
    code.a.place(pace);
    code.pace();
    code.a.exit();
}

/// After a timeout, makes the member begin with slow start. If the kernel has omitted the call that reduces the window,
/// the next acknowledgment reduces it.
pub(super) fn timed_out(code: &mut Code<'_>, end: BpfJumpLabel) {
    let is_cut = private_word(code.kernel, private::IS_CUT);
    code.a.load(R1, is_cut);
    code.a.jump_if(R1, If::Equal, 0, end);
    code.a.store(is_cut, private::BEGINS);
}

impl Code<'_> {
    /// Copies the arguments that are needed later to the stack. Call this while R1 still points to the arguments.
    pub(super) fn arguments(&mut self) {
        let fields = self.kernel.fields;
        let told = self.kernel.control_gets_flags;
        let a = &mut self.a;
        a.load(R2, R1.double(if told { 24 } else { 8 }));
        a.load(R8, R2.word(fields.acked_sacked));
        a.load(R3, R2.word(fields.losses));
        a.store(LOSSES, R3);
        a.load(R3, R2.word(fields.prior_in_flight));
        a.store(IN_FLIGHT, R3);
        if told {
            a.load(R3, R1.double(8));
            a.store(ACK, R3);
            a.load(R3, R1.double(16));
            a.store(FLAGS, R3);
        } else {
            // Assume that all acknowledged data is new. The sequence number is not used in this case.
            let nothing = a.label();
            a.store(ACK, 0);
            a.store(FLAGS, 0);
            a.jump_if(R8, If::Equal, 0, nothing);
            a.store(FLAGS, FLAG_DATA_ACKED | FLAG_SND_UNA_ADVANCED);
            a.place(nothing);
        }
        self.load_bits(R1, fields.ca_state);
        self.a.store(STATE, R1);
    }

    /// Updates the round trip time in the block. The block has the value that any member has measured last (paper,
    /// 2.2).
    pub(super) fn round_trip_time(&mut self) {
        let fields = self.kernel.fields;
        self.a.load(R1, SK.word(fields.srtt_us));
        self.a.store(BLOCK.word(at::SRTT), R1);
        self.a.load(R1, SK.word(fields.rttvar_us));
        self.a.store(BLOCK.word(at::RTTVAR), R1);
    }

    /// Sets the stack slot ENDED, which [`Code::settle`] reads. If a recovery began and the kernel omitted the call of
    /// `ssthresh`, reduces the window now.
    fn late_cut(&mut self) {
        let is_cut = private_word(self.kernel, private::IS_CUT);
        let (reduced, made) = (self.a.label(), self.a.label());
        self.a.load(R1, STATE);
        self.a.jump_if(R1, If::AtLeast, STATE_CWR, reduced);
        self.a.load(R2, is_cut);
        self.a.store(ENDED, R2);
        self.a.store(is_cut, 0);
        self.a.jump(made);
        self.a.place(reduced);
        self.a.load(R2, is_cut);
        self.a.jump_if(R2, If::Differs, 0, made);
        self.count(at::LATE_CUTS, R2);
        self.cut();
        self.a.place(made);
    }

    /// Sets R9 to the member's share of the window in whole segments (paper, Table 1).
    fn share(&mut self) {
        self.members(R9);
        self.window(R0, R1, R9);
        self.a.alu(Alu::Div, R0, R9);
        self.a.alu(Alu::ShiftRight, R0, FRACTION_BITS);
        self.a.set(R9, R0);
    }

    /// For a socket that is in no ensemble and uses Reno: sets R9 to the socket's slow start threshold, but at most to
    /// its window before the recovery. Without this limit an undefined threshold could be used.
    pub(super) fn own_share(&mut self) {
        self.a.set(BLOCK, 0);
        self.a.load(R9, SK.word(self.kernel.fields.snd_ssthresh));
        self.a.load(R1, SK.word(self.kernel.fields.prior_cwnd));
        self.at_most(R9, R1);
    }

    /// Sets R1 to the number of segments in flight (pipe in RFC 6937). Overwrites R2.
    pub(super) fn in_flight(&mut self) {
        let fields = self.kernel.fields;
        self.a.load(R1, SK.word(fields.packets_out));
        self.a.load(R2, SK.word(fields.sacked_out));
        self.a.alu(Alu::Sub, R1, R2);
        self.a.load(R2, SK.word(fields.lost_out));
        self.a.alu(Alu::Sub, R1, R2);
        self.a.load(R2, SK.word(fields.retrans_out));
        self.a.alu(Alu::Add, R1, R2);
        self.signed_at_least(R1, 0);
    }

    /// CWR and Recovery: proportional rate reduction towards the share (RFC 6937, 3.1, with the slow start reduction
    /// bound), like the kernel's tcp_cwnd_reduction().
    ///
    /// ```text
    /// target     = max(share, 2)
    /// delivered += acked
    /// send       = target < in flight ? ceil(target * delivered / prior_cwnd) - prr_out
    ///            : min(target - in flight,
    ///                  max(delivered - prr_out, acked) + (the left edge moved and nothing new is lost))
    /// send       = max(send, nothing was sent yet ? 1 : 0)
    /// cwnd       = max(in flight + send, 1)
    /// ```
    pub(super) fn reduce(&mut self, pace: BpfJumpLabel) {
        let fields = self.kernel.fields;
        let delivered = private_word(self.kernel, private::DELIVERED);
        self.a.jump_if(R8, If::Equal, 0, pace);
        self.at_least(R9, LEAST_SEGMENTS);
        self.a.load(R3, delivered);
        self.a.alu(Alu::Add, R3, R8);
        self.a.store(delivered, R3);
        self.a.load(R4, SK.word(fields.prr_out));

        self.in_flight();

        // Registers: R5 = `send` of the formula above.
        let (slow_start, send) = (self.a.label(), self.a.label());
        self.a.jump_if(R9, If::AtLeast, R1, slow_start);
        self.a.load(R0, SK.word(fields.prior_cwnd));
        self.a.set(R5, R9);
        self.a.alu(Alu::Mul, R5, R3);
        self.a.alu(Alu::Add, R5, R0);
        self.a.alu(Alu::Sub, R5, 1);
        self.a.alu(Alu::Div, R5, R0);
        self.a.alu(Alu::Sub, R5, R4);
        self.a.jump(send);

        self.a.place(slow_start);
        self.a.set(R5, R3);
        self.a.alu(Alu::Sub, R5, R4);
        self.signed_at_least(R5, R8);
        let no_progress = self.a.label();
        self.a.load(R0, FLAGS);
        self.a.alu(Alu::And, R0, FLAG_SND_UNA_ADVANCED);
        self.a.jump_if(R0, If::Equal, 0, no_progress);
        self.a.load(R0, LOSSES);
        self.a.jump_if(R0, If::Differs, 0, no_progress);
        self.a.alu(Alu::Add, R5, 1);
        self.a.place(no_progress);
        self.a.set(R0, R9);
        self.a.alu(Alu::Sub, R0, R1);
        self.signed_at_most(R5, R0);

        self.a.place(send);
        let has_sent = self.a.label();
        self.a.set(R0, 0);
        self.a.jump_if(R4, If::Differs, 0, has_sent);
        self.a.set(R0, 1);
        self.a.place(has_sent);
        self.signed_at_least(R5, R0);

        self.a.alu(Alu::Add, R1, R5);
        self.signed_at_least(R1, 1);
        self.a.store(SK.word(fields.snd_cwnd), R1);
        self.a.jump_if(BLOCK, If::Equal, 0, pace);
        self.a.store(SK.word(fields.snd_ssthresh), R9);
        self.a.jump(pace);
    }

    /// Jumps to `not` unless the kernel is reducing the member's window, in the states CWR and Recovery. Overwrites R1.
    fn unless_reduced(&mut self, not: BpfJumpLabel) {
        self.a.load(R1, STATE);
        self.a.jump_if(R1, If::Below, STATE_CWR, not);
        self.a.jump_if(R1, If::Above, STATE_RECOVERY, not);
    }

    /// Lets the window of the ensemble grow if the member used all of its window (RFC 5681, 3.1). After slow
    /// start it grows by at most a segment per round trip for each member.
    ///
    /// ```text
    /// window < threshold:  window += min(acked, threshold - window)
    /// else:                window += acked / max(share, in flight)
    /// ```
    ///
    /// The window also grows by segments that are acknowledged during a recovery or beyond a gap, because the window of
    /// all members has already been reduced for the loss. Reno's window does not grow until the gap is filled; with
    /// windows of eight segments and a loss of one segment in 37, this is a fifth of the time.
    ///
    /// The divisor includes the segments in flight, because right after a cut acknowledgments still arrive at the
    /// rate of the previous window: divided by the share alone, they would restore it immediately.
    ///
    /// If growth counts acknowledgments, as in Linux 2.4, none of this applies.
    fn grow(&mut self) {
        let fields = self.kernel.fields;
        let (end, by_segment) = (self.a.label(), self.a.label());
        self.a.jump_if(R8, If::Equal, 0, end);
        self.unless_limited(end);
        self.a.set(R4, R8);
        self.a.load(R5, BLOCK.word(at::PER_ACK));
        self.a.jump_if(R5, If::Equal, 0, by_segment);
        self.a.set(R4, 1);
        self.data_acknowledged();
        self.a.jump_if(R1, If::Equal, 0, end);
        self.unless_reduced(by_segment);
        self.a.jump(end);
        self.a.place(by_segment);
        self.a.alu(Alu::ShiftLeft, R4, FRACTION_BITS);

        // Registers: R9 = the members, R1 = the window, R2 = the share, R3 = the threshold, R4 = the growth.
        self.members(R9);
        self.window(R1, R2, R9);
        self.a.set(R2, R1);
        self.a.alu(Alu::Div, R2, R9);
        self.a.load(R3, SK.word(fields.snd_cwnd_clamp));
        self.a.alu(Alu::ShiftLeft, R3, FRACTION_BITS);
        self.a.jump_if(R2, If::AtLeast, R3, end);
        self.a.load(R3, BLOCK.double(at::THRESHOLD));
        let (avoidance, add) = (self.a.label(), self.a.label());
        self.a.jump_if(R1, If::AtLeast, R3, avoidance);
        self.a.alu(Alu::Sub, R3, R1);
        self.at_most(R4, R3);
        self.a.jump(add);

        self.a.place(avoidance);
        self.a.load(R5, IN_FLIGHT);
        self.a.alu(Alu::ShiftLeft, R5, FRACTION_BITS);
        self.at_least(R2, R5);
        self.a.alu(Alu::ShiftLeft, R4, FRACTION_BITS);
        // The division is safe: R2 is at least two segments.
        self.a.alu(Alu::Div, R4, R2);
        self.a.place(add);
        self.a.atomic_add(BLOCK.double(at::WINDOW), R4);
        self.count(at::GROWN, R1);
        self.a.place(end);
    }

    /// Emits instructions that set R1 to a value other than zero if data was acknowledged.
    pub(super) fn data_acknowledged(&mut self) {
        self.a.load(R1, FLAGS);
        self.a.alu(Alu::And, R1, FLAG_DATA_ACKED);
    }

    /// For a socket that is in no ensemble: lets the kernel's Reno change the window, and jumps to `pace`.
    pub(super) fn grow_plain(&mut self, pace: BpfJumpLabel) {
        self.a.jump_if(R1, If::Equal, 0, pace);
        self.a.set(R1, SK);
        self.a.load(R2, ACK);
        self.a.set(R3, R8);
        self.a.call_kernel(self.kernel.reno_cong_avoid);
        self.a.jump(pace);
    }

    /// Jumps to `not` unless the member is limited by its window, like the kernel's tcp_is_cwnd_limited(). In slow
    /// start, a member counts as limited until its window is twice as large as the number of segments that were sent.
    fn unless_limited(&mut self, not: BpfJumpLabel) {
        let fields = self.kernel.fields;
        let limited = self.a.label();
        self.load_bits(R1, fields.is_cwnd_limited);
        self.a.jump_if(R1, If::Differs, 0, limited);
        self.a.load(R1, SK.word(fields.snd_cwnd));
        self.a.load(R2, SK.word(fields.snd_ssthresh));
        self.a.jump_if(R1, If::AtLeast, R2, not);
        self.a.load(R2, SK.word(fields.max_packets_out));
        self.a.alu(Alu::ShiftLeft, R2, 1);
        self.a.jump_if(R1, If::AtLeast, R2, not);
        self.a.place(limited);
    }

    /// Sets the member's window to its share (paper, Table 1). If the share is larger than the window, the window
    /// approaches it by the acknowledged segments, as in slow start, to avoid a burst. After a recovery the member gets
    /// its whole share (RFC 6937, 3): without this, members with little to send, which have nothing in flight then,
    /// would begin with slow start after each loss.
    ///
    /// ```text
    /// window   = max(window, floor)
    /// cwnd     = max(min(window / members, a recovery has ended ? infinite : cwnd + acked, clamp), 1)
    /// ssthresh = max(threshold / members, 2), or infinite as long as that is
    /// ```
    fn settle(&mut self) {
        let fields = self.kernel.fields;
        self.members(R9);
        let sound = self.a.label();
        self.a.load(R1, BLOCK.double(at::WINDOW));
        self.floor(R2, R9);
        self.a.jump_if(R1, If::SignedAtLeast, R2, sound);
        self.a.set(R1, R2);
        self.a.store(BLOCK.double(at::WINDOW), R1);
        self.a.place(sound);
        self.a.alu(Alu::Div, R1, R9);
        self.a.alu(Alu::ShiftRight, R1, FRACTION_BITS);
        self.a.load(R2, SK.word(fields.snd_cwnd));
        self.a.alu(Alu::Add, R2, R8);
        let whole = self.a.label();
        self.a.load(R3, ENDED);
        self.a.jump_if(R3, If::Equal, private::CUT, whole);
        self.at_most(R1, R2);
        self.a.place(whole);
        self.a.load(R2, SK.word(fields.snd_cwnd_clamp));
        self.at_most(R1, R2);
        self.at_least(R1, 1);
        self.a.store(SK.word(fields.snd_cwnd), R1);

        let (finite, known) = (self.a.label(), self.a.label());
        self.a.load(R1, BLOCK.double(at::THRESHOLD));
        self.a.set(R2, R1);
        self.a.alu(Alu::ShiftRight, R2, FRACTION_BITS);
        self.a.jump_if(R2, If::Below, INFINITE_SSTHRESH, finite);
        self.a.set(R1, INFINITE_SSTHRESH);
        self.a.jump(known);
        self.a.place(finite);
        self.a.alu(Alu::Div, R1, R9);
        self.a.alu(Alu::ShiftRight, R1, FRACTION_BITS);
        self.at_least(R1, LEAST_SEGMENTS);
        self.a.place(known);
        self.a.store(SK.word(fields.snd_ssthresh), R1);
    }

    /// Sets the pacing rate in bytes per second, from which the kernel computes the size of its segments before
    /// segmentation offload, like its tcp_update_pacing_rate(), which is not called if there is a `cong_control`.
    ///
    /// ```text
    /// rate = mss * max(cwnd, packets out) * (cwnd < ssthresh / 2 ? 200 % : 120 %) / srtt
    /// ```
    pub(super) fn pace(&mut self) {
        /// A hundredth of the microseconds per second, times 8 because `srtt_us` is in eighths of a microsecond.
        const PERCENT_OF_SECOND: i32 = 1_000_000 / 100 * 8;
        const SLOW_START_PERCENT: i32 = 200;
        const AVOIDANCE_PERCENT: i32 = 120;
        let fields = self.kernel.fields;
        self.a.load(R1, SK.word(fields.mss_cache));
        self.a.alu(Alu::Mul, R1, PERCENT_OF_SECOND);
        self.a.load(R2, SK.word(fields.snd_cwnd));
        self.a.load(R3, SK.word(fields.snd_ssthresh));
        self.a.alu(Alu::ShiftRight, R3, 1);
        let avoidance = self.a.label();
        self.a.set(R4, AVOIDANCE_PERCENT);
        self.a.jump_if(R2, If::AtLeast, R3, avoidance);
        self.a.set(R4, SLOW_START_PERCENT);
        self.a.place(avoidance);
        self.a.alu(Alu::Mul, R1, R4);
        self.a.load(R3, SK.word(fields.packets_out));
        self.at_least(R2, R3);
        self.a.alu(Alu::Mul, R1, R2);
        let unmeasured = self.a.label();
        self.a.load(R3, SK.word(fields.srtt_us));
        self.a.jump_if(R3, If::Equal, 0, unmeasured);
        self.a.alu(Alu::Div, R1, R3);
        self.a.place(unmeasured);
        self.a.load(R3, SK.double(fields.max_pacing_rate));
        self.at_most(R1, R3);
        self.a.store(SK.double(fields.pacing_rate), R1);
    }
}
