//! Records of volume files and of block devices that hold a volume.

use std::{
    fs::{self, File},
    io::{self, Seek, SeekFrom},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    folder::{Recorder, absolute, is_absent},
    mark,
    record::{Record, Storage, VolumeIdentity},
};
use crate::{
    failure::{Failure, NotOpened},
    quantity::about,
};

/// The record of a volume that is about to be opened. The file or device at its path agrees with it.
pub struct VolumeRecord {
    recorder: Recorder,
    path: PathBuf,
    /// The id that the volume had.
    id: Option<String>,
}

/// The record of a volume that is open.
pub struct KeptVolume {
    recorder: Recorder,
    record: Mutex<Record>,
}

/// The file or device found at a path.
struct Found {
    bytes: u64,
    is_written: bool,
    id: Option<String>,
    device: u64,
    inode: u64,
    is_device: bool,
}

/// The result of the comparison of a file or device with its record.
#[derive(Debug, Eq, PartialEq)]
enum Verdict {
    /// It is the recorded volume, perhaps larger.
    Same,
    /// It has the recorded size, and nothing tells whether it is the recorded volume: a copy that was
    /// put back has no id.
    Unmarked,
    /// It is not the recorded volume, or not all of it.
    Wrong(String),
}

impl Recorder {
    /// Compares the file or device at `path` with its record. Changes nothing.
    pub fn look_at_volume(&self, path: &Path) -> Result<VolumeRecord, NotOpened> {
        let before = self.records.load(path)?;
        let path = absolute(path)?;
        let Some(record) = before else {
            return Ok(VolumeRecord { recorder: self.clone(), path, id: None });
        };
        let was = match &record.storage {
            Storage::Volume(was) => was,
            Storage::Log(_) if record.may_hold_data() => {
                return Err(self.another_kind(&record, "a cache log"));
            }
            Storage::Log(_) => {
                return Ok(VolumeRecord { recorder: self.clone(), path, id: None });
            }
        };
        let found = Found::at(&path).map_err(|error| cannot_look(&path, &error))?;
        match found.map(|found| judge(was, &found, &path, &self.records.all())) {
            Some(Verdict::Same) => {}
            Some(Verdict::Unmarked) => tracing::warn!(
                path = %path.display(), unit = self.used_by,
                "the volume file is not the one that was served last, and has no id: it is taken \
                 for a copy that was put back"
            ),
            Some(Verdict::Wrong(what)) => return Err(self.refused(&record, &what)),
            None => return Err(self.refused(&record, "is missing")),
        }
        Ok(VolumeRecord { recorder: self.clone(), path, id: was.id.clone() })
    }

    fn refused(&self, record: &Record, what: &str) -> NotOpened {
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
            "mount its disk or put the file back, and {}; to give up \
             that volume and use what is there, or a new and empty one: `{}`",
            self.again(),
            self.records.forget_command(&record.path, true)
        )))
    }

    pub(super) fn another_kind(&self, record: &Record, kind: &str) -> NotOpened {
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
    /// Records the volume, which is open and locked by now: stable when this returns, and before
    /// anything of it is served.
    pub fn keep(self) -> Result<Arc<KeptVolume>, Failure> {
        let Self { recorder, path, id, .. } = self;
        let found = Found::at(&path).and_then(|found| found.ok_or(io::ErrorKind::NotFound.into()));
        let mut found = found.map_err(|error| cannot_look(&path, &error))?;
        if !found.is_device {
            found.id = own_id(&recorder, &path, found.id, id)?;
        }
        let record = recorder.record(path, Storage::Volume(found.identity()));
        recorder.records.keep(&record)?;
        Ok(Arc::new(KeptVolume { recorder, record: Mutex::new(record) }))
    }
}

