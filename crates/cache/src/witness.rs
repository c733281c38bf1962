//! A log with one half at a partner gateway, which may open that half: the lower volume is the witness.
//!
//! While both halves have everything, the partner may open its half at any time, and every acknowledged
//! write is in it. So before a write is acknowledged that only one half has, the lower volume grants that half
//! a claim that the other half does not know. From then on it refuses claims of the other half.
//! The half that asks first is the one that goes on.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use journal::{reached::LegProgress, superblock::Superblock};
use tokio::time::{sleep, timeout};
use volume::{
    Claim, DegradedMirror, Error, HalfLabel, Holding, Mirror, MirrorError, Stack, Volume,
};

use crate::{
    core::CacheCore,
    degraded_pair::{PairWitness, Question},
    random::random,
};

impl CacheCore {
    /// Fails if hosts must not read from this cache, because another gateway may have newer data.
    pub fn readable(&self) -> Result<(), Error> {
        self.lower.volume.check()?;
        self.pair.as_ref().map_or(Ok(()), PairWitness::readable)
    }

    /// Waits until the writes that the log holds now may be acknowledged.
    ///
    /// # Errors
    /// [`Error::Busy`]: neither the partner nor the lower volume is there; [`Error::Fenced`]: the
    /// partner has taken over.
    pub async fn vouch(self: &Arc<Self>) -> Result<(), Error> {
        let Some(pair) = &self.pair else { return Ok(()) };
        let Some(alone) = pair.unwitnessed() else { return Ok(()) };
        if pair.is_over.load(Ordering::Acquire) {
            return Err(Error::Busy(STOPPED));
        }
        self.begin_asking(pair, alone).await;
        let known = self.wait_until(|_| match self.lower.volume.check() {
            Ok(()) => pair.unwitnessed().is_none().then_some(Ok(())),
            Err(error) => Some(Err(error)),
        });
        timeout(LONGEST_QUESTION, known).await.unwrap_or(Err(Error::Busy(NOBODY_THERE)))
    }

    /// Gives the claim back at a clean stop. If the log went on with one half, first gets a claim for that half, so
    /// that the lower volume refuses the other half, which lacks the end of the log. Claims nothing afterwards.
    ///
    /// # Errors
    /// The lower volume has not answered, and the claim stays.
    pub async fn give_claim_back(self: &Arc<Self>) -> Result<(), Error> {
        self.vouch().await?;
        if let Some(pair) = &self.pair {
            pair.is_over.store(true, Ordering::Release);
            if pair.unwitnessed().is_some() {
                return Err(Error::Busy(STOPPED));
            }
        }
        self.lower.volume.extensions().release().await
    }

    async fn begin_asking(self: &Arc<Self>, pair: &PairWitness, alone: DegradedMirror) {
        let superblock = self.log.superblock.lock().await;
        let question = pair.question(alone, &superblock);
        if question.is_asked {
            return;
        }
        *pair.question.lock() = Some(Question { is_asked: true, ..question });
        let generation = question.generation;
        let claim = Claim {
            owner: self.settings.owner.clone(),
            instance: superblock.instance.0,
            generation,
            opening: alone.number,
            // It may have been noted already.
            granted: superblock.granted.min(generation - 1),
            predecessors: superblock.predecessors(),
            writes_back: self.rules.writes_back,
            is_dirty: self.state.lock().destage.dirty_flags.first(),
            accept_loss: false,
            takes_over: true,
            shares: self.settings.shares,
            confirmed: self.confirming.claimed.clone(),
        };
        tokio::spawn(ask(Arc::downgrade(self), alone, claim));
    }

