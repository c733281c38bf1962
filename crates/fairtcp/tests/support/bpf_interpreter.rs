//! An interpreter for the few eBPF instructions that the programs use, with bounds checks for memory. The interpreter
//! is stricter than a processor and also refuses two more things: reading a register that was not written or that a
//! call may have changed, and access outside of the socket, the stack, the arguments and the maps.

use fairtcp::{
    BLOCK_BYTES, MODEL_BLOCK_BYTES,
    asm::Instruction,
    program::{
        Bits, CongestionOperation, EnsembleAlgorithm, Fields, Kernel, Maps, assemble, private,
    },
};

use super::{
    reference_window,
    sock::{Control, Follower, Sample, Sock},
};

const MAPS: Maps = Maps { blocks: 11, members: 12 };
const RENO_SSTHRESH: u32 = 1001;
const RENO_CONG_AVOID: u32 = 1002;

/// Returns a layout of kernel structures whose offsets differ from those of all real kernels.
pub fn kernel(control_gets_flags: bool) -> Kernel {
    let fields = Fields {
        snd_cwnd: 8,
        snd_ssthresh: 20,
        snd_cwnd_clamp: 12,
        prior_cwnd: 16,
        prr_out: 24,
        packets_out: 28,
        sacked_out: 32,
        lost_out: 36,
        retrans_out: 40,
        max_packets_out: 44,
        srtt_us: 48,
        rttvar_us: 52,
        mss_cache: 56,
        pacing_rate: 64,
        max_pacing_rate: 72,
        is_cwnd_limited: Bits { byte: 61, shift: 3, mask: 1 },
        ca_state: Bits { byte: 62, shift: 2, mask: 0x1f },
        private: 80,
        write_seq: 120,
        snd_nxt: 124,
        tcp_mstamp: 128,
        pacing_status: 136,
        acked_sacked: 4,
        losses: 8,
        prior_in_flight: 12,
        prior_mstamp: 16,
        interval_us: 24,
        rtt_us: 32,
        is_app_limited: 41,
        delivered: 44,
    };
    Kernel {
        fields,
        control_gets_flags,
        reno_ssthresh: RENO_SSTHRESH,
        reno_cong_avoid: RENO_CONG_AVOID,
    }
}

/// A region of memory that a program may access: the address at which the program finds it, and the content.
struct Region {
    start: u64,
    bytes: Vec<u8>,
}

const CONTEXT: u64 = 0x1_0000_0000;
const SOCK: u64 = 0x2_0000_0000;
const SAMPLE: u64 = 0x3_0000_0000;
const STACK: u64 = 0x4_0000_0000;
const BLOCKS: u64 = 0x5_0000_0000;
const STORAGE: u64 = 0x6_0000_0000;
/// Stack size of a BPF program in bytes.
const STACK_BYTES: usize = 512;
/// The most instructions that a run may execute. All programs are shorter and have no loop.
const MAX_STEPS: usize = 1000;

/// An interpreter with the programs, assembled for [`kernel`], and with the map of blocks.
pub struct Machine {
    kernel: Kernel,
    algorithm: EnsembleAlgorithm,
    programs: Vec<(CongestionOperation, Vec<Instruction>)>,
    blocks: Vec<u8>,
}

impl Machine {
    pub fn new(blocks: usize, per_ack: bool, told_flags: bool) -> Self {
        let mut machine = Self::with(EnsembleAlgorithm::Window, blocks, told_flags);
        machine.blocks.chunks_mut(BLOCK_BYTES).for_each(|block| block[20] = per_ack.into());
        machine
    }

    pub fn with(algorithm: EnsembleAlgorithm, blocks: usize, told_flags: bool) -> Self {
        let kernel = kernel(told_flags);
        let programs = CongestionOperation::ALL
            .map(|it| (it, assemble(algorithm, it, &kernel, MAPS).expect("assembled")))
            .to_vec();
        let mut machine = Self { kernel, algorithm, programs, blocks: vec![] };
        machine.blocks = vec![0; blocks * machine.block_bytes()];
        machine
    }

