//! Data-Out, Data-In and Ready To Transfer (RFC 7143, 11.7, 11.8).

use bytes::Bytes;
use scsi::Lun;
use smallvec::SmallVec;

use super::header::{self, Encoded, FINAL, put_lun, put_numbers, put_u32};
use super::{Bhs, DataSegment, Itt, Numbers, ParseError, Ttt};
use crate::Serial;

/// The difference between expected and transferred data (RFC 7143, 11.4.5).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Residual {
    /// As much data as expected was transferred.
    #[default]
    None,
    /// The transfer was this number of bytes shorter than the initiator expected.
    Underflow(u32),
    /// The transfer was this number of bytes longer than the initiator expected. The excess was not transferred.
    Overflow(u32),
}

impl Residual {
    /// Parses the O and U bits of byte 1, and the count. Both bits together are a protocol error
    /// (RFC 7143, 11.4.1).
    pub(super) fn parse(flags: u8, count: u32) -> Result<Self, ParseError> {
        match (flags & OVERFLOW != 0, flags & UNDERFLOW != 0) {
            (false, false) => Ok(Self::None),
            (false, true) => Ok(Self::Underflow(count)),
            (true, false) => Ok(Self::Overflow(count)),
            (true, true) => Err(ParseError::Field("O and U bits together")),
        }
    }

    /// Returns the O and U bits, and the count.
    pub(super) fn encode(self) -> (u8, u32) {
        match self {
            Self::None => (0, 0),
            Self::Underflow(count) => (UNDERFLOW, count),
            Self::Overflow(count) => (OVERFLOW, count),
        }
    }
}

/// Data of a write: unsolicited if `ttt` is NONE, otherwise requested by an R2T.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DataOut {
    /// True for the last PDU of a sequence.
    pub is_final: bool,
    /// The LUN of the R2T to which this PDU sends the data; reserved for unsolicited data.
    pub lun: Lun,
    pub itt: Itt,
    /// The target transfer tag of the R2T that this data answers, or NONE for unsolicited data.
    pub ttt: Ttt,
    pub exp_stat_sn: Serial,
    /// The number of this PDU within its sequence of Data-Out PDUs, from 0 on.
    pub data_sn: u32,
    /// The offset of the data in bytes from the start of the command's data.
    pub buffer_offset: u32,
    pub data: Bytes,
}

/// Data of a read. The last PDU may carry the status.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DataIn {
    /// True for the last PDU of a sequence.
    pub is_final: bool,
    /// The A bit: the target requests a data acknowledgment (error recovery level 1 and above).
    pub acknowledge: bool,
    /// The status of the command. Present only in the last PDU of a command that ended without an
    /// error (phase collapse).
    pub status: Option<DataInStatus>,
    /// The unit if `acknowledge` is set, otherwise reserved.
    pub lun: Lun,
    pub itt: Itt,
    /// The tag that the initiator's acknowledgment must carry if `acknowledge` is set, otherwise
    /// NONE.
    pub ttt: Ttt,
    /// `stat_sn` is valid only if `status` is present.
    pub numbers: Numbers,
    /// The number of this PDU within its command, from 0 on.
    pub data_sn: u32,
    /// The offset of the data in bytes from the start of the command's data.
    pub buffer_offset: u32,
    pub data: DataSegment,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DataInStatus {
    pub status: u8,
    pub residual: Residual,
}

/// R2T: the target requests a burst of a write's data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReadyToTransfer {
    pub lun: Lun,
    pub itt: Itt,
    /// The tag that the requested Data-Out must carry.
    pub ttt: Ttt,
    /// The sequence numbers. `stat_sn` is the next StatSN, which an R2T does not consume.
    pub numbers: Numbers,
    /// The number of this R2T within its command, from 0 on.
    pub r2t_sn: u32,
    /// The offset of the burst in bytes from the start of the command's data.
    pub buffer_offset: u32,
    /// Length of the burst: 1 to MaxBurstLength bytes.
    pub desired_data_transfer_length: u32,
}

impl DataOut {
    pub(super) const OPCODE: u8 = 0x05;

    pub(super) fn parse(bhs: &Bhs, data: Bytes) -> Self {
        Self {
            is_final: header::is_final(bhs),
            lun: header::lun(bhs),
            itt: header::itt(bhs),
            ttt: header::ttt(bhs),
            exp_stat_sn: header::serial_at(bhs, 28),
            data_sn: header::u32_at(bhs, 36),
            buffer_offset: header::u32_at(bhs, 40),
            data,
        }
    }

