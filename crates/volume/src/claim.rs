//! Who alone may change a volume: the claim of a cache that holds, or may hold, data newer than it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// What a cache tells the volume below it when it asks to be the only one that writes there.
///
/// A log may be copied and opened in two places. So each opening draws a number of its own, and a
/// claim says which openings it succeeds: of two that succeed the same one, only the first is let in.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Who asks, for people: the name of a gateway. At most [`Claim::MOST_OWNER`] bytes of
    /// printable ASCII are told.
    pub owner: String,
    /// The instance id of its log.
    pub instance: [u8; 16],
    /// How often the log was opened.
    pub generation: u64,
    /// The number that this opening has drawn; not 0.
    pub opening: u64,
    /// The generation that was granted last, as far as the log knows; 0: none ever was.
    pub granted: u64,
    /// The opening that was granted last, as far as the log knows, and those that asked since and
    /// may have been. At most [`Claim::MOST_PREDECESSORS`].
    pub predecessors: Vec<u64>,
    /// From now on there may be dirty data in the log.
    pub writes_back: bool,
    /// There is dirty data in the log now: a claim that waits for the volume, or that is presented
    /// again, says how it is at that moment.
    pub is_dirty: Dirty,
    /// Its log was taken up here on purpose: a predecessor that is still at work is shut out.
    pub takes_over: bool,
    /// Others write there, too, each with tokens for what it writes.
    pub shares: bool,
    /// Somebody has decided to go on though the volume may not have all that it once had.
    pub accept_loss: bool,
    /// The number of the newest write that the log promises to hold. The volume keeps it with the claim, and
    /// refuses a copy of the log that ends before it.
    pub confirmed: Confirmed,
}

impl Claim {
    /// Bytes of an iSCSI name (RFC 7143, 4.2.7.1).
    pub const MOST_OWNER: usize = 223;
    /// The opening that was granted last and seven that were cut off while they asked.
    pub const MOST_PREDECESSORS: usize = 8;
    /// Part of the reason in [`Holding::Refused`] where the log ends before the confirmed number. Callers
    /// recognize this refusal by it.
    pub const OLDER_LOG: &'static str = "is an older copy of itself";
}

/// Whether a log has dirty data, from one moment to the next. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Dirty(Arc<AtomicBool>);

impl Dirty {
    /// As it is now.
    #[must_use]
    pub fn new(is_dirty: bool) -> Self {
        Self(Arc::new(is_dirty.into()))
    }

    /// From now on. To be said of a write before that is acknowledged: else a claim could be granted
    /// as one that has nothing which is older than the volume.
    pub fn set(&self, is_dirty: bool) {
        if self.get() != is_dirty {
            self.0.store(is_dirty, Ordering::Release);
        }
    }

    /// Now.
    #[must_use]
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The number of the newest write that a log promises to hold after a crash. The log numbers its writes from
/// 1, and the number only grows within one opening. Clones share the number.
#[derive(Clone, Debug, Default)]
pub struct Confirmed(Arc<AtomicU64>);

impl Confirmed {
    /// Starts at `number`.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self(Arc::new(number.into()))
    }

    /// Raises the number. A lower one changes nothing.
    pub fn raise(&self, number: u64) {
        self.0.fetch_max(number, Ordering::AcqRel);
    }

    /// Returns the number.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// How a claim stands.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Holding {
    /// None was asked for.
    #[default]
    Nothing,
    /// The volume has no claims: others may write to it.
    Unsupported,
    /// The volume is away. It is asked before anything else when it comes back.
    Waiting,
    /// The claim is granted and on stable storage.
    Held,
    /// A reservation holds in its place, of the kind that every SCSI target has.
    Reserved,
    /// Somebody else's claim stands in the way, and every call fails.
    Refused(Arc<str>),
}
