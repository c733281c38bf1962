//! Records of volume files and of block devices that hold a volume.
//!
//! A file is compared with its record before it is served. The id in an extended attribute identifies the file, or the
//! device and inode numbers if neither file nor record has an id:
//!
//! | file | result |
//! |------|--------|
//! | is the recorded one, and at least as long | is served |
//! | is the recorded one, but shorter | refused: truncated |
//! | has another id, the inode of another record, another size, or is blank instead of written | refused: replaced |
//! | has the recorded size, but neither id nor inode proves its identity | is served with a warning: a restored copy |
//! | is missing | refused |
//!
//! A block device has no id, so only its size is compared.

use std::{
    fs::{self, File},
    io::{self, Seek, SeekFrom},
    os::{
        fd::AsFd,
        unix::fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use config::{UNMOUNT_REMEDY, quantity::about};
use control::Failure;
use parking_lot::Mutex;
use volume::FileVolume;

use super::{
    file_id,
    folder::{Recorder, Renewal, absolute, is_absent},
    storage_record::{Storage, StorageRecord, VolumeIdentity},
};
use crate::not_opened::NotOpened;

/// The result of comparing a file or device with its record, before it is opened as a volume. The file or device
/// agrees with the record, if there is one.
pub struct VolumeRecord {
    recorder: Recorder,
    path: PathBuf,
    /// The absolute path of the file or device, as it is in the settings.
    named: PathBuf,
    before: Option<StorageRecord>,
    /// True if there is no record although the file has an id or holds data.
    is_record_missing: bool,
}

pub struct KeptVolume {
    recorder: Recorder,
    record: Mutex<StorageRecord>,
    /// The open volume. A file that was renamed or deleted while open is still the recorded one.
    file: Weak<FileVolume>,
}

/// The present properties of a file or device.
struct ObservedVolumeFile {
    bytes: u64,
    is_written: bool,
    id: Option<String>,
    device: u64,
    inode: u64,
    is_device: bool,
}

/// The result of comparing a file or device with the record of its last use.
#[derive(Debug, Eq, PartialEq)]
enum VolumeFileVerdict {
    /// The file is the recorded volume, perhaps larger.
    Same,
    /// The size agrees, but neither id nor inode proves that the file is the recorded volume. A copy that was
    /// restored looks like this.
    Unmarked,
    /// The file is another volume, or the recorded one truncated. The text completes "the volume PATH of USER
    /// ...".
    Wrong(String),
}

impl Recorder {
    /// Compares the file or device at `path` with the record of its last use. Changes neither.
    pub fn look_at_volume(&self, path: &Path) -> Result<VolumeRecord, NotOpened> {
        let before = self.records.load(path)?;
        let named = std::path::absolute(path).map_err(Failure::new)?;
        let path = before.as_ref().map_or_else(|| absolute(path), |it| Ok(it.path.clone()))?;
        let before = match before {
            Some(record) if matches!(record.storage, Storage::Log(_)) => {
                if record.may_hold_data() {
                    return Err(self.another_kind(&record, "a cache log"));
                }
                None
            }
            before => before,
        };
        let found = ObservedVolumeFile::at(&path)
            .map_err(|error| NotOpened::Refused(cannot_look(&path, &error)))?;
        let is_used = found.as_ref().is_some_and(|found| found.id.is_some() || found.is_written);
        let is_record_missing = before.is_none() && is_used;
        let record =
            VolumeRecord { recorder: self.clone(), path, named, before, is_record_missing };
        let Some(before) = &record.before else { return Ok(record) };
        match found.map(|found| record.judge(before, &found)) {
            Some(VolumeFileVerdict::Same) => {}
            Some(VolumeFileVerdict::Unmarked) => tracing::warn!(
                path = %record.path.display(), unit = self.used_by,
                remedy = "nothing has to be done if you put this copy there; otherwise stop this \
                 process, and put the right file back",
                "the volume file is not the one that was served last, and has no id: it is treated as \
                 a restored copy"
            ),
            Some(VolumeFileVerdict::Wrong(what)) => return Err(self.refused(before, &what)),
            None => return Err(self.refused(before, "is missing")),
        }
        Ok(record)
    }

    fn refused(&self, record: &StorageRecord, what: &str) -> NotOpened {
        let (path, was) = (record.path.display(), record.volume());
        let id = was.id.as_deref().map(|id| format!(", id {id}")).unwrap_or_default();
        let failure = Failure::new(format!(
            "the volume {path} of {} {what}: its record says {} bytes ({}){id}, last opened {}",
            record.used_by,
            was.bytes,
            about(was.bytes),
            record.opened
        ));
        NotOpened::Refused(failure.remedy(format!(
            "mount its disk or put the file back, and {}; to discard that volume and use the present file, or \
             a new and empty one, {UNMOUNT_REMEDY}; then `{}`",
            self.again(),
            self.records.forget_command(&record.path, true)
        )))
    }

    pub(super) fn another_kind(&self, record: &StorageRecord, kind: &str) -> NotOpened {
        let path = record.path.display();
        let failure = Failure::new(format!(
            "{path} is recorded as {kind} of {}, last opened {}, and may hold its data",
            record.used_by, record.opened
        ));
        NotOpened::Refused(failure.remedy(format!(
            "name another file; if that data is not needed: `{}`",
            self.records.forget_command(&record.path, true)
        )))
    }
}

impl VolumeRecord {
    /// Warns if the volume was in use before and nothing is recorded of it: the folder of records may be lost, or
    /// on a disk that is not mounted.
    pub fn warn_if_unrecorded(&self) {
        if self.is_record_missing {
            tracing::warn!(
                path = %self.path.display(), unit = self.recorder.used_by,
                records = %self.recorder.records.folder().display(),
                remedy = "nothing has to be done when it is served for the first time with these \
                 settings; otherwise stop this process, mount the disk with the records, and start it \
                 again",
                "the volume file holds data, but has no record: its present state is recorded now"
            );
        }
    }

    /// Records the volume, which must be open and locked. The record is stable when this returns; call this
    /// before the volume is served.
    pub fn keep(self, file: &Arc<FileVolume>) -> Result<Arc<KeptVolume>, NotOpened> {
        let mut found =
            ObservedVolumeFile::of(file).map_err(|error| cannot_look(&self.path, &error))?;
        // Compare again, now with the open file: another file may have been put at this path since `look_at_volume`.
        if let Some(before) = &self.before
            && let VolumeFileVerdict::Wrong(what) = self.judge(before, &found)
        {
            return Err(self.recorder.refused(before, &what));
        }
        let Self { recorder, path, named, before, .. } = self;
        if !found.is_device {
            let recorded = before.and_then(|before| before.volume().id);
            found.id = own_id(&recorder, file, &path, found.id, recorded)?;
        }
        let record = recorder.record(path, Storage::Volume(found.identity()));
        let named = Some(named).filter(|named| *named != record.path);
        let record = StorageRecord { named, ..record };
        recorder.records.keep(&record)?;
        let file = Arc::downgrade(file);
        Ok(Arc::new(KeptVolume { recorder, record: Mutex::new(record), file }))
    }

    fn judge(&self, before: &StorageRecord, found: &ObservedVolumeFile) -> VolumeFileVerdict {
        judge(&before.volume(), found, &self.path, &self.recorder.records.all())
    }
}

/// Returns the id for a file that is to be recorded at `path`. A file keeps its id, unless it is a copy of
/// another recorded volume that still has that id: then it gets a new one.
fn own_id(
    recorder: &Recorder,
    file: impl AsFd,
    path: &Path,
    found: Option<String>,
    recorded: Option<String>,
) -> Result<Option<String>, Failure> {
    let is_copy = |id: &String| {
        let others = recorder.records.all();
        let mut others = others.iter().filter(|record| record.path != path);
        others.any(|other| {
            matches!(&other.storage, Storage::Volume(volume) if volume.id.as_ref() == Some(id))
                && file_id::at(&other.path).as_ref() == Some(id)
        })
    };
    match found {
        Some(id) if !is_copy(&id) => Ok(Some(id)),
        Some(_) => file_id::put(file, path, file_id::random()?),
        None => file_id::put(file, path, recorded.map_or_else(file_id::random, Ok)?),
    }
}

impl KeptVolume {
    /// Polls the file until it holds data, and records that. From then on a start refuses a blank file of the
    /// same size in its place.
    pub fn note_first_write(self: &Arc<Self>) {
        if self.record.lock().volume().is_written {
            return;
        }
        let kept = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut renewal = Renewal::default();
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let Some(kept) = kept.upgrade() else { return };
                let note = tokio::task::spawn_blocking(move || (kept.note(), kept.is_done()));
                let Ok((noted, is_done)) = note.await else { return };
                renewal.tell(&noted);
                if is_done {
                    return;
                }
            }
        });
    }

    fn is_done(&self) -> bool {
        self.record.lock().volume().is_written
    }

    /// Records the file's size, and that data was written to it, if either has changed. A smaller size is not
    /// recorded: a volume is never made smaller on purpose, and the next start must detect the truncation.
    pub fn note(&self) -> Result<(), Failure> {
        let Some(found) = self.file.upgrade().and_then(|file| ObservedVolumeFile::of(&*file).ok())
        else {
            return Ok(());
        };
        let mut record = self.record.lock();
        let was = record.volume();
        let now = VolumeIdentity {
            bytes: found.bytes.max(was.bytes),
            is_written: was.is_written || found.is_written,
            ..was.clone()
        };
        if now == was {
            return Ok(());
        }
        let renewed = StorageRecord { storage: Storage::Volume(now), ..record.clone() };
        self.recorder.records.keep(&renewed)?;
        *record = renewed;
        Ok(())
    }
}

