//! A volume whose writes stay in memory: the volume below does not change.

use std::{collections::BTreeMap, ops::Range};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::{Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, Stack, Volume};

/// A layer that keeps all writes and discards in memory and never changes `lower`. With it, software that repairs its
/// data when it is opened can examine a volume without an effect on the volume.
pub struct OverlayVolume {
    lower: Stack,
    /// Bytes of written blocks above which writes fail.
    most_bytes: usize,
    changes: Mutex<OverlayChanges>,
}

/// The changes of the blocks of `lower`. A written block counts before a discarded range.
#[derive(Default)]
struct OverlayChanges {
    blocks: BTreeMap<u64, Bytes>,
    /// First block of each discarded range, with the block after its last one. The ranges do not overlap.
    discarded: BTreeMap<u64, u64>,
    was_refused: bool,
}

impl OverlayVolume {
    /// Returns a layer that keeps at most `most_bytes` bytes of written blocks. Further writes fail.
    #[must_use]
    pub fn new(lower: Stack, most_bytes: usize) -> Self {
        Self { lower, most_bytes, changes: Mutex::default() }
    }

    fn block_size(&self) -> usize {
        self.lower.geometry().block_size as usize
    }

    /// Returns true if a write or discard was refused, because it would have needed more memory.
    #[must_use]
    pub fn was_refused(&self) -> bool {
        self.changes.lock().was_refused
    }

    /// Notes that a change is refused, and returns its error.
    fn refuse(&self, changes: &mut OverlayChanges) -> Error {
        changes.was_refused = true;
        let reason = format!(
            "the changes exceed the {} MiB of memory that they may take",
            self.most_bytes >> 20
        );
        Error::Device(reason.into())
    }

    fn write_now(&self, lba: Lba, data: &Data) -> Result<(), Error> {
        let extent = self.geometry().check_write(lba, data.len())?;
        let size = self.block_size();
        let mut changes = self.changes.lock();
        let numbers = extent.lba.0..extent.end().0;
        let known = changes.blocks.range(numbers.clone()).count();
        if (changes.blocks.len() - known + extent.blocks as usize) * size > self.most_bytes {
            return Err(self.refuse(&mut changes));
        }
        for (n, number) in numbers.enumerate() {
            // A copy: a slice of the data would keep the whole buffer of the caller.
            let mut block = vec![0; size];
            data.slice(n * size, size).copy_to_slice(&mut block);
            changes.blocks.insert(number, block.into());
        }
        Ok(())
    }

    fn discard_now(&self, extent: Extent) -> Result<(), Error> {
        self.geometry().check_discard(extent)?;
        let mut changes = self.changes.lock();
        changes.discard(extent.lba.0..extent.end().0);
        match changes.discarded.len() > MOST_RANGES {
            true => Err(self.refuse(&mut changes)),
            false => Ok(()),
        }
    }
}

impl OverlayChanges {
    fn discard(&mut self, range: Range<u64>) {
        let written: Vec<u64> =
            self.blocks.range(range.clone()).map(|(number, _)| *number).collect();
        for number in written {
            self.blocks.remove(&number);
        }
        let Range { mut start, mut end } = range;
        let touching = |(first, after): (&u64, &u64)| (*after >= start).then_some((*first, *after));
        let joined: Vec<(u64, u64)> =
            self.discarded.range(..=end).rev().map_while(touching).collect();
        for (first, after) in joined {
            self.discarded.remove(&first);
            (start, end) = (start.min(first), end.max(after));
        }
        self.discarded.insert(start, end);
    }

    /// Returns the changed blocks of `range`; an empty value stands for a block of zeros.
    fn of(&self, range: Range<u64>) -> BTreeMap<u64, Bytes> {
        let before = self.discarded.range(..range.start).next_back();
        let within = self.discarded.range(range.clone());
        let mut found = BTreeMap::new();
        for (first, after) in before.into_iter().chain(within) {
            let zeros = range.start.max(*first)..range.end.min(*after);
            found.extend(zeros.map(|number| (number, Bytes::new())));
        }
        let written = self.blocks.range(range);
        found.extend(written.map(|(number, block)| (*number, block.clone())));
        found
    }
}

