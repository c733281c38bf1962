//! The engine with blocking system calls on a few threads.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, IoSliceMut},
    os::fd::BorrowedFd,
    sync::Arc,
    thread::{self, JoinHandle},
};

use parking_lot::{Condvar, Mutex};
use rustix::{
    fs::{FallocateFlags, fallocate, fdatasync},
    io::{ReadWriteFlags, preadv2, pwritev2},
};

use super::op::{FileOpKind, Op};

/// The engine that works on every kernel. Threads start when they are needed, and end with the
/// engine.
pub(super) struct Psync {
    shared: Arc<PsyncShared>,
}

#[derive(Default)]
struct PsyncShared {
    queue: Mutex<PsyncQueue>,
    work: Condvar,
}

#[derive(Default)]
struct PsyncQueue {
    /// The operations that wait for a thread. The number of permits of the engine bounds their
    /// number.
    ops: VecDeque<Arc<Op>>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    closed: bool,
}

impl Psync {
    pub(super) fn new() -> Self {
        Self { shared: Arc::default() }
    }

    pub(super) fn start(&self, op: Arc<Op>) {
        let mut queue = self.shared.queue.lock();
        queue.ops.push_back(op);
        if queue.ops.len() > queue.idle && queue.threads.len() < THREADS {
            let shared = Arc::clone(&self.shared);
            let spawned =
                thread::Builder::new().name("volume-psync".into()).spawn(move || shared.serve());
            match spawned {
                Ok(thread) => queue.threads.push(thread),
                // If some threads run, they will perform the operation. Without any thread the operation would wait for
                // ever, so fail it.
                Err(error) if queue.threads.is_empty() => {
                    let op = queue.ops.pop_back().expect("pushed above");
                    drop(queue);
                    op.complete(Err(error));
                    return;
                }
                Err(_) => {}
            }
        }
        drop(queue);
        self.shared.work.notify_one();
    }
}

impl Drop for Psync {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.closed = true;
        let threads = std::mem::take(&mut queue.threads);
        drop(queue);
        self.shared.work.notify_all();
        // Wait for the threads: when the drop returns, the next volume may open the file. A thread
        // that drops the volume itself, by waking its last user, cannot wait for its own end.
        for thread in threads.into_iter().filter(|t| t.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl PsyncShared {
    fn serve(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(op) = queue.ops.pop_front() {
                drop(queue);
                op.complete(perform(&op));
                drop(op);
                queue = self.queue.lock();
            } else if queue.closed {
                return;
            } else {
                queue.idle += 1;
                self.work.wait(&mut queue);
                queue.idle -= 1;
            }
        }
    }
}

fn perform(op: &Op) -> io::Result<usize> {
    // SAFETY: the operation `op` owns its file, so the descriptor stays open during the borrow.
    let fd = unsafe { BorrowedFd::borrow_raw(op.fd()) };
    let result = match *op.kind() {
        FileOpKind::Read { offset } => {
            let vector = op.vectors()[0];
            // SAFETY: the operation owns the buffer to which the pointer leads, and gives no other user access until
            // the operation is complete.
            let to = unsafe {
                std::slice::from_raw_parts_mut(vector.iov_base.cast::<u8>(), vector.iov_len)
            };
            preadv2(fd, &mut [IoSliceMut::new(to)], offset, ReadWriteFlags::empty())
        }
        FileOpKind::Write { ref data, offset, stable, .. } => {
            let pieces: Vec<IoSlice<'_>> = data.parts().iter().map(|p| IoSlice::new(p)).collect();
            let flags = if stable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
            pwritev2(fd, &pieces, offset, flags)
        }
        FileOpKind::Sync => fdatasync(fd).map(|()| 0),
        FileOpKind::Punch { offset, length } => {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(fd, mode, offset, length).map(|()| 0)
        }
    };
    result.map_err(io::Error::from)
}

/// Number of threads. They are enough to keep a disk busy; more threads only add context switches.
/// Most disks gain nothing beyond 8 to 16 writes at a time.
const THREADS: usize = 8;
