//! A segment: one write to the log, made of a header block and the data blocks of several slots.

use crate::checksum::crc32c;
use crate::{
    BLOCK_BYTES, VERSION,
    bytes::{array, put, put_u32, put_u64, u32_at, u64_at},
    identity::InstanceId,
    seal::{Salt, Tag},
};

/// The kind of a log record: whether its slots have data, have zeros, or are void.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LogRecordKind {
    /// The sectors of `mask` have the content of the record's data block.
    Data,
    /// The slots contain zeros, so the record has no data block.
    Zero,
    /// The lower volume holds the newest content, since a write bypassed the log. Older records of these
    /// slots are void.
    Dropped,
}

/// A record of a segment header, which describes the newest content of one or several slots.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogRecord {
    pub slot: u64,
    /// The number of slots: 1 for data, at most [`MAX_ZERO_SLOTS`] for zeros.
    pub count: u32,
    pub kind: LogRecordKind,
    /// The sectors of the slot that the data block holds, the first in bit 0. 255 unless the record is data.
    pub mask: u8,
    /// CRC32C of the data block as it lies in the log, sealed or not; 0 if there is none.
    pub checksum: u32,
    /// The authentication tag of the data block; zeros if the log is not encrypted.
    pub tag: Tag,
    /// Serial of the newest write in the record.
    pub serial: u64,
}

/// The header block of a segment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SegmentHeader {
    pub instance: InstanceId,
    pub generation: u64,
    pub number: u64,
    /// All writes up to this serial are in this segment or in earlier ones.
    pub complete: u64,
    /// True if the segment is the last of its epoch. Recovery uses the segments of whole epochs only.
    pub ends_epoch: bool,
    /// True if the segments between the last end of an epoch and this segment are void.
    pub voids_open: bool,
    /// Set if the data blocks are sealed: the salt of the opening that wrote them.
    pub salt: Option<Salt>,
    /// True if the NVRAM recorded the number of this segment before the segment was written. An NVRAM with a lower
    /// number at the next opening is an older copy. The index does not store this field.
    pub noted: bool,
    /// The records of the segment. Their data blocks follow the header in the same order.
    pub records: Vec<LogRecord>,
}

impl SegmentHeader {
    /// Returns the number of data blocks that follow the header.
    pub(crate) fn data_blocks(&self) -> u32 {
        self.records.iter().filter(|record| record.kind == LogRecordKind::Data).count() as u32
    }

    /// Returns the number of slots whose content (data or zeros) is in this segment.
    pub fn slots(&self) -> usize {
        let content = self.records.iter().filter(|record| record.kind != LogRecordKind::Dropped);
        content.map(|record| record.count as usize).sum()
    }

    /// Returns the flags of the segment in the form in which its header and the index store them.
    pub(crate) fn flags(&self) -> u32 {
        u32::from(self.ends_epoch) * ENDS_EPOCH
            + u32::from(self.voids_open) * VOIDS_OPEN
            + u32::from(self.salt.is_some()) * SEALED
    }

    /// Returns the maximum number of records that fit into this header.
    pub fn most_records(&self) -> usize {
        self.shape().most_records()
    }

    fn shape(&self) -> SegmentShape {
        SegmentShape { sealed: self.salt.is_some() }
    }

    /// Encodes the header into a block of 4096 bytes. Panics if there are too many records.
    pub fn encode(&self, block: &mut [u8]) {
        let shape = self.shape();
        assert!(self.records.len() <= shape.most_records(), "it was filled with no more");
        assert!(self.ends_epoch || !self.records.is_empty(), "a segment says something");
        block.fill(0);
        let base = self.base();
        put(block, MAGIC_AT, MAGIC);
        put_u32(block, VERSION_AT, VERSION);
        put_u32(block, COUNT_AT, self.records.len() as u32);
        put(block, INSTANCE_AT, &self.instance.0);
        put_u64(block, GENERATION_AT, self.generation);
        put_u64(block, NUMBER_AT, self.number);
        put_u64(block, BASE_SERIAL_AT, base);
        put_u64(block, COMPLETE_AT, self.complete);
        put_u32(block, DATA_BLOCKS_AT, self.data_blocks());
        put_u32(block, FLAGS_AT, self.flags());
        put(block, SALT_AT, &self.salt.unwrap_or_default());
        put_u32(block, NOTED_AT, u32::from(self.noted));
        let entries = block[RECORDS_AT..].chunks_mut(shape.record_bytes());
        for (entry, record) in entries.zip(&self.records) {
            record.encode(entry, base, shape);
        }
        let checksum = crc32c(&block[..CHECKSUM_AT]);
        put_u32(block, CHECKSUM_AT, checksum);
    }

