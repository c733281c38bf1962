//! The stable memory of an NVRAM: the trait, and the mapped file that implements it.

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

use journal::BLOCK_BYTES;
use volume::{NamedFile, OpenFileChange, OpenNamed, narrow};

use super::layout::{HEADER_BYTES, MAGIC, length_for};
use crate::mapping::Mapping;

/// The magic number of the NVRAM of a [`crate::LogBuffer`].
pub(crate) const BUFFER_MAGIC: &[u8] = b"FBYLOGBU";

/// A small memory that survives the failures that [`crate::NvramSurvival`] declares.
///
/// Bytes become stable at once, in the order in which they are written: a failure leaves all bytes up to some
/// byte, and none behind it. This no longer holds after an [error](StableMemory::error).
pub trait StableMemory: Send + 'static {
    /// Returns the size in bytes, which never changes.
    fn len(&self) -> usize;

    /// Fills `to` with the bytes from `offset` on.
    fn read(&self, offset: usize, to: &mut [u8]);

    /// Writes `from` at `offset`.
    fn write(&mut self, offset: usize, from: &[u8]);

    /// Returns why a write could not be made stable, if that has happened. The error is final: earlier writes
    /// are stable, and of the failed write perhaps some bytes. The caller writes nothing after it.
    fn error(&self) -> Option<&io::Error> {
        None
    }

    /// Returns true if the memory has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A file mapped into memory. The content survives the end of the process, however it ends. The content
/// survives a power failure if the file is [synced](MappedFile::synced) and its storage survives one.
pub struct MappedFile {
    map: Mapping,
    /// True if each write is synced to the storage of the file.
    is_synced: bool,
    error: Arc<OnceLock<io::Error>>,
    /// The file stays open because this descriptor holds the file lock.
    file: File,
}

impl MappedFile {
    /// Opens or creates the file with room for `nvram_bytes` of slots, and locks it. Removes the access
    /// rights of other users.
    ///
    /// # Errors
    /// Errors of the system; also if another process has the file open, or if its size does not match
    /// `nvram_bytes`. A new file that cannot be filled is removed again.
    pub fn open(path: &Path, nvram_bytes: u64) -> io::Result<Self> {
        let length = length_for(nvram_bytes / BLOCK_BYTES as u64);
        let mut named = locked(path, true)?;
        narrow(&named.file, path);
        let metadata = named.file.metadata()?;
        let found = metadata.len();
        if found < length && is_zeros(&mut named.file)? {
            let filled = check_room(&named.path, found, length)
                .and_then(|()| fill(&mut named.file, length))
                .and_then(|()| settle(&named.file, &named.path));
            if let Err(error) = filled {
                // The file held only zeros. Restore its former size, so that it does not fill the disk.
                let _ = named.file.set_len(found);
                named.take_back();
                return Err(error);
            }
        } else if found != length {
            return Err(other_length(found, nvram_bytes));
        } else if let Err(error) = settle(&named.file, &named.path) {
            // Warn, but do not fail: the file was usable before, and this process may not be able to read its
            // folder.
            tracing::warn!(
                path = %path.display(), %error,
                remedy = "run sync(1) as root, or give the user of this process read access to the \
                 folder",
                "the NVRAM file or its folder cannot be synced: if the file was made a moment ago, a \
                 power cut may take its name or its size"
            );
        }
        let map = Mapping::new(&named.file)?;
        Ok(Self { map, is_synced: false, error: Arc::default(), file: named.file })
    }

    /// Opens and locks an existing file to see what it holds. Changes neither its content nor its access rights.
    /// Returns `None` if the file is missing, empty, or too short and full of zeros: [`open`](Self::open) would
    /// create or fill it.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn inspect(path: &Path, nvram_bytes: u64) -> io::Result<Option<Self>> {
        let mut named = match locked(path, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            named => named?,
        };
        let found = named.file.metadata()?.len();
        let length = length_for(nvram_bytes / BLOCK_BYTES as u64);
        if found < length && is_zeros(&mut named.file)? {
            return Ok(None);
        }
        if found != length {
            return Err(other_length(found, nvram_bytes));
        }
        let map = Mapping::new(&named.file)?;
        Ok(Some(Self { map, is_synced: false, error: Arc::default(), file: named.file }))
    }

    /// Checks that a missing file could be created with `nvram_bytes` of slots. Changes nothing.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]: the folder is missing; [`io::ErrorKind::StorageFull`]: the file system
    /// has no room.
    pub fn can_be_made(path: &Path, nvram_bytes: u64) -> io::Result<()> {
        check_room(path, 0, length_for(nvram_bytes / BLOCK_BYTES as u64))
    }

    /// Prepares the memory to survive a power failure: syncs its content to storage (msync(2)), and from now on
    /// syncs each write before the next one. On persistent memory (DAX) this flushes the processor's caches; on
    /// tmpfs it does nothing.
    ///
    /// The content is stable only after this call. The kernel marks a page as clean even if an earlier
    /// process failed to write it to storage, and reads still return its bytes. Therefore every page is
    /// written again.
    ///
    /// # Errors
    /// Errors of the system; also if a page of the file cannot be used.
    pub fn synced(mut self) -> io::Result<Self> {
        for byte in self.map.iter_mut().step_by(LEAST_PAGE) {
            // Store the same byte to make the page dirty. `black_box` keeps the compiler from removing the
            // store.
            *byte = std::hint::black_box(*byte);
        }
        if self.map.has_failed() {
            return Err(unusable());
        }
        self.map.flush_range(0, self.map.len())?;
        Ok(Self { is_synced: true, ..self })
    }

    /// Sets the error if a page of the file could not be used.
    fn note_failure(&self) {
        if self.map.has_failed() && self.error.set(unusable()).is_ok() {
            tracing::error!(
                error = %unusable(),
                remedy = "give the NVRAM file a disk that works, or name another with `nvram`, and \
                 restart this process",
                "the NVRAM fails: from now on writes wait for the log disk"
            );
        }
    }

    /// Returns a watch that checks on each call whether the file is still intact under its name.
    ///
    /// # Errors
    /// Errors of the system.
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
    /// The header as the first check found it. Each opening of the cache writes the header once.
    header: Option<[u8; HEADER_BYTES]>,
    error: Arc<OnceLock<io::Error>>,
}

