//! An assembler for eBPF (RFC 9669). It has named instructions whose operands are registers or numbers, and jumps to
//! labels. It supports only the instructions that the programs of this crate use.

use self::Register::R0;

/// One instruction in the kernel's encoding (little-endian), or one of the two 8-byte slots that a long instruction
/// takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(transparent)]
pub struct Instruction(pub u64);

impl Instruction {
    /// Encodes operation, registers, offset and immediate (RFC 9669, 3).
    #[must_use]
    pub const fn new(opcode: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Self {
        Self(
            opcode as u64
                | (destination as u64) << 8
                | (source as u64) << 12
                | (offset as u16 as u64) << 16
                | (immediate as u32 as u64) << 32,
        )
    }

    #[must_use]
    pub const fn opcode(self) -> u8 {
        self.0 as u8
    }

    #[must_use]
    pub const fn destination(self) -> usize {
        (self.0 >> 8) as usize & 15
    }

    /// Returns the number of the source register, or the kind of the immediate.
    #[must_use]
    pub const fn source(self) -> usize {
        (self.0 >> 12) as usize & 15
    }

    /// Returns the offset field: the number of bytes from the base register, or of instructions to jump over.
    #[must_use]
    pub const fn offset(self) -> i16 {
        (self.0 >> 16) as i16
    }

    #[must_use]
    pub const fn immediate(self) -> i32 {
        (self.0 >> 32) as i32
    }
}

/// The eleven registers. R0 is the result of a call and of the program. R1 to R5 are the arguments of a call, which
/// overwrites them. A call preserves R6 to R9. R10 points to the end of the stack.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

impl Register {
    /// Returns the operand for the byte at this offset from the address in the register.
    #[must_use]
    pub const fn byte(self, offset: i16) -> BpfMemoryOperand {
        BpfMemoryOperand { width: 0x10, base: self, offset }
    }

    /// Returns the operand for the four bytes at this offset from the address in the register.
    #[must_use]
    pub const fn word(self, offset: i16) -> BpfMemoryOperand {
        BpfMemoryOperand { width: 0x00, base: self, offset }
    }

    /// Returns the operand for the eight bytes at this offset from the address in the register.
    #[must_use]
    pub const fn double(self, offset: i16) -> BpfMemoryOperand {
        BpfMemoryOperand { width: 0x18, base: self, offset }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BpfMemoryOperand {
    width: u8,
    base: Register,
    offset: i16,
}

/// A register, or a number that is sign-extended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Operand {
    Register(Register),
    Immediate(i32),
}

impl From<Register> for Operand {
    fn from(register: Register) -> Self {
        Self::Register(register)
    }
}

impl From<i32> for Operand {
    fn from(number: i32) -> Self {
        Self::Immediate(number)
    }
}

/// Arithmetic on 64 bits. Division is unsigned; division by zero results in zero.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Alu {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    Div = 0x30,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Move = 0xb0,
}

/// The condition of a jump: the comparison of 64 bits with the operand.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum If {
    Equal = 0x10,
    Above = 0x20,
    AtLeast = 0x30,
    Differs = 0x50,
    SignedAbove = 0x60,
    SignedAtLeast = 0x70,
    Below = 0xa0,
    AtMost = 0xb0,
    SignedBelow = 0xc0,
    SignedAtMost = 0xd0,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BpfJumpLabel(usize);

/// The reason why a program cannot be assembled.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Unassembled {
    /// The program jumps to a label that was never placed.
    #[error("instruction {0} jumps to a label that was not placed")]
    NoPlace(usize),
    /// The program jumps over more instructions than 16 bits can express.
    #[error("instruction {0} jumps too far")]
    TooFar(usize),
}

/// Assembles a BPF program from instructions, with labels for its jumps.
#[derive(Debug, Default)]
pub struct Assembler {
    instructions: Vec<Instruction>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, BpfJumpLabel)>,
}

impl Assembler {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a new label, which must be placed once.
    pub fn label(&mut self) -> BpfJumpLabel {
        self.labels.push(None);
        BpfJumpLabel(self.labels.len() - 1)
    }

    /// Places a label before the next instruction.
    ///
    /// # Panics
    /// If the label has been placed already.
    pub fn place(&mut self, label: BpfJumpLabel) {
        let before = self.labels[label.0].replace(self.instructions.len());
        assert_eq!(before, None, "a label has one place");
    }

    /// Sets `to` to the result of the operation on `to` and the operand.
    pub fn alu(&mut self, operation: Alu, to: Register, with: impl Into<Operand>) {
        self.operate(ALU64 | operation as u8, to, with.into(), 0);
    }