    fn block_bytes(&self) -> usize {
        match self.algorithm {
            EnsembleAlgorithm::Model => MODEL_BLOCK_BYTES,
            EnsembleAlgorithm::Window => BLOCK_BYTES,
        }
    }

    pub fn set_block(&mut self, number: u32, bytes: &[u8]) {
        let length = self.block_bytes();
        self.blocks[number as usize * length..][..length].copy_from_slice(bytes);
    }

    /// Returns the bytes of control block `number`, as the BPF map holds them.
    pub fn block(&self, number: u32) -> &[u8] {
        let length = self.block_bytes();
        &self.blocks[number as usize * length..][..length]
    }

    /// Runs the program of an operation on the socket. The program gets `arguments` after the socket.
    fn run(
        &mut self,
        operation: CongestionOperation,
        sock: &mut Sock,
        arguments: &[u64],
        sample: &Sample,
    ) -> Option<u64> {
        let fields = self.kernel.fields;
        let mut context = SOCK.to_le_bytes().to_vec();
        arguments.iter().for_each(|it| context.extend(it.to_le_bytes()));
        let mut rates = vec![0xee; 48];
        put(&mut rates, fields.acked_sacked, &sample.acked_sacked.to_le_bytes());
        put(&mut rates, fields.losses, &sample.losses.to_le_bytes());
        put(&mut rates, fields.prior_in_flight, &sample.prior_in_flight.to_le_bytes());
        put(&mut rates, fields.prior_mstamp, &sample.prior_us.to_le_bytes());
        put(&mut rates, fields.interval_us, &sample.interval_us.to_le_bytes());
        let rtt_us = sample.rtt_us.map_or(-1, i64::from);
        put(&mut rates, fields.rtt_us, &rtt_us.to_le_bytes());
        put(&mut rates, fields.delivered, &sample.delivered.to_le_bytes());
        put(&mut rates, fields.is_app_limited, &[sample.is_app_limited.into()]);
        let storage = sock.assigned.unwrap_or_default().to_le_bytes().to_vec();
        let region = |start, bytes| Region { start, bytes };
        let mut run = Run {
            registers: [None; 11],
            memory: vec![
                region(CONTEXT, context),
                region(SOCK, self.sock_bytes(sock, sample)),
                region(SAMPLE, rates),
                region(STACK - STACK_BYTES as u64, vec![0xee; STACK_BYTES]),
                region(BLOCKS, std::mem::take(&mut self.blocks)),
                region(STORAGE, storage),
            ],
            is_assigned: sock.assigned.is_some(),
            fields,
            block_bytes: self.block_bytes(),
        };
        run.registers[1] = Some(CONTEXT);
        run.registers[10] = Some(STACK);
        let program = self.programs.iter().find(|it| it.0 == operation).expect("one of all");
        run.execute(&program.1);
        self.read_sock(sock, &run.memory[1].bytes);
        self.blocks = run.memory.swap_remove(4).bytes;
        run.registers[0]
    }

