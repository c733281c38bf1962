//! The state of a gateway whose partner may have failed. The gateway uses its own leg of the log alone if the
//! storage node, as the arbiter, has granted that.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use journal::superblock::Superblock;
use parking_lot::Mutex;
use tokio::time::Instant;
use volume::{DegradedMirror, Error, Mirror, MirrorLegStatus};

/// The log of a pair of gateways, and whether this gateway may use its leg alone.
pub(crate) struct PairWitness {
    pub mirror: Arc<Mirror>,
    /// The epoch of the mirror for which the storage node has granted that this leg is used alone; 0 without
    /// a grant.
    pub witnessed: AtomicU64,
    /// The request to the storage node to continue without the partner, if one was prepared or sent.
    pub question: Mutex<Option<Question>>,
    /// True once a clean stop has begun to release the claim: no claim may be requested any more.
    pub is_over: AtomicBool,
    begun: Instant,
    /// Microseconds from `begun` until the partner may have taken over. See [`Self::renew`].
    leased: AtomicU64,
}

/// A request to the storage node to continue without the partner.
#[derive(Clone, Copy)]
pub(crate) struct Question {
    /// Mirror epoch under which this gateway asks the node whether it may continue with one leg.
    pub epoch: u64,
    pub generation: u64,
    pub is_asked: bool,
}

impl PairWitness {
    /// `witnessed` is the degraded state of the mirror before this opening changed it, if the storage node
    /// had granted that state. Only the leg in use has recorded it.
    pub fn new(mirror: Arc<Mirror>, witnessed: Option<DegradedMirror>) -> Self {
        let witnessed = witnessed.map_or(0, |alone| alone.epoch);
        Self {
            mirror,
            witnessed: witnessed.into(),
            question: Mutex::default(),
            is_over: false.into(),
            begun: Instant::now(),
            leased: 0.into(),
        }
    }

    /// Records that the partner does not take over before `until`.
    pub fn renew(&self, until: Instant) {
        let until = until.saturating_duration_since(self.begun).as_micros() as u64;
        self.leased.fetch_max(until, Ordering::Release);
    }

    /// Fails if the partner may have taken over and accepted writes. Then reads must not be answered from
    /// this cache.
    pub fn readable(&self) -> Result<(), Error> {
        let now = self.begun.elapsed().as_micros() as u64;
        if now < self.leased.load(Ordering::Acquire) {
            return Ok(());
        }
        // Do not count a leg that is being resynchronised as lost: it may be complete a moment later.
        let is_out = matches!(self.mirror.standings()[1], MirrorLegStatus::Out(_));
        let alone = self.mirror.alone().filter(|_| is_out);
        match alone {
            Some(alone) if self.is_witnessed(alone) => Ok(()),
            _ => Err(Error::Busy(PARTNER_SILENT)),
        }
    }

    /// Returns the degraded state of the mirror if the storage node has not granted it. Then writes that only
    /// this leg has must not be acknowledged.
    pub fn unwitnessed(&self) -> Option<DegradedMirror> {
        self.mirror.alone().filter(|alone| !self.is_witnessed(*alone))
    }

    pub fn is_witnessed(&self, alone: DegradedMirror) -> bool {
        self.witnessed.load(Ordering::Acquire) == alone.epoch
    }

    /// Returns the request to use this leg alone in this epoch of the mirror. Repeated requests have the same
    /// generation.
    pub fn question(&self, alone: DegradedMirror, superblock: &Superblock) -> Question {
        let mut question = self.question.lock();
        match *question {
            Some(question) if question.epoch == alone.epoch => question,
            last => {
                let last = last.map_or(0, |question| question.generation);
                let generation = superblock.generation.max(superblock.granted).max(last) + 1;
                let new = Question { epoch: alone.epoch, generation, is_asked: false };
                *question.insert(new)
            }
        }
    }

    /// Returns true if the storage node granted this degraded state with the claim of the opening, and not
    /// with a later request to continue alone.
    pub fn is_by_opening(&self, alone: DegradedMirror) -> bool {
        let is_this = |question: &Question| question.epoch == alone.epoch && question.is_asked;
        self.is_witnessed(alone) && !self.question.lock().as_ref().is_some_and(is_this)
    }

    /// Returns true if a request to continue without the partner was ever prepared.
    pub fn has_question(&self) -> bool {
        self.question.lock().is_some()
    }
}

const PARTNER_SILENT: &str = "the partner does not answer, and may have taken over";
