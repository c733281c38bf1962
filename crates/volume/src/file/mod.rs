//! A volume in a file or on a block device.

mod open;
mod prefill;
mod ledger;
mod retry;
mod fence;
mod size;
mod extensions;
mod holes;

use std::{
    fs::File,
    io,
    ops::Range,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};
use tokio::sync::watch;

use crate::{
    Allocation, Data, Durability, EngineKind, Error, Extensions, Extent, Geometry, Io, Lba,
    OpenFileChange, Volume,
    buffer::{IoBuffer, IoBufferPool},
    engine::{FileOpRequest, IoEngine, MAX_PIECES},
};
use fence::Fence;
use ledger::FileOpLedger;
use open::{Direct, OpenedVolumeFile};
pub use open::{FileVolumeOpenError, FileVolumeOptions};
use retry::{TRIES, again};
use size::FileSize;

/// A volume in a file or on a block device, which is locked against every other user.
///
/// Its futures need a Tokio runtime with I/O enabled. Outside of a runtime they block the thread.
pub struct FileVolume {
    file: Arc<File>,
    /// A second open file description, which is used for syncs only: [`OpenedVolumeFile`] has the reason.
    synced: Arc<File>,
    /// The geometry when the file was opened; `size` has the current number of blocks.
    geometry: Geometry,
    size: FileSize,
    direct: Option<Direct>,
    engine: IoEngine,
    pool: Arc<IoBufferPool>,
    ledger: FileOpLedger,
    syncs: Syncs,
    page_cache: PageCache,
    /// Aligned zeros, for discards where holes cannot be made.
    zeros: Bytes,
    /// Counts the calls that failed because the file system was full.
    refusals: watch::Sender<u64>,
    /// The absolute path under which the file was opened.
    path: PathBuf,
    /// True if the file system reports the same device and inode numbers for the open file and for its path.
    is_watched: bool,
    /// Refuses writes while the file is truncated, renamed or removed.
    fence: Fence,
}

/// The operations that the page cache can perform without waiting for the disk.
struct PageCache {
    /// True if the file is in a file system in memory (tmpfs or ramfs).
    in_memory: bool,
    /// True while reads may use RWF_NOWAIT: not with direct I/O, and not if the file system lacks the flag.
    reads_at_once: AtomicBool,
    /// True while writes may use RWF_NOWAIT: on the conditions of `reads_at_once`.
    writes_at_once: AtomicBool,
}

/// Lets several flushes share one sync of the file: a sync covers every flush that was called before the sync began.
#[derive(Default)]
struct Syncs {
    called: AtomicU64,
    /// The number of called flushes that the last successful sync covers. A sync holds this lock
    /// while it runs.
    covered: tokio::sync::Mutex<u64>,
}

impl FileVolume {
    /// Opens or creates the file and locks it. Blocks the thread, for long if the file has to be filled.
    ///
    /// # Errors
    /// See [`FileVolumeOpenError`].
    pub fn open(options: &FileVolumeOptions) -> Result<Self, FileVolumeOpenError> {
        Self::open_with_progress(options, &mut |_, _| ())
    }

