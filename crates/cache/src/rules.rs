//! The rules of a write mode that all other modules of the cache use. The files in `mode` set these rules,
//! each for its mode.

/// The moment at which a write that need not be stable is acknowledged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AcknowledgedAt {
    /// The write is acknowledged when it is stable in the log.
    Log,
    /// The write is acknowledged when it is in the NVRAM; if the NVRAM has failed, when it is in the log.
    Nvram,
    /// The write is acknowledged when its data is in memory, before it is stable.
    Memory,
    /// The write is acknowledged when it is stable in the lower volume.
    Lower,
}

/// How far waiting writes may be reordered before they reach the log. See `CacheState::keep_order`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum QueueOrder {
    /// Newer content of a slot may take the position of older content in the queue.
    Any,
    /// A segment must not hold newer writes than a later segment.
    Segments,
    /// An epoch must not hold newer writes than a later epoch.
    Epochs,
}

/// The rules of a write mode with the settings of a cache. They do not change while the cache is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModeRules {
    pub acknowledged_at: AcknowledgedAt,
    /// True if writes go through the log. If false, they bypass the log, and the log only destages the content that an
    /// earlier mode has left there.
    pub uses_log: bool,
    /// True if an acknowledged write is not stable before the next flush.
    pub is_volatile: bool,
    /// True if only a flush ends an epoch: recovery then discards all writes after the last flush. If false, each
    /// segment may end an epoch.
    pub epochs_end_by_flush: bool,
    pub queue_order: QueueOrder,
    /// True if each write is put into the NVRAM, and recovery needs the NVRAM.
    pub keeps_in_nvram: bool,
    /// True if the content of the NVRAM is as stable as that of the log disk.
    pub nvram_is_stable: bool,
    /// True if acknowledged writes that are only in an NVRAM, or in the NVRAMs in front of a pair's log, survive the
    /// loss of power.
    pub keeps_over_power_loss: bool,
    /// True if data of a write that bypassed the log stays in memory.
    pub keeps_bypassed: bool,
    /// True if the claim on the lower volume announces that this cache acknowledges writes which it has not sent there
    /// yet.
    pub writes_back: bool,
}

impl ModeRules {
    /// Returns true if the cache may acknowledge a write before the log disk has stored it.
    pub fn is_early(&self) -> bool {
        matches!(self.acknowledged_at, AcknowledgedAt::Nvram | AcknowledgedAt::Memory)
    }
}
