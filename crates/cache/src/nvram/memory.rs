//! Stable memory, and the mapped file that serves as one.

use std::{
    fs::{File, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{Ordering, fence},
    },
};

use volume::{Change, OpenNamed, narrow};

use super::layout::{HEADER_BYTES, MAGIC, length_for};
use crate::{log::BLOCK_BYTES, mapping::Mapping};

/// A small memory that keeps its bytes over the failures it is bought for.
///
/// Bytes become stable in the order in which they are written, at once: what survives is always
/// everything up to some byte, until there is an [error](StableMemory::error).
pub trait StableMemory: Send + 'static {
    /// Its size in bytes. Never changes.
    fn len(&self) -> usize;

    /// Fills `to` with the bytes from `offset` on.
    fn read(&self, offset: usize, to: &mut [u8]);

    /// Replaces the bytes from `offset` on.
    fn write(&mut self, offset: usize, from: &[u8]);

    /// Why it could not make bytes stable, once that has happened, for good: what was written before
    /// that write is stable, of that write perhaps some bytes. Nothing is written to it any more.
    fn error(&self) -> Option<&io::Error> {
        None
    }

    /// True if it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A file mapped into memory. Survives the end of the process, however it ends. Survives a power
/// failure where the file lies on storage that does, if it is [synced](MappedFile::synced).
pub struct MappedFile {
    map: Mapping,
    /// Each write is brought to where the file lies.
    is_synced: bool,
    error: Arc<OnceLock<io::Error>>,
    /// Held for its lock.
    file: File,
}

impl MappedFile {
    /// Opens or creates the file with room for `nvram_bytes` of slots, and locks it. Other users lose
    /// their rights to it.
    ///
    /// # Errors
    /// As the system says; also if another process has it, or its size is that of other settings. A file
    /// that was made here and could not be filled is removed again.
    pub fn open(path: &Path, nvram_bytes: u64) -> io::Result<Self> {
        let length = length_for(nvram_bytes / BLOCK_BYTES as u64);
        let mut named = OpenNamed { write: true, create: true, exclusive: true }.open(path)?;
        named.file.try_lock().map_err(|error| match error {
            TryLockError::Error(error) => error,
            TryLockError::WouldBlock => {
                io::Error::new(io::ErrorKind::ResourceBusy, "another process has it open")
            }
        })?;
        narrow(&named.file, path);
        let metadata = named.file.metadata()?;
        let found = metadata.len();
        if found < length && is_zeros(&mut named.file)? {
            let filled = check_room(&named.path, found, length)
                .and_then(|()| fill(&mut named.file, length))
                .and_then(|()| settle(&named.file, &named.path));
            if let Err(error) = filled {
                // The file held only zeros. It gets its former size, so that it does not fill the disk.
                let _ = named.file.set_len(found);
                named.take_back();
                return Err(error);
            }
        } else if found != length {
            let message = format!(
                "it has {found} bytes, but {nvram_bytes} bytes of NVRAM need {length}; stop \
                 cleanly with the former setting and remove the file to change it"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        } else if let Err(error) = settle(&named.file, &named.path) {
            // Its folder may not be readable for us, and the file was usable before.
            tracing::warn!(
                path = %path.display(), %error,
                "the NVRAM file or its folder cannot be synced: if the file was made a moment ago, a power \
                 cut may take its name or its size"
            );
        }
        let map = Mapping::new(&named.file)?;
        Ok(Self { map, is_synced: false, error: Arc::default(), file: named.file })
    }

    /// Checks that a missing file could be created with `nvram_bytes` of slots. Changes nothing.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] without its folder, [`io::ErrorKind::StorageFull`] without room.
    pub fn can_be_made(path: &Path, nvram_bytes: u64) -> io::Result<()> {
        check_room(path, 0, length_for(nvram_bytes / BLOCK_BYTES as u64))
    }

    /// The same for memory that is to survive a power failure: what is in it, and each write from now on
    /// before the next, is brought to where the file lies (msync(2)). On persistent memory (DAX) that is
    /// out of the processor's caches; on tmpfs it is nothing.
    ///
    /// The content counts only after that. The kernel marks a page as clean even if an earlier process failed
    /// to write it to storage, and reads still return its bytes. So every page is written again.
    ///
    /// # Errors
    /// As the system says.
    pub fn synced(mut self) -> io::Result<Self> {
        for byte in self.map.iter_mut().step_by(LEAST_PAGE) {
            // The same byte, but the compiler is not to know.
            *byte = std::hint::black_box(*byte);
        }
        if self.map.has_failed() {
            return Err(unusable());
        }
        self.map.flush_range(0, self.map.len())?;
        Ok(Self { is_synced: true, ..self })
    }

    /// Notes that a page of the file could not be used, if that has happened.
    fn note_failure(&self) {
        if self.map.has_failed() && self.error.set(unusable()).is_ok() {
            tracing::error!(
                error = %unusable(),
                "the NVRAM fails: from now on writes wait for the log disk"
            );
        }
    }

    /// Returns a watch that finds out, each time it is asked, whether the file is still intact under its
    /// name.
    ///
    /// # Errors
    /// The system's.
    pub fn watch(&self, path: &Path) -> io::Result<NvramWatch> {
        let (file, length) = (self.file.try_clone()?, self.map.len() as u64);
        let path = std::path::absolute(path)?;
        Ok(NvramWatch { file, path, length, header: None, error: Arc::clone(&self.error) })
    }
}

/// Checks whether the file of an NVRAM still has its name, its length and its header.
pub struct NvramWatch {
    file: File,
    path: PathBuf,
    length: u64,
    /// The header that the first look found. An opening writes the header once.
    header: Option<[u8; HEADER_BYTES]>,
    error: Arc<OnceLock<io::Error>>,
}

impl NvramWatch {
    /// Checks once. If something is wrong, the memory [fails](StableMemory::error) from now on, and the first
    /// such call returns the reason.
    pub fn look(&mut self) -> Option<String> {
        if self.error.get().is_some() {
            return None;
        }
        let why = self.fault()?;
        self.error.set(io::Error::other(why.clone())).ok().map(|()| why)
    }

