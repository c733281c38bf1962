//! SCSI Command and SCSI Response (RFC 7143, 11.3, 11.4).

use bytes::{BufMut, Bytes, BytesMut};
use scsi::{Cdb, Lun};
use smallvec::SmallVec;

use super::header::{self, Encoded, FINAL, put_lun, put_numbers, put_u32};
use super::{Bhs, Itt, Numbers, ParseError, Residual};
use crate::Serial;

/// A command on its way to a logical unit.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ScsiCommand {
    /// Deliver at once, outside the CmdSN order.
    pub immediate: bool,
    /// No unsolicited data follows in Data-Out PDUs.
    pub is_final: bool,
    /// The command returns data.
    pub read: bool,
    /// The command takes data.
    pub write: bool,
    /// The three ATTR bits: 0 untagged, 1 simple, 2 ordered, 3 head of queue, 4 ACA.
    pub attribute: u8,
    /// The addressed unit.
    pub lun: Lun,
    /// The tag that answers will carry.
    pub itt: Itt,
    /// Bytes the initiator means to transfer in the direction of `write`, else of `read`.
    pub expected_data_transfer_length: u32,
    /// Place in the session's command order.
    pub cmd_sn: Serial,
    /// Statuses up to before this one have arrived.
    pub exp_stat_sn: Serial,
    /// The command, with an extended CDB joined to it (AHS type 1).
    pub cdb: Cdb,
    /// Bytes to be read by a bidirectional command (AHS type 2).
    pub bidirectional_read_length: Option<u32>,
    /// Immediate data.
    pub data: Bytes,
}

/// Status and sense data of a command.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ScsiResponse {
    /// Which command.
    pub itt: Itt,
    /// 0 completed at target, 1 target failure (RFC 7143, 11.4.3).
    pub response: u8,
    /// The SCSI status byte; meaningful when `response` is 0.
    pub status: u8,
    /// Only for a task reassigned or retried: the SNACK tag, else 0.
    pub snack_tag: u32,
    /// Sequence numbers.
    pub numbers: Numbers,
    /// How many Data-In and R2T PDUs were sent for the command.
    pub exp_data_sn: u32,
    /// What was announced and not moved, or the reverse.
    pub residual: Residual,
    /// The same for the read half of a bidirectional command.
    pub bidirectional_read_residual: Residual,
    /// Sense data as SPC-4 lays it out, without the SenseLength field in front; often empty.
    pub sense: Bytes,
}

impl ScsiCommand {
    pub(super) const OPCODE: u8 = 0x01;

    pub(super) fn parse(bhs: &Bhs, ahs: &[u8], data: Bytes) -> Result<Self, ParseError> {
        let mut command = Self {
            immediate: header::is_immediate(bhs),
            is_final: header::is_final(bhs),
            read: bhs[1] & READ != 0,
            write: bhs[1] & WRITE != 0,
            attribute: bhs[1] & ATTRIBUTE,
            lun: header::lun(bhs),
            itt: header::itt(bhs),
            expected_data_transfer_length: header::u32_at(bhs, 20),
            cmd_sn: header::serial_at(bhs, 24),
            exp_stat_sn: header::serial_at(bhs, 28),
            cdb: Cdb::new(&bhs[32..48]),
            bidirectional_read_length: None,
            data,
        };
        if !ahs.is_empty() {
            command.parse_additional(ahs)?;
        }
        Ok(command)
    }

    /// Additional header segments (RFC 7143, 11.2.2). A type that we do not know is refused: it
    /// may change what the command means.
    fn parse_additional(&mut self, mut ahs: &[u8]) -> Result<(), ParseError> {
        while !ahs.is_empty() {
            let [high, low, kind, rest @ ..] = ahs else {
                return Err(ParseError::Field("AHSLength"));
            };
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            let body = rest.get(..length).ok_or(ParseError::Field("AHSLength"))?;
            match kind & AHS_CODE {
                AHS_EXTENDED_CDB => self.join_extended_cdb(body)?,
                AHS_BIDIRECTIONAL_READ => {
                    let [_, a, b, c, d] = *body else {
                        return Err(ParseError::Field("AHSLength"));
                    };
                    let read_length = u32::from_be_bytes([a, b, c, d]);
                    if self.bidirectional_read_length.replace(read_length).is_some() {
                        return Err(ParseError::Field("a second AHS of one type"));
                    }
                }
                _ => return Err(ParseError::Field("AHSType")),
            }
            let padded = (3 + length).next_multiple_of(4);
            ahs = ahs.get(padded..).ok_or(ParseError::Field("AHSLength"))?;
        }
        Ok(())
    }

    /// `body` is a reserved byte and what follows the first 16 bytes of the CDB.
    fn join_extended_cdb(&mut self, body: &[u8]) -> Result<(), ParseError> {
        let [_, spill @ ..] = body else {
            return Err(ParseError::Field("AHSLength"));
        };
        if self.cdb.len() != 16 {
            return Err(ParseError::Field("a second AHS of one type"));
        }
        let length = 16 + spill.len();
        if spill.is_empty() || length > CDB_MAX {
            return Err(ParseError::Field("CDB length"));
        }
        let mut whole = [0; CDB_MAX];
        whole[..16].copy_from_slice(&self.cdb);
        whole[16..length].copy_from_slice(spill);
        self.cdb = Cdb::new(&whole[..length]);
        Ok(())
    }

