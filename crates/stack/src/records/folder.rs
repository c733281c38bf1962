//! The folder with the records of used storage, in one file for each path.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use config::{Layer, Settings};
use control::Failure;
use sha2::{Digest as _, Sha256};

use super::storage_record::{Storage, StorageRecord, now};
use crate::{atomic_file, not_opened::NotOpened, state_folder, unit_state};

/// Reads and writes the records of the storage that the units of one settings file have used.
#[derive(Clone, Debug)]
pub struct Records {
    folder: PathBuf,
    /// The settings file, for the commands in messages.
    config: PathBuf,
    /// True if the settings name no `state` folder, so that the records are next to the settings file.
    is_beside_settings: bool,
    /// The logs of all caches of the settings.
    pub(super) logs: Vec<PathBuf>,
}

/// Writes the storage records of one user of storage, which is a unit or a common cache.
#[derive(Clone, Debug)]
pub struct Recorder {
    pub records: Records,
    /// The unit as `TARGET/LUN`, or the common cache.
    pub used_by: String,
    /// True for a unit of a common cache, which is opened at a start and not by a reload.
    pub is_opened_at_start_only: bool,
}

impl Records {
    /// Returns the records of these settings. They are in the `state` folder if there is one, else in a folder
    /// next to the settings file. Claims and reservations are kept in a `state` folder only.
    pub fn of(settings: &Settings) -> Self {
        Self {
            folder: settings.records_folder(),
            config: settings.file.clone(),
            is_beside_settings: settings.state.is_none(),
            logs: logs(settings),
        }
    }

    /// Returns the path of the folder with the records, even if the folder does not exist yet.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The absolute path of the settings file.
    pub(super) fn settings(&self) -> Option<PathBuf> {
        absolute(&self.config).ok()
    }

    /// Returns a recorder for the unit or common cache `used_by`.
    pub fn recorder(&self, used_by: impl Into<String>) -> Recorder {
        let used_by = used_by.into();
        Recorder { records: self.clone(), used_by, is_opened_at_start_only: false }
    }

    /// Returns the record of a path; `None` if no storage was ever opened there. A damaged record is an error:
    /// if it counted as missing, a blank file could replace the volume.
    pub fn load(&self, path: &Path) -> Result<Option<StorageRecord>, NotOpened> {
        let named = std::path::absolute(path).map_err(Failure::new)?;
        let path = resolved(&named).unwrap_or_else(|| named.clone());
        let file = self.file(&path);
        let bytes = match read_file(&file) {
            Err(error) if is_absent(&error) => return Ok(self.by_name(named)),
            read => read.map_err(|error| self.cannot("read", &file, &error))?,
        };
        let record = read(&bytes).filter(|record| record.path == path);
        record.map(Some).ok_or_else(|| {
            let failure = Failure::new(format!(
                "{}, the record of {}, is damaged, so the storage at this path cannot be checked",
                file.display(),
                path.display()
            ))
            .remedy(format!(
                "restore {} from a copy; or, if {} is the right file, remove the record with `{}`",
                file.display(),
                path.display(),
                self.forget_command(&path, true)
            ));
            NotOpened::Refused(failure)
        })
    }

    /// Finds a record by the path as written, if the folder of that path cannot be resolved: for example
    /// through a link to a disk that is not mounted.
    fn by_name(&self, named: PathBuf) -> Option<StorageRecord> {
        if resolved(&named).is_some() {
            return None;
        }
        let named = Some(named);
        self.all().into_iter().find(|record| record.named == named)
    }

    pub fn keep(&self, record: &StorageRecord) -> Result<(), Failure> {
        let file = self.file(&record.path);
        let write = || {
            state_folder::make(&self.folder)?;
            let json = serde_json::to_vec(record).map_err(io::Error::other)?;
            atomic_file::replace(&file, &unit_state::framed(&json))
        };
        write().map_err(|error| self.cannot("write", &file, &error))
    }

    /// Removes the record of the storage at `path`. Returns true if there was one.
    pub fn forget(&self, path: &Path) -> Result<bool, Failure> {
        let file = self.file(&absolute(path)?);
        let removed = match fs::remove_file(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => Err(error),
            Ok(()) => atomic_file::settle_names(&file),
        };
        removed.map(|()| true).map_err(|error| self.cannot("remove", &file, &error))
    }

