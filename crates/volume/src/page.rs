//! Pages of 4096 bytes for what stays in memory, shared by reference.
//!
//! Pages lie in arenas of 2 MiB which the kernel backs with huge pages where it can, and their
//! reference counts lie densely beside them: a random access costs one miss of the TLB and of the
//! caches, not four (docs/results/bench.md has what that is worth).

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

/// The size of a physical block, and of what most hosts write at once.
pub(crate) const PAGE: usize = 4096;

/// A huge page of x86-64 and of AArch64 with 4 KiB pages. An arena is aligned to its size, so that
/// a page's address tells its arena.
const ARENA: usize = 2 << 20;

/// The first page of an arena holds its [`PageArenaHeader`].
const PAGES_PER_ARENA: usize = ARENA / PAGE - 1;

/// Where pages come from and go back to. Pages may outlive it.
#[derive(Default)]
pub(crate) struct MemPagePool {
    arenas: Arc<Mutex<Arenas>>,
}

/// The arenas with pages to give. Those whose pages are all taken are known by their pages alone.
#[derive(Default)]
struct Arenas {
    /// The last one is taken from.
    usable: Vec<NonNull<PageArenaHeader>>,
    /// Nobody takes pages any more.
    closed: bool,
}

// SAFETY: the headers are reached under the pool's lock, or through the atomic counts in them.
unsafe impl Send for Arenas {}

struct PageArenaHeader {
    /// Shares of each page, by its number; 0 is free.
    shares: [AtomicU32; PAGES_PER_ARENA],
    /// Numbers of the free pages: the first `free_pages`. Under the pool's lock.
    free: [u16; PAGES_PER_ARENA],
    free_pages: usize,
    arenas: Arc<Mutex<Arenas>>,
}

const _: () = assert!(size_of::<PageArenaHeader>() <= PAGE);

impl MemPagePool {
    /// A page of our own, which holds whatever it held before. `Err`: the kernel has no memory.
    pub(crate) fn take(&self) -> io::Result<MemPage> {
        let mut arenas = self.arenas.lock();
        let header = match arenas.usable.last() {
            Some(arena) => arena.as_ptr(),
            None => {
                let arena = map(&self.arenas)?;
                arenas.usable.push(arena);
                arena.as_ptr()
            }
        };
        // SAFETY: an arena in the list is mapped and has a free page; its free list is ours under
        // the lock. The page lies behind the header in the same arena, and nobody looks at its
        // count while that is 0. No reference to the whole header is made: others use its counts.
        unsafe {
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
        drop(arenas);
        // SAFETY: no page of them is taken, and the list no longer has them.
        empty.into_iter().for_each(|arena| unsafe { unmap(arena) });
    }
}

impl Arenas {
    /// Takes back a page whose last share has gone. Returns its arena if that is not needed any
    /// more: one empty arena is kept for what comes next.
    ///
    /// # Safety
    /// Page `number` of `arena`, an arena of this pool, is held by nobody else.
    unsafe fn give_back(
        &mut self,
        arena: NonNull<PageArenaHeader>,
        number: usize,
    ) -> Option<NonNull<PageArenaHeader>> {
        let header = arena.as_ptr();
        // SAFETY: the arena is mapped while a page of it is not back; `&mut self` is the lock.
        let free_pages = unsafe {
            let free_pages = (*header).free_pages;
            (*header).free[free_pages] = number as u16;
            (*header).free_pages = free_pages + 1;
            free_pages + 1
        };
        if free_pages == 1 {
            self.usable.push(arena);
        }
        let is_spare = free_pages == PAGES_PER_ARENA && (self.closed || self.usable.len() > 1);
        if is_spare {
            self.usable.retain(|usable| *usable != arena);
        }
        is_spare.then_some(arena)
    }
}

/// A share of a page: 8 bytes, and as many in an `Option`.
pub(crate) struct MemPage(NonNull<u8>);

// SAFETY: a page that is shared is only read; its count is atomic.
unsafe impl Send for MemPage {}
// SAFETY: as above.
unsafe impl Sync for MemPage {}

impl MemPage {
    /// The page to write to, unless others share it.
    pub(crate) fn get_mut(&mut self) -> Option<&mut [u8; PAGE]> {
        // Acquire: what other shares have read happened before they were dropped.
        if self.shares().load(Ordering::Acquire) != 1 {
            return None;
        }
        // SAFETY: this is the only share, and it is borrowed mutably. Memory of an arena is
        // initialised: by the kernel, or by whoever had the page before.
        Some(unsafe { self.0.cast().as_mut() })
    }

