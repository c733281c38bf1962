//! The claim on the lower volume: this opening of the log becomes the only one that writes there.
//!
//! A log may be copied and opened twice. So each opening draws a number, notes it in the superblock
//! before it asks for the claim, and notes that it was granted after: wherever that is cut off, the
//! next opening of this log can name the one that the lower volume knows, and no other copy can.

use std::sync::Arc;

use volume::{Claim, Error, Holding, Stack};

use crate::{
    dram::PagePool,
    inspect::random,
    log::superblock::{MAX_OPENINGS, Superblock},
    refusal::OpenError,
    settings::{Report, Settings},
    state::write_copies,
};

impl Superblock {
    /// The openings of which the lower volume may know one.
    pub fn predecessors(&self) -> Vec<u64> {
        self.openings.iter().copied().filter(|&opening| opening != 0).collect()
    }

    /// Draws the number of a new opening and notes it behind the others.
    pub fn note_opening(&mut self) {
        let drawn = random(&self.identity.name);
        let [a, b, c, d, e, f, g, h, ..] = drawn;
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

    /// It has not, and never will.
    fn forget_opening(&mut self) {
        let mut openings = self.predecessors();
        openings.pop();
        self.set_openings(&openings);
    }

    fn set_openings(&mut self, openings: &[u64]) {
        self.openings = std::array::from_fn(|at| openings.get(at).copied().unwrap_or_default());
    }
}

/// Asks the lower volume for the claim of the opening that the superblock, which is written, has
/// noted last. One that is away is asked when it comes back.
pub(crate) async fn claim(
    settings: &Settings,
    (lower, log): (&Stack, &Stack),
    scratch: &Arc<PagePool>,
    superblock: &mut Superblock,
    is_dirty: bool,
) -> Result<(), OpenError> {
    let mut predecessors = superblock.predecessors();
    let opening = predecessors.pop().expect("it was noted before");
    let asked = Claim {
        owner: settings.owner.clone(),
        instance: superblock.instance.0,
        generation: superblock.generation,
        opening,
        granted: superblock.granted,
        predecessors,
        writes_back: settings.report != Report::Through,
        is_dirty,
        accept_loss: settings.accept_loss,
        takes_over: settings.takes_over,
    };
    let refused = match lower.claim(asked).await {
        Ok(Holding::Held) => {
            superblock.note_grant();
            None
        }
        Ok(Holding::Refused(reason)) | Err(Error::Fenced(reason)) => {
            superblock.forget_opening();
            Some(reason)
        }
        Ok(_) | Err(Error::Unreachable(_) | Error::Busy(_)) => return Ok(()),
        Err(error) => return Err(OpenError::Claim(error.to_string().into())),
    };
    superblock.sequence += 1;
    write_copies(log, scratch, superblock).await.map_err(OpenError::Log)?;
    refused.map_or(Ok(()), |reason| Err(OpenError::Claim(reason)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::superblock::tests::sample;

    #[test]
    fn the_granted_opening_stays_known_however_often_the_next_ones_are_cut_off() {
        let mut superblock = Superblock { granted: 2, openings: [7; 8], ..sample() };
        superblock.set_openings(&[7]);
        for count in 2..20 {
            superblock.note_opening();
            assert_eq!(superblock.predecessors()[0], 7);
            assert_eq!(superblock.predecessors().len(), count.min(MAX_OPENINGS));
        }
        let newest = *superblock.predecessors().last().expect("noted");
        superblock.note_grant();
        assert_eq!(superblock.predecessors(), [newest]);
        assert_eq!(superblock.granted, superblock.generation);
        superblock.note_opening();
        superblock.forget_opening();
        assert_eq!(superblock.predecessors(), [newest]);
    }

    #[test]
    fn no_two_openings_draw_the_same_number() {
        let mut copies = [sample(), sample()];
        copies.iter_mut().for_each(Superblock::note_opening);
        assert_ne!(copies[0].predecessors().last(), copies[1].predecessors().last());
    }
}
