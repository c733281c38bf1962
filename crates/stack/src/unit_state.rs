//! The records of units that survive a restart, as files of the state folder: `docs/formats/state.md` has their
//! bytes.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use config::Unit;
use control::Failure;
use crc_fast::{CrcAlgorithm, checksum};
use parking_lot::Mutex;
use unit::{BlockUnit, LogicalUnit, MovableUnit, Saving, UnitIdentity, UnitRecordKind, UnitStore};
use volume::{ConditionChange, OngoingCondition, Stack};

use crate::{atomic_file, state_folder};

/// Opens a unit over an open stack. With a folder, the unit continues with the records in it.
pub fn open_unit(
    unit: &Unit,
    top: Stack,
    identity: UnitIdentity,
    folder: Option<&Path>,
) -> Result<Arc<dyn LogicalUnit>, Failure> {
    let settings = unit.behavior();
    let Some(folder) = folder else {
        return Ok(Arc::new(BlockUnit::new(top, identity, settings)));
    };
    let serial = identity.serial.clone();
    let opened = StateFiles::open(folder, &identity)
        .and_then(|files| BlockUnit::open(top, identity, settings, Arc::new(files)));
    if let Ok(unit) = &opened
        && unit.is_sanitizing()
    {
        tracing::warn!(
            unit = serial,
            remedy = "nothing has to be done: it begins again from the first block; if it fails, let a host \
             send SANITIZE again",
            "a sanitize operation is not finished: hosts cannot use the blocks yet"
        );
    }
    match opened {
        Ok(unit) => Ok(Arc::new(unit)),
        Err(error) => Err(cannot_use(folder, &serial, &error)),
    }
}

/// Checks that the record files of a unit can be read and are complete. Changes nothing.
pub fn check(folder: &Path, identity: &UnitIdentity) -> Result<(), Failure> {
    let read = records(folder, identity);
    read.map(drop).map_err(|error| cannot_use(folder, &identity.serial, &error))
}

pub(crate) fn cannot_use(folder: &Path, serial: &str, error: &io::Error) -> Failure {
    let what = format!("cannot use the records of unit {serial} in {}: {error}", folder.display());
    let remedy = match error.kind() {
        io::ErrorKind::InvalidData => {
            "restore the file from a copy; or, if no host relies on a reservation that it may \
             have held, and no unit was being sanitized, delete it"
        }
        io::ErrorKind::ResourceBusy => {
            "give each unit its own `serial`, each process its own `state`"
        }
        io::ErrorKind::PermissionDenied if state_folder::check(folder).is_err() => {
            "remove write access for group and others (chmod go-w), and check its content"
        }
        _ => {
            "give the user of this process read and write access to the folder, or name another with `state`"
        }
    };
    Failure::new(what).remedy(remedy)
}

/// Returns the records of a unit with their names, to be sent to another node.
pub fn records(folder: &Path, identity: &UnitIdentity) -> io::Result<Vec<(&'static str, Vec<u8>)>> {
    let name = file_name(identity);
    let kept = UnitRecordKind::ALL.into_iter().map(|record| {
        let path = folder.join(format!("{name}.{}", record.name()));
        Ok(read(&path)?.map(|bytes| (record.name(), bytes)))
    });
    kept.filter_map(Result::transpose).collect()
}

/// Replaces all records of a unit that is not served here. They are stable on return.
pub fn replace_records(
    folder: &Path,
    identity: &UnitIdentity,
    records: &[(String, Vec<u8>)],
) -> io::Result<()> {
    let files = StateFiles::open(folder, identity)?;
    for record in UnitRecordKind::ALL {
        match records.iter().find(|(name, _)| name == record.name()) {
            Some((_, bytes)) => files.shared.replace(record, bytes)?,
            None => match fs::remove_file(files.shared.path(record)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            },
        }
    }
    atomic_file::settle_names(&files.shared.path(UnitRecordKind::Claim))
}

/// Returns the common prefix of the names of a unit's files.
fn file_name(identity: &UnitIdentity) -> String {
    identity.naa.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads the record of a unit's state from a file; `None` if the file does not exist.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match atomic_file::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(named(path, &error)),
        Ok(bytes) => match unframed(&bytes) {
            Some(record) => Ok(Some(record.to_vec())),
            None => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} is damaged", path.display()),
            )),
        },
    }
}

