//! Memory aligned for direct I/O, used again and again.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;

/// Buffers that wait to be used again, by size.
///
/// Kept rather than freed: a new 128 KiB costs 700 ns of zeroing and page faults, half as much
/// as reading it from a page cache.
#[derive(Default)]
pub(crate) struct IoBufferPool {
    /// Class `n` keeps buffers of `SMALLEST << n` bytes.
    classes: [Mutex<Vec<AlignedMemory>>; CLASSES],
}

impl IoBufferPool {
    /// A buffer for `length` bytes. What it holds before it is filled is unspecified.
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

/// `length` bytes at an address that every disk takes; goes back to its pool when dropped.
pub(crate) struct IoBuffer {
    /// Always there until the drop.
    memory: Option<AlignedMemory>,
    length: usize,
    pool: Arc<IoBufferPool>,
}

impl IoBuffer {
    /// The bytes, to be shared from now on.
    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Where the bytes are. Stays the same until the drop, wherever `self` moves.
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
        // nobody else refers to it: an operation that lets the kernel write here owns `self`.
        unsafe { std::slice::from_raw_parts(self.memory().start.as_ptr(), self.length) }
    }
}

impl DerefMut for IoBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed alone.
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

/// Zeroed once, aligned to [`ALIGNMENT`], freed when dropped.
struct AlignedMemory {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: an `AlignedMemory` is the only owner of what it points to, like a `Box<[u8]>`.
unsafe impl Send for AlignedMemory {}
// SAFETY: through a shared `AlignedMemory` nothing can be changed.
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

/// No disk or file system asks for more than a page.
const ALIGNMENT: usize = 4096;
const SMALLEST: usize = 4096;
/// 4 KiB to 1 MiB, the largest transfer that hosts commonly send in one command.
const CLASSES: usize = 9;
/// Two of the largest, 512 of the smallest: as many as a queue of 256 holds, once over.
const KEPT_BYTES_PER_CLASS: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_come_back() {
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
    fn no_more_is_kept_than_the_limit() {
        let pool = Arc::new(IoBufferPool::default());
        drop((0..9).map(|_| pool.take(1 << 20)).collect::<Vec<_>>());
        drop(pool.take(3 << 20));
        let kept: usize = pool.classes.iter().map(|class| class.lock().len()).sum();
        assert_eq!(kept, 2);
    }
}
