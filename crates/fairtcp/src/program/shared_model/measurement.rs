//! Measures the path at each acknowledgment: the segments in flight, the minimum round trip time and the bandwidth.

use super::slots::{
    ABOUT_BITS, BEFORE, BEGINS, BEST, DELIVERED, INTERVAL, IS_OLD, LEAST, LIMITED, NOW, OWN, PRIOR,
    PROBE_RTT, QUANTA, ROUNDS, RTT, RTT_WINDOW_US, SHARERS, UNIT,
};
use crate::{
    asm::{
        Alu, BpfJumpLabel, If,
        Register::{R0, R1, R2, R3, R4, R5},
    },
    control_block::{RATE_BITS, RATES, at},
    program::{
        common_code::{BLOCK, Code, SK, private, private_double, private_word},
        shared_window,
    },
};

impl Code<'_> {
    /// Copies the arguments that the model needs to the stack. Call this while R1 still points to the arguments.
    pub(super) fn rate_sample(&mut self) {
        let fields = self.kernel.fields;
        let told = self.kernel.control_gets_flags;
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

    /// Updates two totals in the block with this member's values: the segments in flight, and the number of members
    /// with data to send.
    pub(super) fn count_in(&mut self) {
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

        // Use at most the number of all members as the number of members with data to send. The latter may be too large
        // after concurrent changes, or if the kernel did not report the release of a member.
        self.members(R2);
        self.a.load(R1, BLOCK.word(at::ACTIVE));
        self.at_most(R1, R2);
        self.at_least(R1, 1);
        self.a.store(SHARERS, R1);

        // Allow each member additional segments in flight: three times the amount that the kernel sends at once, which
        // is about a millisecond's worth (tcp_tso_autosize()).
        self.a.load(R1, SK.double(fields.pacing_rate));
        self.a.load(R2, SK.word(fields.mss_cache));
        self.a.alu(Alu::ShiftRight, R1, 10);
        self.a.alu(Alu::Div, R1, R2);
        self.at_least(R1, 2);
        self.at_most(R1, 44);
        self.a.alu(Alu::Mul, R1, 3);
        self.a.store(QUANTA, R1);
    }

    /// Updates the minimum round trip time of all members and sets LEAST to it. Jumps to `unknown` if none was measured
    /// yet.
    pub(super) fn least_rtt(&mut self, unknown: BpfJumpLabel) {
        let a = &mut self.a;
        let (fresh, known, shorter, measured) = (a.label(), a.label(), a.label(), a.label());
        // Registers: R1 = the minimum, R2 = the last sample, R3 = now, R4 = 1 if the minimum has expired.
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
        // A round trip time that is similar to the minimum confirms the minimum: each drain empties the queue, so that
        // a measurement in PROBE_RTT is not needed.
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

    /// Begins a new round if data is acknowledged that was sent after the current round began.
    pub(super) fn round(&mut self) {
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

    /// Sets `round` to a base address for the current round: the rate of this round is at offset `at::RATES` from it.
    fn slot(&mut self, round: crate::asm::Register) {
        self.a.alu(Alu::And, round, i32::from(RATES) - 1);
        self.a.alu(Alu::ShiftLeft, round, 3);
        self.a.alu(Alu::Add, round, BLOCK);
    }

    /// Updates the sum of the members' delivery rates with this member's last rate. If a member was application-limited
    /// or in PROBE_RTT during the sample, the sum counts only if it exceeds the present estimate. The rates come from
    /// the kernel, which divides by the longer of two intervals, that of sending and that of the acknowledgments: a
    /// rate computed from all members' deliveries would be too high if acknowledgments arrive in bursts.
    pub(super) fn rate(&mut self) {
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

    /// Removes the member's delivery rate from the sum. Overwrites R1.
    pub(super) fn no_rate(&mut self) {
        let own = private_double(self.kernel, private::RATE);
        self.a.load(R1, own);
        self.a.negate(R1);
        self.a.atomic_add(BLOCK.double(at::RATE), R1);
        self.a.store(own, 0);
    }

    /// Sets BEST and R0 to the highest rate of the last rounds. Overwrites R1.
    pub(super) fn best(&mut self) {
        self.a.load(R0, BLOCK.double(at::RATES));
        for slot in 1..RATES {
            self.a.load(R1, BLOCK.double(at::RATES + 8 * slot));
            self.at_least(R0, R1);
        }
        self.a.store(BEST, R0);
    }

    /// Sets R0 to the bandwidth-delay product of the path times the gain. Overwrites R1.
    pub(super) fn held(&mut self, gain: impl Into<crate::asm::Operand>) {
        self.a.load(R0, BEST);
        self.a.load(R1, LEAST);
        self.a.alu(Alu::Mul, R0, R1);
        self.a.alu(Alu::Mul, R0, gain);
        self.a.alu(Alu::Div, R0, UNIT);
        self.a.alu(Alu::Add, R0, (1 << RATE_BITS) - 1);
        self.a.alu(Alu::ShiftRight, R0, RATE_BITS);
    }

    /// Sets R0 to the number of segments that may be in flight with this gain: the result of `held` plus the additional
    /// segments that each member may have in flight (`QUANTA`). Overwrites R1 and R2.
    pub(super) fn flight(&mut self, gain: impl Into<crate::asm::Operand>) {
        self.held(gain);
        self.a.load(R1, QUANTA);
        self.a.load(R2, SHARERS);
        self.a.alu(Alu::Mul, R1, R2);
        self.a.alu(Alu::Add, R0, R1);
    }
}
