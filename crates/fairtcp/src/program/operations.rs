//! The six operations of the congestion control that the kernel calls.

use super::{
    common_code::{
        BLOCK, Code, EnsembleAlgorithm, LEAST_SEGMENTS, Maps, SK, private, private_double,
        private_word,
    },
    kernel_layout::Kernel,
    shared_model,
    shared_window::{self, STATE_LOSS},
};
use crate::{
    asm::{
        Alu, If, Instruction,
        Register::{R0, R1, R2, R3, R4, R8, R9},
        Unassembled,
    },
    control_block::{FRACTION_BITS, at},
};

/// An operation of the congestion control: a member of the kernel's `struct tcp_congestion_ops`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CongestionOperation {
    /// A socket has selected this congestion control. The kernel calls this at the latest when the socket is connected.
    Init,
    /// Called when a socket selects another congestion control or is closed.
    Release,
    /// The kernel has processed an acknowledgment.
    CongControl,
    /// The kernel has detected a loss or a congestion mark, and begins a recovery.
    Ssthresh,
    /// The kernel has found that a loss was spurious: the segments were only late.
    UndoCwnd,
    /// Called when the state of the connection (`tcp_ca_state`) changes.
    SetState,
}

impl CongestionOperation {
    pub const ALL: [Self; 6] = [
        Self::Init,
        Self::Release,
        Self::CongControl,
        Self::Ssthresh,
        Self::UndoCwnd,
        Self::SetState,
    ];

    /// Returns the name of the operation in `struct tcp_congestion_ops`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Release => "release",
            Self::CongControl => "cong_control",
            Self::Ssthresh => "ssthresh",
            Self::UndoCwnd => "undo_cwnd",
            Self::SetState => "set_state",
        }
    }
}

/// Assembles the program of an operation for this kernel and these maps.
///
/// # Errors
/// A jump is too far; this does not occur with the existing programs.
pub fn assemble(
    algorithm: EnsembleAlgorithm,
    operation: CongestionOperation,
    kernel: &Kernel,
    maps: Maps,
) -> Result<Vec<Instruction>, Unassembled> {
    match operation {
        CongestionOperation::Init => init(algorithm, kernel, maps),
        CongestionOperation::Release => release(algorithm, kernel, maps),
        CongestionOperation::CongControl => match algorithm {
            EnsembleAlgorithm::Model => shared_model::cong_control(kernel, maps),
            EnsembleAlgorithm::Window => shared_window::cong_control(kernel, maps),
        },
        CongestionOperation::Ssthresh => ssthresh(algorithm, kernel, maps),
        CongestionOperation::UndoCwnd => undo_cwnd(algorithm, kernel, maps),
        CongestionOperation::SetState => set_state(algorithm, kernel, maps),
    }
}

/// void init(struct sock *sk): makes the socket join the ensemble that the process has assigned to it. The first member
/// brings its own window and slow start threshold; later members do not change them (paper, 2.2).
fn init(
    algorithm: EnsembleAlgorithm,
    kernel: &Kernel,
    maps: Maps,
) -> Result<Vec<Instruction>, Unassembled> {
    let mut code = Code::new(kernel, maps);
    let (end, in_it) = (code.a.label(), code.a.label());
    code.a.store(private_word(kernel, private::ENSEMBLE), 0);
    // Do not reduce the window in a recovery that is in progress: the previous congestion control has already done so.
    code.a.store(private_word(kernel, private::IS_CUT), private::BEGINS);
    code.a.store(private_double(kernel, private::TAKEN), 0);
    code.a.store(private_word(kernel, private::DELIVERED), 0);
    code.a.load_map(R1, maps.members);
    code.a.set(R2, SK);
    code.a.set(R3, 0);
    code.a.set(R4, 0);
    code.a.call(SK_STORAGE_GET);
    code.a.jump_if(R0, If::Equal, 0, end);
    code.a.load(R8, R0.word(0));
    code.a.set(R2, R8);
    code.look_up(end);
    code.a.alu(Alu::Add, R8, 1);
    code.a.store(private_word(kernel, private::ENSEMBLE), R8);
    code.a.set(R1, 1);
    code.a.atomic_fetch_add(BLOCK.word(at::MEMBERS), R1);
    code.a.jump_if(R1, If::Differs, 0, in_it);
    code.a.load(R2, SK.word(kernel.fields.snd_cwnd));
    code.a.alu(Alu::ShiftLeft, R2, FRACTION_BITS);
    code.a.store(BLOCK.double(at::WINDOW), R2);
    code.a.load(R2, SK.word(kernel.fields.snd_ssthresh));
    code.a.alu(Alu::ShiftLeft, R2, FRACTION_BITS);
    code.a.store(BLOCK.double(at::THRESHOLD), R2);
    code.a.place(in_it);
    if algorithm == EnsembleAlgorithm::Model {
        shared_model::init(&mut code);
    }
    code.a.place(end);
    code.a.exit();
    code.a.finish()
}

