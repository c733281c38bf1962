//! The file of redb, which keeps the tables: a region of the drive's volume.
//!
//! Every call blocks its thread, so only the loader, the committer and the thread of a fold may use the file.

use std::{io, ops::Range, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;
use redb::StorageBackend;
use volume::{Data, Durability};

use super::{
    block_on::block_on,
    disk::{BLOCK, DriveDisk, crc32c},
    mutant::{DriveMutant, DriveMutation},
    superblock::LENGTH_COPIES,
};

pub(crate) struct MetadataFile {
    disk: Arc<DriveDisk>,
    region: Range<u64>,
    length: Mutex<FileLength>,
    mutation: Arc<DriveMutation>,
    /// Number of syncs since the file was opened, by which mutants leave out every first or every second one.
    syncs: Mutex<u64>,
}

/// The length of the file, with the sequence number of its newest copy.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct FileLength {
    bytes: u64,
    sequence: u64,
}

impl std::fmt::Debug for MetadataFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MetadataFile({:?})", self.region)
    }
}

impl MetadataFile {
    /// Opens the file; it is empty if no length was ever written.
    pub(crate) fn open(
        disk: &Arc<DriveDisk>,
        region: Range<u64>,
        mutation: &Arc<DriveMutation>,
    ) -> Result<Self, volume::Error> {
        let mut length = FileLength::default();
        for at in LENGTH_COPIES {
            let bytes = block_on(disk.read(at, BLOCK))?.into_bytes();
            if let Some(found) = FileLength::decode(&bytes, &region)
                && found.sequence > length.sequence
            {
                length = found;
            }
        }
        Ok(Self {
            disk: Arc::clone(disk),
            region,
            length: Mutex::new(length),
            mutation: Arc::clone(mutation),
            syncs: Mutex::new(0),
        })
    }

    /// Makes the file empty, because the drive is formatted.
    pub(crate) fn clear(&self) -> io::Result<()> {
        self.set_len(0)
    }

    fn check(&self, offset: u64, length: usize) -> io::Result<()> {
        let end = offset.checked_add(length as u64);
        if end.is_some_and(|end| end > self.region.end - self.region.start) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the tables are full"));
        }
        if end.is_some_and(|end| end <= self.length.lock().bytes) {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, "access behind the end of the tables"))
    }

    /// Returns the whole blocks that contain a range of the file, as offset on the volume and length, and the position
    /// of the range's first byte in them.
    fn around(&self, offset: u64, length: usize) -> (u64, u64, usize) {
        let start = offset / BLOCK * BLOCK;
        let end = (offset + length as u64).next_multiple_of(BLOCK);
        (self.region.start + start, end - start, (offset - start) as usize)
    }
}

impl StorageBackend for MetadataFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.length.lock().bytes)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.check(offset, out.len())?;
        if out.is_empty() {
            return Ok(());
        }
        let (at, length, skip) = self.around(offset, out.len());
        let data = block_on(self.disk.read(at, length)).map_err(io::Error::other)?;
        data.slice(skip, out.len()).copy_to_slice(out);
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        // redb doubles the length of its file and uses the first pages first. The file may therefore be longer than its
        // region; only writes behind the region fail.
        if bytes > (self.region.end - self.region.start) * MOST_LONGER {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the tables are full"));
        }
        let mut length = self.length.lock();
        if bytes > length.bytes {
            let size = self.region.end - self.region.start;
            let first = (length.bytes / BLOCK * BLOCK).min(size);
            let end = bytes.next_multiple_of(BLOCK).min(size);
            block_on(self.disk.discard(self.region.start + first, end - first))
                .map_err(io::Error::other)?;
        }
        let next = FileLength { bytes, sequence: length.sequence + 1 };
        let at = LENGTH_COPIES[(next.sequence % 2) as usize];
        let write = self.disk.write(at, next.encode(), Durability::Stable);
        block_on(write).map_err(io::Error::other)?;
        *length = next;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut syncs = self.syncs.lock();
        *syncs += 1;
        let left_out = match *syncs % 2 {
            1 => DriveMutant::FirstSync,
            _ => DriveMutant::SecondSync,
        };
        if self.mutation.is(left_out) {
            return Ok(());
        }
        block_on(self.disk.flush()).map_err(io::Error::other)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check(offset, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        let (at, length, skip) = self.around(offset, data.len());
        let bytes = if length as usize == data.len() {
            Bytes::copy_from_slice(data)
        } else {
            let old = block_on(self.disk.read(at, length)).map_err(io::Error::other)?;
            let mut bytes = vec![0; length as usize];
            old.copy_to_slice(&mut bytes);
            bytes[skip..skip + data.len()].copy_from_slice(data);
            Bytes::from(bytes)
        };
        block_on(self.disk.write(at, bytes.into(), Durability::Volatile)).map_err(io::Error::other)
    }
}

/// Returns the block of a copy of the file's length.
#[cfg(test)]
pub(super) fn encode_length(bytes: u64, sequence: u64) -> Bytes {
    FileLength { bytes, sequence }.encode().into_bytes()
}

impl FileLength {
    /// The block of one copy: magic number, sequence number, length, CRC32C of these 24 bytes.
    pub(crate) fn encode(self) -> Data {
        let mut block = vec![0; BLOCK as usize];
        block[..8].copy_from_slice(LENGTH_MAGIC);
        block[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        block[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        let crc = crc32c(&block[..24]);
        block[24..28].copy_from_slice(&crc.to_le_bytes());
        block.into()
    }

    pub(crate) fn decode(block: &[u8], region: &Range<u64>) -> Option<Self> {
        let number = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes"));
        let crc = u32::from_le_bytes(block[24..28].try_into().expect("4 bytes"));
        let found = Self { sequence: number(8), bytes: number(16) };
        let is_right = &block[..8] == LENGTH_MAGIC
            && crc32c(&block[..24]) == crc
            && found.bytes <= (region.end - region.start) * MOST_LONGER;
        is_right.then_some(found)
    }
}

/// Maximum length of the file, as a multiple of the length of its region.
const MOST_LONGER: u64 = 4;
const LENGTH_MAGIC: &[u8; 8] = b"FBYOBJTL";
