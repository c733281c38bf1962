//! Simulates failures: rules say which calls fail, and how. A test can change them while calls run.

use std::{future::pending, sync::Arc};

use parking_lot::Mutex;

use crate::{
    Data, Durability, EpochRollback, Error, Extensions, Extent, FlushedReads, Geometry, Io, Lba,
    RedundantCopies, Stack, Volume,
};

/// The volume calls that a rule can select.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FaultCallKind {
    /// Every read, write, flush and discard.
    Any,
    Discard,
    Flush,
    Read,
    Write,
}

/// The behaviour of a faulty call.
#[derive(Clone, Debug)]
pub enum Symptom {
    /// The faulty call changes no data and fails with this error.
    Fails(Error),
    /// The faulty call is performed, and returns this error nevertheless.
    FailsAfter(Error),
    /// The faulty call is not performed and never returns.
    Hangs,
    /// The call does nothing and succeeds, as on a disk that lies. A read returns zeros.
    Lies,
}

/// Selects the calls that fail, and how they fail.
#[derive(Clone, Debug)]
pub struct FaultRule {
    call: FaultCallKind,
    symptom: Symptom,
    extent: Option<Extent>,
    /// Number of matching calls that still succeed before the first one fails.
    spared: u64,
    /// Number of matching calls that are still to fail.
    times: u64,
}

impl FaultRule {
    /// Returns a rule by which every call of kind `call` fails.
    #[must_use]
    pub fn always(call: FaultCallKind, symptom: Symptom) -> Self {
        Self { call, symptom, extent: None, spared: 0, times: u64::MAX }
    }

    /// Limits the rule to calls that touch a block of `extent`, which excludes all flushes.
    #[must_use]
    pub fn at(self, extent: Extent) -> Self {
        Self { extent: Some(extent), ..self }
    }

    /// Lets the first `calls` matching calls pass: `after(2)` spares the first two.
    #[must_use]
    pub fn after(self, calls: u64) -> Self {
        Self { spared: calls, ..self }
    }

    /// Limits the number of faulty calls; later calls pass.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        Self { times, ..self }
    }

    fn fits(&self, call: FaultCallKind, extent: Option<Extent>) -> bool {
        (self.call == FaultCallKind::Any || self.call == call)
            && self
                .extent
                .is_none_or(|bad| extent.is_some_and(|e| e.lba < bad.end() && bad.lba < e.end()))
    }
}

/// The rules by which calls to a [`FaultVolume`] fail. The test that changes them shares this object.
#[derive(Debug, Default)]
pub struct Faults {
    rules: Mutex<Vec<FaultRule>>,
}

impl Faults {
    /// Adds a rule. If several rules match a call, the oldest rule applies.
    pub fn add(&self, rule: FaultRule) {
        self.rules.lock().push(rule);
    }

    /// Removes all rules. Calls that are hanging already continue to hang.
    pub fn clear(&self) {
        self.rules.lock().clear();
    }

    fn decide(&self, call: FaultCallKind, extent: Option<Extent>) -> Option<Symptom> {
        let mut rules = self.rules.lock();
        let mut hit = None;
        for rule in rules.iter_mut().filter(|rule| rule.fits(call, extent)) {
            if rule.spared > 0 {
                rule.spared -= 1;
            } else if rule.times > 0 {
                rule.times -= 1;
                hit = Some(rule.symptom.clone());
                break;
            }
        }
        rules.retain(|rule| rule.times > 0);
        hit
    }
}

/// A volume that fails on demand.
pub struct FaultVolume {
    lower: Stack,
    faults: Arc<Faults>,
}

impl FaultVolume {
    /// Puts a fault layer without rules in front of `lower`.
    #[must_use]
    pub fn new(lower: Stack) -> Self {
        Self { lower, faults: Arc::default() }
    }

    #[must_use]
    pub fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    fn run<'a, T: Send + 'a>(
        symptom: Option<Symptom>,
        lie: impl FnOnce() -> T,
        call: impl FnOnce() -> Io<'a, T>,
    ) -> Io<'a, T> {
        match symptom {
            None => call(),
            Some(Symptom::Fails(error)) => Io::done(Err(error)),
            Some(Symptom::FailsAfter(error)) => {
                let call = call();
                Io::new(async move {
                    call.await?;
                    Err(error)
                })
            }
            Some(Symptom::Hangs) => Io::new(pending()),
            Some(Symptom::Lies) => Io::done(Ok(lie())),
        }
    }
}

impl Volume for FaultVolume {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        let symptom = self.faults.decide(FaultCallKind::Read, Some(extent));
        let bytes = extent.blocks as usize * self.geometry().block_size as usize;
        Self::run(symptom, || Data::zeros(bytes), || self.lower.read(extent))
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        let blocks = data.len() / self.geometry().block_size as usize;
        let extent = Extent { lba, blocks: u32::try_from(blocks).unwrap_or(u32::MAX) };
        let symptom = self.faults.decide(FaultCallKind::Write, Some(extent));
        Self::run(symptom, || (), || self.lower.write(lba, data, durability))
    }

    fn flush(&self) -> Io<'_, ()> {
        let symptom = self.faults.decide(FaultCallKind::Flush, None);
        Self::run(symptom, || (), || self.lower.flush())
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        let symptom = self.faults.decide(FaultCallKind::Discard, Some(extent));
        Self::run(symptom, || (), || self.lower.discard(extent))
    }

    fn admit(&self, bytes: usize) -> Result<(), Error> {
        self.lower.admit(bytes)
    }

    fn extensions(&self) -> Extensions<'_> {
        let below = self.lower.extensions();
        Extensions {
            rollback: below.rollback.and(Some(self)),
            flushed_reads: below.flushed_reads.and(Some(self)),
            ordered_flush: None,
            copies: below.copies.and(Some(self)),
            ..below
        }
    }
}

