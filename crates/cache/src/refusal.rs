//! The errors with which a cache refuses to open.

use journal::{identity::InstanceId, recovery::AcknowledgedLoss};
use volume::Error;

/// Why a cache could not be opened. The data in its log and its NVRAM was not changed.
#[derive(Debug, thiserror::Error)]
pub enum CacheOpenError {
    /// A setting is out of range.
    #[error("{0}")]
    Settings(String),
    /// The log disk cannot be read or written.
    #[error("the log disk cannot be used: {0}")]
    Log(#[source] Error),
    #[error(
        "the log disk holds something else than a log, or both superblocks of the log are damaged"
    )]
    NotALog,
    /// The log or the NVRAM has a format version that this program does not know.
    #[error("the {what} has format version {found}, this program knows {supported}")]
    Version {
        /// Names the object: "log" or "NVRAM".
        what: &'static str,
        found: u32,
        supported: u32,
    },
    /// The log disk has too few or too many blocks, or its blocks do not have 4096 bytes.
    #[error("the log disk cannot hold a log: {0}")]
    Size(String),
    /// The log disk has become smaller.
    #[error("the log has {recorded} blocks, but the log disk only {found}")]
    Truncated {
        /// The size of the log in blocks of 4096 bytes, as recorded when it was formatted.
        recorded: u64,
        /// The size of the log disk in blocks of 4096 bytes.
        found: u64,
    },
    #[error(
        "the log has data of volume \"{found}\", and the cache is for \"{expected}\"; name the log of this cache, or \
         drain the log into the volume whose data it has, and format the log then"
    )]
    OtherVolume {
        /// The volume that was to be cached.
        expected: String,
        /// The volume that the log is for.
        found: String,
    },
    /// The log holds data of a volume that is not among the volumes of this opening.
    #[error(
        "the log holds {slots} blocks of 4096 bytes of volume \"{name}\", which is not among its \
         volumes any more"
    )]
    Absent {
        name: String,
        /// Number of dirty slots of 4096 bytes.
        slots: u64,
    },
    /// The volume was removed from the log although the log had dirty data for it.
    #[error(
        "volume \"{name}\" was removed from the log with {slots} dirty blocks of 4096 bytes: it \
         lacks these acknowledged writes"
    )]
    GivenUp {
        name: String,
        /// Number of dirty slots of 4096 bytes that were discarded.
        slots: u64,
    },
    #[error(
        "the log holds {slots} blocks of 4096 bytes that lie behind the end of volume \"{name}\": it is \
         damaged, or was written by something else"
    )]
    Beyond {
        name: String,
        /// Number of slots of 4096 bytes that lie behind the end of the volume.
        slots: u64,
    },
    #[error(
        "the log was made for {recorded_blocks} blocks of {recorded_size} bytes, the volume now \
         has {blocks} of {size}; drain the log with the former size, then format it"
    )]
    Geometry {
        recorded_blocks: u64,
        /// Recorded block size in bytes.
        recorded_size: u32,
        /// Current number of blocks of the volume.
        blocks: u64,
        /// Current block size of the volume in bytes.
        size: u32,
    },
    #[error("{}", .0.text())]
    Key(KeyRefusal),
    /// Acknowledged data is missing in the log.
    #[error(
        "acknowledged data is missing: log segment {} (block {}) is damaged, {} segments before \
         it are whole, but {}; opening with accept_loss uses the whole segments and discards the \
         rest",
        .0.first_missing, .0.block, .0.intact, .0.evidence
    )]
    Missing(AcknowledgedLoss),
    /// Acknowledged data may be in an NVRAM that is missing or unusable.
    #[error(
        "the cache was not stopped cleanly and acknowledged writes from its NVRAM, which {0}; \
         make the NVRAM available again, or open with accept_loss to discard its writes"
    )]
    NvramMissing(String),
    #[error(
        "the NVRAM is an older copy of itself: the log has segment {segment}, and the NVRAM has \
         recorded segments up to {noted}; it lacks writes that were acknowledged later"
    )]
    NvramBehind {
        /// The number of the newest segment of the log whose header says that the NVRAM had
        /// recorded it.
        segment: u64,
        noted: u64,
    },
    #[error(
        "log and NVRAM are an older copy: they end at write {ends}, and write {confirmed} of this log was \
         confirmed; the volume may have newer data than the log"
    )]
    Behind {
        /// The number of the newest write in the log and the NVRAM.
        ends: u64,
        /// The number of the newest write that was confirmed.
        confirmed: u64,
    },
    /// The stored record of the log's confirmed writes cannot be used.
    #[error("the record of the log's confirmed writes cannot be used: {0}")]
    Confirmed(String),
    /// A page of the NVRAM cannot be read.
    #[error("the NVRAM cannot be read: {0}")]
    Nvram(String),
    #[error(
        "the NVRAM holds {held} acknowledged writes of log {found}, this is log {expected}; use \
         the right one, or open with accept_loss to discard them"
    )]
    OtherNvram {
        /// The log that the NVRAM belongs to.
        found: InstanceId,
        /// The log that is being opened.
        expected: InstanceId,
        /// The number of acknowledged writes in the NVRAM.
        held: usize,
    },
    #[error("the log is blank, but its NVRAM is in use by log {found}: that log is missing")]
    LogMissing {
        /// The log that the NVRAM belongs to.
        found: InstanceId,
    },
    /// The lower volume has granted the exclusive right to write it (claim) to another log.
    #[error("cannot claim the volume for this log: {0}")]
    Claim(std::sync::Arc<str>),
    /// The lower volume does not answer, so it is not known whether this leg of a pair's log has
    /// everything. The other leg cannot be used.
    #[error(
        "the partner does not answer, and the node does not answer whether this leg of the log is \
         complete"
    )]
    Unwitnessed,
    /// The lower volume of a pair does not support claims.
    #[error(
        "the far volume does not support claims, and a pair needs them: without claims both \
         gateways could continue alone"
    )]
    NoWitness,
    /// The log was to be formatted, but has dirty data.
    #[error(
        "log {instance} holds {slots} blocks of 4096 bytes that are not in volume \"{name}\" yet"
    )]
    Dirty {
        instance: InstanceId,
        /// The volume that the log belongs to.
        name: String,
        /// Number of dirty slots of 4096 bytes.
        slots: u64,
    },
}

/// The reason why the given key does not fit a log with data in it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeyRefusal {
    /// The log is encrypted, and no key was given.
    Missing,
    /// The log is encrypted with a key other than the configured one.
    Other,
    /// A key is configured, but the log is not encrypted.
    Needless,
}

impl KeyRefusal {
    fn text(self) -> &'static str {
        match self {
            Self::Missing => "it is encrypted, and no key is given",
            Self::Other => "it is encrypted with another key",
            Self::Needless => "it holds data that is not encrypted, and a key is given",
        }
    }
}
