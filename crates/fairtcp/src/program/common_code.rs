//! Code that several operations use.

use super::kernel_layout::{Bits, Kernel};
use crate::{
    asm::{
        Alu, Assembler, BpfJumpLabel, BpfMemoryOperand, If,
        Register::{self, R0, R1, R2, R3, R4, R5, R6, R7, R9, R10},
    },
    control_block::{FRACTION_BITS, at},
};

/// The state that the members share.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EnsembleAlgorithm {
    Model,
    Window,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Maps {
    /// Map from the number of an ensemble to its control block.
    pub blocks: i32,
    /// Map from a socket to the number of its ensemble.
    pub members: i32,
}

/// The private state of a member in its socket: offsets in bytes within `icsk_ca_priv`.
pub mod private {
    /// 4 bytes: the number of the member's ensemble plus one; zero if it is in none.
    pub const ENSEMBLE: i16 = 0;
    /// 4 bytes: zero, or one of the two values below. It is not zero if no reduction is due for the present
    /// recovery.
    pub const IS_CUT: i16 = 4;
    /// The window was reduced. When the recovery ends, the member gets its whole share.
    pub const CUT: i32 = 1;
    /// No reduction is due, because it was made or is not needed. The member begins with slow start, after a
    /// timeout or because it is new.
    pub const BEGINS: i32 = 2;
    /// 8 bytes: the size of the last reduction, to undo it if no segment was lost.
    pub const TAKEN: i16 = 8;
    /// 4 bytes: `prr_delivered` of RFC 6937.
    pub const DELIVERED: i16 = 16;

    /// With a path model, the following fields replace all fields but the first. 4 bytes: the state at the
    /// last acknowledgment.
    pub const STATE: i16 = 4;
    /// 4 bytes: the member's segments in flight, as added to the total.
    pub const IN_FLIGHT: i16 = 8;
    /// 4 bytes: 1 if the member is counted as one with data to send.
    pub const IS_ACTIVE: i16 = 12;
    /// 4 bytes: the window to restore after a recovery or PROBE_RTT.
    pub const SAVED: i16 = 16;
    /// 4 bytes: 1 while the member has the window of PROBE_RTT.
    pub const PROBES_RTT: i16 = 20;
    /// 8 bytes, microseconds: the start of packet conservation, in which the member sends no more than
    /// arrives. The conservation lasts until data that was sent after this time is acknowledged. Zero if
    /// there is none.
    pub const CONSERVES_FROM: i16 = 24;
    /// 8 bytes: the member's last delivery rate.
    pub const RATE: i16 = 32;
}

/// The register that holds the socket in the whole program.
pub(super) const SK: Register = R6;
/// The register that holds the ensemble's block after `find_block`.
pub(super) const BLOCK: Register = R7;

/// The minimum window of a member, two segments (RFC 5681, (4)): with one segment only a timeout can detect a loss.
pub(super) const LEAST_SEGMENTS: i32 = 2;

// linux/bpf.h
const MAP_LOOKUP_ELEM: i32 = 1;

/// A program that is being assembled.
pub(super) struct Code<'a> {
    pub a: Assembler,
    pub kernel: &'a Kernel,
    pub maps: Maps,
}

impl<'a> Code<'a> {
    /// Begins a program: loads the socket, the first argument of every operation.
    pub fn new(kernel: &'a Kernel, maps: Maps) -> Self {
        let mut a = Assembler::new();
        a.load(SK, R1.double(0));
        Self { a, kernel, maps }
    }

    /// BLOCK = the control block of the socket's ensemble. Jumps to `none` if there is none. Overwrites R0 to
    /// R5.
    pub fn find_block(&mut self, none: BpfJumpLabel) {
        let a = &mut self.a;
        a.load(R2, private_word(self.kernel, private::ENSEMBLE));
        a.jump_if(R2, If::Equal, 0, none);
        a.alu(Alu::Sub, R2, 1);
        self.look_up(none);
    }

    /// Like `find_block`, for the ensemble whose number is in R2.
    pub fn look_up(&mut self, none: BpfJumpLabel) {
        const KEY: i16 = -4;
        let a = &mut self.a;
        a.store(R10.word(KEY), R2);
        a.set(R2, R10);
        a.alu(Alu::Add, R2, i32::from(KEY));
        a.load_map(R1, self.maps.blocks);
        a.call(MAP_LOOKUP_ELEM);
        a.jump_if(R0, If::Equal, 0, none);
        a.set(BLOCK, R0);
    }

    /// to = the number of members, at least 1. The count may lack a member that the kernel has just released.
    pub fn members(&mut self, to: Register) {
        self.a.load(to, BLOCK.word(at::MEMBERS));
        self.at_least(to, 1);
    }