impl StorageRecord {
    /// Returns the recorded volume; an empty identity if the record is of a log.
    fn volume(&self) -> VolumeIdentity {
        match &self.storage {
            Storage::Volume(volume) => volume.clone(),
            Storage::Log(_) => VolumeIdentity::default(),
        }
    }
}

impl ObservedVolumeFile {
    /// Reads the properties of the file or device at `path`; `None` if it does not exist.
    fn at(path: &Path) -> io::Result<Option<Self>> {
        let found = match fs::metadata(path) {
            Err(error) if is_absent(&error) => return Ok(None),
            found => found?,
        };
        if found.file_type().is_block_device() {
            return File::open(path).and_then(|device| Self::device(&device)).map(Some);
        }
        Ok(Some(Self::file(&found, file_id::at(path))))
    }

    /// Examines an open file or device.
    fn of(file: impl AsFd) -> io::Result<Self> {
        let file = File::from(file.as_fd().try_clone_to_owned()?);
        let found = file.metadata()?;
        if found.file_type().is_block_device() {
            return Self::device(&file);
        }
        Ok(Self::file(&found, file_id::of(&file)))
    }

    fn device(mut device: &File) -> io::Result<Self> {
        // Seek to the end: the metadata of a block device report the length 0.
        let bytes = device.seek(SeekFrom::End(0))?;
        // Leave the id and the numbers of a device empty: the device node and its numbers may change with each boot.
        let (id, device, inode) = (None, 0, 0);
        let (is_written, is_device) = (false, true);
        Ok(Self { bytes, is_written, id, device, inode, is_device })
    }

