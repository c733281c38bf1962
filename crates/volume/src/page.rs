//! Reference-counted pages of 4096 bytes for volumes in memory.
//!
//! Pages lie in arenas of 2 MiB, which the kernel backs with huge pages where it can. The reference
//! counts of an arena lie together at its start. A random access therefore costs one miss of the
//! TLB and of the caches instead of four (docs/results/bench.md has the effect).

use std::{
    io,
    ptr::{self, NonNull},
    slice,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering, fence},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Length of a page in bytes: a physical block, and the usual size of a host's writes.
pub(crate) const PAGE: usize = 4096;

/// Length of an arena in bytes: a huge page of x86-64 and of AArch64 with 4 KiB pages. An arena is
/// aligned to its length, so that the address of a page gives the address of its arena.
const ARENA: usize = 2 << 20;

/// Number of pages in an arena that can be allocated. The first page holds the [`PageArenaHeader`].
const PAGES_PER_ARENA: usize = ARENA / PAGE - 1;

/// Allocates pages of memory from mapped arenas. A page may outlive the pool.
#[derive(Default)]
pub(crate) struct MemPagePool {
    arenas: Arc<Mutex<Arenas>>,
}

/// The arenas that have free pages. An arena without free pages is in no list: only the references to its pages lead to
/// it.
#[derive(Default)]
struct Arenas {
    /// Pages are taken from the last arena.
    usable: Vec<NonNull<PageArenaHeader>>,
    /// Number of arenas in `usable` of which all pages are free.
    empty: usize,
    /// True after the pool was dropped: no pages are taken any more.
    closed: bool,
}

// SAFETY: the headers are reached under the pool's lock, or through the atomic counts in them.
unsafe impl Send for Arenas {}

struct PageArenaHeader {
    /// For each page of the arena, the number of references to it; 0 if the page is free.
    shares: [AtomicU32; PAGES_PER_ARENA],
    /// Numbers of the free pages, in the first `free_pages` elements. Protected by the lock of the
    /// pool.
    free: [u16; PAGES_PER_ARENA],
    free_pages: usize,
    arenas: Arc<Mutex<Arenas>>,
}

const _: () = assert!(size_of::<PageArenaHeader>() <= PAGE);

/// The most arenas without used pages that a pool keeps for later pages: 64 MiB. An object drive frees as many blocks
/// between two commits, and soon needs others: a new mapping costs more than the data of its pages.
const SPARE_ARENAS: usize = 32;

impl MemPagePool {
    /// Takes a page with unspecified content and a reference count of 1.
    ///
    /// # Errors
    /// The kernel has no memory.
    pub(crate) fn take(&self) -> io::Result<MemPage> {
        let mut arenas = self.arenas.lock();
        let header = match arenas.usable.last() {
            Some(arena) => arena.as_ptr(),
            None => {
                let arena = map(&self.arenas)?;
                arenas.usable.push(arena);
                arenas.empty += 1;
                arena.as_ptr()
            }
        };
        // SAFETY: an arena in the list is mapped and has a free page; its free list is ours under
        // the lock. The page lies behind the header in the same arena, and no other thread reads
        // its count while that is 0. No reference to the whole header is made, because other
        // threads use its counts.
        unsafe {
            if (*header).free_pages == PAGES_PER_ARENA {
                arenas.empty -= 1;
            }
            let free_pages = (*header).free_pages - 1;
            (*header).free_pages = free_pages;
            let number = usize::from((*header).free[free_pages]);
            if free_pages == 0 {
                arenas.usable.pop();
            }
            (*header).shares[number].store(1, Ordering::Relaxed);
            Ok(MemPage(NonNull::new_unchecked(header.cast::<u8>().add(PAGE * (number + 1)))))
        }
    }
}

impl Drop for MemPagePool {
    fn drop(&mut self) {
        let mut arenas = self.arenas.lock();
        arenas.closed = true;
        let empty: Vec<_> = arenas.usable.extract_if(.., |arena| is_empty(*arena)).collect();
        arenas.empty = 0;
        drop(arenas);
        // SAFETY: no page of these arenas is in use, and the list does not contain them any more.
        empty.into_iter().for_each(|arena| unsafe { unmap(arena) });
    }
}

