//! The storage of the blocks: a device or file that bypasses the page cache, or an iSCSI unit. It executes one request
//! at a time.

use std::{
    fs::{File, OpenOptions},
    io,
    ops::{Deref, DerefMut},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use initiator::RemoteVolume;
use rustix::{
    fs::{Advice, FlockOperation, OFlags, fadvise, flock},
    io::Errno,
};
use tokio::runtime::Runtime;
use volume::{Data, Durability, Extent, Lba, Volume};

use crate::{Error, location::open_device, remote_unit};

/// Storage for reads and writes at multiples of the block size.
pub(super) enum MicroStore {
    /// A device, or a file in a folder.
    File {
        file: File,
        path: PathBuf,
        /// True if reads and writes bypass the page cache.
        direct: bool,
    },
    /// An iSCSI unit, for which this process is the initiator.
    Remote { runtime: Runtime, volume: Box<RemoteVolume>, durability: Durability },
}

impl MicroStore {
    /// Opens a block device for the exclusive use of this process.
    pub(super) fn device(path: &Path, stable: bool) -> Result<Self, Error> {
        let file = open_device(path, OFlags::DIRECT | sync(stable))?;
        Ok(Self::File { file, path: path.to_owned(), direct: true })
    }

    /// Opens or makes a regular file exclusively. If the file system does not support direct I/O, the page cache is
    /// used.
    pub(super) fn file(path: PathBuf, stable: bool) -> Result<Self, Error> {
        let open = |more: OFlags| {
            let flags = (sync(stable) | OFlags::NOFOLLOW | more).bits().cast_signed();
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            options.custom_flags(flags).open(&path)
        };
        let (opened, direct) = match open(OFlags::DIRECT) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {
                (open(OFlags::empty()), false)
            }
            opened => (opened, true),
        };
        let refused = |why: &str| {
            Err(Error::Settings(format!("{} {why}; nothing was changed", path.display())))
        };
        let failed = || Error::system(format!("open {}", path.display()));
        let file = match opened {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
                return refused("is a symbolic link");
            }
            opened => opened.map_err(failed())?,
        };
        if !file.metadata().map_err(failed())?.is_file() {
            return refused("is no regular file");
        }
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Error::Settings(format!("another run uses {}; nothing was changed", path.display()))
        })?;
        Ok(Self::File { file, path, direct })
    }

    /// Logs in to an iSCSI unit with one connection.
    pub(super) fn remote(url: &str, stable: bool) -> Result<Self, Error> {
        let runtime = remote_unit::runtime()?;
        let volume = runtime.block_on(remote_unit::log_in(remote_unit::settings(url)?))?;
        let durability = if stable { Durability::Stable } else { Durability::Volatile };
        Ok(Self::Remote { runtime, volume: Box::new(volume), durability })
    }

    /// Returns the size of the storage in bytes; `None` for a file, which grows.
    pub(super) fn bytes(&self) -> Option<u64> {
        match self {
            Self::File { .. } => None,
            Self::Remote { volume, .. } => Some(volume.geometry().bytes()),
        }
    }

    /// Returns true if the storage is a file without content.
    pub(super) fn is_empty(&self) -> Result<bool, Error> {
        match self {
            Self::File { file, .. } => {
                let about = file.metadata();
                let about = about.map_err(Error::system(format!("look at {}", self.name())))?;
                Ok(about.is_file() && about.len() == 0)
            }
            Self::Remote { .. } => Ok(false),
        }
    }

    /// Returns true if reads and writes bypass the page cache of this machine.
    pub(super) fn is_direct(&self) -> bool {
        !matches!(self, Self::File { direct: false, .. })
    }

    /// Fills `into` with the bytes at offset `at`.
    pub(super) fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        match self {
            Self::File { file, .. } => file.read_exact_at(into, at),
            Self::Remote { runtime, volume, .. } => whole(volume, at, into.len())
                .and_then(|extent| runtime.block_on(volume.read(extent)).map_err(io::Error::other))
                .map(|data| data.copy_to_slice(into)),
        }
        .map_err(|error| self.failed("read", at, into.len(), error))
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        match self {
            Self::File { file, .. } => file.write_all_at(bytes, at),
            Self::Remote { runtime, volume, durability } => whole(volume, at, bytes.len())
                .and_then(|extent| {
                    let data = Data::from(Bytes::copy_from_slice(bytes));
                    let written = volume.write(extent.lba, data, *durability);
                    runtime.block_on(written).map_err(io::Error::other)
                }),
        }
        .map_err(|error| self.failed("write", at, bytes.len(), error))
    }

    /// Makes all writes stable, and drops the cached data from this machine's memory.
    pub(super) fn flush(&self) -> Result<(), Error> {
        match self {
            Self::File { file, .. } => {
                file.sync_all().and_then(|()| Ok(fadvise(file, 0, None, Advice::DontNeed)?))
            }
            Self::Remote { runtime, volume, .. } => {
                runtime.block_on(volume.flush()).map_err(io::Error::other)
            }
        }
        .map_err(Error::system(format!("flush {}", self.name())))
    }

    /// Returns the name of the storage for messages.
    pub(super) fn name(&self) -> String {
        match self {
            Self::File { path, .. } => path.display().to_string(),
            Self::Remote { volume, .. } => format!("unit {}", volume.identity()),
        }
    }

    fn failed(&self, act: &str, at: u64, length: usize, error: io::Error) -> Error {
        if Errno::from_io_error(&error) == Some(Errno::INVAL) && self.is_direct() {
            let name = self.name();
            return Error::Settings(format!("{name} does not support blocks of {length} bytes"));
        }
        Error::System { act: format!("{act} {length} bytes at {at} of {}", self.name()), error }
    }
}

impl Drop for MicroStore {
    fn drop(&mut self) {
        match self {
            // Unlock explicitly. If another thread starts a program at this moment, the program has
            // a copy of the descriptor for a while, and the lock would remain until it closes the
            // copy.
            Self::File { file, .. } => drop(flock(&*file, FlockOperation::Unlock)),
            Self::Remote { runtime, volume, .. } => runtime.block_on(volume.close()),
        }
    }
}

fn sync(stable: bool) -> OFlags {
    if stable { OFlags::DSYNC } else { OFlags::empty() }
}

/// Converts a range of bytes to blocks of the volume. Fails with EINVAL if an end of the range is
/// inside of a block.
fn whole(volume: &RemoteVolume, at: u64, length: usize) -> io::Result<Extent> {
    let block = u64::from(volume.geometry().block_size);
    let length = length as u64;
    if !at.is_multiple_of(block) || !length.is_multiple_of(block) {
        return Err(Errno::INVAL.into());
    }
    let blocks = u32::try_from(length / block).map_err(io::Error::other)?;
    Ok(Extent { lba: Lba(at / block), blocks })
}

/// Memory whose address has the alignment that direct I/O needs on every disk.
pub(super) struct Aligned {
    /// `ALIGNMENT` bytes more than are used, so that an aligned part exists. The vector never
    /// grows, so its address does not change.
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

/// Alignment of buffers in bytes: the size of a page, with which every disk can work.
const ALIGNMENT: usize = 4096;

impl Aligned {
    /// Returns aligned memory of `length` bytes, filled with zeros.
    pub(super) fn zeros(length: usize) -> Self {
        let bytes = vec![0; length + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Self { bytes, start, length }
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}
