//! Calls on the device that this process itself serves.
//!
//! A thread that waits for such a device cannot be killed before its request is served. If the process is killed
//! meanwhile, no process serves the request, and the thread would wait forever. The kernel ends the request only when
//! `/dev/fuse` is closed, and the descriptor stays open as long as any thread uses the process's table of open files.
//! Therefore a thread that waits for the device gets a table of its own, without `/dev/fuse`: when the other threads
//! have ended, `/dev/fuse` is closed, and the wait ends with an I/O error.

use std::{io, os::fd::RawFd, thread};

use crate::{AttachStep, Error};

/// Runs `work` on a thread of its own, in which only the standard files and `keep` are open. `work` must open all other
/// files that it needs itself.
pub(crate) fn apart<T: Send>(
    keep: Option<RawFd>,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("device".into()).spawn_scoped(scope, || {
            leave(keep).map_err(|error| AttachStep::Thread.failed(error))?;
            work()
        });
        let thread = thread.map_err(|error| AttachStep::Thread.failed(error))?;
        thread.join().expect("a panic ends the process")
    })
}

/// Gives the thread its own table of open files, and closes all but the standard files and `keep` in it.
fn leave(keep: Option<RawFd>) -> io::Result<()> {
    let ranges = match keep.map(|keep| keep as u32) {
        None => [3..=u32::MAX, 0..=0],
        Some(keep) => [keep + 1..=u32::MAX, 3..=keep.saturating_sub(1)],
    };
    for range in ranges.into_iter().filter(|range| !range.is_empty() && *range.start() >= 3) {
        let (first, last) = (*range.start(), *range.end());
        // SAFETY: the table is unshared before anything in it is closed, and of the process's descriptors `work` uses
        // only `keep`.
        let done =
            unsafe { libc::syscall(libc::SYS_close_range, first, last, CLOSE_RANGE_UNSHARE) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// A constant from linux/close_range.h.
const CLOSE_RANGE_UNSHARE: libc::c_uint = 2;

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::AsRawFd};

    use super::*;

    /// Returns true if the file descriptor is open in this thread, according to the kernel.
    fn is_open(descriptor: RawFd) -> bool {
        std::fs::read_link(format!("/proc/thread-self/fd/{descriptor}")).is_ok()
    }

    #[test]
    fn a_separate_thread_has_only_the_file_that_it_keeps() {
        let (first, second) = (File::open("/dev/null").unwrap(), File::open("/dev/zero").unwrap());
        let (first, second) = (first.as_raw_fd(), second.as_raw_fd());
        for keep in [first, second] {
            let open = apart(Some(keep), || Ok([is_open(first), is_open(second)])).unwrap();
            assert_eq!(open, [keep == first, keep == second]);
        }
        assert_eq!(apart(None, || Ok([is_open(first), is_open(second)])).unwrap(), [false; 2]);
    }
}
