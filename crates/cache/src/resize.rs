//! Changes the size of a log while the cache is in use.
//!
//! Growing: the new blocks become a zone of the ring at the position of the next segment, so that they can be
//! used at once, and the index moves to the new end. Shrinking: first new segments avoid the blocks that will
//! be removed, then destage frees those blocks, then the index moves to the new end.
//!
//! Each step is one state of the superblock, which is stable before any segment relies on it. Meanwhile no
//! segment and no frame of the index is being written. After a crash at any point, the superblock therefore
//! gives the position of every segment.

use std::{sync::Arc, task::Waker, time::Duration};

use journal::{
    layout::{MOST_LAYOUTS, MOST_ZONES, SegmentLayout},
    shape::{FIRST_BLOCK, index_shape, least_blocks},
    superblock::Superblock,
};
use tokio::{
    sync::OwnedMutexGuard,
    time::{sleep, timeout},
};
use volume::Error;

use crate::core::CacheCore;

/// The reason why the size of a log was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// The requested size is not possible for a log.
    #[error("a log cannot have {asked} blocks of 4096 bytes: {why}")]
    Size {
        /// The number of blocks that the operator has requested.
        asked: u64,
        why: String,
    },
    #[error("the log was resized too often since its oldest data was written; drain it first")]
    TooOften,
    /// The log may need all its room for the data between two flushes.
    #[error(
        "a log whose writes become stable with the next flush cannot shrink while it is in use"
    )]
    AtFlush,
    /// The log disk or the lower volume has failed. After a failed shrink, the blocks that should be removed
    /// are not used any more. The caller may request the shrink again to finish it; the next opening undoes
    /// it.
    #[error(transparent)]
    Volume(#[from] Error),
}

/// Serializes resizes. The task that changes the layout holds the guard too, since it continues after its
/// caller was dropped.
type LogResizeTurn = Arc<OwnedMutexGuard<()>>;

impl CacheCore {
    /// Changes the size of the log to `blocks` blocks. To shrink, waits for destage.
    pub async fn resize(self: &Arc<Self>, blocks: u64) -> Result<(), ResizeError> {
        let turn = Arc::new(Arc::clone(&self.log.resize_turn).lock_owned().await);
        let now = self.log.superblock.lock().await.clone();
        let refused = |why: String| Err(ResizeError::Size { asked: blocks, why });
        let least = least_blocks(now.segment_slots);
        if blocks < least {
            return refused(format!("the minimum is {least}"));
        }
        if blocks > u64::from(u32::MAX / 2) {
            return refused(format!("the maximum is {}", u32::MAX / 2));
        }
        let found = self.log.volume.geometry().blocks;
        if blocks > found {
            return refused(format!("its disk has {found}"));
        }
        let target = with_size(&now, blocks);
        if blocks > now.log_blocks {
            let added = target.ring_end().saturating_sub(now.ring_end());
            if added <= now.segment_slots {
                let more = u64::from(now.segment_slots) + blocks / 64 + 17;
                return refused(format!("it must grow by at least {more} blocks"));
            }
            return self.grow(turn, target).await;
        }
        if blocks < now.log_blocks {
            return self.shrink(turn, target).await;
        }
        // An earlier shrink was abandoned half-way: let the log use all its blocks again.
        let is_cut = self.state.lock().log.ring.blocks() < now.ring_end() - FIRST_BLOCK;
        if is_cut { self.grow(turn, target).await } else { Ok(()) }
    }

    async fn grow(
        self: &Arc<Self>,
        turn: LogResizeTurn,
        target: Superblock,
    ) -> Result<(), ResizeError> {
        self.change_layout(turn, target, |shared, target, old_end| {
            let state = shared.state.lock();
            let end = target.ring_end();
            let grown = (end > old_end).then(|| state.log.ring.grown(old_end, end));
            // If the log gains no blocks, make its ring one contiguous zone again if possible.
            Ok(grown
                .or_else(|| state.log.ring.straight(end))
                .unwrap_or_else(|| state.log.ring.same()))
        })
        .await
    }

    async fn shrink(
        self: &Arc<Self>,
        turn: LogResizeTurn,
        target: Superblock,
    ) -> Result<(), ResizeError> {
        if self.rules.epochs_end_by_flush {
            return Err(ResizeError::AtFlush);
        }
        let end = target.ring_end();
        let (asked, before) = (target.log_blocks, self.log.superblock.lock().await.clone());
        let mut tries = CUT_TRIES;
        // A repeated request for this size continues where the earlier shrink has stopped.
        while !self.state.lock().log.ring.layout().is_before(end) {
            let cut = self.change_layout(Arc::clone(&turn), before.clone(), move |shared, _, _| {
                let why = || "its ring would be too small; drain it first".into();
                let cut = shared.state.lock().log.ring.cut(end);
                cut.ok_or_else(|| ResizeError::Size { asked, why: why() })
            });
            match cut.await {
                // The shorter ring would have less room than has been promised to writes. Destage, and try
                // again.
                Err(ResizeError::Volume(Error::Busy(NO_ROOM))) if tries > 0 => {
                    tries -= 1;
                    let newest = self.state.lock().log.ring.next() - 1;
                    self.drain_to(newest).await?;
                }
                cut => cut?,
            }
        }
        let first = self.state.lock().log.ring.layout().first;
        self.drain_to(first.saturating_sub(1)).await?;
        self.change_layout(turn, target, move |shared, _, _| {
            let state = shared.state.lock();
            Ok(state.log.ring.straight(end).unwrap_or_else(|| state.log.ring.same()))
        })
        .await
    }

