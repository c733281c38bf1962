//! A volume in memory: pages of 4096 bytes, present only where something was written.
//!
//! Every call is finished at its first poll. Reads share the pages and copy nothing; writes copy
//! once, into the old page if no reader still holds it.

use std::{collections::BTreeMap, ops::Range};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::{
    Allocation, Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, Provisioning,
    ThinSpaceUsage, Volume,
    data::DataCursor,
    page::{MemPage, MemPagePool, PAGE},
};

/// A volume in memory, whose data is lost when the process ends.
pub struct MemVolume {
    geometry: Geometry,
    /// Chunk `n` is in shard `n % SHARDS`. Lock order: shards in ascending order.
    shards: Box<[Mutex<Shard>]>,
    pool: MemPagePool,
}

type Shard = BTreeMap<u64, MemChunk>;

/// Consecutive pages; an absent page reads as zeros.
struct MemChunk {
    pages: Box<[Option<MemPage>; PAGES_PER_CHUNK]>,
    present: usize,
}

impl MemVolume {
    /// Returns a volume of zeros. Memory is allocated when blocks are written, and freed when they are
    /// discarded.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let atomic_blocks = (ATOMIC / geometry.block_size as usize) as u32;
        let geometry = Geometry { atomic_blocks, ..geometry };
        Self { geometry, shards, pool: MemPagePool::default() }
    }

    /// Returns the number of bytes of memory that hold written blocks: whole pages of 4096.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        let pages: usize =
            self.shards.iter().map(|s| s.lock().values().map(|c| c.present).sum::<usize>()).sum();
        (pages * PAGE) as u64
    }

    fn read_now(&self, extent: Extent) -> Result<Data, Error> {
        self.geometry.check_extent(extent)?;
        let bytes = extent.blocks as usize * self.block_size();
        let start = extent.lba.0 * self.block_size() as u64;
        if start as usize % PAGE + bytes <= PAGE {
            return Ok(self.read_in_page(start, bytes).into());
        }
        // Reserve room for all parts: a read that spans pages may touch one more page at each end. A list of one part
        // needs no allocation.
        let mut data = Data::with_parts(if bytes <= PAGE { 1 } else { bytes / PAGE + 2 });
        let spans: Spans = self.spans(extent).collect();
        // Take all locks at once; otherwise a reader could see a part of a write across two chunks.
        for spans in spans.chunks(SHARDS as usize) {
            let locked = self.lock(spans);
            for span in spans {
                let chunk = locked.shard(span).get(&span.chunk);
                for (page, start, length) in span.pages() {
                    data.push(match chunk.and_then(|chunk| chunk.pages[page].as_ref()) {
                        Some(page) if length == PAGE => page.to_bytes(),
                        Some(page) => page.to_bytes().slice(start..start + length),
                        None => Bytes::from_static(&ZERO_PAGE[..length]),
                    });
                }
            }
        }
        Ok(data)
    }

    /// Reads bytes that lie in one page. Most commands are of this kind, and need one lock and no lists.
    fn read_in_page(&self, start: u64, length: usize) -> Bytes {
        let (chunk, page) = (start / CHUNK, (start % CHUNK) as usize / PAGE);
        let offset = start as usize % PAGE;
        let shard = self.shard(chunk).lock();
        match shard.get(&chunk).and_then(|chunk| chunk.pages[page].as_ref()) {
            Some(page) if length == PAGE => page.to_bytes(),
            Some(page) => page.to_bytes().slice(offset..offset + length),
            None => Bytes::from_static(&ZERO_PAGE[..length]),
        }
    }

    fn write_now(&self, lba: Lba, data: &Data) -> Result<(), Error> {
        let extent = self.geometry.check_write(lba, data.len())?;
        let mut from = DataCursor::new(data);
        let start = extent.lba.0 * self.block_size() as u64;
        if start as usize % PAGE + data.len() <= PAGE {
            let (chunk, page) = (start / CHUNK, (start % CHUNK) as usize / PAGE);
            let offset = start as usize % PAGE;
            let mut shard = self.shard(chunk).lock();
            let chunk = shard.entry(chunk).or_insert_with(MemChunk::new);
            return chunk.write(&self.pool, page, offset..offset + data.len(), &mut from);
        }
        let spans: Spans = self.spans(extent).collect();
        // A write longer than `ATOMIC` need not be atomic: lock one chunk at a time, so that other calls wait less.
        let together = if data.len() <= ATOMIC { spans.len() } else { 1 };
        for spans in spans.chunks(together) {
            let mut locked = self.lock(spans);
            for span in spans {
                let chunk = locked.shard_mut(span).entry(span.chunk).or_insert_with(MemChunk::new);
                for (page, start, length) in span.pages() {
                    chunk.write(&self.pool, page, start..start + length, &mut from)?;
                }
            }
        }
        Ok(())
    }

    fn discard_now(&self, extent: Extent) -> Result<(), Error> {
        self.geometry.check_discard(extent)?;
        for span in self.spans(extent) {
            let mut shard = self.shard(span.chunk).lock();
            let Some(chunk) = shard.get_mut(&span.chunk) else { continue };
            for (page, start, length) in span.pages() {
                chunk.discard(&self.pool, page, start..start + length)?;
            }
            if chunk.present == 0 {
                shard.remove(&span.chunk);
            }
        }
        Ok(())
    }

    fn allocation_now(&self, extent: Extent) -> Result<Allocation, Error> {
        self.geometry.check_extent(extent)?;
        let mut allocation = Allocation::default();
        'chunks: for span in self.spans(extent).take(CHUNKS_LOOKED_AT) {
            let shard = self.shard(span.chunk).lock();
            let Some(chunk) = shard.get(&span.chunk) else {
                if !allocation.push((span.length / self.block_size()) as u32, false) {
                    break;
                }
                continue;
            };
            for (page, _, length) in span.pages() {
                let blocks = (length / self.block_size()) as u32;
                if !allocation.push(blocks, chunk.pages[page].is_some()) {
                    break 'chunks;
                }
            }
        }
        Ok(allocation)
    }

    fn block_size(&self) -> usize {
        self.geometry.block_size as usize
    }

    /// Locks the shards of consecutive chunks. There must be no more chunks than shards, so that no
    /// shard is locked twice.
    fn lock(&self, spans: &[MemChunkSpan]) -> LockedShards<'_> {
        let mut indexes: SmallVec<[usize; 2]> = spans.iter().map(MemChunkSpan::shard).collect();
        indexes.sort_unstable();
        LockedShards(indexes.into_iter().map(|index| (index, self.shards[index].lock())).collect())
    }

    fn shard(&self, chunk: u64) -> &Mutex<Shard> {
        &self.shards[(chunk % SHARDS) as usize]
    }

    fn spans(&self, extent: Extent) -> impl Iterator<Item = MemChunkSpan> {
        let block_size = u64::from(self.geometry.block_size);
        let (mut at, end) = (extent.lba.0 * block_size, extent.end().0 * block_size);
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let (chunk, start) = (at / CHUNK, at % CHUNK);
                let length = (CHUNK - start).min(end - at);
                at += length;
                MemChunkSpan { chunk, start: start as usize, length: length as usize }
            })
        })
    }
}

