//! A pool of buffers that are aligned for direct I/O.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;

/// Free buffers by size.
///
/// The pool keeps buffers instead of freeing them. Allocating 128 KiB takes 700 ns for zeroing and page faults, which
/// is half the time of reading 128 KiB from the page cache.
#[derive(Default)]
pub(crate) struct IoBufferPool {
    /// Class `n` keeps buffers of `SMALLEST << n` bytes.
    classes: [Mutex<Vec<AlignedMemory>>; CLASSES],
}

impl IoBufferPool {
    /// Returns a buffer of `length` bytes with unspecified content.
    pub(crate) fn take(self: &Arc<Self>, length: usize) -> IoBuffer {
        let capacity = length.next_power_of_two().max(SMALLEST);
        let kept = self.classes.get(class_of(capacity)).and_then(|class| class.lock().pop());
        let memory = kept.unwrap_or_else(|| AlignedMemory::new(capacity));
        IoBuffer { memory: Some(memory), length, pool: Arc::clone(self) }
    }

    fn give_back(&self, memory: AlignedMemory) {
        if let Some(class) = self.classes.get(class_of(memory.capacity)) {
            let mut class = class.lock();
            if class.len() < KEPT_BYTES_PER_CLASS / memory.capacity {
                class.push(memory);
            }
        }
    }
}

fn class_of(capacity: usize) -> usize {
    (capacity / SMALLEST).trailing_zeros() as usize
}

/// A buffer of `length` bytes, aligned for every disk. Returns its memory to the pool when dropped.
pub(crate) struct IoBuffer {
    /// Always `Some`, until `drop` returns the memory to the pool.
    memory: Option<AlignedMemory>,
    length: usize,
    pool: Arc<IoBufferPool>,
}

impl IoBuffer {
    /// Turns the buffer into shared, immutable bytes.
    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Returns the address of the bytes. It does not change until the drop, even if `self` is
    /// moved.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory().start.as_ptr()
    }

    fn memory(&self) -> &AlignedMemory {
        self.memory.as_ref().expect("only the drop takes it")
    }
}

impl Deref for IoBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory holds at least `length` bytes, all initialised (zeroed when new), and
        // there is no other reference to it: an operation that lets the kernel write here owns
        // `self`.
        unsafe { std::slice::from_raw_parts(self.memory().start.as_ptr(), self.length) }
    }
}

impl DerefMut for IoBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory holds at least `length` initialised bytes. `self` is its only owner and is borrowed
        // mutably, so there is no other reference.
        unsafe { std::slice::from_raw_parts_mut(self.memory().start.as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for IoBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for IoBuffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.give_back(memory);
        }
    }
}

/// Memory that was zeroed once, is aligned to [`ALIGNMENT`], and is freed when dropped.
struct AlignedMemory {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: an `AlignedMemory` is the only owner of what it points to, like a `Box<[u8]>`.
unsafe impl Send for AlignedMemory {}
// SAFETY: a shared `AlignedMemory` allows no change of the memory.
unsafe impl Sync for AlignedMemory {}

impl AlignedMemory {
    fn new(capacity: usize) -> Self {
        let layout = Self::layout(capacity);
        // SAFETY: the layout is not of zero size: no capacity is below `SMALLEST`.
        let start = unsafe { alloc_zeroed(layout) };
        Self { start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)), capacity }
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGNMENT).expect("far below the size of memory")
    }
}

impl Drop for AlignedMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed nowhere else.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.capacity)) }
    }
}

/// The size of a memory page. No disk or file system requires a larger alignment for direct I/O.
const ALIGNMENT: usize = 4096;
const SMALLEST: usize = 4096;
/// Number of buffer sizes: 4 KiB to 1 MiB, the largest transfer that hosts commonly send in one
/// command.
const CLASSES: usize = 9;
/// Maximum number of bytes of free buffers that one class keeps: 2 buffers of 1 MiB, or 512 of 4 KiB (twice the most
/// operations that an engine has in progress).
const KEPT_BYTES_PER_CLASS: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_return_to_the_pool() {
        let pool = Arc::new(IoBufferPool::default());
        let mut first = pool.take(5000);
        assert_eq!(first.len(), 5000);
        assert_eq!(first.as_mut_ptr() as usize % ALIGNMENT, 0);
        first.fill(7);
        let place = first.as_mut_ptr();
        let bytes = first.freeze();
        let slice = bytes.slice(4999..);
        drop(bytes);
        assert_ne!(pool.take(8192).as_mut_ptr(), place, "still read");
        assert_eq!(&slice[..], [7]);
        drop(slice);
        assert!(
            (0..2)
                .map(|_| pool.take(8192))
                .collect::<Vec<_>>()
                .iter_mut()
                .any(|b| { b.as_mut_ptr() == place })
        );
    }

    #[test]
    fn the_pool_keeps_no_more_memory_than_its_limit() {
        let pool = Arc::new(IoBufferPool::default());
        drop((0..9).map(|_| pool.take(1 << 20)).collect::<Vec<_>>());
        drop(pool.take(3 << 20));
        let kept: usize = pool.classes.iter().map(|class| class.lock().len()).sum();
        assert_eq!(kept, 2);
    }
}
