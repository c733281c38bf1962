//! The superblock of a drive: it identifies the drive's format, and divides the volume into parts.
//!
//! | bytes | content |
//! |-------|---------|
//! | 0 | superblock, first copy |
//! | 4096 | superblock, second copy |
//! | 8192, 12288 | length of the tables, two copies |
//! | 65536 | log |
//! | behind the log | tables |
//! | `data_start` | blocks of data |
//!
//! A superblock has 80 bytes, the rest of its block is zero. Numbers are little-endian:
//!
//! | bytes | content |
//! |-------|---------|
//! | 0..8 | magic number `FBYOBJDR` |
//! | 8..12 | format version |
//! | 12..14 | boot epoch |
//! | 14 | state: 1 being formatted, 2 in use, 3 closed |
//! | 15 | 1: the boot epoch has begun again from 1 |
//! | 16..24 | sequence number: the copy with the higher number counts |
//! | 24..40 | drive identity: the last 16 bytes of the OSD SYSTEM ID |
//! | 40..48 | bytes of the volume that the drive uses |
//! | 48..56 | bytes of the tables |
//! | 56..64 | first byte of data |
//! | 64..72 | number of data blocks |
//! | 72..76 | bytes of the log |
//! | 76..80 | CRC32C of bytes 0..76 |

use std::ops::Range;

use bytes::Bytes;
use volume::{Data, Durability};

use super::{
    disk::{BLOCK, DriveDisk, crc32c},
    mutant::{DriveMutant, DriveMutation},
    options::OpenError,
};

pub(crate) const VERSION: u32 = 2;
/// First byte of the log.
pub(crate) const LOG_START: u64 = 64 << 10;
/// Offsets of the two copies of the length of the tables.
pub(crate) const LENGTH_COPIES: [u64; 2] = [2 * BLOCK, 3 * BLOCK];