    /// Returns all records that can be read. A damaged record is reported when its own path is opened.
    pub fn all(&self) -> Vec<StorageRecord> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let files = entries.map(|entry| entry.path());
        let records = files.filter(|file| file.extension().is_some_and(|it| it == EXTENSION));
        records.filter_map(|file| read(&read_file(&file).ok()?)).collect()
    }

    pub fn forget_command(&self, path: &Path, loses_data: bool) -> String {
        config::forget_command(&self.config, path, loses_data)
    }

    /// Returns the file of a record. Its name is a hash of the path, so that no text of a user's path becomes
    /// part of a file name.
    fn file(&self, path: &Path) -> PathBuf {
        let hash = Sha256::digest(path.as_os_str().as_encoded_bytes());
        let name: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(format!("{name}.{EXTENSION}"))
    }

    fn cannot(&self, what: &str, file: &Path, error: &io::Error) -> Failure {
        let remedy = match self.is_beside_settings {
            true => format!(
                "give the user of this process write access to {}, or name another folder with `state` (with \
                 `state` the node keeps claims and reservations, too)",
                self.folder.display()
            ),
            false => format!(
                "give the user of this process read and write access to {}, or name another folder with `state`",
                self.folder.display()
            ),
        };
        Failure::new(format!("cannot {what} the record of storage {}: {error}", file.display()))
            .remedy(remedy)
    }
}

impl Recorder {
    /// Returns this recorder for a unit of a common cache, or for the common cache itself.
    pub fn in_common(self) -> Self {
        Self { is_opened_at_start_only: true, ..self }
    }

    /// Returns a part of a remedy: how the operator opens the unit once its storage is back.
    pub(super) fn again(&self) -> &'static str {
        match self.is_opened_at_start_only {
            true => "start again (a reload does not open units of a common cache)",
            false => "start again or `forebay reload`",
        }
    }

    /// Creates the record for storage at the absolute path `path`, which is being opened now.
    pub(super) fn record(&self, path: PathBuf, storage: Storage) -> StorageRecord {
        let (used_by, settings) = (self.used_by.clone(), self.records.settings());
        StorageRecord { path, named: None, used_by, settings, opened: now(), storage }
    }
}

/// Reports failed renewals of one record with two events: one when the failures begin and one when they end.
#[derive(Default)]
pub(super) struct Renewal {
    has_failed: bool,
}

#[derive(Debug, Eq, PartialEq)]
enum RecordRenewalChange {
    Fails,
    Succeeds,
}

impl Renewal {
    /// Reports the result of a renewal if the one before had the other result (success or failure).
    pub(super) fn tell(&mut self, renewed: &Result<(), Failure>) {
        match (self.turn(renewed.is_err()), renewed) {
            (Some(RecordRenewalChange::Fails), Err(failure)) => tracing::warn!(
                %failure,
                "a record of storage cannot be renewed; it is tried again, and reported when it succeeds"
            ),
            (Some(RecordRenewalChange::Succeeds), _) => {
                tracing::info!("the record of storage is renewed again");
            }
            _ => {}
        }
    }

    fn turn(&mut self, fails: bool) -> Option<RecordRenewalChange> {
        let before = std::mem::replace(&mut self.has_failed, fails);
        match (before, fails) {
            (false, true) => Some(RecordRenewalChange::Fails),
            (true, false) => Some(RecordRenewalChange::Succeeds),
            _ => None,
        }
    }
}

fn logs(settings: &Settings) -> Vec<PathBuf> {
    let layers =
        settings.target.iter().flat_map(|target| &target.unit).flat_map(|unit| &unit.stack);
    let caches = layers.filter_map(|layer| match layer {
        Layer::Cache(cache) => Some(cache),
        _ => None,
    });
    let caches = caches.chain(settings.common_cache.iter().map(|common| &common.cache));
    let paths = caches.flat_map(|cache| [Some(&cache.log), cache.log_mirror.as_ref()]).flatten();
    paths.filter_map(|path| absolute(path).ok()).collect()
}

/// Returns the path under which a file is recorded. Its folder is resolved, so that two names of one folder
/// give one record. The last component is not resolved: a dangling link, and a link to a device whose number
/// changes with each boot, keep their records.
pub fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let path = std::path::absolute(path).map_err(Failure::new)?;
    Ok(resolved(&path).unwrap_or(path))
}

/// Resolves the folder of a path; `None` if the folder does not exist.
fn resolved(path: &Path) -> Option<PathBuf> {
    Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?))
}

