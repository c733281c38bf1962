//! Bytes meet sockets: a TCP stream's bytes into a decoder, queued output into vectored writes.
//!
//! A driver that awaits readiness itself calls [`receive`] and [`send`]; one that is polled calls
//! [`poll_receive`] and [`poll_send`], which arrange for its waking. [`receive_now`] is for busy
//! polling.

mod options;
mod reader;
mod writer;

pub use options::SocketOptions;
pub use reader::{Received, poll_receive, receive, receive_now};
pub use writer::{MAX_SLICES, Sent, poll_send, send};
