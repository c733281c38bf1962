//! The claim of an exclusive writer on a volume: a cache whose log holds, or may hold, newer data than the
//! volume.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// The claim with which a cache asks the volume below it to be the only writer.
///
/// A log may be copied and then opened in two places. Each opening therefore draws a number of its own, and
/// a claim names the openings that it succeeds. When two claims name the same predecessor, only the first
/// one is granted.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Name of the gateway, for messages. At most [`Claim::MOST_OWNER`] bytes of printable ASCII are
    /// transmitted.
    pub owner: String,
    /// The instance id of the log.
    pub instance: [u8; 16],
    /// Number of times that the log was opened.
    pub generation: u64,
    /// Random number that identifies this opening of the log; not 0.
    pub opening: u64,
    /// The generation that was granted last, as far as the log knows; 0: no claim was ever granted.
    pub granted: u64,
    /// The opening that was granted last, as far as the log knows, and the later ones that asked for a grant
    /// without receiving an answer. At most [`Claim::MOST_PREDECESSORS`].
    pub predecessors: Vec<u64>,
    /// True if the log may hold dirty data from the grant of this claim on.
    pub writes_back: bool,
    /// The flag that the log has dirty data. A claim that waits for the volume, or that is repeated, is sent with the
    /// value of the flag at that moment.
    pub is_dirty: Dirty,
    /// True if the administrator has moved the log here on purpose: the volume then fences a gateway that still uses a
    /// predecessor of this opening.
    pub takes_over: bool,
    /// True if other gateways write to the volume, too; each holds coherence tokens for the ranges that it writes.
    pub shares: bool,
    /// True if the administrator has decided to continue although the volume may have lost writes.
    pub accept_loss: bool,
    /// The number of the newest write that the log promises to hold. The volume keeps it with the claim, and
    /// refuses a copy of the log that ends before it.
    pub confirmed: Confirmed,
}

impl Claim {
    /// Longest name in bytes: that of an iSCSI name (RFC 7143, 4.2.7.1).
    pub const MOST_OWNER: usize = 223;
    /// Maximum number of predecessors: the opening that was granted last, and seven that lost the connection
    /// while they asked.
    pub const MOST_PREDECESSORS: usize = 8;
    /// Part of the reason in [`Holding::Refused`] where the log ends before the confirmed number. Callers
    /// recognize this refusal by it.
    pub const OLDER_LOG: &'static str = "is an older copy of itself";
}

/// A flag that a log has dirty data. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct Dirty(Arc<AtomicBool>);

impl Dirty {
    #[must_use]
    pub fn new(is_dirty: bool) -> Self {
        Self(Arc::new(is_dirty.into()))
    }

    /// Sets the flag. The cache must set it before it acknowledges a write. Otherwise a claim could be
    /// granted as the claim of a log without dirty data.
    pub fn set(&self, is_dirty: bool) {
        if self.get() != is_dirty {
            self.0.store(is_dirty, Ordering::Release);
        }
    }

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
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self(Arc::new(number.into()))
    }

    /// Raises the number of the newest confirmed write to `number`. Does nothing if `number` is lower than the present
    /// value.
    pub fn raise(&self, number: u64) {
        self.0.fetch_max(number, Ordering::AcqRel);
    }

    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Whether a gateway has the exclusive right to write a volume (claim).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Holding {
    /// The gateway has not requested the claim.
    #[default]
    Nothing,
    /// The volume does not support claims, so other initiators may write to it.
    Unsupported,
    /// The volume cannot be reached. The claim is the first request when it can be reached again.
    Waiting,
    /// The node has granted the claim and has recorded it on stable storage.
    Held,
    /// The volume supports no claims, but holds a reservation for this gateway as every SCSI target can.
    Reserved,
    /// The node has refused the claim, because another log holds it. Every call fails.
    Refused(Arc<str>),
}
