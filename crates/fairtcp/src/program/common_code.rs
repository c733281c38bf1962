//! Parts of BPF programs that several operations of the congestion control use.

use super::kernel_layout::{Bits, Kernel};
use crate::{
    asm::{
        Alu, Assembler, BpfJumpLabel, BpfMemoryOperand, If,
        Register::{self, R0, R1, R2, R3, R4, R5, R6, R7, R9, R10},
    },
    control_block::{FRACTION_BITS, at},
};

/// Whether the members of an ensemble share a congestion window or a model of the path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EnsembleAlgorithm {
    Model,
    Window,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Maps {
    /// The descriptor of the map from the number of an ensemble to its control block.
    pub blocks: i32,
    /// File descriptor of the map that holds the ensemble number of each socket.
    pub members: i32,
}

/// The private state of a member, which the kernel keeps in its socket: the offsets of the fields in bytes within
/// `icsk_ca_priv`.
pub mod private {
    /// 4 bytes: the number of the member's ensemble plus one; zero if it is in no ensemble.
    pub const ENSEMBLE: i16 = 0;
    /// 4 bytes: zero, [`CUT`] or [`BEGINS`]. If the value is not zero, the program must not reduce the window (again)
    /// in the current loss recovery.
    pub const IS_CUT: i16 = 4;
    /// A value of `IS_CUT`: the window was reduced. When the recovery ends, the member's own window becomes its whole
    /// share at once.
    pub const CUT: i32 = 1;
    /// A value of `IS_CUT`: no reduction is due, because it was already made or is not needed. The member will begin
    /// with slow start, either after a timeout or because it has just joined.
    pub const BEGINS: i32 = 2;
    /// 8 bytes: by how much the last reduction made the window smaller. Used to undo the reduction if no segment was
    /// lost.
    pub const TAKEN: i16 = 8;
    /// 4 bytes: `prr_delivered` of RFC 6937.
    pub const DELIVERED: i16 = 16;

    // With a path model, the fields below take the place of all fields above except `ENSEMBLE`.
    /// Offset of 4 bytes: the connection's state (`tcp_ca_state`) at the last acknowledgment.
    pub const STATE: i16 = 4;
    /// 4 bytes: the number of the member's segments in flight that the total in the block includes.
    pub const IN_FLIGHT: i16 = 8;
    /// 4 bytes: 1 if the block counts the member as one with data to send.
    pub const IS_ACTIVE: i16 = 12;
    /// 4 bytes: the window that the member gets back after a recovery or after PROBE_RTT.
    pub const SAVED: i16 = 16;
    /// 4 bytes: 1 while the member's window is reduced for PROBE_RTT.
    pub const PROBES_RTT: i16 = 20;
    /// 8 bytes: the time in microseconds at which packet conservation began; zero if packets are not conserved. During
    /// packet conservation, the member sends no more segments than acknowledgments report as delivered. Conservation
    /// ends when data that was sent after this time is acknowledged.
    pub const CONSERVES_FROM: i16 = 24;
    /// 8 bytes: the member's last delivery rate.
    pub const RATE: i16 = 32;
}

/// The register that holds the socket, in all programs.
pub(super) const SK: Register = R6;
/// The register that points to the ensemble's control block after `find_block`.
pub(super) const BLOCK: Register = R7;

/// The minimum window of a member in segments (RFC 5681, (4)). With a single segment in flight, only a timeout could
/// detect its loss.
pub(super) const LEAST_SEGMENTS: i32 = 2;

// The number of a BPF helper function in linux/bpf.h.
const MAP_LOOKUP_ELEM: i32 = 1;

/// A BPF program that is being assembled, with the layout of the kernel's structures.
pub(super) struct Code<'a> {
    pub a: Assembler,
    pub kernel: &'a Kernel,
    pub maps: Maps,
}

impl<'a> Code<'a> {
    /// Begins a program with the instruction that loads the socket, the first argument of every operation.
    pub fn new(kernel: &'a Kernel, maps: Maps) -> Self {
        let mut a = Assembler::new();
        a.load(SK, R1.double(0));
        Self { a, kernel, maps }
    }

    /// Sets BLOCK to the control block of the socket's ensemble. Jumps to `none` if the socket is in no ensemble.
    /// Overwrites R0 to R5.
    pub fn find_block(&mut self, none: BpfJumpLabel) {
        let a = &mut self.a;
        a.load(R2, private_word(self.kernel, private::ENSEMBLE));
        a.jump_if(R2, If::Equal, 0, none);
        a.alu(Alu::Sub, R2, 1);
        self.look_up(none);
    }

    /// Like `find_block`, but for the ensemble whose number is in R2.
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

