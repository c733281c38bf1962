//! Fair-TCP: the TCP connections of one session share a congestion window; together they are an *ensemble*
//! ("Performance Evaluation of Multiple TCP connections in iSCSI", 2.2; RFC 9040). No patch of the Linux
//! kernel is needed: Fair-TCP is a congestion control in eBPF that is loaded at run time and ends with the
//! process that loaded it.
//!
//! ```no_run
//! # fn main() -> Result<(), fairtcp::Error> {
//! # let sockets: Vec<std::net::TcpStream> = vec![];
//! let fair = std::sync::Arc::new(fairtcp::Fair::load(&fairtcp::EnsembleOptions::default())?);
//! let session = fairtcp::Ensemble::new(&fair)?;
//! for connection in &sockets {
//!     session.join(connection)?;
//! }
//! # Ok(()) }
//! ```
//!
//! Module [`program`] describes the algorithm instruction by instruction. `tests/support/reference_window.rs`
//! implements it in Rust. Tests compare the two, and run both over a simulated path in virtual time.

mod error;
mod btf;
pub mod asm;
mod bpf;
mod control_block;
pub mod program;
mod loader;
mod retransmit_timer;
mod ensemble;

pub use btf::{Btf, Field, MalformedBtf};
pub use control_block::{BLOCK_BYTES, EnsembleControlBlock, MODEL_BLOCK_BYTES, PathModel};
pub use ensemble::{Ensemble, EnsembleOptions, Fair, Growth, MAX_ENSEMBLES, WindowSharing};
pub use error::Error;
