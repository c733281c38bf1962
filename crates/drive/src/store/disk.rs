//! The volume below an object drive, addressed in bytes.

use std::sync::atomic::{AtomicBool, Ordering};

use crc_fast::{CrcAlgorithm, Digest, checksum};
use volume::{Data, Durability, Error, Extent, Io, Lba, Stack};

/// Length in bytes of a block of data, which is the unit of checksums and of allocation.
pub(crate) const BLOCK: u64 = 4096;

/// The volume below the drive. All offsets and lengths are whole blocks of [`BLOCK`] bytes.
pub(crate) struct DriveDisk {
    volume: Stack,
    block_size: u64,
    is_abandoned: AtomicBool,
}

impl DriveDisk {
    pub(crate) fn new(volume: Stack) -> Self {
        let block_size = u64::from(volume.geometry().block_size);
        Self { volume, block_size, is_abandoned: AtomicBool::new(false) }
    }

    /// Refuses every later change of the volume: the drive was dropped, and the volume may be opened again.
    pub(crate) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
    }

    fn check(&self) -> Result<(), Error> {
        match self.is_abandoned.load(Ordering::Acquire) {
            true => Err(Error::Device("the object drive is closed".into())),
            false => Ok(()),
        }
    }

    pub(crate) fn volume(&self) -> &Stack {
        &self.volume
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.volume.geometry().bytes()
    }

    pub(crate) fn extent(&self, offset: u64, length: u64) -> Extent {
        let blocks = u32::try_from(length / self.block_size).unwrap_or(u32::MAX);
        Extent { lba: Lba(offset / self.block_size), blocks }
    }

    pub(crate) fn read(&self, offset: u64, length: u64) -> Io<'_, Data> {
        self.volume.read(self.extent(offset, length))
    }

    pub(crate) fn write(&self, offset: u64, data: Data, durability: Durability) -> Io<'_, ()> {
        if let Err(error) = self.check() {
            return Io::done(Err(error));
        }
        self.volume.write(Lba(offset / self.block_size), data, durability)
    }

    pub(crate) fn flush(&self) -> Io<'_, ()> {
        if let Err(error) = self.check() {
            return Io::done(Err(error));
        }
        self.volume.flush()
    }

    /// Discards a range, which then reads as zeros, in calls of bounded length.
    pub(crate) async fn discard(&self, offset: u64, length: u64) -> Result<(), Error> {
        let (mut at, end) = (offset, offset + length);
        while at < end {
            self.check()?;
            let n = (end - at).min(DISCARD);
            self.volume.discard(self.extent(at, n)).await?;
            at += n;
        }
        Ok(())
    }
}

/// Returns the CRC32C of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Returns the CRC32C of `data`, whose parts count as one string of bytes.
pub(crate) fn crc32c_of(data: &Data) -> u32 {
    if let [part] = data.parts() {
        return crc32c(part);
    }
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    data.parts().iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

/// Maximum number of bytes of one discard call.
const DISCARD: u64 = 1 << 30;
