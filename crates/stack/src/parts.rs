//! Files in which several units have slices. Such a file is opened once, and each of its bytes belongs to one
//! unit.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use config::ByteRange;
use control::Failure;
use parking_lot::Mutex;
use tokio::time::Instant;
use volume::{Data, Durability, Error, Extensions, Extent, FileVolume, Geometry, Io, Lba, Volume};

use super::file::{self, LOOK_EVERY, RELEASED_WITHIN};
use crate::{
    not_opened::NotOpened,
    records::{KeptVolume, Recorder},
};

/// The open files of a process in which units have slices. The lock on a file excludes other processes, and
/// units that use the whole file.
#[derive(Default)]
pub struct SlicedFiles(Mutex<HashMap<PathBuf, Arc<SlicedFile>>>);

/// A file in which units have slices, and the bytes that each unit uses.
#[derive(Default)]
struct SlicedFile {
    /// Locked while the file is opened, so that units that open it at the same time share it. The file is
    /// closed with its last part.
    file: tokio::sync::Mutex<Weak<OpenFile>>,
    used: Mutex<Vec<Used>>,
    last_number: AtomicU64,
}

/// An open volume file with the record of its use; no record if the file is only read.
struct OpenFile {
    volume: Arc<FileVolume>,
    record: Option<Arc<KeptVolume>>,
}

struct Used {
    number: u64,
    range: ByteRange,
    unit: String,
}

/// One unit's access to a file. The slice above it keeps calls within the bytes for which the part was
/// opened.
pub struct FilePart {
    path: PathBuf,
    file: Arc<OpenFile>,
    shared: Arc<SlicedFile>,
    number: u64,
}

impl SlicedFiles {
    /// Opens the file for a `unit` that uses the bytes `range` of it, or shares the file if it is open already. If
    /// another unit uses some of these bytes, waits a moment, because that unit may be about to end.
    ///
    /// # Errors
    /// Another unit uses some of these bytes, or an error of [`file::open_recorded`].
    pub async fn open(
        &self,
        settings: &config::File,
        recorder: &Recorder,
        range: ByteRange,
        unit: String,
    ) -> Result<FilePart, NotOpened> {
        let path = settings.path.clone();
        let shared = Arc::clone(self.0.lock().entry(resolved(&path)).or_default());
        let number = shared.last_number.fetch_add(1, Ordering::Relaxed);
        let deadline = Instant::now() + RELEASED_WITHIN;
        while let Err(failure) = shared.take(number, &range, &unit, &path) {
            if Instant::now() >= deadline {
                return Err(failure.into());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        // If opening the file fails, dropping `taken` releases the reserved bytes for other units.
        let taken = PendingFileSlice { shared: &shared, number };
        let mut open = shared.file.lock().await;
        let file = match open.upgrade() {
            Some(file) => file,
            None => {
                let (volume, record) = file::open_recorded(settings, recorder).await?;
                Arc::new(OpenFile { volume, record })
            }
        };
        *open = Arc::downgrade(&file);
        drop(open);
        std::mem::forget(taken);
        Ok(FilePart { path, file, shared, number })
    }
}

/// Resolves the links of a path, so that two names of one file are recognized. A file that does not exist yet
/// is recognized by its folder.
fn resolved(path: &Path) -> PathBuf {
    let in_folder = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(in_folder).unwrap_or_else(|| path.to_owned())
}

impl SlicedFile {
    /// Records that a unit uses these bytes. They replace the bytes that were recorded for `number` before.
    fn take(&self, number: u64, range: &ByteRange, unit: &str, path: &Path) -> Result<(), Failure> {
        let mut used = self.used.lock();
        let others = used.iter().filter(|used| used.number != number);
        if let Some(other) = others.into_iter().find(|used| used.range.overlaps(range)) {
            let Used { range: theirs, unit: owner, .. } = other;
            let message =
                format!("{unit} cannot have {range} of {}: {owner} uses {theirs}", path.display());
            let remedy = "give the units slices that do not overlap; a unit must be removed before another \
                          unit gets its bytes: remove it with one reload and add the other with the next";
            return Err(Failure::new(message).remedy(remedy));
        }
        used.retain(|used| used.number != number);
        used.push(Used { number, range: *range, unit: unit.to_owned() });
        Ok(())
    }

    fn give_back(&self, number: u64) {
        self.used.lock().retain(|used| used.number != number);
    }
}

/// Bytes of a file that are reserved for a slice before the file is open.
struct PendingFileSlice<'a> {
    shared: &'a SlicedFile,
    number: u64,
}

impl Drop for PendingFileSlice<'_> {
    fn drop(&mut self) {
        self.shared.give_back(self.number);
    }
}

impl FilePart {
    /// Returns the file that contains this part; other units may have parts of it, too.
    pub fn file(&self) -> &Arc<FileVolume> {
        &self.file.volume
    }

    /// Returns the record of the file; `None` if the file is only read.
    pub fn record(&self) -> Option<&Arc<KeptVolume>> {
        self.file.record.as_ref()
    }

    /// Extends the bytes that this part uses to `size`. Nothing changes if that fails.
    ///
    /// # Errors
    /// If another unit uses some of the added bytes.
    pub fn extend(&self, size: u64) -> Result<(), Failure> {
        let (range, unit) = {
            let used = self.shared.used.lock();
            let own = used.iter().find(|used| used.number == self.number);
            let own = own.expect("a part has its bytes until it is dropped");
            (ByteRange::new(own.range.start(), Some(size)), own.unit.clone())
        };
        self.shared.take(self.number, &range, &unit, &self.path)
    }
}

impl Drop for FilePart {
    fn drop(&mut self) {
        // The bytes may be given to another unit now: no call of this part is in progress, since each borrows it. A
        // call whose future was dropped may still reach the disk, but the file delays later calls for the same blocks
        // until then.
        self.shared.give_back(self.number);
    }
}

impl Volume for FilePart {
    fn geometry(&self) -> Geometry {
        self.file.volume.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.file.volume.read(extent)
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        self.file.volume.write(lba, data, durability)
    }

    fn flush(&self) -> Io<'_, ()> {
        self.file.volume.flush()
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.file.volume.discard(extent)
    }

    fn admit(&self, bytes: usize) -> Result<(), Error> {
        self.file.volume.admit(bytes)
    }

    fn extensions(&self) -> Extensions<'_> {
        self.file.volume.extensions()
    }
}

#[cfg(test)]
mod tests {
    use sim::AbilityProbe;
    use volume::FileVolumeOptions;

    use super::*;

    #[tokio::test]
    async fn a_part_has_the_abilities_of_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("volume");
        let options = FileVolumeOptions { create: Some(32 << 10), ..FileVolumeOptions::new(&path) };
        let volume = Arc::new(FileVolume::open(&options).expect("opened"));
        let file = Arc::new(OpenFile { volume, record: None });
        let part = FilePart { path, file, shared: Arc::default(), number: 0 };
        assert_eq!(AbilityProbe::answered(&part).await, ["allocation", "usage"]);
    }
}
