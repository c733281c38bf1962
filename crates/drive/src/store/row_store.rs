//! The rows in memory: changes that are not stable yet, changes that are in the log but not in the tables, and a bounded
//! cache of rows of the tables.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bytes::Bytes;

use super::key::Key;

/// Changed rows by key; `None` means that the row is removed.
pub(crate) type Rows = BTreeMap<Key, Option<Bytes>>;

/// Rows that a transaction needs, and that must be read from the tables first.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Need {
    Row(Key),
    /// The row of a user object, and the row of one of its chunks.
    Object {
        key: Key,
        chunk: u64,
    },
    /// At most `limit` rows whose keys are from `start` to before `end`.
    Range {
        start: Key,
        end: Key,
        limit: usize,
    },
    /// The bitmap of this group of blocks.
    Group(u64),
}

/// Rows that were read from the tables for the transactions of one command.
#[derive(Debug, Default)]
pub(crate) struct LoadedRows {
    /// The number of changes of the tables when the rows were read.
    pub(crate) generation: u64,
    pub(crate) rows: HashMap<Key, Option<Bytes>>,
    pub(crate) ranges: Vec<LoadedRange>,
}

#[derive(Debug)]
pub(crate) struct LoadedRange {
    pub(crate) start: Key,
    pub(crate) end: Key,
    pub(crate) limit: usize,
    pub(crate) rows: Vec<(Key, Bytes)>,
}

impl LoadedRange {
    /// Returns true if the tables may have more rows in the range than the limit permitted to read.
    pub(crate) fn is_partial(&self) -> bool {
        self.rows.len() >= self.limit
    }
}

pub(crate) struct RowStore {
    pub(crate) delta: Rows,
    pub(crate) delta_bytes: usize,
    /// The rows that are being committed.
    frozen: Option<Arc<Rows>>,
    /// Rows that are in the log and not in the tables. They are older than the frozen ones.
    logged: Rows,
    logged_bytes: usize,
    /// The rows of the log that are being written to the tables. They are the oldest ones.
    folding: Option<Arc<Rows>>,
    cache: RowCache,
    /// The number of changes of the tables: rows read from them in another generation may be out of date.
    pub(crate) generation: u64,
}

impl RowStore {
    pub(crate) fn new(cache_bytes: usize) -> Self {
        Self {
            delta: Rows::new(),
            delta_bytes: 0,
            frozen: None,
            logged: Rows::new(),
            logged_bytes: 0,
            folding: None,
            cache: RowCache::new(cache_bytes),
            generation: 0,
        }
    }

    /// Returns a row that differs from the tables. The inner value is `None` if the row was removed.
    pub(crate) fn changed(&self, key: &Key) -> Option<&Option<Bytes>> {
        let frozen = || self.frozen.as_ref().and_then(|frozen| frozen.get(key));
        let folding = || self.folding.as_ref().and_then(|folding| folding.get(key));
        self.delta.get(key).or_else(frozen).or_else(|| self.logged.get(key)).or_else(folding)
    }

    /// Returns all rows that differ from the tables, in layers: a later layer replaces rows of an earlier one.
    pub(crate) fn layers(&self) -> impl Iterator<Item = &Rows> {
        let (folding, frozen) = (self.folding.as_deref(), self.frozen.as_deref());
        folding.into_iter().chain([&self.logged]).chain(frozen).chain([&self.delta])
    }

    /// Returns the memory that rows take which are in the log and not in the tables.
    pub(crate) fn logged_bytes(&self) -> usize {
        self.logged_bytes
    }

    /// Returns the value of a row if it is in memory; the inner `None` means that there is no such row.
    pub(crate) fn get(&mut self, key: &Key) -> Option<Option<Bytes>> {
        match self.changed(key) {
            Some(row) => Some(row.clone()),
            None => self.cache.get(key),
        }
    }

    pub(crate) fn put(&mut self, key: Key, row: Option<Bytes>) {
        insert(&mut self.delta, &mut self.delta_bytes, key, row);
    }

    /// Caches a row that was read from the tables in the present generation, so that it is not out of date.
    pub(crate) fn remember(&mut self, key: &Key, row: Option<&Bytes>) {
        self.cache.put(key.clone(), row.cloned());
    }

    /// Takes all changed rows out for a commit. Until the commit ends, readers still find them.
    pub(crate) fn freeze(&mut self) -> Arc<Rows> {
        let rows = Arc::new(std::mem::take(&mut self.delta));
        self.delta_bytes = 0;
        self.frozen = Some(Arc::clone(&rows));
        rows
    }