impl Arenas {
    /// Takes back a page whose last reference was dropped. Returns the arena if the caller has to unmap it.
    /// [`SPARE_ARENAS`] empty arenas are kept for later pages.
    ///
    /// # Safety
    /// Page `number` of `arena`, an arena of this pool, has no references.
    unsafe fn give_back(
        &mut self,
        arena: NonNull<PageArenaHeader>,
        number: usize,
    ) -> Option<NonNull<PageArenaHeader>> {
        let header = arena.as_ptr();
        // SAFETY: the arena is mapped until its last page is given back. `&mut self` proves that the caller holds the
        // lock of the pool.
        let free_pages = unsafe {
            let free_pages = (*header).free_pages;
            (*header).free[free_pages] = number as u16;
            (*header).free_pages = free_pages + 1;
            free_pages + 1
        };
        if free_pages == 1 {
            self.usable.push(arena);
        }
        if free_pages < PAGES_PER_ARENA {
            return None;
        }
        if !self.closed && self.empty < SPARE_ARENAS {
            self.empty += 1;
            return None;
        }
        self.usable.retain(|usable| *usable != arena);
        Some(arena)
    }
}

/// A counted reference to a page of memory, which takes 8 bytes, also in an `Option`.
pub(crate) struct MemPage(NonNull<u8>);

// SAFETY: a page with several references is only read; its count is atomic.
unsafe impl Send for MemPage {}
// SAFETY: through a shared reference the page is only read, and its reference count is atomic.
unsafe impl Sync for MemPage {}

impl MemPage {
    /// Returns the page for writing, unless there are other references to it.
    pub(crate) fn get_mut(&mut self) -> Option<&mut [u8; PAGE]> {
        // Acquire pairs with the release in `drop`: all reads through dropped references happened before this write.
        if self.shares().load(Ordering::Acquire) != 1 {
            return None;
        }
        // SAFETY: this is the only reference, and it is borrowed mutably. Memory of an arena is
        // initialised: by the kernel, or by the former user of the page.
        Some(unsafe { self.0.cast().as_mut() })
    }

    /// Returns the page as `Bytes`, which are another reference to it, for reading only.
    pub(crate) fn to_bytes(&self) -> Bytes {
        let relaxed = self.shares().fetch_add(1, Ordering::Relaxed);
        // References are bytes in transit, and their number is far below this bound; a count that
        // wraps would be fatal.
        assert!(relaxed < u32::MAX / 2, "shares of a page leak");
        prefetch(self.0);
        Bytes::from_owner(Self(self.0))
    }

    fn shares(&self) -> &AtomicU32 {
        let (arena, number) = self.place();
        // SAFETY: the arena is mapped while one of its pages is in use, and `self` is such a page.
        unsafe { &(*arena.as_ptr()).shares[number] }
    }

    /// Returns the header of the arena that holds the page, and the page's number in the arena.
    fn place(&self) -> (NonNull<PageArenaHeader>, usize) {
        let offset = self.0.addr().get() % ARENA;
        // SAFETY: the header of the arena is `offset` bytes before the page, in the same mapping.
        (unsafe { self.0.byte_sub(offset) }.cast(), offset / PAGE - 1)
    }
}

impl AsRef<[u8]> for MemPage {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: a page is written only through `get_mut`, which requires the only reference.
        unsafe { slice::from_raw_parts(self.0.as_ptr(), PAGE) }
    }
}

impl Drop for MemPage {
    fn drop(&mut self) {
        // Release pairs with the acquire in `get_mut`: reads through this reference happen before the page is written
        // again.
        if self.shares().fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        let (arena, number) = self.place();
        // SAFETY: the arena is mapped until its last page is given back, and this page is not given back yet.
        let arenas = unsafe { (*arena.as_ptr()).arenas.clone() };
        // SAFETY: the count was 1, so no reference to the page is left.
        let spare = unsafe { arenas.lock().give_back(arena, number) };
        if let Some(arena) = spare {
            // SAFETY: no page of this arena is in use, and the list does not contain the arena any more.
            unsafe { unmap(arena) };
        }
    }
}

/// Prefetches the page into the processor's cache: it is there when a socket or a disk copies it.
fn prefetch(page: NonNull<u8>) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..PAGE).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: prefetches a cache line of the page, which changes nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(page.as_ptr().add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = page;
}

/// Returns true if no page of the arena is taken. The caller holds the lock of the pool.
fn is_empty(arena: NonNull<PageArenaHeader>) -> bool {
    // SAFETY: an arena in the pool's list is mapped.
    unsafe { (*arena.as_ptr()).free_pages == PAGES_PER_ARENA }
}

