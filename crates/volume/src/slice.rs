//! A volume that consists of a contiguous range of blocks of another volume.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    Allocation, Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, Provisioning,
    Stack, ThinSpaceUsage, Volume,
};

/// The blocks `start .. start + blocks` of `lower`, numbered from zero.
pub struct SliceVolume {
    lower: Stack,
    start: u64,
    blocks: AtomicU64,
}

impl SliceVolume {
    /// Returns the slice of `blocks` blocks of `lower` from `start` on.
    ///
    /// # Errors
    /// [`Error::Device`] if the slice is empty or exceeds `lower`.
    pub fn new(lower: Stack, start: Lba, blocks: u64) -> Result<Self, Error> {
        let slice = Self { lower, start: start.0, blocks: AtomicU64::new(0) };
        slice.set_blocks(blocks)?;
        Ok(slice)
    }

    /// Grows the slice to `blocks` blocks; `None`: to the end of `lower`.
    ///
    /// # Errors
    /// [`Error::Device`] if `blocks` is less than the present number, or exceeds `lower`.
    pub fn grow(&self, blocks: Option<u64>) -> Result<(), Error> {
        let known = self.blocks.load(Ordering::Acquire);
        let to_end = || self.lower.geometry().blocks.saturating_sub(self.start);
        let wanted = blocks.unwrap_or_else(to_end);
        if wanted < known {
            let reason = format!("the slice has {known} blocks and cannot shrink to {wanted}");
            return Err(Error::Device(reason.into()));
        }
        self.set_blocks(wanted)
    }

    /// Sets the number of blocks, which may be more or fewer than before.
    ///
    /// # Errors
    /// [`Error::Device`] if the slice would be empty or exceed `lower`.
    pub(crate) fn set_blocks(&self, blocks: u64) -> Result<(), Error> {
        let all = self.lower.geometry().blocks;
        if blocks == 0 || self.start.checked_add(blocks).is_none_or(|end| end > all) {
            let reason = format!(
                "{blocks} blocks from block {} on do not fit into {all} blocks",
                self.start
            );
            return Err(Error::Device(reason.into()));
        }
        self.blocks.store(blocks, Ordering::Release);
        Ok(())
    }

    fn down(&self, lba: Lba) -> Lba {
        Lba(lba.0 + self.start)
    }

    /// Converts an error of `lower` to addresses of the slice.
    fn up(&self, error: Error) -> Error {
        let up = |extent: Extent| Extent {
            lba: Lba(extent.lba.0.saturating_sub(self.start)),
            blocks: extent.blocks,
        };
        match error {
            Error::OutOfRange(extent) => Error::OutOfRange(up(extent)),
            Error::Medium { extent, reason } => Error::Medium { extent: up(extent), reason },
            other => other,
        }
    }
}

impl Volume for SliceVolume {
    fn geometry(&self) -> Geometry {
        let lower = self.lower.geometry();
        // Writes stay atomic only if the slice begins at a physical block of `lower`.
        let physical = u64::from(lower.physical_block_size / lower.block_size);
        let atomic_blocks =
            if self.start.is_multiple_of(physical) { lower.atomic_blocks } else { 0 };
        Geometry {
            blocks: self.blocks.load(Ordering::Acquire),
            atomic_blocks,
            // The slice offers no epochs: a flush by the user of another slice would end an epoch of this one.
            epoch_blocks: 0,
            // The slice cannot destroy the key, which also encrypts blocks outside of the slice.
            key_erasable: false,
            ..lower
        }
    }

    // Each call checks its extent, even if a `CheckedVolume` lies above: a call outside of the slice would access
    // blocks of another user of `lower`.

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        if let Err(error) = self.geometry().check_extent(extent) {
            return Io::done(Err(error));
        }
        let read = self.lower.read(Extent { lba: self.down(extent.lba), ..extent });
        Io::new(async move { read.await.map_err(|error| self.up(error)) })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        if let Err(error) = self.geometry().check_write(lba, data.len()) {
            return Io::done(Err(error));
        }
        let write = self.lower.write(self.down(lba), data, durability);
        Io::new(async move { write.await.map_err(|error| self.up(error)) })
    }

    fn flush(&self) -> Io<'_, ()> {
        self.lower.flush()
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        if let Err(error) = self.geometry().check_discard(extent) {
            return Io::done(Err(error));
        }
        let discard = self.lower.discard(Extent { lba: self.down(extent.lba), ..extent });
        Io::new(async move { discard.await.map_err(|error| self.up(error)) })
    }

    fn admit(&self, bytes: usize) -> Result<(), Error> {
        self.lower.admit(bytes)
    }

    fn extensions(&self) -> Extensions<'_> {
        // Abilities that are not listed would concern blocks outside of the slice, too.
        Extensions {
            provisioning: Some(self),
            resizable: self.lower.extensions().resizable,
            ..Extensions::default()
        }
    }
}

