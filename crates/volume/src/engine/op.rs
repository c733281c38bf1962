//! An operation on a file, from its start until the kernel has completed it.

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

/// A file operation that the volume asks the engine to perform.
pub(crate) enum FileOpRequest {
    /// Read from file offset `offset` into the buffer, from the buffer's byte `start` on.
    Read { buffer: IoBuffer, start: usize, offset: u64 },
    /// Write at most [`MAX_PIECES`] pieces of memory at file offset `offset`.
    Write { data: Data, offset: u64, stable: bool, direct: bool },
    /// Make all earlier writes to the file stable.
    Sync,
    /// Punch a hole into the file: free its blocks, which then read as zeros.
    Punch { offset: u64, length: u64 },
}

/// An operation, shared by its callers and the engine. It owns its memory and its file, so that
/// both exist for as long as the kernel may use them, even if all callers have stopped waiting.
pub(crate) struct Op {
    file: Arc<File>,
    kind: FileOpKind,
    /// Addresses of the memory that the kernel reads or writes. `state` or `kind` owns that memory.
    vectors: SmallVec<[libc::iovec; 1]>,
    state: Mutex<FileOpState>,
}

/// The arguments of the system call, apart from the memory.
pub(super) enum FileOpKind {
    Read { offset: u64 },
    Write { data: Data, offset: u64, stable: bool, direct: bool },
    Sync,
    Punch { offset: u64, length: u64 },
}

struct FileOpState {
    /// Number of bytes, or the error number; `Some` when the kernel has completed the operation.
    result: Option<Result<usize, i32>>,
    /// The buffer of a read operation; `None` for other operations.
    buffer: Option<IoBuffer>,
    /// The permit of the engine, kept until the kernel has completed the operation.
    permit: Option<OwnedSemaphorePermit>,
    /// True if a caller has received the result.
    seen: bool,
    wakers: SmallVec<[Waker; 1]>,
}

// SAFETY: the raw pointers in `vectors` point into memory that the operation owns. Between the start and `complete`,
// only the kernel or one engine thread accesses that memory.
unsafe impl Send for Op {}
// SAFETY: the pointers are sound for the reason given at `Send`, and all state that changes is behind a lock.
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
                // SAFETY: `start` is inside the buffer: `FileVolume` requests a read only while bytes at the end of the
                // buffer are missing.
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

    /// Stores `result`, which the system call returned. The kernel does not access the memory any
    /// more.
    pub(super) fn complete(&self, result: io::Result<usize>) {
        let wakers = {
            let mut state = self.state.lock();
            state.result = Some(result.map_err(|e| e.raw_os_error().unwrap_or(libc::EIO)));
            state.permit = None;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes all tasks that wait for this operation, so that they poll it again.
    pub(super) fn wake(&self) {
        let wakers = std::mem::take(&mut self.state.lock().wakers);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns true for an operation that blocks a thread of the kernel even with io_uring.
    pub(super) fn blocks(&self) -> bool {
        matches!(self.kind, FileOpKind::Write { direct: false, .. })
    }

    /// Returns true for a write with [`Durability::Stable`](crate::Durability::Stable).
    pub(crate) fn is_stable(&self) -> bool {
        matches!(self.kind, FileOpKind::Write { stable: true, .. })
    }

    pub(crate) fn is_sync(&self) -> bool {
        matches!(self.kind, FileOpKind::Sync)
    }

    /// Returns true if the operation is complete and a caller has received the result.
    pub(crate) fn is_seen(&self) -> bool {
        self.state.lock().seen
    }

    /// Returns the result if the operation is complete.
    pub(crate) fn outcome(&self) -> Option<io::Result<usize>> {
        let result = self.state.lock().result?;
        Some(result.map_err(io::Error::from_raw_os_error))
    }

    /// Returns the result of this operation. Until there is one, registers the waker of `context`.
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

    /// Takes the buffer of a read that is complete.
    pub(crate) fn take_buffer(&self) -> Option<IoBuffer> {
        let mut state = self.state.lock();
        if state.result.is_some() { state.buffer.take() } else { None }
    }
}

/// Maximum number of pieces in one system call (`UIO_MAXIOV` of Linux).
pub(crate) const MAX_PIECES: usize = 1024;
/// Maximum bytes of one read. The kernel transfers a little less than 2 GiB in one call.
const MAX_BYTES: usize = 1 << 30;
