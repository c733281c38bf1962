//! Socket I/O for iSCSI: reads bytes from a stream into a decoder, and writes queued output with
//! vectored writes. The stream is TCP or TLS over TCP, and either may be compressed.
//!
//! A driver that waits for readiness itself calls [`receive`] and [`send`]. A driver that runs in a
//! poll function calls [`poll_receive`] and [`poll_send`], which register its waker.
//! [`receive_now`] is for busy polling.
//!
//! [`ConnectionQuota`] and [`ReportLimiter`] limit what peers can cause before they have
//! authenticated.

#[cfg(test)]
#[path = "../tests/certificates/mod.rs"]
mod certificates;
mod socket_options;
mod io_progress;
mod low_water;
mod pacing;
mod tcp;
mod unsent_bytes;
mod tls_stream;
pub mod compressed_frame;
mod compressed_stream;
mod stream;
mod congestion;
mod congestion_choice;
mod handshake_failure;
mod tls_config;
mod reader;
mod writer;
mod connection_quota;
mod report_limiter;

pub use compressed_stream::{Compressed, LinkBytes};
pub use congestion::{CongestionControl, CongestionStatistics, SessionCongestion};
pub use congestion_choice::{CongestionChoice, NoCongestion};
pub use connection_quota::{ConnectionPermit, ConnectionQuota, party};
pub use handshake_failure::{Distrust, DistrustCause, distrust};
pub use io_progress::{MAX_SLICES, Received, SendProgress};
pub use reader::{poll_receive, receive, receive_now};
pub use report_limiter::ReportLimiter;
pub use socket_options::SocketOptions;
pub use stream::ConnectionStream;
pub use tcp::Tcp;
pub use tls_config::{TlsClient, TlsIdentity, TlsMaterial, TlsMaterialError, TlsServer};
pub use tls_stream::Secured;
pub use writer::{poll_send, send};
