//! Changes the mode of the model, and the phase of PROBE_BW.

use super::slots::{
    BEFORE, BEGINS, BEST, CROWDED_US, DRAIN, FULL, IS_OLD, LEAST, LIMITED, LOOKS_EVERY, MOST_DRAIN,
    NOW, PROBE_BW, PROBE_RTT, PROBE_RTT_US, STARTUP, UNIT, UP_GAIN,
};
use crate::{
    asm::{
        Alu, If,
        Register::{R0, R1, R2, R3, R4, R5, R9},
    },
    control_block::at,
    program::{
        common_code::{BLOCK, Code},
        shared_window::LOSSES,
    },
};

impl Code<'_> {
    /// Advances the cycle of PROBE_BW when a phase is over (draft, 4.3.4.3). If no round trip time of a cycle
    /// was near the minimum, the path is crowded: another flow keeps a queue on it.
    ///
    /// ```text
    /// up    a round trip, and a loss or the intended number in flight
    /// down  crowded: a round trip, or no more in flight than intended
    ///       else:    no more in flight than the path holds without a queue, or four round trips
    /// other a round trip
    /// ```
    pub(super) fn phase(&mut self) {
        let (end, over) = (self.a.label(), self.a.label());
        let (even, up, crowded) = (self.a.label(), self.a.label(), self.a.label());
        self.a.load(R1, BLOCK.word(at::MODE));
        self.a.jump_if(R1, If::Differs, PROBE_BW, end);
        // Registers: R3 = now, R4 = the time at which the phase has lasted a round trip, R5 = the phase, R9 = the
        // segments in flight.
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

    /// Detects that the path is full: the rate has not grown by a quarter in three rounds (draft, 4.3.2.2).
    pub(super) fn look_for_full(&mut self) {
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

    /// Changes the mode from STARTUP to DRAIN when the path is full, and from DRAIN to PROBE_BW when the queue is
    /// drained.
    pub(super) fn drain(&mut self) {
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
        // Drain the queue for at most twice as long as in PROBE_BW, because STARTUP leaves a longer queue.
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

    /// Enters PROBE_BW. Begins with any phase but the draining one, chosen by the clock, so that the ensembles on a
    /// path do not all probe at the same time.
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

    /// Enters PROBE_RTT when the minimum round trip time has expired. Leaves it after 200 ms and two round trips
    /// (draft, 4.3.5).
    pub(super) fn probe_rtt(&mut self) {
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
}
