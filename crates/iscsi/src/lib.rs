//! iSCSI (RFC 7143) without I/O: values, codecs and the state machines of both ends.
//!
//! No function opens a socket or reads a clock. The caller passes bytes, PDUs and the time as
//! arguments, and polls for PDUs and events to process.

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
