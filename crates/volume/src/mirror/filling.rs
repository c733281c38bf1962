//! Makes the legs equal: compares them after a crash, fills a leg that was lost, and repairs blocks
//! that one leg cannot read.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{MirrorError, MirrorLegStatus, pair::MirrorCore};
use crate::{Data, Durability, Error, Extent, Lba, Stack};

impl MirrorCore {
    /// Prepares the legs as the plan requires, before the first call: writes labels, and compares
    /// the `dirty` regions if both legs are used.
    pub(super) async fn begin(
        self: &Arc<Self>,
        right: Option<usize>,
        dirty: &[u32],
    ) -> Result<(), MirrorError> {
        if let Some(right) = right {
            self.write_labels().await.map_err(|(half, error)| MirrorError::Io { half, error })?;
            return if self.data(1 - right).is_some() {
                self.void(1 - right).await
            } else {
                Ok(())
            };
        }
        for &region in dirty {
            let first = u64::from(region) * self.region_blocks;
            let end = (first + self.region_blocks).min(self.blocks());
            let mut block = first;
            while block < end {
                let blocks = (end - block).min(self.step_blocks()) as u32;
                self.compare(Extent { lba: Lba(block), blocks }).await?;
                block += u64::from(blocks);
            }
        }
        for half in [0, 1] {
            let data = self.data(half).expect("both are there");
            data.flush().await.map_err(|error| MirrorError::Io { half, error })?;
        }
        let mut labels = self.labels.lock().await;
        let labels = &mut *labels;
        let failed = |(half, error)| MirrorError::Io { half, error };
        if labels.alone {
            self.put_labels(labels, [0].into_iter(), Vec::new()).await.map_err(failed)?;
            (labels.epoch, labels.alone, labels.number) = (labels.epoch + 1, false, 0);
        }
        let dirty = {
            let mut state = self.state.lock();
            let dirty = self.doubtful(&state);
            state.dirty = dirty.iter().map(|&region| (region, 0)).collect();
            dirty
        };
        self.put_labels(labels, [1, 0].into_iter(), dirty).await.map_err(failed)
    }

    /// Compares an extent on both legs. A block that one leg cannot read is copied from the other.
    /// A block that differs becomes doubtful: one copy may be torn or corrupt, and only the user of
    /// the mirror can tell which.
    async fn compare(&self, extent: Extent) -> Result<(), MirrorError> {
        if self.compare_at_once(extent).await? {
            return Ok(());
        }
        for block in extent.lba.0..extent.end().0 {
            self.compare_at_once(Extent { lba: Lba(block), blocks: 1 }).await?;
        }
        Ok(())
    }

