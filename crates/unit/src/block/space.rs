//! The space below a thin volume: the values that LOG SENSE reports, and the soft threshold (SBC-3, 4.7.3.7).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use scsi::{log::ProvisioningCounts, mode::ProvisioningThreshold};
use volume::{Geometry, ThinSpaceUsage, Volume};

/// Detects when the used space crosses the soft threshold.
#[derive(Debug)]
pub(crate) struct Threshold {
    percent: Option<u8>,
    /// Bytes written so far, to decide when to check the space.
    written: AtomicU64,
    /// True if the used space was above the threshold at the last check.
    beyond: AtomicBool,
}

/// The space of a thin volume, and the bytes of a threshold set, which is the unit in which thresholds are reported.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Space {
    usage: ThinSpaceUsage,
    set_bytes: u64,
}

impl Threshold {
    pub(crate) fn new(percent: Option<u8>) -> Self {
        Self { percent, written: AtomicU64::new(0), beyond: AtomicBool::new(false) }
    }

    /// Counts `bytes` that are about to be written. Returns true if the space should be checked now.
    pub(crate) fn is_due(&self, bytes: u64) -> bool {
        if self.percent.is_none() {
            return false;
        }
        let before = self.written.fetch_add(bytes, Ordering::Relaxed);
        // The first write is always checked: the space may have been used up before the start.
        before == 0 || before / LOOK_EVERY != (before + bytes) / LOOK_EVERY
    }

    /// Returns true if the threshold has been crossed upwards since the last check.
    pub(crate) fn crosses(&self, space: &Space) -> bool {
        let Some(percent) = self.percent else { return false };
        let beyond = space.usage.used > space.part(percent);
        !self.beyond.swap(beyond, Ordering::AcqRel) && beyond
    }

    /// Returns the mode page with the threshold.
    pub(crate) fn to_mode(&self, space: Option<&Space>) -> Option<ProvisioningThreshold> {
        let (percent, space) = (self.percent?, space?);
        Some(ProvisioningThreshold { used: space.sets(space.part(percent)) })
    }
}

impl Space {
    /// Returns the free and used space of a thin volume; `None` if the volume does not report it.
    pub(crate) fn of(volume: &dyn Volume, geometry: &Geometry) -> Option<Self> {
        let usage = volume.extensions().usage().filter(|_| geometry.thin)?;
        Some(Self { usage, set_bytes: u64::from(geometry.block_size) << exponent(geometry) })
    }

    /// Returns the counts of used and available space for the log page of thin provisioning.
    pub(crate) fn to_log(self) -> ProvisioningCounts {
        ProvisioningCounts {
            available: self.sets(self.usage.available),
            used: self.sets(self.usage.used),
            shared: self.usage.shared,
        }
    }

    /// Returns `percent` of the total space, in bytes.
    fn part(&self, percent: u8) -> u64 {
        let all = u128::from(self.usage.used) + u128::from(self.usage.available);
        u64::try_from(all * u128::from(percent) / 100).unwrap_or(u64::MAX)
    }

    fn sets(&self, bytes: u64) -> u32 {
        u32::try_from(bytes / self.set_bytes).unwrap_or(u32::MAX)
    }
}

/// THRESHOLD EXPONENT: a threshold set is 1 MiB, so that 32 bits count 4 PiB.
pub(crate) fn exponent(geometry: &Geometry) -> u8 {
    20 - geometry.block_size.trailing_zeros().min(20) as u8
}

/// The space is checked each time that this many bytes were written. 64 MiB are a small part of a volume on which a
/// threshold is useful.
const LOOK_EVERY: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn space(used: u64) -> Space {
        let usage =
            ThinSpaceUsage { used: used << 20, available: (100 - used) << 20, shared: false };
        Space { usage, set_bytes: 1 << 20 }
    }

    #[test]
    fn a_threshold_is_crossed_once_in_each_direction() {
        let threshold = Threshold::new(Some(80));
        let crossed = [79, 80, 81, 99, 80, 81].map(|used| threshold.crosses(&space(used)));
        assert_eq!(crossed, [false, false, true, false, false, true]);
        assert!(!Threshold::new(None).crosses(&space(100)));
        let mode = threshold.to_mode(Some(&space(50))).unwrap();
        assert_eq!(mode.used, 80);
    }

    #[test]
    fn the_threshold_is_checked_at_the_first_write_and_every_64_mib() {
        let threshold = Threshold::new(Some(80));
        let due = [32 << 20, 31 << 20, 1 << 20, 1 << 20].map(|bytes| threshold.is_due(bytes));
        assert_eq!(due, [true, false, true, false]);
        assert!(!Threshold::new(None).is_due(1 << 30));
    }

    #[test]
    fn a_set_is_one_mebibyte() {
        assert_eq!(exponent(&Geometry::with_blocks(1)), 11);
        assert_eq!(exponent(&Geometry { block_size: 4096, ..Geometry::with_blocks(1) }), 8);
    }
}
