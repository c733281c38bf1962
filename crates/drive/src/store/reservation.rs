//! Reserves blocks for data on its way to the volume, and writes the data to them.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, mpsc},
    task::{Context, Poll},
};

use futures_util::future::join_all;
use object::ObjectError;
use volume::{Data, Durability};

use super::{
    committer::CommitJob,
    groups::{BlockRun, BlockRuns},
    tables::Tables,
};

/// Blocks that a command has reserved. Dropping the reservation frees them, unless a transaction has confirmed them.
pub(crate) struct Reservation {
    tables: Arc<Tables>,
    runs: BlockRuns,
}

impl Reservation {
    /// Takes over blocks that a transaction has reserved.
    pub(crate) fn new(tables: &Arc<Tables>, runs: BlockRuns) -> Self {
        Self { tables: Arc::clone(tables), runs }
    }

    pub(crate) fn runs(&self) -> &[BlockRun] {
        &self.runs
    }

    /// Keeps the blocks reserved no longer, because a transaction has made rows refer to them.
    pub(crate) fn confirmed(mut self) {
        self.runs.clear();
    }

    /// Returns the block number of each reserved block.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = u64> {
        self.runs.iter().flat_map(|run| run.start..run.start + run.count)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.tables.state.lock();
        state.groups.unreserve(&self.runs);
        if state.groups.reserved() == 0 {
            self.tables.idle.notify_waiters();
        }
    }
}

type WriteFuture = Pin<Box<dyn Future<Output = Result<(), volume::Error>> + Send>>;

/// A write to reserved blocks. If it is dropped before it ends, the committer thread waits for its end: the blocks must
/// not be used again while a write may still reach the disk.
pub(crate) struct BlockWrites {
    writes: Option<WriteFuture>,
    reservation: Option<Reservation>,
    committer: mpsc::Sender<CommitJob>,
}

impl BlockWrites {
    /// Begins to write `data` to the blocks of `reservation`, in their order.
    pub(crate) fn begin(
        reservation: Reservation,
        data: &Data,
        committer: &mpsc::Sender<CommitJob>,
    ) -> Self {
        let tables = Arc::clone(&reservation.tables);
        let mut at = 0;
        let mut parts = Vec::with_capacity(reservation.runs.len());
        for run in &reservation.runs {
            let length = run.count as usize * super::disk::BLOCK as usize;
            parts.push((tables.offset(run.start), data.slice(at, length)));
            at += length;
        }
        let writes = Box::pin(async move {
            let disk = &tables.disk;
            if let [_] = &parts[..] {
                let (offset, data) = parts.remove(0);
                return disk.write(offset, data, Durability::Volatile).await;
            }
            let all = parts.drain(..).map(|(at, data)| disk.write(at, data, Durability::Volatile));
            join_all(all).await.into_iter().collect()
        });
        let committer = committer.clone();
        Self { writes: Some(writes), reservation: Some(reservation), committer }
    }
}

impl Future for BlockWrites {
    type Output = Result<Reservation, ObjectError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let writes = self.writes.as_mut().expect("polled after its end");
        let result = std::task::ready!(writes.as_mut().poll(context));
        self.writes = None;
        let reservation = self.reservation.take().expect("taken at the end only");
        Poll::Ready(match result {
            Ok(()) => Ok(reservation),
            Err(error) => Err(ObjectError::Storage(error.to_string())),
        })
    }
}

impl Drop for BlockWrites {
    fn drop(&mut self) {
        if let (Some(writes), Some(reservation)) = (self.writes.take(), self.reservation.take()) {
            let left = async move {
                // Ignore the result: the command that would use it was aborted.
                let _ = writes.await;
                drop(reservation);
            };
            // Ignore an error: without a committer the drive is closed, and its blocks are not used again.
            let _ = self.committer.send(CommitJob::Finish(Box::pin(left)));
        }
    }
}
