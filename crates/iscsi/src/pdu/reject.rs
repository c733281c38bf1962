//! The PDU Reject (RFC 7143, 11.17).

use bytes::Bytes;

use super::header::{self, Encoded, FINAL, put_numbers, put_u32};
use super::{Bhs, Itt, Numbers, ParseError};

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

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Reject {
    pub reason: RejectReason,
    /// The sequence numbers. A Reject consumes its StatSN.
    pub numbers: Numbers,
    /// For a rejected SNACK, the next DataSN or R2TSN that the target would send; otherwise 0.
    pub data_sn: u32,
    /// The complete header of the rejected PDU.
    pub header: Bytes,
}

impl Reject {
    pub(super) const OPCODE: u8 = 0x3f;

    pub(super) fn parse(bhs: &Bhs, header: Bytes) -> Result<Self, ParseError> {
        Ok(Self {
            reason: RejectReason::parse(bhs[2])?,
            numbers: header::numbers(bhs),
            data_sn: header::u32_at(bhs, 36),
            header,
        })
    }

    pub(super) fn encode(self) -> Encoded {
        let mut bhs = header::header(Self::OPCODE, FINAL, Itt::NONE);
        bhs[2] = self.reason as u8;
        put_numbers(&mut bhs, self.numbers);
        put_u32(&mut bhs, 36, self.data_sn);
        header::with_data(bhs, self.header)
    }
}

impl RejectReason {
    fn parse(code: u8) -> Result<Self, ParseError> {
        Ok(match code {
            0x02 => Self::DataDigestError,
            0x03 => Self::SnackReject,
            0x04 => Self::ProtocolError,
            0x05 => Self::CommandNotSupported,
            0x06 => Self::ImmediateCommandReject,
            0x07 => Self::TaskInProgress,
            0x08 => Self::InvalidDataAck,
            0x09 => Self::InvalidPduField,
            0x0a => Self::LongOperationReject,
            0x0b => Self::NegotiationReset,
            0x0c => Self::WaitingForLogout,
            _ => return Err(ParseError::Field("reject reason")),
        })
    }
}
