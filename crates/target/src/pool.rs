//! Memory for the data of writes that wait, of all sessions together.

use std::{mem, sync::Arc, task::Waker};

use parking_lot::Mutex;

/// Memory that sessions may borrow beyond the share that is kept for each of their connections.
///
/// The shares of all connections and this pool together are `Settings::waiting_bytes`. Nobody can take a
/// share away, so a session that holds little always goes on. The pool is divided evenly among those who
/// borrow from it.
#[derive(Debug)]
pub(crate) struct Pool {
    bytes: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    lent: usize,
    borrowers: usize,
    /// Drivers of sessions that wait for room; at most one for each session.
    waiting: Vec<Waker>,
}

/// Memory that one session has borrowed. Dropping the lease gives it back.
#[derive(Debug)]
pub(crate) struct Lease {
    pool: Arc<Pool>,
    bytes: usize,
}

impl Pool {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { bytes, inner: Mutex::default() }
    }

    /// Nothing borrowed yet.
    pub(crate) fn lease(self: &Arc<Self>) -> Lease {
        Lease { pool: Arc::clone(self), bytes: 0 }
    }
}

impl Lease {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Borrows so many bytes more. False if the pool has less, or if this session would have more than an
    /// even part; a session that has borrowed nothing gets what is there, so that a long write is let
    /// through.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let mut inner = self.pool.inner.lock();
        let is_first = self.bytes == 0;
        let total = self.bytes.saturating_add(bytes);
        let is_fair = is_first || total <= self.pool.bytes / inner.borrowers.max(1);
        if bytes == 0 || !is_fair || bytes > self.pool.bytes - inner.lent {
            return bytes == 0;
        }
        inner.lent += bytes;
        inner.borrowers += usize::from(is_first);
        self.bytes = total;
        true
    }

    /// Gives back what is above `bytes`, and wakes those who wait for room.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        if bytes >= self.bytes {
            return;
        }
        let mut inner = self.pool.inner.lock();
        inner.lent -= self.bytes - bytes;
        inner.borrowers -= usize::from(bytes == 0);
        self.bytes = bytes;
        let waiting = mem::take(&mut inner.waiting);
        drop(inner);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Wakes this driver the next time that something is given back.
    pub(crate) fn wait(&self, waker: &Waker) {
        let mut inner = self.pool.inner.lock();
        if !inner.waiting.iter().any(|other| other.will_wake(waker)) {
            inner.waiting.push(waker.clone());
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borrowers_have_even_parts_and_never_more_than_there_is() {
        let pool = Arc::new(Pool::new(100));
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
    fn a_long_write_is_let_through_where_others_have_little() {
        let pool = Arc::new(Pool::new(100));
        let mut others: Vec<_> = (0..3).map(|_| pool.lease()).collect();
        assert!(others.iter_mut().all(|other| other.grow(10)));
        assert!(pool.lease().grow(70));
    }
}
