//! The pacing rate and the window of a member, computed from the model.

use super::slots::{
    BEST, DOWN_GAIN, DRAIN, DRAIN_GAIN, FULL, LEAST_WINDOW, MICROSECONDS, NOW, OWN, PRIOR,
    PROBE_BW, PROBE_RTT, SHARERS, STARTUP, STARTUP_GAIN, UNIT, UP_GAIN, WINDOW_GAIN,
};
use crate::{
    asm::{
        Alu, BpfJumpLabel, If,
        Register::{R0, R1, R2, R3, R4, R5, R8, R9},
    },
    control_block::{FRACTION_BITS, RATE_BITS, at},
    program::{
        common_code::{BLOCK, Code, SK, private, private_double, private_word},
        shared_window::{INFINITE_SSTHRESH, LOSSES, STATE, STATE_RECOVERY},
    },
};

impl Code<'_> {
    /// Sets R3 to the pacing gain of the current mode, or in PROBE_BW of the current phase. Overwrites R1.
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

    /// Sets the pacing rate in bytes per second to the member's part of the bandwidth. Until the bandwidth of the path
    /// is reached (the path is full), the rate may only rise.
    pub(super) fn pace_together(&mut self) {
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

    /// Saves the window in R3, to which the member returns after a recovery or PROBE_RTT. If the member is in a
    /// recovery, or if R2 is PROBE_RTT, a larger value that was saved earlier is kept. Overwrites R1.
    pub(super) fn save(&mut self) {
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

    /// Sets the member's window. With each acknowledgment, the window moves by at most the number of acknowledged
    /// segments towards the member's part of twice the path's capacity. In a recovery the window is smaller (draft,
    /// 4.2.3). R3 holds the window in the whole function.
    pub(super) fn window_together(&mut self) {
        let (kernel, fields) = (self.kernel, self.kernel.fields);
        let probes = private_word(kernel, private::PROBES_RTT);
        let saved = private_word(kernel, private::SAVED);
        let (same, leaves, done) = (self.a.label(), self.a.label(), self.a.label());
        // Set R4 to 1 if the mode is PROBE_RTT, otherwise to 0.
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

    /// Reduces the window by the lost segments. In the first round trip of a recovery, the member sends only as many
    /// segments as were delivered (packet conservation), and the code jumps to `done`. When the recovery ends, the
    /// member gets its previous window back (draft, 4.2.3.4).
    fn recover(&mut self, done: BpfJumpLabel) {
        let kernel = self.kernel;
        let (state, saved) =
            (private_word(kernel, private::STATE), private_word(kernel, private::SAVED));
        let conserves = private_double(kernel, private::CONSERVES_FROM);
        // Registers: R2 = the state, R1 = the previous state, R4 = the start of packet conservation, R5 = the window
        // that conserves packets.
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

    /// Moves the window in R3 towards the member's part of the path's capacity.
    fn approach(&mut self) {
        let (gain, known, growing, end) =
            (self.a.label(), self.a.label(), self.a.label(), self.a.label());
        // R9 holds the gain, and later the target window.
        self.a.load(R1, BLOCK.word(at::MODE));
        self.a.set(R9, STARTUP_GAIN);
        self.a.jump_if(R1, If::AtMost, DRAIN, gain);
        self.a.set(R9, WINDOW_GAIN);
        self.a.jump_if(R1, If::Equal, PROBE_BW, gain);
        self.a.set(R9, UNIT);
        self.a.place(gain);
        self.flight(R9);
        // Store the limit as the ensemble's window, which the BPF programs do not use with a path model; the status
        // reports it.
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
