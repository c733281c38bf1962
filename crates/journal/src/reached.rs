//! The last segment of one leg of a mirrored log, found without the other leg.
//!
//! As long as no gateway has continued with one leg alone, both legs end at the same segment, apart from the
//! one that was being written. A leg that ends earlier was restored from a backup, or has lost the NVRAM in
//! front of it.

use volume::{Error, Stack};

use crate::{
    identity::InstanceId,
    recovery::{NoSuperblock, scan, superblock},
};

/// How far the log on one leg of a mirror reaches.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LegProgress {
    pub instance: InstanceId,
    /// The sequence number of the superblock.
    sequence: u64,
    pub last: u64,
    /// All segments up to `last` have lower generations than this, as far as the scan can see.
    before: u64,
    /// Set if segments are known to be missing after `last`.
    has_lost: bool,
}

impl LegProgress {
    /// Scans the log on one leg. Returns `None` if the leg holds no readable log, or is smaller than the log.
    pub async fn of(half: &Stack) -> Result<Option<Self>, Error> {
        let superblock = match superblock(half).await {
            Ok(superblock) => superblock,
            Err(NoSuperblock::Io(error)) => return Err(error),
            Err(_) => return Ok(None),
        };
        if half.geometry().blocks < superblock.log_blocks {
            return Ok(None);
        }
        let mut newest = None;
        let scan = scan(half, &superblock, None, |_, header| newest = Some(header.generation));
        let scan = scan.await?;
        let last = scan.ring.next() - 1;
        let before = match newest {
            Some(generation) => generation + 1,
            // The scan has found no segment. Segment `last` has at most the generation of the superblock, and
            // a lower one if it is before `generation_first`.
            None => superblock.generation + u64::from(last >= superblock.generation_first),
        };
        Ok(Some(Self {
            instance: superblock.instance,
            sequence: superblock.sequence,
            last,
            before,
            has_lost: scan.loss.is_some(),
        }))
    }

    /// Returns true if this leg lacks something that both legs had, provided that no gateway has continued
    /// with the other leg alone.
    pub fn is_behind(&self, other: &Self) -> bool {
        // A leg with a damaged segment is not behind: the segment is repaired from the other leg.
        let is_shorter = self.last + 1 < other.last && !self.has_lost;
        self.instance == other.instance && (self.sequence + 1 < other.sequence || is_shorter)
    }

    /// Returns true if this leg has segments that the log of both legs never had. `generation` is the
    /// generation of an opening that found no segment from `first` on.
    pub fn is_beyond(&self, first: u64, generation: u64) -> bool {
        // Segment `first` itself does not count: it may have been in flight to both legs when the log was
        // opened.
        self.last > first && self.before <= generation
    }
}
