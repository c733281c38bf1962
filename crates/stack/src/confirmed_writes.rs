//! Files of the state folder that keep the newest confirmed write of each log. `docs/formats/state.md` has
//! their bytes. Copies of log and NVRAM do not contain these files, so a start recognizes an older copy of
//! both.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use cache::{BootId, ConfirmedIn, ConfirmedStore, ConfirmedWrites, InstanceId};
use crc_fast::{CrcAlgorithm, checksum};
use parking_lot::Mutex;
use volume::{ConditionChange, OngoingCondition};

use crate::{atomic_file, state_folder};

pub fn store(folder: &Path) -> ConfirmedIn {
    ConfirmedIn(Arc::new(ConfirmedFiles {
        folder: folder.to_owned(),
        open: Mutex::new(None),
        failing: Mutex::default(),
    }))
}

/// Reads the confirmed writes of a log from a state folder; `None` if the folder has no file for it. Changes
/// nothing.
pub fn recorded(folder: &Path, log: InstanceId) -> Result<Option<ConfirmedWrites>, String> {
    let path = file_of(folder, log);
    let read = || {
        let no_link = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
        let file = match File::options().read(true).custom_flags(no_link).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut bytes = Vec::new();
        file.take(FILE_BYTES as u64).read_to_end(&mut bytes)?;
        newest(&bytes)
    };
    let found = read().map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(found.map(|(_, confirmed)| confirmed))
}

fn file_of(folder: &Path, log: InstanceId) -> PathBuf {
    folder.join(format!("log-{log}.confirmed"))
}

/// Returns the kernel's boot_id (random(4)); `None` if the system has none.
pub fn boot_id() -> Option<BootId> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    number(&boot).map(BootId)
}

/// Parses 32 hexadecimal digits, with or without dashes. Zero is not an id.
fn number(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok()?;
    (digits.len() == 32 && number != 0).then(|| number.to_be_bytes())
}

/// The files with the confirmed write numbers, one for each log. The log's instance id is the file name.
struct ConfirmedFiles {
    folder: PathBuf,
    open: Mutex<Option<OpenConfirmedFile>>,
    /// Set while writes or syncs of the file fail, which an event has reported.
    failing: Mutex<OngoingCondition>,
}

/// The open file that holds the confirmed write numbers of one log.
struct OpenConfirmedFile {
    path: PathBuf,
    file: Arc<File>,
    /// The sequence number of the newest content in the file.
    sequence: u64,
}

impl ConfirmedStore for ConfirmedFiles {
    fn recall(&self, instance: InstanceId) -> Result<Option<ConfirmedWrites>, String> {
        let path = file_of(&self.folder, instance);
        let (file, found) = open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let (sequence, confirmed) = found.unzip();
        let sequence = sequence.unwrap_or(0);
        *self.open.lock() = Some(OpenConfirmedFile { path, file: Arc::new(file), sequence });
        Ok(confirmed)
    }

    fn note(&self, confirmed: ConfirmedWrites) {
        let mut open = self.open.lock();
        let Some(OpenConfirmedFile { path, file, sequence }) = &mut *open else { return };
        *sequence += 1;
        // Alternate between the two cells of the file: if a write is torn, the cell with the previous content is
        // intact.
        let at = CELLS_AT[(*sequence % 2) as usize];
        // This writes to the page cache only: the content survives the end of the process, and the write does not
        // wait for a disk.
        let written = file.write_all_at(&encode(*sequence, confirmed), at);
        let path = path.clone();
        drop(open);
        self.tell(&path, written);
    }

    fn sync(&self) {
        let open =
            self.open.lock().as_ref().map(|open| (open.path.clone(), Arc::clone(&open.file)));
        if let Some((path, file)) = open {
            // Sync, so that the number in the file is not much older after a power cut. An older number refuses no log,
            // but may fail to recognize an older copy of the log.
            self.tell(&path, file.sync_data());
        }
    }

    fn noted_at(&self) -> Option<String> {
        let open = self.open.lock();
        let modified = open.as_ref()?.file.metadata().ok()?.modified().ok()?;
        let time = jiff::Timestamp::try_from(modified).ok()?.to_zoned(jiff::tz::TimeZone::system());
        Some(time.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string())
    }
}

