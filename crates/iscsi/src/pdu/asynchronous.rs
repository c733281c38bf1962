//! Asynchronous Message (RFC 7143, 11.9).

use bytes::Bytes;
use scsi::Lun;

use super::{Cid, Numbers};

/// What happened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AsyncEvent {
    /// 0: a SCSI event; sense data in the data segment.
    Scsi,
    /// 1: the target asks for a logout of this connection within so many seconds.
    LogoutRequested {
        /// Seconds.
        time: u16,
    },
    /// 2: the target will drop, or dropped, a connection.
    ConnectionDropped {
        /// Which.
        cid: Cid,
        /// Seconds before a reconnect.
        time2wait: u16,
        /// Seconds that tasks are kept after that.
        time2retain: u16,
    },
    /// 3: the same for all connections.
    SessionDropped {
        /// Seconds before a reconnect.
        time2wait: u16,
        /// Seconds that tasks are kept after that.
        time2retain: u16,
    },
    /// 4: the target asks for a negotiation within so many seconds.
    NegotiationRequested {
        /// Seconds.
        time: u16,
    },
    /// 5: all tasks of this session for the unit were terminated by another one (RFC 7143).
    TasksTerminated,
    /// 248..=255 vendor's, or a code that the standard does not define.
    Other(u8),
}

/// News that nobody asked for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AsyncMessage {
    /// The unit, for SCSI events.
    pub lun: Lun,
    /// What happened.
    pub event: AsyncEvent,
    /// Sequence numbers; `stat_sn` is consumed.
    pub numbers: Numbers,
    /// Sense data or vendor data.
    pub data: Bytes,
}
