//! A log with one leg at a partner gateway, which may open that leg. The storage node, through the claim on
//! the lower volume, is the arbiter.
//!
//! While both legs have everything, the partner may open its leg at any time, and finds every acknowledged
//! write there. Before this gateway acknowledges a write that only its own leg has, the lower volume must
//! grant it a claim that the other leg does not know. From then on the lower volume refuses claims of the
//! other leg. The gateway that asks first continues.

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
        timeout(LONGEST_QUESTION, known).await.unwrap_or(Err(Error::Busy(NO_ANSWER)))
    }

    /// Releases the claim at a clean stop. If the log was used with one leg, first obtains a claim for that
    /// leg, so that the lower volume refuses the other leg, which lacks the end of the log. No claim is
    /// requested after this call.
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
            // The superblock may have recorded the grant of this claim already, and then has its number.
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

    /// Checks by its label that a leg may be overwritten: it must be blank or of this log. If the storage
    /// node has not granted that this gateway continues alone, the label must be unchanged since the leg was
    /// lost: otherwise the partner may have continued with it.
    pub fn may_rejoin(&self, label: Option<HalfLabel>) -> Result<(), &'static str> {
        let pair = self.pair.as_ref().expect("it was opened as one");
        if label.is_some_and(|label| label.mirror != pair.mirror.id()) {
            return Err("the partner's leg belongs to another log");
        }
        match pair.unwitnessed() {
            Some(alone)
                if label.is_none_or(|l| l.alone || l.epoch == 0 || l.epoch >= alone.epoch) =>
            {
                Err("the node must decide first which leg is complete")
            }
            _ => Ok(()),
        }
    }

    /// Checks that a leg that is to be overwritten has no segments that this leg lacks. This leg may have
    /// been restored from a backup before it was opened alone.
    ///
    /// # Errors
    /// The other leg has such segments, or it cannot be read.
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
            "the partner's leg of the log has segments up to {}, and this leg had none from \
             {first} on when it was opened: one of them was restored from a backup",
            found.last
        ))
    }

    /// Replaces the lost leg by `device`, and fills it from the other leg.
    ///
    /// # Errors
    /// See [`Mirror::replace`].
    pub async fn rejoin(&self, half: usize, device: Stack) -> Result<(), MirrorError> {
        let pair = self.pair.as_ref().expect("it was opened as one");
        // Mark the leg as lost before replacing it: only then does the surviving leg record an epoch that the
        // replaced leg lacks, so that a later start cannot mistake the replaced leg for current.
        pair.mirror.release(half).await?;
        if let Some(alone) = pair.mirror.alone().filter(|alone| !pair.is_by_opening(*alone)) {
            // The lower volume has granted the claim of this leg alone, or may still grant it while the other
            // leg is being filled. Record the number of the claim in the superblock: an opening of the filled
            // leg has to know it.
            let generation = pair.question(alone, &*self.log.superblock.lock().await).generation;
            let is_granted = pair.is_witnessed(alone);
            let note = |superblock: &mut Superblock| {
                superblock.note_alone(alone.number, generation, is_granted);
            };
            let noted = self.write_superblock(note).await;
            noted.map_err(|error| MirrorError::Io { half: 1 - half, error })?;
        }
        // Set a new number: if the mirror degrades again, the request to continue alone must be a new one.
        pair.mirror.set_number(number(&self.settings.owner));
        pair.mirror.replace(half, device).await
    }
}

/// Repeats the request to continue alone until the lower volume has answered it, or both legs have everything
/// again.
async fn ask(shared: Weak<CacheCore>, alone: DegradedMirror, claim: Claim) {
    let (mut is_asked, mut is_reported) = (false, false);
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
                    remedy = "start the partner, or repair the link to it: its leg of the log is then \
                     filled automatically",
                    "the partner does not answer; the node has granted that this gateway continues \
                     alone"
                );
                // A late answer may concern an earlier epoch: never lower the number.
                pair.witnessed.fetch_max(alone.epoch, Ordering::Release);
                break shared.signals.changed.notify_waiters();
            }
            Ok(Holding::Refused(reason)) | Err(Error::Fenced(reason)) => {
                shared.lower.volume.fence(&Error::Fenced(reason));
                break shared.signals.changed.notify_waiters();
            }
            // No connection to the node: the lower volume layer sends the claim when it is connected again.
            Ok(Holding::Waiting) => is_asked = true,
            Ok(Holding::Nothing | Holding::Unsupported | Holding::Reserved) => {
                let reason = "the volume keeps no claims any more".into();
                shared.lower.volume.fence(&Error::Fenced(reason));
                break shared.signals.changed.notify_waiters();
            }
            Err(error) if std::mem::replace(&mut is_reported, true) => {
                tracing::debug!(%error, "the request to continue alone is still not answered");
            }
            Err(error) => tracing::warn!(
                %error,
                remedy = "start the node, or repair the link to it; writes wait until it answers",
                "the node does not answer the request to continue alone: the request is repeated until \
                 it does"
            ),
        }
        drop(shared);
        sleep(LOOK_EVERY).await;
    }
}

/// Returns the blocks of the log on a leg, without the label of the mirror. Returns `None` if the leg was
/// never complete.
pub(crate) async fn blocks_of(half: &Stack) -> Option<Stack> {
    Mirror::look([Some(Arc::clone(half)), None], true).await.ok()
}

/// Draws a random number other than 0.
pub(crate) fn number(seed: &str) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = random(seed);
    u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1)
}

/// Far longer than a reachable node needs. After this time hosts get BUSY, long before they abort the
/// command.
const LONGEST_QUESTION: Duration = Duration::from_secs(2);
/// Pause between two checks of the claim's state.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const STOPPED: &str = "the cache has stopped and requests no claim any more";
const NO_ANSWER: &str = "the partner does not answer, and the node that must grant to continue \
                            alone does not answer either";