    /// Opens the file as [`Self::open`] does. While the file is filled ([`FileVolumeOptions::preallocate`]), calls
    /// `progress` with the bytes that are filled and the bytes in all.
    ///
    /// # Errors
    /// See [`FileVolumeOpenError`].
    pub fn open_with_progress(
        options: &FileVolumeOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, FileVolumeOpenError> {
        let OpenedVolumeFile { file, syncs, geometry, direct, in_memory } =
            open::open(options, progress)?;
        let engine = IoEngine::new(options.engine).map_err(|source| FileVolumeOpenError::Io {
            doing: "set up io_uring for",
            path: options.path.clone(),
            source,
        })?;
        let pool = Arc::new(IoBufferPool::default());
        let mut zeros = pool.take(ZEROS);
        zeros.fill(0);
        let path = std::path::absolute(&options.path).unwrap_or_else(|_| options.path.clone());
        let is_watched = OpenFileChange::of(&file, &path, 0).is_none();
        Ok(Self {
            file: Arc::new(file),
            synced: Arc::new(syncs),
            geometry,
            size: FileSize::new(geometry.blocks, options.preallocate),
            direct,
            engine,
            pool,
            ledger: FileOpLedger::default(),
            syncs: Syncs::default(),
            page_cache: PageCache {
                in_memory,
                reads_at_once: AtomicBool::new(in_memory || direct.is_none()),
                writes_at_once: AtomicBool::new(in_memory || direct.is_none()),
            },
            zeros: zeros.freeze(),
            refusals: watch::Sender::new(0),
            path,
            is_watched,
            fence: Fence::default(),
        })
    }

    /// Returns the absolute path under which the file was opened. It may be a symbolic link.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Fails all writes, discards and flushes from now on, with this reason. Reads are still served.
    pub fn fence(&self, why: &str) {
        self.fence.raise(why);
    }

    /// Allows writes again. Call this when the file has its full size and its name leads to it again.
    pub fn unfence(&self) {
        self.fence.lower();
    }

    /// Checks that a missing file could be created: its folder exists and has room. Changes nothing.
    ///
    /// # Errors
    /// See [`FileVolumeOpenError`].
    pub fn can_be_made(options: &FileVolumeOptions) -> Result<(), FileVolumeOpenError> {
        open::can_be_made(options)
    }

    /// Returns true if I/O bypasses the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Returns the engine in use; never `Auto`.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.engine.kind()
    }

    /// Returns the bytes that the file takes on its disk; 0 for a block device.
    ///
    /// # Errors
    /// [`Error::Device`] if the system does not say.
    pub fn allocated_bytes(&self) -> Result<u64, Error> {
        match self.file.metadata() {
            Ok(metadata) => Ok(metadata.blocks() * 512),
            Err(error) => Err(Error::Device(error.to_string().into())),
        }
    }

    /// Returns the number of calls that failed with [`Error::NoSpace`] since the file was opened. The channel is
    /// closed with the volume.
    #[must_use]
    pub fn refusals(&self) -> watch::Receiver<u64> {
        self.refusals.subscribe()
    }

    /// Runs `call`, and counts it in `refusals` if it fails for lack of space.
    async fn counted(&self, call: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        let result = call.await;
        if matches!(result, Err(Error::NoSpace)) {
            self.refusals.send_modify(|count| *count += 1);
        }
        result
    }

    async fn read_blocks(&self, extent: Extent) -> Result<Data, Error> {
        self.geometry().check_extent(extent)?;
        let range = self.bytes(extent);
        self.ledger.settle(&self.engine, range.clone()).await;
        let length = (range.end - range.start) as usize;
        let mut buffer = self.pool.take(length);
        let mut done = self.read_at_once(&mut buffer, range.start);
        let mut tries = TRIES;
        while done < length {
            let request =
                FileOpRequest::Read { buffer, start: done, offset: range.start + done as u64 };
            let op = self.engine.start(&self.file, request).await;
            let result = self.engine.finish(&op).await;
            buffer = op
                .take_buffer()
                .expect("the operation has ended, and only this call takes its buffer");
            match result {
                Ok(0) => return Err(Error::Device("the file is shorter than the volume".into())),
                Ok(bytes) => done += bytes,
                Err(error) => again(error, Some(extent), &mut tries)?,
            }
        }
        Ok(buffer.freeze().into())
    }

    /// Reads the first bytes as far as the page cache has them. Returns their number.
    fn read_at_once(&self, buffer: &mut IoBuffer, offset: u64) -> usize {
        if !self.page_cache.reads_at_once.load(Ordering::Relaxed) {
            return 0;
        }
        let mut vectors = [io::IoSliceMut::new(buffer)];
        match preadv2(&self.file, &mut vectors, offset, self.at_once()) {
            Ok(bytes) => bytes,
            Err(error) => {
                if error == Errno::OPNOTSUPP {
                    self.page_cache.reads_at_once.store(false, Ordering::Relaxed);
                }
                0
            }
        }
    }

