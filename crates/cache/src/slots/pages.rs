//! The memory of the cache: an arena of pages whose size is fixed. The arena has the pages of the settings,
//! and some more for slots that wait for the disk of a read tier.
//!
//! A page is filled once and then frozen. After that, the log disk, the lower volume and reads of hosts share
//! it by reference. The page returns to the arena when the last reference is dropped.

use std::{
    io,
    ops::{Deref, DerefMut},
    slice,
    sync::Arc,
};

use bytes::Bytes;
use memmap2::MmapMut;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Number of bytes in a page, which holds one slot.
pub(crate) const PAGE_BYTES: usize = 4096;

/// An arena of pages of 4096 bytes, aligned to 4096 for direct I/O.
pub(crate) struct SlotPagePool {
    base: *mut u8,
    _arena: MmapMut,
    /// Numbers of the free pages. Lock order: this lock may be taken while the cache's state is locked, never
    /// the reverse.
    free: Mutex<Vec<u32>>,
    returned: Notify,
}

// SAFETY: `base` points into `_arena`, which lives as long as the pool; a page is accessed only through the
// one `PageMut` or the frozen `SlotPage` that holds its number.
unsafe impl Send for SlotPagePool {}
// SAFETY: threads share only `free`, which is behind a lock, and `base`. A page is accessed only through the
// one `PageMut` or the frozen `SlotPage` that holds its number.
unsafe impl Sync for SlotPagePool {}

impl SlotPagePool {
    /// Allocates an arena of `pages` pages. The system provides the memory when a page is first written.
    pub fn new(pages: u32) -> io::Result<Arc<Self>> {
        let mut arena = MmapMut::map_anon(pages as usize * PAGE_BYTES)?;
        // With huge pages, a random hit costs one TLB miss less. Without them, small pages are used.
        let _ = arena.advise(memmap2::Advice::HugePage);
        Ok(Arc::new(Self {
            base: arena.as_mut_ptr(),
            _arena: arena,
            free: Mutex::new((0..pages).rev().collect()),
            returned: Notify::new(),
        }))
    }

    /// Returns a free page, if there is one. The page still has its former content.
    pub fn take(self: &Arc<Self>) -> Option<PageMut> {
        self.take_beyond(0)
    }

    /// Returns a free page if more than `others` pages are free. Pages that were never used are returned
    /// last.
    pub fn take_beyond(self: &Arc<Self>, others: usize) -> Option<PageMut> {
        let mut free = self.free.lock();
        let index = if free.len() > others { free.pop()? } else { return None };
        Some(PageMut(SlotPage { pool: Arc::clone(self), index }))
    }

    /// Returns the event that is signalled when a page becomes free.
    pub fn returned(&self) -> &Notify {
        &self.returned
    }
}

/// A page with final content. Dropping it returns it to its pool.
struct SlotPage {
    pool: Arc<SlotPagePool>,
    index: u32,
}

impl SlotPage {
    fn start(&self) -> *mut u8 {
        // SAFETY: only numbers below the number of pages are handed out, so the offset stays
        // inside the mapping.
        unsafe { self.pool.base.add(self.index as usize * PAGE_BYTES) }
    }
}

impl AsRef<[u8]> for SlotPage {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the page belongs to this object alone until it is dropped, and nothing writes
        // to it once it is frozen.
        unsafe { slice::from_raw_parts(self.start(), PAGE_BYTES) }
    }
}

impl Drop for SlotPage {
    fn drop(&mut self) {
        self.pool.free.lock().push(self.index);
        self.pool.returned.notify_waiters();
    }
}

/// A page that is being filled.
pub(crate) struct PageMut(SlotPage);

impl PageMut {
    /// Ends the filling of the page. From now on the page is shared and does not change.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self.0)
    }
}

impl Deref for PageMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl DerefMut for PageMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the page belongs to this object alone, which is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.0.start(), PAGE_BYTES) }
    }
}

/// Returns a block for a disk, filled by `fill`. The block is aligned for direct I/O, unless all pages of
/// `scratch` are still being written.
pub(crate) fn scratch_block(scratch: &Arc<SlotPagePool>, fill: impl FnOnce(&mut [u8])) -> Bytes {
    match scratch.take() {
        Some(mut page) => {
            fill(&mut page);
            page.freeze()
        }
        None => {
            let mut block = vec![0; PAGE_BYTES];
            fill(&mut block);
            block.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_returns_to_the_pool_when_its_last_reference_is_dropped() {
        let pool = SlotPagePool::new(1).unwrap();
        let mut page = pool.take().unwrap();
        page.fill(7);
        assert!(pool.take().is_none());
        let bytes = page.freeze();
        let part = bytes.slice(100..200);
        drop(bytes);
        assert!(pool.take().is_none());
        assert_eq!(part, [7; 100].as_slice());
        drop(part);
        assert!(pool.take().is_some());
    }

    #[test]
    fn take_beyond_leaves_the_given_number_of_pages_free() {
        let pool = SlotPagePool::new(3).unwrap();
        let first = pool.take_beyond(2);
        assert!(first.is_some() && pool.take_beyond(2).is_none() && pool.take_beyond(1).is_some());
    }

    #[test]
    fn pages_are_aligned_and_do_not_overlap() {
        let pool = SlotPagePool::new(3).unwrap();
        let mut pages: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(pages.len(), 3);
        for (i, page) in pages.iter_mut().enumerate() {
            assert_eq!(page.as_ptr() as usize % PAGE_BYTES, 0);
            page.fill(i as u8);
        }
        assert!(pages.iter().enumerate().all(|(i, page)| page.iter().all(|&b| b == i as u8)));
    }
}
