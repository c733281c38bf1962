//! Memory for the data of waiting writes, shared by all sessions.

use std::{
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Memory that sessions may borrow beyond the share that is kept for each of their connections.
///
/// The shares of all connections and this pool together are `Settings::waiting_bytes`. No other session can
/// use up a share, so a session that holds little can always continue. The pool is divided evenly among the
/// sessions that borrow from it. While a session lacks room, all sessions must send the data of their writes
/// within `Settings::data_time`.
#[derive(Debug)]
pub(crate) struct WriteDataPool {
    bytes: usize,
    inner: Mutex<WriteDataPoolState>,
}

#[derive(Debug, Default)]
struct WriteDataPoolState {
    lent: usize,
    borrowers: usize,
    /// The wakers of the drivers whose sessions wait for room, each with the number of its lease.
    waiting: Vec<(u64, Waker)>,
    last_number: u64,
    /// The last time at which a session could not borrow all the memory that it requested.
    refused: Option<Instant>,
}

/// Memory for write data that a session has borrowed. Dropping this returns the memory to the pool.
#[derive(Debug)]
pub(crate) struct Lease {
    pool: Arc<WriteDataPool>,
    number: u64,
    bytes: usize,
}

/// The pool counts as contended for this time after a refusal. This is as long as three waits for room, so
/// that the state lasts while an initiator repeats writes that were answered with BUSY.
const CONTENDED: Duration = Duration::from_secs(15);

impl WriteDataPool {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { bytes, inner: Mutex::default() }
    }

    /// Returns a lease for a session that has not borrowed any memory yet.
    pub(crate) fn lease(self: &Arc<Self>) -> Lease {
        let mut inner = self.inner.lock();
        inner.last_number += 1;
        Lease { pool: Arc::clone(self), number: inner.last_number, bytes: 0 }
    }

    /// Returns true if a session could not borrow enough memory within the last [`CONTENDED`], or still waits for it.
    pub(crate) fn is_contended(&self, now: Instant) -> bool {
        let refused = self.inner.lock().refused;
        refused.is_some_and(|refused| now.saturating_duration_since(refused) < CONTENDED)
    }
}

impl Lease {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Borrows `bytes` more. Returns false if the pool has less, or if this session would then have more than
    /// an even part.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        self.borrow(bytes, false)
    }

    /// Borrows `bytes` more, even beyond an even part of the pool. Call this only for a session that has not requested
    /// the data of any other write. This way a long write can always be performed.
    pub(crate) fn grow_for_one(&mut self, bytes: usize) -> bool {
        self.borrow(bytes, true)
    }

    fn borrow(&mut self, bytes: usize, is_only: bool) -> bool {
        if bytes == 0 {
            return true;
        }
        let mut inner = self.pool.inner.lock();
        let total = self.bytes.saturating_add(bytes);
        let is_fair = is_only || total <= self.pool.bytes / inner.borrowers.max(1);
        if !is_fair || bytes > self.pool.bytes - inner.lent {
            inner.refused = Some(Instant::now());
            return false;
        }
        inner.lent += bytes;
        inner.borrowers += usize::from(self.bytes == 0);
        self.bytes = total;
        true
    }

    /// Gives back all bytes above `bytes`, and wakes the other sessions that wait for room.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        if bytes >= self.bytes {
            return;
        }
        let mut inner = self.pool.inner.lock();
        inner.lent -= self.bytes - bytes;
        inner.borrowers -= usize::from(bytes == 0);
        self.bytes = bytes;
        // Do not wake the driver of this session: giving memory back does not give it more room.
        let others = inner.waiting.extract_if(.., |(number, _)| *number != self.number);
        let others: Vec<Waker> = others.map(|(_, waker)| waker).collect();
        drop(inner);
        others.into_iter().for_each(Waker::wake);
    }

    /// Wakes this driver when another session next returns memory to the pool.
    pub(crate) fn wait(&self, waker: &Waker) {
        let mut inner = self.pool.inner.lock();
        match inner.waiting.iter_mut().find(|(number, _)| *number == self.number) {
            Some((_, waiting)) => waiting.clone_from(waker),
            None => inner.waiting.push((self.number, waker.clone())),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shrink_to(0);
        self.pool.inner.lock().waiting.retain(|(number, _)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borrowers_get_even_shares_of_the_pool_and_never_exceed_it() {
        let pool = Arc::new(WriteDataPool::new(100));
        let mut first = pool.lease();
        assert!(first.grow(30) && first.grow(60));
        let mut second = pool.lease();
        assert!(!second.grow(20), "there is no more");
        assert!(second.grow(10));
        assert!(!first.grow(1));
        first.shrink_to(50);
        assert!(!first.grow(1), "half of it");
        assert!(second.grow(40) && !second.grow(1));
        drop(first);
        assert!(second.grow(50));
        assert_eq!(second.bytes(), 100);
        second.shrink_to(0);
        let inner = pool.inner.lock();
        assert_eq!((inner.lent, inner.borrowers), (0, 0));
    }

    #[test]
    fn a_long_write_may_exceed_its_share_while_others_use_little() {
        let pool = Arc::new(WriteDataPool::new(100));
        let mut others: Vec<_> = (0..3).map(|_| pool.lease()).collect();
        assert!(others.iter_mut().all(|other| other.grow(10)));
        // The session of the long write has borrowed memory for the write's immediate data.
        let mut long = pool.lease();
        assert!(long.grow(10) && !long.grow(60), "more than an even part");
        assert!(long.grow_for_one(60));
        assert!(!others[0].grow_for_one(1), "there is no more");
    }

    #[test]
    fn a_session_that_ends_no_longer_waits_for_the_pool() {
        let pool = Arc::new(WriteDataPool::new(100));
        let now = Instant::now();
        assert!(!pool.is_contended(now));
        let mut lease = pool.lease();
        assert!(!lease.grow(101));
        lease.wait(Waker::noop());
        lease.wait(Waker::noop());
        assert_eq!(pool.inner.lock().waiting.len(), 1);
        drop(lease);
        assert!(pool.inner.lock().waiting.is_empty());
        assert!(pool.is_contended(now) && !pool.is_contended(now + 2 * CONTENDED));
    }
}
