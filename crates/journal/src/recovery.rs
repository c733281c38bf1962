//! Recovery: finds the newest superblock, and every segment from the tail to the end of the log.
//!
//! Every byte on the disk may be arbitrary. Recovery writes only to repair a copy of a mirrored log. Segments
//! that the index describes are not read: they were stable, and their data is checked against its checksum
//! whenever it is read.
//!
//! The log ends at the first segment that is not whole. Either a crash has torn this segment, which is
//! normal, or acknowledged data is missing. Evidence of later segments decides which of the two it is.

use bytes::Bytes;
use volume::{Data, Error, Extent, Lba, Stack, examine};

use crate::checksum::crc32c;
use crate::{
    BLOCK_BYTES,
    doubt::judge_superblocks,
    index::{IndexFrame, IndexReader},
    ring::SegmentRing,
    segment::{LogRecordKind, SegmentHeader},
    shape::FIRST_BLOCK,
    superblock::{InvalidSuperblock, Superblock},
};

/// Acknowledged data that is missing from the log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AcknowledgedLoss {
    /// Number of the first segment that is missing or damaged.
    pub first_missing: u64,
    /// The block of the log at which the missing segment `first_missing` should begin.
    pub block: u64,
    /// The number of whole segments before `first_missing`.
    pub intact: u64,
    /// The reason why the segment must have existed, for messages.
    pub evidence: String,
}

#[derive(Debug)]
pub struct Scan {
    /// The ring with every whole segment from the tail on.
    pub ring: SegmentRing,
    /// The highest serial of any write that is or was in the log.
    pub serial: u64,
    /// Every write up to this serial is in the log, or was destaged from it, as far as the log knows.
    pub complete: u64,
    /// The number of segments after the last whole epoch. They hold writes that were never flushed, and are
    /// not used.
    pub unflushed: u64,
    /// Set if acknowledged data is known to be missing.
    pub loss: Option<AcknowledgedLoss>,
    /// Number and first block of the segment that would follow the last intact one.
    pub end: (u64, u32),
    /// The frames of the index, and the segments that are in no frame.
    pub index: FoundIndex,
    /// Number of the newest whole segment, if its header says that the NVRAM had recorded it.
    pub noted: Option<u64>,
}

/// The frames of the index that a scan found, and the segments that are not in them.
#[derive(Debug, Default)]
pub struct FoundIndex {
    /// The last segment of each frame. The first entry is of the frame at the superblock's index tail.
    pub frames: Vec<u64>,
    /// The newest segments of the log, which no index frame describes.
    pub(crate) unindexed: Vec<IndexFrame>,
}

/// The reason why a log has no usable superblock.
#[derive(Debug)]
pub enum NoSuperblock {
    /// The superblocks and the block after them are zeros, so the disk was never used.
    Blank,
    /// The blocks are not zeros, but neither of them is a valid superblock.
    Garbage,
    /// A superblock has this format version, which this program does not know.
    Version(u32),
    Io(Error),
}

/// Returns the newer of the two superblocks.
pub async fn superblock(log: &Stack) -> Result<Superblock, NoSuperblock> {
    let blocks = log.geometry().blocks.min(u64::from(FIRST_BLOCK) + 1);
    if blocks < u64::from(FIRST_BLOCK) {
        return Err(NoSuperblock::Garbage);
    }
    judge_superblocks(log).await.map_err(NoSuperblock::Io)?;
    let bytes = read(log, 0, blocks as u32).await.map_err(NoSuperblock::Io)?;
    let mut copies: Vec<_> = bytes.chunks_exact(BLOCK_BYTES).map(Superblock::decode).collect();
    let beyond = copies.split_off(FIRST_BLOCK as usize).pop();
    // If one copy has another format version, a program of that version may have crashed while it wrote both
    // copies. Refuse the log.
    for copy in &copies {
        if let Err(InvalidSuperblock::Version(version)) = copy {
            return Err(NoSuperblock::Version(*version));
        }
    }
    // Treat the disk as new only if the block after the superblocks is zeros, too.
    let blank = copies.iter().chain(&beyond).all(|copy| *copy == Err(InvalidSuperblock::Blank));
    let newest = copies.into_iter().flatten().max_by_key(|copy| copy.sequence);
    match newest {
        Some(superblock) => Ok(superblock),
        None if blank => Err(NoSuperblock::Blank),
        None => Err(NoSuperblock::Garbage),
    }
}