    fn sock_bytes(&self, sock: &Sock, sample: &Sample) -> Vec<u8> {
        let f = self.kernel.fields;
        let mut bytes = vec![0xee; 144];
        put(&mut bytes, f.tcp_mstamp, &sample.now_us.to_le_bytes());
        put(&mut bytes, f.snd_nxt, &77u32.to_le_bytes());
        put(&mut bytes, f.write_seq, &(77 + u32::from(sock.has_unsent)).to_le_bytes());
        let mut s = *sock;
        for (at, word) in words(&f, &mut s) {
            put(&mut bytes, at, &word.to_le_bytes());
        }
        put(&mut bytes, f.pacing_rate, &sock.pacing_rate.to_le_bytes());
        put(&mut bytes, f.max_pacing_rate, &sock.max_pacing_rate.to_le_bytes());
        let mut set = |bits: Bits, value: u8| {
            let byte = &mut bytes[bits.byte as usize];
            *byte = *byte & !(bits.mask << bits.shift) | value << bits.shift;
        };
        set(f.is_cwnd_limited, sock.is_cwnd_limited.into());
        set(f.ca_state, sock.state);
        let (member, follower) = (sock.member, sock.follower);
        let mut keep = |at: i16, value: &[u8]| put(&mut bytes, f.private + at, value);
        match self.algorithm {
            EnsembleAlgorithm::Window => {
                keep(private::ENSEMBLE, &member.ensemble.to_le_bytes());
                keep(private::IS_CUT, &member.is_cut.to_le_bytes());
                keep(private::TAKEN, &member.taken.to_le_bytes());
                keep(private::DELIVERED, &member.delivered.to_le_bytes());
            }
            EnsembleAlgorithm::Model => {
                keep(private::ENSEMBLE, &follower.ensemble.to_le_bytes());
                keep(private::STATE, &follower.state.to_le_bytes());
                keep(private::IN_FLIGHT, &follower.in_flight.to_le_bytes());
                keep(private::IS_ACTIVE, &follower.is_active.to_le_bytes());
                keep(private::SAVED, &follower.saved.to_le_bytes());
                keep(private::PROBES_RTT, &follower.probes_rtt.to_le_bytes());
                keep(private::CONSERVES_FROM, &follower.conserves_from.to_le_bytes());
                keep(private::RATE, &follower.rate.to_le_bytes());
            }
        }
        bytes
    }

    fn read_sock(&self, sock: &mut Sock, bytes: &[u8]) {
        let f = self.kernel.fields;
        let word = |at: i16| u32::from_le_bytes(*bytes[at as usize..].first_chunk().unwrap());
        let double = |at: i16| u64::from_le_bytes(*bytes[at as usize..].first_chunk().unwrap());
        for (at, field) in words(&f, sock) {
            *field = word(at);
        }
        sock.pacing_rate = double(f.pacing_rate);
        let private_word = |at: i16| word(f.private + at);
        match self.algorithm {
            EnsembleAlgorithm::Window => {
                sock.member.ensemble = private_word(private::ENSEMBLE);
                sock.member.is_cut = private_word(private::IS_CUT);
                sock.member.taken = double(f.private + private::TAKEN);
                sock.member.delivered = private_word(private::DELIVERED);
            }
            EnsembleAlgorithm::Model => {
                sock.follower = Follower {
                    ensemble: private_word(private::ENSEMBLE),
                    state: private_word(private::STATE),
                    in_flight: private_word(private::IN_FLIGHT),
                    is_active: private_word(private::IS_ACTIVE),
                    saved: private_word(private::SAVED),
                    probes_rtt: private_word(private::PROBES_RTT),
                    conserves_from: double(f.private + private::CONSERVES_FROM),
                    rate: double(f.private + private::RATE),
                };
            }
        }
    }
}

