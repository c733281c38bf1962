//! The result of a query for mapped blocks (SBC GET LBA STATUS): which blocks have space below, and
//! which are holes.

use smallvec::SmallVec;

/// A run of adjacent blocks that are all mapped or all unmapped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AllocationRun {
    /// Number of blocks in the run; at least one.
    pub blocks: u32,
    /// True if the blocks take space in the storage below; false if they take none and read as zeros.
    pub mapped: bool,
}

/// Adjacent runs of blocks in ascending order, from the first block of the query on. A run of mapped blocks is always
/// followed by a run of unmapped blocks, and the reverse.
///
/// The list may end before the last block of the query; it states nothing about the remaining blocks.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Allocation(SmallVec<[AllocationRun; 4]>);

impl Allocation {
    /// Returns an allocation of `blocks` mapped blocks. This is the safe answer if nothing is
    /// known.
    #[must_use]
    pub fn mapped(blocks: u32) -> Self {
        let mut allocation = Self::default();
        allocation.push(blocks, true);
        allocation
    }

    #[must_use]
    pub fn runs(&self) -> &[AllocationRun] {
        &self.0
    }

    /// Returns the number of blocks that the list covers.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.0.iter().map(|run| run.blocks).sum()
    }

    /// Appends `blocks` blocks: to the last run if it is of the same kind, else as a new run. Returns false and appends
    /// nothing if there are [`MOST_RUNS`] runs already; the caller must then append no more.
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

/// Maximum number of runs in one answer. They make a list of 4 KiB, which a peer can request over
/// the network.
pub const MOST_RUNS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_runs_of_one_kind_are_joined_and_the_number_of_runs_is_bounded() {
        let mut allocation = Allocation::mapped(3);
        assert!(allocation.push(4, true) && allocation.push(0, false) && allocation.push(1, false));
        let runs =
            [AllocationRun { blocks: 7, mapped: true }, AllocationRun { blocks: 1, mapped: false }];
        assert_eq!((allocation.runs(), allocation.blocks()), (&runs[..], 8));
        let taken = (0..1000).take_while(|n| allocation.push(1, n % 2 == 0)).count();
        assert_eq!((taken, allocation.runs().len()), (MOST_RUNS - 2, MOST_RUNS));
    }
}