    fn file(found: &fs::Metadata, id: Option<String>) -> Self {
        Self {
            bytes: found.len(),
            is_written: found.blocks() > 0,
            id,
            device: found.dev(),
            inode: found.ino(),
            is_device: false,
        }
    }

    fn identity(self) -> VolumeIdentity {
        let Self { bytes, is_written, id, device, inode, .. } = self;
        VolumeIdentity { bytes, is_written, id, device, inode }
    }
}

/// Compares the file or device at `path` with the record `was`. `all` has the records of all paths.
fn judge(
    was: &VolumeIdentity,
    found: &ObservedVolumeFile,
    path: &Path,
    all: &[StorageRecord],
) -> VolumeFileVerdict {
    let owner = |is_it: &dyn Fn(&VolumeIdentity) -> bool| {
        let others = all.iter().filter(|record| record.path != path);
        let mut owners = others
            .filter(|record| matches!(&record.storage, Storage::Volume(volume) if is_it(volume)));
        owners.next().map(|record| format!("the volume recorded as {}", record.path.display()))
    };
    let is_same = match (&was.id, &found.id) {
        (Some(was), Some(found)) if was != found => {
            let owner = owner(&|volume| volume.id.as_ref() == Some(found));
            let other = owner.unwrap_or_else(|| format!("another volume, id {found}"));
            return VolumeFileVerdict::Wrong(format!("was replaced by {other}"));
        }
        (Some(_), Some(_)) => true,
        (None, Some(found)) => match owner(&|volume| volume.id.as_ref() == Some(found)) {
            Some(owner) => return VolumeFileVerdict::Wrong(format!("was replaced by {owner}")),
            None => false,
        },
        // Without ids, only the inode identifies a file. If only the record has an id, do not trust the inode:
        // a file system reuses the inode number of a deleted file.
        (None, None) => found.is_device || (was.device, was.inode) == (found.device, found.inode),
        (Some(_), None) => false,
    };
    if is_same {
        return match found.bytes < was.bytes {
            true => VolumeFileVerdict::Wrong(format!("was truncated to {} bytes", found.bytes)),
            false => VolumeFileVerdict::Same,
        };
    }
    let has_its_inode = |volume: &VolumeIdentity| {
        volume.id.is_none() && (volume.device, volume.inode) == (found.device, found.inode)
    };
    if found.id.is_none()
        && let Some(owner) = owner(&has_its_inode)
    {
        return VolumeFileVerdict::Wrong(format!("was replaced by {owner}"));
    }
    if found.bytes != was.bytes {
        return VolumeFileVerdict::Wrong(format!(
            "was replaced by a file of {} bytes",
            found.bytes
        ));
    }
    if was.is_written && !found.is_written {
        return VolumeFileVerdict::Wrong("was replaced by a blank file".to_owned());
    }
    VolumeFileVerdict::Unmarked
}

