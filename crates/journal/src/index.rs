//! The index: a copy of the headers of stable segments, gathered in *frames* at the end of the log. With it,
//! recovery need not read the whole ring.
//!
//! The index holds no information that the ring lacks. If a frame is torn, damaged or missing, recovery takes
//! longer: it reads the segments of this frame in full.

use bytes::Bytes;
use volume::{Error, Extent, Lba, Stack};

use crate::checksum::crc32c;
use crate::{
    BLOCK_BYTES, VERSION,
    bytes::{array, put, put_u32, put_u64, u32_at, u64_at},
    identity::InstanceId,
    segment::SegmentHeader,
    superblock::Superblock,
};

/// A frame: the headers of consecutive segments.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct IndexFrame {
    pub first: u64,
    /// The block where segment `first` begins.
    pub start: u32,
    pub count: u32,
    entries: Vec<u8>,
}

impl IndexFrame {
    /// Returns the number of the last segment. The frame must not be empty.
    pub(crate) fn last(&self) -> u64 {
        self.first + u64::from(self.count) - 1
    }

    /// Adds the next segment, which begins in block `start`. Returns false if a frame of `frame_bytes` bytes
    /// has no room for it.
    pub(crate) fn push(&mut self, start: u32, header: &SegmentHeader, frame_bytes: usize) -> bool {
        if HEADER_BYTES + self.entries.len() + header.brief_bytes() + CHECKSUM_BYTES > frame_bytes {
            return false;
        }
        if self.count == 0 {
            (self.first, self.start) = (header.number, start);
        }
        assert_eq!(header.number, self.first + u64::from(self.count), "segments come in order");
        self.count += 1;
        header.encode_brief(&mut self.entries);
        true
    }

    /// Removes the segments from `number` on. Only for a frame that was filled by [`Self::push`]: entries
    /// from the disk may be arbitrary.
    pub(crate) fn truncate(&mut self, number: u64) {
        self.count = self.count.min(number.saturating_sub(self.first) as u32);
        let mut length = 0;
        for _ in 0..self.count {
            length += SegmentHeader::brief_length(&self.entries[length..]);
        }
        self.entries.truncate(length);
    }

    /// Encodes the frame into `frame_bytes` bytes.
    pub(crate) fn encode(&self, stamp: IndexFrameStamp, frame_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; frame_bytes];
        put(&mut bytes, MAGIC_AT, MAGIC);
        put_u32(&mut bytes, VERSION_AT, VERSION);
        put_u32(&mut bytes, LENGTH_AT, self.entries.len() as u32);
        put(&mut bytes, INSTANCE_AT, &stamp.instance.0);
        put_u64(&mut bytes, GENERATION_AT, stamp.generation);
        put_u64(&mut bytes, NUMBER_AT, stamp.number);
        put_u64(&mut bytes, FIRST_AT, self.first);
        put_u32(&mut bytes, START_AT, self.start);
        put_u32(&mut bytes, COUNT_AT, self.count);
        put(&mut bytes, HEADER_BYTES, &self.entries);
        let at = frame_bytes - CHECKSUM_BYTES;
        let checksum = crc32c(&bytes[..at]);
        put_u32(&mut bytes, at, checksum);
        bytes
    }

    /// Decodes a frame of the log `instance`. Every byte may be arbitrary; the entries are not checked yet.
    pub(crate) fn decode(bytes: &[u8], instance: InstanceId) -> Option<(Self, IndexFrameStamp)> {
        let at = bytes.len().checked_sub(CHECKSUM_BYTES)?;
        let whole = bytes.starts_with(MAGIC)
            && array(bytes, INSTANCE_AT) == instance.0
            && u32_at(bytes, VERSION_AT) == VERSION
            && u32_at(bytes, at) == crc32c(&bytes[..at]);
        if !whole {
            return None;
        }
        let (first, count) = (u64_at(bytes, FIRST_AT), u32_at(bytes, COUNT_AT));
        let length = u32_at(bytes, LENGTH_AT) as usize;
        let entries = bytes[HEADER_BYTES..at].get(..length)?.to_vec();
        let frame = Self { first, start: u32_at(bytes, START_AT), count, entries };
        let stamp = IndexFrameStamp {
            instance,
            generation: u64_at(bytes, GENERATION_AT),
            number: u64_at(bytes, NUMBER_AT),
        };
        (count > 0 && first < u64::MAX / 2).then_some((frame, stamp))
    }
}

/// The log, generation and number that a frame carries.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct IndexFrameStamp {
    pub instance: InstanceId,
    /// Generation of the superblock when the frame was written.
    pub generation: u64,
    /// Frames are counted from 0. Frame *n* is stored at position *n* modulo the number of positions.
    pub number: u64,
}

/// Reads the frames of a log's index, oldest first, when recovery reaches the segments that they describe.
pub(crate) struct IndexReader<'a> {
    log: &'a Stack,
    superblock: &'a Superblock,
    /// Size of the cached volume, in slots.
    slots: u64,
    current: Option<Current>,
    /// The last segment of each frame that was found, oldest first.
    found: Vec<u64>,
    generation: u64,
    ended: bool,
    /// Frames that were read with one call: the number of the first, and their bytes.
    window: (u64, Bytes),
}