impl NvramWatch {
    /// Checks the file once. If something is wrong, the memory [fails](StableMemory::error) from now on. Only
    /// the call that finds the fault returns the reason.
    pub fn look(&mut self) -> Option<String> {
        if self.error.get().is_some() {
            return None;
        }
        let why = self.fault()?;
        self.error.set(io::Error::other(why.clone())).ok().map(|()| why)
    }

    fn fault(&mut self) -> Option<String> {
        if let Some(change) = OpenFileChange::of(&self.file, &self.path, self.length) {
            return Some(change.to_string());
        }
        let mut header = [0; HEADER_BYTES];
        let read = self.file.read_exact_at(&mut header, 0);
        // The NVRAM of a cache and the NVRAM in front of a pair's log have different magic numbers.
        let is_ours = header.starts_with(MAGIC) || header.starts_with(BUFFER_MAGIC);
        if read.is_err() || !is_ours {
            // If no check has seen a header yet, the memory is not in use yet; otherwise the header was
            // overwritten.
            return self.header.map(|_| "its content was overwritten".into());
        }
        let before = *self.header.get_or_insert(header);
        (before != header).then(|| "its content was overwritten".into())
    }
}

/// Fails if the file system has no room to extend a file from `found` to `length` bytes.
fn check_room(path: &Path, found: u64, length: u64) -> io::Result<()> {
    let (free, needed) = (volume::free_bytes(path)?, length.saturating_sub(found));
    if needed <= free {
        return Ok(());
    }
    let message = format!("it needs {needed} bytes more, and its file system has {free} free");
    Err(io::Error::new(io::ErrorKind::StorageFull, message))
}

/// Makes the size and the name of a file stable. Every opening does this, since the process that made the
/// file may have been killed before it did so.
fn settle(file: &File, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Opens the file, creates it if it is missing and `create` is true, and locks it.
fn locked(path: &Path, create: bool) -> io::Result<NamedFile> {
    let named = OpenNamed { write: true, create, exclusive: true }.open(path)?;
    named.file.try_lock().map_err(|error| match error {
        TryLockError::Error(error) => error,
        TryLockError::WouldBlock => {
            io::Error::new(io::ErrorKind::ResourceBusy, "another process has it open")
        }
    })?;
    Ok(named)
}

fn other_length(found: u64, nvram_bytes: u64) -> io::Error {
    let length = length_for(nvram_bytes / BLOCK_BYTES as u64);
    let message = format!(
        "it has {found} bytes, but {nvram_bytes} bytes of NVRAM need {length}; stop cleanly with the former \
         setting and remove the file to change it"
    );
    io::Error::new(io::ErrorKind::InvalidInput, message)
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

/// Fills the file with real zeros. In a hole, a later store could find the disk full: SIGBUS, and the NVRAM
/// fails.
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

/// Bytes of the NVRAM file that an opening reads or fills at once.
const PIECE: usize = 65536;
/// The smallest page size of any kernel.
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
        // Note a page that the kernel cannot load: it reads as zeros, which look like free slots.
        self.note_failure();
    }

    fn write(&mut self, offset: usize, from: &[u8]) {
        self.map[offset..offset + from.len()].copy_from_slice(from);
        // This fence makes all stores of one write visible before any store of the next write.
        fence(Ordering::SeqCst);
        self.note_failure();
        if self.is_synced
            && self.error.get().is_none()
            && let Err(error) = self.map.flush_range(offset, from.len())
        {
            tracing::error!(
                %error,
                remedy = "give the NVRAM file a disk that works, or name another with `nvram`, and \
                 restart this process",
                "the NVRAM fails: from now on writes wait for the log disk"
            );
            let _ = self.error.set(error);
        }
    }

    fn error(&self) -> Option<&io::Error> {
        self.error.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvram::layout::{length_for, slots_in};

    /// A full disk or a power failure has interrupted the creation of the file.
    #[test]
    fn only_a_file_whose_creation_was_interrupted_is_created_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("nvram");
        std::fs::write(&path, vec![0; 100_000]).expect("written");
        let length = MappedFile::open(&path, 1 << 20).expect("made").len();
        assert_eq!(length as u64, length_for(256));
        // A file of another size or with content belongs to other settings and is refused.
        assert!(MappedFile::open(&path, 1 << 19).is_err());
        let mut bytes = vec![0; 100_000];
        bytes[99_999] = 1;
        std::fs::write(&path, bytes).expect("written");
        assert!(MappedFile::open(&path, 1 << 20).is_err());
    }

    #[test]
    fn a_mapped_file_keeps_its_bytes_and_is_locked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nvram");
        let mut file = MappedFile::open(&path, 65536).unwrap();
        assert_eq!(slots_in(file.len()), 16);
        file.write(5, b"abc");
        assert!(MappedFile::open(&path, 65536).is_err(), "locked");
        drop(file);
        assert!(MappedFile::open(&path, 1 << 20).is_err(), "other size");
        let mut bytes = [0; 3];
        MappedFile::open(&path, 65536).unwrap().read(5, &mut bytes);
        assert_eq!(&bytes, b"abc");
    }
}
