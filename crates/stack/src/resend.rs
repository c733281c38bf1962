//! A remote volume for one writer that flushes: what it wrote since its last good flush is kept, and
//! sent again when the far side has begun anew (decision 0004).

use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::Notify;
use volume::{
    Allocation, Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, Provisioning,
    Stack, ThinSpaceUsage, Volume,
};

use super::unflushed::{Unflushed, UnflushedContent};

/// `lower`, whose flushes are as good as if it had never begun anew. Nobody else may write to
/// `lower`, or flush it. What was not flushed is lost with this process, as a disk loses what is in its
/// volatile cache.
///
/// Calls that overlap are made one after another, so that what is sent again is what a read has seen.
pub struct Resend {
    lower: Stack,
    limit: u64,
    state: Mutex<ResendState>,
    /// A call to `lower` has ended.
    ended: Notify,
    /// Held by the flush that is at work: `lower` tells one flush only that it has begun anew.
    flushing: tokio::sync::Mutex<()>,
}

struct ResendState {
    /// Blocks that are being written, discarded or sent again; none twice.
    under_way: Vec<Extent>,
    unflushed: Unflushed,
    /// Counts answers: each for the bytes that are kept of it, so that the difference to another
    /// moment is also the memory that is held.
    answered: u64,
    /// All answers up to this are stable.
    flushed: u64,
    /// How often `lower` has begun anew.
    losses: u64,
}

/// What is kept beside the bytes of a write: its entry in a table, and who holds the bytes.
const ENTRY_BYTES: u64 = 256;

/// Bytes that are kept before a write has to wait for a flush: as much as 1 Gbit/s carries in half
/// a second, the time that a flush then takes longer if all must be sent again. What is under way
/// comes on top, 128 MiB at most from a loop device.
const LIMIT: u64 = 64 << 20;

/// Flushes that a flush is tried with while the far side begins anew, as often as the initiator sends a
/// stable write to a unit without FUA.
const ATTEMPTS: u32 = 3;

/// Pieces that are sent again side by side: as the initiator has pieces of one write under way.
const SIDE_BY_SIDE: usize = 16;

impl Resend {
    /// Keeps what is written to `lower`.
    pub fn new(lower: Stack) -> Self {
        Self::with_limit(lower, LIMIT)
    }

    fn with_limit(lower: Stack, limit: u64) -> Self {
        let state = ResendState {
            under_way: Vec::new(),
            unflushed: Unflushed::new(lower.geometry().block_size),
            // Whoever was here before may have left something: the first flush goes down.
            answered: 1,
            flushed: 0,
            losses: 0,
        };
        Self {
            lower,
            limit,
            state: Mutex::new(state),
            ended: Notify::new(),
            flushing: tokio::sync::Mutex::default(),
        }
    }

    /// Waits until nobody else changes anything of `extent`.
    async fn turn(&self, extent: Extent) -> ResendExtentLock<'_> {
        loop {
            let ended = self.ended.notified();
            {
                let mut state = self.state.lock();
                if !state.under_way.iter().any(|other| overlap(*other, extent)) {
                    state.under_way.push(extent);
                    return ResendExtentLock {
                        layer: self,
                        extent,
                        losses: state.losses,
                        is_done: false,
                    };
                }
            }
            ended.await;
        }
    }

    /// Waits until more may be kept.
    async fn room(&self) -> Result<(), Error> {
        while self.state.lock().kept() >= self.limit {
            self.flush_all().await?;
        }
        Ok(())
    }

    /// Makes everything stable that was answered before.
    async fn flush_all(&self) -> Result<(), Error> {
        let wanted = self.state.lock().answered;
        let _turn = self.flushing.lock().await;
        if self.state.lock().flushed >= wanted {
            return Ok(());
        }
        let mut left = ATTEMPTS;
        loop {
            let number = self.send_lost().await?;
            let result = self.lower.flush().await;
            left -= 1;
            let mut state = self.state.lock();
            match result {
                Ok(()) => {
                    state.flushed = number;
                    state.unflushed.flushed(number);
                    return Ok(());
                }
                Err(Error::Device(reason)) => {
                    // Told once: whoever flushes next begins with that.
                    state.unflushed.lose_all();
                    state.losses += 1;
                    if left == 0 {
                        return Err(Error::Device(reason));
                    }
                    let bytes = state.kept();
                    // The reason says that writes may be lost, which is not so here.
                    tracing::debug!(%reason, "a flush failed");
                    tracing::info!(
                        bytes,
                        "the far volume has started anew: all writes that were not flushed are sent again, and \
                         nothing is lost"
                    );
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends again what the far side may have lost, and gives the number of the last answer to which
    /// then applies what a flush says. What fails stays lost.
    async fn send_lost(&self) -> Result<u64, Error> {
        loop {
            let lost = {
                let state = self.state.lock();
                let lost = state.unflushed.lost();
                if lost.is_empty() {
                    return Ok(state.answered);
                }
                lost
            };
            let sending = stream::iter(lost).map(|extent| self.send_again(extent));
            let mut sending = sending.buffer_unordered(SIDE_BY_SIDE);
            while sending.try_next().await?.is_some() {}
        }
    }

    /// Sends again what is kept of `extent` by the time that it is its turn.
    async fn send_again(&self, extent: Extent) -> Result<(), Error> {
        let mut turn = self.turn(extent).await;
        let kept = self.state.lock().unflushed.within(extent);
        for (part, content) in kept {
            match content {
                UnflushedContent::Data(data) => {
                    self.lower.write(part.lba, data, Durability::Volatile).await?;
                }
                UnflushedContent::Zeros => self.lower.discard(part).await?,
            }
        }
        turn.is_done = true;
        self.state.lock().unflushed.sent_again(extent);
        Ok(())
    }
}

impl ResendState {
    /// Bytes, at most.
    fn kept(&self) -> u64 {
        self.answered - self.flushed
    }
}

/// Blocks that one call changes.
struct ResendExtentLock<'a> {
    layer: &'a Resend,
    extent: Extent,
    /// Before the call.
    losses: u64,
    /// They hold what they are meant to.
    is_done: bool,
}

impl ResendExtentLock<'_> {
    /// `lower` has answered: what is to be kept of it, if it is not stable.
    fn end(mut self, content: Option<UnflushedContent>) {
        self.is_done = true;
        let mut state = self.layer.state.lock();
        let Some(content) = content else {
            state.unflushed.forget(self.extent);
            return;
        };
        let bytes = match &content {
            UnflushedContent::Data(data) => data.len() as u64,
            UnflushedContent::Zeros => 0,
        };
        state.answered += bytes + ENTRY_BYTES;
        // If a flush was told of a loss meanwhile, that may have been this.
        let is_lost = state.losses != self.losses;
        let number = state.answered;
        state.unflushed.keep(self.extent, content, number, is_lost);
    }
}

impl Drop for ResendExtentLock<'_> {
    fn drop(&mut self) {
        let mut state = self.layer.state.lock();
        state.under_way.retain(|extent| *extent != self.extent);
        if !self.is_done {
            // It may hold anything now: what was answered before is to be there after the next flush.
            state.unflushed.lose(self.extent);
        }
        drop(state);
        self.layer.ended.notify_waiters();
    }
}