/// Returns the superblock copy to write first: copy 1 if only copy 1 is damaged, otherwise copy 0.
pub async fn copy_to_mend(log: &Stack) -> Result<u64, Error> {
    let bytes = read(log, 0, FIRST_BLOCK).await?;
    let is_whole = |copy: &[u8]| Superblock::decode(copy).is_ok();
    let whole: Vec<_> = bytes.chunks_exact(BLOCK_BYTES).map(is_whole).collect();
    Ok(u64::from(whole[..2] == [true, false]))
}

/// Reads every segment from the tail to the end, from the index or from the ring. Calls `apply` with the
/// first block and the header of each segment that belongs to a whole epoch. `watermark` is the number of a
/// segment that is known from the NVRAM to have been stable.
pub async fn scan(
    log: &Stack,
    superblock: &Superblock,
    watermark: Option<u64>,
    mut apply: impl FnMut(u32, &SegmentHeader),
) -> Result<Scan, Error> {
    let mut scanner = LogScanner::new(log, superblock);
    // Start with the numbers of the superblock: the segments of destaged writes are not in the ring any more.
    let (mut serial, mut complete) = (superblock.serial, superblock.complete);
    // Segments of an epoch whose last segment has not been found yet.
    let mut open = Vec::new();
    let mut ended = scanner.ring.next();
    while let Some((start, header)) = scanner.next_segment().await? {
        serial = header.records.iter().map(|record| record.serial).fold(serial, u64::max);
        if header.voids_open {
            open.clear();
        }
        let ends = header.ends_epoch;
        open.push((start, header));
        if ends {
            ended = scanner.ring.next();
            for (start, header) in open.drain(..) {
                complete = complete.max(header.complete);
                apply(start, &header);
            }
        }
    }
    let loss = scanner.loss(watermark).await?;
    let noted = scanner.noted().await?;
    let LogScanner { mut ring, index, mut unindexed, .. } = scanner;
    let end = (ring.next(), ring.position());
    let unflushed = end.0 - ended;
    ring.truncate(ended);
    ring.end_recovery();
    unindexed.retain(|frame| frame.first < ended);
    if let Some(frame) = unindexed.last_mut() {
        frame.truncate(ended);
    }
    let index = FoundIndex { frames: index.into_frames(ended), unindexed };
    Ok(Scan { serial: serial.max(complete), complete, ring, unflushed, loss, end, index, noted })
}

/// Reads the segments of a log in the order of their numbers, from the oldest to the newest.
struct LogScanner<'a> {
    superblock: &'a Superblock,
    window: LogReadWindow<'a>,
    index: IndexReader<'a>,
    /// The ring with every whole segment so far.
    ring: SegmentRing,
    /// The segments that are newer than those which the index describes.
    unindexed: Vec<IndexFrame>,
    /// The generation of the newest whole segment so far.
    generation: u64,
    /// Number and first block of the newest whole segment so far.
    newest: Option<(u64, u32)>,
}

impl<'a> LogScanner<'a> {
    fn new(log: &'a Stack, superblock: &'a Superblock) -> Self {
        let longest = superblock.segment_slots + 1;
        let layouts = superblock.ring_layouts();
        let (tail, block) = (superblock.tail, superblock.tail_block);
        Self {
            superblock,
            window: LogReadWindow::new(log, superblock),
            index: IndexReader::new(log, superblock),
            ring: SegmentRing::with_layouts(layouts, longest, tail, block),
            unindexed: Vec::new(),
            generation: 0,
            newest: None,
        }
    }

    /// Returns the first block and the header of the next whole segment; `None` at the end of the log.
    async fn next_segment(&mut self) -> Result<Option<(u32, SegmentHeader)>, Error> {
        loop {
            let (number, start) = (self.ring.next(), self.ring.position());
            let indexed = self.index.segment(number, start).await;
            let is_indexed = indexed.is_some();
            let header = match indexed {
                Some(header) => header,
                None => match self.window.header(start).await? {
                    Some(header) => header,
                    None => return Ok(None),
                },
            };
            let fits = header.number == number
                && belongs(&header, self.superblock, self.generation)
                && self.ring.fits(header.data_blocks() + 1);
            if is_indexed {
                if !fits {
                    self.index.distrust();
                    continue;
                }
                self.unindexed.clear();
            } else if fits && self.window.data_is_whole(start, &header).await? {
                add_segment(&mut self.unindexed, start, &header, self.superblock.frame_bytes());
            } else {
                return Ok(None);
            }
            self.generation = header.generation;
            self.newest = Some((number, start));
            self.ring.push(header.data_blocks() + 1);
            return Ok(Some((start, header)));
        }
    }

