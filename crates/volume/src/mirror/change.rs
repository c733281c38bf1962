//! Changes of blocks on both legs, in regions that the labels of both legs mark as dirty before.

use std::sync::Arc;

use super::{MirrorLegStatus, pair::MirrorCore};
use crate::{Data, Durability, Error, Extent, Stack};

/// A write or discard, which the mirror applies to both legs.
#[derive(Clone)]
pub(super) enum MirrorChange {
    Write(Data, Durability),
    Discard,
}

impl MirrorChange {
    async fn apply(self, half: &Stack, extent: Extent) -> Result<(), Error> {
        match self {
            Self::Write(data, durability) => half.write(extent.lba, data, durability).await,
            Self::Discard => half.discard(extent).await,
        }
    }
}

/// A change of `extent` in progress. Dropping this value removes the change from the list of changes in progress.
pub(super) struct UnderWay {
    pair: Arc<MirrorCore>,
    extent: Extent,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.pair.state.lock();
        let state = &mut *state;
        if let Some(at) = state.under_way.iter().position(|extent| *extent == self.extent) {
            state.under_way.swap_remove(at);
        }
        state.clock += 1;
        for region in self.pair.regions(self.extent) {
            if let Some((_, used)) = state.dirty.iter_mut().find(|(dirty, _)| *dirty == region) {
                *used = state.clock;
            }
        }
        self.pair.changed.notify_waiters();
    }
}

impl MirrorCore {
    /// Performs a change on both legs. A leg that fails is left out if the other one has succeeded.
    pub(super) async fn change(
        self: Arc<Self>,
        extent: Extent,
        change: MirrorChange,
    ) -> Result<(), Error> {
        let under_way = self.admit(extent).await?;
        let targets: Vec<(usize, bool, Stack)> = {
            let state = self.state.lock();
            let used =
                state.halves.iter().enumerate().filter_map(|(i, half)| match half.standing {
                    MirrorLegStatus::Out(_) => None,
                    MirrorLegStatus::InSync | MirrorLegStatus::Filling(_) => {
                        Some((i, half.standing == MirrorLegStatus::InSync, half.data.clone()?))
                    }
                });
            used.collect()
        };
        let apply = |target: Option<&(usize, bool, Stack)>| {
            let target = target.cloned();
            let change = change.clone();
            async move {
                match target {
                    Some((i, right, half)) => Some((i, right, change.apply(&half, extent).await)),
                    None => None,
                }
            }
        };
        let (first, second) = tokio::join!(apply(targets.first()), apply(targets.get(1)));
        let ends: Vec<_> = first.into_iter().chain(second).collect();
        let done = ends.iter().any(|(_, right, end)| *right && end.is_ok());
        for ((half, _, end), (_, _, device)) in ends.into_iter().zip(&targets) {
            if let Err(error) = end {
                // No leg in sync has performed the change; a leg that is being filled does not
                // count. Return the error and keep both legs.
                if !done {
                    return Err(error);
                }
                self.lose(half, device, &error).await?;
            }
        }
        if done {
            self.no_doubt(extent);
        }
        drop(under_way);
        if done { Ok(()) } else { Err(Error::Device("no leg of the mirror can be used".into())) }
    }

    pub(super) async fn flush(self: Arc<Self>) -> Result<(), Error> {
        let halves = self.in_sync();
        let flush = async |half: Option<&(usize, Stack)>| match half {
            Some((i, half)) => Some((*i, half.flush().await)),
            None => None,
        };
        let (first, second) = tokio::join!(flush(halves.first()), flush(halves.get(1)));
        let ends: Vec<_> = first.into_iter().chain(second).collect();
        let done = ends.iter().any(|(_, end)| end.is_ok());
        for ((half, end), (_, device)) in ends.into_iter().zip(&halves) {
            if let Err(error) = end {
                if !done {
                    return Err(error);
                }
                self.lose(half, device, &error).await?;
            }
        }
        if done { Ok(()) } else { Err(Error::Device("no leg of the mirror can be used".into())) }
    }