    /// Changes the layout of the ring to the one that `make` returns, and the size in the superblock to that
    /// of `target`.
    async fn change_layout(
        self: &Arc<Self>,
        turn: LogResizeTurn,
        target: Superblock,
        make: impl FnOnce(&Self, &Superblock, u32) -> Result<SegmentLayout, ResizeError>
        + Send
        + 'static,
    ) -> Result<(), ResizeError> {
        // Run to the end even if the caller is dropped: superblock and ring must agree.
        let shared = Arc::clone(self);
        let ended = tokio::spawn(async move {
            let frozen = Frozen::begin(&shared).await?;
            let old_end = shared.log.superblock.lock().await.ring_end();
            let layout = make(&shared, &target, old_end)?;
            let mut ring = shared.state.lock().log.ring.clone();
            let before = ring.room();
            ring.set_layout(layout.clone());
            if ring.room() < before && ring.room() < shared.state.lock().promised_room() {
                return Err(Error::Busy(NO_ROOM).into());
            }
            let layouts: Vec<_> = ring.layouts().cloned().collect();
            if layouts.len() > MOST_LAYOUTS || layout.zones.len() > MOST_ZONES {
                return Err(ResizeError::TooOften);
            }
            shared.write_layouts(&target, layouts).await?;
            shared.state.lock().log.ring.set_layout(layout);
            drop(frozen);
            drop(turn);
            Ok(())
        });
        ended.await.unwrap_or_else(|_| Err(Error::Device("the cache was closed".into()).into()))
    }

    /// Writes the superblock with another size or other layouts. If that fails, the new superblock may be on
    /// the disk all the same: restores the former one before anything else is written to the log, however
    /// long that takes.
    async fn write_layouts(
        &self,
        target: &Superblock,
        layouts: Vec<SegmentLayout>,
    ) -> Result<(), Error> {
        let number = self.log.index.lock().next();
        let moves = self.log.superblock.lock().await.log_blocks != target.log_blocks;
        let change = |superblock: &mut Superblock| {
            superblock.log_blocks = target.log_blocks;
            superblock.index_blocks = target.index_blocks;
            superblock.frame_blocks = target.frame_blocks;
            if moves {
                (superblock.index_tail, superblock.index_first) = (number, number);
            }
            superblock.layouts = layouts;
        };
        let written = self.write_superblock(change).await;
        if let Err(error) = written {
            tracing::error!(
                %error,
                remedy = "nothing has to be done unless it lasts: then check the disk of the log \
                 (`dmesg -T`)",
                "cannot record the new size of the log: no write is accepted until the former size is \
                 recorded again"
            );
            while let Err(error) = self.write_superblock(|_| ()).await {
                tracing::debug!(%error, "cannot record the size of the log; trying again");
                // Return the error to the waiting calls here: no segment is being written, so no other task
                // returns it.
                let wakers = self.state.lock().commits.fail(error);
                wakers.into_iter().for_each(Waker::wake);
                self.signals.changed.notify_waiters();
                sleep(BETWEEN_TRIES).await;
            }
            self.state.lock().commits.failure = None;
            return Err(error);
        }
        if moves {
            let superblock = self.log.superblock.lock().await;
            self.log.index.lock().move_to(&superblock);
        }
        Ok(())
    }
}

/// While this exists, no segment and no index frame is written to the log.
struct Frozen(Arc<CacheCore>);

impl Frozen {
    async fn begin(shared: &Arc<CacheCore>) -> Result<Self, Error> {
        {
            let mut state = shared.state.lock();
            if state.destage.is_stopping {
                return Err(Error::Busy("the cache is stopping"));
            }
            state.queue.is_frozen = true;
        }
        let frozen = Self(Arc::clone(shared));
        let still = shared.wait_until(|state| {
            let writing = state.queue.is_writing | shared.log.index.lock().hold();
            (!writing).then_some(())
        });
        match timeout(PATIENCE, still).await {
            Ok(()) => Ok(frozen),
            Err(_) => Err(Error::Busy("the log disk does not answer")),
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let shared = &self.0;
        shared.log.index.lock().let_go();
        shared.start_index();
        let mut state = shared.state.lock();
        state.queue.is_frozen = false;
        shared.start_commit(&mut state);
        drop(state);
        shared.signals.changed.notify_waiters();
    }
}

fn with_size(now: &Superblock, log_blocks: u64) -> Superblock {
    let (frame_blocks, index_blocks) = index_shape(log_blocks, now.segment_slots);
    Superblock { log_blocks, frame_blocks, index_blocks, ..now.clone() }
}

/// The shorter ring would have less room than has been promised to writes.
const NO_ROOM: &str = "the log is too full for that";
/// Maximum number of attempts to drain the log when the shorter ring would have too little room.
const CUT_TRIES: u32 = 5;
/// How long a resize waits for the segment and the frame that are being written: longer than a working disk
/// needs, and shorter than hosts wait for writes.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two attempts to restore the superblock.
const BETWEEN_TRIES: Duration = Duration::from_secs(1);