/// The frame whose entries are being read.
struct Current {
    frame: IndexFrame,
    /// The number of the next segment of the frame, and the offset of its entry in the frame's bytes.
    next: u64,
    at: usize,
}

impl<'a> IndexReader<'a> {
    pub(crate) fn new(log: &'a Stack, superblock: &'a Superblock) -> Self {
        let slots = superblock.identity.geometry.bytes().div_ceil(BLOCK_BYTES as u64);
        let window = (0, Bytes::new());
        let (current, found, generation, ended) = (None, Vec::new(), 0, false);
        Self { log, superblock, slots, current, found, generation, ended, window }
    }

    /// Returns the header of segment `number` from the index, if the index has it and the segment begins in
    /// block `start`. The numbers must grow from call to call. Stops using the index if an entry is invalid.
    pub(crate) async fn segment(&mut self, number: u64, start: u32) -> Option<SegmentHeader> {
        loop {
            let Some(Current { frame, next, at }) = &mut self.current else {
                self.current = self.load().await;
                self.current.as_ref()?;
                continue;
            };
            if *next > frame.last() {
                self.current = None;
                continue;
            }
            if *next > number {
                return None;
            }
            let instance = self.superblock.instance;
            let limit = self.superblock.segment_slots;
            let entry = &frame.entries[*at..];
            let read = SegmentHeader::decode_brief(entry, instance, *next, self.slots, limit);
            let Some((header, length)) =
                read.filter(|_| frame.first != number || frame.start == start)
            else {
                self.distrust();
                return None;
            };
            *next += 1;
            *at += length;
            if header.number == number {
                return Some(header);
            }
        }
    }

    /// Stops using the index, since an entry contradicts the log.
    pub(crate) fn distrust(&mut self) {
        if self.current.take().is_some() {
            self.found.pop();
        }
        self.ended = true;
    }

    /// Returns the number of the newest segment that the index describes.
    pub(crate) fn newest(&self) -> Option<u64> {
        self.found.last().copied()
    }

    /// Returns the number of the last segment of each frame whose segments are all before `end`. The first item is for
    /// the frame at the index tail of the superblock.
    pub(crate) fn into_frames(self, end: u64) -> Vec<u64> {
        let mut found = self.found;
        found.retain(|&last| last < end);
        found
    }

    async fn load(&mut self) -> Option<Current> {
        let number = self.superblock.index_tail + self.found.len() as u64;
        if self.ended || self.found.len() as u64 >= self.superblock.frames() {
            return None;
        }
        let decoded = match self.bytes(number).await {
            Ok(bytes) => IndexFrame::decode(&bytes, self.superblock.instance),
            Err(error) => {
                tracing::warn!(%error, "the index of the log cannot be read; reading the log");
                None
            }
        };
        let after = self.found.last().copied().unwrap_or(0);
        let fits = |(frame, stamp): &(IndexFrame, IndexFrameStamp)| {
            stamp.number == number && self.belongs(*stamp) && frame.first > after
        };
        let Some((frame, stamp)) = decoded.filter(fits) else {
            self.ended = true;
            return None;
        };
        self.generation = stamp.generation;
        self.found.push(frame.last());
        Some(Current { next: frame.first, at: 0, frame })
    }

    /// Returns true if a frame may follow the previous one. A frame from `index_first` on must be of the
    /// newest generation; a frame before it must be of an earlier one, and not older than its predecessor.
    fn belongs(&self, stamp: IndexFrameStamp) -> bool {
        let newest = self.superblock.generation;
        if stamp.number >= self.superblock.index_first {
            stamp.generation == newest
        } else {
            (self.generation..newest).contains(&stamp.generation)
        }
    }

    async fn bytes(&mut self, number: u64) -> Result<Bytes, Error> {
        let frame_bytes = self.superblock.frame_bytes();
        let held = (self.window.1.len() / frame_bytes) as u64;
        if !(self.window.0..self.window.0 + held).contains(&number) {
            let frames = self.superblock.frames();
            let together = READ_BYTES / frame_bytes as u64;
            let count = together.max(1).min(frames - number % frames) as u32;
            let lba = Lba(self.superblock.frame_block(number));
            let extent = Extent { lba, blocks: count * self.superblock.frame_blocks };
            let bytes = self.log.read(extent).await?.into_bytes();
            if bytes.len() != count as usize * frame_bytes {
                return Err(Error::Device("the log disk returned fewer bytes".into()));
            }
            self.window = (number, bytes);
        }
        let at = (number - self.window.0) as usize * frame_bytes;
        Ok(self.window.1.slice(at..at + frame_bytes))
    }
}

impl Superblock {
    /// Returns the number of positions for frames in the index.
    pub(crate) fn frames(&self) -> u64 {
        u64::from(self.index_blocks / self.frame_blocks)
    }

    pub(crate) fn frame_bytes(&self) -> usize {
        self.frame_blocks as usize * BLOCK_BYTES
    }