impl Volume for OverlayVolume {
    /// The geometry of `lower`, but writable and without atomic writes. A discard frees nothing.
    fn geometry(&self) -> Geometry {
        Geometry {
            read_only: false,
            thin: false,
            atomic_blocks: 0,
            epoch_blocks: 0,
            key_erasable: false,
            ..self.lower.geometry()
        }
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        if let Err(error) = self.geometry().check_extent(extent) {
            return Io::done(Err(error));
        }
        let changed = self.changes.lock().of(extent.lba.0..extent.end().0);
        if changed.is_empty() {
            return self.lower.read(extent);
        }
        let size = self.block_size();
        Io::new(async move {
            let mut bytes = vec![0; extent.blocks as usize * size];
            // A block below that cannot be read does no harm if all blocks were replaced.
            if changed.len() < extent.blocks as usize {
                self.lower.read(extent).await?.copy_to_slice(&mut bytes);
            }
            for (number, block) in changed {
                let at = (number - extent.lba.0) as usize * size;
                match block.is_empty() {
                    true => bytes[at..at + size].fill(0),
                    false => bytes[at..at + size].copy_from_slice(&block),
                }
            }
            Ok(bytes.into())
        })
    }

    fn write(&self, lba: Lba, data: Data, _durability: Durability) -> Io<'_, ()> {
        Io::done(self.write_now(lba, &data))
    }

    fn flush(&self) -> Io<'_, ()> {
        Io::done(Ok(()))
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        Io::done(self.discard_now(extent))
    }

    fn admit(&self, _bytes: usize) -> Result<(), Error> {
        Ok(())
    }

    /// No abilities: those of `lower` would change it, or would not know the changes in memory.
    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}

/// Separate discarded ranges, of about 64 bytes each, above which discards fail.
const MOST_RANGES: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::MemVolume;

    fn now<T>(io: Io<'_, T>) -> Result<T, Error> {
        let mut io = std::pin::pin!(io);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match io.as_mut().poll(&mut context) {
            std::task::Poll::Ready(result) => result,
            std::task::Poll::Pending => panic!("volumes in memory never wait"),
        }
    }

    fn blocks(volume: &dyn Volume, lba: u64, blocks: u32) -> Vec<u8> {
        let data = now(volume.read(Extent { lba: Lba(lba), blocks })).expect("read").into_bytes();
        data.chunks(512).map(|block| block[0]).collect()
    }

    fn fill(volume: &dyn Volume, lba: u64, count: usize, byte: u8) -> Result<(), Error> {
        now(volume.write(Lba(lba), vec![byte; count * 512].into(), Durability::Stable))
    }

    fn discard(volume: &dyn Volume, lba: u64, blocks: u32) {
        now(volume.discard(Extent { lba: Lba(lba), blocks })).expect("discarded");
    }

    #[test]
    fn writes_and_discards_are_read_back_and_the_volume_below_stays_as_it_was() {
        let lower: Stack = Arc::new(MemVolume::new(Geometry::with_blocks(100)));
        fill(&*lower, 0, 100, 9).unwrap();
        let overlay = OverlayVolume::new(Arc::clone(&lower), 1 << 20);
        fill(&overlay, 3, 2, 1).unwrap();
        discard(&overlay, 4, 3);
        discard(&overlay, 20, 5);
        discard(&overlay, 7, 1);
        fill(&overlay, 6, 1, 2).unwrap();
        assert_eq!(blocks(&overlay, 2, 7), [9, 1, 0, 0, 2, 0, 9]);
        assert_eq!(blocks(&overlay, 22, 4), [0, 0, 0, 9]);
        assert_eq!(blocks(&overlay, 20, 5), [0; 5]);
        assert_eq!(blocks(&*lower, 0, 100), [9; 100]);
    }

    #[test]
    fn writes_beyond_the_memory_fail_and_replacing_a_block_takes_no_more() {
        let lower: Stack = Arc::new(MemVolume::new(Geometry::with_blocks(100)));
        let overlay = OverlayVolume::new(lower, 10 * 512);
        fill(&overlay, 0, 10, 1).unwrap();
        fill(&overlay, 5, 5, 2).unwrap();
        let full = fill(&overlay, 9, 2, 3).unwrap_err().to_string();
        assert!(full.contains("memory"), "{full}");
        assert_eq!(blocks(&overlay, 8, 3), [2, 2, 0]);
        assert!(overlay.was_refused());
    }
}
