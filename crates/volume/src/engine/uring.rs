//! The engine with io_uring: the task that needs an operation submits it, and the completion wakes
//! this task without a thread of ours in between.
//!
//! Completions are collected by a *reaper* and by every submission. The reaper is a task in the
//! runtime of the waiting task; it sleeps until the ring is readable.

use std::{
    future::poll_fn,
    io,
    os::fd::{AsRawFd, RawFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use io_uring::{IoUring, Probe, opcode, squeue, types::Fd, types::FsyncFlags};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::{self, Handle},
    sync::Notify,
};

use super::{
    MAX_OPS,
    op::{FileOpKind, Op},
};

/// An io_uring ring for one file.
pub(super) struct Uring {
    core: Arc<UringCore>,
}

struct UringCore {
    ring: IoUring,
    /// Guards both queues of the ring. Never hold this lock over a system call.
    slots: Mutex<UringSlots>,
    /// The runtimes that have a reaper. Each waiting runtime needs its own, because another runtime
    /// may not run at the moment.
    reapers: Mutex<SmallVec<[runtime::Id; 1]>>,
    /// Set before `closing` wakes the reapers.
    closed: AtomicBool,
    closing: Notify,
}

/// The operations that the kernel has in progress. Each keeps its memory until its completion has
/// been collected.
struct UringSlots {
    ops: Vec<Option<Arc<Op>>>,
    free: Vec<u32>,
}

impl Uring {
    /// Creates a ring. Fails if the kernel refuses one, or lacks an operation that we need.
    pub(super) fn new() -> io::Result<Self> {
        let ring = IoUring::builder().dontfork().build(MAX_OPS)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::Read::CODE,
            opcode::Write::CODE,
            opcode::Writev::CODE,
            opcode::Fsync::CODE,
            opcode::Fallocate::CODE,
        ];
        if !needed.into_iter().all(|code| probe.is_supported(code)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let slots = UringSlots { ops: vec![None; MAX_OPS as usize], free: (0..MAX_OPS).collect() };
        let core = UringCore {
            ring,
            slots: Mutex::new(slots),
            reapers: Mutex::default(),
            closed: AtomicBool::new(false),
            closing: Notify::new(),
        };
        Ok(Self { core: Arc::new(core) })
    }

    pub(super) fn start(&self, op: Arc<Op>) {
        self.core.push(op);
        self.core.enter();
        // A read from the page cache may have completed within `enter`.
        self.core.reap();
    }

    /// Returns the result of `op`. Outside of a runtime the call blocks until the operation is
    /// complete.
    pub(super) fn poll(&self, op: &Op, context: &Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            if let Poll::Ready(result) = op.poll(context) {
                return Poll::Ready(result);
            }
            if self.core.ensure_reaper() {
                return Poll::Pending;
            }
            self.core.wait();
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // Wait for the kernel: memory that it may still read or write must not be freed.
        while !self.core.is_idle() {
            self.core.wait();
        }
        self.core.closed.store(true, Ordering::SeqCst);
        self.core.closing.notify_waiters();
    }
}

impl UringCore {
    fn push(&self, op: Arc<Op>) {
        let mut slots = self.slots.lock();
        let slot = slots.free.pop().expect("no more operations than permits");
        let entry = entry_of(&op).user_data(u64::from(slot));
        slots.ops[slot as usize] = Some(op);
        // SAFETY: the lock makes this the only use of the submission queue. The entry points to
        // memory and a file that the operation owns, and the slot keeps it until it is complete.
        unsafe { self.ring.submission_shared().push(&entry) }
            .expect("the queue has as many entries as there are slots");
    }

    /// Submits one entry to the kernel. If several tasks call this at once, each submits one entry,
    /// but not always its own.
    fn enter(&self) {
        loop {
            // SAFETY: the call passes no argument to the kernel, and the entries in the queue are valid: see `push`.
            let entered = unsafe { self.ring.submitter().enter::<()>(1, 0, 0, None) };
            match entered {
                Ok(_) => return,
                // EINTR, a temporary lack of memory, or a full completion queue: the entry is still
                // queued and cannot be removed, so try again.
                Err(_) => {
                    self.reap();
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Completes the operations that the kernel has finished.
    fn reap(&self) {
        let mut done: SmallVec<[(Arc<Op>, i32); 8]> = SmallVec::new();
        {
            let mut slots = self.slots.lock();
            // SAFETY: the lock `slots` is held, so this is the only use of the completion queue.
            for entry in unsafe { self.ring.completion_shared() } {
                let slot = entry.user_data() as u32;
                let op = slots.ops[slot as usize].take().expect("completed once");
                slots.free.push(slot);
                done.push((op, entry.result()));
            }
        }
        for (op, result) in done {
            op.complete(match result {
                0.. => Ok(result as usize),
                _ => Err(io::Error::from_raw_os_error(-result)),
            });
        }
    }

    /// Blocks until the kernel has finished an operation, but at most [`LOOK_AGAIN_MS`]: another
    /// thread may collect the completion that the caller waits for before this thread sleeps.
    fn wait(&self) {
        let mut ring = libc::pollfd { fd: self.ring.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which outlives the call. An error, such as an interruption, only makes
        // the caller poll again.
        let _ = unsafe { libc::poll(&raw mut ring, 1, LOOK_AGAIN_MS) };
        self.reap();
    }

    fn is_idle(&self) -> bool {
        self.slots.lock().free.len() == MAX_OPS as usize
    }

    /// Starts a reaper in this runtime unless it has one. Returns false if there is no runtime.
    fn ensure_reaper(self: &Arc<Self>) -> bool {
        let Ok(runtime) = Handle::try_current() else { return false };
        let id = runtime.id();
        {
            let mut reapers = self.reapers.lock();
            if reapers.contains(&id) {
                return true;
            }
            reapers.push(id);
        }
        let reaper = Reaper { core: Arc::clone(self), runtime: id };
        // SAFETY: the reaper owns the ring, whose file stays open and the same until the reaper is
        // dropped.
        let readable = unsafe { AsyncFd::register_with_interest(reaper, Interest::READABLE) };
        // Registration fails if epoll has no room for another file. Dropping the reaper has removed
        // it from the list, so a later call can try again.
        let Ok(readable) = readable else { return false };
        runtime.spawn(run(readable));
        true
    }
}

/// Longest time for which a completion that another thread has collected goes unnoticed: about as
/// long as one access to a slow disk, and a hundred polls a second cost nothing.
const LOOK_AGAIN_MS: libc::c_int = 10;

async fn run(reaper: AsyncFd<Reaper>) {
    let core = &reaper.get_ref().core;
    // Register before the check of the flag, so that a close in between is not missed.
    let mut closing = std::pin::pin!(core.closing.notified());
    while !core.closed.load(Ordering::SeqCst) {
        let readable = poll_fn(|context| {
            if closing.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            reaper.poll_read_ready(context).map(Some)
        });
        match readable.await {
            Some(Ok(mut ready)) => {
                // Clear the readiness first. A completion that arrives after `reap` then makes the ring readable again;
                // in the opposite order, its wake-up would be lost.
                ready.clear_ready();
                core.reap();
            }
            // Readiness has failed because the runtime shuts down, or `closing` has ended the wait because the engine
            // was closed.
            _ => return,
        }
    }
}

/// Keeps this runtime's entry in the list of reapers, and removes it when dropped. The runtime drops this value when it
/// shuts down.
struct Reaper {
    core: Arc<UringCore>,
    runtime: runtime::Id,
}

impl AsRawFd for Reaper {
    fn as_raw_fd(&self) -> RawFd {
        self.core.ring.as_raw_fd()
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.core.reapers.lock().retain(|id| *id != self.runtime);
        // Other operations may still wait for this reaper. Wake their tasks, so that they poll again and find another
        // way to wait.
        let waiting: Vec<Arc<Op>> = self.core.slots.lock().ops.iter().flatten().cloned().collect();
        waiting.iter().for_each(|op| op.wake());
    }
}

fn entry_of(op: &Op) -> squeue::Entry {
    let fd = Fd(op.fd());
    let vectors = op.vectors();
    match *op.kind() {
        FileOpKind::Read { offset } => {
            opcode::Read::new(fd, vectors[0].iov_base.cast(), vectors[0].iov_len as u32)
                .offset(offset)
                .build()
        }
        FileOpKind::Write { offset, stable, .. } => {
            let flags = if stable { libc::RWF_DSYNC } else { 0 };
            match vectors {
                [one] if u32::try_from(one.iov_len).is_ok() => {
                    opcode::Write::new(fd, one.iov_base.cast(), one.iov_len as u32)
                        .offset(offset)
                        .rw_flags(flags)
                        .build()
                }
                _ => opcode::Writev::new(fd, vectors.as_ptr(), vectors.len() as u32)
                    .offset(offset)
                    .rw_flags(flags)
                    .build(),
            }
        }
        FileOpKind::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        FileOpKind::Punch { offset, length } => opcode::Fallocate::new(fd, length)
            .offset(offset)
            .mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
            .build(),
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;

    #[test]
    fn a_wait_ends_though_another_has_taken_the_completion() {
        // Skip the test if the kernel refuses io_uring.
        let Ok(ring) = Uring::new() else { return };
        let (ended, wait) = mpsc::channel();
        let waiting = thread::spawn(move || {
            // No operation is in progress, so no completion can arrive: the wait must end by its time limit.
            ring.core.wait();
            ended.send(()).expect("the test");
        });
        wait.recv_timeout(Duration::from_secs(10)).expect("an end");
        waiting.join().expect("no panic");
    }
}
