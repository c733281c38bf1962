//! Locks on ranges of blocks, which make COMPARE AND WRITE atomic against every other write.
//!
//! A write takes its locks in shared mode, at the moment its future is made. A command whose new data depends on the
//! blocks that it reads takes its locks in exclusive mode.

use smallvec::SmallVec;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use volume::Extent;

/// The locks on the blocks of one unit.
///
/// Blocks are locked by stripes of 1 MiB. Stripe `n` has lock `n % LOCKS`. The locks are fair, which prevents
/// starvation. A command that needs several takes them in ascending order, which prevents deadlock.
#[derive(Debug)]
pub(crate) struct BlockRangeLocks {
    locks: [RwLock<()>; LOCKS],
}

/// Locks on a range of blocks. Dropping this releases the locks.
#[allow(dead_code, reason = "guards are held, not read")]
#[derive(Debug)]
pub(crate) enum BlockRangeGuard<'a> {
    Alone(SmallVec<[RwLockWriteGuard<'a, ()>; 2]>),
    Shared(SmallVec<[RwLockReadGuard<'a, ()>; 2]>),
}

impl Default for BlockRangeLocks {
    fn default() -> Self {
        Self { locks: std::array::from_fn(|_| RwLock::new(())) }
    }
}

impl BlockRangeLocks {
    /// Takes the locks of a write, shared with other writes. Returns `None` if a lock is not free
    /// at once, which is rare.
    pub(crate) fn shared_now(
        &self,
        extent: Extent,
        block_size: u32,
    ) -> Option<BlockRangeGuard<'_>> {
        let locks = indexes(extent, block_size);
        let guards = locks.map(|index| self.locks[index].try_read().ok()).collect();
        Option::map(guards, BlockRangeGuard::Shared)
    }

    /// Takes the locks of a write, shared with other writes. Waits until they are free.
    pub(crate) async fn shared(&self, extent: Extent, block_size: u32) -> BlockRangeGuard<'_> {
        let mut guards = SmallVec::new();
        for index in indexes(extent, block_size) {
            guards.push(self.locks[index].read().await);
        }
        BlockRangeGuard::Shared(guards)
    }

    /// Locks the blocks of `extent` exclusively: all other writes to these blocks wait.
    pub(crate) async fn alone(&self, extent: Extent, block_size: u32) -> BlockRangeGuard<'_> {
        let mut guards = SmallVec::new();
        for index in indexes(extent, block_size) {
            guards.push(self.locks[index].write().await);
        }
        BlockRangeGuard::Alone(guards)
    }
}

/// Returns the indexes of the locks of an extent: ascending, and each index once.
fn indexes(extent: Extent, block_size: u32) -> impl Iterator<Item = usize> {
    let per_stripe = u64::from(STRIPE / block_size);
    let first = extent.lba.0 / per_stripe;
    let stripes = (extent.end().0 - 1) / per_stripe - first + 1;
    let (from, count) = ((first % LOCKS as u64) as usize, stripes.min(LOCKS as u64) as usize);
    // Stripes after the last lock wrap around to the first locks.
    let wrapped = (from + count).saturating_sub(LOCKS);
    (0..wrapped).chain(from..(from + count).min(LOCKS))
}

/// Bytes of a stripe, the range of blocks that has one lock. Most commands move no more than this, and so need one or
/// two locks.
const STRIPE: u32 = 1 << 20;
/// Number of locks. Large enough that commands on different stripes rarely share a lock.
const LOCKS: usize = 64;

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use volume::Lba;

    use super::*;

    fn extent(lba: u64, blocks: u32) -> Extent {
        Extent { lba: Lba(lba), blocks }
    }

    #[test]
    fn the_locks_of_an_extent_are_in_order_and_without_duplicates() {
        let of = |lba, blocks| indexes(extent(lba, blocks), 512).collect::<Vec<_>>();
        assert_eq!(of(0, 1), [0]);
        assert_eq!(of(2047, 2), [0, 1]);
        assert_eq!(of(64 * 2048, 2048), [0]);
        assert_eq!(of(62 * 2048, 3 * 2048), [0, 62, 63]);
        assert_eq!(of(5 * 2048 + 1, u32::MAX), (0..64).collect::<Vec<_>>());
    }

    #[test]
    fn an_exclusive_lock_waits_for_writes_in_progress_and_blocks_later_ones_on_its_blocks() {
        let claims = BlockRangeLocks::default();
        let mut context = Context::from_waker(Waker::noop());
        let write = claims.shared_now(extent(8, 8), 512).expect("no other command is there");
        let mut alone = pin!(claims.alone(extent(0, 4096), 512));
        assert!(alone.as_mut().poll(&mut context).is_pending());
        assert!(claims.shared_now(extent(0, 1), 512).is_none(), "overtakes a waiting command");
        assert!(claims.shared_now(extent(4096, 1), 512).is_some(), "another stripe");
        drop(write);
        let Poll::Ready(claim) = alone.as_mut().poll(&mut context) else {
            panic!("the write has ended");
        };
        let mut later = pin!(claims.shared(extent(100, 1), 512));
        assert!(later.as_mut().poll(&mut context).is_pending());
        drop(claim);
        assert!(later.as_mut().poll(&mut context).is_ready());
    }
}
