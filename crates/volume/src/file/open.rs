//! Opens a file or block device as a volume: checks the options, locks the file, creates it, and reports why
//! it was refused.

use std::{
    fs::{File, FileType, Metadata},
    io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{
    AtFlags, FallocateFlags, FlockOperation, OFlags, StatxFlags, fallocate, fcntl_getfl,
    fcntl_setfl, flock, statx,
};

use super::prefill::prefill;
use crate::{
    EngineKind, Geometry, NamedFile, OpenNamed, buffer::IoBufferPool, free_bytes, narrow,
    opening::folder_of,
};

/// Options with which a file or device is opened as a [`super::FileVolume`].
#[derive(Clone, Debug)]
pub struct FileVolumeOptions {
    pub path: PathBuf,
    /// Bytes in a logical block: 512 or 4096.
    pub block_size: u32,
    /// The size in bytes that the file must have. A missing or empty file is created with this size.
    pub create: Option<u64>,
    /// True to write every block of the file once, so that later writes find an allocated block: a durable write then
    /// takes half the time. Discards of such a file write zeros.
    pub preallocate: bool,
    /// True to bypass the page cache (`O_DIRECT`) if the file system supports this for blocks of this size;
    /// [`super::FileVolume::is_direct`] tells whether it does.
    pub direct: bool,
    pub engine: EngineKind,
    pub read_only: bool,
}

impl FileVolumeOptions {
    /// Returns options for an existing file with blocks of 512 bytes, through the page cache.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            block_size: 512,
            create: None,
            preallocate: false,
            direct: false,
            engine: EngineKind::Auto,
            read_only: false,
        }
    }
}

/// The reason why a file cannot be opened as a volume.
#[derive(Debug, thiserror::Error)]
pub enum FileVolumeOpenError {
    /// The block size is neither 512 nor 4096, or the size is not a multiple of it.
    #[error("{0:?}: the block size must be 512 or 4096 bytes, and the size a multiple of it")]
    BlockSize(PathBuf),
    /// The file is smaller than one block.
    #[error("{0:?} is empty")]
    Empty(PathBuf),
    /// Another volume, in this process or another one, has locked the file.
    #[error("{0:?} is in use")]
    InUse(PathBuf),
    #[error("cannot {doing} {path:?}: {source}")]
    Io {
        /// The operation, as a verb phrase for the message.
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The free space of the file system is less than the preallocated file needs.
    #[error("{path:?} needs {needed} bytes more, and its file system has {free} free")]
    NoRoom {
        path: PathBuf,
        /// Number of bytes that the file still has to allocate.
        needed: u64,
        /// Free bytes of the file system.
        free: u64,
    },
    /// The path names a directory, a pipe, or another object without blocks.
    #[error("{0:?} is neither a file nor a block device")]
    NoStorage(PathBuf),
    #[error("{path:?} has {found} bytes, not {expected}")]
    WrongSize {
        path: PathBuf,
        /// The size of the file in bytes.
        found: u64,
        /// The required size in bytes.
        expected: u64,
    },
}

/// A file that was opened and locked, and can be a volume.
pub(super) struct OpenedVolumeFile {
    pub(super) file: File,
    /// A second open file description of the file, for syncs only. Linux reports a lost write once for each
    /// description, to the first one that syncs. On `file` this could be a stable write of other blocks,
    /// after which a flush would succeed although data is lost.
    pub(super) syncs: File,
    pub(super) geometry: Geometry,
    pub(super) direct: Option<Direct>,
    /// True if the file is in a file system in memory: no call has to wait, and no data is ever stable.
    pub(super) in_memory: bool,
}

/// The alignment that direct I/O requires of memory. Offsets in the file, and lengths, need only be
/// whole blocks of the volume.
#[derive(Clone, Copy)]
pub(super) struct Direct {
    /// Memory addresses and lengths of direct I/O must be multiples of this number of bytes.
    pub(super) memory_alignment: usize,
}

/// Opens, locks, creates and measures the file. While it is filled, `progress` receives the bytes that are
/// done and the bytes in all.
pub(super) fn open(
    options: &FileVolumeOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<OpenedVolumeFile, FileVolumeOpenError> {
    let path = &options.path;
    let failed =
        |doing| move |source| FileVolumeOpenError::Io { doing, path: path.clone(), source };
    check_block_size(options)?;
    let named = open_file(options).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => FileVolumeOpenError::InUse(path.clone()),
        _ => failed("open")(error),
    })?;
    let metadata = named.file.metadata().map_err(failed("look at"))?;
    let is_device = metadata.file_type().is_block_device();
    if !is_device && !metadata.is_file() {
        return Err(FileVolumeOpenError::NoStorage(path.clone()));
    }
    let lock = if options.read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    flock(&named.file, lock).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => FileVolumeOpenError::InUse(path.clone()),
        other => failed("lock")(other.into()),
    })?;
    if !options.read_only {
        narrow(&named.file, path);
    }

    // Open the second description before the first write: a description that is opened later does not receive reports
    // of earlier losses.
    let syncs = open_again(options, &metadata).map_err(failed("open a second time"))?;
    // Read the size after the file is locked: another process may have created the file a moment ago, and then locked
    // it first.
    let was_empty = named.file.metadata().is_ok_and(|found| found.is_file() && found.len() == 0);
    let prepared = prepare(&named.file, was_empty, is_device, options, progress).and_then(|size| {
        if !is_device && !options.read_only {
            settle_name(&named.path, was_empty).map_err(failed("sync the directory of"))?;
        }
        Ok(size)
    });
    let size = prepared.inspect_err(|_| {
        if was_empty && !options.read_only {
            // Cut the file back to zero bytes: the blocks of an unfinished file would fill the disk.
            let _ = named.file.set_len(0);
        }
        named.take_back();
    })?;
    let file = named.file;
    let thin = !options.read_only
        && !options.preallocate
        && if is_device { unmaps(&metadata) } else { punches(&file, size) };
    let geometry = Geometry {
        block_size: options.block_size,
        physical_block_size: 4096,
        blocks: size / u64::from(options.block_size),
        read_only: options.read_only,
        thin,
        volatile_cache: true,
        ..Geometry::with_blocks(0)
    };
    let in_memory = rustix::fs::fstatfs(&file)
        .is_ok_and(|found| is_memory(metadata.file_type(), found.f_type as u32));
    let direct =
        if options.direct && !in_memory { go_direct(&file, options.block_size) } else { None };
    Ok(OpenedVolumeFile { file, syncs, geometry, direct, in_memory })
}