    /// Adds the rows of the log to the frozen ones, for a fold. Returns all of them.
    pub(crate) fn freeze_logged(&mut self) -> Arc<Rows> {
        let mut rows = std::mem::take(&mut self.logged);
        self.logged_bytes = 0;
        let mut frozen = self.frozen.take().unwrap_or_default();
        if !rows.is_empty() {
            rows.extend(frozen.iter().map(|(key, row)| (key.clone(), row.clone())));
            frozen = Arc::new(rows);
        }
        self.frozen = Some(Arc::clone(&frozen));
        frozen
    }

    /// Notes that the frozen rows are in the log.
    pub(crate) fn was_logged(&mut self) {
        let Some(frozen) = self.frozen.take() else { return };
        for (key, row) in frozen.iter() {
            insert(&mut self.logged, &mut self.logged_bytes, key.clone(), row.clone());
        }
    }

    /// Notes that the frozen rows are in the tables.
    pub(crate) fn committed(&mut self) {
        if let Some(frozen) = self.frozen.take() {
            self.keep(frozen);
        }
        self.generation += 1;
    }

    /// Takes the rows of the log for a fold that runs beside commits.
    pub(crate) fn begin_fold(&mut self) -> Arc<Rows> {
        let rows = Arc::new(std::mem::take(&mut self.logged));
        self.logged_bytes = 0;
        self.folding = Some(Arc::clone(&rows));
        rows
    }

    /// Notes that the rows of [`RowStore::begin_fold`] are in the tables.
    pub(crate) fn folded(&mut self) {
        if let Some(folding) = self.folding.take() {
            self.keep(folding);
        }
        self.generation += 1;
    }

    /// Puts the rows of [`RowStore::begin_fold`] back below newer ones, because the fold failed.
    pub(crate) fn unfold(&mut self) {
        let Some(folding) = self.folding.take() else { return };
        for (key, row) in folding.iter() {
            if !self.logged.contains_key(key) {
                insert(&mut self.logged, &mut self.logged_bytes, key.clone(), row.clone());
            }
        }
    }

    /// Puts rows of the tables into the cache.
    fn keep(&mut self, rows: Arc<Rows>) {
        match Arc::try_unwrap(rows) {
            Ok(rows) => rows.into_iter().for_each(|(key, row)| self.cache.put(key, row)),
            Err(rows) => {
                rows.iter().for_each(|(key, row)| self.cache.put(key.clone(), row.clone()));
            }
        }
    }

    /// Puts the frozen rows back below newer changes, because their commit failed.
    pub(crate) fn thaw(&mut self) {
        let Some(frozen) = self.frozen.take() else { return };
        for (key, row) in frozen.iter() {
            if !self.delta.contains_key(key) {
                self.put(key.clone(), row.clone());
            }
        }
    }

    /// Drops all rows from memory, because the drive was formatted.
    pub(crate) fn clear(&mut self) {
        self.delta.clear();
        self.delta_bytes = 0;
        self.frozen = None;
        self.logged.clear();
        self.logged_bytes = 0;
        self.folding = None;
        self.cache.clear();
        self.generation += 1;
    }
}

/// Replaces a row in a layer, and counts its memory.
fn insert(rows: &mut Rows, bytes: &mut usize, key: Key, row: Option<Bytes>) {
    let (size, key_bytes) = (row_bytes(&key, row.as_ref()), row_bytes(&key, None));
    *bytes += size;
    if let Some(old) = rows.insert(key, row) {
        *bytes = bytes.saturating_sub(key_bytes + old.map_or(0, |old| old.len()));
    }
}

fn row_bytes(key: &Key, row: Option<&Bytes>) -> usize {
    key.len() + row.map_or(0, Bytes::len) + ROW_OVERHEAD
}

/// A cache of rows in two halves: when the younger half is full, it becomes the older one, and the former older one is
/// dropped.
struct RowCache {
    young: HashMap<Key, Option<Bytes>>,
    old: HashMap<Key, Option<Bytes>>,
    young_bytes: usize,
    half: usize,
}

impl RowCache {
    fn new(bytes: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), young_bytes: 0, half: bytes / 2 }
    }

    fn get(&mut self, key: &Key) -> Option<Option<Bytes>> {
        if let Some(row) = self.young.get(key) {
            return Some(row.clone());
        }
        let row = self.old.remove(key)?;
        self.put(key.clone(), row.clone());
        Some(row)
    }

    fn put(&mut self, key: Key, row: Option<Bytes>) {
        self.old.remove(&key);
        self.young_bytes += row_bytes(&key, row.as_ref());
        if let Some(old) = self.young.insert(key, row) {
            self.young_bytes -= old.map_or(0, |old| old.len()).min(self.young_bytes);
        }
        if self.young_bytes > self.half {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
    }

    fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
        self.young_bytes = 0;
    }
}