    /// Sets `to` to the number of members, at least 1: a member that the kernel has just released is no longer counted,
    /// but may still get here.
    pub fn members(&mut self, to: Register) {
        self.a.load(to, BLOCK.word(at::MEMBERS));
        self.at_least(to, 1);
    }

    /// Sets `to` to the ensemble's window and `floor` to the minimum window for this number of members, both with
    /// fractional bits. `to` is never below the minimum. The window in the block may be: a join or concurrent cuts can
    /// make it too small until `settle` of `shared_window` corrects it at the next acknowledgment.
    pub fn window(&mut self, to: Register, floor: Register, members: Register) {
        self.a.load(to, BLOCK.double(at::WINDOW));
        self.floor(floor, members);
        self.signed_at_least(to, floor);
    }

    /// Sets `to` to the minimum window of an ensemble with `members` members, with fractional bits.
    pub fn floor(&mut self, to: Register, members: Register) {
        self.a.set(to, members);
        self.a.alu(Alu::Mul, to, LEAST_SEGMENTS << FRACTION_BITS);
    }

    /// Reduces the ensemble's window after a loss, by half of one member's share (multiplicative decrease). The window
    /// of an ensemble of n members becomes smaller by a factor of 1/(2n), so the reduction for one member's loss is
    /// spread over all members (paper, 2.2). If the member has less than its share in flight, the window is reduced by
    /// half of what it has in flight (RFC 5681, (4): FlightSize): a member with little to send does not make the window
    /// grow, and must not reduce it much for the others.
    ///
    /// ```text
    /// taken     = min(min(window / members, packets out) / 2, window - floor)
    /// window   -= taken
    /// threshold = window
    /// ```
    ///
    /// Afterwards R9 holds the number of members, and R0 the reduced window. Overwrites R1 to R5.
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
        // A recovery begins, so reset the count of delivered segments, as the kernel's tcp_init_cwnd_reduction() does.
        a.store(private_word(kernel, private::DELIVERED), 0);
        a.set(R0, R1);
        a.alu(Alu::Sub, R0, R4);
        a.store(BLOCK.double(at::THRESHOLD), R0);
        a.negate(R4);
        a.atomic_add(BLOCK.double(at::WINDOW), R4);
        self.count(at::CUTS, R5);
    }

    /// Adds 1 to a counter in the ensemble's control block. Overwrites the register `scratch`.
    pub fn count(&mut self, counter: i16, scratch: Register) {
        self.a.set(scratch, 1);
        self.a.atomic_add(BLOCK.double(counter), scratch);
    }

    /// Sets `to` to a bit field of the socket. The other bits of `to` become zero.
    pub fn load_bits(&mut self, to: Register, bits: Bits) {
        self.a.load(to, SK.byte(bits.byte));
        self.a.alu(Alu::ShiftRight, to, i32::from(bits.shift));
        self.a.alu(Alu::And, to, i32::from(bits.mask));
    }

    /// Sets `to` to the larger of `to` and `least`, compared as unsigned numbers.
    pub fn at_least(&mut self, to: Register, least: impl Into<crate::asm::Operand>) {
        self.choose(to, If::AtLeast, least.into());
    }

    /// Sets `to` to the smaller of `to` and `most`, compared as unsigned numbers.
    pub fn at_most(&mut self, to: Register, most: impl Into<crate::asm::Operand>) {
        self.choose(to, If::AtMost, most.into());
    }

    /// Sets `to` to the larger of `to` and `least`, compared as signed numbers.
    pub fn signed_at_least(&mut self, to: Register, least: impl Into<crate::asm::Operand>) {
        self.choose(to, If::SignedAtLeast, least.into());
    }

    /// Sets `to` to the smaller of `to` and `most`, compared as signed numbers.
    pub fn signed_at_most(&mut self, to: Register, most: impl Into<crate::asm::Operand>) {
        self.choose(to, If::SignedAtMost, most.into());
    }

    /// Sets `to` to `other`, unless the comparison `unless` holds for the two.
    fn choose(&mut self, to: Register, unless: If, other: crate::asm::Operand) {
        let stays = self.a.label();
        self.a.jump_if(to, unless, other, stays);
        self.a.set(to, other);
        self.a.place(stays);
    }
}

/// Returns the operand for the four bytes at this offset in the member's private state.
pub(super) fn private_word(kernel: &Kernel, offset: i16) -> BpfMemoryOperand {
    SK.word(kernel.fields.private + offset)
}

/// Returns the operand for the eight bytes at this offset in the member's private state.
pub(super) fn private_double(kernel: &Kernel, offset: i16) -> BpfMemoryOperand {
    SK.double(kernel.fields.private + offset)
}