    async fn write_blocks(
        &self,
        lba: Lba,
        data: Data,
        durability: Durability,
    ) -> Result<(), Error> {
        self.fence.check()?;
        let extent = self.geometry().check_write(lba, data.len())?;
        let range = self.bytes(extent);
        self.ledger.settle(&self.engine, range.clone()).await;
        self.check_end(extent)?;
        self.write_bytes(extent, range, data, durability).await
    }

    /// Refuses a write of the last block if the file was cut short. The write would give the file its full size
    /// again, and the bytes that were lost would read as zeros without notice. After any other write the file is
    /// still too short, which [`Self::change`] finds.
    fn check_end(&self, extent: Extent) -> Result<(), Error> {
        let whole = self.size.whole();
        if extent.end().0 < whole {
            return Ok(());
        }
        let bytes = whole * u64::from(self.geometry.block_size);
        match self.change_by(|_| OpenFileChange::of_size(&self.file, bytes)) {
            Some(change) => Err(Error::Device(change.to_string().into())),
            None => Ok(()),
        }
    }

    async fn write_bytes(
        &self,
        extent: Extent,
        range: Range<u64>,
        mut data: Data,
        durability: Durability,
    ) -> Result<(), Error> {
        let stable = durability == Durability::Stable && !self.page_cache.in_memory;
        let mut offset = range.start;
        let mut tries = TRIES;
        if !stable {
            let bytes = self.write_at_once(&data, offset);
            if bytes == data.len() {
                return Ok(());
            }
            data = data.slice(bytes, data.len() - bytes);
            offset += bytes as u64;
        }
        while !data.is_empty() {
            if !self.takes(&data) {
                let mut copy = self.pool.take(data.len());
                data.copy_to_slice(&mut copy);
                data = copy.freeze().into();
            }
            let direct = self.is_direct();
            let request = FileOpRequest::Write { data: data.clone(), offset, stable, direct };
            let op = self.engine.start(&self.file, request).await;
            let _watch = self.ledger.watch(&op, range.clone());
            match self.engine.finish(&op).await {
                Ok(0) => return Err(Error::Device("the system wrote no bytes to the file".into())),
                Ok(bytes) => {
                    let bytes = bytes.min(data.len());
                    data = data.slice(bytes, data.len() - bytes);
                    offset += bytes as u64;
                }
                Err(error) => {
                    if stable {
                        self.ledger.note_write_failure(&error);
                    }
                    again(error, Some(extent), &mut tries)?;
                }
            }
        }
        Ok(())
    }

