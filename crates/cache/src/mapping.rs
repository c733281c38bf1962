//! A file mapped into memory. If another program cuts the file short, the process survives.
//!
//! A load or store behind the end of a mapped file raises SIGBUS. The same happens on an access to a page
//! that the kernel cannot load: a hole on a full disk, or broken memory. The signal handler in this file maps
//! an anonymous page of zeros at the address and notes that the mapping has failed; then the instruction is
//! executed again. Bytes that are written to that page do not arrive in the file, so the caller checks
//! [`Mapping::has_failed`] after each write, before anything is acknowledged.
//!
//! `pwrite` would fail without a signal, but costs a system call for each write: 3.0 us instead of 0.09 us
//! for a slot and its headers on tmpfs, 15 us on ext4, all under the cache's lock.

use std::{
    cell::UnsafeCell,
    fs::File,
    io, mem,
    ops::{Deref, DerefMut},
    ptr,
    sync::{
        Once,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use memmap2::MmapMut;

/// A mapped file. If the file is truncated, an access yields zeros instead of killing the process (SIGBUS).
pub(crate) struct Mapping {
    map: MmapMut,
    region: &'static Region,
}

impl Mapping {
    /// Maps a whole file.
    ///
    /// # Errors
    /// Errors of mmap(2); also if [`MOST`] mappings exist in this process.
    pub fn new(file: &File) -> io::Result<Self> {
        install();
        // SAFETY: the file lock keeps other Forebay processes out. The readers verify checksums, so bytes
        // that another program changes do no harm, and the handler covers a file that is cut short.
        let map = unsafe { MmapMut::map_mut(file)? };
        let region = REGIONS.iter().find(|region| region.take(&map));
        let region = region.ok_or_else(|| {
            io::Error::other(format!(
                "this process has {MOST} NVRAM files open, which is the limit"
            ))
        })?;
        Ok(Self { map, region })
    }

    /// Returns true after the first access to a page that could not be loaded from the file. The result stays
    /// true.
    pub fn has_failed(&self) -> bool {
        self.region.failed.load(Ordering::Acquire)
    }

    /// Syncs a range to the storage of the file (msync(2)).
    ///
    /// # Errors
    /// Errors of msync(2).
    pub fn flush_range(&self, offset: usize, length: usize) -> io::Result<()> {
        self.map.flush_range(offset, length)
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Free the region before the addresses are unmapped and may be reused for another mapping.
        self.region.start.store(FREE, Ordering::Release);
    }
}

/// The addresses of a mapping. They are atomics because the signal handler can take no lock.
struct Region {
    /// The first address of the mapping; [`FREE`] if the region is unused, and [`TAKEN`] while the other
    /// fields are being set.
    start: AtomicUsize,
    bytes: AtomicUsize,
    failed: AtomicBool,
}

impl Region {
    const fn new() -> Self {
        let (start, bytes) = (AtomicUsize::new(FREE), AtomicUsize::new(0));
        Self { start, bytes, failed: AtomicBool::new(false) }
    }

    fn take(&self, map: &[u8]) -> bool {
        let taken =
            self.start.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if taken {
            self.bytes.store(map.len(), Ordering::Relaxed);
            self.failed.store(false, Ordering::Relaxed);
            self.start.store(map.as_ptr().addr(), Ordering::Release);
        }
        taken
    }

    fn holds(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::Acquire);
        start > TAKEN && (start..start + self.bytes.load(Ordering::Relaxed)).contains(&address)
    }
}

const FREE: usize = 0;
const TAKEN: usize = 1;
/// Maximum number of mappings in a process: a node may have 1024 units, each with a cache and an NVRAM. The handler
/// searches all.
const MOST: usize = 1024;
static REGIONS: [Region; MOST] = [const { Region::new() }; MOST];

/// The SIGBUS action that the process had before, for signals that do not concern a mapping.
struct Before(UnsafeCell<mem::MaybeUninit<libc::sigaction>>);

// SAFETY: the cell is written once, before the handler that reads it is installed.
unsafe impl Sync for Before {}

static BEFORE: Before = Before(UnsafeCell::new(mem::MaybeUninit::uninit()));

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: both actions are fully initialized. The handler makes only system calls that are allowed in
        // a signal handler, and runs on the thread's signal stack if there is one.
        unsafe {
            libc::sigaction(libc::SIGBUS, ptr::null(), (*BEFORE.0.get()).as_mut_ptr());
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
        }
    });
}

/// Handles SIGBUS: if the address belongs to a mapping, maps an anonymous page of zeros there.
extern "C" fn handle(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a complete record. `errno` belongs to this thread and is restored. The page
    // that is replaced lies in a live `Mapping`, since the faulting instruction uses it.
    unsafe {
        let errno = *libc::__errno_location();
        let address = (*info).si_addr().addr();
        match REGIONS.iter().find(|region| region.holds(address)) {
            Some(region) if replace_page(address) => region.failed.store(true, Ordering::Release),
            // The fault does not concern a mapping. Restore the former action: the instruction runs and
            // faults again, and then triggers that action.
            _ => {
                libc::sigaction(libc::SIGBUS, (*BEFORE.0.get()).as_ptr(), ptr::null_mut());
            }
        }
        *libc::__errno_location() = errno;
    }
}

/// Maps a page of zeros over the page of an address. Returns false if the kernel refuses.
fn replace_page(address: usize) -> bool {
    // SAFETY: `sysconf` only returns a number; `mmap` replaces one page that could not be accessed.
    unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let at = ptr::with_exposed_provenance_mut(address & !(page - 1));
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        libc::mmap(at, page, access, how, -1, 0) != libc::MAP_FAILED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 << 10;

    fn file() -> File {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(BYTES as u64).expect("sized");
        file
    }

    #[test]
    fn a_file_that_is_cut_short_fails_its_mapping_and_not_the_process() {
        let (file, other) = (file(), file());
        let mut mapping = Mapping::new(&file).expect("mapped");
        let untouched = Mapping::new(&other).expect("mapped");
        mapping.fill(7);
        file.set_len(BYTES as u64 / 2).expect("cut");
        assert!(!mapping.has_failed(), "the mapping has not been used since");
        mapping[BYTES - 1] = 8;
        assert!(mapping.has_failed() && !untouched.has_failed());
        assert_eq!((mapping[BYTES - 1], mapping[BYTES - 2]), (8, 0));
        assert_eq!(mapping[BYTES / 2 - 1], 7, "what the file still has is as it was");
        file.set_len(0).expect("cut");
        assert_eq!(mapping[0], 0, "a load goes on, too");
    }

    #[test]
    fn a_region_is_used_again_without_its_failure() {
        for _ in 0..2 * MOST {
            let file = file();
            let mut mapping = Mapping::new(&file).expect("mapped");
            assert!(!mapping.has_failed());
            file.set_len(0).expect("cut");
            mapping[0] = 1;
            assert!(mapping.has_failed());
        }
    }
}
