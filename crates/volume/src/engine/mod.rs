//! How operations on files reach the kernel: by io_uring where it gives one, else by threads.

mod op;
mod psync;
mod uring;

use std::{fs::File, future::poll_fn, io, sync::Arc};

use tokio::sync::Semaphore;

pub(crate) use op::{FileOpRequest, MAX_PIECES, Op};
use psync::Psync;
use uring::Uring;

/// Which engine a file uses.
///
/// With io_uring, writes through the page cache still go to threads: the kernel would do the same,
/// with one thread for each file (measured: 20 to 100 us for 4 KiB by the kernel's threads, 6 to
/// 40 us by ours).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum EngineKind {
    /// [`EngineKind::Uring`] if the kernel allows it, else [`EngineKind::Psync`].
    #[default]
    Auto,
    /// Blocking calls on up to eight threads.
    Psync,
    /// An io_uring of its own.
    Uring,
}

/// Performs operations.
pub(crate) struct IoEngine {
    way: IoEngineBackend,
    permits: Arc<Semaphore>,
}

enum IoEngineBackend {
    Psync(Psync),
    Uring(Uring, Psync),
}

impl IoEngine {
    /// An engine of that kind.
    pub(crate) fn new(kind: EngineKind) -> io::Result<Self> {
        let way = match kind {
            EngineKind::Psync => IoEngineBackend::Psync(Psync::new()),
            EngineKind::Uring => IoEngineBackend::Uring(Uring::new()?, Psync::new()),
            // Refused by a container or a setting (EPERM), or not built in (ENOSYS).
            EngineKind::Auto => match Uring::new() {
                Ok(uring) => IoEngineBackend::Uring(uring, Psync::new()),
                Err(_) => IoEngineBackend::Psync(Psync::new()),
            },
        };
        Ok(Self { way, permits: Arc::new(Semaphore::new(MAX_OPS as usize)) })
    }

    /// Which it is; never `Auto`.
    pub(crate) fn kind(&self) -> EngineKind {
        match self.way {
            IoEngineBackend::Psync(_) => EngineKind::Psync,
            IoEngineBackend::Uring(..) => EngineKind::Uring,
        }
    }

    /// Starts an operation, once fewer than [`MAX_OPS`] are under way. From then on it runs to its
    /// end, whether anybody waits or not.
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

    /// Waits until `op` is done; gives how many bytes it moved.
    pub(crate) async fn finish(&self, op: &Op) -> io::Result<usize> {
        poll_fn(|context| match &self.way {
            IoEngineBackend::Uring(uring, _) if !op.blocks() => uring.poll(op, context),
            _ => op.poll(context),
        })
        .await
    }
}

/// Operations under way at a time: what a fast disk needs to be busy, four times over, and small
/// enough for the ring's memory.
const MAX_OPS: u32 = 256;
