//! The nonces that the drive has seen: they make each signed command valid once.
//!
//! The table is bounded. When it is full, the oldest nonces of the key with the most nonces are removed, and from then
//! on every nonce of that key up to the last removed one is refused. A client that floods the table therefore shortens
//! the window of its own key only.

use std::collections::{BTreeSet, HashMap};

use object::Timestamp;
use osd::{
    Refusal,
    security::{Nonce, SigningKey},
};
use parking_lot::Mutex;

/// Names the key that signed a capability, with its version.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct KeySlot {
    pub key: SigningKey,
    /// KEY VERSION of a working key; zero for keys that have no versions.
    pub version: u8,
}

/// The range of times in which a nonce is valid now, with both ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NonceWindow {
    pub oldest: Timestamp,
    pub newest: Timestamp,
}

/// The nonces that the drive has seen, by the key that signed the capability.
pub struct NonceTable {
    capacity: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    keys: HashMap<KeySlot, SeenNonces>,
    /// The number of nonces of each key, ascending.
    sizes: BTreeSet<(usize, KeySlot)>,
    total: usize,
    /// Nonces up to this time are refused, whatever key signed. Raised when a whole key is forgotten.
    floor: Timestamp,
}

/// The nonces that were used with one key.
#[derive(Default)]
struct SeenNonces {
    seen: BTreeSet<Nonce>,
    /// Nonces of this key up to this time are refused.
    floor: Timestamp,
}

impl NonceTable {
    /// Returns an empty table for at most `capacity` nonces.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), state: Mutex::default() }
    }

    /// Checks that a nonce is valid and was not used, without using it.
    ///
    /// # Errors
    /// 5/24/06 for a nonce that was used, 5/24/07 for one whose time is not valid.
    pub fn check(&self, slot: KeySlot, nonce: Nonce, window: NonceWindow) -> Result<(), Refusal> {
        self.state.lock().check(slot, nonce, window)
    }

    /// Checks that a nonce is valid and was not used, and records it as used.
    ///
    /// # Errors
    /// See [`Self::check`]. If several calls have the same nonce, at most one succeeds.
    pub fn record(&self, slot: KeySlot, nonce: Nonce, window: NonceWindow) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        state.check(slot, nonce, window)?;
        state.insert(slot, nonce, window.oldest);
        while state.total > self.capacity {
            state.evict();
        }
        if state.keys.len() > self.capacity {
            state.forget_smallest();
        }
        Ok(())
    }

    /// Returns the number of nonces in the table.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state.lock().total
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl State {
    fn check(&self, slot: KeySlot, nonce: Nonce, window: NonceWindow) -> Result<(), Refusal> {
        let seen = self.keys.get(&slot);
        let floor = self.floor.max(seen.map_or(Timestamp::ZERO, |seen| seen.floor));
        if nonce.time <= floor || nonce.time < window.oldest || nonce.time > window.newest {
            return Err(Refusal::NonceTimestampOutOfRange);
        }
        if seen.is_some_and(|seen| seen.seen.contains(&nonce)) {
            return Err(Refusal::NonceNotUnique);
        }
        Ok(())
    }

    /// Adds a nonce, and removes the nonces of the same key that are older than `oldest`.
    fn insert(&mut self, slot: KeySlot, nonce: Nonce, oldest: Timestamp) {
        self.change(slot, |seen| {
            seen.seen.insert(nonce);
            seen.drop_before(oldest);
        });
    }

    /// Removes the oldest nonces of the key that has the most.
    fn evict(&mut self) {
        let Some(&(_, slot)) = self.sizes.last() else { return };
        self.change(slot, |seen| {
            let Some(oldest) = seen.seen.pop_first() else { return };
            seen.floor = oldest.time;
            let next = Timestamp::from_ms(oldest.time.as_ms() + 1);
            seen.drop_before(next);
        });
    }

    /// Removes the key that has the fewest nonces. From then on, nonces up to its latest one are refused for every key.
    fn forget_smallest(&mut self) {
        let Some((length, slot)) = self.sizes.pop_first() else { return };
        self.total -= length;
        if let Some(seen) = self.keys.remove(&slot) {
            let latest = seen.seen.last().map_or(Timestamp::ZERO, |nonce| nonce.time);
            self.floor = self.floor.max(seen.floor).max(latest);
        }
    }

    /// Changes the nonces of one key, and updates the counts of nonces.
    fn change(&mut self, slot: KeySlot, change: impl FnOnce(&mut SeenNonces)) {
        let seen = self.keys.entry(slot).or_default();
        let before = seen.seen.len();
        change(seen);
        let after = seen.seen.len();
        self.total = self.total + after - before;
        self.sizes.remove(&(before, slot));
        self.sizes.insert((after, slot));
    }
}