    /// Returns the lowest serial among the records; 0 without records.
    fn base(&self) -> u64 {
        self.records.iter().map(|record| record.serial).min().unwrap_or(0)
    }

    /// Returns how many bytes [`Self::encode_brief`] appends.
    pub(crate) fn brief_bytes(&self) -> usize {
        let shape = self.shape();
        shape.brief_bytes() + self.records.len() * shape.record_bytes()
    }

    /// Appends the index entry of this segment to `bytes`. An entry leaves out what the segments of a frame
    /// have in common, and the segment number, since the segments of a frame follow each other.
    pub(crate) fn encode_brief(&self, bytes: &mut Vec<u8>) {
        let at = bytes.len();
        bytes.resize(at + self.brief_bytes(), 0);
        let shape = self.shape();
        let (fixed, records) = bytes[at..].split_at_mut(shape.brief_bytes());
        let base = self.base();
        put_u64(fixed, BRIEF_BASE_SERIAL_AT, base);
        put_u64(fixed, BRIEF_COMPLETE_AT, self.complete);
        put_u64(fixed, BRIEF_GENERATION_AT, self.generation);
        put_u32(fixed, BRIEF_COUNT_AT, self.records.len() as u32);
        put_u32(fixed, BRIEF_FLAGS_AT, self.flags());
        if let Some(salt) = &self.salt {
            put(fixed, BRIEF_SALT_AT, salt);
        }
        for (entry, record) in records.chunks_mut(shape.record_bytes()).zip(&self.records) {
            record.encode(entry, base, shape);
        }
    }

    /// Returns the length of the entry at the beginning of `bytes`, which [`Self::encode_brief`] wrote.
    pub(crate) fn brief_length(bytes: &[u8]) -> usize {
        let shape = SegmentShape::of(u32_at(bytes, BRIEF_FLAGS_AT));
        shape.brief_bytes() + u32_at(bytes, BRIEF_COUNT_AT) as usize * shape.record_bytes()
    }

    /// Decodes the index entry of segment `number` at the beginning of `bytes`. Every byte may be arbitrary.
    /// Returns the header and the length of the entry. See [`Self::decode`] for `slots` and `limit`.
    pub(crate) fn decode_brief(
        bytes: &[u8],
        instance: InstanceId,
        number: u64,
        slots: u64,
        limit: u32,
    ) -> Option<(Self, usize)> {
        let flags = u32_at(bytes.get(..BRIEF_BYTES)?, BRIEF_FLAGS_AT);
        let shape = SegmentShape::of(flags);
        let (fixed, rest) = bytes.split_at_checked(shape.brief_bytes())?;
        let base = u64_at(fixed, BRIEF_BASE_SERIAL_AT);
        let count = u32_at(fixed, BRIEF_COUNT_AT);
        let records = LogRecord::decode_all(rest, count, base, slots, shape)?;
        let header = Self {
            instance,
            generation: u64_at(fixed, BRIEF_GENERATION_AT),
            number,
            complete: u64_at(fixed, BRIEF_COMPLETE_AT),
            ends_epoch: flags & ENDS_EPOCH != 0,
            voids_open: flags & VOIDS_OPEN != 0,
            salt: shape.sealed.then(|| array(fixed, BRIEF_SALT_AT)),
            noted: false,
            records,
        };
        let length = header.brief_bytes();
        header.makes_sense(flags, limit).then_some((header, length))
    }

    /// Decodes a header block of the log `instance`. Every byte may be arbitrary. `slots` is the size of the
    /// lower volume in slots; `limit` is the most data blocks that a segment may have.
    pub(crate) fn decode(
        block: &[u8],
        instance: InstanceId,
        slots: u64,
        limit: u32,
    ) -> Option<Self> {
        if !Self::is_one(block, instance) || u32_at(block, VERSION_AT) != VERSION {
            return None;
        }
        let (count, base) = (u32_at(block, COUNT_AT), u64_at(block, BASE_SERIAL_AT));
        let flags = u32_at(block, FLAGS_AT);
        let shape = SegmentShape::of(flags);
        let bytes = &block[RECORDS_AT..CHECKSUM_AT];
        let records = LogRecord::decode_all(bytes, count, base, slots, shape)?;
        let header = Self {
            instance,
            generation: u64_at(block, GENERATION_AT),
            number: u64_at(block, NUMBER_AT),
            complete: u64_at(block, COMPLETE_AT),
            ends_epoch: flags & ENDS_EPOCH != 0,
            voids_open: flags & VOIDS_OPEN != 0,
            salt: shape.sealed.then(|| array(block, SALT_AT)),
            noted: u32_at(block, NOTED_AT) != 0,
            records,
        };
        let right = header.data_blocks() == u32_at(block, DATA_BLOCKS_AT);
        (right && header.makes_sense(flags, limit)).then_some(header)
    }