impl Provisioning for SliceVolume {
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        if let Err(error) = self.geometry().check_extent(extent) {
            return Io::done(Err(error));
        }
        let asked =
            self.lower.extensions().allocation(Extent { lba: self.down(extent.lba), ..extent });
        Io::new(async move { asked.await.map_err(|error| self.up(error)) })
    }

    /// Returns `None`: the volume below reports its usage as a whole and not for a part of its blocks.
    fn usage(&self) -> Option<ThinSpaceUsage> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{FaultCallKind, FaultRule, FaultVolume, MemVolume, Symptom, testing::now};

    #[test]
    fn a_slice_reads_and_writes_its_part_only() {
        let lower = Arc::new(MemVolume::new(Geometry::with_blocks(100)));
        let slice = SliceVolume::new(lower.clone(), Lba(10), 5).expect("inside");
        assert_eq!(slice.geometry().blocks, 5);
        let data = Data::from(vec![7; 1024]);
        now(slice.write(Lba(3), data.clone(), Durability::Volatile)).expect("written");
        assert_eq!(now(slice.read(Extent { lba: Lba(3), blocks: 2 })).expect("read"), data);
        assert_eq!(now(lower.read(Extent { lba: Lba(13), blocks: 2 })).expect("read"), data);
        now(slice.discard(Extent { lba: Lba(3), blocks: 1 })).expect("discarded");
        let left = now(lower.read(Extent { lba: Lba(13), blocks: 2 })).expect("read");
        assert_eq!(left.into_bytes(), [[0; 512], [7; 512]].concat());
    }

    #[test]
    fn beyond_the_end_of_the_slice_is_out_of_range() {
        let lower = Arc::new(MemVolume::new(Geometry::with_blocks(100)));
        let slice = SliceVolume::new(lower, Lba(10), 5).expect("inside");
        let beyond = Extent { lba: Lba(4), blocks: 2 };
        let refused = |error| matches!(error, Error::OutOfRange(e) if e == beyond);
        assert!(now(slice.read(beyond)).is_err_and(refused));
        assert!(now(slice.discard(beyond)).is_err_and(refused));
        let write = slice.write(Lba(4), Data::zeros(1024), Durability::Volatile);
        assert!(now(write).is_err_and(refused));
    }

    #[test]
    fn no_slice_extends_beyond_its_lower_volume() {
        let lower: Stack = Arc::new(MemVolume::new(Geometry::with_blocks(100)));
        for (start, blocks) in [(0, 0), (0, 101), (100, 1), (u64::MAX, 2)] {
            assert!(SliceVolume::new(Arc::clone(&lower), Lba(start), blocks).is_err());
        }
    }

    #[test]
    fn a_slice_grows_up_to_the_end_of_its_lower_volume_and_never_shrinks() {
        let lower: Stack = Arc::new(MemVolume::new(Geometry::with_blocks(100)));
        let slice = SliceVolume::new(lower, Lba(10), 5).expect("inside");
        let last = Extent { lba: Lba(19), blocks: 1 };
        assert!(now(slice.read(last)).is_err());
        slice.grow(Some(20)).expect("inside");
        assert_eq!(slice.geometry().blocks, 20);
        now(slice.read(last)).expect("inside now");
        for wrong in [0, 19, 91, u64::MAX] {
            assert!(slice.grow(Some(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(slice.geometry().blocks, 20);
        slice.grow(None).expect("to the end");
        assert_eq!(slice.geometry().blocks, 90);
    }

    #[test]
    fn an_error_names_the_block_of_the_slice() {
        let lower = FaultVolume::new(Arc::new(MemVolume::new(Geometry::with_blocks(100))));
        let bad = Extent { lba: Lba(12), blocks: 1 };
        let medium = Error::Medium { extent: bad, reason: "scratched".into() };
        lower.faults().add(FaultRule::always(FaultCallKind::Read, Symptom::Fails(medium)).at(bad));
        let slice = SliceVolume::new(Arc::new(lower), Lba(10), 5).expect("inside");
        let error = now(slice.read(Extent { lba: Lba(0), blocks: 5 })).expect_err("scratched");
        assert!(matches!(error, Error::Medium { extent, .. } if extent.lba == Lba(2)));
    }
}
