//! Bytes meet sockets: a TCP stream's bytes into a decoder, queued output into vectored writes.
//!
//! Nothing here waits: a driver awaits readiness itself, then calls [`receive`] and [`send`].

mod options;
mod reader;
mod writer;

pub use options::SocketOptions;
pub use reader::{Received, receive};
pub use writer::{MAX_SLICES, Sent, send};
