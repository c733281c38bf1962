//! The congestion control: six BPF programs, one for each operation of the kernel's `tcp_congestion_ops` that
//! it implements.
//!
//! There are two algorithms: the members of an ensemble (the connections of a session) share a window
//! (`shared_window`), or they share a model of the path (`shared_model`). The rest of this page describes the first
//! one.
//!
//! Read `common_code` first (finding the block, the share, the cut), then `shared_window` (the reaction to
//! each acknowledgment), then `operations`. The comments next to the instructions say what they compute.
//! `tests/support/reference_window.rs` implements the algorithm as a plain state machine.
//!
//! ```text
//! paper, Table 1     cwnd of a connection     = cwnd of the ensemble / members
//!                    ssthresh of a connection = ssthresh of the ensemble / members
//!                    srtt, rttvar             : kept in the block; no program may write a socket's own
//! paper, 2.2         a joining connection changes nothing; the first one brings its own values
//! RFC 9040, 7.2      a leaving connection removes its share
//! RFC 5681, 3.1      growth: slow start, then a segment a round trip for each member
//! RFC 5681, (4)      a loss halves the share of the member that has it, and reduces the ensemble by as much
//! RFC 6937, 3.1      while it recovers, a member approaches its share as it is acknowledged
//! ```
//!
//! The program sets the window in every state (`cong_control`) and does not depend on the result of
//! `ssthresh`: the kernel omits a call that would interrupt the same program on the same processor, and then
//! takes the undefined content of a register as the result.

mod kernel_layout;
mod common_code;
mod shared_window;
mod shared_model;
mod operations;

pub use common_code::{EnsembleAlgorithm, Maps, private};
pub use kernel_layout::{Bits, Fields, Kernel};
pub use operations::{CongestionOperation, assemble};