    pub fn set(&mut self, to: Register, with: impl Into<Operand>) {
        self.alu(Alu::Move, to, with);
    }

    pub fn negate(&mut self, to: Register) {
        self.push(Instruction::new(ALU64 | 0x80, to as u8, 0, 0, 0));
    }

    /// Loads memory into the register `to`. The upper bits of the register become zero.
    pub fn load(&mut self, to: Register, from: BpfMemoryOperand) {
        let opcode = LDX | MEM | from.width;
        self.push(Instruction::new(opcode, to as u8, from.base as u8, from.offset, 0));
    }

    pub fn store(&mut self, to: BpfMemoryOperand, what: impl Into<Operand>) {
        let base = to.base as u8;
        self.push(match what.into() {
            Operand::Register(from) => {
                Instruction::new(STX | MEM | to.width, base, from as u8, to.offset, 0)
            }
            Operand::Immediate(number) => {
                Instruction::new(ST | MEM | to.width, base, 0, to.offset, number)
            }
        });
    }

    /// Adds the register `what` to memory atomically.
    pub fn atomic_add(&mut self, to: BpfMemoryOperand, what: Register) {
        let opcode = STX | ATOMIC | to.width;
        self.push(Instruction::new(opcode, to.base as u8, what as u8, to.offset, 0));
    }

    /// Adds `what` to memory atomically. Afterwards `what` holds the previous value of the memory.
    pub fn atomic_fetch_add(&mut self, to: BpfMemoryOperand, what: Register) {
        let opcode = STX | ATOMIC | to.width;
        self.push(Instruction::new(opcode, to.base as u8, what as u8, to.offset, FETCH));
    }

    pub fn jump(&mut self, to: BpfJumpLabel) {
        self.jumps.push((self.instructions.len(), to));
        self.push(Instruction::new(JMP, 0, 0, 0, 0));
    }

    /// Jumps to the label `to` if the comparison of `left` with `right` is true.
    pub fn jump_if(&mut self, left: Register, is: If, right: impl Into<Operand>, to: BpfJumpLabel) {
        self.jumps.push((self.instructions.len(), to));
        self.operate(JMP | is as u8, left, right.into(), 0);
    }

    /// Calls the BPF helper with this number. R0 receives the result.
    pub fn call(&mut self, helper: i32) {
        self.push(Instruction::new(JMP | CALL, 0, 0, 0, helper));
    }

    /// Calls the kernel function with this number in the kernel's BTF (type information).
    pub fn call_kernel(&mut self, function: u32) {
        self.push(Instruction::new(JMP | CALL, 0, KERNEL_FUNCTION, 0, function as i32));
    }

    /// Loads the map with this file descriptor into `to`. Takes two instructions.
    pub fn load_map(&mut self, to: Register, descriptor: i32) {
        self.push(Instruction::new(LOAD_DOUBLE, to as u8, MAP_DESCRIPTOR, 0, descriptor));
        self.push(Instruction(0));
    }

    /// Ends the program. R0 is the result of the program.
    pub fn exit(&mut self) {
        self.push(Instruction::new(JMP | EXIT, R0 as u8, 0, 0, 0));
    }

    /// Fills in the distances of all jumps and returns the program.
    ///
    /// # Errors
    /// A jump that cannot be resolved.
    pub fn finish(mut self) -> Result<Vec<Instruction>, Unassembled> {
        for (at, label) in self.jumps {
            let place = self.labels[label.0].ok_or(Unassembled::NoPlace(at))?;
            // A distance of 0 means the instruction after the jump.
            let distance = place as i64 - at as i64 - 1;
            let distance = i16::try_from(distance).map_err(|_| Unassembled::TooFar(at))?;
            self.instructions[at].0 |= u64::from(distance as u16) << 16;
        }
        Ok(self.instructions)
    }

    fn operate(&mut self, opcode: u8, to: Register, with: Operand, offset: i16) {
        self.push(match with {
            Operand::Register(from) => {
                Instruction::new(opcode | SOURCE_REGISTER, to as u8, from as u8, offset, 0)
            }
            Operand::Immediate(number) => Instruction::new(opcode, to as u8, 0, offset, number),
        });
    }

    fn push(&mut self, instruction: Instruction) {
        self.instructions.push(instruction);
    }
}