    fn fault(&mut self) -> Option<String> {
        if let Some(change) = Change::of(&self.file, &self.path, self.length) {
            return Some(change.to_string());
        }
        let mut header = [0; HEADER_BYTES];
        let read = self.file.read_exact_at(&mut header, 0);
        if read.is_err() || !header.starts_with(MAGIC) {
            // Not taken into use yet, or overwritten since.
            return self.header.map(|_| "its content was overwritten".into());
        }
        let before = *self.header.get_or_insert(header);
        (before != header).then(|| "its content was overwritten".into())
    }
}

/// Fails if a file of `found` bytes cannot become one of `length`.
fn check_room(path: &Path, found: u64, length: u64) -> io::Result<()> {
    let (free, needed) = (volume::free_bytes(path)?, length.saturating_sub(found));
    if needed <= free {
        return Ok(());
    }
    let message = format!("it needs {needed} bytes more, and its file system has {free} free");
    Err(io::Error::new(io::ErrorKind::StorageFull, message))
}

/// Makes the size and the name of a file stable. This is done at every opening, since the process that made
/// the file may have been killed before it did so.
fn settle(file: &File, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Returns true if all bytes are zero: the file is new, or its creation was interrupted.
fn is_zeros(file: &mut File) -> io::Result<bool> {
    let mut piece = [0; PIECE];
    file.rewind()?;
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(true),
            n if piece[..n].iter().any(|&byte| byte != 0) => return Ok(false),
            _ => {}
        }
    }
}

/// Real zeros, not a hole: a hole that cannot be filled later would kill the process.
fn fill(file: &mut File, length: u64) -> io::Result<()> {
    let zeros = [0; PIECE];
    let mut left = length;
    file.rewind()?;
    while left > 0 {
        let n = left.min(PIECE as u64);
        file.write_all(&zeros[..n as usize])?;
        left -= n;
    }
    Ok(())
}

/// Read or written at once.
const PIECE: usize = 65536;
/// No kernel has smaller pages.
const LEAST_PAGE: usize = 4096;

fn unusable() -> io::Error {
    io::Error::other("its file was cut short, or a page of it cannot be used")
}

impl StableMemory for MappedFile {
    fn len(&self) -> usize {
        self.map.len()
    }

    fn read(&self, offset: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.map[offset..offset + to.len()]);
        // A page that cannot be brought reads as zeros, which would be taken for slots that are free.
        self.note_failure();
    }

    fn write(&mut self, offset: usize, from: &[u8]) {
        self.map[offset..offset + from.len()].copy_from_slice(from);
        // Keeps the stores of one write before those of the next.
        fence(Ordering::SeqCst);
        self.note_failure();
        if self.is_synced
            && self.error.get().is_none()
            && let Err(error) = self.map.flush_range(offset, from.len())
        {
            tracing::error!(%error, "the NVRAM fails: from now on writes wait for the log disk");
            let _ = self.error.set(error);
        }
    }

    fn error(&self) -> Option<&io::Error> {
        self.error.get()
    }
}