    /// A share of it for somebody who only reads.
    pub(crate) fn to_bytes(&self) -> Bytes {
        let relaxed = self.shares().fetch_add(1, Ordering::Relaxed);
        // Shares are bytes in transit and bounded far below; a count that wrapped would be fatal.
        assert!(relaxed < u32::MAX / 2, "shares of a page leak");
        prefetch(self.0);
        Bytes::from_owner(Self(self.0))
    }

    fn shares(&self) -> &AtomicU32 {
        let (arena, number) = self.place();
        // SAFETY: the arena is mapped while a page of it is taken, and this one is.
        unsafe { &(*arena.as_ptr()).shares[number] }
    }

    /// Its arena and its number there.
    fn place(&self) -> (NonNull<PageArenaHeader>, usize) {
        let offset = self.0.addr().get() % ARENA;
        // SAFETY: the arena's header lies so far before the page, in the same mapping.
        (unsafe { self.0.byte_sub(offset) }.cast(), offset / PAGE - 1)
    }
}

impl AsRef<[u8]> for MemPage {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: a page is written only through `get_mut`, which needs the only share.
        unsafe { slice::from_raw_parts(self.0.as_ptr(), PAGE) }
    }
}

impl Drop for MemPage {
    fn drop(&mut self) {
        // Release: what this share has done happens before the page is written again.
        if self.shares().fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        let (arena, number) = self.place();
        // SAFETY: the arena is mapped until its last page, at least this one, is back.
        let arenas = unsafe { (*arena.as_ptr()).arenas.clone() };
        // SAFETY: this was the last share.
        let spare = unsafe { arenas.lock().give_back(arena, number) };
        if let Some(arena) = spare {
            // SAFETY: no page of it is taken, and the list no longer has it.
            unsafe { unmap(arena) };
        }
    }
}

/// Tells the processor that the page will be read soon: by the time that a socket or a disk copies
/// it, it is there.
fn prefetch(page: NonNull<u8>) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..PAGE).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch of a line of the page, which changes nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(page.as_ptr().add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = page;
}

/// Whether no page of it is taken. Under the pool's lock.
fn is_empty(arena: NonNull<PageArenaHeader>) -> bool {
    // SAFETY: an arena in the pool's list is mapped.
    unsafe { (*arena.as_ptr()).free_pages == PAGES_PER_ARENA }
}

/// A new arena, all its pages free.
fn map(arenas: &Arc<Mutex<Arenas>>) -> io::Result<NonNull<PageArenaHeader>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a mapping of our own at an address that the kernel chooses. Of twice the size, an
    // aligned half is kept and the rest unmapped.
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
    // SAFETY: the range was just mapped. Where there are no huge pages, small ones serve.
    let _ = unsafe { madvise(start.cast(), ARENA, Advice::LinuxHugepage) };
    let header = start.cast::<PageArenaHeader>();
    let mut free = [0; PAGES_PER_ARENA];
    (0..).zip(free.iter_mut().rev()).for_each(|(number, free)| *free = number);
    let shares = [const { AtomicU32::new(0) }; PAGES_PER_ARENA];
    // SAFETY: the arena is mapped, aligned, ours alone, and its first page has room for a header.
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

/// Gives an arena back to the kernel.
///
/// # Safety
/// Nobody may reach it any more.
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
    fn pages_are_aligned_apart_and_come_back() {
        let pool = MemPagePool::default();
        let mut pages: Vec<MemPage> =
            (0..2 * PAGES_PER_ARENA + 3).map(|_| pool.take().unwrap()).collect();
        for (i, page) in pages.iter_mut().enumerate() {
            let bytes = page.get_mut().expect("nobody else has it");
            assert_eq!(bytes.as_ptr() as usize % PAGE, 0);
            bytes.fill(i as u8);
        }
        for (i, page) in pages.iter().enumerate() {
            assert!(page.as_ref().iter().all(|byte| *byte == i as u8), "page {i}");
        }
        let places: std::collections::HashSet<_> = pages.iter().map(|page| page.0).collect();
        drop(pages);
        assert_eq!(pool.arenas.lock().usable.len(), 1, "one empty arena is kept");
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
