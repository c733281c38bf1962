//! iSCSI (RFC 7143) without I/O: values, codecs and the machines of both ends.
//!
//! Nothing here opens a socket or looks at a clock. Bytes, PDUs and time come in as arguments;
//! PDUs and events are polled out.

mod serial;
mod sizes;
pub mod pdu;
pub mod codec;
pub mod keys;
pub mod login;
mod window;
mod transfer;
pub mod session;

pub use pdu::{Bhs, Cid, DataSegment, Isid, Itt, Pdu, Tsih, Ttt};
pub use serial::Serial;
pub use sizes::PduSizes;
