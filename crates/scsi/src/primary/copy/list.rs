//! The parameter list of EXTENDED COPY, LID1 and LID4 (SPC-4, 6.4.3 and 6.4.5): the units that take
//! part and the blocks to copy.

use crate::{
    Sense,
    field::{array_at, u8_at, u16_at, u32_at, u64_at},
};

/// The parameter list of one EXTENDED COPY command: the units and the blocks to copy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CopyList {
    /// LIST IDENTIFIER; at most 255 with LID1.
    pub list: u32,
    /// True if the list has an identifier (LIST ID USAGE is not 11b). The initiator may then query
    /// the result under `list`.
    pub identified: bool,
    /// CSCD descriptors, which name the units of the copy. Segments refer to them by index.
    pub cscds: Vec<Cscd>,
    /// Segment descriptors, in the order of execution.
    pub segments: Vec<CopySegment>,
}

/// An identification CSCD descriptor (E4h; SPC-4, 6.4.5.2).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cscd {
    /// The NAA designator of the unit. `None` if the descriptor names the unit in another way, as
    /// no unit of Forebay is named.
    pub naa: Option<[u8; 16]>,
    /// DISK BLOCK LENGTH, 24 bits: the block size in bytes that the initiator assumes.
    pub block_size: u32,
    /// LU ID TYPE, two bits; reserved in SPC-3, ignored since.
    pub lu_id_type: u8,
    /// NUL of SPC-3: the descriptor stands for no unit.
    pub null: bool,
}

/// A block device to block device segment (02h; SPC-4, 6.4.6.5).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CopySegment {
    /// Index of the CSCD descriptor of the unit to read.
    pub source: u16,
    /// Index of the CSCD descriptor of the unit to write.
    pub destination: u16,
    pub blocks: u16,
    /// Address of the first block that the copy reads.
    pub source_lba: u64,
    /// Address of the first block that the copy writes.
    pub destination_lba: u64,
}

/// Limits of the list of EXTENDED COPY. RECEIVE COPY RESULTS and VPD page 8Fh report them.
pub mod limits {
    /// The most CSCD descriptors; initiators use two.
    pub const CSCDS: u16 = 8;
    /// The most segment descriptors. 64 segments of 65,535 blocks are 2 GiB, which is some seconds
    /// of work.
    pub const SEGMENTS: u16 = 64;
    /// The most bytes of all descriptors together.
    pub const BYTES: u32 = CSCDS as u32 * 32 + SEGMENTS as u32 * 28;
    /// The supported descriptor type codes, ascending.
    pub const DESCRIPTORS: [u8; 2] = [super::BLOCK_TO_BLOCK, super::IDENTIFICATION];
}

impl CopyList {
    /// Encodes the list in the form of LID4 if `long`, otherwise of LID1.
    ///
    /// # Panics
    /// If the length of the descriptors does not fit two bytes.
    #[must_use]
    pub fn to_bytes(&self, long: bool) -> Vec<u8> {
        let length = |count: usize, each: usize| {
            u16::try_from(count * each).expect("a list has a few descriptors").to_be_bytes()
        };
        let (cscds, segments) =
            (length(self.cscds.len(), CSCD_BYTES), length(self.segments.len(), SEGMENT_BYTES));
        let usage = if self.identified { 0 } else { NOT_IDENTIFIED };
        let mut bytes;
        if long {
            bytes = vec![0; LONG_HEADER];
            (bytes[0], bytes[1], bytes[3], bytes[16]) = (1, usage, 0x20, 0xff);
            bytes[20..24].copy_from_slice(&self.list.to_be_bytes());
            bytes[42..44].copy_from_slice(&cscds);
            bytes[44..46].copy_from_slice(&segments);
        } else {
            bytes = vec![0; SHORT_HEADER];
            (bytes[0], bytes[1]) = (self.list as u8, usage);
            bytes[2..4].copy_from_slice(&cscds);
            bytes[10..12].copy_from_slice(&segments);
        }
        self.cscds.iter().for_each(|cscd| bytes.extend_from_slice(&cscd.to_bytes()));
        self.segments.iter().for_each(|segment| bytes.extend_from_slice(&segment.to_bytes()));
        bytes
    }

