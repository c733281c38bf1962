//! Reads the rows of the tables in order, as of one commit.

use bytes::Bytes;
use redb::{Database, ReadOnlyTable, ReadableDatabase};

use crate::store::{key::Key, tables::ROWS};

/// The rows of a drive's tables as of one commit. The drive is not in use.
pub(super) struct ExaminedRows(ReadOnlyTable<&'static [u8], &'static [u8]>);

impl ExaminedRows {
    pub(super) fn new(database: &Database) -> Result<Self, redb::Error> {
        Ok(Self(database.begin_read()?.open_table(ROWS)?))
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, redb::Error> {
        let row = self.0.get(key)?;
        Ok(row.map(|row| Bytes::copy_from_slice(row.value())))
    }

    pub(super) fn has(&self, key: &[u8]) -> Result<bool, redb::Error> {
        Ok(self.0.get(key)?.is_some())
    }

    /// Calls `each` for the rows whose keys are from `start` to before `end`.
    pub(super) fn each(
        &self,
        start: &[u8],
        end: &[u8],
        mut each: impl FnMut(Key, Bytes) -> Result<(), redb::Error>,
    ) -> Result<(), redb::Error> {
        for row in self.0.range(start..end)? {
            let (key, value) = row?;
            each(Key::from_slice(key.value()), Bytes::copy_from_slice(value.value()))?;
        }
        Ok(())
    }
}