pub struct StateFiles {
    shared: Arc<UnitStateStore>,
    /// The number of the last requested save.
    asked: AtomicU64,
}

struct UnitStateStore {
    folder: PathBuf,
    /// The common prefix of the file names.
    name: String,
    /// The number of the newest completed save of each record.
    done: Mutex<[u64; UnitRecordKind::ALL.len()]>,
    /// For each kind of record, whether saving it fails at present. An event reports each change of this.
    failing: Mutex<[OngoingCondition; UnitRecordKind::ALL.len()]>,
    /// A lock that is held while the unit is served: no other process, and no other unit with the same designator,
    /// may write these files.
    _lock: File,
}

impl StateFiles {
    /// Opens the files of a unit in this folder, which is created if it is missing. The names are derived from the
    /// unit's designator and consist of hexadecimal digits only, so no text that a user has chosen becomes part of a
    /// path.
    pub fn open(folder: &Path, identity: &UnitIdentity) -> io::Result<Self> {
        state_folder::make(folder)?;
        let name = file_name(identity);
        let lock = volume::open_own(&folder.join(format!("{name}.lock")), true, true)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("the unit with serial number {} is served already", identity.serial),
            ),
            TryLockError::Error(error) => error,
        })?;
        let done = Mutex::new([0; UnitRecordKind::ALL.len()]);
        let failing = Mutex::default();
        let folder = folder.to_owned();
        let shared = UnitStateStore { folder, name, done, failing, _lock: lock };
        Ok(Self { shared: Arc::new(shared), asked: AtomicU64::new(0) })
    }
}

impl UnitStore for StateFiles {
    fn load(&self, record: UnitRecordKind) -> io::Result<Option<Vec<u8>>> {
        read(&self.shared.path(record))
    }

    fn save(&self, record: UnitRecordKind, bytes: Vec<u8>) -> Saving<'_> {
        let number = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let shared = Arc::clone(&self.shared);
        // Write on a blocking thread, because a sync takes time. The write completes even if the caller drops this
        // future.
        let saved = tokio::task::spawn_blocking(move || {
            let mut done = shared.done.lock();
            let newest = &mut done[record as usize];
            if *newest > number {
                return Ok(());
            }
            let replaced = shared.replace(record, &bytes);
            shared.report(record, &replaced);
            replaced?;
            *newest = number;
            Ok(())
        });
        Box::pin(async move { saved.await.map_err(io::Error::other)? })
    }
}

impl UnitStateStore {
    fn path(&self, record: UnitRecordKind) -> PathBuf {
        self.folder.join(format!("{}.{}", self.name, record.name()))
    }

    fn replace(&self, record: UnitRecordKind, bytes: &[u8]) -> io::Result<()> {
        let path = self.path(record);
        atomic_file::replace(&path, &framed(bytes)).map_err(|error| named(&path, &error))
    }
}

impl UnitStateStore {
    /// Reports a save if the saves of this record begin to fail, or succeed again: hosts repeat the commands that need it.
    fn report(&self, record: UnitRecordKind, saved: &io::Result<()>) {
        let change = self.failing.lock()[record as usize].turn(saved.is_err());
        let record = record.name();
        match (change, saved) {
            (Some(ConditionChange::Begins), Err(error)) => {
                tracing::error!(
                    record, %error,
                    remedy = "make room in the `state` folder, and give the user of this process write \
                     access to it; then repeat the command that the host reports as failed",
                    "a record of a unit cannot be saved"
                );
            }
            (Some(ConditionChange::Ends(lasted)), _) => {
                tracing::info!(
                    record,
                    lasted_s = lasted.as_secs(),
                    "the record of a unit is saved again"
                );
            }
            _ => {}
        }
    }
}