impl ConfirmedFiles {
    fn tell(&self, path: &Path, done: io::Result<()>) {
        match (self.failing.lock().turn(done.is_err()), done) {
            (Some(ConditionChange::Begins), Err(error)) => tracing::error!(
                path = %path.display(), %error,
                remedy = "make room in the folder of this file, and give the user of this \
                 process write access to it; it is tried again with the next write",
                "the newest confirmed write of the log cannot be recorded: an older copy of log and \
                 NVRAM may not be recognized"
            ),
            (Some(ConditionChange::Ends(lasted)), _) => tracing::info!(
                path = %path.display(), lasted_s = lasted.as_secs(),
                "the newest confirmed write of the log is recorded again"
            ),
            _ => {}
        }
    }
}

/// Opens or creates the file with the confirmed writes of a log. Allocates all of it before the first write.
fn open(path: &Path) -> io::Result<(File, Option<(u64, ConfirmedWrites)>)> {
    if let Some(folder) = path.parent() {
        state_folder::make(folder)?;
    }
    let no_link = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(no_link);
    let file = options.open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = vec![0; length.min(FILE_BYTES as u64) as usize];
    file.read_exact_at(&mut bytes, 0)?;
    if bytes.len() < FILE_BYTES && bytes.iter().all(|byte| *byte == 0) {
        // The file is new, or a crash interrupted its creation. If a power cut removes it, an older copy of log
        // and NVRAM is not recognized; no data depends on the file.
        file.write_all_at(&[0; FILE_BYTES], 0)?;
        file.sync_all()?;
        atomic_file::settle_names(path)?;
        return Ok((file, None));
    }
    let found = newest(&bytes)?;
    Ok((file, found))
}