/// Sets the size of a new file and, if the options say so, allocates all its blocks. Returns the size in bytes.
fn prepare(
    file: &File,
    was_empty: bool,
    is_device: bool,
    options: &FileVolumeOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64, FileVolumeOpenError> {
    let path = &options.path;
    let failed =
        |doing| move |source| FileVolumeOpenError::Io { doing, path: path.clone(), source };
    let size = size_of(file, options)?;
    if options.preallocate && !is_device && !options.read_only {
        // Check the free space for a new file only. Some file systems keep zeros as holes, so an existing file may seem
        // to need space although its log could be opened before.
        if was_empty {
            // Query the file system through the open file: its path may be a link into another file system.
            let system = rustix::fs::fstatvfs(file);
            let system = system.map_err(|error| failed("measure")(error.into()))?;
            let free = system.f_bavail.saturating_mul(system.f_frsize);
            if size > free {
                return Err(FileVolumeOpenError::NoRoom { path: path.clone(), needed: size, free });
            }
        }
        prefill(file, size, progress).map_err(failed("fill"))?;
    }
    Ok(size)
}

/// Checks that a missing file could be created with these options, without creating it.
pub(super) fn can_be_made(options: &FileVolumeOptions) -> Result<(), FileVolumeOpenError> {
    let path = &options.path;
    check_block_size(options)?;
    let free = free_bytes(path).map_err(|source| {
        let doing = "make";
        FileVolumeOpenError::Io { doing, path: path.clone(), source }
    })?;
    match options.create.filter(|_| options.preallocate) {
        Some(needed) if needed > free => {
            Err(FileVolumeOpenError::NoRoom { path: path.clone(), needed, free })
        }
        _ => Ok(()),
    }
}

fn check_block_size(options: &FileVolumeOptions) -> Result<(), FileVolumeOpenError> {
    let sound = matches!(options.block_size, 512 | 4096)
        && options.create.is_none_or(|size| size % u64::from(options.block_size) == 0);
    if sound { Ok(()) } else { Err(FileVolumeOpenError::BlockSize(options.path.clone())) }
}

fn open_file(options: &FileVolumeOptions) -> io::Result<NamedFile> {
    let write = !options.read_only;
    let create = options.create.is_some() && write;
    OpenNamed { write, create, exclusive: write }.open(&options.path)
}

/// Opens again the file whose metadata is `first`. Fails if the path leads to another file now.
fn open_again(options: &FileVolumeOptions, first: &Metadata) -> io::Result<File> {
    // Without O_EXCL: it refuses a second opening of a device even to the process that has it open.
    let how = OpenNamed { write: !options.read_only, ..OpenNamed::default() };
    let file = how.open(&options.path)?.file;
    let again = file.metadata()?;
    if (again.dev(), again.ino()) != (first.dev(), first.ino()) {
        return Err(io::Error::other("another file has taken its place"));
    }
    Ok(file)
}

/// Sets the size of a new file, or measures an existing file. Returns the size in bytes.
fn size_of(file: &File, options: &FileVolumeOptions) -> Result<u64, FileVolumeOpenError> {
    let path = &options.path;
    let failed =
        |doing| move |source| FileVolumeOpenError::Io { doing, path: path.clone(), source };
    // Seek to the end: the metadata of a block device reports the size 0.
    let found = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0));
    let found = found.map_err(|error| failed("measure")(error.into()))?;
    match options.create {
        Some(expected) if found == 0 && expected > 0 && !options.read_only => {
            file.set_len(expected).map_err(failed("size"))?;
            settle_size(file).map_err(failed("sync"))?;
            Ok(expected)
        }
        Some(expected) if found != expected => {
            Err(FileVolumeOpenError::WrongSize { path: path.clone(), found, expected })
        }
        _ if found < u64::from(options.block_size) => Err(FileVolumeOpenError::Empty(path.clone())),
        _ => {
            // Nothing was ever written to the file: the process that created it may have been killed before
            // it made the size stable.
            let metadata = file.metadata().map_err(failed("look at"))?;
            if metadata.is_file() && metadata.blocks() == 0 && !options.read_only {
                settle_size(file).map_err(failed("sync"))?;
            }
            Ok(found)
        }
    }
}