impl SeenNonces {
    fn drop_before(&mut self, oldest: Timestamp) {
        while self.seen.first().is_some_and(|nonce| nonce.time < oldest) {
            self.seen.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn slot(version: u8) -> KeySlot {
        KeySlot { key: SigningKey::Working { partition: 0x10000 }, version }
    }

    const fn nonce(ms: u64, random: u8) -> Nonce {
        Nonce { time: Timestamp::from_ms(ms), random: [random; 6] }
    }

    const WINDOW: NonceWindow =
        NonceWindow { oldest: Timestamp::from_ms(1_000), newest: Timestamp::from_ms(2_000) };

    #[test]
    fn a_nonce_is_valid_once_for_each_key() {
        let table = NonceTable::new(10);
        let used = nonce(1_500, 1);
        assert_eq!(table.check(slot(0), used, WINDOW), Ok(()));
        assert_eq!(table.record(slot(0), used, WINDOW), Ok(()));
        assert_eq!(table.check(slot(0), used, WINDOW), Err(Refusal::NonceNotUnique));
        assert_eq!(table.record(slot(0), used, WINDOW), Err(Refusal::NonceNotUnique));
        assert_eq!(table.record(slot(1), used, WINDOW), Ok(()), "another key");
        assert_eq!(table.record(slot(0), nonce(1_500, 2), WINDOW), Ok(()), "another number");
    }

    #[test]
    fn a_nonce_outside_of_the_window_is_refused() {
        let table = NonceTable::new(10);
        let outside = Err(Refusal::NonceTimestampOutOfRange);
        for ms in [0, 999, 2_001, u64::MAX] {
            assert_eq!(table.record(slot(0), nonce(ms, 1), WINDOW), outside, "{ms}");
        }
        for ms in [1_000, 2_000] {
            assert_eq!(table.record(slot(0), nonce(ms, 1), WINDOW), Ok(()), "{ms}");
        }
    }

    #[test]
    fn nonces_that_left_a_full_table_are_refused_and_the_table_stays_bounded() {
        let table = NonceTable::new(100);
        for ms in 1_000..1_500 {
            assert_eq!(table.record(slot(0), nonce(ms, 1), WINDOW), Ok(()));
            assert!(table.len() <= 100);
        }
        for ms in 1_000..1_500 {
            assert!(table.record(slot(0), nonce(ms, 1), WINDOW).is_err(), "{ms} was used");
        }
        let old = table.record(slot(0), nonce(1_100, 9), WINDOW);
        assert_eq!(old, Err(Refusal::NonceTimestampOutOfRange), "as old as those that left");
    }

    #[test]
    fn a_flood_with_one_key_pushes_out_no_nonce_of_another() {
        let table = NonceTable::new(100);
        for random in 0..10 {
            table.record(slot(1), nonce(1_100, random), WINDOW).unwrap();
        }
        for ms in 1_000..2_000 {
            let _ = table.record(slot(0), nonce(ms, 1), WINDOW);
        }
        for random in 0..10 {
            let again = table.record(slot(1), nonce(1_100, random), WINDOW);
            assert_eq!(again, Err(Refusal::NonceNotUnique));
        }
        assert_eq!(table.record(slot(1), nonce(1_050, 99), WINDOW), Ok(()), "its window is whole");
    }

    #[test]
    fn nonces_at_one_time_leave_together() {
        let table = NonceTable::new(4);
        for random in 0..5 {
            table.record(slot(0), nonce(1_200, random), WINDOW).unwrap();
        }
        for random in 0..6 {
            assert!(table.record(slot(0), nonce(1_200, random), WINDOW).is_err(), "{random}");
        }
    }

    #[test]
    fn many_keys_take_bounded_memory_and_forgotten_nonces_are_refused() {
        let table = NonceTable::new(4);
        for partition in 0..50 {
            let slot = KeySlot { key: SigningKey::Working { partition }, version: 0 };
            let ms = 1_000 + partition;
            table.record(slot, nonce(ms, 1), WINDOW).unwrap();
            assert!(table.record(slot, nonce(ms, 1), WINDOW).is_err());
        }
        assert!(table.state.lock().keys.len() <= 4);
        let first = KeySlot { key: SigningKey::Working { partition: 0 }, version: 0 };
        assert!(table.record(first, nonce(1_000, 1), WINDOW).is_err());
    }

    #[test]
    fn nonces_that_are_too_old_leave() {
        let table = NonceTable::new(100);
        table.record(slot(0), nonce(1_000, 1), WINDOW).unwrap();
        let later =
            NonceWindow { oldest: Timestamp::from_ms(1_500), newest: Timestamp::from_ms(2_500) };
        table.record(slot(0), nonce(1_600, 1), later).unwrap();
        assert_eq!(table.len(), 1);
        assert!(table.record(slot(0), nonce(1_000, 1), later).is_err());
    }
}
