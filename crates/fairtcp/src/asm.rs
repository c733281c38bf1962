//! An assembler for eBPF (RFC 9669): instructions by name, operands that are a register or a number, and
//! jumps to labels. It knows what the program of this crate uses.

use self::Register::R0;

/// One instruction, or half of the one that is two long, as the kernel takes it: little-endian.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(transparent)]
pub struct Instruction(pub u64);

impl Instruction {
    /// Operation, registers, offset and immediate (RFC 9669, 3).
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

    /// What is done.
    #[must_use]
    pub const fn opcode(self) -> u8 {
        self.0 as u8
    }

    /// The number of the register it is done to.
    #[must_use]
    pub const fn destination(self) -> usize {
        (self.0 >> 8) as usize & 15
    }

    /// The number of the other register, or what kind of immediate it is.
    #[must_use]
    pub const fn source(self) -> usize {
        (self.0 >> 12) as usize & 15
    }

    /// Bytes from the base register, or instructions to jump over.
    #[must_use]
    pub const fn offset(self) -> i16 {
        (self.0 >> 16) as i16
    }

    /// The number in it.
    #[must_use]
    pub const fn immediate(self) -> i32 {
        (self.0 >> 32) as i32
    }
}

/// The eleven registers. R1 to R5 are arguments and lost in a call, R0 is what a call gives and the
/// program answers, R6 to R9 stay, R10 points to the end of the stack.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(missing_docs)]
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
    /// The byte at this distance.
    #[must_use]
    pub const fn byte(self, offset: i16) -> BpfMemoryOperand {
        BpfMemoryOperand { width: 0x10, base: self, offset }
    }

    /// The four bytes at this distance.
    #[must_use]
    pub const fn word(self, offset: i16) -> BpfMemoryOperand {
        BpfMemoryOperand { width: 0x00, base: self, offset }
    }

    /// The eight bytes at this distance.
    #[must_use]
    pub const fn double(self, offset: i16) -> BpfMemoryOperand {
        BpfMemoryOperand { width: 0x18, base: self, offset }
    }
}

/// Where in memory: a distance from a register, and how wide.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BpfMemoryOperand {
    width: u8,
    base: Register,
    offset: i16,
}

/// A register, or a number that is extended by its sign.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Operand {
    /// What a register holds.
    Register(Register),
    /// This number.
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

/// Arithmetic on 64 bits. Division is unsigned, and by zero gives zero.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(missing_docs)]
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

/// When a jump is taken: how 64 bits compare with the operand.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(missing_docs)]
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

/// A place in the program that jumps lead to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BpfJumpLabel(usize);

/// Why there is no program.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Unassembled {
    /// A jump leads to a label that was never placed.
    #[error("instruction {0} jumps to nowhere")]
    NoPlace(usize),
    /// A jump leads further than 16 bits can say.
    #[error("instruction {0} jumps too far")]
    TooFar(usize),
}

/// A program in the making.
#[derive(Debug, Default)]
pub struct Assembler {
    instructions: Vec<Instruction>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, BpfJumpLabel)>,
}

impl Assembler {
    /// An empty program.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A label to jump to, to be placed once.
    pub fn label(&mut self) -> BpfJumpLabel {
        self.labels.push(None);
        BpfJumpLabel(self.labels.len() - 1)
    }

    /// The next instruction is what jumps to the label lead to.
    ///
    /// # Panics
    /// If it has a place already.
    pub fn place(&mut self, label: BpfJumpLabel) {
        let before = self.labels[label.0].replace(self.instructions.len());
        assert_eq!(before, None, "a label has one place");
    }

    /// Arithmetic: `to` becomes what it was, with the operand.
    pub fn alu(&mut self, operation: Alu, to: Register, with: impl Into<Operand>) {
        self.operate(ALU64 | operation as u8, to, with.into(), 0);
    }