    /// Compares an extent with one read of each leg. Returns false if a leg cannot read it and it
    /// has several blocks: the caller then compares block by block.
    async fn compare_at_once(&self, extent: Extent) -> Result<bool, MirrorError> {
        let halves = [0, 1].map(|i| self.data(i).expect("both are there"));
        let (first, second) = tokio::join!(halves[0].read(extent), halves[1].read(extent));
        let (bad, good) = match (first, second) {
            (Ok(first), Ok(second)) => {
                self.note_differences(extent, first, second);
                return Ok(true);
            }
            (Err(error), _) if !is_medium(&error) => {
                return Err(MirrorError::Io { half: 0, error });
            }
            (_, Err(error)) if !is_medium(&error) => {
                return Err(MirrorError::Io { half: 1, error });
            }
            _ if extent.blocks > 1 => return Ok(false),
            (Err(_), Err(error)) => {
                let block = extent.lba.0;
                tracing::error!(block, %error, "no leg of the mirror can read a block");
                self.state.lock().doubt.insert(block, 0);
                return Ok(true);
            }
            (Err(_), Ok(data)) => (0, data),
            (Ok(data), Err(_)) => (1, data),
        };
        let written = halves[bad].write(extent.lba, good, Durability::Volatile).await;
        written.map_err(|error| MirrorError::Io { half: bad, error })?;
        self.mended.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    fn note_differences(&self, extent: Extent, first: Data, second: Data) {
        if first == second {
            return;
        }
        let block_size = self.shape.block_size as usize;
        let (first, second) = (first.into_bytes(), second.into_bytes());
        let blocks = first.chunks(block_size).zip(second.chunks(block_size));
        let differ = (extent.lba.0..).zip(blocks).filter(|(_, (first, second))| first != second);
        self.state.lock().doubt.extend(differ.map(|(block, _)| (block, 0)));
    }

    /// Implements [`RedundantCopies::divergent`](crate::RedundantCopies::divergent): returns the
    /// doubtful blocks.
    pub(super) fn in_doubt(&self) -> Vec<Extent> {
        let mut runs: Vec<Extent> = Vec::new();
        for &block in self.state.lock().doubt.keys() {
            match runs.last_mut() {
                Some(run) if run.end().0 == block && u64::from(run.blocks) < self.step_blocks() => {
                    run.blocks += 1;
                }
                _ => runs.push(Extent { lba: Lba(block), blocks: 1 }),
            }
        }
        runs
    }

    /// Implements [`RedundantCopies::make_equal`](crate::RedundantCopies::make_equal): copies
    /// doubtful blocks from the leg that plain reads use.
    pub(super) async fn settle(self: Arc<Self>) -> Result<(), Error> {
        for extent in self.in_doubt() {
            let _held = self.hold(extent.lba.0, extent.end().0).await;
            let from = self.readable(extent);
            let both = self.in_sync();
            // Skip blocks that have to be read from different legs. They are rare, and the next
            // write makes them equal.
            let [(half, from)] = from.as_slice() else { continue };
            let Some((other, to)) = both.into_iter().find(|(other, _)| other != half) else {
                continue;
            };
            // Leave the blocks of `extent` marked as possibly different if they cannot be read now.
            let Ok(data) = from.read(extent).await else { continue };
            match to.write(extent.lba, data, Durability::Volatile).await {
                Ok(()) => self.no_doubt(extent),
                Err(error) => self.lose(other, &to, &error).await?,
            }
        }
        self.forget_losses().await
    }

    /// Clears the flag "lacks writes" in the labels when the legs are equal.
    async fn forget_losses(&self) -> Result<(), Error> {
        let has_lost = self.labels.lock().await.has_lost;
        if has_lost == [false; 2] || !self.state.lock().doubt.is_empty() {
            return Ok(());
        }
        for (half, data) in self.in_sync() {
            if let Err(error) = data.flush().await {
                self.lose(half, &data, &error).await?;
            }
        }
        self.labels.lock().await.has_lost = [false; 2];
        if let Err((half, error)) = self.write_labels().await
            && let Some(data) = self.data(half)
        {
            self.lose(half, &data, &error).await?;
        }
        Ok(())
    }

    /// Writes the labels of the legs that are in sync. Returns the leg that failed, if one did.
    pub(super) async fn write_labels(&self) -> Result<(), (usize, Error)> {
        let mut labels = self.labels.lock().await;
        let dirty = self.state.lock().dirty.iter().map(|&(region, _)| region).collect();
        let halves = self.in_sync();
        self.put_labels(&mut labels, halves.iter().map(|&(i, _)| i), dirty).await
    }

    /// Starts a task that fills a leg in the background.
    pub(super) fn start_filling(self: &Arc<Self>, half: usize) {
        let device = self.data(half);
        let Some(device) = device else { return };
        // The task holds a weak reference: the mirror may be dropped while a leg is being filled.
        tokio::spawn(fill(Arc::downgrade(self), half, device));
    }

    /// Copies one step of blocks from `block` on. Returns the end of the step, or `None` if the leg
    /// is not to be filled any more.
    pub(super) async fn fill_some(
        self: &Arc<Self>,
        half: usize,
        to: &Stack,
        block: u64,
    ) -> Option<u64> {
        let end = (block + self.step_blocks()).min(self.blocks());
        let _held = self.hold(block, end).await;
        if !self.is_filling(half, to) {
            return None;
        }
        let extent = Extent { lba: Lba(block), blocks: (end - block) as u32 };
        let copied = match self.in_sync().pop() {
            Some(from) => self.copy(extent, &from, to).await,
            None => Err(Error::Device("the other leg does not hold all blocks".into())),
        };
        if let Err(error) = copied {
            let _ = self.lose(half, to, &error).await;
            return None;
        }
        self.state.lock().halves[half].standing = MirrorLegStatus::Filling(end);
        Some(end)
    }

    /// Copies an extent that the caller holds. Blocks that cannot be read become zeros on the new
    /// leg and stay doubtful: one bad sector must not prevent the redundancy of all others.
    async fn copy(&self, extent: Extent, from: &(usize, Stack), to: &Stack) -> Result<(), Error> {
        let (only, from) = from;
        let failed = |error| Error::Device(format!("the other leg: {error}").into());
        match from.read(extent).await {
            Ok(data) => return to.write(extent.lba, data, Durability::Volatile).await,
            Err(error) if !is_medium(&error) => return Err(failed(error)),
            Err(_) => {}
        }
        let mut zeroed = 0;
        for block in extent.lba.0..extent.end().0 {
            let one = Extent { lba: Lba(block), blocks: 1 };
            let data = match from.read(one).await {
                Ok(data) => data,
                Err(error) if !is_medium(&error) => return Err(failed(error)),
                Err(error) => {
                    if zeroed == 0 {
                        tracing::error!(block, %error, "the last copy of a block cannot be read");
                    }
                    zeroed += 1;
                    self.state.lock().doubt.insert(block, *only);
                    vec![0; self.shape.block_size as usize].into()
                }
            };
            to.write(one.lba, data, Durability::Volatile).await?;
        }
        if zeroed > 0 {
            tracing::error!(
                from = extent.lba.0,
                zeroed,
                "blocks that cannot be read were filled with zeros"
            );
            self.zeroed.fetch_add(zeroed, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) fn is_filling(&self, half: usize, device: &Stack) -> bool {
        let state = self.state.lock();
        let half = &state.halves[half];
        matches!(half.standing, MirrorLegStatus::Filling(_))
            && half.data.as_ref().is_some_and(|data| Arc::ptr_eq(data, device))
    }

    /// Puts a leg in use again after it has been filled: both legs then hold all blocks.
    pub(super) async fn welcome(self: &Arc<Self>, half: usize, device: &Stack) {
        // Hold all blocks, so that no change is in progress. A change that begins later first marks its region as dirty
        // in the new labels.
        let _held = self.hold(0, self.blocks()).await;
        if !self.is_filling(half, device) {
            return;
        }
        // Flush both legs: the new labels mark only the doubtful regions as dirty, so all other blocks must be stable
        // and equal.
        let mut flushed = device.flush().await;
        if let (Ok(()), Some((_, other))) = (&flushed, self.in_sync().pop()) {
            flushed = other.flush().await;
        }
        // Keep only the doubtful blocks that could not be copied, which differ on the two legs. For the others, the leg
        // with the only readable copy was replaced.
        let dirty = {
            let mut state = self.state.lock();
            state.doubt.retain(|_, only| *only != half);
            self.doubtful(&state)
        };
        let welcomed = match flushed {
            Ok(()) => {
                let mut labels = self.labels.lock().await;
                let labels = &mut *labels;
                let number = std::mem::take(&mut labels.number);
                (labels.epoch, labels.alone) = (labels.epoch + 1, false);
                // Write the label of the filled leg first: after a crash between the two writes,
                // this leg has the higher epoch, and it holds all blocks.
                let order = [half, 1 - half].into_iter();
                let put = self.put_labels(labels, order, dirty.clone()).await;
                if put.is_err() {
                    // The label of the filled leg may have been written with the new epoch. Give
                    // the other leg a higher one.
                    (labels.epoch, labels.alone) = (labels.epoch + 1, true);
                    let next = self.next_number.load(Ordering::Acquire);
                    labels.number = if next == 0 { number } else { next };
                    let other = std::iter::once(1 - half);
                    let restored = self.put_labels(labels, other, Vec::new()).await;
                    if let Err((_, error)) = restored {
                        // The filled leg may have the higher epoch on its disk, so the next start would use it. Stop
                        // the other leg as well: no write may be acknowledged that the filled leg does not have.
                        let out = MirrorLegStatus::Out(error.to_string().into());
                        self.state.lock().halves[1 - half].standing = out;
                    }
                }
                self.state.lock().alone = labels.told();
                put.map_err(|(_, error)| error)
            }
            Err(error) => Err(error),
        };
        match welcomed {
            Ok(()) => {
                tracing::info!(half = half + 1, "both legs of the mirror hold all blocks");
                let mut state = self.state.lock();
                state.dirty = dirty.into_iter().map(|region| (region, 0)).collect();
                state.halves[half].standing = MirrorLegStatus::InSync;
            }
            Err(error) => drop(self.lose(half, device, &error).await),
        }
    }

    pub(super) async fn read(self: Arc<Self>, extent: Extent) -> Result<Data, Error> {
        let mut failed = None;
        for (i, half) in self.readable(extent) {
            match half.read(extent).await {
                Ok(data) => {
                    if let Some((bad, _)) = failed {
                        tokio::spawn(Arc::clone(&self).mend_read(bad, extent));
                    }
                    return Ok(data);
                }
                Err(error) => failed = Some((i, error)),
            }
        }
        let in_doubt = self.readable(extent).len() < self.in_sync().len();
        if in_doubt && extent.blocks > 1 {
            // Only some of these blocks are doubtful, and only those have to be read from one particular leg. So read
            // block by block.
            let mut blocks = Data::new();
            for block in extent.lba.0..extent.end().0 {
                let one = Extent { lba: Lba(block), blocks: 1 };
                blocks.append(Box::pin(Arc::clone(&self).read(one)).await?);
            }
            return Ok(blocks);
        }
        if let Some((_, error)) = failed {
            return Err(error);
        }
        Err(match self.in_sync().is_empty() {
            true => Error::Device("no leg of the mirror can be used".into()),
            false => {
                let reason = "the legs of the mirror differed, and the leg in use was lost".into();
                Error::Medium { extent, reason }
            }
        })
    }

    /// Implements [`RedundantCopies::examine`](crate::RedundantCopies::examine) on the legs that
    /// are in sync.
    pub(super) async fn examine(
        self: Arc<Self>,
        extent: Extent,
        is_right: &(dyn Fn(&Data) -> bool + Sync),
    ) -> Result<Option<Data>, Error> {
        let _held = self.hold(extent.lba.0, extent.end().0).await;
        let (mut right, mut wrong, mut unread) = (None, Vec::new(), None);
        for (i, half) in self.in_sync() {
            match half.read(extent).await {
                // Both legs may have valid but different content. Use that of the first leg.
                Ok(data) if right.is_none() && is_right(&data) => right = Some(data),
                Ok(data) if right.as_ref() == Some(&data) => {}
                Err(error) if !is_medium(&error) => unread = Some(error),
                Ok(_) | Err(_) => wrong.push(i),
            }
        }
        // A copy that could not be read may be the right one, so the extent cannot be judged now.
        if let (None, Some(error)) = (&right, unread) {
            return Err(error);
        }
        if let Some(data) = &right {
            let mut mended = true;
            for half in wrong {
                mended &= self.mend(half, extent, data.clone()).await;
            }
            if mended {
                self.no_doubt(extent);
            }
        }
        Ok(right)
    }

    /// Repairs blocks that leg `bad` could not read, by copying them from the other leg.
    pub(super) async fn mend_read(self: Arc<Self>, bad: usize, extent: Extent) {
        let _held = self.hold(extent.lba.0, extent.end().0).await;
        let good = self.in_sync().into_iter().find(|&(i, _)| i != bad);
        if let Some((_, good)) = good
            && let Ok(data) = good.read(extent).await
        {
            self.mend(bad, extent, data).await;
        }
    }

    /// Writes blocks that were read from one leg over the unreadable or wrong copy of leg `half`.
    /// Returns true if no read can return the wrong copy any more.
    pub(super) async fn mend(&self, half: usize, extent: Extent, data: Data) -> bool {
        let Some(device) = self.data(half) else { return true };
        match device.write(extent.lba, data, Durability::Stable).await {
            Ok(()) => {
                self.mended.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    half = half + 1,
                    block = extent.lba.0,
                    "repaired from the other leg"
                );
                true
            }
            Err(error) => self.lose(half, &device, &error).await.is_ok(),
        }
    }
}

/// Returns true for an error that concerns the requested blocks only and not the whole device.
fn is_medium(error: &Error) -> bool {
    matches!(error, Error::Medium { .. })
}

/// Fills a leg step by step, until it is complete or the mirror is dropped.
async fn fill(pair: Weak<MirrorCore>, half: usize, device: Stack) {
    let mut block = 0;
    loop {
        let Some(pair) = pair.upgrade() else { return };
        let started = Instant::now();
        if block >= pair.blocks() {
            return pair.welcome(half, &device).await;
        }
        let Some(next) = pair.fill_some(half, &device, block).await else { return };
        block = next;
        drop(pair);
        // Rest as long as the step took, so that other calls get their share of the disks.
        sleep(started.elapsed().min(LONGEST_REST)).await;
    }
}

/// Maximum pause between two steps of filling a leg. A pause lasts as long as the step before it, which may take long.
const LONGEST_REST: Duration = Duration::from_millis(100);
