//! A disk in memory that loses unflushed writes in a power failure, and tears the last one.
//!
//! For every atom (sector), the disk keeps the stable bytes and all versions that were written since the atom was last
//! made stable. After a crash, the atom has one of these versions, which is chosen for each atom separately.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use volume::{Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, Volume};

use crate::{
    Power, Rng, StableDiskImage,
    crash_fate::CrashFate,
    disk_image::pieces,
    yield_now::{never, yield_now},
};

/// Selects a disk whose flushes and stable writes survive a crash, or one that ignores them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FlushGuarantee {
    /// Flushed and stable writes survive a crash.
    Honoured,
    /// Flushes and stable writes have no effect: data survives only by chance. Use this to test a crash test: the test
    /// must fail on such a disk.
    Ignored,
}

/// The result of a call after the power failure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outage {
    /// During the outage, calls fail with [`Error::Device`].
    Fails,
    /// During the outage, calls never return.
    Hangs,
}

/// A simulated disk with a volatile write cache. It is deterministic: the same seed and the same calls give the same
/// yields and the same crashes.
pub struct CrashVolume {
    geometry: Geometry,
    power: Arc<Power>,
    outage: Outage,
    sync: FlushGuarantee,
    /// The chance in per cent that a call waits; see [`CrashVolume::with_yields`].
    yields: u32,
    state: Mutex<CrashVolumeState>,
}

struct CrashVolumeState {
    stable: StableDiskImage,
    /// The versions of each atom that are newer than the stable one, oldest first; never empty. Reads return the last
    /// one.
    unstable: BTreeMap<u64, Vec<UnstableVersion>>,
    /// The number of writes and discards so far. The next one gets this number.
    operations: u64,
    /// Operations whose callers have not received the answer yet. A flush need not make these operations stable.
    in_flight: BTreeSet<u64>,
    rng: Rng,
}

#[derive(Clone)]
struct UnstableVersion {
    operation: u64,
    /// The bytes; `None` is all zeros.
    bytes: Option<Bytes>,
}

/// The writes and discards that had been answered at the time of a flush: those with numbers below `before`, except the
/// ones in `except`.
struct AnsweredOperations {
    before: u64,
    except: BTreeSet<u64>,
}

impl CrashVolume {
    /// Returns a disk of zeros with atoms of 512 bytes and a power supply of its own.
    #[must_use]
    pub fn new(geometry: Geometry, seed: u64) -> Self {
        Self::reopen(StableDiskImage::new(geometry, SECTOR), seed)
    }

    /// Returns a disk with the content that a crash has left.
    #[must_use]
    pub fn reopen(image: StableDiskImage, seed: u64) -> Self {
        Self {
            geometry: image.geometry,
            power: Power::new(),
            outage: Outage::Fails,
            sync: FlushGuarantee::Honoured,
            yields: 0,
            state: Mutex::new(CrashVolumeState {
                stable: image,
                unstable: BTreeMap::new(),
                operations: 0,
                in_flight: BTreeSet::new(),
                rng: Rng::new(seed),
            }),
        }
    }

    /// Returns a copy of the disk as the next process finds it, if the former process was killed and the power did not
    /// fail: unstable writes are readable, but still unstable. The returned disk has a power supply of its own.
    #[must_use]
    pub fn goes_on(&self, seed: u64) -> Self {
        let left = self.state.lock();
        let next = Self::reopen(left.stable.clone(), seed);
        {
            let mut state = next.state.lock();
            state.unstable.clone_from(&left.unstable);
            // Callers of the killed process get no more answers. Count none of its operations as in flight, so that
            // the next flush makes all of them stable.
            state.operations = left.operations;
        }
        next
    }

    /// Sets the power supply of this disk, which other disks may share.
    #[must_use]
    pub fn powered_by(mut self, power: &Arc<Power>) -> Self {
        self.power = Arc::clone(power);
        self
    }

    /// Uses atoms of `bytes` bytes: 512, or 4096 for a disk that never tears a physical block.
    ///
    /// # Panics
    /// If something was written already, or if the size is not a power of two of at least 512.
    #[must_use]
    pub fn with_atoms(mut self, bytes: u32) -> Self {
        assert!(bytes.is_power_of_two() && bytes >= SECTOR);
        let state = self.state.get_mut();
        assert!(state.stable.atoms.is_empty() && state.unstable.is_empty());
        state.stable.atom_size = bytes;
        self
    }

    /// Sets whether flushed data survives a crash.
    #[must_use]
    pub fn with_sync(mut self, sync: FlushGuarantee) -> Self {
        self.sync = sync;
        self
    }