    /// Writes the first bytes as far as the page cache takes them without waiting. Returns their number.
    fn write_at_once(&self, data: &Data, offset: u64) -> usize {
        if !self.page_cache.writes_at_once.load(Ordering::Relaxed)
            || data.parts().len() > MAX_PIECES
        {
            return 0;
        }
        let pieces: smallvec::SmallVec<[io::IoSlice<'_>; 16]> =
            data.parts().iter().map(|part| io::IoSlice::new(part)).collect();
        match pwritev2(&self.file, &pieces, offset, self.at_once()) {
            Ok(bytes) => bytes,
            Err(error) => {
                if error == Errno::OPNOTSUPP {
                    self.page_cache.writes_at_once.store(false, Ordering::Relaxed);
                }
                0
            }
        }
    }

    /// Returns the flags of a call that must not wait for the disk.
    fn at_once(&self) -> ReadWriteFlags {
        if self.page_cache.in_memory { ReadWriteFlags::empty() } else { ReadWriteFlags::NOWAIT }
    }

    /// Returns true if the kernel takes these pieces without a copy: they are not too many, and aligned for direct I/O.
    fn takes(&self, data: &Data) -> bool {
        data.parts().len() <= MAX_PIECES
            && self.direct.is_none_or(|direct| {
                data.parts().iter().all(|part| {
                    (part.as_ptr() as usize | part.len()).is_multiple_of(direct.memory_alignment)
                })
            })
    }

    async fn flush_all(&self) -> Result<(), Error> {
        self.fence.check()?;
        let called = self.syncs.called.fetch_add(1, Ordering::SeqCst) + 1;
        let mut covered = self.syncs.covered.lock().await;
        if *covered >= called {
            return Ok(());
        }
        let covers = self.syncs.called.load(Ordering::SeqCst);
        self.ledger.settle_all(&self.engine).await;
        let mut tries = TRIES;
        loop {
            self.check_for_loss()?;
            let op = self.engine.start(&self.synced, FileOpRequest::Sync).await;
            let _watch = self.ledger.watch(&op, 0..0);
            match self.engine.finish(&op).await {
                Ok(_) => break,
                Err(error) => {
                    self.ledger.note_sync_failure(&error);
                    again(error, None, &mut tries)?;
                }
            }
        }
        // A stable write may have recorded lost data while this sync was running: fail the flush then, too.
        self.check_for_loss()?;
        *covered = covers;
        Ok(())
    }

    fn check_for_loss(&self) -> Result<(), Error> {
        if self.ledger.has_lost() {
            return Err(Error::Device("an earlier sync failed: writes are lost".into()));
        }
        Ok(())
    }

    async fn discard_blocks(&self, extent: Extent) -> Result<(), Error> {
        self.fence.check()?;
        self.geometry().check_discard(extent)?;
        let range = self.bytes(extent);
        self.ledger.settle(&self.engine, range.clone()).await;
        if self.geometry.thin && self.punch(extent, &range).await? {
            return Ok(());
        }
        let mut at = range.start;
        while at < range.end {
            let length = (range.end - at).min(ZEROS as u64);
            let zeros = self.zeros.slice(..length as usize).into();
            self.write_bytes(extent, at..at + length, zeros, Durability::Volatile).await?;
            at += length;
        }
        Ok(())
    }

    async fn allocation_of(&self, extent: Extent) -> Result<Allocation, Error> {
        self.geometry().check_extent(extent)?;
        let range = self.bytes(extent);
        self.ledger.settle(&self.engine, range.clone()).await;
        let (file, block_size) = (Arc::clone(&self.file), u64::from(self.geometry.block_size));
        let find = move || holes::find(&file, range, block_size);
        // Search for holes on another thread, because the file system may have to read its own metadata from disk.
        let found = match tokio::runtime::Handle::try_current() {
            Ok(runtime) => runtime.spawn_blocking(find).await.unwrap_or_else(|e| Err(e.into())),
            Err(_) => find(),
        };
        found.map_err(|error| Error::Device(error.to_string().into()))
    }

    /// Makes a hole. Returns false if this file system or device cannot make holes after all.
    async fn punch(&self, extent: Extent, range: &Range<u64>) -> Result<bool, Error> {
        let mut tries = TRIES;
        loop {
            let length = range.end - range.start;
            let request = FileOpRequest::Punch { offset: range.start, length };
            let op = self.engine.start(&self.file, request).await;
            let _watch = self.ledger.watch(&op, range.clone());
            match self.engine.finish(&op).await {
                Ok(_) => return Ok(true),
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(false),
                Err(error) => again(error, Some(extent), &mut tries)?,
            }
        }
    }

    fn bytes(&self, extent: Extent) -> Range<u64> {
        let size = u64::from(self.geometry.block_size);
        extent.lba.0 * size..extent.end().0 * size
    }
}

impl AsFd for FileVolume {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Volume for FileVolume {
    fn geometry(&self) -> Geometry {
        Geometry { blocks: self.size.blocks(), ..self.geometry }
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(self.read_blocks(extent))
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        Io::new(self.counted(self.write_blocks(lba, data, durability)))
    }