/// The id of a file that is to be recorded at `path`. A file keeps the id it has, unless it is a copy
/// of another recorded volume, which still has that id.
fn own_id(
    recorder: &Recorder,
    path: &Path,
    found: Option<String>,
    recorded: Option<String>,
) -> Result<Option<String>, Failure> {
    let is_copy = |id: &String| {
        let others = recorder.records.all();
        let mut others = others.iter().filter(|record| record.path != path);
        others.any(|other| {
            matches!(&other.storage, Storage::Volume(volume) if volume.id.as_ref() == Some(id))
                && mark::of(&other.path).as_ref() == Some(id)
        })
    };
    match found {
        Some(id) if !is_copy(&id) => Ok(Some(id)),
        Some(_) => mark::put(path, mark::random()?),
        None => mark::put(path, recorded.map_or_else(mark::random, Ok)?),
    }
}

impl KeptVolume {
    /// Checks the file until something was written to it, and records that then. From then on a blank file of
    /// the same size is refused in its place.
    pub fn note_first_write(self: &Arc<Self>) {
        if self.record.lock().volume().is_written {
            return;
        }
        let kept = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let Some(kept) = kept.upgrade() else { return };
                let look =
                    tokio::task::spawn_blocking(move || kept.note().map(|()| kept.is_done()));
                match look.await {
                    Ok(Ok(false)) => {}
                    Ok(Ok(true)) | Err(_) => return,
                    Ok(Err(failure)) => {
                        tracing::warn!(%failure, "a volume's record is not renewed")
                    }
                }
            }
        });
    }

    fn is_done(&self) -> bool {
        self.record.lock().volume().is_written
    }

    /// Notes the file's size, and whether something was written to it, if either has changed.
    pub fn note(&self) -> Result<(), Failure> {
        let mut record = self.record.lock();
        let Ok(Some(found)) = Found::at(&record.path) else { return Ok(()) };
        let was = record.volume();
        let is_this = found.is_device || (found.device, found.inode) == (was.device, was.inode);
        let now = VolumeIdentity {
            bytes: found.bytes,
            is_written: was.is_written || found.is_written,
            ..was.clone()
        };
        if !is_this || now == was {
            return Ok(());
        }
        let renewed = Record { storage: Storage::Volume(now), ..record.clone() };
        self.recorder.records.keep(&renewed)?;
        *record = renewed;
        Ok(())
    }
}

impl Record {
    /// The volume that it is about; of another kind of storage nothing is known.
    fn volume(&self) -> VolumeIdentity {
        match &self.storage {
            Storage::Volume(volume) => volume.clone(),
            Storage::Log(_) => VolumeIdentity::default(),
        }
    }
}

impl Found {
    fn at(path: &Path) -> io::Result<Option<Self>> {
        let found = match fs::metadata(path) {
            Err(error) if is_absent(&error) => return Ok(None),
            found => found?,
        };
        if found.file_type().is_block_device() {
            // A device says 0 in its metadata; its end tells.
            let bytes = File::open(path)?.seek(SeekFrom::End(0))?;
            // Node and numbers may change with each boot.
            let (id, device, inode) = (None, 0, 0);
            let (is_written, is_device) = (false, true);
            return Ok(Some(Self { bytes, is_written, id, device, inode, is_device }));
        }
        Ok(Some(Self {
            bytes: found.len(),
            is_written: found.blocks() > 0,
            id: mark::of(path),
            device: found.dev(),
            inode: found.ino(),
            is_device: false,
        }))
    }

    fn identity(self) -> VolumeIdentity {
        let Self { bytes, is_written, id, device, inode, .. } = self;
        VolumeIdentity { bytes, is_written, id, device, inode }
    }
}