    /// to = the ensemble's window with its fraction, floor = the minimum for this number of members. `to` is
    /// never below the minimum, although the block may be after a join or concurrent cuts, until `settle` of
    /// `shared_window` corrects it at the next acknowledgment.
    pub fn window(&mut self, to: Register, floor: Register, members: Register) {
        self.a.load(to, BLOCK.double(at::WINDOW));
        self.floor(floor, members);
        self.signed_at_least(to, floor);
    }

    /// to = the minimum window for this number of members, with its fraction.
    pub fn floor(&mut self, to: Register, members: Register) {
        self.a.set(to, members);
        self.a.alu(Alu::Mul, to, LEAST_SEGMENTS << FRACTION_BITS);
    }

    /// The multiplicative decrease by half of one share. With n members the ensemble loses 1/2n: the
    /// reduction of a single connection is shared by all members (paper, 2.2). For a member with less than
    /// its share in flight, the decrease is half of that amount (RFC 5681, (4): FlightSize): members with
    /// little to send do not make the window grow, and must not reduce it for the others.
    ///
    /// ```text
    /// taken     = min(min(window / members, packets out) / 2, window - floor)
    /// window   -= taken
    /// threshold = window
    /// ```
    ///
    /// R9 = number of members, R0 = the reduced window. Overwrites R1 to R5.
    pub fn cut(&mut self) {
        self.members(R9);
        self.window(R1, R2, R9);
        let a = &mut self.a;
        a.set(R4, R1);
        a.alu(Alu::Div, R4, R9);
        a.load(R5, SK.word(self.kernel.fields.packets_out));
        a.alu(Alu::ShiftLeft, R5, FRACTION_BITS);
        self.at_most(R4, R5);
        let a = &mut self.a;
        a.alu(Alu::ShiftRight, R4, 1);
        a.set(R3, R1);
        a.alu(Alu::Sub, R3, R2);
        let all = a.label();
        a.jump_if(R4, If::AtMost, R3, all);
        self.count(at::FLOORED, R5);
        self.a.set(R4, R3);
        self.a.place(all);

        let kernel = self.kernel;
        let a = &mut self.a;
        a.store(private_double(kernel, private::TAKEN), R4);
        a.store(private_word(kernel, private::IS_CUT), private::CUT);
        // A recovery begins, as in the kernel's tcp_init_cwnd_reduction().
        a.store(private_word(kernel, private::DELIVERED), 0);
        a.set(R0, R1);
        a.alu(Alu::Sub, R0, R4);
        a.store(BLOCK.double(at::THRESHOLD), R0);
        a.negate(R4);
        a.atomic_add(BLOCK.double(at::WINDOW), R4);
        self.count(at::CUTS, R5);
    }

    /// Adds one to a counter of the block. Overwrites `scratch`.
    pub fn count(&mut self, counter: i16, scratch: Register) {
        self.a.set(scratch, 1);
        self.a.atomic_add(BLOCK.double(counter), scratch);
    }

    /// to = a bit field of the socket. The other bits of `to` become zero.
    pub fn load_bits(&mut self, to: Register, bits: Bits) {
        self.a.load(to, SK.byte(bits.byte));
        self.a.alu(Alu::ShiftRight, to, i32::from(bits.shift));
        self.a.alu(Alu::And, to, i32::from(bits.mask));
    }

    /// to = max(to, least), unsigned.
    pub fn at_least(&mut self, to: Register, least: impl Into<crate::asm::Operand>) {
        self.choose(to, If::AtLeast, least.into());
    }

    /// to = min(to, most), unsigned.
    pub fn at_most(&mut self, to: Register, most: impl Into<crate::asm::Operand>) {
        self.choose(to, If::AtMost, most.into());
    }

    /// to = max(to, least), signed.
    pub fn signed_at_least(&mut self, to: Register, least: impl Into<crate::asm::Operand>) {
        self.choose(to, If::SignedAtLeast, least.into());
    }

    /// to = min(to, most), signed.
    pub fn signed_at_most(&mut self, to: Register, most: impl Into<crate::asm::Operand>) {
        self.choose(to, If::SignedAtMost, most.into());
    }

    /// to = other, unless the comparison is true.
    fn choose(&mut self, to: Register, unless: If, other: crate::asm::Operand) {
        let stays = self.a.label();
        self.a.jump_if(to, unless, other, stays);
        self.a.set(to, other);
        self.a.place(stays);
    }
}

/// Four bytes of the member's private state.
pub(super) fn private_word(kernel: &Kernel, offset: i16) -> BpfMemoryOperand {
    SK.word(kernel.fields.private + offset)
}

/// Eight bytes of the member's private state.
pub(super) fn private_double(kernel: &Kernel, offset: i16) -> BpfMemoryOperand {
    SK.double(kernel.fields.private + offset)
}