pub fn framed(record: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(record.len() as u32).to_le_bytes());
    bytes.extend_from_slice(record);
    let sum = crc32c(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// Decodes the record of a file; `None` if the file does not consist of exactly one complete record.
pub fn unframed(bytes: &[u8]) -> Option<&[u8]> {
    let (rest, sum) = bytes.split_last_chunk::<4>()?;
    let (magic, rest) = (rest.get(..8)?, rest.get(8..)?);
    let (version, rest) = rest.split_first_chunk::<4>()?;
    let (length, record) = rest.split_first_chunk::<4>()?;
    let is_whole = crc32c(&bytes[..bytes.len() - 4]) == u32::from_le_bytes(*sum)
        && magic == MAGIC
        && u32::from_le_bytes(*version) == VERSION
        && u32::from_le_bytes(*length) as usize == record.len();
    is_whole.then_some(record)
}

fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

const MAGIC: &[u8; 8] = b"FBYSTATE";
const VERSION: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(serial: &str) -> UnitIdentity {
        UnitIdentity::new(serial).with_target("iqn.2026-11.io.forebay:../../etc/passwd")
    }

    #[tokio::test]
    async fn a_record_survives_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("deeper/state");
        let files = StateFiles::open(&folder, &identity("a")).unwrap();
        assert_eq!(files.load(UnitRecordKind::Modes).unwrap(), None);
        files.save(UnitRecordKind::Modes, vec![1, 2]).await.unwrap();
        files.save(UnitRecordKind::Modes, vec![1, 3]).await.unwrap();
        files.save(UnitRecordKind::Reservations, vec![]).await.unwrap();
        drop(files);
        let files = StateFiles::open(&folder, &identity("a")).unwrap();
        assert_eq!(files.load(UnitRecordKind::Modes).unwrap(), Some(vec![1, 3]));
        assert_eq!(files.load(UnitRecordKind::Reservations).unwrap(), Some(vec![]));
        let other = StateFiles::open(&folder, &identity("b")).unwrap();
        assert_eq!(other.load(UnitRecordKind::Modes).unwrap(), None);
    }

    /// Regression: a target or unit with `../` in its name must not lead to files outside of the folder (path
    /// traversal).
    #[test]
    fn names_of_targets_and_units_are_not_used_in_paths() {
        let folder = tempfile::tempdir().unwrap();
        let files = StateFiles::open(folder.path(), &identity("../../../etc/x\0\n")).unwrap();
        let path = files.shared.path(UnitRecordKind::Reservations);
        assert_eq!(path.parent(), Some(folder.path()));
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(name.len() == 32 && name.bytes().all(|digit| digit.is_ascii_hexdigit()));
    }

    #[tokio::test]
    async fn the_later_of_two_saves_wins_even_if_no_caller_waits_for_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let files = StateFiles::open(folder.path(), &identity("a")).unwrap();
        for round in 0..50u8 {
            drop(files.save(UnitRecordKind::Modes, vec![round, 0]));
            files.save(UnitRecordKind::Modes, vec![round, 1]).await.unwrap();
            assert_eq!(files.load(UnitRecordKind::Modes).unwrap(), Some(vec![round, 1]));
        }
    }

    #[tokio::test]
    async fn a_damaged_file_is_an_error_and_never_no_reservation() {
        let folder = tempfile::tempdir().unwrap();
        let files = StateFiles::open(folder.path(), &identity("a")).unwrap();
        files.save(UnitRecordKind::Reservations, vec![7; 40]).await.unwrap();
        let path = files.shared.path(UnitRecordKind::Reservations);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            fs::write(&path, &bytes).unwrap();
            assert!(files.load(UnitRecordKind::Reservations).is_err(), "{at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert!(files.load(UnitRecordKind::Reservations).is_err(), "{at}");
        }
    }

    #[test]
    fn a_second_unit_with_the_same_serial_number_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let _first = StateFiles::open(folder.path(), &identity("a")).unwrap();
        let second = StateFiles::open(folder.path(), &identity("a"));
        assert!(second.is_err_and(|error| error.to_string().contains("serial number a")));
    }

    #[test]
    fn a_file_byte_by_byte() {
        let bytes = framed(&[9]);
        assert_eq!(bytes[..17], *b"FBYSTATE\x01\0\0\0\x01\0\0\0\x09");
        assert_eq!(bytes.len(), 21);
        assert_eq!(unframed(&bytes), Some(&[9][..]));
    }
}
