//! The partner's leg with a time limit for each call.

use std::time::Duration;

use tokio::time::timeout;
use volume::{Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, Stack, Volume};

/// Wraps `lower` so that a call fails after the time `within`. Without that, a leg that does not answer would
/// block the other leg, too.
pub(super) struct Bounded {
    pub lower: Stack,
    pub within: Duration,
}

impl Bounded {
    fn bound<'a, T: Send + 'a>(&self, call: Io<'a, T>) -> Io<'a, T> {
        let within = self.within;
        Io::new(async move {
            let silent = |_| Err(Error::Unreachable("the partner does not answer".into()));
            timeout(within, call).await.unwrap_or_else(silent)
        })
    }
}

impl Volume for Bounded {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.bound(self.lower.read(extent))
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        self.bound(self.lower.write(lba, data, durability))
    }

    fn flush(&self) -> Io<'_, ()> {
        self.bound(self.lower.flush())
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.bound(self.lower.discard(extent))
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sim::AbilityProbe;

    use super::*;

    #[tokio::test]
    async fn a_bounded_leg_passes_no_optional_call() {
        let lower = Arc::new(AbilityProbe::new(Geometry::with_blocks(64)));
        let half = Bounded { lower: lower.clone(), within: Duration::from_secs(1) };
        let arrived = lower.calls_through(&half).await;
        assert_eq!(arrived, ["flush_ahead -> flush", "examine -> read"]);
    }
}
