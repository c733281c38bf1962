//! The size of a file. It grows and shrinks, and another program may truncate the file.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{FileVolume, prefill};
use crate::OpenFileChange;

/// The size of a file, in blocks.
pub(super) struct FileSize {
    /// The current size, as reported to hosts.
    blocks: AtomicU64,
    /// The largest number of blocks since the file was opened, less those that [`FileVolume::shrink`] removed. A file
    /// with fewer blocks was truncated by another program, also after
    /// [`Resizable::refresh`](crate::Resizable::refresh) has found the smaller size.
    whole: AtomicU64,
    /// Counts the calls that made the file smaller. Advances after `whole` is lowered and before the file
    /// is cut.
    cuts: AtomicU64,
    /// True if blocks that are added later are filled with zeros, too.
    preallocated: bool,
}

impl FileSize {
    /// Creates the size of a file that has `blocks` blocks when it is opened.
    pub(super) fn new(blocks: u64, preallocated: bool) -> Self {
        let (whole, cuts) = (AtomicU64::new(blocks), AtomicU64::new(0));
        Self { blocks: AtomicU64::new(blocks), whole, cuts, preallocated }
    }

    /// Returns the size in blocks that hosts see now.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Returns the number of blocks that the file must have. A smaller file was truncated by another program.
    pub(super) fn whole(&self) -> u64 {
        self.whole.load(Ordering::Acquire)
    }

    /// Records the number of blocks that [`Resizable::refresh`](crate::Resizable::refresh) has found in the file.
    pub(super) fn note_found(&self, blocks: u64) {
        self.whole.fetch_max(blocks, Ordering::AcqRel);
        self.blocks.store(blocks, Ordering::Relaxed);
    }

    /// Records that the file is about to be cut to `blocks` blocks.
    fn note_cut(&self, blocks: u64) {
        self.whole.fetch_min(blocks, Ordering::AcqRel);
        self.cuts.fetch_add(1, Ordering::AcqRel);
    }
}

impl FileVolume {
    /// Returns what another program has done to the file since it was opened: removed, renamed, replaced or truncated
    /// it. `None` if nothing. Asks the file system, which may take long to answer.
    #[must_use]
    pub fn change(&self) -> Option<OpenFileChange> {
        let look = |bytes| OpenFileChange::of(&self.file, &self.path, bytes);
        self.is_watched.then(|| self.change_by(look)).flatten()
    }

    /// Calls `look` with the size that the file must have, and returns the change that it finds. Ignores
    /// [`OpenFileChange::CutShort`] if [`Self::shrink`] has cut the file while `look` ran; the next call judges the
    /// size.
    pub(super) fn change_by(
        &self,
        look: impl FnOnce(u64) -> Option<OpenFileChange>,
    ) -> Option<OpenFileChange> {
        let cuts = self.size.cuts.load(Ordering::Acquire);
        let bytes = self.size.whole() * u64::from(self.geometry.block_size);
        let was_cut = || self.size.cuts.load(Ordering::Acquire) != cuts;
        look(bytes)
            .filter(|change| !(matches!(change, OpenFileChange::CutShort { .. }) && was_cut()))
    }

    /// Makes a file `bytes` long, or takes the present size of a block device. Returns the size in bytes. Existing
    /// blocks stay; new blocks read as zeros. Blocks the thread, for long if the file is filled.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a size below the present one, a part of a block, a read-only volume
    /// or a size that is given for a device; otherwise the system's error. The volume stays as it was.
    pub fn grow(&self, bytes: Option<u64>) -> io::Result<u64> {
        let block_size = u64::from(self.geometry.block_size);
        let before = self.size.blocks.load(Ordering::Acquire) * block_size;
        let wrong = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        let is_file = self.synced.metadata()?.is_file();
        let size = match bytes {
            Some(_) if !is_file => {
                return wrong("the size of a block device cannot be set here".to_owned());
            }
            Some(_) if self.geometry.read_only => {
                return wrong("the volume is read-only".to_owned());
            }
            Some(size) if !size.is_multiple_of(block_size) => {
                return wrong(format!("{size} bytes are not a whole number of blocks"));
            }
            Some(size) => size,
            None => {
                let found = rustix::fs::seek(&self.synced, rustix::fs::SeekFrom::End(0))?;
                found - found % block_size
            }
        };
        if size < before {
            return wrong(format!("the volume has {before} bytes and cannot shrink to {size}"));
        }
        if size > before && bytes.is_some() {
            self.synced.set_len(size)?;
            let filled = if self.size.preallocated {
                prefill::prefill(&self.synced, size, &mut |_, _| ())
            } else {
                // Sync the file: hosts learn the new size, so it must survive a power cut.
                self.synced.sync_all()
            };
            if let Err(error) = filled {
                // Record the failure: the kernel reports a lost write once, here to this sync, and the next flush must
                // still fail for it.
                self.ledger.note_sync_failure(&error);
                // Give the file its old size back, since the new size was never reported to hosts. Lower `whole`, too,
                // which a refresh may have raised in the meantime.
                self.size.note_cut(before / block_size);
                let _ = self.synced.set_len(before);
                return Err(error);
            }
        }
        self.size.whole.fetch_max(size / block_size, Ordering::AcqRel);
        self.size.blocks.fetch_max(size / block_size, Ordering::AcqRel);
        Ok(size)
    }

