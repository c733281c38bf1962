//! One of the two gateways of a pair, from the outside: is the other one there, who serves the unit, and
//! what to do about it.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use volume::{Error, Extent, Holding, Lba, Mirror, Stack, Standing};

use super::{
    bounded::Bounded,
    half::Half,
    plan::{Plan, plan},
};
use crate::{Cache, random::random};

/// What is around a member: its link to the partner, and the unit.
pub trait Surroundings: Send + Sync + 'static {
    /// A new session with the partner's half: nothing of an earlier one begins after this has returned.
    fn partner(&self) -> Answer<'_, Stack>;

    /// Opens the cache ([`Cache::open_pair`]) with this log, and serves the unit. If the log is alone, only
    /// over a far volume that answers: each opening that was not answered is one more to remember.
    fn serve(&self, log: Arc<Mirror>) -> Answer<'_, Arc<Cache>>;

    /// Serves the unit no longer. `at_rest`: the cache has everything in its log when this returns, as it
    /// is to be taken up by the partner; otherwise nothing is asked of the cache any more.
    fn withdraw(&self, at_rest: bool) -> Answer<'_, ()>;
}

/// What an errand ends with; an error in words.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Arc<str>>> + Send + 'a>>;

/// How long to wait for what.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// A partner that was not heard of for so long is gone; a call to its half that takes longer has
    /// failed.
    pub dead_after: Duration,
    /// Of two that both stand by, this one serves.
    pub is_first: bool,
}

impl Timing {
    /// How often the partner is asked: six questions may be lost before it counts as gone.
    fn look_every(&self) -> Duration {
        self.dead_after / 6
    }
}

/// Who does what.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// It serves the unit.
    Active,
    /// It gives its half to the partner, or would.
    Standby,
}

/// What a question to the partner showed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Seen {
    /// It serves the unit.
    Active,
    /// It lends us its half.
    Standby,
    Silent,
}

/// How a member stands.
#[derive(Clone, Debug)]
pub struct Look {
    /// What it does.
    pub role: Role,
    /// Whether the partner answers.
    pub partner_is_there: bool,
    /// How the halves stand, its own first, while it is active.
    pub halves: Option<[Standing; 2]>,
    /// Why it does not do more, as far as there is a reason.
    pub reason: Option<Arc<str>>,
}

/// A member of a pair.
pub struct Member {
    half: Arc<Half>,
    surroundings: Arc<dyn Surroundings>,
    timing: Timing,
    known: Mutex<Known>,
    /// Somebody has asked for something, or it is done.
    news: Notify,
}

struct Known {
    seen: Seen,
    active: Option<Active>,
    reason: Option<Arc<str>>,
    /// The unit is to be the partner's, or ours, now.
    is_asked: bool,
}

/// While it serves the unit.
#[derive(Clone)]
struct Active {
    mirror: Arc<Mirror>,
    cache: Arc<Cache>,
}

/// What is remembered from one look to the next.
struct Watch {
    session: Option<Stack>,
    /// When the partner answered last.
    heard: Instant,
    /// Since when both stand by.
    idle: Instant,
    before: Seen,
    /// Not before then is the unit taken over.
    rest_until: Instant,
    /// It was handed over: only a partner that is gone brings it back.
    handed_over: bool,
}

impl Member {
    /// A member that stands by, with its half of the log.
    #[must_use]
    pub fn new(half: Arc<Half>, surroundings: Arc<dyn Surroundings>, timing: Timing) -> Arc<Self> {
        let known = Known { seen: Seen::Silent, active: None, reason: None, is_asked: false };
        let (known, news) = (Mutex::new(known), Notify::new());
        Arc::new(Self { half, surroundings, timing, known, news })
    }