    fn flush(&self) -> Io<'_, ()> {
        Io::new(self.counted(self.flush_all()))
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        Io::new(self.counted(self.discard_blocks(extent)))
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions { provisioning: Some(self), resizable: Some(self), ..Extensions::default() }
    }
}

/// Number of zero bytes that are written at once.
const ZEROS: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn after_a_failed_sync_no_flush_succeeds_until_the_file_is_opened_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = FileVolumeOptions {
            create: Some(1 << 20),
            ..FileVolumeOptions::new(directory.path().join("volume"))
        };
        let volume = FileVolume::open(&options).expect("opened");
        volume.flush().await.expect("flushed");
        volume.ledger.note_sync_failure(&io::Error::from_raw_os_error(libc::EINTR));
        volume.flush().await.expect("an interruption loses nothing");
        volume.ledger.note_sync_failure(&io::Error::from_raw_os_error(libc::EIO));
        for _ in 0..2 {
            assert!(matches!(volume.flush().await, Err(Error::Device(_))));
        }
        drop(volume);
        // Retry while another test has forked a process, which holds the lock until it executes its program.
        let opened = tokio::time::timeout(Duration::from_secs(10), async {
            loop {
                match FileVolume::open(&options) {
                    Err(FileVolumeOpenError::InUse(_)) => tokio::task::yield_now().await,
                    opened => return opened.expect("opened"),
                }
            }
        });
        opened.await.expect("no other process keeps the file open").flush().await.expect("flushed");
    }

    /// A stable write consists of a write and a sync. If it fails, the sync may have failed, which concerns earlier
    /// writes, too: the test injects such an error, and later flushes must fail. An error for lack of space must not
    /// have this effect.
    #[tokio::test]
    async fn after_a_stable_write_failed_no_flush_succeeds_unless_there_was_no_room() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = FileVolumeOptions {
            create: Some(1 << 20),
            ..FileVolumeOptions::new(directory.path().join("volume"))
        };
        let volume = FileVolume::open(&options).expect("opened");
        volume.ledger.note_write_failure(&io::Error::from_raw_os_error(libc::ENOSPC));
        volume.flush().await.expect("what found no room was never taken");
        volume.ledger.note_write_failure(&io::Error::from_raw_os_error(libc::EIO));
        assert!(matches!(volume.flush().await, Err(Error::Device(_))));
    }

    /// Linux reports a lost write once for each open file description, to the first one that syncs. The test makes the
    /// kernel lose a write on a full loop device and then performs a stable write, which receives the report. The
    /// flush must fail all the same, because it syncs through a file description of its own.
    #[tokio::test]
    async fn a_loss_reported_to_a_stable_write_still_fails_the_next_flush() {
        let Some(disk) = FullDisk::new() else {
            eprintln!("left out: it needs the right to mount a tmpfs and to set up a loop device");
            return;
        };
        let volume = FileVolume::open(&FileVolumeOptions::new(&disk.device)).expect("opened");
        let lost = Data::from(vec![1; 4 << 20]);
        volume.write(Lba(0), lost, Durability::Volatile).await.expect("in the page cache");
        // The kernel notices the lost data during write-back, which a third file description starts here.
        let other = File::options().write(true).open(&disk.device).expect("opened");
        assert!(rustix::fs::fdatasync(&other).is_err(), "there is no room below");
        // Write past `FileVolume`, so that its ledger does not record the error.
        let block = [2; 512];
        let written =
            pwritev2(&*volume.file, &[io::IoSlice::new(&block)], 0, ReadWriteFlags::DSYNC);
        assert!(written.is_err(), "the loss is reported to it");
        assert!(matches!(volume.flush().await, Err(Error::Device(_))));
    }

    /// A full disk for tests: a loop device over a sparse file in a file system without free space.
    struct FullDisk {
        device: String,
        directory: tempfile::TempDir,
    }

    impl FullDisk {
        fn new() -> Option<Self> {
            let directory = tempfile::tempdir().expect("a directory");
            let at = directory.path().to_str().expect("a name in UTF-8");
            run("mount", &["-t", "tmpfs", "-o", "size=1m", "tmpfs", at])?;
            let image = directory.path().join("image");
            let mut disk = Self { device: String::new(), directory };
            File::create(&image).and_then(|file| file.set_len(8 << 20)).ok()?;
            disk.device = run("losetup", &["--find", "--show", image.to_str()?])?;
            Some(disk)
        }
    }

    impl Drop for FullDisk {
        fn drop(&mut self) {
            if !self.device.is_empty() {
                run("losetup", &["--detach", &self.device]);
            }
            run("umount", &[self.directory.path().to_str().expect("a name in UTF-8")]);
        }
    }

    fn run(program: &str, arguments: &[&str]) -> Option<String> {
        let output = std::process::Command::new(program).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    }
}