// Classes, modes and modifiers of RFC 9669, 3.
const LDX: u8 = 0x01;
const ST: u8 = 0x02;
const STX: u8 = 0x03;
const JMP: u8 = 0x05;
const ALU64: u8 = 0x07;
const MEM: u8 = 0x60;
const ATOMIC: u8 = 0xc0;
const SOURCE_REGISTER: u8 = 0x08;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;
const FETCH: i32 = 0x01;
/// Opcode of the two-word instruction that loads a 64-bit constant (LD, IMM, DW).
const LOAD_DOUBLE: u8 = 0x18;
const MAP_DESCRIPTOR: u8 = 1;
const KERNEL_FUNCTION: u8 = 2;

#[cfg(test)]
mod tests {
    use super::Register::{R0, R1, R2, R6, R10};
    use super::*;

    /// Returns the bytes of the program that `write` assembles.
    fn bytes(write: impl FnOnce(&mut Assembler)) -> Vec<u8> {
        let mut assembler = Assembler::new();
        write(&mut assembler);
        let program = assembler.finish().unwrap();
        program.iter().flat_map(|instruction| instruction.0.to_le_bytes()).collect()
    }

    /// The expected bytes were made with clang and llvm-objdump.
    #[test]
    fn instructions_are_as_the_standard_encodes_them() {
        assert_eq!(bytes(|a| a.set(R0, 1)), [0xb7, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(bytes(|a| a.set(R6, R1)), [0xbf, 0x16, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(|a| a.alu(Alu::Add, R2, -4)), [7, 2, 0, 0, 0xfc, 0xff, 0xff, 0xff]);
        assert_eq!(bytes(|a| a.alu(Alu::Div, R1, R2)), [0x3f, 0x21, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(|a| a.alu(Alu::ShiftRight, R1, 16)), [0x77, 1, 0, 0, 16, 0, 0, 0]);
        assert_eq!(bytes(|a| a.negate(R1)), [0x87, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(|a| a.load(R2, R6.word(0x1234))), [0x61, 0x62, 0x34, 0x12, 0, 0, 0, 0]);
        assert_eq!(bytes(|a| a.load(R2, R6.byte(1))), [0x71, 0x62, 1, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(|a| a.store(R10.double(-8), R1)), [0x7b, 0x1a, 0xf8, 0xff, 0, 0, 0, 0]);
        assert_eq!(bytes(|a| a.store(R6.word(4), 7)), [0x62, 6, 4, 0, 7, 0, 0, 0]);
        assert_eq!(bytes(|a| a.atomic_add(R6.double(8), R1)), [0xdb, 0x16, 8, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(|a| a.atomic_fetch_add(R6.word(8), R1)), [0xc3, 0x16, 8, 0, 1, 0, 0, 0]);
        assert_eq!(bytes(|a| a.call(107)), [0x85, 0, 0, 0, 107, 0, 0, 0]);
        assert_eq!(bytes(|a| a.call_kernel(0x0102)), [0x85, 0x20, 0, 0, 2, 1, 0, 0]);
        let map = [0x18, 0x11, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(bytes(|a| a.load_map(R1, 5)), map);
        assert_eq!(bytes(|a| a.exit()), [0x95, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn jumps_are_counted_from_the_instruction_after_them() {
        let forward = bytes(|a| {
            let end = a.label();
            a.jump_if(R1, If::Equal, 0, end);
            a.set(R0, 1);
            a.place(end);
            a.exit();
        });
        assert_eq!(forward[..8], [0x15, 1, 1, 0, 0, 0, 0, 0]);
        let backward = bytes(|a| {
            let start = a.label();
            a.place(start);
            a.jump_if(R1, If::SignedBelow, R2, start);
            a.jump(start);
        });
        assert_eq!(backward[..8], [0xcd, 0x21, 0xff, 0xff, 0, 0, 0, 0]);
        assert_eq!(backward[8..], [5, 0, 0xfe, 0xff, 0, 0, 0, 0]);
    }

    #[test]
    fn a_jump_that_cannot_be_aimed_is_an_error() {
        let with_between = |count: usize| {
            let mut a = Assembler::new();
            let end = a.label();
            a.exit();
            a.jump(end);
            (0..count).for_each(|_| a.exit());
            a.place(end);
            a.finish().map(|program| program[1].offset())
        };
        assert_eq!(with_between(32767), Ok(i16::MAX));
        assert_eq!(with_between(32768), Err(Unassembled::TooFar(1)));
        let mut a = Assembler::new();
        let nowhere = a.label();
        a.jump(nowhere);
        assert_eq!(a.finish(), Err(Unassembled::NoPlace(0)));
    }
}