impl Volume for MemVolume {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::done(self.read_now(extent))
    }

    fn write(&self, lba: Lba, data: Data, _: Durability) -> Io<'_, ()> {
        Io::done(self.write_now(lba, &data))
    }

    fn flush(&self) -> Io<'_, ()> {
        Io::done(Ok(()))
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        Io::done(self.discard_now(extent))
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions { provisioning: Some(self), ..Extensions::default() }
    }
}

impl Provisioning for MemVolume {
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        Io::done(self.allocation_now(extent))
    }

    fn usage(&self) -> Option<ThinSpaceUsage> {
        None
    }
}

struct LockedShards<'a>(SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>);

impl LockedShards<'_> {
    fn shard(&self, span: &MemChunkSpan) -> &Shard {
        let found = self.0.iter().find(|(index, _)| *index == span.shard());
        &found.expect("locked for this span").1
    }

    fn shard_mut(&mut self, span: &MemChunkSpan) -> &mut Shard {
        let found = self.0.iter_mut().find(|(index, _)| *index == span.shard());
        &mut found.expect("locked for this span").1
    }
}

impl MemChunk {
    fn new() -> Self {
        Self { pages: Box::new([const { None }; PAGES_PER_CHUNK]), present: 0 }
    }

    fn write(
        &mut self,
        pool: &MemPagePool,
        page: usize,
        range: Range<usize>,
        from: &mut DataCursor<'_>,
    ) -> Result<(), Error> {
        let slot = &mut self.pages[page];
        if let Some(bytes) = slot.as_mut().and_then(MemPage::get_mut) {
            from.copy_to(&mut bytes[range]);
            return Ok(());
        }
        let mut new = pool.take().map_err(|_| Error::NoSpace)?;
        let bytes = new.get_mut().expect("a page just taken has no other user");
        match slot {
            // The write replaces the whole page, so its old content is not copied.
            _ if range.len() == PAGE => {}
            Some(old) => bytes.copy_from_slice(old.as_ref()),
            None => bytes.fill(0),
        }
        from.copy_to(&mut bytes[range]);
        self.present += usize::from(slot.is_none());
        *slot = Some(new);
        Ok(())
    }