/// Returns the fields of the socket that have four bytes, with their offsets.
fn words<'a>(f: &Fields, s: &'a mut Sock) -> [(i16, &'a mut u32); 14] {
    [
        (f.snd_cwnd, &mut s.snd_cwnd),
        (f.snd_ssthresh, &mut s.snd_ssthresh),
        (f.snd_cwnd_clamp, &mut s.snd_cwnd_clamp),
        (f.prior_cwnd, &mut s.prior_cwnd),
        (f.prr_out, &mut s.prr_out),
        (f.packets_out, &mut s.packets_out),
        (f.sacked_out, &mut s.sacked_out),
        (f.lost_out, &mut s.lost_out),
        (f.retrans_out, &mut s.retrans_out),
        (f.max_packets_out, &mut s.max_packets_out),
        (f.srtt_us, &mut s.srtt_us),
        (f.rttvar_us, &mut s.rttvar_us),
        (f.mss_cache, &mut s.mss_cache),
        (f.pacing_status, &mut s.pacing_status),
    ]
}

fn put(bytes: &mut [u8], at: i16, value: &[u8]) {
    bytes[at as usize..][..value.len()].copy_from_slice(value);
}

impl Control for Machine {
    fn init(&mut self, sock: &mut Sock) {
        self.run(CongestionOperation::Init, sock, &[], &Sample::default());
    }

    fn release(&mut self, sock: &mut Sock) {
        self.run(CongestionOperation::Release, sock, &[], &Sample::default());
    }

    fn cong_control(&mut self, sock: &mut Sock, sample: &Sample) {
        let all = [sample.ack.into(), sample.flags.into(), SAMPLE];
        let arguments = if self.kernel.control_gets_flags { &all[..] } else { &all[2..] };
        self.run(CongestionOperation::CongControl, sock, arguments, sample);
    }

    fn ssthresh(&mut self, sock: &mut Sock) -> u32 {
        let answer = self.run(CongestionOperation::Ssthresh, sock, &[], &Sample::default());
        answer.expect("an answer") as u32
    }

    fn undo_cwnd(&mut self, sock: &mut Sock) -> u32 {
        let answer = self.run(CongestionOperation::UndoCwnd, sock, &[], &Sample::default());
        answer.expect("an answer") as u32
    }

    fn set_state(&mut self, sock: &mut Sock, state: u8) {
        // Set the upper bytes of the argument, which a kernel leaves undefined: only the lowest byte counts.
        let argument = 0xabcd_ef00 | u64::from(state);
        self.run(CongestionOperation::SetState, sock, &[argument], &Sample::default());
    }
}

struct Run {
    registers: [Option<u64>; 11],
    memory: Vec<Region>,
    is_assigned: bool,
    fields: Fields,
    block_bytes: usize,
}

impl Run {
    fn execute(&mut self, program: &[Instruction]) {
        let mut next = 0;
        for _ in 0..MAX_STEPS {
            let at = program[next];
            next += 1;
            let (opcode, to) = (at.opcode(), at.destination());
            match opcode {
                0x95 => return,
                0x18 => {
                    assert_eq!((at.source(), program[next].0), (1, 0), "a map");
                    self.registers[to] = Some(at.immediate() as u64);
                    next += 1;
                }
                0x85 => self.call(at),
                _ => match opcode & 7 {
                    1 => {
                        let value = self.memory(self.reads(at.source()), at, |it| it);
                        self.registers[to] = Some(value);
                    }
                    2 => {
                        let value = at.immediate() as u64;
                        self.memory(self.reads(to), at, |_| value);
                    }
                    3 => self.store(at),
                    5 => {
                        if self.is_taken(at) {
                            next = (next as i64 + i64::from(at.offset())) as usize;
                        }
                    }
                    7 => self.alu(at),
                    class => panic!("class {class} in {opcode:#x}"),
                },
            }
        }
        panic!("no end");
    }

    fn reads(&self, register: usize) -> u64 {
        self.registers[register].unwrap_or_else(|| panic!("R{register} was not written"))
    }

    fn operand(&self, at: Instruction) -> u64 {
        if at.opcode() & 8 == 0 { at.immediate() as u64 } else { self.reads(at.source()) }
    }

    fn alu(&mut self, at: Instruction) {
        let (to, with) =
            (at.destination(), if at.opcode() & 0xf0 == 0x80 { 0 } else { self.operand(at) });
        let was = if at.opcode() & 0xf0 == 0xb0 { 0 } else { self.reads(to) };
        self.registers[to] = Some(match at.opcode() & 0xf0 {
            0x00 => was.wrapping_add(with),
            0x10 => was.wrapping_sub(with),
            0x20 => was.wrapping_mul(with),
            0x30 => was.checked_div(with).unwrap_or(0),
            0x50 => was & with,
            0x60 => was << with,
            0x70 => was >> with,
            0x80 => was.wrapping_neg(),
            0xb0 => with,
            other => panic!("arithmetic {other:#x}"),
        });
    }

    fn is_taken(&self, at: Instruction) -> bool {
        if at.opcode() == 0x05 {
            return true;
        }
        let (left, right) = (self.reads(at.destination()), self.operand(at));
        let (signed_left, signed_right) = (left as i64, right as i64);
        match at.opcode() & 0xf0 {
            0x10 => left == right,
            0x20 => left > right,
            0x30 => left >= right,
            0x50 => left != right,
            0x60 => signed_left > signed_right,
            0x70 => signed_left >= signed_right,
            0xa0 => left < right,
            0xb0 => left <= right,
            0xc0 => signed_left < signed_right,
            0xd0 => signed_left <= signed_right,
            other => panic!("jump {other:#x}"),
        }
    }

    fn store(&mut self, at: Instruction) {
        let (base, value) = (self.reads(at.destination()), self.reads(at.source()));
        match (at.opcode() & 0xe0, at.immediate()) {
            (0x60, _) => drop(self.memory(base, at, |_| value)),
            (0xc0, 0) => drop(self.memory(base, at, |was| was.wrapping_add(value))),
            (0xc0, 1) => {
                let mut before = 0;
                self.memory(base, at, |was| {
                    before = was;
                    was.wrapping_add(value)
                });
                self.registers[at.source()] = Some(before);
            }
            other => panic!("store {other:?}"),
        }
    }

    /// Replaces the value in the memory that the instruction addresses by the result of `change`. Returns the previous
    /// value.
    fn memory(&mut self, base: u64, at: Instruction, change: impl FnOnce(u64) -> u64) -> u64 {
        let width = match at.opcode() & 0x18 {
            0x00 => 4,
            0x10 => 1,
            0x18 => 8,
            other => panic!("width {other:#x}"),
        };
        let address = base.wrapping_add(at.offset() as u64);
        assert_eq!(address % width, 0, "aligned");
        let region = self
            .memory
            .iter_mut()
            .find(|it| address >= it.start && address + width <= it.start + it.bytes.len() as u64);
        let region = region.unwrap_or_else(|| panic!("nothing at {address:#x}"));
        let from = (address - region.start) as usize;
        let bytes = &mut region.bytes[from..from + width as usize];
        let mut value = [0; 8];
        value[..width as usize].copy_from_slice(bytes);
        let new = change(u64::from_le_bytes(value));
        bytes.copy_from_slice(&new.to_le_bytes()[..width as usize]);
        new
    }

    fn word(&mut self, address: u64) -> u32 {
        let load = Instruction::new(0x61, 0, 0, 0, 0);
        self.memory(address, load, |it| it) as u32
    }

    fn call(&mut self, at: Instruction) {
        let answer = match (at.source(), at.immediate() as u32) {
            (0, 1) => {
                assert_eq!(self.reads(1), MAPS.blocks as u64);
                let number = self.word(self.reads(2)) as u64;
                let blocks = self.memory[4].bytes.len() / self.block_bytes;
                if number < blocks as u64 { BLOCKS + number * self.block_bytes as u64 } else { 0 }
            }
            (0, 107) => {
                assert_eq!((self.reads(1), self.reads(2)), (MAPS.members as u64, SOCK));
                assert_eq!((self.reads(3), self.reads(4)), (0, 0), "only looked up");
                if self.is_assigned { STORAGE } else { 0 }
            }
            (2, RENO_SSTHRESH) => {
                assert_eq!(self.reads(1), SOCK);
                let snd_cwnd = self.word(SOCK + self.fields.snd_cwnd as u64);
                reference_window::reno_ssthresh(&Sock { snd_cwnd, ..Sock::default() }).into()
            }
            (2, RENO_CONG_AVOID) => {
                assert_eq!(self.reads(1), SOCK);
                let acked = (self.reads(2), self.reads(3)).1;
                let place = Instruction::new(0x61, 0, 0, self.fields.snd_cwnd, 0);
                self.memory(SOCK, place, |cwnd| cwnd + acked);
                0
            }
            other => panic!("call {other:?}"),
        };
        self.registers[1..=5].fill(None);
        self.registers[0] = Some(answer);
    }
}