    /// Sets the result of calls after the power failure.
    #[must_use]
    pub fn with_outage(mut self, outage: Outage) -> Self {
        self.outage = outage;
        self
    }

    /// Makes the calls of several tasks interleave: with this probability in per cent, a call is delayed by up to three
    /// polls before it starts, and again before it is answered. With 0, the default, every call is ready at its first
    /// poll.
    #[must_use]
    pub fn with_yields(mut self, percent: u32) -> Self {
        self.yields = percent;
        self
    }

    #[must_use]
    pub fn power(&self) -> &Arc<Power> {
        &self.power
    }

    /// Makes the power fail in the middle of the operation that follows `operations` complete ones. See
    /// [`Power::fail_after`].
    pub fn crash_after(&self, operations: u64) {
        self.power.fail_after(operations);
    }

    /// Makes the power fail, if it has not failed yet, and returns the content of the medium. Every unstable write
    /// may have survived completely, in part, or not at all. Each call draws the survivors again, so a test can try
    /// one crash with many outcomes.
    #[must_use]
    pub fn crash(&self, rng: &mut Rng) -> StableDiskImage {
        self.power.fail();
        let state = self.state.lock();
        let mut image = state.stable.clone();
        let fate = CrashFate::choose(state.operations, rng);
        for (&atom, versions) in &state.unstable {
            // Writes to one atom reach the medium in order, so the last survivor is its content.
            if let Some(last) = versions.iter().rev().find(|v| fate.survives(v.operation, rng)) {
                put(&mut image, atom, last.bytes.clone());
            }
        }
        image
    }

    /// Returns the content of the medium as if everything had been flushed, which is what reads see.
    #[must_use]
    pub fn contents(&self) -> StableDiskImage {
        let state = self.state.lock();
        let mut image = state.stable.clone();
        for (&atom, versions) in &state.unstable {
            put(&mut image, atom, versions.last().and_then(|v| v.bytes.clone()));
        }
        image
    }

    /// Makes everything stable, then flips one random bit of the bytes in `range`.
    ///
    /// # Panics
    /// If the range is empty or exceeds the disk.
    pub fn corrupt(&self, range: Range<u64>) {
        assert!(range.end <= self.geometry.bytes());
        let mut state = self.state.lock();
        let state = &mut *state;
        for (atom, mut versions) in std::mem::take(&mut state.unstable) {
            let last = versions.pop().expect("never empty");
            put(&mut state.stable, atom, last.bytes);
        }
        state.stable.corrupt(range, &mut state.rng);
    }

    async fn read_blocks(&self, extent: Extent) -> Result<Data, Error> {
        self.pause().await;
        self.powered().await?;
        self.geometry.check_extent(extent)?;
        let data = self.state.lock().read(&self.bytes_of(extent));
        self.pause().await;
        self.powered().await?;
        Ok(data)
    }

    async fn change(
        &self,
        extent: Extent,
        data: Option<Data>,
        durability: Durability,
    ) -> Result<(), Error> {
        self.pause().await;
        self.powered().await?;
        let operation = {
            // Count the operation and change the content under one lock, so that the numbers of operations have the
            // order of their effects.
            let mut state = self.state.lock();
            self.power.begin_operation();
            state.change(&self.bytes_of(extent), data.map(Data::into_bytes))
        };
        self.pause().await;
        self.powered().await?;
        let mut state = self.state.lock();
        state.in_flight.remove(&operation);
        if durability == Durability::Stable && self.sync == FlushGuarantee::Honoured {
            state.settle(&self.bytes_of(extent), operation);
        }
        Ok(())
    }

    async fn flush_all(&self) -> Result<(), Error> {
        let answered = self.state.lock().answered();
        self.pause().await;
        self.powered().await?;
        self.power.begin_operation();
        self.pause().await;
        self.powered().await?;
        if self.sync == FlushGuarantee::Honoured {
            self.state.lock().settle_all(&answered);
        }
        Ok(())
    }

    async fn pause(&self) {
        for _ in 0..MAX_YIELDS {
            if self.yields == 0 || !self.state.lock().rng.chance(self.yields) {
                break;
            }
            yield_now().await;
        }
    }

    async fn powered(&self) -> Result<(), Error> {
        match self.outage {
            _ if !self.power.is_off() => Ok(()),
            Outage::Fails => Err(Error::Device("the power is gone".into())),
            Outage::Hangs => never().await,
        }
    }

