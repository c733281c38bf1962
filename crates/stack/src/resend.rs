//! A remote volume for one writer that flushes: keeps the writes since the last successful flush, and
//! sends them again when the node was restarted (decision 0004).

use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::Notify;
use volume::{
    Allocation, Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, Provisioning,
    Stack, ThinSpaceUsage, Volume,
};

use super::unflushed::{Unflushed, UnflushedContent};

/// Hides restarts of the node from the writer: a flush succeeds with all writes as if the node had
/// never been restarted. No other initiator may write to `lower` or flush it. Writes that were not
/// flushed are lost with this process, as a disk loses the content of its volatile cache.
///
/// Overlapping calls are performed one after another, so that the content that is sent again is the one
/// that a read has returned.
pub struct Resend {
    lower: Stack,
    limit: u64,
    state: Mutex<ResendState>,
    /// Notified when a call to `lower` has ended.
    ended: Notify,
    /// Held during a flush of `lower`, which reports its restart to one flush only.
    flushing: tokio::sync::Mutex<()>,
}

struct ResendState {
    /// Extents that are being written, discarded or sent again. They never overlap.
    under_way: Vec<Extent>,
    unflushed: Unflushed,
    /// The number of bytes kept for all acknowledged calls so far, added up. The sum grows with each call, so its value
    /// also identifies a call. The difference of two values is the memory that the calls between them hold.
    answered: u64,
    /// The value of `answered` up to which all calls are stable.
    flushed: u64,
    /// Number of times that `lower` has reported lost writes.
    losses: u64,
}

/// Bytes that are counted for each call besides its data: the entry in a table, and the owner of the
/// bytes.
const ENTRY_BYTES: u64 = 256;

/// Maximum number of bytes that are kept before a write has to wait for a flush: as much as 1 Gbit/s
/// carries in half a second, which is the time by which a flush takes longer if everything is sent
/// again. Calls in progress come on top, at most 128 MiB from a loop device.
const LIMIT: u64 = 64 << 20;

/// Number of attempts of a flush while the node restarts; the initiator sends a stable write to a unit
/// without FUA as often.
const ATTEMPTS: u32 = 3;

/// Number of extents that are sent again concurrently; the initiator has as many pieces of one write in
/// flight.
const SIDE_BY_SIDE: usize = 16;

impl Resend {
    pub fn new(lower: Stack) -> Self {
        Self::with_limit(lower, LIMIT)
    }

    fn with_limit(lower: Stack, limit: u64) -> Self {
        let state = ResendState {
            under_way: Vec::new(),
            unflushed: Unflushed::new(lower.geometry().block_size),
            // Begin with 1, which counts as not flushed: an earlier process may have left unflushed writes, so the
            // first flush must reach `lower`.
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

    /// Waits until no other call is changing blocks of `extent`, and then locks them.
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

    /// Flushes the lower volume until there is memory to keep another write.
    async fn room(&self) -> Result<(), Error> {
        while self.state.lock().kept() >= self.limit {
            self.flush_all().await?;
        }
        Ok(())
    }

    /// Makes all calls stable that were acknowledged before.
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
                    // Mark all kept writes as lost, so that the next flush sends them again: `lower` does not report
                    // this loss a second time.
                    state.unflushed.lose_all();
                    state.losses += 1;
                    if left == 0 {
                        return Err(Error::Device(reason));
                    }
                    let bytes = state.kept();
                    // Log the reason at level debug only: it says that writes may be lost, which is not true here.
                    tracing::debug!(%reason, "a flush failed");
                    tracing::info!(
                        bytes,
                        "the node has restarted: all writes that were not flushed are sent again, and nothing is lost"
                    );
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends the lost writes again. Returns the value of `answered` that the next flush covers. Writes
    /// that fail stay marked as lost.
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

    /// Waits until no other call uses `extent`, and then writes the kept data of its blocks again.
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
    /// Returns an upper bound of the bytes that are kept.
    fn kept(&self) -> u64 {
        self.answered - self.flushed
    }
}

/// The blocks that a call in progress changes. Other calls wait for them until this value is dropped.
struct ResendExtentLock<'a> {
    layer: &'a Resend,
    extent: Extent,
    /// The number of losses that the layer had counted when the call began.
    losses: u64,
    is_done: bool,
}

impl ResendExtentLock<'_> {
    /// Ends a successful call. `content` is kept unless it is `None`, which means that the write is
    /// stable.
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
        // If a flush has reported a loss during the call, this write may be lost, too.
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
            // The call failed or was dropped, so the blocks may have their old or new content. Mark the acknowledged
            // content as lost, so that the next flush writes it again.
            state.unflushed.lose(self.extent);
        }
        drop(state);
        self.layer.ended.notify_waiters();
    }
}

impl Volume for Resend {
    fn geometry(&self) -> Geometry {
        // Offer no epochs to the caller: this layer flushes `lower` at other times than the caller does, so the
        // caller's epochs are not atomic.
        Geometry { epoch_blocks: 0, ..self.lower.geometry() }
    }

    /// Reads kept content from memory and only the rest from `lower`, because the node may have lost the kept writes.
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
        // Pass on only the queries of hosts for space and size.
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
        // The node may have lost discards, so report all blocks as mapped.
        Io::done(Ok(Allocation::mapped(extent.blocks)))
    }

    fn usage(&self) -> Option<ThinSpaceUsage> {
        self.lower.extensions().usage()
    }
}

fn overlap(one: Extent, other: Extent) -> bool {
    one.lba < other.end() && other.lba < one.end()
}

/// Appends the blocks of `extent` to `all` in order: the kept content, and `below` for the blocks
/// between.
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
