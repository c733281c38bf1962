//! The tables of a drive: a redb database on a part of the volume, and the state of the drive in memory.

use std::sync::{Arc, atomic::AtomicU64};

use object::{FIRST_IDENTIFIER, ObjectAddress, ObjectError, ObjectType, Timestamp};
use parking_lot::Mutex;
use redb::{Builder, Database, ReadableDatabase, ReadableTable, TableDefinition};
use tokio::sync::watch;

use super::{
    change_log::{self, ChangeLog},
    disk::DriveDisk,
    groups::{Groups, ReaderEpochs},
    key,
    metadata_file::MetadataFile,
    mutant::DriveMutation,
    object_row::ObjectRow,
    options::OpenError,
    row_store::{RowStore, Rows},
    superblock::Superblock,
    transaction::{Builds, Counters, DriveTables, IDENTIFIER_STEP, TAG_BYTES},
    unsynced::UnsyncedBlocks,
    works::Works,
};

pub(crate) const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");
const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");
/// The generation of the log that continues the tables.
const LOG: TableDefinition<'_, (), u64> = TableDefinition::new("log");

/// The state that commands share with the threads that load rows and commit changes.
pub(crate) struct Tables {
    pub(crate) disk: Arc<DriveDisk>,
    pub(crate) layout: Superblock,
    pub(crate) mutation: Arc<DriveMutation>,
    pub(crate) state: Mutex<DriveTables>,
    /// `None` after a failure, until the committer opens the database again. Lock order: `state`, then `database`.
    pub(crate) database: Mutex<Option<Database>>,
    /// Number of read transactions that the loader has begun.
    pub(crate) reads: AtomicU64,
    /// Only the committer uses it.
    pub(crate) log: Mutex<ChangeLog>,
    pub(crate) progress: watch::Sender<CommitProgress>,
    /// Wakes FORMAT OSD when no block is reserved any more, because no command is writing data then.
    pub(crate) idle: tokio::sync::Notify,
}

/// The progress of the committer, for tasks that wait for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommitProgress {
    /// All changes up to this version of the state are stable.
    pub(crate) stable: u64,
    pub(crate) commits: u64,
    pub(crate) failures: u64,
    pub(crate) error: String,
}

/// Opens the database in the tables' part of the volume. Blocks the thread.
pub(crate) fn open_database(
    disk: &Arc<DriveDisk>,
    layout: &Superblock,
    mutation: &Arc<DriveMutation>,
    is_new: bool,
) -> Result<Database, OpenError> {
    let file = MetadataFile::open(disk, layout.tables(), mutation)?;
    let damaged = |error: &dyn std::fmt::Display| OpenError::Tables(error.to_string());
    if is_new {
        file.clear().map_err(|error| damaged(&error))?;
    }
    Builder::new()
        .set_cache_size(PAGE_CACHE)
        .create_with_backend(file)
        .map_err(|error| damaged(&error))
}

impl Tables {
    /// Makes the state of a drive from its database and its log. Blocks.
    pub(crate) fn new(
        disk: Arc<DriveDisk>,
        layout: Superblock,
        mutation: Arc<DriveMutation>,
        database: Database,
    ) -> Result<Self, OpenError> {
        let damaged = |error: redb::Error| OpenError::Tables(error.to_string());
        let lacks = |what: &str| OpenError::Tables(format!("{what} is missing"));
        let generation = read_generation(&database).map_err(damaged)?;
        let generation = generation.ok_or_else(|| lacks("the generation of the log"))?;
        let mut rows = RowStore::new(ROW_CACHE);
        for (key, row) in change_log::recover(&disk, &layout, generation, &mutation)? {
            rows.put(key, row);
        }
        let row = match rows.changed(&key::counters()) {
            Some(row) => row.as_ref().map(|row| row.to_vec()),
            None => read_row(&database, &key::counters()).map_err(damaged)?,
        };
        let counters = row.as_deref().and_then(Counters::decode);
        let counters = counters.filter(|(_, used)| *used <= layout.data_blocks);
        let missing = || OpenError::Tables("the row of counters is missing or damaged".into());
        let (counters, used) = counters.ok_or_else(missing)?;
        let log = Mutex::new(ChangeLog::new(&layout, generation));
        let state = DriveTables {
            rows,
            groups: Groups::new(layout.data_blocks, used),
            unsynced: UnsyncedBlocks::default(),
            counters,
            version: 0,
            epochs: ReaderEpochs::new(),
            committed_epoch: 0,
            is_formatting: false,
            has_format_failed: false,
            row_limit: row_limit(layout.tables_bytes),
            step_chunks: super::options::Limits::default().step_chunks,
            // A crash may have left some over.
            has_work: true,
            last_work: 0,
            builds: Builds::default(),
            works: Works::default(),
        };
        Ok(Self {
            disk,
            layout,
            mutation,
            state: Mutex::new(state),
            database: Mutex::new(Some(database)),
            reads: AtomicU64::new(0),
            log,
            progress: watch::Sender::new(CommitProgress::default()),
            idle: tokio::sync::Notify::new(),
        })
    }

