//! Making halves equal: after a crash, when one was lost, and where one gives something wrong.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{MirrorError, Standing, pair::Pair};
use crate::{Data, Durability, Error, Extent, Lba, Stack};

impl Pair {
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
            let end = (first + self.region_blocks).min(self.geometry.blocks);
            let mut block = first;
            while block < end {
                let blocks = (end - block).min(self.step_blocks()) as u32;
                self.equalize(Extent { lba: Lba(block), blocks }).await?;
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
            (labels.epoch, labels.alone) = (labels.epoch + 1, false);
        }
        self.put_labels(labels, [1, 0].into_iter(), Vec::new()).await.map_err(failed)
    }

    /// Makes the second half like the first.
    pub(super) async fn equalize(&self, extent: Extent) -> Result<(), MirrorError> {
        let halves = [0, 1].map(|i| self.data(i).expect("both are there"));
        let failed = |half| move |error| MirrorError::Io { half, error };
        let (first, second) = tokio::join!(halves[0].read(extent), halves[1].read(extent));
        let first = first.map_err(failed(0))?;
        if second.is_ok_and(|second| second == first) {
            return Ok(());
        }
        halves[1].write(extent.lba, first, Durability::Volatile).await.map_err(failed(1))
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
        let end = (block + self.step_blocks()).min(self.geometry.blocks);
        let _held = self.hold(block, end).await;
        if !self.is_filling(half, to) {
            return None;
        }
        let extent = Extent { lba: Lba(block), blocks: (end - block) as u32 };
        let copied = match self.in_sync().pop() {
            Some((_, from)) => match from.read(extent).await {
                Ok(data) => to.write(extent.lba, data, Durability::Volatile).await,
                Err(error) => Err(Error::Device(format!("the other half: {error}").into())),
            },
            None => Err(Error::Device("the other half does not hold everything".into())),
        };
        if let Err(error) = copied {
            tracing::error!(half = half + 1, %error, "a half of the mirror cannot be filled");
            let _ = self.lose(half, &error).await;
            return None;
        }
        self.state.lock().halves[half].standing = Standing::Filling(end);
        Some(end)
    }

    pub(super) fn is_filling(&self, half: usize, device: &Stack) -> bool {
        let state = self.state.lock();
        let half = &state.halves[half];
        matches!(half.standing, Standing::Filling(_))
            && half.data.as_ref().is_some_and(|data| Arc::ptr_eq(data, device))
    }

    /// A half has been filled: it counts again.
    pub(super) async fn welcome(self: &Arc<Self>, half: usize, device: &Stack) {
        // Nothing is under way: what begins after this notes its region first.
        let _held = self.hold(0, self.geometry.blocks).await;
        if !self.is_filling(half, device) {
            return;
        }
        let welcomed = match device.flush().await {
            Ok(()) => {
                let mut labels = self.labels.lock().await;
                let labels = &mut *labels;
                (labels.epoch, labels.alone) = (labels.epoch + 1, false);
                // It first: a crash between the two finds it with the higher epoch, and it holds
                // everything.
                let order = [half, 1 - half].into_iter();
                let put = self.put_labels(labels, order, Vec::new()).await;
                if put.is_err() {
                    (labels.epoch, labels.alone) = (labels.epoch + 1, true);
                    let other = std::iter::once(1 - half);
                    let restored = self.put_labels(labels, other, Vec::new()).await;
                    if let Err((_, error)) = restored {
                        // The one that was filled may have the higher epoch on its disk: nothing
                        // that it does not get may be answered any more.
                        let out = Standing::Out(error.to_string().into());
                        self.state.lock().halves[1 - half].standing = out;
                    }
                }
                put.map_err(|(_, error)| error)
            }
            Err(error) => Err(error),
        };
        match welcomed {
            Ok(()) => {
                tracing::info!(half = half + 1, "both halves of the mirror hold everything");
                let mut state = self.state.lock();
                state.dirty.clear();
                state.halves[half].standing = Standing::InSync;
            }
            Err(error) => drop(self.lose(half, &error).await),
        }
    }

    pub(super) async fn read(self: Arc<Self>, extent: Extent) -> Result<Data, Error> {
        let mut failed = None;
        for (i, half) in self.in_sync() {
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
        let none = || Error::Device("no half of the mirror is there".into());
        Err(failed.map_or_else(none, |(_, error)| error))
    }

    /// See [`Volume::examine`].
    pub(super) async fn examine(
        self: Arc<Self>,
        extent: Extent,
        is_right: &(dyn Fn(&Data) -> bool + Sync),
    ) -> Result<Option<Data>, Error> {
        let _held = self.hold(extent.lba.0, extent.end().0).await;
        let (mut right, mut wrong) = (None, Vec::new());
        for (i, half) in self.in_sync() {
            match half.read(extent).await {
                Ok(data) if is_right(&data) => right = Some(data),
                Ok(_) | Err(_) => wrong.push(i),
            }
        }
        if let Some(data) = &right {
            for half in wrong {
                self.mend(half, extent, data.clone()).await;
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

    /// Writes what one half gave to another that could not, or gave something else.
    pub(super) async fn mend(&self, half: usize, extent: Extent, data: Data) {
        let Some(device) = self.data(half) else { return };
        match device.write(extent.lba, data, Durability::Stable).await {
            Ok(()) => {
                self.mended.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(half = half + 1, block = extent.lba.0, "mended from the other half");
            }
            Err(error) => drop(self.lose(half, &error).await),
        }
    }
}

/// Fills a half, step by step, as long as its mirror is used.
async fn fill(pair: Weak<Pair>, half: usize, device: Stack) {
    let mut block = 0;
    loop {
        let Some(pair) = pair.upgrade() else { return };
        let started = Instant::now();
        if block >= pair.geometry.blocks {
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
