//! Fair-TCP: TCP connections of one session share a congestion window, their *ensemble*'s ("Performance
//! Evaluation of Multiple TCP connections in iSCSI", 2.2; RFC 9040). In the Linux kernel as it is: a
//! congestion control in eBPF, loaded at run time and gone with the process that loaded it.
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
//! What the program does is in [`program`], instruction by instruction; `tests/support/reference_window.rs` says the
//! same in Rust, and tests run the one against the other, and both over a path in virtual time.

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