    /// Watches the partner and does what follows, for ever. To be dropped only with the process.
    pub async fn run(self: Arc<Self>) {
        self.half.lend().await;
        let now = Instant::now();
        let mut watch = Watch {
            session: None,
            heard: now,
            idle: now,
            before: Seen::Silent,
            rest_until: now,
            handed_over: false,
        };
        loop {
            let seen = self.look(&mut watch).await;
            let active = {
                let mut known = self.known.lock();
                known.seen = seen;
                known.active.clone()
            };
            match active {
                Some(active) => self.while_active(&mut watch, &active, seen).await,
                None => self.while_standing_by(&mut watch, seen).await,
            }
            watch.before = seen;
            tokio::select! {
                () = sleep(self.timing.look_every()) => {}
                () = self.news.notified() => {}
            }
        }
    }

    /// How it stands.
    #[must_use]
    pub fn standing(&self) -> Look {
        let known = self.known.lock();
        let role = if known.active.is_some() { Role::Active } else { Role::Standby };
        Look {
            role,
            partner_is_there: known.seen != Seen::Silent,
            halves: known.active.as_ref().map(|active| active.mirror.standings()),
            reason: known.reason.clone(),
        }
    }

    /// Has the unit change places: the active member hands it over to the partner, who has everything and
    /// is there; one that stands by takes it over at once, if the partner does not answer.
    ///
    /// # Errors
    /// Why not.
    pub fn change_places(&self) -> Result<(), Arc<str>> {
        let mut known = self.known.lock();
        match (&known.active, known.seen) {
            (Some(active), Seen::Standby) => {
                if active.mirror.standings() != [Standing::InSync, Standing::InSync] {
                    return Err("the partner's half of the log does not have everything".into());
                }
            }
            (Some(_), _) => return Err("the partner does not stand by".into()),
            (None, Seen::Active) => {
                return Err("the partner serves the unit: ask there to hand it over".into());
            }
            (None, _) => {}
        }
        known.is_asked = true;
        self.news.notify_one();
        Ok(())
    }

    /// Asks the partner, by way of its half.
    async fn look(&self, watch: &mut Watch) -> Seen {
        let patience = self.timing.look_every() * 2;
        if watch.session.is_none() {
            let session = timeout(patience, self.surroundings.partner()).await;
            watch.session = session.ok().and_then(Result::ok);
        }
        let mut seen = Seen::Silent;
        if let Some(session) = &watch.session {
            let first = Extent { lba: Lba(0), blocks: 1 };
            seen = match timeout(patience, session.read(first)).await {
                Ok(Ok(_)) => Seen::Standby,
                Err(_) | Ok(Err(Error::Unreachable(_) | Error::Busy(_))) => Seen::Silent,
                Ok(Err(_)) => Seen::Active,
            };
        }
        if seen == Seen::Silent {
            // What is wrong with it may be wrong for good.
            if watch.heard.elapsed() >= self.timing.dead_after {
                watch.session = None;
            }
        } else {
            watch.heard = Instant::now();
        }
        seen
    }

    /// A session whose calls come after all of any earlier one.
    async fn fresh(&self, watch: &mut Watch) -> Result<Stack, Arc<str>> {
        watch.session = None;
        let session = timeout(self.timing.dead_after, self.surroundings.partner()).await;
        let session = session.unwrap_or_else(|_| Err("the partner does not answer".into()))?;
        let bounded = Bounded { lower: Arc::clone(&session), within: self.timing.dead_after };
        let bounded: Stack = Arc::new(bounded);
        bounded.flush().await.map_err(told)?;
        watch.session = Some(session);
        Ok(bounded)
    }