    /// Makes a file smaller and discards the data beyond the new end. A block device is not changed. Blocks the
    /// thread. The caller must make sure that writes beyond the new end have ended.
    ///
    /// # Errors
    /// The system's error. The volume has the new size all the same.
    pub fn shrink(&self, bytes: u64) -> io::Result<()> {
        if !self.synced.metadata()?.is_file() {
            return Ok(());
        }
        let blocks = bytes / u64::from(self.geometry.block_size);
        self.size.blocks.fetch_min(blocks, Ordering::AcqRel);
        self.size.note_cut(blocks);
        self.synced.set_len(bytes)?;
        // After a power cut the file must have the size that the log's superblock and the settings say.
        self.synced.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::{Durability, Error, FileVolumeOptions, Lba, Volume};

    #[test]
    fn a_shrink_by_ourselves_during_a_size_check_is_not_reported_as_truncation() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = FileVolumeOptions {
            create: Some(1 << 20),
            ..FileVolumeOptions::new(directory.path().join("volume"))
        };
        let volume = FileVolume::open(&options).expect("opened");
        let look = |bytes| OpenFileChange::of(&volume.file, &volume.path, bytes);
        let seen = volume.change_by(|bytes| {
            volume.shrink(1 << 19).expect("made smaller");
            look(bytes)
        });
        assert_eq!(seen, None);
        assert_eq!(volume.change(), None);
        // Another process truncates the file.
        let other = File::options().write(true).open(volume.path()).expect("opened");
        other.set_len(1 << 18).expect("cut");
        let cut = Some(OpenFileChange::CutShort { found: 1 << 18, expected: 1 << 19 });
        assert_eq!(volume.change(), cut);
        assert_eq!(volume.change_by(look), cut);
    }

    /// A write beyond the end of a file makes the kernel fill the gap with zeros. If another program truncates the
    /// file, neither such a write nor a refresh may make the file look complete again, because the lost blocks would
    /// read as zeros without notice.
    #[tokio::test]
    async fn a_truncated_file_does_not_look_complete_again_after_a_write_or_a_refresh() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = FileVolumeOptions {
            create: Some(1 << 20),
            ..FileVolumeOptions::new(directory.path().join("volume"))
        };
        let volume = FileVolume::open(&options).expect("opened");
        let other = File::options().write(true).open(volume.path()).expect("opened");
        other.set_len(1 << 19).expect("cut");
        let last = volume.write(Lba(2047), vec![1; 512].into(), Durability::Volatile).await;
        assert!(matches!(last, Err(Error::Device(_))), "{last:?}");
        volume.write(Lba(2046), vec![1; 512].into(), Durability::Volatile).await.expect("taken");
        let cut = |found| Some(OpenFileChange::CutShort { found, expected: 1 << 20 });
        assert_eq!(volume.change(), cut((1 << 20) - 512));
        other.set_len(1 << 19).expect("cut");
        volume.extensions().refresh();
        assert_eq!(volume.geometry().bytes(), 1 << 19);
        assert_eq!(volume.change(), cut(1 << 19));
        // After another process has enlarged the file, the volume must keep that size.
        other.set_len(1 << 21).expect("grown");
        volume.extensions().refresh();
        assert_eq!(volume.change(), None);
        other.set_len(1 << 20).expect("cut");
        assert_eq!(
            volume.change(),
            Some(OpenFileChange::CutShort { found: 1 << 20, expected: 1 << 21 })
        );
    }
}
