//! The bytes of one file: as reads return them now, and as a power cut may leave them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::powercut::fate::{Chance, PowerCutFate};

/// Bytes that a disk writes as a whole or not at all.
pub const SECTOR: usize = 512;

/// Granularity of holes in a file, in bytes.
pub const PAGE: usize = 4096;

/// The bytes of a file: the current ones, the ones that survive every power cut (stable), and all versions in between.
#[derive(Clone, Debug, Default)]
pub struct FaultFsContent {
    /// The current bytes, which a read returns.
    now: Vec<u8>,
    /// The bytes that a power cut cannot undo.
    stable: Vec<u8>,
    /// Versions of each sector that are newer than `stable`, oldest first; never empty.
    unsynced: BTreeMap<u64, Vec<UnsyncedSector>>,
    /// Sizes of the file that are newer than the length of `stable`, oldest first.
    sizes: Vec<UnsyncedFileSize>,
    /// Numbers of the pages that contain data; all other pages are holes.
    pages: BTreeSet<u64>,
}

#[derive(Clone, Debug)]
struct UnsyncedSector {
    operation: u64,
    bytes: Box<[u8; SECTOR]>,
}

#[derive(Clone, Copy, Debug)]
struct UnsyncedFileSize {
    operation: u64,
    bytes: usize,
    /// True if a write made the file longer (not ftruncate). A power cut may leave a part of that
    /// write.
    is_append: bool,
}

impl FaultFsContent {
    /// Returns a file with the bytes that a power cut has left: all of them are stable.
    fn left(bytes: Vec<u8>, pages: BTreeSet<u64>) -> FaultFsContent {
        FaultFsContent { now: bytes.clone(), stable: bytes, pages, ..FaultFsContent::default() }
    }

    pub fn len(&self) -> usize {
        self.now.len()
    }

    /// Returns the stable size, which a power cut does not undo.
    pub fn stable_len(&self) -> usize {
        self.stable.len()
    }

    /// Returns the number of bytes in pages that are not holes.
    pub fn allocated(&self) -> u64 {
        (self.pages.len() * PAGE) as u64
    }

    /// Returns at most `size` bytes of the file, from `offset` on.
    pub fn read(&self, offset: usize, size: usize) -> &[u8] {
        let start = offset.min(self.now.len());
        &self.now[start..offset.saturating_add(size).clamp(start, self.now.len())]
    }

    /// Returns the offset of the first byte at or after `offset` that is in data (if `data` is true) or in a hole (if
    /// it is false). The end of the file counts as a hole.
    pub fn seek(&self, offset: usize, data: bool) -> Option<usize> {
        let ends = (offset / PAGE * PAGE..self.now.len()).step_by(PAGE);
        let found = ends.into_iter().find(|at| self.pages.contains(&((at / PAGE) as u64)) == data);
        match found {
            Some(at) => Some(at.max(offset)),
            None if data || offset >= self.now.len() => None,
            None => Some(self.now.len()),
        }
    }

    pub fn write(&mut self, operation: u64, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if end > self.now.len() {
            self.now.resize(end, 0);
            self.sizes.push(UnsyncedFileSize { operation, bytes: end, is_append: true });
        }
        self.now[offset..end].copy_from_slice(bytes);
        self.pages.extend(pages(offset..end));
        self.remember(operation, offset..end);
    }

    /// Truncates the file to `size` bytes, or extends it with a hole.
    pub fn resize(&mut self, operation: u64, size: usize) {
        let before = self.now.len();
        if size == before {
            return;
        }
        if size < before {
            // If the file grows again later, reads must return zeros here and not the old bytes.
            self.now[size..].fill(0);
            self.remember(operation, size..before);
            self.pages.retain(|page| (*page as usize) * PAGE < size);
        }
        self.now.resize(size, 0);
        self.sizes.push(UnsyncedFileSize { operation, bytes: size, is_append: false });
    }

