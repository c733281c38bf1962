//! Checks calls before they reach the lower volume (range, whole blocks, read-only), and the length of the
//! answers.

use crate::{
    Allocation, Data, Durability, Error, Extensions, Extent, FlushedReads, Geometry, Io, Lba,
    Provisioning, Stack, ThinSpaceUsage, Volume,
};

/// Passes only calls that are in range and consist of whole blocks. The layers below do not have to check
/// this again.
pub struct CheckedVolume {
    lower: Stack,
}

impl CheckedVolume {
    /// Returns a volume that passes calls to `lower` only if their blocks, length and kind are valid for it.
    #[must_use]
    pub fn new(lower: Stack) -> Self {
        Self { lower }
    }

    /// Calls `read` if `extent` is inside of the volume, and checks the length of the data: callers slice it
    /// without checking its length.
    fn read_by<'a>(
        &'a self,
        extent: Extent,
        read: impl FnOnce(&'a dyn Volume) -> Io<'a, Data>,
    ) -> Io<'a, Data> {
        let geometry = self.geometry();
        if let Err(error) = geometry.check_extent(extent) {
            return refuse(error);
        }
        let expected = u64::from(extent.blocks) * u64::from(geometry.block_size);
        let whole = move |data: Data| {
            if data.len() as u64 == expected {
                Ok(data)
            } else {
                let got = data.len();
                Err(Error::Device(format!("{got} bytes read instead of {expected}").into()))
            }
        };
        match read(&*self.lower).now() {
            Ok(result) => Io::done(result.and_then(whole)),
            Err(read) => Io::new(async move { whole(read.await?) }),
        }
    }
}

impl Volume for CheckedVolume {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.read_by(extent, |lower| lower.read(extent))
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        match self.geometry().check_write(lba, data.len()) {
            Ok(_) => self.lower.write(lba, data, durability),
            Err(error) => refuse(error),
        }
    }

    fn flush(&self) -> Io<'_, ()> {
        self.lower.flush()
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        match self.geometry().check_discard(extent) {
            Ok(()) => self.lower.discard(extent),
            Err(error) => refuse(error),
        }
    }

    fn admit(&self, bytes: usize) -> Result<(), Error> {
        self.lower.admit(bytes)
    }

    fn extensions(&self) -> Extensions<'_> {
        let below = self.lower.extensions();
        Extensions {
            provisioning: Some(self),
            flushed_reads: below.flushed_reads.and(Some(self)),
            ordered_flush: None,
            ..below
        }
    }
}

impl Provisioning for CheckedVolume {
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        if let Err(error) = self.geometry().check_extent(extent) {
            return refuse(error);
        }
        let asked = self.lower.extensions().allocation(extent);
        Io::new(async move {
            let allocation = asked.await?;
            // Refuse an answer of no blocks, with which a caller that steps through the volume would never end, and one
            // of more blocks than were asked for.
            if (1..=extent.blocks).contains(&allocation.blocks()) {
                Ok(allocation)
            } else {
                Err(Error::Device(
                    "the volume below reported the allocation of other blocks".into(),
                ))
            }
        })
    }

    fn usage(&self) -> Option<ThinSpaceUsage> {
        self.lower.extensions().usage()
    }
}

impl FlushedReads for CheckedVolume {
    fn read_flushed(&self, extent: Extent) -> Io<'_, Data> {
        self.read_by(extent, |lower| lower.extensions().read_flushed(extent))
    }
}

fn refuse<T: Send + 'static>(error: Error) -> Io<'static, T> {
    Io::done(Err(error))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{MemVolume, testing::now};

    fn extent(lba: u64, blocks: u32) -> Extent {
        Extent { lba: Lba(lba), blocks }
    }

    fn checked(geometry: Geometry) -> CheckedVolume {
        CheckedVolume::new(Arc::new(MemVolume::new(geometry)))
    }

    #[test]
    fn extents_outside_the_volume_are_refused() {
        let door = checked(Geometry::with_blocks(100));
        for outside in [extent(100, 1), extent(99, 2), extent(u64::MAX, 1), extent(5, 0)] {
            assert!(matches!(now(door.read(outside)), Err(Error::OutOfRange(_))), "{outside:?}");
            assert!(matches!(now(door.discard(outside)), Err(Error::OutOfRange(_))));
        }
        let two = Data::zeros(1024);
        assert!(matches!(
            now(door.write(Lba(99), two, Durability::Volatile)),
            Err(Error::OutOfRange(e)) if e == extent(99, 2)
        ));
        assert_eq!(now(door.read(extent(0, 100))).expect("inside").len(), 51200);
    }

    #[test]
    fn empty_writes_and_parts_of_blocks_are_refused() {
        let door = checked(Geometry::with_blocks(100));
        for bytes in [0, 1, 511, 513] {
            let io = door.write(Lba(0), Data::zeros(bytes), Durability::Volatile);
            assert!(now(io).is_err(), "{bytes}");
        }
    }

    #[test]
    fn a_read_only_volume_refuses_every_change() {
        let door = checked(Geometry { read_only: true, ..Geometry::with_blocks(100) });
        let write = door.write(Lba(0), Data::zeros(512), Durability::Stable);
        assert!(matches!(now(write), Err(Error::ReadOnly)));
        assert!(matches!(now(door.discard(extent(0, 1))), Err(Error::ReadOnly)));
        assert!(now(door.read(extent(0, 1))).is_ok());
        assert!(now(door.flush()).is_ok());
    }

    #[test]
    fn a_short_answer_of_the_lower_volume_is_a_device_failure() {
        struct Short(MemVolume);
        impl Volume for Short {
            fn geometry(&self) -> Geometry {
                self.0.geometry()
            }
            fn read(&self, _: Extent) -> Io<'_, Data> {
                Io::done(Ok(Data::zeros(100)))
            }
            fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
                self.0.write(lba, data, durability)
            }
            fn flush(&self) -> Io<'_, ()> {
                self.0.flush()
            }
            fn discard(&self, extent: Extent) -> Io<'_, ()> {
                self.0.discard(extent)
            }

            fn admit(&self, _: usize) -> Result<(), Error> {
                Ok(())
            }

            fn extensions(&self) -> Extensions<'_> {
                Extensions::default()
            }
        }
        let door = CheckedVolume::new(Arc::new(Short(MemVolume::new(Geometry::with_blocks(8)))));
        assert!(matches!(now(door.read(extent(0, 1))), Err(Error::Device(_))));
    }
}