    fn bytes_of(&self, extent: Extent) -> Range<u64> {
        let size = u64::from(self.geometry.block_size);
        extent.lba.0 * size..extent.end().0 * size
    }
}

impl Volume for CrashVolume {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(self.read_blocks(extent))
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        Io::new(async move {
            let extent = self.geometry.check_write(lba, data.len())?;
            self.change(extent, Some(data), durability).await
        })
    }

    fn flush(&self) -> Io<'_, ()> {
        Io::new(self.flush_all())
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        Io::new(async move {
            self.geometry.check_discard(extent)?;
            self.change(extent, None, Durability::Volatile).await
        })
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}

impl CrashVolumeState {
    fn read(&self, range: &Range<u64>) -> Data {
        let mut bytes = BytesMut::zeroed((range.end - range.start) as usize);
        for (atom, within, at) in pieces(range, self.stable.atom_size) {
            if let Some(stored) = self.visible(atom) {
                bytes[at..at + within.len()].copy_from_slice(&stored[within]);
            }
        }
        bytes.freeze().into()
    }

    /// Adds a version to every atom of `range`; zeros if `bytes` is `None`.
    fn change(&mut self, range: &Range<u64>, bytes: Option<Bytes>) -> u64 {
        let operation = self.operations;
        self.operations += 1;
        self.in_flight.insert(operation);
        let size = self.stable.atom_size;
        for (atom, within, at) in pieces(range, size) {
            let part = bytes.as_ref().map(|bytes| bytes.slice(at..at + within.len()));
            let version = if within.len() == size as usize {
                part
            } else {
                let mut whole = match self.visible(atom) {
                    Some(stored) => BytesMut::from(&stored[..]),
                    None => BytesMut::zeroed(size as usize),
                };
                match part {
                    Some(part) => whole[within].copy_from_slice(&part),
                    None => whole[within].fill(0),
                }
                Some(whole.freeze())
            };
            let versions = self.unstable.entry(atom).or_default();
            versions.push(UnstableVersion { operation, bytes: version });
        }
        operation
    }

    fn visible(&self, atom: u64) -> Option<&Bytes> {
        match self.unstable.get(&atom).and_then(|versions| versions.last()) {
            Some(version) => version.bytes.as_ref(),
            None => self.stable.atoms.get(&atom),
        }
    }

    fn answered(&self) -> AnsweredOperations {
        AnsweredOperations { before: self.operations, except: self.in_flight.clone() }
    }

    /// Makes stable the data that `operation` has written to `range`, and the older versions that it replaced.
    fn settle(&mut self, range: &Range<u64>, operation: u64) {
        for (atom, _, _) in pieces(range, self.stable.atom_size) {
            if let Some(versions) = self.unstable.get_mut(&atom) {
                let upto = versions.partition_point(|version| version.operation <= operation);
                settle_atom(&mut self.stable, atom, versions, upto);
                if versions.is_empty() {
                    self.unstable.remove(&atom);
                }
            }
        }
    }

    /// Executes a flush: makes the operations stable that were `answered` before the flush was called. Each atom may by
    /// chance also keep newer operations.
    fn settle_all(&mut self, answered: &AnsweredOperations) {
        let Self { stable, unstable, rng, .. } = self;
        unstable.retain(|&atom, versions| {
            let luck = rng.chance(50);
            let upto = versions
                .iter()
                .rposition(|v| luck || answered.contains(v.operation))
                .map_or(0, |last| last + 1);
            settle_atom(stable, atom, versions, upto);
            !versions.is_empty()
        });
    }
}

impl AnsweredOperations {
    fn contains(&self, operation: u64) -> bool {
        operation < self.before && !self.except.contains(&operation)
    }
}

/// Makes the first `upto` versions of an atom stable; the last of them is its content.
fn settle_atom(
    stable: &mut StableDiskImage,
    atom: u64,
    versions: &mut Vec<UnstableVersion>,
    upto: usize,
) {
    if let Some(last) = versions.drain(..upto).next_back() {
        put(stable, atom, last.bytes);
    }
}

fn put(image: &mut StableDiskImage, atom: u64, bytes: Option<Bytes>) {
    match bytes {
        Some(bytes) => image.atoms.insert(atom, bytes),
        None => image.atoms.remove(&atom),
    };
}

/// The smallest unit that any disk writes atomically, in bytes.
const SECTOR: u32 = 512;
/// Maximum number of polls by which a call is delayed: enough for any two of a few tasks to overtake each other.
const MAX_YIELDS: u32 = 3;

#[cfg(test)]
mod tests;