    /// `to` becomes what is given.
    pub fn set(&mut self, to: Register, with: impl Into<Operand>) {
        self.alu(Alu::Move, to, with);
    }

    /// `to` becomes its negative.
    pub fn negate(&mut self, to: Register) {
        self.push(Instruction::new(ALU64 | 0x80, to as u8, 0, 0, 0));
    }

    /// Reads memory; what is not read of the register becomes zero.
    pub fn load(&mut self, to: Register, from: BpfMemoryOperand) {
        let opcode = LDX | MEM | from.width;
        self.push(Instruction::new(opcode, to as u8, from.base as u8, from.offset, 0));
    }

    /// Writes memory.
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

    /// Adds to memory, whole against whatever else does so at the same time.
    pub fn atomic_add(&mut self, to: BpfMemoryOperand, what: Register) {
        let opcode = STX | ATOMIC | to.width;
        self.push(Instruction::new(opcode, to.base as u8, what as u8, to.offset, 0));
    }

    /// The same, and `what` becomes what was there before.
    pub fn atomic_fetch_add(&mut self, to: BpfMemoryOperand, what: Register) {
        let opcode = STX | ATOMIC | to.width;
        self.push(Instruction::new(opcode, to.base as u8, what as u8, to.offset, FETCH));
    }

    /// Goes on at the label.
    pub fn jump(&mut self, to: BpfJumpLabel) {
        self.jumps.push((self.instructions.len(), to));
        self.push(Instruction::new(JMP, 0, 0, 0, 0));
    }

    /// Goes on at the label if `left` compares so with `right`.
    pub fn jump_if(&mut self, left: Register, is: If, right: impl Into<Operand>, to: BpfJumpLabel) {
        self.jumps.push((self.instructions.len(), to));
        self.operate(JMP | is as u8, left, right.into(), 0);
    }

    /// Calls a helper by its number; R0 is what it gives.
    pub fn call(&mut self, helper: i32) {
        self.push(Instruction::new(JMP | CALL, 0, 0, 0, helper));
    }

    /// Calls a function of the kernel by its number in the kernel's BTF.
    pub fn call_kernel(&mut self, function: u32) {
        self.push(Instruction::new(JMP | CALL, 0, KERNEL_FUNCTION, 0, function as i32));
    }

    /// `to` becomes the map with this descriptor. Two instructions long.
    pub fn load_map(&mut self, to: Register, descriptor: i32) {
        self.push(Instruction::new(LOAD_DOUBLE, to as u8, MAP_DESCRIPTOR, 0, descriptor));
        self.push(Instruction(0));
    }

    /// Ends the program; R0 is its answer.
    pub fn exit(&mut self) {
        self.push(Instruction::new(JMP | EXIT, R0 as u8, 0, 0, 0));
    }

    /// The program, its jumps aimed.
    ///
    /// # Errors
    /// A jump that cannot be aimed.
    pub fn finish(mut self) -> Result<Vec<Instruction>, Unassembled> {
        for (at, label) in self.jumps {
            let place = self.labels[label.0].ok_or(Unassembled::NoPlace(at))?;
            // A jump of 0 leads to the instruction after it.
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

// RFC 9669, 3: classes, modes and modifiers.
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
/// LD, IMM, DW: a constant of 64 bits in two instructions.
const LOAD_DOUBLE: u8 = 0x18;
const MAP_DESCRIPTOR: u8 = 1;
const KERNEL_FUNCTION: u8 = 2;

#[cfg(test)]
mod tests {
    use super::Register::{R0, R1, R2, R6, R10};
    use super::*;

    /// What one call of the assembler writes.
    fn bytes(write: impl FnOnce(&mut Assembler)) -> Vec<u8> {
        let mut assembler = Assembler::new();
        write(&mut assembler);
        let program = assembler.finish().unwrap();
        program.iter().flat_map(|instruction| instruction.0.to_le_bytes()).collect()
    }

    /// The bytes as clang and llvm-objdump have them.
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