    /// Whether what this half says may be written over: it is of this log, or blank. While nobody vouches
    /// for this one, it must be as it was lost, so that nobody can have gone on with it.
    pub fn may_rejoin(&self, label: Option<HalfLabel>) -> Result<(), &'static str> {
        let pair = self.pair.as_ref().expect("it was opened as one");
        if label.is_some_and(|label| label.mirror != pair.mirror.id()) {
            return Err("what is there is the half of another log");
        }
        match pair.unwitnessed() {
            Some(alone)
                if label.is_none_or(|l| l.alone || l.epoch == 0 || l.epoch >= alone.epoch) =>
            {
                Err("the node has to say first which half has everything")
            }
            _ => Ok(()),
        }
    }

    /// Whether a half that may be filled has nothing that this one should have: the one in use may have been
    /// put back from a backup before it was opened alone.
    ///
    /// # Errors
    /// What it has; or it cannot be read.
    pub async fn has_all_of(&self, theirs: &Stack) -> Result<(), String> {
        let Some(log) = blocks_of(theirs).await else { return Ok(()) };
        let found = LegProgress::of(&log).await.map_err(|error| error.to_string())?;
        let Some(found) = found else { return Ok(()) };
        let (instance, first) = {
            let superblock = self.log.superblock.lock().await;
            (superblock.instance, superblock.generation_first)
        };
        if found.instance != instance || !found.is_beyond(first, self.log.identity.generation) {
            return Ok(());
        }
        Err(format!(
            "the partner's half of the log has segments up to {}, and this one had none from {first} on when \
             it was opened: one of them was put back from a backup",
            found.last
        ))
    }

    /// Takes a half in place of the one that was lost, and fills it.
    ///
    /// # Errors
    /// See [`Mirror::replace`].
    pub async fn rejoin(&self, half: usize, device: Stack) -> Result<(), MirrorError> {
        let pair = self.pair.as_ref().expect("it was opened as one");
        // Lost first: what it does not get is known by a number that it does not know.
        pair.mirror.release(half).await?;
        if let Some(alone) = pair.mirror.alone().filter(|alone| !pair.is_by_opening(*alone)) {
            // The lower volume has granted that claim, or may do so until the half is filled: whoever
            // opens that has to know of it.
            let generation = pair.question(alone, &*self.log.superblock.lock().await).generation;
            let is_granted = pair.is_witnessed(alone);
            let note = |superblock: &mut Superblock| {
                superblock.note_alone(alone.number, generation, is_granted);
            };
            let noted = self.write_superblock(note).await;
            noted.map_err(|error| MirrorError::Io { half: 1 - half, error })?;
        }
        // The next time that it goes on alone is another one.
        pair.mirror.set_number(number(&self.settings.owner));
        pair.mirror.replace(half, device).await
    }
}

/// Asks the lower volume until it knows, or both halves have everything again.
async fn ask(shared: Weak<CacheCore>, alone: DegradedMirror, claim: Claim) {
    let (mut is_asked, mut is_told) = (false, false);
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let pair = shared.pair.as_ref().expect("it asks for one");
        let is_over = pair.is_over.load(Ordering::Acquire);
        if is_over || pair.mirror.alone() != Some(alone) || shared.lower.volume.check().is_err() {
            break shared.signals.changed.notify_waiters();
        }
        let holding = if is_asked {
            Ok(shared.lower.volume.holding())
        } else {
            shared.lower.volume.extensions().claim(claim.clone()).await
        };
        match holding {
            Ok(Holding::Held) => {
                tracing::warn!(
                    generation = claim.generation,
                    "the partner is away, and the node knows: going on alone"
                );
                // A late answer is about an earlier time alone.
                pair.witnessed.fetch_max(alone.epoch, Ordering::Release);
                break shared.signals.changed.notify_waiters();
            }
            Ok(Holding::Refused(reason)) | Err(Error::Fenced(reason)) => {
                shared.lower.volume.fence(&Error::Fenced(reason));
                break shared.signals.changed.notify_waiters();
            }
            // The lower volume presents it when it is there.
            Ok(Holding::Waiting) => is_asked = true,
            Ok(Holding::Nothing | Holding::Unsupported | Holding::Reserved) => {
                let reason = "the volume keeps no claims any more".into();
                shared.lower.volume.fence(&Error::Fenced(reason));
                break shared.signals.changed.notify_waiters();
            }
            Err(error) if std::mem::replace(&mut is_told, true) => {
                tracing::debug!(%error, "the claim of going on alone is still not answered");
            }
            Err(error) => tracing::warn!(
                %error,
                "the node does not answer the claim of going on alone: it is asked until it does"
            ),
        }
        drop(shared);
        sleep(LOOK_EVERY).await;
    }
}

/// The blocks of the log on a half, if it holds everything that somebody once had.
pub(crate) async fn blocks_of(half: &Stack) -> Option<Stack> {
    Mirror::look([Some(Arc::clone(half)), None], true).await.ok()
}

/// Drawn at random; not 0.
pub(crate) fn number(seed: &str) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = random(seed);
    u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1)
}

/// Far longer than a node that is there needs; hosts get BUSY then, long before they give up.
const LONGEST_QUESTION: Duration = Duration::from_secs(2);
/// How often to look how the claim stands.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const STOPPED: &str = "the cache has stopped, and claims nothing any more";
const NOBODY_THERE: &str = "the partner is away, and so is the node that has to know of it";