    /// Returns the block of the log where frame `number` begins.
    pub(crate) fn frame_block(&self, number: u64) -> u64 {
        let place = number % self.frames();
        u64::from(self.ring_end()) + place * u64::from(self.frame_blocks)
    }
}

/// The number of bytes of the index that are read with one call: many enough for few calls, few enough for
/// little memory.
const READ_BYTES: u64 = 1 << 20;

const MAGIC: &[u8] = b"FBYLOGIX";
const MAGIC_AT: usize = 0;
const VERSION_AT: usize = 8;
const LENGTH_AT: usize = 12;
const INSTANCE_AT: usize = 16;
const GENERATION_AT: usize = 32;
const NUMBER_AT: usize = 40;
const FIRST_AT: usize = 48;
const START_AT: usize = 56;
const COUNT_AT: usize = 60;
/// Number of bytes in an index frame before its entries.
const HEADER_BYTES: usize = 64;
/// Number of bytes of the checksum at the end of an index frame.
const CHECKSUM_BYTES: usize = 4;

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::segment::tests::{INSTANCE, SLOTS, header};

    /// Name, offset and length in bytes of each field of an index frame. A test compares them with
    /// docs/formats/log-disk.md.
    pub(crate) const FIELDS: &[(&str, usize, usize)] = &[
        ("magic", MAGIC_AT, 8),
        ("version", VERSION_AT, 4),
        ("length", LENGTH_AT, 4),
        ("instance id", INSTANCE_AT, 16),
        ("generation", GENERATION_AT, 8),
        ("number", NUMBER_AT, 8),
        ("first", FIRST_AT, 8),
        ("start", START_AT, 4),
        ("segment count", COUNT_AT, 4),
    ];

    const STAMP: IndexFrameStamp =
        IndexFrameStamp { instance: INSTANCE, generation: 3, number: 17 };
    const FRAME_BYTES: usize = 4 * BLOCK_BYTES;

    /// Fills a frame with as many of the headers as fit.
    fn filled(headers: Vec<SegmentHeader>) -> (IndexFrame, Vec<SegmentHeader>) {
        let mut frame = IndexFrame::default();
        let mut taken = Vec::new();
        for (i, header) in headers.into_iter().enumerate() {
            let header = SegmentHeader { number: 90 + i as u64, ..header };
            if !frame.push(7, &header, FRAME_BYTES) {
                break;
            }
            taken.push(header);
        }
        (frame, taken)
    }

    proptest! {
        #[test]
        fn a_frame_describes_every_segment_that_was_added_to_it(
            headers in prop::collection::vec(header(), 1..12),
        ) {
            let (frame, taken) = filled(headers);
            let bytes = frame.encode(STAMP, FRAME_BYTES);
            let (decoded, stamp) = IndexFrame::decode(&bytes, INSTANCE).expect("it is whole");
            prop_assert_eq!((&decoded, stamp), (&frame, STAMP));
            let mut at = 0;
            for expected in taken {
                let entry = &decoded.entries[at..];
                let (header, length) =
                    SegmentHeader::decode_brief(entry, INSTANCE, expected.number, SLOTS, 128)
                        .expect("the frame describes it");
                prop_assert_eq!(header, expected);
                at += length;
            }
            prop_assert_eq!(at, decoded.entries.len());
            let mut shorter = frame.clone();
            shorter.truncate(frame.last());
            prop_assert_eq!(shorter.count, frame.count - 1);
            prop_assert!(frame.entries.starts_with(&shorter.entries));
        }

        #[test]
        fn a_frame_with_one_flipped_bit_is_never_accepted(
            headers in prop::collection::vec(header(), 1..3),
            bit in 0..FRAME_BYTES * 8,
        ) {
            let mut bytes = filled(headers).0.encode(STAMP, FRAME_BYTES);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(IndexFrame::decode(&bytes, INSTANCE).is_none());
        }

        #[test]
        fn hostile_fields_under_a_right_checksum_do_not_panic(
            headers in prop::collection::vec(header(), 1..3),
            fields in prop::collection::vec((0..400usize, any::<u8>()), 0..40),
        ) {
            let mut bytes = filled(headers).0.encode(STAMP, FRAME_BYTES);
            for (at, byte) in fields {
                bytes[at] = byte;
            }
            let at = FRAME_BYTES - CHECKSUM_BYTES;
            let checksum = crc32c(&bytes[..at]);
            put_u32(&mut bytes, at, checksum);
            if let Some((frame, _)) = IndexFrame::decode(&bytes, INSTANCE) {
                let _ = SegmentHeader::decode_brief(&frame.entries, INSTANCE, frame.first, SLOTS, 128);
                let _ = frame.last();
            }
        }
    }

    #[test]
    fn a_frame_of_another_log_is_not_accepted() {
        let bytes = IndexFrame { first: 1, start: 2, count: 1, entries: Vec::new() }
            .encode(STAMP, FRAME_BYTES);
        assert!(IndexFrame::decode(&bytes, INSTANCE).is_some());
        assert!(IndexFrame::decode(&bytes, InstanceId([8; 16])).is_none());
    }
}