    /// Writes zeros to a range of the file. Pages completely within the range become holes.
    pub fn zero(&mut self, operation: u64, range: Range<usize>) {
        let range = range.start.min(self.now.len())..range.end.min(self.now.len());
        self.now[range.clone()].fill(0);
        for page in pages(range.clone()) {
            let start = page as usize * PAGE;
            if start >= range.start && (start + PAGE).min(self.now.len()) <= range.end {
                self.pages.remove(&page);
            }
        }
        self.remember(operation, range);
    }

    /// Makes all bytes and the size stable (fsync, fdatasync).
    pub fn sync(&mut self) {
        self.sizes.clear();
        self.stable.resize(self.now.len(), 0);
        for (sector, versions) in std::mem::take(&mut self.unsynced) {
            let last = versions.last().expect("never empty");
            put(&mut self.stable, sector, &last.bytes);
        }
    }

    /// Ends a write with O_DSYNC: makes its bytes stable, and drops the older versions that it replaced.
    pub fn sync_write(&mut self, operation: u64, range: Range<usize>) {
        let known = self.sizes.partition_point(|size| size.operation <= operation);
        if let Some(size) = self.sizes.drain(..known).next_back() {
            self.stable.resize(size.bytes, 0);
        }
        for sector in sectors(range) {
            let Some(versions) = self.unsynced.get_mut(&sector) else { continue };
            let known = versions.partition_point(|version| version.operation <= operation);
            if let Some(last) = versions.drain(..known).next_back() {
                put(&mut self.stable, sector, &last.bytes);
            }
            if versions.is_empty() {
                self.unsynced.remove(&sector);
            }
        }
    }

    /// Draws at random one of the states in which a power cut may leave the file.
    pub fn draw(&self, fate: PowerCutFate, chance: &mut Chance) -> FaultFsContent {
        let mut left = self.stable.clone();
        let mut size = left.len();
        for next in &self.sizes {
            if fate.spares(next.operation, chance) {
                size = next.bytes;
            } else if next.is_append && next.bytes > size && matches!(fate, PowerCutFate::Torn(_)) {
                let sectors = (next.bytes - size).div_ceil(SECTOR) as u64;
                size = (size + chance.below(sectors) as usize * SECTOR).min(next.bytes);
            }
        }
        left.resize(size, 0);
        for (sector, versions) in &self.unsynced {
            // The versions of one sector reach the disk in their order. Therefore the sector holds, after the cut, the
            // newest version that survives.
            let spared = |version: &&UnsyncedSector| fate.spares(version.operation, chance);
            if let Some(version) = versions.iter().rev().find(spared) {
                put(&mut left, *sector, &version.bytes);
            }
        }
        let holes = |page: &u64| (*page as usize) * PAGE < size;
        let pages = self.pages.iter().copied().filter(holes).collect();
        FaultFsContent::left(left, pages)
    }

    fn remember(&mut self, operation: u64, range: Range<usize>) {
        for sector in sectors(range) {
            let start = sector as usize * SECTOR;
            let end = (start + SECTOR).min(self.now.len());
            let mut bytes = Box::new([0; SECTOR]);
            bytes[..end - start].copy_from_slice(&self.now[start..end]);
            self.unsynced.entry(sector).or_default().push(UnsyncedSector { operation, bytes });
        }
    }
}

/// Writes the bytes of a sector into the file image, without extending the image.
fn put(to: &mut [u8], sector: u64, bytes: &[u8; SECTOR]) {
    let start = sector as usize * SECTOR;
    let end = (start + SECTOR).min(to.len());
    if start < end {
        to[start..end].copy_from_slice(&bytes[..end - start]);
    }
}

fn sectors(range: Range<usize>) -> Range<u64> {
    pieces(range, SECTOR)
}

fn pages(range: Range<usize>) -> Range<u64> {
    pieces(range, PAGE)
}

fn pieces(range: Range<usize>, size: usize) -> Range<u64> {
    if range.is_empty() {
        return 0..0;
    }
    (range.start / size) as u64..range.end.div_ceil(size) as u64
}