/// Bytes of memory that a row needs beside its key and value, for the tree or table that holds it.
const ROW_OVERHEAD: usize = 160;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> Key {
        Key::from_slice(&[n])
    }

    #[test]
    fn a_row_is_found_in_every_state_of_its_commit_and_the_newest_value_wins() {
        let mut rows = RowStore::new(1 << 20);
        rows.remember(&key(1), Some(&Bytes::from_static(b"stable")));
        rows.put(key(1), Some(Bytes::from_static(b"first")));
        rows.freeze();
        assert_eq!(rows.get(&key(1)), Some(Some(Bytes::from_static(b"first"))));
        rows.put(key(1), None);
        assert_eq!(rows.get(&key(1)), Some(None));
        rows.committed();
        assert_eq!(rows.get(&key(1)), Some(None));
        rows.freeze();
        rows.committed();
        assert_eq!((rows.get(&key(1)), rows.get(&key(2))), (Some(None), None));
    }

    #[test]
    fn a_row_of_the_log_is_found_until_a_fold_puts_it_into_the_tables() {
        let mut rows = RowStore::new(1 << 20);
        rows.put(key(1), Some(Bytes::from_static(b"first")));
        rows.put(key(2), Some(Bytes::from_static(b"kept")));
        rows.freeze();
        rows.was_logged();
        assert_eq!(
            (rows.generation, rows.delta_bytes > 0, rows.logged_bytes() > 0),
            (0, false, true)
        );
        rows.put(key(1), None);
        assert_eq!(rows.changed(&key(1)), Some(&None));
        assert_eq!(rows.changed(&key(2)), Some(&Some(Bytes::from_static(b"kept"))));
        rows.freeze();
        let all = rows.freeze_logged();
        assert_eq!((all.len(), &all[&key(1)], rows.logged_bytes()), (2, &None, 0));
        assert_eq!(rows.changed(&key(2)), Some(&Some(Bytes::from_static(b"kept"))));
        drop(all);
        rows.committed();
        assert_eq!((rows.changed(&key(2)), rows.generation), (None, 1));
        assert_eq!(rows.get(&key(2)), Some(Some(Bytes::from_static(b"kept"))));
    }

    #[test]
    fn a_fold_beside_commits_keeps_its_rows_below_newer_ones() {
        let mut rows = RowStore::new(1 << 20);
        let value = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
        rows.put(key(1), value("old"));
        rows.put(key(2), value("kept"));
        rows.freeze();
        rows.was_logged();
        drop(rows.begin_fold());
        rows.put(key(1), value("new"));
        rows.freeze();
        rows.was_logged();
        assert_eq!(rows.changed(&key(1)), Some(&value("new")));
        assert_eq!(rows.changed(&key(2)), Some(&value("kept")));
        rows.unfold();
        assert_eq!(rows.changed(&key(1)), Some(&value("new")));
        assert_eq!((rows.changed(&key(2)), rows.generation), (Some(&value("kept")), 0));
        drop(rows.begin_fold());
        rows.folded();
        assert_eq!((rows.changed(&key(1)), rows.generation), (None, 1));
        assert_eq!(rows.get(&key(1)), Some(value("new")));
    }

    #[test]
    fn a_row_that_changes_often_is_counted_once() {
        let mut rows = RowStore::new(1 << 20);
        rows.put(key(1), Some(Bytes::from_static(b"first")));
        let once = rows.delta_bytes;
        (0..10).for_each(|_| rows.put(key(1), Some(Bytes::from_static(b"other"))));
        assert_eq!(rows.delta_bytes, once);
    }

    #[test]
    fn a_failed_commit_keeps_newer_changes() {
        let mut rows = RowStore::new(1 << 20);
        rows.put(key(1), Some(Bytes::from_static(b"a")));
        rows.put(key(2), Some(Bytes::from_static(b"b")));
        rows.freeze();
        rows.put(key(1), Some(Bytes::from_static(b"c")));
        rows.thaw();
        assert_eq!(rows.get(&key(1)), Some(Some(Bytes::from_static(b"c"))));
        assert_eq!(rows.get(&key(2)), Some(Some(Bytes::from_static(b"b"))));
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_rows_in_use() {
        let mut cache = RowCache::new(20_000);
        cache.put(key(0), Some(Bytes::from(vec![7; 10])));
        for n in 0..2000_u32 {
            cache.put(Key::from_slice(&n.to_be_bytes()), Some(Bytes::from(vec![0; 10])));
            assert!(cache.get(&key(0)).is_some(), "{n}");
            assert!(cache.young.len() + cache.old.len() < 300);
        }
    }
}