    /// Returns evidence of acknowledged segments that are missing after the end of the log. See [`scan`] for
    /// `watermark`.
    async fn loss(&mut self, watermark: Option<u64>) -> Result<Option<AcknowledgedLoss>, Error> {
        let Self { window, superblock, ring, generation, .. } = self;
        let newest = self.index.newest().filter(|&newest| newest >= ring.next());
        let evidence = match newest {
            Some(newest) => Some(format!("the index has segment {newest}")),
            None => evidence(window, superblock, ring, *generation, watermark).await?,
        };
        Ok(evidence.map(|evidence| AcknowledgedLoss {
            first_missing: ring.next(),
            block: u64::from(ring.position()),
            intact: ring.segments() as u64,
            evidence,
        }))
    }

    /// Returns the number of the newest whole segment, if its header says that the NVRAM had recorded it.
    /// Reads the header from the ring, since the index does not store this field.
    async fn noted(&mut self) -> Result<Option<u64>, Error> {
        let Some((number, start)) = self.newest else { return Ok(None) };
        let header = self.window.header(start).await?.filter(|header| header.number == number);
        Ok(header.filter(|header| header.noted).map(|header| header.number))
    }
}

/// Adds a segment to the last of `frames`, or to a new frame if that one is full.
fn add_segment(
    frames: &mut Vec<IndexFrame>,
    start: u32,
    header: &SegmentHeader,
    frame_bytes: usize,
) {
    let has_room = frames.last_mut().is_some_and(|frame| frame.push(start, header, frame_bytes));
    if !has_room {
        let mut frame = IndexFrame::default();
        frame.push(start, header, frame_bytes);
        frames.push(frame);
    }
}