fn cannot_look(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("cannot look at {}: {error}", path.display()))
        .remedy("give the user of this process read and write access to it")
}

/// Interval of the checks of a volume without data, each of which takes one stat(2).
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn was(id: Option<&str>) -> VolumeIdentity {
        let id = id.map(str::to_owned);
        VolumeIdentity { bytes: MIB, is_written: true, id, device: 1, inode: 2 }
    }

    fn found(id: Option<&str>, inode: u64, bytes: u64, is_written: bool) -> ObservedVolumeFile {
        let id = id.map(str::to_owned);
        ObservedVolumeFile { bytes, is_written, id, device: 1, inode, is_device: false }
    }

    fn other(id: Option<&str>, inode: u64) -> StorageRecord {
        let volume = VolumeIdentity { inode, ..was(id) };
        StorageRecord {
            path: "/b.img".into(),
            named: None,
            used_by: "iqn.a:b/1".into(),
            settings: None,
            opened: "then".into(),
            storage: Storage::Volume(volume),
        }
    }

    fn verdict(was: &VolumeIdentity, found: &ObservedVolumeFile) -> VolumeFileVerdict {
        let others = [other(Some("bb"), 7), other(None, 8)];
        judge(was, found, Path::new("/a.img"), &others)
    }

    fn is_wrong(was: &VolumeIdentity, found: &ObservedVolumeFile, expected: &str) {
        match verdict(was, found) {
            VolumeFileVerdict::Wrong(what) => assert!(what.contains(expected), "{what}"),
            verdict => panic!("{verdict:?}, not {expected}"),
        }
    }

    #[test]
    fn a_file_with_its_id_may_have_grown_and_not_shrunk() {
        let was = was(Some("aa"));
        // A copy of the file with its attributes: it has the same id and another inode number.
        assert_eq!(verdict(&was, &found(Some("aa"), 3, MIB, true)), VolumeFileVerdict::Same);
        assert_eq!(verdict(&was, &found(Some("aa"), 2, 2 * MIB, true)), VolumeFileVerdict::Same);
        is_wrong(&was, &found(Some("aa"), 2, MIB / 2, true), "truncated to 524288 bytes");
    }

    #[test]
    fn another_volume_is_recognized_by_its_id_or_without_an_id_by_its_inode() {
        is_wrong(&was(Some("aa")), &found(Some("bb"), 2, MIB, true), "recorded as /b.img");
        is_wrong(&was(Some("aa")), &found(Some("cc"), 2, MIB, true), "another volume, id cc");
        is_wrong(&was(None), &found(Some("bb"), 2, MIB, true), "recorded as /b.img");
        is_wrong(&was(None), &found(None, 8, MIB, true), "recorded as /b.img");
    }

    #[test]
    fn a_file_without_an_id_is_accepted_only_if_it_can_be_a_restored_copy() {
        for was in [was(Some("aa")), was(None)] {
            assert_eq!(verdict(&was, &found(None, 9, MIB, true)), VolumeFileVerdict::Unmarked);
            is_wrong(&was, &found(None, 9, MIB, false), "blank");
            is_wrong(&was, &found(None, 9, MIB * 2, true), "2097152 bytes");
            is_wrong(&was, &found(None, 9, MIB / 2, true), "524288 bytes");
        }
        // The new file has the inode number of a deleted one.
        is_wrong(&was(Some("aa")), &found(None, 2, MIB, false), "blank");
        assert_eq!(verdict(&was(None), &found(None, 2, MIB, true)), VolumeFileVerdict::Same);
    }
}