    pub(super) fn encode(self) -> Encoded {
        let flags = header::flag(self.is_final, FINAL)
            | header::flag(self.read, READ)
            | header::flag(self.write, WRITE)
            | self.attribute & ATTRIBUTE;
        let opcode = Self::OPCODE | header::immediate_bit(self.immediate);
        let mut bhs = header::header(opcode, flags, self.itt);
        put_lun(&mut bhs, self.lun);
        put_u32(&mut bhs, 20, self.expected_data_transfer_length);
        put_u32(&mut bhs, 24, self.cmd_sn.0);
        put_u32(&mut bhs, 28, self.exp_stat_sn.0);
        let (first, spill) = self.cdb.split_at(self.cdb.len().min(16));
        bhs[32..32 + first.len()].copy_from_slice(first);

        let mut ahs = SmallVec::new();
        if !spill.is_empty() {
            assert!(self.cdb.len() <= CDB_MAX, "no CDB is longer (SPC-4, 4.2)");
            ahs.extend_from_slice(&(spill.len() as u16 + 1).to_be_bytes());
            ahs.extend_from_slice(&[AHS_EXTENDED_CDB, 0]);
            ahs.extend_from_slice(spill);
            ahs.resize(ahs.len().next_multiple_of(4), 0);
        }
        if let Some(length) = self.bidirectional_read_length {
            ahs.extend_from_slice(&[0, 5, AHS_BIDIRECTIONAL_READ, 0]);
            ahs.extend_from_slice(&length.to_be_bytes());
        }
        header::with_segment(bhs, ahs, header::segment(self.data))
    }
}

impl ScsiResponse {
    pub(super) const OPCODE: u8 = 0x21;

    pub(super) fn parse(bhs: &Bhs, data: Bytes) -> Result<Self, ParseError> {
        let response = bhs[2];
        // Without a completed command, flags mean nothing (RFC 7143, 11.4.3).
        let flags = if response == 0 { bhs[1] } else { 0 };
        Ok(Self {
            itt: header::itt(bhs),
            response,
            status: bhs[3],
            snack_tag: header::u32_at(bhs, 20),
            numbers: header::numbers(bhs),
            exp_data_sn: header::u32_at(bhs, 36),
            residual: Residual::parse(flags, header::u32_at(bhs, 44))?,
            bidirectional_read_residual: Residual::parse(flags >> 2, header::u32_at(bhs, 40))?,
            sense: split_sense(data).ok_or(ParseError::Field("SenseLength"))?.0,
        })
    }

    pub(super) fn encode(self) -> Encoded {
        let (mut flags, mut count, mut read_count) = (0, 0, 0);
        if self.response == 0 {
            (flags, count) = self.residual.encode();
            let (read_flags, residual) = self.bidirectional_read_residual.encode();
            flags |= read_flags << 2;
            read_count = residual;
        }
        let mut bhs = header::header(Self::OPCODE, FINAL | flags, self.itt);
        bhs[2] = self.response;
        bhs[3] = self.status;
        put_u32(&mut bhs, 20, self.snack_tag);
        put_numbers(&mut bhs, self.numbers);
        put_u32(&mut bhs, 36, self.exp_data_sn);
        put_u32(&mut bhs, 40, read_count);
        put_u32(&mut bhs, 44, count);
        let data = if self.sense.is_empty() { Bytes::new() } else { join_sense(&self.sense, &[]) };
        header::with_data(bhs, data)
    }
}

/// Takes SenseLength, sense data and what follows apart (RFC 7143, 11.4.7). `None` if SenseLength
/// points past the end.
pub(super) fn split_sense(mut data: Bytes) -> Option<(Bytes, Bytes)> {
    if data.is_empty() {
        return Some((Bytes::new(), Bytes::new()));
    }
    let length = usize::from(u16::from_be_bytes(*data.first_chunk()?));
    if data.len() - 2 < length {
        return None;
    }
    let rest = data.split_off(2 + length);
    Some((data.split_off(2), rest))
}

/// The reverse of [`split_sense`].
///
/// # Panics
///
/// If the sense data is longer than its length field can say; SPC-4 stops at 252 bytes.
pub(super) fn join_sense(sense: &[u8], rest: &[u8]) -> Bytes {
    let length = u16::try_from(sense.len()).expect("sense data stops at 252 bytes");
    let mut data = BytesMut::with_capacity(2 + sense.len() + rest.len());
    data.put_u16(length);
    data.put_slice(sense);
    data.put_slice(rest);
    data.freeze()
}

const READ: u8 = 0x40;
const WRITE: u8 = 0x20;
const ATTRIBUTE: u8 = 0x07;

/// The six bits of AHSType that are its code.
const AHS_CODE: u8 = 0x3f;
const AHS_EXTENDED_CDB: u8 = 1;
const AHS_BIDIRECTIONAL_READ: u8 = 2;

/// The longest CDB (SPC-4, 4.2), in bytes.
const CDB_MAX: usize = 260;
