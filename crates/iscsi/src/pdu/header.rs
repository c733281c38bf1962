//! Fields of the basic header segment that several PDUs share (RFC 7143, 11.2.1).

use bytes::Bytes;
use scsi::Lun;
use smallvec::{SmallVec, smallvec};

use super::{Bhs, DataSegment, Itt, Numbers, Ttt};
use crate::Serial;

/// The parts of an encoded PDU: basic header, additional header segments and data segment.
pub(super) type Encoded = (Bhs, SmallVec<[u8; 16]>, DataSegment);

/// The I bit in byte 0: deliver at once.
pub(super) const IMMEDIATE: u8 = 0x40;
/// The F bit in byte 1: the last PDU of a sequence. The bit is always 1 in PDUs that form no
/// sequences.
pub(super) const FINAL: u8 = 0x80;
/// The C bit in byte 1 of login and text PDUs: the text continues in the next PDU.
pub(super) const CONTINUE: u8 = 0x40;

/// Returns a basic header with this opcode, flags and task tag. All other fields are zero.
pub(super) fn header(opcode: u8, flags: u8, itt: Itt) -> Bhs {
    let mut bhs = [0; 48];
    bhs[0] = opcode;
    bhs[1] = flags;
    put_u32(&mut bhs, 16, itt.0);
    bhs
}

pub(super) fn immediate_bit(immediate: bool) -> u8 {
    if immediate { IMMEDIATE } else { 0 }
}

pub(super) fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

pub(super) fn is_immediate(bhs: &Bhs) -> bool {
    bhs[0] & IMMEDIATE != 0
}

pub(super) fn is_final(bhs: &Bhs) -> bool {
    bhs[1] & FINAL != 0
}

pub(super) fn u16_at(bhs: &Bhs, at: usize) -> u16 {
    u16::from_be_bytes([bhs[at], bhs[at + 1]])
}

pub(super) fn u32_at(bhs: &Bhs, at: usize) -> u32 {
    u32::from_be_bytes([bhs[at], bhs[at + 1], bhs[at + 2], bhs[at + 3]])
}

pub(super) fn serial_at(bhs: &Bhs, at: usize) -> Serial {
    Serial(u32_at(bhs, at))
}

pub(super) fn lun(bhs: &Bhs) -> Lun {
    Lun(u64::from(u32_at(bhs, 8)) << 32 | u64::from(u32_at(bhs, 12)))
}

pub(super) fn itt(bhs: &Bhs) -> Itt {
    Itt(u32_at(bhs, 16))
}

pub(super) fn ttt(bhs: &Bhs) -> Ttt {
    Ttt(u32_at(bhs, 20))
}

/// Returns StatSN, ExpCmdSN and MaxCmdSN, which are in bytes 24 to 35 of every PDU that has them.
pub(super) fn numbers(bhs: &Bhs) -> Numbers {
    Numbers {
        stat_sn: serial_at(bhs, 24),
        exp_cmd_sn: serial_at(bhs, 28),
        max_cmd_sn: serial_at(bhs, 32),
    }
}

pub(super) fn put_u16(bhs: &mut Bhs, at: usize, value: u16) {
    bhs[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

pub(super) fn put_u32(bhs: &mut Bhs, at: usize, value: u32) {
    bhs[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

pub(super) fn put_lun(bhs: &mut Bhs, lun: Lun) {
    bhs[8..16].copy_from_slice(&lun.0.to_be_bytes());
}

pub(super) fn put_numbers(bhs: &mut Bhs, numbers: Numbers) {
    put_u32(bhs, 24, numbers.stat_sn.0);
    put_u32(bhs, 28, numbers.exp_cmd_sn.0);
    put_u32(bhs, 32, numbers.max_cmd_sn.0);
}

/// Returns a PDU without data and additional header segments.
pub(super) fn bare(bhs: Bhs) -> Encoded {
    (bhs, SmallVec::new(), DataSegment::new())
}

/// Returns the encoded PDU of this header and of `data`, which is one piece or empty.
pub(super) fn with_data(bhs: Bhs, data: Bytes) -> Encoded {
    let segment = segment(data);
    with_segment(bhs, SmallVec::new(), segment)
}

/// Fills in TotalAHSLength and DataSegmentLength.
///
/// # Panics
///
/// If one of the lengths does not fit its field. Code that builds PDUs obeys the negotiated
/// lengths, which fit.
pub(super) fn with_segment(mut bhs: Bhs, ahs: SmallVec<[u8; 16]>, data: DataSegment) -> Encoded {
    assert!(
        ahs.len().is_multiple_of(4) && ahs.len() <= 255 * 4,
        "additional headers in whole words"
    );
    bhs[4] = (ahs.len() / 4) as u8;
    let length: usize = data.iter().map(Bytes::len).sum();
    assert!(length < 1 << 24, "DataSegmentLength has 24 bits");
    bhs[5..8].copy_from_slice(&(length as u32).to_be_bytes()[1..]);
    (bhs, ahs, data)
}

/// Returns a data segment with one piece, or without pieces if the data is empty.
pub(super) fn segment(data: Bytes) -> DataSegment {
    if data.is_empty() { DataSegment::new() } else { smallvec![data] }
}