/// void release(struct sock *sk): removes the member and its share of the window, so that the shares of the others do
/// not change (RFC 9040, 7.2). If it is the last member, the window stays as it is, and the next member to join sets
/// it.
fn release(
    algorithm: EnsembleAlgorithm,
    kernel: &Kernel,
    maps: Maps,
) -> Result<Vec<Instruction>, Unassembled> {
    let mut code = Code::new(kernel, maps);
    let (end, last) = (code.a.label(), code.a.label());
    code.find_block(end);
    if algorithm == EnsembleAlgorithm::Model {
        shared_model::release(&mut code);
    }
    code.members(R9);
    code.a.jump_if(R9, If::AtMost, 1, last);
    code.window(R3, R2, R9);
    code.a.alu(Alu::Div, R3, R9);
    code.a.negate(R3);
    code.a.atomic_add(BLOCK.double(at::WINDOW), R3);
    code.a.place(last);
    code.a.set(R1, -1);
    code.a.atomic_add(BLOCK.word(at::MEMBERS), R1);
    code.a.store(private_word(kernel, private::ENSEMBLE), 0);
    code.a.place(end);
    code.a.exit();
    code.a.finish()
}

/// u32 ssthresh(struct sock *sk): reduces the ensemble's window. Returns the member's share of the reduced window.
fn ssthresh(
    algorithm: EnsembleAlgorithm,
    kernel: &Kernel,
    maps: Maps,
) -> Result<Vec<Instruction>, Unassembled> {
    let mut code = Code::new(kernel, maps);
    let plain = code.a.label();
    code.find_block(plain);
    match algorithm {
        EnsembleAlgorithm::Model => shared_model::ssthresh(&mut code),
        EnsembleAlgorithm::Window => {
            code.cut();
            code.a.alu(Alu::Div, R0, R9);
            code.a.alu(Alu::ShiftRight, R0, FRACTION_BITS);
            code.at_least(R0, LEAST_SEGMENTS);
        }
    }
    code.a.exit();
    code.a.place(plain);
    // A recovery begins: reset its count of delivered segments also for a socket without an ensemble.
    code.a.store(private_word(kernel, private::DELIVERED), 0);
    code.a.set(R1, SK);
    code.a.call_kernel(kernel.reno_ssthresh);
    code.a.exit();
    code.a.finish()
}

/// u32 undo_cwnd(struct sock *sk): undoes this member's reduction of the window. Also raises the threshold to the
/// window. The earlier threshold is not restored, because other members may have changed it since.
fn undo_cwnd(
    algorithm: EnsembleAlgorithm,
    kernel: &Kernel,
    maps: Maps,
) -> Result<Vec<Instruction>, Unassembled> {
    let mut code = Code::new(kernel, maps);
    let plain = code.a.label();
    code.find_block(plain);
    match algorithm {
        EnsembleAlgorithm::Model => shared_model::undo_cwnd(&mut code),
        EnsembleAlgorithm::Window => give_back(&mut code),
    }
    code.a.place(plain);
    code.a.load(R0, SK.word(kernel.fields.snd_cwnd));
    code.a.load(R1, SK.word(kernel.fields.prior_cwnd));
    code.at_least(R0, R1);
    code.a.exit();
    code.a.finish()
}

/// Undoes the member's last reduction: adds the amount of this reduction to the ensemble's window again.
fn give_back(code: &mut Code<'_>) {
    let taken = private_double(code.kernel, private::TAKEN);
    let given = code.a.label();
    code.a.load(R1, taken);
    code.a.jump_if(R1, If::Equal, 0, given);
    code.a.store(taken, 0);
    code.a.atomic_add(BLOCK.double(at::WINDOW), R1);
    code.a.load(R1, BLOCK.double(at::WINDOW));
    code.a.load(R2, BLOCK.double(at::THRESHOLD));
    code.a.jump_if(R1, If::SignedAtMost, R2, given);
    code.a.store(BLOCK.double(at::THRESHOLD), R1);
    code.a.place(given);
    code.count(at::UNDONE, R1);
}

/// void set_state(struct sock *sk, u8 state): counts timeouts and prepares for the slow start after them.
fn set_state(
    algorithm: EnsembleAlgorithm,
    kernel: &Kernel,
    maps: Maps,
) -> Result<Vec<Instruction>, Unassembled> {
    let mut code = Code::new(kernel, maps);
    let end = code.a.label();
    code.a.load(R8, R1.double(8));
    code.find_block(end);
    code.a.alu(Alu::And, R8, 0xff);
    code.a.jump_if(R8, If::Differs, STATE_LOSS, end);
    code.count(at::TIMEOUTS, R1);
    match algorithm {
        EnsembleAlgorithm::Model => shared_model::timed_out(&mut code),
        EnsembleAlgorithm::Window => shared_window::timed_out(&mut code, end),
    }
    code.a.place(end);
    code.a.exit();
    code.a.finish()
}

// The number of a BPF helper function in linux/bpf.h.
const SK_STORAGE_GET: i32 = 107;