/// Decodes the newest cell of a file with confirmed writes; `None` if the file has only zeros.
fn newest(bytes: &[u8]) -> io::Result<Option<(u64, ConfirmedWrites)>> {
    let cells = CELLS_AT.map(|at| bytes.get(at as usize..).and_then(decode));
    let newest = cells.into_iter().flatten().max_by_key(|(sequence, _)| *sequence);
    if newest.is_none() && bytes.iter().any(|byte| *byte != 0) {
        let what = "it is damaged; delete it if log and NVRAM are not an older copy";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(newest)
}

fn encode(sequence: u64, confirmed: ConfirmedWrites) -> [u8; CELL_BYTES] {
    let mut cell = [0; CELL_BYTES];
    cell[..8].copy_from_slice(MAGIC);
    cell[8..12].copy_from_slice(&VERSION.to_le_bytes());
    cell[12..16].copy_from_slice(&u32::from(confirmed.boot.is_some()).to_le_bytes());
    let numbers = [sequence, confirmed.logged, confirmed.kept];
    for (field, number) in cell[16..40].chunks_exact_mut(8).zip(numbers) {
        field.copy_from_slice(&number.to_le_bytes());
    }
    if let Some(BootId(boot)) = confirmed.boot {
        cell[40..56].copy_from_slice(&boot);
    }
    let sum = crc32c(&cell[..CHECKSUM_AT]);
    cell[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
    cell
}

/// Decodes the cell at the beginning of `bytes`; `None` if the cell is not valid.
fn decode(bytes: &[u8]) -> Option<(u64, ConfirmedWrites)> {
    let cell = bytes.first_chunk::<CELL_BYTES>()?;
    let word = |at: usize| cell[at..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let number = |at: usize| cell[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let flags = word(12)?;
    let is_whole = cell.starts_with(MAGIC)
        && word(8) == Some(VERSION)
        && flags <= 1
        && word(CHECKSUM_AT) == Some(crc32c(&cell[..CHECKSUM_AT]));
    is_whole.then_some(())?;
    let boot = (flags == 1).then_some(BootId(*cell[40..].first_chunk()?));
    Some((number(16)?, ConfirmedWrites { logged: number(24)?, kept: number(32)?, boot }))
}

fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

const MAGIC: &[u8; 8] = b"FBYCONFM";
const VERSION: u32 = 1;
const FILE_BYTES: usize = 4096;
/// Offsets in bytes of the two cells in a file of confirmed writes. The cells are in different sectors, and a disk
/// does not tear a sector.
const CELLS_AT: [u64; 2] = [0, 512];
const CELL_BYTES: usize = 64;
const CHECKSUM_AT: usize = 60;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const LOG: InstanceId = InstanceId([7; 16]);

    fn confirmed(logged: u64) -> ConfirmedWrites {
        ConfirmedWrites { logged, kept: logged + 1, boot: Some(BootId([3; 16])) }
    }

    fn recall(folder: &Path) -> Result<Option<ConfirmedWrites>, String> {
        store(folder).0.recall(LOG)
    }

    #[test]
    fn the_last_confirmed_writes_of_each_log_are_recalled() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("deeper/state");
        let ConfirmedIn(first) = store(&folder);
        assert_eq!(first.recall(LOG), Ok(None));
        for logged in 1..6 {
            first.note(confirmed(logged));
            // Read the file in the way the next process does after the first one was killed.
            assert_eq!(recall(&folder), Ok(Some(confirmed(logged))));
            assert_eq!(recorded(&folder, LOG), Ok(Some(confirmed(logged))));
        }
        first.sync();
        assert_eq!(store(&folder).0.recall(InstanceId([8; 16])), Ok(None));
        let survives = ConfirmedWrites { boot: None, ..confirmed(2) };
        let ConfirmedIn(second) = store(&folder);
        assert_eq!(second.recall(LOG), Ok(Some(confirmed(5))));
        second.note(survives);
        assert_eq!(recall(&folder), Ok(Some(survives)), "a lower number, if that is what is noted");
    }

    #[test]
    fn a_torn_cell_leaves_the_previous_one_and_damage_to_both_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let ConfirmedIn(notes) = store(folder.path());
        assert_eq!(notes.recall(LOG), Ok(None));
        notes.note(confirmed(1));
        notes.note(confirmed(2));
        let path = folder.path().join(format!("log-{LOG}.confirmed"));
        let whole = fs::read(&path).unwrap();
        assert_eq!(whole.len(), FILE_BYTES);
        let mut torn = whole.clone();
        torn[20] ^= 1;
        fs::write(&path, &torn).unwrap();
        assert_eq!(recall(folder.path()), Ok(Some(confirmed(1))));
        torn[512 + 20] ^= 1;
        fs::write(&path, &torn).unwrap();
        assert!(recall(folder.path()).unwrap_err().contains("it is damaged"));
        assert!(recorded(folder.path(), LOG).unwrap_err().contains("it is damaged"));
        assert_eq!(recorded(folder.path(), InstanceId([9; 16])), Ok(None));
        fs::write(&path, [0; 100]).unwrap();
        assert_eq!(recall(folder.path()), Ok(None), "its making was not finished");
    }

    #[test]
    fn no_file_is_made_in_a_folder_that_others_may_write_to() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(recall(folder.path()).unwrap_err().contains("others may write to"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let made = folder.path().join("deeper/state");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(recall(&made), Ok(None));
        assert_eq!(fs::metadata(&made).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_cell_byte_by_byte() {
        let cell = encode(0x0201, confirmed(0x0403));
        assert_eq!(cell[..16], *b"FBYCONFM\x01\0\0\0\x01\0\0\0");
        assert_eq!(cell[16..40], *b"\x01\x02\0\0\0\0\0\0\x03\x04\0\0\0\0\0\0\x04\x04\0\0\0\0\0\0");
        assert_eq!((&cell[40..56], &cell[56..60]), (&[3; 16][..], &[0; 4][..]));
        assert_eq!(decode(&cell), Some((0x0201, confirmed(0x0403))));
        for bit in 0..CELL_BYTES * 8 {
            let mut flipped = cell;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&flipped), None, "{bit}");
        }
    }

    #[test]
    fn an_id_is_32_digits() {
        let id = number("00112233-4455-6677-8899-aabbccddeeff\n").unwrap();
        assert_eq!(id[..4], [0x00, 0x11, 0x22, 0x33]);
        for wrong in ["", "0011", "00000000-0000-0000-0000-000000000000", "zz"] {
            assert_eq!(number(wrong), None);
        }
    }
}
