//! The rows in memory: changes that are not stable yet, and a bounded cache of stable rows.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bytes::Bytes;

use super::key::Key;

/// Rows with their new values; `None`: the row is removed.
pub(crate) type Rows = BTreeMap<Key, Option<Bytes>>;

/// Rows that a transaction needs and that are not in memory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Need {
    Row(Key),
    /// At most `limit` rows from `start` on, before `end`.
    Range {
        start: Key,
        end: Key,
        limit: usize,
    },
    /// The bitmap of a group of blocks.
    Group(u64),
}

/// Rows that were read from the tables for one command.
#[derive(Debug, Default)]
pub(crate) struct LoadedRows {
    /// The number of commits when the rows were read.
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
    /// Returns true if there may be more rows in the tables.
    pub(crate) fn is_partial(&self) -> bool {
        self.rows.len() >= self.limit
    }
}

pub(crate) struct RowStore {
    pub(crate) delta: Rows,
    pub(crate) delta_bytes: usize,
    /// The rows that are being committed.
    pub(crate) frozen: Option<Arc<Rows>>,
    cache: RowCache,
    /// The number of commits: rows read from the tables in another generation may be out of date.
    pub(crate) generation: u64,
}

impl RowStore {
    pub(crate) fn new(cache_bytes: usize) -> Self {
        Self {
            delta: Rows::new(),
            delta_bytes: 0,
            frozen: None,
            cache: RowCache::new(cache_bytes),
            generation: 0,
        }
    }

    /// Returns a changed row, unless it is unchanged since the last commit.
    pub(crate) fn changed(&self, key: &Key) -> Option<&Option<Bytes>> {
        self.delta.get(key).or_else(|| self.frozen.as_ref().and_then(|frozen| frozen.get(key)))
    }

    /// Returns a row if it is in memory.
    pub(crate) fn get(&mut self, key: &Key) -> Option<Option<Bytes>> {
        match self.changed(key) {
            Some(row) => Some(row.clone()),
            None => self.cache.get(key),
        }
    }

    pub(crate) fn put(&mut self, key: Key, row: Option<Bytes>) {
        let size = row_bytes(&key, row.as_ref());
        self.delta_bytes += size;
        if let Some(Some(old)) = self.delta.insert(key, row) {
            self.delta_bytes = self.delta_bytes.saturating_sub(old.len());
        }
    }

    /// Keeps a row that was read from the tables in the present generation.
    pub(crate) fn remember(&mut self, key: &Key, row: Option<&Bytes>) {
        self.cache.put(key.clone(), row.cloned());
    }

    /// Takes the changed rows for a commit.
    pub(crate) fn freeze(&mut self) -> Arc<Rows> {
        let rows = Arc::new(std::mem::take(&mut self.delta));
        self.delta_bytes = 0;
        self.frozen = Some(Arc::clone(&rows));
        rows
    }

    /// Notes that the frozen rows are in the tables.
    pub(crate) fn committed(&mut self) {
        if let Some(frozen) = self.frozen.take() {
            match Arc::try_unwrap(frozen) {
                Ok(rows) => rows.into_iter().for_each(|(key, row)| self.cache.put(key, row)),
                Err(rows) => {
                    rows.iter().for_each(|(key, row)| self.cache.put(key.clone(), row.clone()));
                }
            }
        }
        self.generation += 1;
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

    /// Forgets everything, for a drive that was formatted.
    pub(crate) fn clear(&mut self) {
        self.delta.clear();
        self.delta_bytes = 0;
        self.frozen = None;
        self.cache.clear();
        self.generation += 1;
    }
}

fn row_bytes(key: &Key, row: Option<&Bytes>) -> usize {
    key.len() + row.map_or(0, Bytes::len) + ROW_OVERHEAD
}

/// A cache of two halves: when the younger half is full, it becomes the older one, which is dropped.
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
        // A slice of a longer buffer would keep the whole buffer.
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

/// Memory of a row beside its key and value: the tree or table around it.
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
