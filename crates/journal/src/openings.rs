//! The openings of a log whose claim the lower volume may know.
//!
//! A log may be copied and opened twice. So each opening draws a number, notes it in the superblock
//! before it asks for the claim, and notes that it was granted after: wherever that is cut off, the
//! next opening of this log can name the one that the lower volume knows, and no other copy can.

use volume::{Holding, JoinedVolume};

use crate::superblock::{MAX_OPENINGS, Superblock};

impl Superblock {
    /// The openings of which the lower volume may know one.
    pub fn predecessors(&self) -> Vec<u64> {
        self.openings.iter().copied().filter(|&opening| opening != 0).collect()
    }

    /// Notes a new opening, by a number drawn at random, behind the others.
    pub fn note_opening(&mut self, [a, b, c, d, e, f, g, h, ..]: [u8; 16]) {
        let opening = u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1);
        let mut openings = self.predecessors();
        if openings.len() == MAX_OPENINGS {
            // The oldest of those that were never heard of; the one that was granted stays.
            openings.remove(usize::from(self.granted > 0));
        }
        openings.push(opening);
        self.set_openings(&openings);
    }

    /// The lower volume has granted the claim of this opening.
    pub fn note_grant(&mut self) {
        let newest = self.predecessors().last().copied().unwrap_or_default();
        self.granted = self.generation;
        self.set_openings(&[newest]);
    }

    /// Each of several volumes that has granted it by now keeps that by itself: they are not always there
    /// together.
    pub fn note_members(&mut self, joined: &JoinedVolume) {
        let newest = self.predecessors().last().copied().unwrap_or_default();
        let generation = self.generation;
        for member in self.members.iter_mut().filter(|member| member.granted < generation) {
            let lower = joined.member(member.place).map(|member| &member.lower);
            if lower.is_some_and(|lower| lower.extensions().holding() == Holding::Held) {
                (member.granted, member.opening) = (generation, newest);
            }
        }
    }

    /// It has not, and never will.
    pub fn forget_opening(&mut self) {
        let mut openings = self.predecessors();
        openings.pop();
        self.set_openings(&openings);
    }

    /// Notes the claim of going on alone among the openings, before the other half gets anything
    /// again. Its generation is not used again, whether it was granted or not.
    pub fn note_alone(&mut self, number: u64, generation: u64, is_granted: bool) {
        self.note_number(number);
        if is_granted {
            self.note_grant();
        }
        self.granted = generation;
    }

    /// Notes that a claim with this number may have been granted.
    pub fn note_number(&mut self, number: u64) {
        if number != 0 && !self.predecessors().contains(&number) {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            self.note_opening(bytes);
        }
    }

    fn set_openings(&mut self, openings: &[u64]) {
        self.openings = std::array::from_fn(|at| openings.get(at).copied().unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::tests::sample;

    #[test]
    fn the_granted_opening_stays_known_however_often_the_next_ones_are_cut_off() {
        let mut superblock = Superblock { granted: 2, ..sample() };
        superblock.set_openings(&[7]);
        for count in 2..20_u8 {
            superblock.note_opening([count + 10; 16]);
            assert_eq!(superblock.predecessors()[0], 7);
            assert_eq!(superblock.predecessors().len(), usize::from(count).min(MAX_OPENINGS));
        }
        let newest = *superblock.predecessors().last().expect("noted");
        superblock.note_grant();
        assert_eq!(superblock.predecessors(), [newest]);
        assert_eq!(superblock.granted, superblock.generation);
        superblock.note_opening([3; 16]);
        superblock.forget_opening();
        assert_eq!(superblock.predecessors(), [newest]);
    }
}
