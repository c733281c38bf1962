//! A log that gets another size while the cache is at work.
//!
//! Growing: what is new goes into the ring where the next segment goes, so that there is room at
//! once, and the index moves to the new end. Shrinking: first nothing new goes to the part that is
//! given up, then destage brings down what lies there, then the index moves and the end with it.
//!
//! Each step is one state of the superblock, which is stable before a segment is written by it;
//! meanwhile no segment and no frame of the index is under way. So after a crash at any point the
//! superblock says where every segment is.

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

/// Why a log does not get another size. It is as it was, unless said otherwise.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// Not a size that a log can have.
    #[error("a log cannot have {asked} blocks of 4096 bytes: {why}")]
    Size {
        /// Blocks that were asked for.
        asked: u64,
        /// The reason.
        why: String,
    },
    /// It was resized too often since its oldest data was written.
    #[error("the log was resized too often since its oldest data was written; drain it first")]
    TooOften,
    /// What is between two flushes may need the room that would be given up.
    #[error("a log whose writes count with the next flush cannot shrink while it is in use")]
    AtFlush,
    /// The log disk, or the far volume that the data has to go to. While shrinking: what is to
    /// be given up is not used any more, and the rest is done by asking again, or undone by the next
    /// opening.
    #[error(transparent)]
    Volume(#[from] Error),
}

/// Held until the last of its holders is done: a change goes on though its caller has given it up.
type LogResizeTurn = Arc<OwnedMutexGuard<()>>;

impl CacheCore {
    /// Gives the log so many blocks. Shrinking waits for destage.
    pub async fn resize(self: &Arc<Self>, blocks: u64) -> Result<(), ResizeError> {
        let turn = Arc::new(Arc::clone(&self.log.resize_turn).lock_owned().await);
        let now = self.log.superblock.lock().await.clone();
        let refused = |why: String| Err(ResizeError::Size { asked: blocks, why });
        let least = least_blocks(now.segment_slots);
        if blocks < least {
            return refused(format!("{least} are the least"));
        }
        if blocks > u64::from(u32::MAX / 2) {
            return refused(format!("{} are the most", u32::MAX / 2));
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
                return refused(format!("it grows by {more} at least"));
            }
            return self.grow(turn, target).await;
        }
        if blocks < now.log_blocks {
            return self.shrink(turn, target).await;
        }
        // One that was to shrink, and was given up, takes all of it into use again.
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
            // Without anything new it is one zone again, or stays as it is.
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
        // Asked again, it goes on where it was.
        while !self.state.lock().log.ring.layout().is_before(end) {
            let cut = self.change_layout(Arc::clone(&turn), before.clone(), move |shared, _, _| {
                let why = || "too little of its ring would be left; drain it first".into();
                let cut = shared.state.lock().log.ring.cut(end);
                cut.ok_or_else(|| ResizeError::Size { asked, why: why() })
            });
            match cut.await {
                // Less room than was promised: more of it has to go down first.
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

    /// Has the ring take the layout that `make` gives, and the superblock the size that `target` says.
    async fn change_layout(
        self: &Arc<Self>,
        turn: LogResizeTurn,
        target: Superblock,
        make: impl FnOnce(&Self, &Superblock, u32) -> Result<SegmentLayout, ResizeError>
        + Send
        + 'static,
    ) -> Result<(), ResizeError> {
        // To its end, though its caller may give it up: superblock and ring have to agree.
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

    /// Writes the superblock of another size or with other layouts. If that fails it may have reached
    /// the disk all the same: it is taken back, however long that takes, before anything else is written.
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
                "the log cannot note its new size, and takes no writes until it has noted the former one"
            );
            while let Err(error) = self.write_superblock(|_| ()).await {
                tracing::debug!(%error, "the log cannot note its size; trying again");
                // Nothing is being written to the log, so nobody else tells those who wait for that.
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

/// While it lives, neither a segment nor a frame of the index is being written.
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

/// The superblock of a log of so many blocks.
fn with_size(now: &Superblock, log_blocks: u64) -> Superblock {
    let (frame_blocks, index_blocks) = index_shape(log_blocks, now.segment_slots);
    Superblock { log_blocks, frame_blocks, index_blocks, ..now.clone() }
}

/// What would be left is less than what waits for the log was promised.
const NO_ROOM: &str = "the log is too full for that";
/// How often what is in the log has to go down before too much of it is promised for the new size.
const CUT_TRIES: u32 = 5;
/// How long it waits for the segment and the frame that are being written: longer than a disk takes
/// that works, shorter than whoever waits for writes meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries to take a superblock back.
const BETWEEN_TRIES: Duration = Duration::from_secs(1);