/// Maps a new arena whose pages are all free.
fn map(arenas: &Arc<Mutex<Arenas>>) -> io::Result<NonNull<PageArenaHeader>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: this maps new memory at an address that the kernel chooses. It maps twice the size,
    // keeps an aligned half and unmaps the rest.
    let start = unsafe {
        let start =
            mmap_anonymous(ptr::null_mut(), 2 * ARENA, protection, MapFlags::PRIVATE)?.cast::<u8>();
        let before = start.align_offset(ARENA);
        let aligned = start.add(before);
        if before > 0 {
            munmap(start.cast(), before)?;
        }
        if before < ARENA {
            munmap(aligned.add(ARENA).cast(), ARENA - before)?;
        }
        aligned
    };
    // SAFETY: the range was just mapped. Without huge pages, small ones are used.
    let _ = unsafe { madvise(start.cast(), ARENA, Advice::LinuxHugepage) };
    let header = start.cast::<PageArenaHeader>();
    let mut free = [0; PAGES_PER_ARENA];
    (0..).zip(free.iter_mut().rev()).for_each(|(number, free)| *free = number);
    let shares = [const { AtomicU32::new(0) }; PAGES_PER_ARENA];
    // SAFETY: the arena is mapped, aligned and exclusively ours, and its first page has room for a
    // header.
    unsafe {
        header.write(PageArenaHeader {
            shares,
            free,
            free_pages: PAGES_PER_ARENA,
            arenas: arenas.clone(),
        });
        Ok(NonNull::new_unchecked(header))
    }
}

/// Unmaps an arena.
///
/// # Safety
/// There must be no references to the arena any more.
unsafe fn unmap(arena: NonNull<PageArenaHeader>) {
    // SAFETY: the caller promises it; `map` made a mapping of this size.
    unsafe {
        ptr::drop_in_place(arena.as_ptr());
        let _ = munmap(arena.as_ptr().cast(), ARENA);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_aligned_do_not_overlap_and_return_to_the_pool() {
        let pool = MemPagePool::default();
        let mut pages: Vec<MemPage> =
            (0..(SPARE_ARENAS + 2) * PAGES_PER_ARENA + 3).map(|_| pool.take().unwrap()).collect();
        for (i, page) in pages.iter_mut().enumerate() {
            let bytes = page.get_mut().expect("the page has no other user");
            assert_eq!(bytes.as_ptr() as usize % PAGE, 0);
            bytes.fill(i as u8);
        }
        for (i, page) in pages.iter().enumerate() {
            assert!(page.as_ref().iter().all(|byte| *byte == i as u8), "page {i}");
        }
        let places: std::collections::HashSet<_> = pages.iter().map(|page| page.0).collect();
        drop(pages);
        let kept = pool.arenas.lock().usable.len();
        assert_eq!(kept, SPARE_ARENAS, "a bounded number of empty arenas is kept");
        let again: Vec<_> = (0..2 * PAGES_PER_ARENA).map(|_| pool.take().unwrap()).collect();
        assert_eq!(pool.arenas.lock().empty, SPARE_ARENAS - 2);
        drop(again);
        assert_eq!(pool.arenas.lock().empty, SPARE_ARENAS);
        assert!(places.contains(&pool.take().unwrap().0), "a page is used again");
    }

    #[test]
    fn a_shared_page_is_not_written() {
        let pool = MemPagePool::default();
        let mut page = pool.take().unwrap();
        page.get_mut().unwrap().fill(1);
        let bytes = page.to_bytes();
        assert!(page.get_mut().is_none());
        drop(bytes);
        assert!(page.get_mut().is_some());
    }

    #[test]
    fn a_page_outlives_its_pool() {
        let pool = MemPagePool::default();
        let mut page = pool.take().unwrap();
        page.get_mut().unwrap().fill(7);
        let bytes = page.to_bytes();
        let arenas = Arc::downgrade(&pool.arenas);
        drop((page, pool));
        assert!(bytes.iter().all(|byte| *byte == 7));
        drop(bytes);
        assert!(arenas.upgrade().is_none(), "the last arena went with its last page");
    }

    #[test]
    fn threads_share_and_drop_pages() {
        let pool = MemPagePool::default();
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..2000_u32 {
                        let mut page = pool.take().unwrap();
                        let stamp = thread ^ round as u8;
                        page.get_mut().unwrap().fill(stamp);
                        let bytes = page.to_bytes();
                        drop(page);
                        assert!(bytes.iter().all(|byte| *byte == stamp));
                    }
                });
            }
        });
    }
}
