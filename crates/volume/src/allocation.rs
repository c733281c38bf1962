//! Which blocks hold space: what a volume knows of its holes.

use smallvec::SmallVec;

/// Blocks that follow each other and are all mapped, or all not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AllocationRun {
    /// How many; at least one.
    pub blocks: u32,
    /// They take space below. Otherwise they read as zeros and take none.
    pub mapped: bool,
}

/// Runs in order, from the first block that was asked about on. Neighbours differ.
///
/// It may end before the last block that was asked about: nothing is said of the rest.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Allocation(SmallVec<[AllocationRun; 4]>);

impl Allocation {
    /// So many blocks, all mapped: what is true as far as anybody can know.
    #[must_use]
    pub fn mapped(blocks: u32) -> Self {
        let mut allocation = Self::default();
        allocation.push(blocks, true);
        allocation
    }

    /// The runs.
    #[must_use]
    pub fn runs(&self) -> &[AllocationRun] {
        &self.0
    }

    /// How many blocks it tells of.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.0.iter().map(|run| run.blocks).sum()
    }

    /// Appends blocks to the last run if they are like it, else as a run of their own. False if
    /// there are [`MOST_RUNS`] already: then they are left out, and nothing may follow.
    pub fn push(&mut self, blocks: u32, mapped: bool) -> bool {
        if blocks == 0 {
            return true;
        }
        let full = self.0.len() == MOST_RUNS;
        match self.0.last_mut() {
            Some(last) if last.mapped == mapped => last.blocks += blocks,
            _ if full => return false,
            _ => self.0.push(AllocationRun { blocks, mapped }),
        }
        true
    }
}

/// Runs that are told at once: a list of 4 KiB for who asks over the network.
pub const MOST_RUNS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_kind_are_one_run_and_there_are_not_too_many() {
        let mut allocation = Allocation::mapped(3);
        assert!(allocation.push(4, true) && allocation.push(0, false) && allocation.push(1, false));
        let runs =
            [AllocationRun { blocks: 7, mapped: true }, AllocationRun { blocks: 1, mapped: false }];
        assert_eq!((allocation.runs(), allocation.blocks()), (&runs[..], 8));
        let taken = (0..1000).take_while(|n| allocation.push(1, n % 2 == 0)).count();
        assert_eq!((taken, allocation.runs().len()), (MOST_RUNS - 2, MOST_RUNS));
    }
}