/// Makes the size of a file stable, so that a power cut does not make it empty or shorter.
fn settle_size(file: &File) -> io::Result<()> {
    file.sync_all()
}

/// Makes the name of a file stable. Every opening does this, since the process that created the file may have
/// been killed before it did so.
///
/// # Errors
/// The system's error if the file was empty. For another file a failure is only reported as an event:
/// we may have no permission to read its folder, and the file was usable before.
fn settle_name(path: &Path, was_empty: bool) -> io::Result<()> {
    match File::open(folder_of(path)).and_then(|folder| folder.sync_all()) {
        Err(error) if !was_empty => {
            tracing::warn!(
                path = %path.display(), %error,
                "the folder of the file cannot be synced: if the file was just created, a power cut \
                 may remove its name"
            );
            Ok(())
        }
        synced => synced,
    }
}

/// Returns true if the data of a file exists in memory only. For a device returns false: its node may lie in a file
/// system in memory, but its data does not.
fn is_memory(kind: FileType, file_system: u32) -> bool {
    kind.is_file() && matches!(file_system, TMPFS_MAGIC | RAMFS_MAGIC)
}

/// Returns true if the file system can punch holes. Tries it behind the last byte, where no data can be lost.
fn punches(file: &File, size: u64) -> bool {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, mode, size.next_multiple_of(4096), 4096).is_ok()
}

/// Returns true if the block device can zero ranges itself. For a partition, sysfs has this property one directory
/// level up, at the whole disk.
fn unmaps(metadata: &Metadata) -> bool {
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    ["queue", "../queue"].into_iter().any(|queue| {
        let path = format!("/sys/dev/block/{major}:{minor}/{queue}/write_zeroes_max_bytes");
        std::fs::read_to_string(path).is_ok_and(|bytes| bytes.trim() != "0")
    })
}

/// Turns on direct I/O if it supports whole blocks of the volume. Otherwise all blocks of the file use the
/// page cache: direct and cached access to the same page are not coherent.
fn go_direct(file: &File, block_size: u32) -> Option<Direct> {
    let flags = fcntl_getfl(file).ok()?;
    fcntl_setfl(file, flags | OFlags::DIRECT).ok()?;
    let direct = alignment(file, block_size);
    if direct.is_none() {
        // Ignore an error: direct I/O then stays on, and calls that are not aligned fail, but no call accesses a wrong
        // block.
        let _ = fcntl_setfl(file, flags);
    }
    direct
}

fn alignment(file: &File, block_size: u32) -> Option<Direct> {
    let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    let found = found.filter(|s| s.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    if let Some(found) = found {
        let (offset, memory) = (found.stx_dio_offset_align, found.stx_dio_mem_align);
        let fits = offset > 0 && block_size.is_multiple_of(offset) && memory <= 4096;
        return fits.then_some(Direct { memory_alignment: (memory.max(1)) as usize });
    }
    // An older kernel or a file system that does not report its alignment (tmpfs): try a read.
    let mut block = Arc::new(IoBufferPool::default()).take(block_size as usize);
    let read = rustix::io::pread(file, &mut block[..], u64::from(block_size));
    read.is_ok().then_some(Direct { memory_alignment: 4096 })
}

/// Magic number of tmpfs, from `linux/magic.h`.
const TMPFS_MAGIC: u32 = 0x0102_1994;
/// Magic number of ramfs, from `linux/magic.h`.
const RAMFS_MAGIC: u32 = 0x8584_58f6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_does_not_count_as_memory_because_its_device_node_is_on_tmpfs() {
        let kind = |path| std::fs::metadata(path).expect("there").file_type();
        let found = rustix::fs::statfs("/dev").expect("there").f_type as u32;
        assert!(!is_memory(kind("/dev/null"), found));
        assert!(is_memory(kind("/proc/self/exe"), TMPFS_MAGIC), "a regular file");
    }
}
