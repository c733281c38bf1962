//! Which cell of the tier holds which slot: two chained lists of numbers, 16 bytes a cell, taken from the
//! system as they are first used.

use std::hash::{BuildHasher, BuildHasherDefault};

use crate::slots::hash::SlotHasher;

/// Slots and their cells; each slot has one cell at most, each cell one slot.
pub(crate) struct TierIndex {
    /// By cell: its slot and one; 0: none.
    slots: Vec<u64>,
    /// By place of a slot's hash: the first cell of its chain and one; 0: none.
    heads: Vec<u32>,
    /// By cell: the next one of its chain, and one; 0: none.
    next: Vec<u32>,
    length: u64,
}

impl TierIndex {
    /// For so many cells, fewer than 2^32.
    pub fn new(cells: u32) -> Self {
        let cells = cells as usize;
        Self { slots: vec![0; cells], heads: vec![0; cells], next: vec![0; cells], length: 0 }
    }

    /// How many slots there are.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// How many cells.
    pub fn cells(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The slot in a cell.
    pub fn slot(&self, cell: u32) -> Option<u64> {
        self.slots[cell as usize].checked_sub(1)
    }

    /// The cell of a slot.
    pub fn find(&self, slot: u64) -> Option<u32> {
        let mut cell = self.heads[self.place(slot)].checked_sub(1)?;
        while self.slots[cell as usize] != slot + 1 {
            cell = self.next[cell as usize].checked_sub(1)?;
        }
        Some(cell)
    }

    /// Puts a slot, which has no cell, into a cell, which has no slot.
    pub fn insert(&mut self, slot: u64, cell: u32) {
        debug_assert!(self.find(slot).is_none() && self.slot(cell).is_none(), "both are free");
        let place = self.place(slot);
        self.slots[cell as usize] = slot + 1;
        self.next[cell as usize] = std::mem::replace(&mut self.heads[place], cell + 1);
        self.length += 1;
    }

    /// Empties a cell.
    pub fn clear(&mut self, cell: u32) {
        let Some(slot) = self.slot(cell) else { return };
        let after = std::mem::take(&mut self.next[cell as usize]);
        let place = self.place(slot);
        if self.heads[place] == cell + 1 {
            self.heads[place] = after;
        } else {
            let mut before = self.heads[place] - 1;
            while self.next[before as usize] != cell + 1 {
                before = self.next[before as usize] - 1;
            }
            self.next[before as usize] = after;
        }
        self.slots[cell as usize] = 0;
        self.length -= 1;
    }

    fn place(&self, slot: u64) -> usize {
        let hash = BuildHasherDefault::<SlotHasher>::default().hash_one(slot);
        ((u128::from(hash) * self.heads.len() as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use sim::Rng;

    use super::*;

    #[test]
    fn it_is_a_map_of_slots_to_cells() {
        let mut rng = Rng::new(7);
        let (mut index, mut map) = (TierIndex::new(100), HashMap::new());
        for _ in 0..20_000 {
            let (slot, cell) = (rng.below(300) << (rng.below(3) * 16), rng.below(100) as u32);
            if rng.chance(60) {
                index.clear(cell);
                map.retain(|_, other| *other != cell);
                if let Some(old) = index.find(slot) {
                    index.clear(old);
                }
                index.insert(slot, cell);
                map.insert(slot, cell);
            } else if let Some(cell) = index.find(slot) {
                index.clear(cell);
                map.remove(&slot);
            }
            assert_eq!(index.find(slot), map.get(&slot).copied());
            assert_eq!(index.len(), map.len() as u64);
        }
        assert!(map.iter().all(|(slot, cell)| index.find(*slot) == Some(*cell)));
        assert!((0..100).all(|cell| index.slot(cell).is_none_or(|slot| map[&slot] == cell)));
    }

    #[test]
    fn neighbours_have_short_chains() {
        let mut index = TierIndex::new(1 << 16);
        (0..1 << 16).for_each(|slot| index.insert(slot + (1 << 30), slot as u32));
        let longest = (0..1 << 16).map(|place: usize| {
            let mut length = 0;
            let mut cell = index.heads[place];
            while cell > 0 {
                length += 1;
                cell = index.next[cell as usize - 1];
            }
            length
        });
        assert!(longest.max() <= Some(12));
    }
}