/// Returns true if the error means that the file does not exist.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Reads the file of a record, at most as many bytes as a record can have. Links are not followed.
fn read_file(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    volume::open_own(file, false, false)?.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn read(bytes: &[u8]) -> Option<StorageRecord> {
    serde_json::from_slice(unit_state::unframed(bytes)?).ok()
}

/// More than a record needs: two to four paths of 4096 bytes (PATH_MAX), each byte at most six in JSON, and
/// some hundred bytes more.
const MOST_BYTES: u64 = 128 << 10;
/// The extension of a record's file.
const EXTENSION: &str = "storage";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::{super::storage_record::VolumeIdentity, *};

    fn records(folder: &Path) -> Records {
        Records::of(&Settings { file: folder.join("node.toml"), ..Settings::default() })
    }

    fn record(path: PathBuf) -> StorageRecord {
        let storage = Storage::Volume(VolumeIdentity { bytes: 4096, ..VolumeIdentity::default() });
        let used_by = "iqn.a:b/0".into();
        StorageRecord { path, named: None, used_by, settings: None, opened: now(), storage }
    }

    #[test]
    fn a_record_is_in_a_private_folder_next_to_the_settings_until_it_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let records = records(folder.path());
        let path = absolute(&folder.path().join("v.img")).unwrap();
        assert_eq!(records.load(&path).unwrap(), None);
        records.keep(&record(path.clone())).unwrap();
        assert_eq!(records.load(&path).unwrap().unwrap().path, path);
        assert_eq!(records.all().len(), 1);
        let made = folder.path().join("forebay-state").metadata().unwrap();
        assert_eq!(made.permissions().mode() & 0o777, 0o700);
        assert!(records.forget(&path).unwrap());
        assert!(!records.forget(&path).unwrap());
        assert_eq!(records.load(&path).unwrap(), None);
    }

    #[test]
    fn a_damaged_record_is_an_error_and_never_no_record() {
        let folder = tempfile::tempdir().unwrap();
        let records = records(folder.path());
        let path = absolute(&folder.path().join("v.img")).unwrap();
        records.keep(&record(path.clone())).unwrap();
        let file = records.file(&path);
        let whole = fs::read(&file).unwrap();
        for at in 0..whole.len() {
            fs::write(&file, &whole[..at]).unwrap();
            assert!(records.load(&path).is_err(), "cut at {at}");
        }
        records.keep(&record("/elsewhere".into())).unwrap();
        fs::copy(records.file(Path::new("/elsewhere")), &file).unwrap();
        let failure = Failure::from(records.load(&path).unwrap_err());
        assert!(failure.remedy.unwrap().contains("forebay forget"));
    }

    #[test]
    fn the_command_that_forgets_a_path_can_be_pasted() {
        let records = records(Path::new("/etc/my nodes"));
        assert_eq!(
            records.forget_command(Path::new("/srv/a b.img"), true),
            "forebay forget '/srv/a b.img' --config '/etc/my nodes/node.toml' --lose-data --hosts-unmounted"
        );
        assert!(records.forget_command(Path::new("/srv/v.img"), false).contains(" /srv/v.img "));
    }

    #[test]
    fn two_names_of_one_folder_lead_to_one_record() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let [one, two] = [real, link].map(|folder| absolute(&folder.join("v.img")).unwrap());
        assert_eq!(one, two);
    }

    /// While its disk is not mounted, a volume behind a link must still be found by its path as written.
    /// Otherwise it would be mistaken for one that was never opened.
    #[test]
    fn a_record_is_found_by_the_path_as_written_while_its_link_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let records = records(folder.path());
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let named = link.join("v.img");
        let kept =
            StorageRecord { named: Some(named.clone()), ..record(absolute(&named).unwrap()) };
        records.keep(&kept).unwrap();
        fs::remove_dir(&real).unwrap();
        assert_eq!(records.load(&named).unwrap(), Some(kept));
        assert_eq!(records.load(&link.join("other.img")).unwrap(), None);
        // The symbolic link leads to another disk now, on which no volume was ever opened.
        fs::create_dir(folder.path().join("other")).unwrap();
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(folder.path().join("other"), &link).unwrap();
        assert_eq!(records.load(&named).unwrap(), None);
    }

    #[test]
    fn a_link_in_the_place_of_a_record_is_an_error_and_never_no_record() {
        let folder = tempfile::tempdir().unwrap();
        let records = records(folder.path());
        let path = absolute(&folder.path().join("v.img")).unwrap();
        records.keep(&record(path.clone())).unwrap();
        let (file, elsewhere) = (records.file(&path), folder.path().join("elsewhere"));
        fs::rename(&file, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
        let failure = Failure::from(records.load(&path).unwrap_err());
        assert!(failure.message.contains("symbolic link"), "{failure}");
    }

    #[test]
    fn failed_renewals_of_a_record_are_reported_once_and_their_end_once() {
        let mut renewal = Renewal::default();
        let turns = [false, true, true, true, false, false, true].map(|fails| renewal.turn(fails));
        let (fails, succeeds) =
            (Some(RecordRenewalChange::Fails), Some(RecordRenewalChange::Succeeds));
        assert_eq!(
            turns,
            [None, fails, None, None, succeeds, None, Some(RecordRenewalChange::Fails)]
        );
    }
}
