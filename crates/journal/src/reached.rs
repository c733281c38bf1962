//! How far one of two halves of a log is, looked at by itself: halves that nobody has gone on with alone end at the
//! same segment, but for the one that was being written. One that is further behind was put back from a backup.

use volume::{Error, Stack};

use crate::{
    identity::InstanceId,
    recovery::{NoSuperblock, scan, superblock},
};

/// What a half has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LegProgress {
    /// The id of the log.
    pub instance: InstanceId,
    /// Of the superblock.
    sequence: u64,
    /// Number of the newest segment.
    pub last: u64,
    /// No segment up to that one is of this generation or a later one, as far as that is known.
    before: u64,
    /// It is known that something is missing behind the newest segment.
    has_lost: bool,
}

impl LegProgress {
    /// Looks at a half's blocks of the log; none if they hold no log that can be read.
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
            // Of an earlier generation than that of the superblock, or of that one.
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

    /// Whether it lacks something that both halves had, if nobody has gone on with the other one alone.
    pub fn is_behind(&self, other: &Self) -> bool {
        // What is damaged in one half the other one mends.
        let is_shorter = self.last + 1 < other.last && !self.has_lost;
        self.instance == other.instance && (self.sequence + 1 < other.sequence || is_shorter)
    }

    /// Whether it has more than both halves ever had, as an opening of `generation` knows that, which has
    /// found no segment from `first` on.
    pub fn is_beyond(&self, first: u64, generation: u64) -> bool {
        // One segment may have been on its way to both.
        self.last > first && self.before <= generation
    }
}