    /// Checks the numbers that later arithmetic relies on.
    fn makes_sense(&self, flags: u32, limit: u32) -> bool {
        let far = u64::MAX / 2;
        flags <= ALL_FLAGS
            && (self.ends_epoch || !self.records.is_empty())
            && self.data_blocks() <= limit
            && self.number < far
            && self.generation < far
            && self.complete < far
    }

    /// Returns true if the block has the magic, the log id and the right checksum.
    fn is_one(block: &[u8], instance: InstanceId) -> bool {
        block.len() == BLOCK_BYTES
            && block[MAGIC_AT..].starts_with(MAGIC)
            && array(block, INSTANCE_AT) == instance.0
            && u32_at(block, CHECKSUM_AT) == crc32c(&block[..CHECKSUM_AT])
    }
}

impl LogRecord {
    /// Encodes the record. No serial of the segment is below `base`.
    fn encode(&self, entry: &mut [u8], base: u64, shape: SegmentShape) {
        put_u64(entry, RECORD_SLOT_AT, self.slot);
        let above = u32::try_from(self.serial - base)
            .expect("fewer than 2^32 writes happen while one waits for the log");
        put_u32(entry, RECORD_SERIAL_AT, above);
        put_u32(entry, RECORD_COUNT_AT, self.count);
        put_u32(entry, RECORD_CHECKSUM_AT, self.checksum);
        entry[RECORD_MASK_AT] = self.mask;
        entry[RECORD_KIND_AT] = match self.kind {
            LogRecordKind::Data => 1,
            LogRecordKind::Zero => 2,
            LogRecordKind::Dropped => 3,
        };
        if shape.sealed {
            put(entry, RECORD_TAG_AT, &self.tag);
        }
    }

    /// Decodes `count` records at the beginning of `bytes`. Returns `None` if there are fewer or one is
    /// invalid.
    fn decode_all(
        bytes: &[u8],
        count: u32,
        base: u64,
        slots: u64,
        shape: SegmentShape,
    ) -> Option<Vec<Self>> {
        let count = count as usize;
        if count > shape.most_records() || bytes.len() < count * shape.record_bytes() {
            return None;
        }
        let entries = bytes.chunks_exact(shape.record_bytes()).take(count);
        entries.map(|entry| Self::decode(entry, base, slots, shape)).collect()
    }

    fn decode(entry: &[u8], base: u64, slots: u64, shape: SegmentShape) -> Option<Self> {
        let (kind, longest) = match entry[RECORD_KIND_AT] {
            1 => (LogRecordKind::Data, 1),
            2 => (LogRecordKind::Zero, MAX_ZERO_SLOTS),
            3 => (LogRecordKind::Dropped, u32::MAX),
            _ => return None,
        };
        let record = Self {
            slot: u64_at(entry, RECORD_SLOT_AT),
            count: u32_at(entry, RECORD_COUNT_AT),
            kind,
            mask: entry[RECORD_MASK_AT],
            checksum: u32_at(entry, RECORD_CHECKSUM_AT),
            tag: if shape.sealed { array(entry, RECORD_TAG_AT) } else { NO_TAG },
            serial: base.checked_add(u64::from(u32_at(entry, RECORD_SERIAL_AT)))?,
        };
        let end = record.slot.checked_add(u64::from(record.count))?;
        ((1..=longest).contains(&record.count)
            && end <= slots
            && record.mask != 0
            && record.serial < u64::MAX / 2)
            .then_some(record)
    }
}

/// The encoding of the records of a segment: in sealed segments each record stores a tag.
#[derive(Clone, Copy)]
struct SegmentShape {
    sealed: bool,
}

impl SegmentShape {
    fn of(flags: u32) -> Self {
        Self { sealed: flags & SEALED != 0 }
    }

    /// Returns the maximum number of records in a header: 128 without tags, and as many as fit with
    /// tags.
    fn most_records(self) -> usize {
        if self.sealed { (CHECKSUM_AT - RECORDS_AT) / SEALED_RECORD_BYTES } else { MAX_RECORDS }
    }