    /// Waits until the blocks of `extent` may be changed, and marks their regions as dirty in the labels.
    pub(super) async fn admit(self: &Arc<Self>, extent: Extent) -> Result<UnderWay, Error> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let missing = {
                let mut state = self.state.lock();
                let held = state
                    .held
                    .is_some_and(|(first, end)| extent.lba.0 < end && first < extent.end().0);
                let noted = self
                    .regions(extent)
                    .all(|region| state.dirty.iter().any(|&(dirty, _)| dirty == region));
                let both = state.halves.iter().all(|half| half.standing == MirrorLegStatus::InSync);
                if !held && (noted || !both) {
                    state.under_way.push(extent);
                    return Ok(UnderWay { pair: Arc::clone(self), extent });
                }
                !held
            };
            if missing {
                self.mark(extent).await?;
            } else {
                changed.await;
            }
        }
    }

    /// Marks the regions of `extent`, and some regions behind it, as dirty in the labels. Removes
    /// marks that are no longer needed.
    pub(super) async fn mark(&self, extent: Extent) -> Result<(), Error> {
        let lost = {
            let mut labels = self.labels.lock().await;
            let regions = self.blocks().div_ceil(self.region_blocks) as u32;
            let last = self.regions(extent).last().unwrap_or(0);
            let wanted: Vec<u32> = {
                let state = self.state.lock();
                let ahead = self.regions(extent).chain(last + 1..(last + AHEAD).min(regions));
                ahead.filter(|r| state.dirty.iter().all(|(dirty, _)| dirty != r)).collect()
            };
            self.forget(wanted.len()).await;
            let mut dirty: Vec<u32> =
                self.state.lock().dirty.iter().map(|&(region, _)| region).collect();
            dirty.extend(&wanted);
            let halves = self.in_sync();
            match self.put_labels(&mut labels, halves.iter().map(|&(i, _)| i), dirty).await {
                Ok(()) => {
                    let mut state = self.state.lock();
                    let clock = state.clock;
                    state.dirty.extend(wanted.into_iter().map(|region| (region, clock)));
                    return Ok(());
                }
                Err((lost, error)) => {
                    let device = halves.into_iter().find(|&(half, _)| half == lost);
                    (lost, device, error)
                }
            }
        };
        match lost {
            (half, Some((_, device)), error) => self.lose(half, &device, &error).await,
            (_, None, error) => Err(error),
        }
    }

    /// Removes marks of dirty regions until there is room for `more`, beginning with the regions
    /// that were not changed for the longest time. A mark may be removed if no change of the region
    /// is in progress and both legs were flushed since the last one.
    pub(super) async fn forget(&self, more: usize) {
        let before = {
            let state = self.state.lock();
            if state.dirty.len() + more <= MOST_DIRTY {
                return;
            }
            state.clock
        };
        for (_, half) in self.in_sync() {
            // Ignore the error here: the next call that uses this leg fails as well, and leaves the leg out.
            if half.flush().await.is_err() {
                return;
            }
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        state.dirty.sort_unstable_by_key(|&(_, used)| used);
        // Remove half of all marks at once, so that this work is not repeated for every new region.
        let mut surplus = (state.dirty.len() + more).saturating_sub(MOST_DIRTY / 2);
        let mut busy: Vec<u32> = state.under_way.iter().flat_map(|&e| self.regions(e)).collect();
        busy.extend(self.doubtful(state));
        state.dirty.retain(|(region, used)| {
            let goes = surplus > 0 && *used <= before && !busy.contains(region);
            surplus -= usize::from(goes);
            !goes
        });
    }
}

/// Number of regions that are marked at once: for a sequential writer, the label is written once in
/// 16 MiB.
const AHEAD: u32 = 4;
/// Maximum number of dirty regions, unless more are being changed at once. With the smallest
/// regions, 128 MiB have to be compared after a crash, which takes less than a second.
const MOST_DIRTY: usize = 32;