    pub(super) fn encode(self) -> Encoded {
        let mut bhs = header::header(Self::OPCODE, header::flag(self.is_final, FINAL), self.itt);
        put_lun(&mut bhs, self.lun);
        put_u32(&mut bhs, 20, self.ttt.0);
        put_u32(&mut bhs, 28, self.exp_stat_sn.0);
        put_u32(&mut bhs, 36, self.data_sn);
        put_u32(&mut bhs, 40, self.buffer_offset);
        header::with_data(bhs, self.data)
    }
}

impl DataIn {
    pub(super) const OPCODE: u8 = 0x25;

    pub(super) fn parse(bhs: &Bhs, data: Bytes) -> Result<Self, ParseError> {
        let is_final = header::is_final(bhs);
        let acknowledge = bhs[1] & ACKNOWLEDGE != 0;
        let mut numbers = header::numbers(bhs);
        let status = if bhs[1] & STATUS != 0 {
            if !is_final {
                return Err(ParseError::Field("S bit without F bit"));
            }
            let residual = Residual::parse(bhs[1], header::u32_at(bhs, 44))?;
            Some(DataInStatus { status: bhs[3], residual })
        } else {
            numbers.stat_sn = Serial::default();
            None
        };
        // The LUN and the tag are reserved if the target requests no acknowledgment (RFC 7143,
        // 11.7.4).
        let (lun, ttt) = if acknowledge {
            (header::lun(bhs), header::ttt(bhs))
        } else {
            (Lun::default(), Ttt::NONE)
        };
        Ok(Self {
            is_final,
            acknowledge,
            status,
            lun,
            itt: header::itt(bhs),
            ttt,
            numbers,
            data_sn: header::u32_at(bhs, 36),
            buffer_offset: header::u32_at(bhs, 40),
            data: header::segment(data),
        })
    }

    pub(super) fn encode(self) -> Encoded {
        let flags =
            header::flag(self.is_final, FINAL) | header::flag(self.acknowledge, ACKNOWLEDGE);
        let mut bhs = header::header(Self::OPCODE, flags, self.itt);
        put_u32(&mut bhs, 20, Ttt::NONE.0);
        if self.acknowledge {
            put_lun(&mut bhs, self.lun);
            put_u32(&mut bhs, 20, self.ttt.0);
        }
        put_numbers(&mut bhs, self.numbers);
        match self.status {
            Some(DataInStatus { status, residual }) => {
                let (residual_flags, count) = residual.encode();
                bhs[1] |= FINAL | STATUS | residual_flags;
                bhs[3] = status;
                put_u32(&mut bhs, 44, count);
            }
            None => put_u32(&mut bhs, 24, 0),
        }
        put_u32(&mut bhs, 36, self.data_sn);
        put_u32(&mut bhs, 40, self.buffer_offset);
        header::with_segment(bhs, SmallVec::new(), self.data)
    }
}

impl ReadyToTransfer {
    pub(super) const OPCODE: u8 = 0x31;

    pub(super) fn parse(bhs: &Bhs) -> Result<Self, ParseError> {
        let ttt = header::ttt(bhs);
        let desired_data_transfer_length = header::u32_at(bhs, 44);
        // Refuse the tag NONE: the initiator's Data-Out for it would be mistaken for unsolicited
        // data.
        if ttt == Ttt::NONE {
            return Err(ParseError::Field("Target Transfer Tag of an R2T"));
        }
        if desired_data_transfer_length == 0 {
            return Err(ParseError::Field("Desired Data Transfer Length"));
        }
        Ok(Self {
            lun: header::lun(bhs),
            itt: header::itt(bhs),
            ttt,
            numbers: header::numbers(bhs),
            r2t_sn: header::u32_at(bhs, 36),
            buffer_offset: header::u32_at(bhs, 40),
            desired_data_transfer_length,
        })
    }

    pub(super) fn encode(self) -> Encoded {
        let mut bhs = header::header(Self::OPCODE, FINAL, self.itt);
        put_lun(&mut bhs, self.lun);
        put_u32(&mut bhs, 20, self.ttt.0);
        put_numbers(&mut bhs, self.numbers);
        put_u32(&mut bhs, 36, self.r2t_sn);
        put_u32(&mut bhs, 40, self.buffer_offset);
        put_u32(&mut bhs, 44, self.desired_data_transfer_length);
        header::bare(bhs)
    }
}

const ACKNOWLEDGE: u8 = 0x40;
const OVERFLOW: u8 = 0x04;
const UNDERFLOW: u8 = 0x02;
const STATUS: u8 = 0x01;
