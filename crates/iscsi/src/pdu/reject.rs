//! Reject (RFC 7143, 11.17).

use bytes::Bytes;

use super::Numbers;

/// Why a PDU was refused.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum RejectReason {
    DataDigestError = 0x02,
    SnackReject = 0x03,
    ProtocolError = 0x04,
    CommandNotSupported = 0x05,
    ImmediateCommandReject = 0x06,
    TaskInProgress = 0x07,
    InvalidDataAck = 0x08,
    InvalidPduField = 0x09,
    LongOperationReject = 0x0a,
    NegotiationReset = 0x0b,
    WaitingForLogout = 0x0c,
}

/// A PDU comes back.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Reject {
    /// Why.
    pub reason: RejectReason,
    /// Sequence numbers; `stat_sn` is consumed.
    pub numbers: Numbers,
    /// For a rejected SNACK, DataSN or R2TSN; else 0.
    pub data_sn: u32,
    /// The complete header of the PDU refused.
    pub header: Bytes,
}