/// Looks for segment `number`, which should begin in block `start`, in all copies of a mirrored log. Where a
/// copy is whole, repairs the others. Returns true if the segment is whole now.
pub async fn mend(
    log: &Stack,
    superblock: &Superblock,
    (number, start): (u64, u32),
) -> Result<bool, Error> {
    let start = u64::from(start);
    if start >= u64::from(superblock.ring_end()) {
        return Ok(false);
    }
    let slots = superblock.identity.geometry.bytes().div_ceil(BLOCK_BYTES as u64);
    let decode = |data: &Data| {
        let block = data.clone().into_bytes();
        let header = (block.len() == BLOCK_BYTES).then(|| {
            SegmentHeader::decode(&block, superblock.instance, slots, superblock.segment_slots)
        });
        header.flatten().filter(|header| header.number == number)
    };
    let at = |block: u64| Extent { lba: Lba(block), blocks: 1 };
    let found = examine(&**log, at(start), &|data| decode(data).is_some()).await?;
    let Some(header) = found.as_ref().and_then(decode) else { return Ok(false) };
    if start + u64::from(header.data_blocks()) >= u64::from(superblock.ring_end()) {
        return Ok(false);
    }
    let data = header.records.iter().filter(|record| record.kind == LogRecordKind::Data);
    for (record, block) in data.zip(start + 1..) {
        let is_right = |data: &Data| crc32c(&data.clone().into_bytes()) == record.checksum;
        if examine(&**log, at(block), &is_right).await?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns true if a segment may follow one of `generation`. A segment from `generation_first` on must be of
/// the newest generation; a segment before it must be of an earlier one, and not older than its predecessor.
/// A sealed log has no segments in clear, and a log in clear no sealed ones.
fn belongs(header: &SegmentHeader, superblock: &Superblock, generation: u64) -> bool {
    if header.salt.is_some() != superblock.key.is_some() {
        return false;
    }
    if header.number >= superblock.generation_first {
        header.generation == superblock.generation
    } else {
        header.generation < superblock.generation && header.generation >= generation
    }
}

/// Returns the reason why a segment must be missing after the last one of `ring`; `None` if there is no such
/// evidence.
///
/// Only one segment is written at a time, and the next one begins when it is stable. If the end of the log is
/// a torn write, no newer segment can exist.
async fn evidence(
    window: &mut LogReadWindow<'_>,
    superblock: &Superblock,
    ring: &SegmentRing,
    generation: u64,
    watermark: Option<u64>,
) -> Result<Option<String>, Error> {
    let next = ring.next();
    if superblock.committed >= next {
        let how = if superblock.clean { "was stopped at" } else { "had reached" };
        return Ok(Some(format!("the log {how} segment {}", superblock.committed)));
    }
    if let Some(watermark) = watermark.filter(|&watermark| watermark >= next) {
        return Ok(Some(format!("the NVRAM has recorded segment {watermark} as stable")));
    }
    let longest = superblock.segment_slots + 1;
    let mut block = ring.position();
    // Look for a newer segment behind the missing one, which has at most `longest` blocks and may be followed
    // by the unused end of a zone.
    for _ in 0..(4 * longest).min(ring.blocks()) {
        if let Some(header) = window.header(block).await? {
            if header.generation > superblock.generation {
                return Ok(Some(format!(
                    "segment {} in block {block} is of generation {}, the superblock of {}",
                    header.number, header.generation, superblock.generation
                )));
            }
            if header.number > next && belongs(&header, superblock, generation) {
                return Ok(Some(format!("segment {} is in block {block}", header.number)));
            }
        }
        block = ring.after(block);
    }
    Ok(None)
}

/// A part of the log in memory, so that one read covers many small segments.
struct LogReadWindow<'a> {
    log: &'a Stack,
    superblock: &'a Superblock,
    slots: u64,
    base: u32,
    bytes: Bytes,
}

impl<'a> LogReadWindow<'a> {
    fn new(log: &'a Stack, superblock: &'a Superblock) -> Self {
        let slots = superblock.identity.geometry.bytes().div_ceil(BLOCK_BYTES as u64);
        Self { log, superblock, slots, base: 0, bytes: Bytes::new() }
    }

    async fn header(&mut self, block: u32) -> Result<Option<SegmentHeader>, Error> {
        let bytes = self.blocks(block, 1).await?;
        Ok(bytes.and_then(|bytes| {
            let limit = self.superblock.segment_slots;
            SegmentHeader::decode(&bytes, self.superblock.instance, self.slots, limit)
        }))
    }

    /// Returns true if every data block of the segment at `start` matches the checksum in its record.
    async fn data_is_whole(&mut self, start: u32, header: &SegmentHeader) -> Result<bool, Error> {
        let count = header.data_blocks();
        if count == 0 {
            return Ok(true);
        }
        let Some(bytes) = self.blocks(start + 1, count).await? else { return Ok(false) };
        let data = header.records.iter().filter(|record| record.kind == LogRecordKind::Data);
        Ok(data
            .zip(bytes.chunks_exact(BLOCK_BYTES))
            .all(|(record, block)| crc32c(block) == record.checksum))
    }

    /// Returns `count` blocks from `first` on; `None` if they extend beyond the end of the ring.
    async fn blocks(&mut self, first: u32, count: u32) -> Result<Option<Bytes>, Error> {
        let end = self.superblock.ring_end();
        if first + count > end {
            return Ok(None);
        }
        let held = (self.bytes.len() / BLOCK_BYTES) as u32;
        if first < self.base || first + count > self.base + held {
            let length = WINDOW_BLOCKS.max(count).min(end - first);
            self.bytes = read(self.log, first, length).await?;
            self.base = first;
        }
        let at = (first - self.base) as usize * BLOCK_BYTES;
        Ok(Some(self.bytes.slice(at..at + count as usize * BLOCK_BYTES)))
    }
}

/// Number of blocks in the window: two of the longest segments, so that one read usually covers at
/// least one segment.
const WINDOW_BLOCKS: u32 = 256;

async fn read(log: &Stack, first: u32, blocks: u32) -> Result<Bytes, Error> {
    let extent = Extent { lba: Lba(u64::from(first)), blocks };
    let bytes = log.read(extent).await?.into_bytes();
    if bytes.len() == blocks as usize * BLOCK_BYTES {
        Ok(bytes)
    } else {
        Err(Error::Device("the log disk returned fewer bytes than asked for".into()))
    }
}
