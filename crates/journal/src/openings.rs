//! The openings of a log. The claim on the lower volume names one of them.
//!
//! A log may be copied, and both copies may be opened. Each opening therefore draws a random number, and records it
//! in the superblock before it asks the lower volume for the claim. When the claim is granted, the superblock records
//! that too. After a crash between these steps, the next opening of this log can still name the opening that the
//! lower volume knows. Another copy of the log cannot.

use volume::{Holding, JoinedVolume};

use crate::superblock::{MAX_OPENINGS, Superblock};

impl Superblock {
    /// Returns the numbers of the recorded openings of this log. The lower volume has recorded one of them, or none.
    pub fn predecessors(&self) -> Vec<u64> {
        self.openings.iter().copied().filter(|&opening| opening != 0).collect()
    }

    /// Records a new opening, with a number made of random bytes, at the end of the list. If the list is full, drops
    /// the oldest opening that was not granted.
    pub fn note_opening(&mut self, [a, b, c, d, e, f, g, h, ..]: [u8; 16]) {
        let opening = u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1);
        let mut openings = self.predecessors();
        if openings.len() == MAX_OPENINGS {
            // Remove the oldest opening whose claim was never granted. The granted one is entry 0 and stays.
            openings.remove(usize::from(self.granted > 0));
        }
        openings.push(opening);
        self.set_openings(&openings);
    }

    /// Records that the lower volume has granted a claim to the opening of the log in progress.
    pub fn note_grant(&mut self) {
        let newest = self.predecessors().last().copied().unwrap_or_default();
        self.granted = self.generation;
        self.set_openings(&[newest]);
    }

    /// Records in the members which of their volumes have granted the claim of the newest opening. Each
    /// member has its own record, since not all volumes of a log need to be connected at the same time.
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

    /// Removes the newest opening. Call this only if the lower volume did not grant its claim, and cannot grant it
    /// any more.
    pub fn forget_opening(&mut self) {
        let mut openings = self.predecessors();
        openings.pop();
        self.set_openings(&openings);
    }

    /// Records the request to the storage node to continue without the partner. Do this before the partner's leg is
    /// written again. Also marks the generation of the request as used, even if the node has not granted it: no later
    /// claim may have this generation.
    pub fn note_alone(&mut self, number: u64, generation: u64, is_granted: bool) {
        self.note_number(number);
        if is_granted {
            self.note_grant();
        }
        self.granted = generation;
    }

    /// Records that a claim with this number may have been granted. Does nothing for 0 and for a number that
    /// is recorded already.
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
    fn the_granted_opening_is_kept_however_many_later_openings_are_interrupted() {
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
