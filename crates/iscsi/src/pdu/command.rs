//! SCSI Command and SCSI Response (RFC 7143, 11.3, 11.4).

use bytes::{BufMut, Bytes, BytesMut};
use scsi::{Cdb, Lun};
use smallvec::SmallVec;

use super::header::{self, Encoded, FINAL, put_lun, put_numbers, put_u32};
use super::{Bhs, Itt, Numbers, ParseError, Residual};
use crate::Serial;

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ScsiCommand {
    /// True if the target delivers the command at once, outside the CmdSN order.
    pub immediate: bool,
    /// True if no unsolicited Data-Out follows.
    pub is_final: bool,
    /// True if the target returns data (R bit).
    pub read: bool,
    /// True if the initiator sends data (W bit).
    pub write: bool,
    /// The three ATTR bits: 0 untagged, 1 simple, 2 ordered, 3 head of queue, 4 ACA.
    pub attribute: u8,
    pub lun: Lun,
    pub itt: Itt,
    /// Bytes that the initiator expects to transfer: of the write if `write` is set, otherwise of
    /// the read.
    pub expected_data_transfer_length: u32,
    pub cmd_sn: Serial,
    pub exp_stat_sn: Serial,
    /// The CDB; includes an extended CDB (AHS type 1).
    pub cdb: Cdb,
    /// Bytes that a bidirectional command returns (AHS type 2).
    pub bidirectional_read_length: Option<u32>,
    /// The immediate data: the part of the write data that the command carries itself.
    pub data: Bytes,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ScsiResponse {
    pub itt: Itt,
    /// The iSCSI response: 0 command completed at target, 1 target failure (RFC 7143, 11.4.3).
    pub response: u8,
    /// The SCSI status byte; valid if `response` is 0.
    pub status: u8,
    /// The SNACK tag after an R-Data SNACK, otherwise 0.
    pub snack_tag: u32,
    pub numbers: Numbers,
    /// The number of Data-In and R2T PDUs that the target sent for the command.
    pub exp_data_sn: u32,
    /// The difference between expected and transferred data: for a write the Data-Out, for a read
    /// the Data-In.
    pub residual: Residual,
    /// The difference between expected and transferred Data-In of a bidirectional command.
    pub bidirectional_read_residual: Residual,
    /// Sense data as in SPC-4, without the SenseLength field; often empty.
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

    /// Parses additional header segments (RFC 7143, 11.2.2). An unknown type is an error, since it
    /// may change the meaning of the command.
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

    /// Appends an extended CDB. `body` is a reserved byte followed by the CDB without its first 16
    /// bytes.
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
        // The residual flags are valid only if the command completed (RFC 7143, 11.4.3).
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

/// Splits a data segment into sense data and the bytes after it, without SenseLength (RFC 7143,
/// 11.4.7). Returns `None` if SenseLength exceeds the data.
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

/// Makes a data segment of SenseLength, the sense data and `rest`; the inverse of [`split_sense`].
///
/// # Panics
///
/// If the sense data is longer than SenseLength can express; SPC-4 limits it to 252 bytes.
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

/// The six bits of AHSType that hold the code.
const AHS_CODE: u8 = 0x3f;
const AHS_EXTENDED_CDB: u8 = 1;
const AHS_BIDIRECTIONAL_READ: u8 = 2;

/// The longest CDB in bytes (SPC-4, 4.2).
const CDB_MAX: usize = 260;