/// Compares the file or device at `path` with the record `was`. `all` has the records of all paths.
fn judge(was: &VolumeIdentity, found: &Found, path: &Path, all: &[Record]) -> Verdict {
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
            return Verdict::Wrong(format!("was replaced by {other}"));
        }
        (Some(_), Some(_)) => true,
        (None, Some(found)) => match owner(&|volume| volume.id.as_ref() == Some(found)) {
            Some(owner) => return Verdict::Wrong(format!("was replaced by {owner}")),
            None => false,
        },
        // Without ids the inode is the best there is. A file that has lost its id is another one: a
        // file system uses the number of a deleted file again.
        (None, None) => found.is_device || (was.device, was.inode) == (found.device, found.inode),
        (Some(_), None) => false,
    };
    if is_same {
        return match found.bytes < was.bytes {
            true => Verdict::Wrong(format!("was cut to {} bytes", found.bytes)),
            false => Verdict::Same,
        };
    }
    let has_its_inode = |volume: &VolumeIdentity| {
        volume.id.is_none() && (volume.device, volume.inode) == (found.device, found.inode)
    };
    if found.id.is_none()
        && let Some(owner) = owner(&has_its_inode)
    {
        return Verdict::Wrong(format!("was replaced by {owner}"));
    }
    if found.bytes != was.bytes {
        return Verdict::Wrong(format!("was replaced by a file of {} bytes", found.bytes));
    }
    if was.is_written && !found.is_written {
        return Verdict::Wrong("was replaced by a blank file".to_owned());
    }
    Verdict::Unmarked
}

fn cannot_look(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("cannot look at {}: {error}", path.display()))
        .remedy("let the user who serves read and write it")
}

/// A volume that was never written is checked at this interval, with one stat(2).
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn was(id: Option<&str>) -> VolumeIdentity {
        let id = id.map(str::to_owned);
        VolumeIdentity { bytes: MIB, is_written: true, id, device: 1, inode: 2 }
    }

    fn found(id: Option<&str>, inode: u64, bytes: u64, is_written: bool) -> Found {
        let id = id.map(str::to_owned);
        Found { bytes, is_written, id, device: 1, inode, is_device: false }
    }

    fn other(id: Option<&str>, inode: u64) -> Record {
        let volume = VolumeIdentity { inode, ..was(id) };
        Record {
            path: "/b.img".into(),
            used_by: "iqn.a:b/1".into(),
            opened: "then".into(),
            storage: Storage::Volume(volume),
        }
    }

    fn verdict(was: &VolumeIdentity, found: &Found) -> Verdict {
        let others = [other(Some("bb"), 7), other(None, 8)];
        judge(was, found, Path::new("/a.img"), &others)
    }

    fn is_wrong(was: &VolumeIdentity, found: &Found, expected: &str) {
        match verdict(was, found) {
            Verdict::Wrong(what) => assert!(what.contains(expected), "{what}"),
            verdict => panic!("{verdict:?}, not {expected}"),
        }
    }

    #[test]
    fn a_file_with_its_id_may_have_grown_and_not_shrunk() {
        let was = was(Some("aa"));
        // Copied with its attributes: another inode.
        assert_eq!(verdict(&was, &found(Some("aa"), 3, MIB, true)), Verdict::Same);
        assert_eq!(verdict(&was, &found(Some("aa"), 2, 2 * MIB, true)), Verdict::Same);
        is_wrong(&was, &found(Some("aa"), 2, MIB / 2, true), "cut to 524288 bytes");
    }

    #[test]
    fn another_volume_is_known_by_its_id_or_where_there_is_none_by_its_inode() {
        is_wrong(&was(Some("aa")), &found(Some("bb"), 2, MIB, true), "recorded as /b.img");
        is_wrong(&was(Some("aa")), &found(Some("cc"), 2, MIB, true), "another volume, id cc");
        is_wrong(&was(None), &found(Some("bb"), 2, MIB, true), "recorded as /b.img");
        is_wrong(&was(None), &found(None, 8, MIB, true), "recorded as /b.img");
    }

    #[test]
    fn a_file_without_an_id_is_taken_for_a_restored_copy_only_if_it_could_be_one() {
        for was in [was(Some("aa")), was(None)] {
            assert_eq!(verdict(&was, &found(None, 9, MIB, true)), Verdict::Unmarked);
            is_wrong(&was, &found(None, 9, MIB, false), "blank");
            is_wrong(&was, &found(None, 9, MIB * 2, true), "2097152 bytes");
            is_wrong(&was, &found(None, 9, MIB / 2, true), "524288 bytes");
        }
        // The number of a deleted file, given to a new one.
        is_wrong(&was(Some("aa")), &found(None, 2, MIB, false), "blank");
        assert_eq!(verdict(&was(None), &found(None, 2, MIB, true)), Verdict::Same);
    }
}
