//! A remote volume for tests that a test can restart. In a restart the volume loses writes that were not stable, and it
//! reports this loss to one caller only (decision 0004).

use std::sync::Arc;

use parking_lot::Mutex;
use volume::{Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, Volume};

use crate::{CrashVolume, Rng, StableDiskImage, yield_now};

/// A [`CrashVolume`] behind an initiator. The initiator repeats calls that were not answered before a restart. A flush
/// fails with [`Error::Device`] if it cannot confirm all writes that were acknowledged before it. The loss of a write
/// is reported by one flush only, and by no other call.
pub struct Restarting {
    state: Mutex<RestartingState>,
}

struct RestartingState {
    disk: Arc<CrashVolume>,
    /// Number of times that the volume has restarted.
    incarnation: u64,
    /// For each volatile write or discard that was acknowledged and not flushed: the value of `incarnation` at that
    /// time.
    unflushed: Vec<u64>,
    rng: Rng,
}

impl Restarting {
    /// Creates a volume that contains zeros.
    #[must_use]
    pub fn new(geometry: Geometry, seed: u64) -> Self {
        let disk = wired(CrashVolume::new(geometry, seed));
        let rng = Rng::new(seed + 1);
        Self {
            state: Mutex::new(RestartingState { disk, incarnation: 0, unflushed: Vec::new(), rng }),
        }
    }

    /// Restarts the volume after a power failure, with the content that has survived.
    pub fn restart(&self) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let left = state.disk.crash(&mut state.rng);
        state.disk = wired(CrashVolume::reopen(left, state.rng.next_u64()));
        state.incarnation += 1;
    }

    /// Returns the content that the disk would have after a power failure at this moment.
    #[must_use]
    pub fn left(&self) -> StableDiskImage {
        let mut state = self.state.lock();
        let state = &mut *state;
        // Let one copy of the disk crash. The other one replaces the disk, so that this volume goes on without a crash.
        let goes_on = wired(state.disk.goes_on(state.rng.next_u64()));
        let left = std::mem::replace(&mut state.disk, goes_on);
        left.crash(&mut state.rng)
    }

    /// Returns the disk that is in use at present, and the number of restarts before that.
    fn now(&self) -> (Arc<CrashVolume>, u64) {
        let state = self.state.lock();
        (Arc::clone(&state.disk), state.incarnation)
    }

    /// Performs a write, or a discard if there is no data. Repeats it if the volume is restarted meanwhile.
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
        // Let other tasks run between the work of the disk and its answer, as if the answer crossed a link.
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
            if lost.is_empty() { Ok(()) } else { Err(Error::Device("it has restarted".into())) }
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