    /// Parses a list in the form of LID4 if `long`, otherwise of LID1. Checks all counts and
    /// lengths. The caller must check the indexes of CSCD descriptors, since it knows the units.
    ///
    /// # Errors
    /// 5/1A/00 for a list that is shorter than its length fields say, or longer than the limits;
    /// 5/26/06 to 5/26/09 for too many descriptors, or descriptors of an unknown type; 5/26/00 for
    /// inline data.
    pub fn parse(bytes: &[u8], long: bool) -> Result<Self, Sense> {
        let short_of = || Sense::PARAMETER_LIST_LENGTH_ERROR;
        let (header, list, cscd_bytes, segment_bytes, inline) = if long {
            if u8_at(bytes, 0).ok_or_else(short_of)? != 1 {
                return Err(Sense::invalid_field_in_parameter_list(0));
            }
            let at = |at| u16_at(bytes, at).map(u32::from).ok_or_else(short_of);
            (LONG_HEADER, u32_at(bytes, 20).ok_or_else(short_of)?, at(42)?, at(44)?, at(46)?)
        } else {
            let list = u32::from(u8_at(bytes, 0).ok_or_else(short_of)?);
            let at = |at| u32_at(bytes, at).ok_or_else(short_of);
            let cscds = u32::from(u16_at(bytes, 2).ok_or_else(short_of)?);
            (SHORT_HEADER, list, cscds, at(8)?, at(12)?)
        };
        if inline != 0 {
            return Err(Sense::invalid_field_in_parameter_list(if long { 46 } else { 12 }));
        }
        let all = u64::from(cscd_bytes) + u64::from(segment_bytes);
        if all > u64::from(limits::BYTES) || (bytes.len() - header) < all as usize {
            return Err(short_of());
        }
        let (cscds, rest) = bytes[header..].split_at(cscd_bytes as usize);
        let segments = &rest[..segment_bytes as usize];
        if cscds.len() > usize::from(limits::CSCDS) * CSCD_BYTES {
            return Err(Sense::TOO_MANY_TARGET_DESCRIPTORS);
        }
        if segments.len() > usize::from(limits::SEGMENTS) * SEGMENT_BYTES {
            return Err(Sense::TOO_MANY_SEGMENT_DESCRIPTORS);
        }
        Ok(Self {
            list,
            identified: u8_at(bytes, 1).ok_or_else(short_of)? & NOT_IDENTIFIED != NOT_IDENTIFIED,
            cscds: descriptors(cscds, CSCD_BYTES, Cscd::parse)?,
            segments: descriptors(segments, SEGMENT_BYTES, CopySegment::parse)?,
        })
    }
}

/// Parses consecutive descriptors of `each` bytes. Returns an error if the last one is truncated.
fn descriptors<T>(
    mut bytes: &[u8],
    each: usize,
    parse: fn(&[u8]) -> Result<T, Sense>,
) -> Result<Vec<T>, Sense> {
    let mut all = Vec::with_capacity(bytes.len() / each);
    while let Some(first) = bytes.first() {
        // Parse before checking the length: a descriptor of an unknown type may have another
        // length, and the error must then name the type.
        all.push(parse(&bytes[..each.min(bytes.len())])?);
        let _ = first;
        bytes = bytes.get(each..).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    }
    Ok(all)
}

impl Cscd {
    /// Creates a CSCD descriptor of the unit that has this NAA designator.
    #[must_use]
    pub const fn naa(naa: [u8; 16], block_size: u32) -> Self {
        Self { naa: Some(naa), block_size, lu_id_type: 0, null: false }
    }

