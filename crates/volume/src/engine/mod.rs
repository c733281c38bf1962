//! Performs file operations: with io_uring if the kernel allows that, otherwise on threads with blocking calls.

mod op;
mod psync;
mod uring;

use std::{fs::File, future::poll_fn, io, sync::Arc};

use tokio::sync::Semaphore;

pub(crate) use op::{FileOpRequest, MAX_PIECES, Op};
use psync::Psync;
use uring::Uring;

/// Selects the engine of a file.
///
/// With io_uring, writes through the page cache still go to threads. The kernel would use threads
/// of its own, one for each file (measured for 4 KiB: 20 to 100 us with the threads of the kernel,
/// 6 to 40 us with ours).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum EngineKind {
    /// io_uring if the kernel allows it, otherwise `Psync`.
    #[default]
    Auto,
    /// Blocking calls on up to eight threads.
    Psync,
    /// An io_uring ring for this file.
    Uring,
}

/// Runs operations on one file, by io_uring or on threads, and limits how many are in flight.
pub(crate) struct IoEngine {
    way: IoEngineBackend,
    permits: Arc<Semaphore>,
}

enum IoEngineBackend {
    Psync(Psync),
    Uring(Uring, Psync),
}

impl IoEngine {
    pub(crate) fn new(kind: EngineKind) -> io::Result<Self> {
        let way = match kind {
            EngineKind::Psync => IoEngineBackend::Psync(Psync::new()),
            EngineKind::Uring => IoEngineBackend::Uring(Uring::new()?, Psync::new()),
            // Fall back to threads: a container or a setting refuses io_uring (EPERM), or the kernel was built without
            // it (ENOSYS).
            EngineKind::Auto => match Uring::new() {
                Ok(uring) => IoEngineBackend::Uring(uring, Psync::new()),
                Err(_) => IoEngineBackend::Psync(Psync::new()),
            },
        };
        Ok(Self { way, permits: Arc::new(Semaphore::new(MAX_OPS as usize)) })
    }

    /// Returns the engine in use: `Psync` or `Uring`, never `Auto`.
    pub(crate) fn kind(&self) -> EngineKind {
        match self.way {
            IoEngineBackend::Psync(_) => EngineKind::Psync,
            IoEngineBackend::Uring(..) => EngineKind::Uring,
        }
    }

    /// Starts an operation as soon as fewer than [`MAX_OPS`] are in progress. The operation then
    /// runs to its end even if its caller stops waiting.
    pub(crate) async fn start(&self, file: &Arc<File>, request: FileOpRequest) -> Arc<Op> {
        let permits = Arc::clone(&self.permits);
        let permit = permits.acquire_owned().await.expect("never closed");
        let op = Op::new(Arc::clone(file), request, permit);
        match &self.way {
            IoEngineBackend::Uring(uring, _) if !op.blocks() => uring.start(Arc::clone(&op)),
            IoEngineBackend::Uring(_, psync) | IoEngineBackend::Psync(psync) => {
                psync.start(Arc::clone(&op))
            }
        }
        op
    }

    /// Waits until the file operation `op` is complete, and returns the number of bytes transferred.
    pub(crate) async fn finish(&self, op: &Op) -> io::Result<usize> {
        poll_fn(|context| match &self.way {
            IoEngineBackend::Uring(uring, _) if !op.blocks() => uring.poll(op, context),
            _ => op.poll(context),
        })
        .await
    }
}

/// Maximum number of operations in progress: four times what keeps a fast disk busy, and few enough
/// for the memory of the ring.
const MAX_OPS: u32 = 256;
