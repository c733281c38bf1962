//! A layer that counts calls and their bytes, and passes the calls to the volume below.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    Data, Durability, Error, Extensions, Extent, FlushBegunCallback, FlushedReads, Geometry, Io,
    Lba, OrderedFlush, Stack, Volume,
};

/// Numbers of calls since the volume was created; `reads`, `writes`, `flushes` and `discards` count
/// the calls that succeeded. A call is counted when it returns; a call that was dropped is not
/// counted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct VolumeCallCounts {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub discards: u64,
    /// Number of bytes that successful reads have returned.
    pub bytes_read: u64,
    /// Number of bytes that successful writes have written.
    pub bytes_written: u64,
    /// Number of bytes that successful discards have covered.
    pub bytes_discarded: u64,
    /// Number of calls of all kinds that failed, except with [`Error::Busy`].
    pub errors: u64,
    /// Number of calls that were refused with [`Error::Busy`].
    pub busy: u64,
}

/// The counters of an [`ObserveVolume`]. They may outlive the volume.
#[derive(Debug, Default)]
pub struct VolumeCallCounters {
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    bytes_discarded: AtomicU64,
    errors: AtomicU64,
    busy: AtomicU64,
}

impl VolumeCallCounters {
    /// Returns the current counts. Each is exact, but while calls run the counts may be from
    /// slightly different moments.
    #[must_use]
    pub fn counts(&self) -> VolumeCallCounts {
        VolumeCallCounts {
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            discards: self.discards.load(Relaxed),
            bytes_read: self.bytes_read.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            bytes_discarded: self.bytes_discarded.load(Relaxed),
            errors: self.errors.load(Relaxed),
            busy: self.busy.load(Relaxed),
        }
    }

    /// Awaits a call, counts its outcome, and returns its result.
    async fn count<T>(
        &self,
        call: impl Future<Output = Result<T, Error>> + Send,
        calls: &AtomicU64,
        bytes: &AtomicU64,
        length: u64,
    ) -> Result<T, Error> {
        let result = call.await;
        match &result {
            Ok(_) => {
                calls.fetch_add(1, Relaxed);
                bytes.fetch_add(length, Relaxed);
            }
            Err(Error::Busy(_)) => {
                self.busy.fetch_add(1, Relaxed);
            }
            Err(_) => {
                self.errors.fetch_add(1, Relaxed);
            }
        }
        result
    }
}

/// Counts all calls and their bytes, and passes the calls to `lower`.
pub struct ObserveVolume {
    lower: Stack,
    counters: Arc<VolumeCallCounters>,
}

impl ObserveVolume {
    /// Puts counters in front of `lower`, all at zero.
    #[must_use]
    pub fn new(lower: Stack) -> Self {
        Self { lower, counters: Arc::default() }
    }

    #[must_use]
    pub fn counters(&self) -> &Arc<VolumeCallCounters> {
        &self.counters
    }

    fn bytes(&self, extent: Extent) -> u64 {
        u64::from(extent.blocks) * u64::from(self.lower.geometry().block_size)
    }
}

impl Volume for ObserveVolume {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        let c = &*self.counters;
        let bytes = self.bytes(extent);
        Io::new(c.count(self.lower.read(extent), &c.reads, &c.bytes_read, bytes))
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        let c = &*self.counters;
        let bytes = data.len() as u64;
        let write = self.lower.write(lba, data, durability);
        Io::new(c.count(write, &c.writes, &c.bytes_written, bytes))
    }

    fn flush(&self) -> Io<'_, ()> {
        let c = &*self.counters;
        Io::new(c.count(self.lower.flush(), &c.flushes, &c.bytes_written, 0))
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        let c = &*self.counters;
        let bytes = self.bytes(extent);
        Io::new(c.count(self.lower.discard(extent), &c.discards, &c.bytes_discarded, bytes))
    }

    fn admit(&self, bytes: usize) -> Result<(), Error> {
        self.lower.admit(bytes)
    }

    fn extensions(&self) -> Extensions<'_> {
        let below = self.lower.extensions();
        Extensions {
            flushed_reads: below.flushed_reads.and(Some(self)),
            ordered_flush: below.ordered_flush.and(Some(self)),
            ..below
        }
    }
}

impl FlushedReads for ObserveVolume {
    fn read_flushed(&self, extent: Extent) -> Io<'_, Data> {
        let c = &*self.counters;
        let bytes = self.bytes(extent);
        Io::new(c.count(
            self.lower.extensions().read_flushed(extent),
            &c.reads,
            &c.bytes_read,
            bytes,
        ))
    }
}

impl OrderedFlush for ObserveVolume {
    fn flush_ahead<'a>(&'a self, begun: FlushBegunCallback<'a>) -> Io<'a, ()> {
        let c = &*self.counters;
        Io::new(c.count(crate::flush_ahead(&*self.lower, begun), &c.flushes, &c.bytes_written, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultCallKind, FaultRule, FaultVolume, MemVolume, Symptom, testing::now};

    #[test]
    fn every_kind_of_call_is_counted_with_its_bytes() {
        let volume = ObserveVolume::new(Arc::new(MemVolume::new(Geometry::with_blocks(64))));
        now(volume.write(Lba(0), Data::zeros(1536), Durability::Stable)).expect("written");
        now(volume.read(Extent { lba: Lba(0), blocks: 2 })).expect("read");
        now(volume.read(Extent { lba: Lba(0), blocks: 2 })).expect("read");
        now(volume.discard(Extent { lba: Lba(0), blocks: 8 })).expect("discarded");
        now(volume.flush()).expect("flushed");
        let expected = VolumeCallCounts {
            reads: 2,
            writes: 1,
            flushes: 1,
            discards: 1,
            bytes_read: 2048,
            bytes_written: 1536,
            bytes_discarded: 4096,
            ..VolumeCallCounts::default()
        };
        assert_eq!(volume.counters().counts(), expected);
    }

    #[test]
    fn failures_are_counted_separately_and_busy_is_not_counted_as_one() {
        let fault = FaultVolume::new(Arc::new(MemVolume::new(Geometry::with_blocks(64))));
        let fail = |error| FaultRule::always(FaultCallKind::Flush, Symptom::Fails(error)).times(1);
        fault.faults().add(fail(Error::Busy("full")));
        fault.faults().add(fail(Error::NoSpace));
        let volume = ObserveVolume::new(Arc::new(fault));
        assert!(now(volume.flush()).is_err());
        assert!(now(volume.flush()).is_err());
        assert!(now(volume.read(Extent { lba: Lba(64), blocks: 1 })).is_err());
        let expected = VolumeCallCounts { errors: 2, busy: 1, ..VolumeCallCounts::default() };
        assert_eq!(volume.counters().counts(), expected);
    }
}