    #[must_use]
    pub fn to_bytes(&self) -> [u8; CSCD_BYTES] {
        let mut bytes = [0; CSCD_BYTES];
        bytes[0] = IDENTIFICATION;
        bytes[1] = self.lu_id_type << 6 | u8::from(self.null) << 5;
        if let Some(naa) = self.naa {
            bytes[4..8].copy_from_slice(&NAA);
            bytes[8..24].copy_from_slice(&naa);
        }
        bytes[28..32].copy_from_slice(&self.block_size.to_be_bytes());
        bytes[28] = 0;
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Self, Sense> {
        if bytes[0] != IDENTIFICATION {
            return Err(Sense::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE);
        }
        let short_of = || Sense::PARAMETER_LIST_LENGTH_ERROR;
        let name: [u8; 4] = array_at(bytes, 4).ok_or_else(short_of)?;
        Ok(Self {
            naa: if name == NAA { array_at(bytes, 8) } else { None },
            block_size: u32_at(bytes, 28).ok_or_else(short_of)? & 0xff_ffff,
            lu_id_type: bytes[1] >> 6,
            null: bytes[1] & 0x20 != 0,
        })
    }
}

impl CopySegment {
    fn to_bytes(self) -> [u8; SEGMENT_BYTES] {
        let mut bytes = [0; SEGMENT_BYTES];
        (bytes[0], bytes[3]) = (BLOCK_TO_BLOCK, SEGMENT_BYTES as u8 - 4);
        bytes[4..6].copy_from_slice(&self.source.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.destination.to_be_bytes());
        bytes[10..12].copy_from_slice(&self.blocks.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.source_lba.to_be_bytes());
        bytes[20..28].copy_from_slice(&self.destination_lba.to_be_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Self, Sense> {
        if bytes[0] != BLOCK_TO_BLOCK {
            return Err(Sense::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE);
        }
        let short_of = || Sense::PARAMETER_LIST_LENGTH_ERROR;
        if u16_at(bytes, 2) != Some(SEGMENT_BYTES as u16 - 4) {
            return Err(Sense::invalid_field_in_parameter_list(2));
        }
        let short = |at| u16_at(bytes, at).ok_or_else(short_of);
        let long = |at| u64_at(bytes, at).ok_or_else(short_of);
        Ok(Self {
            source: short(4)?,
            destination: short(6)?,
            blocks: short(10)?,
            source_lba: long(12)?,
            destination_lba: long(20)?,
        })
    }
}

/// Descriptor type codes in the parameter list of EXTENDED COPY.
const IDENTIFICATION: u8 = 0xe4;
const BLOCK_TO_BLOCK: u8 = 0x02;
/// Lengths in bytes of the descriptors of EXTENDED COPY.
const CSCD_BYTES: usize = 32;
const SEGMENT_BYTES: usize = 28;
/// The length in bytes of the header of a LID1 list, which comes before the descriptors.
const SHORT_HEADER: usize = 16;
/// The length in bytes of the header of a LID4 list, which comes before the descriptors.
const LONG_HEADER: usize = 48;
/// LIST ID USAGE 11b: the list has no identifier.
const NOT_IDENTIFIED: u8 = 0x18;
/// The first four bytes of a 16-byte NAA designator of a logical unit: code set binary, type NAA,
/// reserved, length.
const NAA: [u8; 4] = [1, 3, 0, 16];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(cscds: usize, segments: usize) -> CopyList {
        let segment = CopySegment {
            source: 0,
            destination: 1,
            blocks: 2048,
            source_lba: 7,
            destination_lba: 9,
        };
        CopyList {
            list: 5,
            identified: true,
            cscds: vec![Cscd::naa([0x60; 16], 512); cscds],
            segments: vec![segment; segments],
        }
    }

    #[test]
    fn both_forms_read_back() {
        for long in [false, true] {
            let list = list(2, 3);
            assert_eq!(CopyList::parse(&list.to_bytes(long), long), Ok(list.clone()));
            let unnamed = CopyList { identified: false, ..list };
            assert_eq!(CopyList::parse(&unnamed.to_bytes(long), long), Ok(unnamed));
        }
    }

    #[test]
    fn too_many_copy_descriptors_are_refused() {
        let parse =
            |cscds, segments| CopyList::parse(&list(cscds, segments).to_bytes(false), false);
        assert!(parse(8, 64).is_ok());
        assert_eq!(parse(9, 1), Err(Sense::TOO_MANY_TARGET_DESCRIPTORS));
        assert_eq!(parse(1, 65), Err(Sense::TOO_MANY_SEGMENT_DESCRIPTORS));
        assert_eq!(parse(9, 65), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
    }

    #[test]
    fn truncated_copy_lists_and_unknown_descriptor_types_are_refused() {
        let bytes = list(1, 1).to_bytes(false);
        for length in 0..bytes.len() {
            let cut = CopyList::parse(&bytes[..length], false);
            assert_eq!(cut, Err(Sense::PARAMETER_LIST_LENGTH_ERROR), "{length}");
        }
        let with = |at: usize, byte| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            CopyList::parse(&bytes, false).unwrap_err()
        };
        assert_eq!(with(16, 0xe0), Sense::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE);
        assert_eq!(with(48, 0x03), Sense::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE);
        assert_eq!(with(15, 4), Sense::invalid_field_in_parameter_list(12));
    }

    proptest! {
        #[test]
        fn hostile_lists_do_no_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
                                    long in any::<bool>(), small in any::<bool>()) {
            if small {
                // Clear the high bytes of the counts: random counts are usually too large, so that
                // the parser would stop at them.
                for at in [2, 8, 9, 12, 13, 14, 15, 42, 44, 46, 47] {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = 0;
                    }
                }
            }
            if let Ok(list) = CopyList::parse(&bytes, long) {
                prop_assert!(list.cscds.len() * 32 + list.segments.len() * 28 <= bytes.len());
            }
        }
    }
}
