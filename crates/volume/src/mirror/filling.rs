//! Making halves equal: after a crash, when one was lost, and where one gives something wrong.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{MirrorError, MirrorLegStatus, pair::MirrorCore};
use crate::{Data, Durability, Error, Extent, Lba, Stack};

impl MirrorCore {
    /// Makes what the plan says true on the halves, before the first call.
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

    /// Compares the halves. What one cannot read is written anew from the other; what differs is in
    /// doubt: one copy may be torn or rotten, and only who reads them can tell which.
    async fn compare(&self, extent: Extent) -> Result<(), MirrorError> {
        if self.compare_at_once(extent).await? {
            return Ok(());
        }
        for block in extent.lba.0..extent.end().0 {
            self.compare_at_once(Extent { lba: Lba(block), blocks: 1 }).await?;
        }
        Ok(())
    }

    /// Whether it could: not if a half cannot read one of many blocks.
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
                tracing::error!(block, %error, "no half of the mirror can read a block");
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

    /// See [`RedundantCopies::divergent`](crate::RedundantCopies::divergent).
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

    /// See [`RedundantCopies::make_equal`](crate::RedundantCopies::make_equal).
    pub(super) async fn settle(self: Arc<Self>) -> Result<(), Error> {
        for extent in self.in_doubt() {
            let _held = self.hold(extent.lba.0, extent.end().0).await;
            let from = self.readable(extent);
            let both = self.in_sync();
            // Several that are read from different halves are rare, and wait for a write.
            let [(half, from)] = from.as_slice() else { continue };
            let Some((other, to)) = both.into_iter().find(|(other, _)| other != half) else {
                continue;
            };
            // What cannot be read now stays in doubt.
            let Ok(data) = from.read(extent).await else { continue };
            match to.write(extent.lba, data, Durability::Volatile).await {
                Ok(()) => self.no_doubt(extent),
                Err(error) => self.lose(other, &to, &error).await?,
            }
        }
        self.forget_losses().await
    }

    /// Clears the notes of lost writes in the labels, once the halves are equal.
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

    /// Writes the labels of the halves that hold everything. Which one failed, if one did.
    pub(super) async fn write_labels(&self) -> Result<(), (usize, Error)> {
        let mut labels = self.labels.lock().await;
        let dirty = self.state.lock().dirty.iter().map(|&(region, _)| region).collect();
        let halves = self.in_sync();
        self.put_labels(&mut labels, halves.iter().map(|&(i, _)| i), dirty).await
    }

    /// Fills a half in the background.
    pub(super) fn start_filling(self: &Arc<Self>, half: usize) {
        let device = self.data(half);
        let Some(device) = device else { return };
        // The mirror may go while this is under way.
        tokio::spawn(fill(Arc::downgrade(self), half, device));
    }

    /// Copies the blocks from `block` on. Where it came to; `None` if there is nothing to fill.
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
            None => Err(Error::Device("the other half does not hold everything".into())),
        };
        if let Err(error) = copied {
            let _ = self.lose(half, to, &error).await;
            return None;
        }
        self.state.lock().halves[half].standing = MirrorLegStatus::Filling(end);
        Some(end)
    }

    /// Copies blocks that are held. What cannot be read becomes zeros, and stays in doubt: one bad
    /// sector must not keep all the others from being on two disks.
    async fn copy(&self, extent: Extent, from: &(usize, Stack), to: &Stack) -> Result<(), Error> {
        let (only, from) = from;
        let failed = |error| Error::Device(format!("the other half: {error}").into());
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

    /// A half has been filled: it counts again.
    pub(super) async fn welcome(self: &Arc<Self>, half: usize, device: &Stack) {
        // Nothing is under way: what begins after this notes its region first.
        let _held = self.hold(0, self.blocks()).await;
        if !self.is_filling(half, device) {
            return;
        }
        // The other one too: nothing will be dirty any more.
        let mut flushed = device.flush().await;
        if let (Ok(()), Some((_, other))) = (&flushed, self.in_sync().pop()) {
            flushed = other.flush().await;
        }
        // What could not be copied differs, but for what is not there any more.
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
                // It first: a crash between the two finds it with the higher epoch, and it holds
                // everything.
                let order = [half, 1 - half].into_iter();
                let put = self.put_labels(labels, order, dirty.clone()).await;
                if put.is_err() {
                    // The one that was filled may have the epoch between.
                    (labels.epoch, labels.alone) = (labels.epoch + 1, true);
                    let next = self.next_number.load(Ordering::Acquire);
                    labels.number = if next == 0 { number } else { next };
                    let other = std::iter::once(1 - half);
                    let restored = self.put_labels(labels, other, Vec::new()).await;
                    if let Err((_, error)) = restored {
                        // The one that was filled may have the higher epoch on its disk: nothing
                        // that it does not get may be answered any more.
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
                tracing::info!(half = half + 1, "both halves of the mirror hold everything");
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
            // Others of these blocks can be had from either.
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
            true => Error::Device("no half of the mirror is there".into()),
            false => {
                let reason =
                    "the halves of the mirror differed, and the one in use was lost".into();
                Error::Medium { extent, reason }
            }
        })
    }

    /// See [`RedundantCopies::examine`](crate::RedundantCopies::examine).
    pub(super) async fn examine(
        self: Arc<Self>,
        extent: Extent,
        is_right: &(dyn Fn(&Data) -> bool + Sync),
    ) -> Result<Option<Data>, Error> {
        let _held = self.hold(extent.lba.0, extent.end().0).await;
        let (mut right, mut wrong, mut unread) = (None, Vec::new(), None);
        for (i, half) in self.in_sync() {
            match half.read(extent).await {
                // Two that are right and differ: one of them from now on.
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

    /// Writes blocks anew that a half could not read.
    pub(super) async fn mend_read(self: Arc<Self>, bad: usize, extent: Extent) {
        let _held = self.hold(extent.lba.0, extent.end().0).await;
        let good = self.in_sync().into_iter().find(|&(i, _)| i != bad);
        if let Some((_, good)) = good
            && let Ok(data) = good.read(extent).await
        {
            self.mend(bad, extent, data).await;
        }
    }

    /// Writes what one half gave to another that could not, or gave something else. Whether nobody
    /// reads that any more.
    pub(super) async fn mend(&self, half: usize, extent: Extent, data: Data) -> bool {
        let Some(device) = self.data(half) else { return true };
        match device.write(extent.lba, data, Durability::Stable).await {
            Ok(()) => {
                self.mended.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(half = half + 1, block = extent.lba.0, "mended from the other half");
                true
            }
            Err(error) => self.lose(half, &device, &error).await.is_ok(),
        }
    }
}

/// Whether only what was asked for cannot be read, not the whole device.
fn is_medium(error: &Error) -> bool {
    matches!(error, Error::Medium { .. })
}

/// Fills a half, step by step, as long as its mirror is used.
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
        // As long again for everybody else.
        sleep(started.elapsed().min(LONGEST_REST)).await;
    }
}

/// Longest rest between two steps of a filling, should one have taken long.
const LONGEST_REST: Duration = Duration::from_millis(100);
