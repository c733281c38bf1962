//! One operation on a file, from its start until the kernel is done with it.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, RawFd},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::OwnedSemaphorePermit;

use crate::{Data, buffer::IoBuffer};

/// What is to be done.
pub(crate) enum FileOpRequest {
    /// Fill the buffer from its byte `start` on.
    Read { buffer: IoBuffer, start: usize, offset: u64 },
    /// Write the pieces: no more than [`MAX_PIECES`].
    Write { data: Data, offset: u64, stable: bool, direct: bool },
    /// Make all that was written before stable.
    Sync,
    /// Make a hole.
    Punch { offset: u64, length: u64 },
}

/// An operation, shared by who waits for it and the engine. It owns its memory and its file, so
/// that both are there for as long as the kernel may use them, whether anybody waits or not.
pub(crate) struct Op {
    file: Arc<File>,
    kind: FileOpKind,
    /// What the kernel reads from or writes to: memory that `state` or `kind` owns.
    vectors: SmallVec<[libc::iovec; 1]>,
    state: Mutex<FileOpState>,
}

/// What the kernel is told; the memory apart.
pub(super) enum FileOpKind {
    Read { offset: u64 },
    Write { data: Data, offset: u64, stable: bool, direct: bool },
    Sync,
    Punch { offset: u64, length: u64 },
}

struct FileOpState {
    /// How many bytes; there once the kernel is done.
    result: Option<Result<usize, i32>>,
    /// The buffer of a read.
    buffer: Option<IoBuffer>,
    /// A place in the engine's queue, kept until the kernel is done.
    permit: Option<OwnedSemaphorePermit>,
    /// Somebody knows the result.
    seen: bool,
    wakers: SmallVec<[Waker; 1]>,
}

// SAFETY: the vectors point into memory that the operation owns; what reads or writes there is
// the kernel, or one engine thread, between the start and `complete`.
unsafe impl Send for Op {}
// SAFETY: as for Send; all that changes is behind the lock.
unsafe impl Sync for Op {}

impl Op {
    pub(super) fn new(
        file: Arc<File>,
        request: FileOpRequest,
        permit: OwnedSemaphorePermit,
    ) -> Arc<Self> {
        let mut vectors = SmallVec::new();
        let (kind, buffer) = match request {
            FileOpRequest::Read { mut buffer, start, offset } => {
                let length = (buffer.len() - start).min(MAX_BYTES);
                // SAFETY: `start` is inside the buffer, or the subtraction above had failed.
                let base = unsafe { buffer.as_mut_ptr().add(start) };
                vectors.push(libc::iovec { iov_base: base.cast(), iov_len: length });
                (FileOpKind::Read { offset }, Some(buffer))
            }
            FileOpRequest::Write { data, offset, stable, direct } => {
                debug_assert!(data.parts().len() <= MAX_PIECES);
                vectors.extend(data.parts().iter().map(|part| libc::iovec {
                    iov_base: part.as_ptr().cast_mut().cast(),
                    iov_len: part.len(),
                }));
                (FileOpKind::Write { data, offset, stable, direct }, None)
            }
            FileOpRequest::Sync => (FileOpKind::Sync, None),
            FileOpRequest::Punch { offset, length } => (FileOpKind::Punch { offset, length }, None),
        };
        let state = FileOpState {
            result: None,
            buffer,
            permit: Some(permit),
            seen: false,
            wakers: SmallVec::new(),
        };
        Arc::new(Self { file, kind, vectors, state: Mutex::new(state) })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    pub(super) fn kind(&self) -> &FileOpKind {
        &self.kind
    }

    pub(super) fn vectors(&self) -> &[libc::iovec] {
        &self.vectors
    }

    /// The kernel is done: `result` is what the system call returned. From now on it does not
    /// touch the memory.
    pub(super) fn complete(&self, result: io::Result<usize>) {
        let wakers = {
            let mut state = self.state.lock();
            state.result = Some(result.map_err(|e| e.raw_os_error().unwrap_or(libc::EIO)));
            state.permit = None;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Lets everybody who waits look again.
    pub(super) fn wake(&self) {
        let wakers = std::mem::take(&mut self.state.lock().wakers);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether the kernel needs a thread for it anyway.
    pub(super) fn blocks(&self) -> bool {
        matches!(self.kind, FileOpKind::Write { direct: false, .. })
    }

    /// Whether it is a write that was to be stable.
    pub(crate) fn is_stable(&self) -> bool {
        matches!(self.kind, FileOpKind::Write { stable: true, .. })
    }

    /// Whether it was to make stable what came before it.
    pub(crate) fn is_sync(&self) -> bool {
        matches!(self.kind, FileOpKind::Sync)
    }

    /// Whether it is done and somebody who waited was told so.
    pub(crate) fn is_seen(&self) -> bool {
        self.state.lock().seen
    }

    /// The result, if it is done.
    pub(crate) fn outcome(&self) -> Option<io::Result<usize>> {
        let result = self.state.lock().result?;
        Some(result.map_err(io::Error::from_raw_os_error))
    }

    /// The result; while there is none, the waker of `context` is told when there is.
    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<io::Result<usize>> {
        let mut state = self.state.lock();
        if let Some(result) = state.result {
            state.seen = true;
            return Poll::Ready(result.map_err(io::Error::from_raw_os_error));
        }
        if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// The buffer of a read, once it is done.
    pub(crate) fn take_buffer(&self) -> Option<IoBuffer> {
        let mut state = self.state.lock();
        if state.result.is_some() { state.buffer.take() } else { None }
    }
}

/// `UIO_MAXIOV` of Linux.
pub(crate) const MAX_PIECES: usize = 1024;
/// What the kernel reads at most in one call is just below 2 GiB, of which this is a round part.
const MAX_BYTES: usize = 1 << 30;