    fn record_bytes(self) -> usize {
        if self.sealed { SEALED_RECORD_BYTES } else { RECORD_BYTES }
    }

    fn brief_bytes(self) -> usize {
        if self.sealed { SEALED_BRIEF_BYTES } else { BRIEF_BYTES }
    }
}

/// The tag of a record whose data is not sealed.
pub const NO_TAG: Tag = [0; 16];
/// Maximum number of slots in one record of zeros. Recovery makes an entry for each of them.
pub const MAX_ZERO_SLOTS: u32 = 4096;
/// Maximum number of records in a header, one for each slot of the longest segment.
pub(crate) const MAX_RECORDS: usize = crate::MAX_SEGMENT_SLOTS as usize;

const ENDS_EPOCH: u32 = 1;
const VOIDS_OPEN: u32 = 2;
const SEALED: u32 = 4;
const ALL_FLAGS: u32 = ENDS_EPOCH | VOIDS_OPEN | SEALED;
const MAGIC: &[u8] = b"FBYLOGSG";
const MAGIC_AT: usize = 0;
const VERSION_AT: usize = 8;
const COUNT_AT: usize = 12;
const INSTANCE_AT: usize = 16;
const GENERATION_AT: usize = 32;
const NUMBER_AT: usize = 40;
const BASE_SERIAL_AT: usize = 48;
const COMPLETE_AT: usize = 56;
const DATA_BLOCKS_AT: usize = 64;
const FLAGS_AT: usize = 68;
const SALT_AT: usize = 72;
const NOTED_AT: usize = 84;
const RECORDS_AT: usize = 128;
const RECORD_BYTES: usize = 24;
const SEALED_RECORD_BYTES: usize = 40;
const CHECKSUM_AT: usize = 4092;

const BRIEF_BASE_SERIAL_AT: usize = 0;
const BRIEF_COMPLETE_AT: usize = 8;
const BRIEF_GENERATION_AT: usize = 16;
const BRIEF_COUNT_AT: usize = 24;
const BRIEF_FLAGS_AT: usize = 28;
/// Number of bytes of an index entry before its records.
const BRIEF_BYTES: usize = 32;
const BRIEF_SALT_AT: usize = 32;
const SEALED_BRIEF_BYTES: usize = 48;

