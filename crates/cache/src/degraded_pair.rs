//! What one of a pair of gateways knows of going on alone, with its half of the log.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use journal::superblock::Superblock;
use parking_lot::Mutex;
use tokio::time::Instant;
use volume::{DegradedMirror, Error, Mirror, MirrorLegStatus};

/// The log of a pair of gateways.
pub(crate) struct PairWitness {
    pub mirror: Arc<Mirror>,
    /// The epoch of the mirror in which it is alone, and the lower volume has granted that.
    pub witnessed: AtomicU64,
    /// The claim of going on alone that is asked, or would be.
    pub question: Mutex<Option<Question>>,
    /// A clean stop has begun to give the claim back: nothing may be claimed any more.
    pub is_over: AtomicBool,
    begun: Instant,
    /// Microseconds from then until when the partner cannot have taken over.
    leased: AtomicU64,
}

/// A claim of going on alone.
#[derive(Clone, Copy)]
pub(crate) struct Question {
    /// Of the mirror.
    pub epoch: u64,
    pub generation: u64,
    pub is_asked: bool,
}

impl PairWitness {
    /// `witnessed`: how the mirror was alone before this opening noted itself. Only the half in use knows
    /// of that, and its claim is granted.
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

    /// The partner does not take over before `until`.
    pub fn renew(&self, until: Instant) {
        let until = until.saturating_duration_since(self.begun).as_micros() as u64;
        self.leased.fetch_max(until, Ordering::Release);
    }

    /// Whether hosts may be told what is here: the partner cannot have taken over and taken writes.
    pub fn readable(&self) -> Result<(), Error> {
        let now = self.begun.elapsed().as_micros() as u64;
        if now < self.leased.load(Ordering::Acquire) {
            return Ok(());
        }
        // A half that is being filled may have everything a moment later.
        let is_out = matches!(self.mirror.standings()[1], MirrorLegStatus::Out(_));
        let alone = self.mirror.alone().filter(|_| is_out);
        match alone {
            Some(alone) if self.is_witnessed(alone) => Ok(()),
            _ => Err(Error::Busy(UNHEARD)),
        }
    }

    /// What one half alone has may not be acknowledged yet.
    pub fn unwitnessed(&self) -> Option<DegradedMirror> {
        self.mirror.alone().filter(|alone| !self.is_witnessed(*alone))
    }

    pub fn is_witnessed(&self, alone: DegradedMirror) -> bool {
        self.witnessed.load(Ordering::Acquire) == alone.epoch
    }

    /// The question about this epoch. Its claim has the same generation however often it is asked.
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

    /// Whether the claim of the opening is what the lower volume knows of this.
    pub fn is_by_opening(&self, alone: DegradedMirror) -> bool {
        let is_this = |question: &Question| question.epoch == alone.epoch && question.is_asked;
        self.is_witnessed(alone) && !self.question.lock().as_ref().is_some_and(is_this)
    }

    /// Whether there ever was one.
    pub fn has_question(&self) -> bool {
        self.question.lock().is_some()
    }
}

const UNHEARD: &str = "the partner does not answer, and may have taken over";
