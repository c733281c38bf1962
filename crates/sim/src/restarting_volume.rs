//! A far volume that starts anew now and then: it loses what it was not asked to keep, and can tell
//! one caller of that (decision 0004).

use std::sync::Arc;

use parking_lot::Mutex;
use volume::{Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, Volume};

use crate::{CrashVolume, Rng, StableDiskImage, yield_now};

/// A [`CrashVolume`] behind an initiator. Calls that were not answered when it starts anew are made
/// again. A flush fails with [`Error::Device`] if it cannot speak for all writes that were answered before
/// it, once for each of them; nothing else tells of the loss.
pub struct Restarting {
    state: Mutex<RestartingState>,
}

struct RestartingState {
    disk: Arc<CrashVolume>,
    /// How often it has started anew.
    incarnation: u64,
    /// Volatile writes and discards that were answered and not flushed: by which incarnation.
    unflushed: Vec<u64>,
    rng: Rng,
}

impl Restarting {
    /// A volume of zeros.
    #[must_use]
    pub fn new(geometry: Geometry, seed: u64) -> Self {
        let disk = wired(CrashVolume::new(geometry, seed));
        let rng = Rng::new(seed + 1);
        Self {
            state: Mutex::new(RestartingState { disk, incarnation: 0, unflushed: Vec::new(), rng }),
        }
    }

    /// It loses its power and comes back with what it has left.
    pub fn restart(&self) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let left = state.disk.crash(&mut state.rng);
        state.disk = wired(CrashVolume::reopen(left, state.rng.next_u64()));
        state.incarnation += 1;
    }

    /// What it would have left, if it lost its power now.
    #[must_use]
    pub fn left(&self) -> StableDiskImage {
        let mut state = self.state.lock();
        let state = &mut *state;
        // What is crashed is a disk that is left behind. Calls that are under way go to the next one.
        let goes_on = wired(state.disk.goes_on(state.rng.next_u64()));
        let left = std::mem::replace(&mut state.disk, goes_on);
        left.crash(&mut state.rng)
    }

    /// The disk as it is now, and which incarnation that is.
    fn now(&self) -> (Arc<CrashVolume>, u64) {
        let state = self.state.lock();
        (Arc::clone(&state.disk), state.incarnation)
    }

    /// Writes, or discards if there is no data; again, if a start came between.
    async fn change(
        &self,
        extent: Extent,
        data: Option<Data>,
        durability: Durability,
    ) -> Result<(), Error> {
        let (incarnation, answer) = loop {
            let (disk, incarnation) = self.now();
            let answer = match &data {
                Some(data) => disk.write(extent.lba, data.clone(), durability).await,
                None => disk.discard(extent).await,
            };
            if !disk.power().is_off() {
                break (incarnation, answer);
            }
        };
        if answer.is_ok() && durability == Durability::Volatile {
            self.state.lock().unflushed.push(incarnation);
        }
        // The caller hears of it later.
        yield_now().await;
        answer
    }
}

fn wired(disk: CrashVolume) -> Arc<CrashVolume> {
    Arc::new(disk.with_yields(30))
}

impl Volume for Restarting {
    fn geometry(&self) -> Geometry {
        self.state.lock().disk.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(async move {
            loop {
                let (disk, _) = self.now();
                let answer = disk.read(extent).await;
                if !disk.power().is_off() {
                    return answer;
                }
            }
        })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        let blocks = data.len() / self.geometry().block_size as usize;
        Io::new(self.change(Extent { lba, blocks: blocks as u32 }, Some(data), durability))
    }

    fn flush(&self) -> Io<'_, ()> {
        Io::new(async move {
            let begun = self.state.lock().unflushed.len();
            let incarnation = loop {
                let (disk, incarnation) = self.now();
                let answer = disk.flush().await;
                if !disk.power().is_off() {
                    answer?;
                    break incarnation;
                }
            };
            let mut state = self.state.lock();
            let begun = begun.min(state.unflushed.len());
            let later = state.unflushed.split_off(begun);
            let (lost, good): (Vec<_>, Vec<_>) =
                std::mem::take(&mut state.unflushed).into_iter().partition(|n| *n < incarnation);
            if !lost.is_empty() {
                state.unflushed = good;
            }
            state.unflushed.extend(later);
            if lost.is_empty() { Ok(()) } else { Err(Error::Device("it has started anew".into())) }
        })
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        Io::new(self.change(extent, None, Durability::Volatile))
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}