const RECORD_SLOT_AT: usize = 0;
const RECORD_SERIAL_AT: usize = 8;
const RECORD_COUNT_AT: usize = 12;
const RECORD_CHECKSUM_AT: usize = 16;
const RECORD_MASK_AT: usize = 20;
const RECORD_KIND_AT: usize = 21;
const RECORD_TAG_AT: usize = 24;

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Name, offset and length in bytes of each field of a segment header. A test compares them
    /// with docs/formats/log-disk.md.
    pub(crate) const FIELDS: &[(&str, usize, usize)] = &[
        ("magic", MAGIC_AT, 8),
        ("version", VERSION_AT, 4),
        ("record count", COUNT_AT, 4),
        ("instance id", INSTANCE_AT, 16),
        ("generation", GENERATION_AT, 8),
        ("number", NUMBER_AT, 8),
        ("base serial", BASE_SERIAL_AT, 8),
        ("complete", COMPLETE_AT, 8),
        ("data blocks", DATA_BLOCKS_AT, 4),
        ("flags", FLAGS_AT, 4),
        ("salt", SALT_AT, 12),
        ("noted", NOTED_AT, 4),
        ("records", RECORDS_AT, MAX_RECORDS * RECORD_BYTES),
        ("checksum", CHECKSUM_AT, 4),
    ];
    pub(crate) const RECORD_FIELDS: &[(&str, usize, usize)] = &[
        ("slot", RECORD_SLOT_AT, 8),
        ("serial", RECORD_SERIAL_AT, 4),
        ("count", RECORD_COUNT_AT, 4),
        ("checksum", RECORD_CHECKSUM_AT, 4),
        ("mask", RECORD_MASK_AT, 1),
        ("kind", RECORD_KIND_AT, 1),
        ("tag", RECORD_TAG_AT, 16),
    ];

    pub(crate) const BRIEF_FIELDS: &[(&str, usize, usize)] = &[
        ("base serial", BRIEF_BASE_SERIAL_AT, 8),
        ("complete", BRIEF_COMPLETE_AT, 8),
        ("generation", BRIEF_GENERATION_AT, 8),
        ("record count", BRIEF_COUNT_AT, 4),
        ("flags", BRIEF_FLAGS_AT, 4),
        ("salt", BRIEF_SALT_AT, 12),
    ];

    pub(crate) const SLOTS: u64 = 1 << 40;
    pub(crate) const INSTANCE: InstanceId = InstanceId([9; 16]);

    fn record() -> impl Strategy<Value = LogRecord> {
        let kind = prop_oneof![
            Just(LogRecordKind::Data),
            Just(LogRecordKind::Zero),
            Just(LogRecordKind::Dropped)
        ];
        (0..SLOTS / 2, 1..MAX_ZERO_SLOTS, kind, 1..=255u8, any::<u32>(), 1000..1u64 << 32).prop_map(
            |(slot, count, kind, mask, checksum, serial)| LogRecord {
                slot,
                count: if kind == LogRecordKind::Data { 1 } else { count },
                kind,
                mask,
                checksum,
                tag: NO_TAG,
                serial,
            },
        )
    }

    pub(crate) fn header() -> impl Strategy<Value = SegmentHeader> {
        let records = prop::collection::vec((record(), any::<Tag>()), 0..=MAX_RECORDS);
        let salt = prop::option::of(any::<Salt>());
        let flags = (any::<(bool, bool)>(), salt);
        (0..1u64 << 60, 0..1u64 << 60, 0..1u64 << 60, flags, records).prop_map(
            |(generation, number, complete, ((ends_epoch, voids_open), salt), records)| {
                let shape = SegmentShape { sealed: salt.is_some() };
                let records = records.into_iter().take(shape.most_records());
                let records: Vec<_> = records
                    .map(|(record, tag)| match shape.sealed {
                        true => LogRecord { tag, ..record },
                        false => record,
                    })
                    .collect();
                SegmentHeader {
                    instance: INSTANCE,
                    generation,
                    number,
                    complete,
                    ends_epoch: ends_epoch || records.is_empty(),
                    voids_open,
                    salt,
                    noted: false,
                    records,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn decoding_gives_what_was_encoded(header in header(), noted in any::<bool>()) {
            let header = SegmentHeader { noted, ..header };
            let mut block = vec![1; BLOCK_BYTES];
            header.encode(&mut block);
            prop_assert_eq!(SegmentHeader::decode(&block, INSTANCE, SLOTS, 128), Some(header));
        }

        #[test]
        fn a_header_with_one_flipped_bit_is_never_accepted(header in header(), bit in 0..BLOCK_BYTES * 8) {
            let mut block = vec![0; BLOCK_BYTES];
            header.encode(&mut block);
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(SegmentHeader::decode(&block, INSTANCE, SLOTS, 128), None);
        }

        #[test]
        fn hostile_fields_under_a_right_checksum_stay_in_range(
            header in header(),
            fields in prop::collection::vec((0..200usize, any::<u8>()), 1..40),
        ) {
            let mut block = vec![0; BLOCK_BYTES];
            header.encode(&mut block);
            for (at, byte) in fields {
                block[at] = byte;
            }
            let checksum = crc32c(&block[..CHECKSUM_AT]);
            put_u32(&mut block, CHECKSUM_AT, checksum);
            if let Some(header) = SegmentHeader::decode(&block, INSTANCE, SLOTS, 128) {
                prop_assert!(header.data_blocks() <= 128);
                for record in header.records {
                    prop_assert!(record.slot + u64::from(record.count) <= SLOTS);
                    prop_assert!(record.mask != 0);
                }
            }
        }
    }

    #[test]
    fn a_header_of_another_log_is_not_accepted() {
        let (kind, tag) = (LogRecordKind::Data, NO_TAG);
        let record = LogRecord { slot: 0, count: 1, kind, mask: 255, checksum: 0, tag, serial: 1 };
        let header = SegmentHeader {
            instance: INSTANCE,
            generation: 1,
            number: 1,
            complete: 1,
            ends_epoch: true,
            voids_open: false,
            salt: None,
            noted: false,
            records: vec![record],
        };
        let mut block = vec![0; BLOCK_BYTES];
        header.encode(&mut block);
        assert!(SegmentHeader::decode(&block, INSTANCE, 1, 1).is_some());
        assert!(SegmentHeader::decode(&block, InstanceId([8; 16]), 1, 1).is_none());
        assert!(SegmentHeader::decode(&block, INSTANCE, 0, 1).is_none(), "beyond the volume");
        assert!(SegmentHeader::decode(&block, INSTANCE, 1, 0).is_none(), "longer than a segment");
    }
}
