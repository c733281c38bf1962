//! The layer `read-only`: a volume that hosts can read but not write.

use std::sync::Arc;

use volume::{Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, Stack, Volume};

use super::running::OpenedLayer;

/// Creates a layer that refuses writes to `lower`.
pub fn open(lower: Stack) -> OpenedLayer {
    OpenedLayer::plain("read-only", String::new(), Arc::new(ReadOnly::new(lower)))
}

/// A volume that refuses writes and discards, and passes reads to `lower`.
struct ReadOnly {
    lower: Stack,
}

impl ReadOnly {
    fn new(lower: Stack) -> Self {
        Self { lower }
    }
}

impl Volume for ReadOnly {
    fn geometry(&self) -> Geometry {
        Geometry { read_only: true, ..self.lower.geometry() }
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.lower.read(extent)
    }

    fn write(&self, _: Lba, _: Data, _: Durability) -> Io<'_, ()> {
        Io::done(Err(Error::ReadOnly))
    }

    fn flush(&self) -> Io<'_, ()> {
        self.lower.flush()
    }

    fn discard(&self, _: Extent) -> Io<'_, ()> {
        Io::done(Err(Error::ReadOnly))
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Err(Error::ReadOnly)
    }

    fn extensions(&self) -> Extensions<'_> {
        // Do not pass on the other abilities of `lower`: they change blocks, or the right to change blocks.
        let below = self.lower.extensions();
        Extensions {
            provisioning: below.provisioning,
            resizable: below.resizable,
            flushed_reads: below.flushed_reads,
            ..Extensions::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sim::AbilityProbe;
    use volume::MemVolume;

    use super::*;

    #[tokio::test]
    async fn writes_are_refused_and_reads_pass() {
        let lower: Stack = Arc::new(MemVolume::new(Geometry::with_blocks(16)));
        let block = Data::from(vec![7; 512]);
        lower.write(Lba(1), block.clone(), Durability::Volatile).await.unwrap();
        let volume = ReadOnly::new(lower);
        assert!(volume.geometry().read_only);
        let extent = Extent { lba: Lba(1), blocks: 1 };
        assert_eq!(volume.read(extent).await.unwrap(), block);
        let write = volume.write(Lba(1), Data::zeros(512), Durability::Volatile).await;
        assert!(matches!(write, Err(Error::ReadOnly)));
        assert!(matches!(volume.discard(extent).await, Err(Error::ReadOnly)));
        assert!(matches!(volume.admit(512), Err(Error::ReadOnly)));
        assert_eq!(volume.read(extent).await.unwrap(), block);
    }
    #[tokio::test]
    async fn calls_that_change_nothing_reach_the_lower_volume() {
        let lower = Arc::new(AbilityProbe::new(Geometry::with_blocks(64)));
        let volume = ReadOnly::new(lower.clone());
        let expected = [
            "flush_ahead -> flush",
            "read_flushed",
            "allocation",
            "usage",
            "examine -> read",
            "refresh",
        ];
        assert_eq!(lower.calls_through(&volume).await, expected);
    }
}
