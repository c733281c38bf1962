//! Maps slots to cells of the tier: a hash table with chains, made of arrays with 16 bytes per cell. The
//! system provides their memory when they are first used.

use std::hash::{BuildHasher, BuildHasherDefault};

use crate::slots::hash::SlotHasher;

/// Finds the cell of the read tier's disk that holds a slot. A slot is in at most one cell, and a cell holds at most
/// one slot.
pub(crate) struct TierIndex {
    /// For each cell, the number of its slot plus one; 0 if the cell is empty.
    slots: Vec<u64>,
    /// For each hash value the first cell of the chain plus one; 0 if there is none.
    heads: Vec<u32>,
    /// For each cell the next cell of its chain plus one; 0 if there is none.
    next: Vec<u32>,
    length: u64,
}

impl TierIndex {
    /// Creates an index for `cells` cells, fewer than 2^32.
    pub fn new(cells: u32) -> Self {
        let cells = cells as usize;
        Self { slots: vec![0; cells], heads: vec![0; cells], next: vec![0; cells], length: 0 }
    }

    pub fn len(&self) -> u64 {
        self.length
    }

    pub fn cells(&self) -> u32 {
        self.slots.len() as u32
    }

    pub fn slot(&self, cell: u32) -> Option<u64> {
        self.slots[cell as usize].checked_sub(1)
    }

    pub fn find(&self, slot: u64) -> Option<u32> {
        let mut cell = self.heads[self.place(slot)].checked_sub(1)?;
        while self.slots[cell as usize] != slot + 1 {
            cell = self.next[cell as usize].checked_sub(1)?;
        }
        Some(cell)
    }

    /// Puts a slot into a cell. The slot must be in no cell, and the cell must be empty.
    pub fn insert(&mut self, slot: u64, cell: u32) {
        debug_assert!(self.find(slot).is_none() && self.slot(cell).is_none(), "both are free");
        let place = self.place(slot);
        self.slots[cell as usize] = slot + 1;
        self.next[cell as usize] = std::mem::replace(&mut self.heads[place], cell + 1);
        self.length += 1;
    }

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
    fn the_index_maps_slots_to_cells() {
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
    fn adjacent_slots_give_short_hash_chains() {
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