impl EpochRollback for FaultVolume {
    fn roll_back(&self) -> Io<'_, ()> {
        let symptom = self.faults.decide(FaultCallKind::Flush, None);
        Self::run(symptom, || (), || self.lower.extensions().roll_back())
    }
}

impl FlushedReads for FaultVolume {
    fn read_flushed(&self, extent: Extent) -> Io<'_, Data> {
        let symptom = self.faults.decide(FaultCallKind::Read, Some(extent));
        let bytes = extent.blocks as usize * self.geometry().block_size as usize;
        Self::run(symptom, || Data::zeros(bytes), || self.lower.extensions().read_flushed(extent))
    }
}

impl RedundantCopies for FaultVolume {
    fn examine<'a>(
        &'a self,
        extent: Extent,
        is_right: &'a (dyn Fn(&Data) -> bool + Sync),
    ) -> Io<'a, Option<Data>> {
        let symptom = self.faults.decide(FaultCallKind::Read, Some(extent));
        Self::run(symptom, || None, || crate::examine(&*self.lower, extent, is_right))
    }

    fn divergent(&self) -> Vec<Extent> {
        self.lower.extensions().divergent()
    }

    fn make_equal(&self) -> Io<'_, ()> {
        self.lower.extensions().make_equal()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        task::{Context, Waker},
    };

    use super::*;
    use crate::{MemVolume, testing::now};

    fn volume() -> FaultVolume {
        FaultVolume::new(Arc::new(MemVolume::new(Geometry::with_blocks(64))))
    }

    fn write(volume: &FaultVolume, lba: u64, byte: u8) -> Result<(), Error> {
        now(volume.write(Lba(lba), vec![byte; 512].into(), Durability::Stable))
    }

    fn byte_at(volume: &FaultVolume, lba: u64) -> u8 {
        now(volume.lower.read(Extent { lba: Lba(lba), blocks: 1 })).expect("read").parts()[0][0]
    }

    #[test]
    fn the_third_write_fails_once_and_does_nothing() {
        let volume = volume();
        let third = FaultRule::always(FaultCallKind::Write, Symptom::Fails(Error::NoSpace))
            .after(2)
            .times(1);
        volume.faults().add(third);
        let results: Vec<bool> = (0..5).map(|lba| write(&volume, lba, 9).is_ok()).collect();
        assert_eq!(results, [true, true, false, true, true]);
        assert_eq!(byte_at(&volume, 2), 0);
        now(volume.flush()).expect("only writes fail");
    }

    #[test]
    fn only_calls_that_touch_the_extent_fail() {
        let volume = volume();
        let bad = Extent { lba: Lba(10), blocks: 2 };
        volume
            .faults()
            .add(FaultRule::always(FaultCallKind::Any, Symptom::Fails(Error::NoSpace)).at(bad));
        for (lba, blocks, ok) in [(9, 1, true), (9, 2, false), (11, 5, false), (12, 5, true)] {
            let extent = Extent { lba: Lba(lba), blocks };
            assert_eq!(now(volume.read(extent)).is_ok(), ok, "{extent:?}");
            assert_eq!(now(volume.discard(extent)).is_ok(), ok, "{extent:?}");
        }
        now(volume.flush()).expect("touches no block");
    }

    #[test]
    fn a_write_that_fails_after_it_was_performed_has_changed_the_volume() {
        let volume = volume();
        let gone = Error::Unreachable("line cut".into());
        volume.faults().add(FaultRule::always(FaultCallKind::Write, Symptom::FailsAfter(gone)));
        assert!(matches!(write(&volume, 0, 9), Err(Error::Unreachable(_))));
        assert_eq!(byte_at(&volume, 0), 9);
    }

    #[test]
    fn a_lying_disk_forgets_the_write() {
        let volume = volume();
        volume.faults().add(FaultRule::always(FaultCallKind::Write, Symptom::Lies));
        write(&volume, 0, 9).expect("so it says");
        assert_eq!(byte_at(&volume, 0), 0);
        volume.faults().clear();
        write(&volume, 0, 9).expect("written");
        assert_eq!(byte_at(&volume, 0), 9);
    }

    #[test]
    fn a_call_that_hangs_never_answers() {
        let volume = volume();
        volume.faults().add(FaultRule::always(FaultCallKind::Flush, Symptom::Hangs).times(1));
        let mut flush = volume.flush();
        assert!(Pin::new(&mut flush).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        now(volume.flush()).expect("only the first hangs");
    }
}
