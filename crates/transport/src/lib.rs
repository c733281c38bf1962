//! Bytes meet sockets: a stream's bytes into a decoder, queued output into vectored writes. The
//! stream is TCP, or TLS over TCP, and either may be compressed.
//!
//! A driver that awaits readiness itself calls [`receive`] and [`send`]; one that is polled calls
//! [`poll_receive`] and [`poll_send`], which arrange for its waking. [`receive_now`] is for busy
//! polling.
//!
//! [`ConnectionQuota`] and [`Reports`] limit what peers can cause before they have proved who they are.

#[cfg(test)]
#[path = "../tests/certificates/mod.rs"]
mod certificates;
mod options;
mod progress;
mod low_water;
mod pacing;
mod tcp;
mod unsent;
mod secured;
pub mod parcel;
mod compressed;
mod stream;
mod congestion;
mod choice;
mod distrust;
mod tls;
mod reader;
mod writer;
mod places;
mod reports;

pub use choice::{CongestionChoice, NoCongestion};
pub use compressed::{Compressed, LinkBytes};
pub use congestion::{CongestionControl, CongestionStatistics, SessionCongestion};
pub use distrust::{Distrust, DistrustCause, distrust};
pub use options::SocketOptions;
pub use places::{ConnectionPermit, ConnectionQuota, party};
pub use progress::{MAX_SLICES, Received, SendProgress};
pub use reader::{poll_receive, receive, receive_now};
pub use reports::Reports;
pub use secured::Secured;
pub use stream::ConnectionStream;
pub use tcp::Tcp;
pub use tls::{TlsClient, TlsIdentity, TlsMaterial, TlsMaterialError, TlsServer};
pub use writer::{poll_send, send};