    async fn while_standing_by(&self, watch: &mut Watch, seen: Seen) {
        let now = Instant::now();
        let is_asked = std::mem::take(&mut self.known.lock().is_asked);
        if seen != Seen::Standby {
            watch.idle = now;
        }
        let dead_after = self.timing.dead_after;
        let is_wanted = match seen {
            Seen::Active => {
                watch.handed_over = false;
                self.known.lock().reason = None;
                false
            }
            // It may reach us though we do not reach it.
            Seen::Silent => {
                let heard = self.half.heard().is_some_and(|heard| heard + dead_after > now);
                is_asked || (!heard && watch.heard + dead_after <= now)
            }
            // It has handed over, or has just come; or none of the two was there before.
            Seen::Standby => {
                let is_mine = watch.before == Seen::Active || self.timing.is_first;
                let is_refused = watch.handed_over && watch.idle + dead_after * 10 > now;
                is_asked || !is_refused && (is_mine || watch.idle + dead_after * 2 <= now)
            }
        };
        if !is_wanted || (now < watch.rest_until && !is_asked) {
            return;
        }
        match self.take_over(watch, seen == Seen::Standby).await {
            Ok(active) => {
                tracing::warn!("this gateway serves the unit of the pair from now on");
                let mut known = self.known.lock();
                (known.active, known.reason) = (Some(active), None);
                watch.handed_over = false;
            }
            Err(reason) => {
                self.half.lend().await;
                let mut known = self.known.lock();
                if known.reason.as_ref() != Some(&reason) {
                    tracing::warn!(%reason, "the unit of the pair is not taken over");
                }
                known.reason = Some(reason);
                watch.rest_until = Instant::now() + REST;
            }
        }
    }

    async fn take_over(&self, watch: &mut Watch, with_partner: bool) -> Result<Active, Arc<str>> {
        let theirs = if with_partner { self.fresh(watch).await.ok() } else { None };
        let here = self.half.take().await;
        let label = Mirror::label_of(&here).await.map_err(told)?;
        let their_label = match &theirs {
            Some(theirs) => Some(Mirror::label_of(theirs).await.map_err(told)?),
            None => None,
        };
        let plan = plan(label, their_label)?;
        let halves = [Some(here), theirs.filter(|_| plan == Plan::Both)];
        let mirror = Mirror::open(halves, random("mirror"), plan == Plan::Here).await;
        let mirror = Arc::new(mirror.map_err(told)?);
        let cache = self.surroundings.serve(Arc::clone(&mirror)).await?;
        Ok(Active { mirror, cache })
    }

    async fn while_active(&self, watch: &mut Watch, active: &Active, seen: Seen) {
        if let Holding::Refused(reason) = active.cache.holding() {
            tracing::error!(%reason, "the partner has taken over");
            return self.step_back(watch, active, false, Some(reason)).await;
        }
        if std::mem::take(&mut self.known.lock().is_asked) {
            watch.handed_over = true;
            return self.step_back(watch, active, true, None).await;
        }
        if seen == Seen::Standby && matches!(active.mirror.standings()[1], Standing::Out(_)) {
            let rejoined = self.rejoin(watch, active).await;
            if let Err(reason) = &rejoined {
                tracing::warn!(%reason, "the partner's half of the log is not filled");
            }
            self.known.lock().reason = rejoined.err();
        }
    }

    /// Stands by from now on.
    async fn step_back(
        &self,
        watch: &mut Watch,
        active: &Active,
        at_rest: bool,
        reason: Option<Arc<str>>,
    ) {
        let withdrawn = self.surroundings.withdraw(at_rest).await;
        if let Err(error) = &withdrawn {
            tracing::error!(%error, "the unit was not put away in order; its log has what was acknowledged");
        }
        active.cache.abandon("the partner of this gateway serves the unit");
        {
            let mut known = self.known.lock();
            (known.active, known.reason) = (None, reason);
        }
        // What the cache may still do to its log fails from here on.
        self.half.lend().await;
        watch.idle = Instant::now();
        watch.rest_until = Instant::now() + REST;
    }

    /// Fills the partner's half.
    async fn rejoin(&self, watch: &mut Watch, active: &Active) -> Result<(), Arc<str>> {
        let theirs = self.fresh(watch).await?;
        let label = Mirror::label_of(&theirs).await.map_err(told)?;
        // Though nobody may have written since.
        let _ = active.cache.vouch().await;
        active.cache.may_rejoin(label).map_err(Arc::<str>::from)?;
        active.cache.rejoin(1, theirs).await.map_err(told)
    }
}

fn told(error: impl std::fmt::Display) -> Arc<str> {
    error.to_string().into()
}

/// Between two attempts to take over: each may write to the half that is here.
const REST: Duration = Duration::from_secs(2);