    fn discard(
        &mut self,
        pool: &MemPagePool,
        page: usize,
        range: Range<usize>,
    ) -> Result<(), Error> {
        let slot = &mut self.pages[page];
        if slot.is_none() {
            return Ok(());
        }
        if range.len() == PAGE {
            *slot = None;
            self.present -= 1;
            return Ok(());
        }
        let zeros = Data::zeros(range.len());
        self.write(pool, page, range, &mut DataCursor::new(&zeros))
    }
}

/// The part of an extent that lies in one chunk of memory, in bytes.
struct MemChunkSpan {
    chunk: u64,
    start: usize,
    length: usize,
}

/// An extent no longer than a chunk has at most two spans.
type Spans = SmallVec<[MemChunkSpan; 2]>;

impl MemChunkSpan {
    fn shard(&self) -> usize {
        (self.chunk % SHARDS) as usize
    }

    /// Returns for each page its number in the chunk, the first byte in the page, and the number of
    /// bytes.
    fn pages(&self) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let (mut at, end) = (self.start, self.start + self.length);
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let (page, start) = (at / PAGE, at % PAGE);
                let length = (PAGE - start).min(end - at);
                at += length;
                (page, start, length)
            })
        })
    }
}

/// 256 pages are 1 MiB. Their table takes 2 KiB, and a burst rarely touches more than two chunks.
const PAGES_PER_CHUNK: usize = 256;
/// Maximum bytes of an atomic write: it touches at most two chunks, so that few locks suffice.
const ATOMIC: usize = PAGE * PAGES_PER_CHUNK;
const CHUNK: u64 = (PAGE * PAGES_PER_CHUNK) as u64;
/// Number of chunks that one query for mapped blocks examines: 16 GiB, which takes some hundred
/// microseconds.
const CHUNKS_LOOKED_AT: usize = 1 << 14;
/// Number of shards: many more than processors, so that two calls seldom need the same lock.
const SHARDS: u64 = 64;
static ZERO_PAGE: [u8; PAGE] = [0; PAGE];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::now;

    fn write(volume: &MemVolume, lba: u64, byte: u8, bytes: usize) {
        let data = Data::from(vec![byte; bytes]);
        now(volume.write(Lba(lba), data, Durability::Volatile)).expect("written");
    }

    fn read(volume: &MemVolume, lba: u64, blocks: u32) -> Vec<u8> {
        now(volume.read(Extent { lba: Lba(lba), blocks })).expect("read").into_bytes().to_vec()
    }

    #[test]
    fn unwritten_blocks_read_as_zeros_and_take_no_memory() {
        let volume = MemVolume::new(Geometry::with_blocks(1 << 40));
        assert_eq!(read(&volume, (1 << 40) - 9, 9), [0; 9 * 512]);
        assert_eq!(volume.allocated_bytes(), 0);
    }

    #[test]
    fn blocks_smaller_than_a_page_merge() {
        let volume = MemVolume::new(Geometry::with_blocks(64));
        write(&volume, 3, 3, 512);
        write(&volume, 7, 7, 1024);
        let bytes = read(&volume, 2, 8);
        for (block, expected) in [0, 3, 0, 0, 0, 7, 7, 0].into_iter().enumerate() {
            assert_eq!(bytes[block * 512..][..512], [expected; 512], "block {block}");
        }
        assert_eq!(volume.allocated_bytes(), 2 * 4096);
    }

    #[test]
    fn a_write_across_chunks_and_shards_reads_back() {
        let volume = MemVolume::new(Geometry::with_blocks(8192));
        let bytes: Vec<u8> = (0..3 << 20).map(|i: u32| (i / 512 % 251) as u8).collect();
        now(volume.write(Lba(5), bytes.clone().into(), Durability::Stable)).expect("written");
        assert_eq!(read(&volume, 5, (3 << 20) / 512), bytes);
    }

    #[test]
    fn no_reader_sees_a_part_of_an_atomic_write() {
        let volume = MemVolume::new(Geometry::with_blocks(1 << 18));
        let blocks = volume.geometry().atomic_blocks;
        assert_eq!(blocks, 2048);
        // The extent goes from the last shard to the first one, so the order of locks differs from the
        // order of chunks.
        let lba = 63 * 2048 + 1024;
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for byte in 0..100 {
                    write(&volume, lba, byte, 1 << 20);
                }
            });
            while !writer.is_finished() {
                let bytes = read(&volume, lba, blocks);
                assert!(bytes.iter().all(|byte| *byte == bytes[0]));
            }
        });
    }

    #[test]
    fn holes_are_reported_as_unmapped() {
        let volume = MemVolume::new(Geometry::with_blocks(1 << 20));
        write(&volume, 2048 + 9, 1, 4096);
        let asked = Extent { lba: Lba(5), blocks: 10_000 };
        let told = now(volume.extensions().allocation(asked)).expect("told");
        let run = |blocks, mapped| crate::AllocationRun { blocks, mapped };
        assert_eq!(told.runs(), [run(2051, false), run(16, true), run(7933, false)]);
        let far = Extent { lba: Lba(0), blocks: 1 << 20 };
        assert_eq!(now(volume.extensions().allocation(far)).expect("told").blocks(), 1 << 20);
    }

    #[test]
    fn a_reader_keeps_its_data_when_the_page_is_written_again() {
        let volume = MemVolume::new(Geometry::with_blocks(64));
        write(&volume, 0, 1, 4096);
        let before = now(volume.read(Extent { lba: Lba(0), blocks: 8 })).expect("read");
        write(&volume, 0, 2, 512);
        write(&volume, 0, 3, 4096);
        now(volume.discard(Extent { lba: Lba(1), blocks: 1 })).expect("discarded");
        assert_eq!(before, Data::from(vec![1; 4096]));
    }

    #[test]
    fn a_write_to_a_part_of_a_page_in_use_by_a_reader_keeps_the_rest_of_the_page() {
        let volume = MemVolume::new(Geometry::with_blocks(64));
        write(&volume, 0, 1, 4096);
        let before = now(volume.read(Extent { lba: Lba(0), blocks: 8 })).expect("read");
        write(&volume, 3, 2, 512);
        let after = read(&volume, 0, 8);
        assert_eq!(after[..3 * 512], [1; 3 * 512]);
        assert_eq!(after[3 * 512..4 * 512], [2; 512]);
        assert_eq!(after[4 * 512..], [1; 4 * 512]);
        drop(before);
    }

    #[test]
    fn a_page_without_readers_is_written_in_place() {
        let volume = MemVolume::new(Geometry::with_blocks(64));
        write(&volume, 0, 1, 4096);
        let place = |volume: &MemVolume| {
            now(volume.read(Extent { lba: Lba(0), blocks: 8 })).expect("read").parts()[0].as_ptr()
        };
        let before = place(&volume);
        write(&volume, 2, 2, 512);
        assert_eq!(place(&volume), before);
    }

    #[test]
    fn a_discard_zeroes_and_frees_memory() {
        let volume = MemVolume::new(Geometry::with_blocks(64));
        write(&volume, 0, 1, 3 * 4096);
        now(volume.discard(Extent { lba: Lba(7), blocks: 10 })).expect("discarded");
        assert_eq!(volume.allocated_bytes(), 2 * 4096);
        let bytes = read(&volume, 0, 24);
        assert_eq!(bytes[..7 * 512], [1; 7 * 512]);
        assert_eq!(bytes[7 * 512..17 * 512], [0; 10 * 512]);
        assert_eq!(bytes[17 * 512..], [1; 7 * 512]);
        now(volume.discard(Extent { lba: Lba(0), blocks: 64 })).expect("discarded");
        assert_eq!(volume.allocated_bytes(), 0);
    }

    #[test]
    fn the_last_blocks_may_end_inside_a_page() {
        let volume = MemVolume::new(Geometry::with_blocks(9));
        write(&volume, 8, 5, 512);
        assert_eq!(read(&volume, 8, 1), [5; 512]);
        let beyond = Extent { lba: Lba(8), blocks: 2 };
        assert!(matches!(now(volume.read(beyond)), Err(Error::OutOfRange(e)) if e == beyond));
    }
}
