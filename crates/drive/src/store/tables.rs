//! The tables of a drive: redb on a part of the volume, and the state in memory above it.

use std::sync::Arc;

use object::{FIRST_IDENTIFIER, ObjectAddress, ObjectError, ObjectType, Timestamp};
use parking_lot::Mutex;
use redb::{Builder, Database, ReadableDatabase, TableDefinition};
use tokio::sync::watch;

use super::{
    disk::DriveDisk,
    groups::{Groups, ReaderEpochs},
    key,
    metadata_file::MetadataFile,
    mutant::DriveMutation,
    object_row::ObjectRow,
    options::OpenError,
    row_store::{RowStore, Rows},
    superblock::{Superblock, TABLES_START},
    transaction::{Counters, DriveTables, IDENTIFIER_STEP, TAG_BYTES},
};

pub(crate) const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");
const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

/// Everything that the two threads of the tables share with the commands.
pub(crate) struct Tables {
    pub(crate) disk: Arc<DriveDisk>,
    pub(crate) layout: Superblock,
    pub(crate) mutation: Arc<DriveMutation>,
    pub(crate) state: Mutex<DriveTables>,
    /// `None` after a failure, until it is opened again. Lock order: `state`, then `database`.
    pub(crate) database: Mutex<Option<Database>>,
    pub(crate) progress: watch::Sender<CommitProgress>,
    /// Wakes FORMAT OSD when the last reservation was given back.
    pub(crate) idle: tokio::sync::Notify,
}

/// The progress of commits.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommitProgress {
    /// The version up to which all changes are stable.
    pub(crate) stable: u64,
    pub(crate) commits: u64,
    pub(crate) failures: u64,
    pub(crate) error: String,
}

/// Opens the database on the tables' part of the volume. Blocks.
pub(crate) fn open_database(
    disk: &Arc<DriveDisk>,
    layout: &Superblock,
    mutation: &Arc<DriveMutation>,
    is_new: bool,
) -> Result<Database, OpenError> {
    let region = TABLES_START..TABLES_START + layout.tables_bytes;
    let file = MetadataFile::open(disk, region, mutation)?;
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
    /// Makes the state of a drive from its database. Blocks.
    pub(crate) fn new(
        disk: Arc<DriveDisk>,
        layout: Superblock,
        mutation: Arc<DriveMutation>,
        database: Database,
    ) -> Result<Self, OpenError> {
        let damaged = |error: redb::Error| OpenError::Tables(error.to_string());
        let row = read_row(&database, &key::counters()).map_err(damaged)?;
        let counters = row.as_deref().and_then(Counters::decode);
        let (counters, used) =
            counters.ok_or_else(|| OpenError::Tables("the row of counters is missing".into()))?;
        let state = DriveTables {
            rows: RowStore::new(ROW_CACHE),
            groups: Groups::new(layout.data_blocks, used),
            counters,
            version: 0,
            epochs: ReaderEpochs::new(),
            committed_epoch: 0,
            is_formatting: false,
            row_limit: layout.tables_bytes * 2 / 5,
            step_chunks: super::options::Limits::default().step_chunks,
            // A crash may have left some over.
            has_work: true,
        };
        Ok(Self {
            disk,
            layout,
            mutation,
            state: Mutex::new(state),
            database: Mutex::new(Some(database)),
            progress: watch::Sender::new(CommitProgress::default()),
            idle: tokio::sync::Notify::new(),
        })
    }

    /// Returns the first byte of a block of data on the disk.
    pub(crate) fn offset(&self, block: u64) -> u64 {
        self.layout.data_start + block * super::disk::BLOCK
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

/// Returns a row as of the begin of `read`.
pub(crate) fn get_row(
    read: &redb::ReadTransaction,
    key: &[u8],
) -> Result<Option<bytes::Bytes>, redb::Error> {
    let table = read.open_table(if key::is_record(key) { RECORDS } else { ROWS })?;
    let row = table.get(key)?;
    Ok(row.map(|row| bytes::Bytes::copy_from_slice(row.value())))
}

/// Returns at most `limit` rows from `start` on, before `end`.
pub(crate) fn get_rows(
    read: &redb::ReadTransaction,
    start: &[u8],
    end: &[u8],
    limit: usize,
) -> Result<Vec<(key::Key, bytes::Bytes)>, redb::Error> {
    if start >= end {
        return Ok(Vec::new());
    }
    let table = read.open_table(if key::is_record(start) { RECORDS } else { ROWS })?;
    let mut rows = Vec::new();
    for row in table.range(start..end)?.take(limit) {
        let (key, value) = row?;
        let value = bytes::Bytes::copy_from_slice(value.value());
        rows.push((key::Key::from_slice(key.value()), value));
    }
    Ok(rows)
}

/// Commits rows. They are stable on return, and so is everything that was written to the volume before the call: the
/// first of the two syncs of the commit makes it stable before the tables point to it.
pub(crate) fn commit_rows(
    database: &Mutex<Option<Database>>,
    rows: &Rows,
    clear: bool,
) -> Result<(), redb::Error> {
    let mut write = match database.lock().as_ref() {
        Some(database) => database.begin_write()?,
        None => return Err(redb::Error::DatabaseClosed),
    };
    // Two phases: the second one publishes rows whose pages and data blocks the first one made stable. It also stores
    // the free pages of the tables, so that a start after a crash need not walk through all rows.
    write.set_two_phase_commit(true);
    write.set_quick_repair(true);
    if clear {
        write.delete_table(ROWS)?;
    }
    {
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

/// Returns the rows of a drive without objects.
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

/// Converts an error of the tables.
pub(crate) fn storage_error(error: impl std::fmt::Display) -> ObjectError {
    ObjectError::Storage(format!("the tables of the object drive: {error}"))
}

/// Returns the identifiers that a commit reserves.
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

/// Bytes of rows that are kept in memory.
const ROW_CACHE: usize = 24 << 20;
/// Bytes of pages of the tables that are kept in memory.
const PAGE_CACHE: usize = 16 << 20;