impl Volume for Resend {
    fn geometry(&self) -> Geometry {
        // What is between two flushes of ours is not what is between two of those above.
        Geometry { epoch_blocks: 0, ..self.lower.geometry() }
    }

    /// What the far side may have lost is not read from there.
    fn read(&self, extent: Extent) -> Io<'_, Data> {
        let kept = self.state.lock().unflushed.within(extent);
        if kept.is_empty() {
            return self.lower.read(extent);
        }
        let block_size = self.lower.geometry().block_size as usize;
        if kept.iter().map(|(part, _)| part.blocks).sum::<u32>() == extent.blocks {
            let data = Data::with_parts(kept.len());
            return Io::done(Ok(join(data, extent, &Data::new(), kept, block_size)));
        }
        Io::new(async move {
            let below = self.lower.read(extent).await?;
            Ok(join(Data::new(), extent, &below, kept, block_size))
        })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        Io::new(async move {
            let block_size = self.lower.geometry().block_size as usize;
            let Ok(blocks) = u32::try_from(data.len() / block_size) else {
                return Err(Error::OutOfRange(Extent { lba, blocks: u32::MAX }));
            };
            self.room().await?;
            let turn = self.turn(Extent { lba, blocks }).await;
            self.lower.write(lba, data.clone(), durability).await?;
            turn.end((durability == Durability::Volatile).then_some(UnflushedContent::Data(data)));
            Ok(())
        })
    }

    fn flush(&self) -> Io<'_, ()> {
        Io::new(self.flush_all())
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        Io::new(async move {
            self.room().await?;
            let turn = self.turn(extent).await;
            self.lower.discard(extent).await?;
            turn.end(Some(UnflushedContent::Zeros));
            Ok(())
        })
    }

    fn admit(&self, bytes: usize) -> Result<(), Error> {
        self.lower.admit(bytes)
    }

    fn extensions(&self) -> Extensions<'_> {
        // Only what hosts ask about space and size is passed on.
        let below = self.lower.extensions();
        Extensions {
            provisioning: below.provisioning.and(Some(self)),
            resizable: below.resizable,
            ..Extensions::default()
        }
    }
}

impl Provisioning for Resend {
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        if self.state.lock().unflushed.within(extent).is_empty() {
            return self.lower.extensions().allocation(extent);
        }
        // Who does not know says so.
        Io::done(Ok(Allocation::mapped(extent.blocks)))
    }

    fn usage(&self) -> Option<ThinSpaceUsage> {
        self.lower.extensions().usage()
    }
}

fn overlap(one: Extent, other: Extent) -> bool {
    one.lba < other.end() && other.lba < one.end()
}

/// The blocks of `extent` in order: what is kept of them, and between that what is `below`. Appended to
/// `all`.
fn join(
    mut all: Data,
    extent: Extent,
    below: &Data,
    kept: Vec<(Extent, UnflushedContent)>,
    block_size: usize,
) -> Data {
    let bytes = |blocks: u64| blocks as usize * block_size;
    let gap = |from: u64, to: u64| below.slice(bytes(from - extent.lba.0), bytes(to - from));
    let mut next = extent.lba.0;
    for (part, content) in kept {
        if next < part.lba.0 {
            all.append(gap(next, part.lba.0));
        }
        match content {
            UnflushedContent::Data(data) => all.append(data),
            UnflushedContent::Zeros => all.append(Data::zeros(bytes(part.blocks.into()))),
        }
        next = part.end().0;
    }
    if next < extent.end().0 {
        all.append(gap(next, extent.end().0));
    }
    all
}

#[cfg(test)]
mod tests;