    /// Returns the offset in bytes of a block of data on the volume.
    pub(crate) fn offset(&self, block: u64) -> u64 {
        // The number may come from a hostile row. The volume refuses an offset behind its end.
        self.layout.data_start.saturating_add(block.saturating_mul(super::disk::BLOCK))
    }

    /// Returns the bytes of changed rows above which commands wait. A fold needs room for these rows in the tables.
    pub(crate) fn most_changes(&self) -> usize {
        MOST_CHANGES.min((self.layout.tables_bytes / 16) as usize)
    }

    /// Begins to read the tables as of the last commit. Returns `None` if the database failed and cannot be opened.
    pub(crate) fn read(&self) -> Result<redb::ReadTransaction, redb::Error> {
        let database = self.database.lock();
        match database.as_ref() {
            Some(database) => Ok(database.begin_read()?),
            None => Err(redb::Error::DatabaseClosed),
        }
    }
}

fn read_generation(database: &Database) -> Result<Option<u64>, redb::Error> {
    let read = database.begin_read()?;
    match read.open_table(LOG) {
        Ok(table) => Ok(table.get(())?.map(|generation| generation.value())),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn read_row(database: &Database, key: &[u8]) -> Result<Option<Vec<u8>>, redb::Error> {
    let read = database.begin_read()?;
    let table = match read.open_table(ROWS) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let row = table.get(key)?;
    Ok(row.map(|row| row.value().to_vec()))
}

/// The tables as they were when a read transaction began.
pub(crate) struct TablesReader {
    read: redb::ReadTransaction,
    rows: redb::ReadOnlyTable<&'static [u8], &'static [u8]>,
}

impl TablesReader {
    pub(crate) fn new(read: redb::ReadTransaction) -> Result<Self, redb::Error> {
        let rows = read.open_table(ROWS)?;
        Ok(Self { read, rows })
    }

    /// Returns the row with this key.
    pub(crate) fn row(&self, key: &[u8]) -> Result<Option<bytes::Bytes>, redb::Error> {
        let row = match key::is_record(key) {
            true => self.read.open_table(RECORDS)?.get(key)?,
            false => self.rows.get(key)?,
        };
        Ok(row.map(|row| bytes::Bytes::copy_from_slice(row.value())))
    }

    /// Returns at most `limit` rows whose keys are from `start` to before `end`.
    pub(crate) fn rows(
        &self,
        start: &[u8],
        end: &[u8],
        limit: usize,
    ) -> Result<Vec<(key::Key, bytes::Bytes)>, redb::Error> {
        if start >= end {
            return Ok(Vec::new());
        }
        let range = match key::is_record(start) {
            true => self.read.open_table(RECORDS)?.range(start..end)?,
            false => self.rows.range(start..end)?,
        };
        let mut rows = Vec::new();
        for row in range.take(limit) {
            let (key, value) = row?;
            let value = bytes::Bytes::copy_from_slice(value.value());
            rows.push((key::Key::from_slice(key.value()), value));
        }
        Ok(rows)
    }
}

/// Commits rows, and the generation of the log that continues them. They are stable on return, and so is everything
/// that was written to the volume before the call: the first of the two syncs of the commit makes it stable before the
/// tables point to it.
pub(crate) fn commit_rows(
    database: &Mutex<Option<Database>>,
    rows: &Rows,
    generation: u64,
    clear: bool,
) -> Result<(), redb::Error> {
    let mut write = match database.lock().as_ref() {
        Some(database) => database.begin_write()?,
        None => return Err(redb::Error::DatabaseClosed),
    };
    // Use two phases: the second one publishes rows whose pages and data blocks the first one made stable. The commit
    // also stores the free pages of the tables, so that a start after a crash need not walk through all rows.
    write.set_two_phase_commit(true);
    write.set_quick_repair(true);
    if clear {
        write.delete_table(ROWS)?;
    }
    {
        write.open_table(LOG)?.insert((), generation)?;
        let mut table = write.open_table(ROWS)?;
        let mut records = write.open_table(RECORDS)?;
        for (key, row) in rows {
            let table = if key::is_record(key) { &mut records } else { &mut table };
            match row {
                Some(row) => drop(table.insert(&key[..], &row[..])?),
                None => drop(table.remove(&key[..])?),
            }
        }
    }
    write.commit()?;
    Ok(())
}

/// Makes the pages free that the last commit has replaced: redb keeps them until the next one. Changes nothing else.
pub(crate) fn free_replaced_pages(database: &Mutex<Option<Database>>) -> Result<(), redb::Error> {
    let mut write = match database.lock().as_ref() {
        Some(database) => database.begin_write()?,
        None => return Err(redb::Error::DatabaseClosed),
    };
    write.set_two_phase_commit(true);
    write.set_quick_repair(true);
    {
        let mut log = write.open_table(LOG)?;
        let generation = log.get(())?.map(|generation| generation.value());
        if let Some(generation) = generation {
            log.insert((), generation)?;
        }
    }
    write.commit()?;
    Ok(())
}

/// Returns true if a commit has failed because the tables have no room for it.
pub(crate) fn is_full(error: &redb::Error) -> bool {
    matches!(error, redb::Error::Io(error) if error.kind() == std::io::ErrorKind::StorageFull)
}

/// Returns the space of rows above which nothing is created. A fold never overwrites a page in place, so it needs room
/// for each page that it changes: in a small part, possibly all of them.
fn row_limit(tables_bytes: u64) -> u64 {
    let fold = (tables_bytes / 2).min(MOST_FOLDED);
    tables_bytes - fold - tables_bytes / 16
}

/// Returns the counters and the rows of a drive without objects.
pub(crate) fn first_rows(now: Timestamp) -> (Counters, Rows) {
    let counters = Counters {
        next_id: FIRST_IDENTIFIER,
        reserved_id: FIRST_IDENTIFIER,
        next_content: 0,
        row_bytes: 0,
        next_tag: 1,
        oldest_tag: 1,
        objects: 0,
        partitions: 0,
        tag_horizon: [0; TAG_BYTES],
        largest_tag: [0; TAG_BYTES],
    };
    let root = ObjectRow::new(ObjectType::Root, now);
    let mut rows = Rows::new();
    rows.insert(key::object(ObjectAddress::ROOT), Some(root.encode()));
    rows.insert(key::counters(), Some(counters.encode(0)));
    (counters, rows)
}

/// Converts an error of the tables to the error of a command.
pub(crate) fn storage_error(error: impl std::fmt::Display) -> ObjectError {
    ObjectError::Storage(format!("the tables of the object drive: {error}"))
}

/// Returns the identifier below which the next commit reserves all identifiers.
pub(crate) fn identifiers_to_reserve(counters: &Counters, mutation: &DriveMutation) -> u64 {
    if mutation.is(super::mutant::DriveMutant::IdentifiersNotReserved) {
        return counters.next_id;
    }
    let half = IDENTIFIER_STEP / 2;
    if counters.next_id + half < counters.reserved_id {
        return counters.reserved_id;
    }
    counters.next_id + IDENTIFIER_STEP
}

/// Bytes of changed rows in memory above which commands wait for a commit.
const MOST_CHANGES: usize = 12 << 20;
/// Maximum number of bytes of pages that a fold changes: twice [`MOST_CHANGES`] (log and memory) in rows of 200 bytes,
/// each in a page of its own.
const MOST_FOLDED: u64 = 512 << 20;
/// Bytes of rows that are kept in memory.
const ROW_CACHE: usize = 24 << 20;
/// Maximum number of bytes of pages of the tables that redb caches in memory.
const PAGE_CACHE: usize = 16 << 20;