const MAGIC: &[u8; 8] = b"FBYOBJDR";
const COPIES: [u64; 2] = [0, BLOCK];
pub(crate) const SIZE: usize = 80;
/// Smallest volume: the tables need 4 MiB, and some room for data must be left.
const LEAST_VOLUME: u64 = 8 << 20;
const LEAST_TABLES: u64 = 4 << 20;
/// Length in bytes of the largest region of redb's file. Each region also has room for its headers.
const REGION: u64 = 4 << 30;
const REGION_HEADERS: u64 = 1 << 20;
/// One byte of log for this many bytes of the volume, in bounds. The log holds changed rows between two folds. 1 MiB is
/// room for some hundred small commands, so that folds cost them little. Rows of more than 16 MiB would take more memory
/// than the drive keeps for changed rows, and more time at the start.
const LOG_SHARE: u64 = 256;
const LEAST_LOG: u64 = 1 << 20;
const MOST_LOG: u64 = 16 << 20;
/// One byte of tables for this many bytes of the volume: enough for objects of 16 KiB with four attributes.
const TABLES_SHARE: u64 = 16;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum DriveState {
    Formatting = 1,
    InUse = 2,
    Closed = 3,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Superblock {
    pub(crate) state: DriveState,
    pub(crate) boot_epoch: u16,
    /// Boot epochs were given twice, so they prove nothing about the age of a capability.
    pub(crate) has_wrapped: bool,
    pub(crate) sequence: u64,
    pub(crate) identity: [u8; 16],
    pub(crate) volume_bytes: u64,
    pub(crate) tables_bytes: u64,
    pub(crate) data_start: u64,
    pub(crate) data_blocks: u64,
    pub(crate) log_bytes: u32,
}

/// The result of reading the superblocks of a volume.
pub(crate) enum Found {
    Zeros,
    Drive {
        superblock: Superblock,
        /// The other copy cannot be read. It may have been the newer one.
        is_damaged: bool,
    },
}

impl Superblock {
    /// Returns the superblock for a volume that is to be formatted: it divides the volume into parts.
    pub(crate) fn plan(volume_bytes: u64, identity: [u8; 16]) -> Result<Self, OpenError> {
        if volume_bytes < LEAST_VOLUME {
            return Err(OpenError::TooSmall { bytes: volume_bytes, least: LEAST_VOLUME });
        }
        let tables_bytes = tables_bytes(volume_bytes);
        let log_bytes = (volume_bytes / LOG_SHARE).clamp(LEAST_LOG, MOST_LOG) / BLOCK * BLOCK;
        let data_start = LOG_START + log_bytes + tables_bytes;
        Ok(Self {
            state: DriveState::Formatting,
            boot_epoch: 0,
            has_wrapped: false,
            sequence: 0,
            identity,
            volume_bytes,
            tables_bytes,
            data_start,
            data_blocks: (volume_bytes - data_start) / BLOCK,
            log_bytes: log_bytes as u32,
        })
    }

    /// Returns the bytes of the volume that the log has.
    pub(crate) fn log(&self) -> Range<u64> {
        LOG_START..LOG_START + u64::from(self.log_bytes)
    }

    /// Returns the bytes of the volume that the tables have.
    pub(crate) fn tables(&self) -> Range<u64> {
        self.log().end..self.log().end + self.tables_bytes
    }

    pub(crate) fn encode(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[0..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.boot_epoch.to_le_bytes());
        bytes[14] = self.state as u8;
        bytes[15] = self.has_wrapped.into();
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.identity);
        bytes[40..48].copy_from_slice(&self.volume_bytes.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.tables_bytes.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.data_start.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.data_blocks.to_le_bytes());
        bytes[72..76].copy_from_slice(&self.log_bytes.to_le_bytes());
        let crc = crc32c(&bytes[..76]);
        bytes[76..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a copy. `None`: damaged, or not of a drive.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Result<Self, OpenError>> {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        if &bytes[..8] != MAGIC || crc32c(&bytes[..76]) != short(76) {
            return None;
        }
        let version = short(8);
        if version > VERSION {
            return Some(Err(OpenError::NewerVersion { version, known: VERSION }));
        }
        if version < VERSION {
            return Some(Err(OpenError::OlderVersion { version, known: VERSION }));
        }
        let state = match bytes[14] {
            1 => DriveState::Formatting,
            2 => DriveState::InUse,
            3 => DriveState::Closed,
            _ => return None,
        };
        let found = Self {
            state,
            boot_epoch: u16::from_le_bytes([bytes[12], bytes[13]]),
            has_wrapped: bytes[15] != 0,
            sequence: number(16),
            identity: bytes[24..40].try_into().expect("16 bytes"),
            volume_bytes: number(40),
            tables_bytes: number(48),
            data_start: number(56),
            data_blocks: number(64),
            log_bytes: short(72),
        };
        found.is_consistent().then_some(Ok(found))
    }

    fn is_consistent(&self) -> bool {
        let data_bytes = self.data_blocks.checked_mul(BLOCK);
        self.log().end.checked_add(self.tables_bytes) == Some(self.data_start)
            && u64::from(self.log_bytes) <= MOST_LOG
            && u64::from(self.log_bytes).is_multiple_of(BLOCK)
            && self.data_start.is_multiple_of(BLOCK)
            && data_bytes
                .and_then(|bytes| bytes.checked_add(self.data_start))
                .is_some_and(|end| end <= self.volume_bytes)
    }

    /// Advances the boot epoch by `count` starts. Zero is left out: it stands for any boot epoch in capabilities.
    pub(crate) fn advance(&mut self, count: u16) {
        for _ in 0..count {
            self.has_wrapped |= self.boot_epoch == u16::MAX;
            self.boot_epoch = self.boot_epoch.checked_add(1).unwrap_or(1);
        }
    }

    /// Gives the end of a volume that has grown to the data. The tables keep their size. Returns true if there are more
    /// blocks.
    pub(crate) fn grow(&mut self, volume_bytes: u64) -> bool {
        let data_blocks = volume_bytes.saturating_sub(self.data_start) / BLOCK;
        let has_grown = data_blocks > self.data_blocks;
        if has_grown {
            (self.volume_bytes, self.data_blocks) = (volume_bytes, data_blocks);
        }
        has_grown
    }

    /// Fails unless this is a superblock of the drive with this OSD SYSTEM ID.
    pub(crate) fn check_identity(&self, system_id: &[u8; 20]) -> Result<(), OpenError> {
        match self.identity == identity_of(system_id) {
            true => Ok(()),
            false => Err(OpenError::OtherDrive { identity: self.identity }),
        }
    }

    /// Fails unless `other` can be an earlier superblock of this drive.
    fn check_earlier(&self, other: &Self) -> Result<(), OpenError> {
        let fixed = |of: &Self| (of.identity, of.tables_bytes, of.data_start);
        let is_earlier = other.sequence < self.sequence && other.data_blocks <= self.data_blocks;
        match is_earlier && fixed(self) == fixed(other) {
            true => Ok(()),
            false => Err(OpenError::Contradiction),
        }
    }

    /// Returns the newest intact superblock of the volume.
    pub(crate) async fn read(disk: &DriveDisk) -> Result<Found, OpenError> {
        let bytes = disk.bytes();
        if bytes < LEAST_VOLUME {
            return Err(OpenError::TooSmall { bytes, least: LEAST_VOLUME });
        }
        let head = disk.read(0, LOG_START).await?.into_bytes();
        let mut copies: Vec<Self> = Vec::new();
        let mut has_magic = false;
        let mut is_written = false;
        for at in COPIES.map(|at| at as usize) {
            has_magic |= head[at..at + 8] == *MAGIC;
            match Self::decode(&head[at..at + SIZE]) {
                Some(found) => copies.push(found?),
                None => is_written |= head[at..at + SIZE].iter().any(|byte| *byte != 0),
            }
        }
        copies.sort_by_key(|copy| copy.sequence);
        // Only the first superblock of a new drive is alone, with zeros in the place of the other one.
        let is_first = copies.iter().all(|copy| copy.sequence == 1) && !is_written;
        let is_damaged = copies.len() == 1 && !is_first;
        let newest = copies.pop();
        if let (Some(newest), Some(older)) = (&newest, copies.pop()) {
            newest.check_earlier(&older)?;
        }
        match newest {
            Some(found) if found.volume_bytes > bytes => {
                Err(OpenError::Truncated { bytes, formatted: found.volume_bytes })
            }
            Some(found) => Ok(Found::Drive { superblock: found, is_damaged }),
            None if has_magic => Err(OpenError::Superblocks),
            None if is_blank(disk, &head).await? => Ok(Found::Zeros),
            None => Err(OpenError::Foreign),
        }
    }

    /// Writes the superblock with the next sequence number over its older copy. The new copy is stable on return.
    pub(crate) async fn write(
        &mut self,
        disk: &DriveDisk,
        mutation: &DriveMutation,
    ) -> Result<(), volume::Error> {
        self.sequence += 1;
        let mut block = vec![0; BLOCK as usize];
        block[..SIZE].copy_from_slice(&self.encode());
        let at = COPIES[(self.sequence % 2) as usize];
        let durability = match mutation.is(DriveMutant::SuperblockNotStable) {
            true => Durability::Volatile,
            false => Durability::Stable,
        };
        disk.write(at, Data::from(Bytes::from(block)), durability).await
    }
}

/// Returns the identity of the drive with this OSD SYSTEM ID. Its first four bytes are the same for all drives whose id is
/// derived from a serial number.
pub(crate) fn identity_of(system_id: &[u8; 20]) -> [u8; 16] {
    std::array::from_fn(|at| system_id[at + 4])
}

/// Returns the bytes of the tables' part. redb doubles its file up to regions of 4 GiB, and then adds regions. A part
/// of another size would have a rest that the file cannot grow into.
fn tables_bytes(volume_bytes: u64) -> u64 {
    let wanted = (volume_bytes / TABLES_SHARE).max(LEAST_TABLES);
    let regions = wanted / REGION;
    match regions {
        0 => (1 << wanted.ilog2()) + REGION_HEADERS,
        _ => regions * (REGION + REGION_HEADERS),
    }
}

/// Returns true if the begin, the log's begin and the end of the volume are zero.
async fn is_blank(disk: &DriveDisk, head: &Bytes) -> Result<bool, volume::Error> {
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let body = disk.read(LOG_START, 1 << 20).await?.into_bytes();
    let last = (disk.bytes() / BLOCK - 16) * BLOCK;
    let tail = disk.read(last, 16 * BLOCK).await?.into_bytes();
    Ok(is_zero(head) && is_zero(&body) && is_zero(&tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_decodes_as_it_was_encoded_and_a_flipped_bit_is_noticed() {
        let mut planned = Superblock::plan(64 << 20, [7; 16]).unwrap();
        (planned.boot_epoch, planned.has_wrapped, planned.sequence) = (0x1234, true, 99);
        let bytes = planned.encode();
        assert_eq!(Superblock::decode(&bytes).unwrap().unwrap(), planned);
        for bit in 0..SIZE * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&flipped).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn a_newer_version_is_refused_by_name() {
        let mut bytes = Superblock::plan(64 << 20, [7; 16]).unwrap().encode();
        bytes[8] = 9;
        let crc = crc32c(&bytes[..76]);
        bytes[76..].copy_from_slice(&crc.to_le_bytes());
        let found = Superblock::decode(&bytes);
        assert!(matches!(found, Some(Err(OpenError::NewerVersion { version: 9, known: 2 }))));
    }

    #[test]
    fn an_older_version_is_refused_by_name() {
        let mut bytes = Superblock::plan(64 << 20, [7; 16]).unwrap().encode();
        bytes[8] = 1;
        let crc = crc32c(&bytes[..76]);
        bytes[76..].copy_from_slice(&crc.to_le_bytes());
        let found = Superblock::decode(&bytes);
        assert!(matches!(found, Some(Err(OpenError::OlderVersion { version: 1, known: 2 }))));
    }

    #[test]
    fn the_parts_of_a_volume_follow_each_other() {
        for (bytes, log) in [(8 << 20, 1 << 20), (1 << 30, 4 << 20), (1 << 40, 16 << 20)] {
            let planned = Superblock::plan(bytes, [7; 16]).unwrap();
            assert_eq!((planned.log().start, u64::from(planned.log_bytes)), (64 << 10, log));
            assert_eq!(planned.log().end, planned.tables().start);
            assert_eq!(planned.tables().end, planned.data_start);
            assert!(planned.is_consistent() && planned.data_blocks > 100);
        }
    }
}
