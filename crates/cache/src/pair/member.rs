//! One of the two gateways of a pair, from the outside: is the other one there, who serves the unit, and
//! what to do about it.

use std::{sync::Arc, time::Duration};

use journal::reached::LegProgress;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use volume::{Error, HalfLabel, Mirror, MirrorError, MirrorLegStatus, Stack};

use super::{
    bounded::Bounded,
    half::{LogLeg, is_in_use},
    host::{PairMemberHost, PairTiming},
    plan::{PairOpeningPlan, plan},
};
use crate::{Cache, random::random, witness::blocks_of};

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
enum PartnerObservation {
    /// It serves the unit.
    Active,
    /// It lends us its half.
    Standby,
    Silent,
}

/// The partner has not answered. True if the session has ended for good, so that a new session may be answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct HasEnded(bool);

/// How a member stands.
#[derive(Clone, Debug)]
pub struct PairMemberStatus {
    /// What it does.
    pub role: Role,
    /// Whether the partner answers.
    pub partner_is_there: bool,
    /// How the halves stand, its own first, while it is active.
    pub halves: Option<[MirrorLegStatus; 2]>,
    /// Why it does not do more, as far as there is a reason.
    pub reason: Option<Arc<str>>,
}

/// A member of a pair.
pub struct PairMember {
    half: Arc<LogLeg>,
    surroundings: Arc<dyn PairMemberHost>,
    timing: PairTiming,
    known: Mutex<PairMemberState>,
    /// Somebody has asked for something, or it is done.
    news: Notify,
}

struct PairMemberState {
    seen: PartnerObservation,
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

impl Active {
    /// Whether the partner has all that it needs to go on.
    fn may_hand_over(&self, seen: PartnerObservation) -> Result<(), Arc<str>> {
        if seen != PartnerObservation::Standby {
            return Err("the partner does not stand by".into());
        }
        if self.mirror.standings() != [MirrorLegStatus::InSync, MirrorLegStatus::InSync] {
            return Err("the partner's half of the log does not have everything".into());
        }
        Ok(())
    }
}

/// What is remembered from one look to the next.
struct PartnerWatch {
    session: Option<Stack>,
    /// When the partner answered last.
    heard: Instant,
    /// Since when this member is there: what was asked of its half before, it does not know.
    begun: Instant,
    /// Since when both stand by.
    idle: Instant,
    before: PartnerObservation,
    /// The partner's half says that nobody has gone on with it.
    is_as_it_was: bool,
    /// Not before then is the unit taken over.
    rest_until: Instant,
    /// It was handed over: only a partner that is gone brings it back.
    handed_over: bool,
}

impl PairMember {
    /// A member that stands by, with its half of the log.
    #[must_use]
    pub fn new(
        half: Arc<LogLeg>,
        surroundings: Arc<dyn PairMemberHost>,
        timing: PairTiming,
    ) -> Arc<Self> {
        let known = PairMemberState {
            seen: PartnerObservation::Silent,
            active: None,
            reason: None,
            is_asked: false,
        };
        let (known, news) = (Mutex::new(known), Notify::new());
        Arc::new(Self { half, surroundings, timing, known, news })
    }

    /// Watches the partner and does what follows, for ever. To be dropped only with the process.
    pub async fn run(self: Arc<Self>) {
        self.half.lend().await;
        let now = Instant::now();
        let mut watch = PartnerWatch {
            session: None,
            heard: now,
            begun: now,
            idle: now,
            before: PartnerObservation::Silent,
            is_as_it_was: false,
            rest_until: now,
            handed_over: false,
        };
        loop {
            let sent = Instant::now();
            let seen = self.look(&mut watch).await;
            let active = {
                let mut known = self.known.lock();
                known.seen = seen;
                known.active.clone()
            };
            match active {
                Some(active) => {
                    // It may have taken over, taken writes, died, and be there again.
                    if seen == PartnerObservation::Standby && watch.is_as_it_was {
                        active.cache.renew(sent + self.timing.dead_after);
                    }
                    self.while_active(&mut watch, &active, seen).await;
                }
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
    pub fn standing(&self) -> PairMemberStatus {
        let known = self.known.lock();
        let role = if known.active.is_some() { Role::Active } else { Role::Standby };
        PairMemberStatus {
            role,
            partner_is_there: known.seen != PartnerObservation::Silent,
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
            (Some(active), seen) => active.may_hand_over(seen)?,
            (None, PartnerObservation::Active) => {
                return Err("the partner serves the unit: ask there to hand it over".into());
            }
            (None, _) => {}
        }
        known.is_asked = true;
        self.news.notify_one();
        Ok(())
    }

    /// Asks the partner, by way of its half.
    async fn look(&self, watch: &mut PartnerWatch) -> PartnerObservation {
        let mut answer = self.ask(watch).await;
        // The partner ends our session when it opens its half: try a new one. While this member is active,
        // its log uses the session, so keep it.
        if answer == Err(HasEnded(true)) && self.known.lock().active.is_none() {
            watch.session = None;
            answer = self.ask(watch).await;
        }
        let Ok(seen) = answer else {
            // The session may never be answered again, so the next look begins a new one.
            if watch.heard.elapsed() >= self.timing.dead_after {
                watch.session = None;
            }
            return PartnerObservation::Silent;
        };
        watch.heard = Instant::now();
        seen
    }

    /// Reads the label of the partner's half, in a new session if there is none.
    async fn ask(&self, watch: &mut PartnerWatch) -> Result<PartnerObservation, HasEnded> {
        let patience = self.timing.look_every() * 2;
        watch.is_as_it_was = false;
        if watch.session.is_none() {
            let session = timeout(patience, self.surroundings.partner()).await;
            watch.session = session.ok().and_then(Result::ok);
        }
        let Some(session) = &watch.session else { return Err(HasEnded(false)) };
        match timeout(patience, Mirror::label_of(session)).await {
            Ok(Ok(label)) => {
                // A gateway that goes on with its half alone writes that into the label before it takes a write.
                watch.is_as_it_was = label.is_some_and(|label| !label.alone);
                Ok(PartnerObservation::Standby)
            }
            Ok(Err(MirrorError::Io { error, .. })) if is_in_use(&error) => {
                Ok(PartnerObservation::Active)
            }
            // An error of the disk or of the link does not mean that the partner serves the unit.
            Ok(Err(MirrorError::Io { error, .. })) => Err(HasEnded(!error.may_pass())),
            Err(_) => Err(HasEnded(false)),
            Ok(Err(_)) => Ok(PartnerObservation::Standby),
        }
    }

    /// A session whose calls come after all of any earlier one.
    async fn fresh(&self, watch: &mut PartnerWatch) -> Result<Stack, Arc<str>> {
        watch.session = None;
        let session = timeout(self.timing.dead_after, self.surroundings.partner()).await;
        let session = session.unwrap_or_else(|_| Err("the partner does not answer".into()))?;
        let bounded = Bounded { lower: Arc::clone(&session), within: self.timing.dead_after };
        let bounded: Stack = Arc::new(bounded);
        bounded.flush().await.map_err(told)?;
        watch.session = Some(session);
        Ok(bounded)
    }

    async fn while_standing_by(&self, watch: &mut PartnerWatch, seen: PartnerObservation) {
        let now = Instant::now();
        let is_asked = std::mem::take(&mut self.known.lock().is_asked);
        if seen != PartnerObservation::Standby {
            watch.idle = now;
        }
        let dead_after = self.timing.dead_after;
        let is_wanted = match seen {
            PartnerObservation::Active => {
                watch.handed_over = false;
                self.known.lock().reason = None;
                false
            }
            // It may reach us though we do not reach it.
            PartnerObservation::Silent => {
                let heard = self.half.heard().is_some_and(|heard| heard + dead_after > now);
                is_asked || (!heard && watch.heard + dead_after <= now)
            }
            // It has handed over, or has just come; or none of the two was there before.
            PartnerObservation::Standby => {
                let is_mine = watch.before == PartnerObservation::Active || self.timing.is_first;
                let is_refused = watch.handed_over && watch.idle + dead_after * 10 > now;
                is_asked || !is_refused && (is_mine || watch.idle + dead_after * 2 <= now)
            }
        };
        if !is_wanted || (now < watch.rest_until && !is_asked) {
            return;
        }
        match self.take_over(watch, seen == PartnerObservation::Standby).await {
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

    async fn take_over(
        &self,
        watch: &mut PartnerWatch,
        with_partner: bool,
    ) -> Result<Active, Arc<str>> {
        let here = self.half.take().await;
        // From here on the partner gets no answer that lets it go on with reads ([`Cache::renew`]). It has
        // none of before if it stands by now, or has not used this half for long.
        let sent = Instant::now();
        let theirs = if with_partner { self.fresh(watch).await.ok() } else { None };
        if theirs.is_none() && !self.is_unheard(watch) {
            return Err("the partner used this half of the log just now".into());
        }
        let label = Mirror::label_of(&here).await.map_err(told)?;
        let their_label = match &theirs {
            Some(theirs) => Some(Mirror::label_of(theirs).await.map_err(told)?),
            None => None,
        };
        let mut plan = plan(label, their_label)?;
        let is_as_it_was = |label: HalfLabel| label.epoch > 0 && !label.alone;
        if let Some(theirs) = &theirs
            && their_label.flatten().is_some_and(is_as_it_was)
        {
            plan = compare(plan, &here, theirs).await?;
        }
        if plan == PairOpeningPlan::Here && label.is_some_and(|label| !label.alone) {
            // From when it is opened, the half says that it is alone, and keeps saying so though nobody can
            // be asked whether it is.
            self.surroundings.far().await?;
        }
        // The opening writes to the half, and may fail after that; then the half is lent to the partner
        // again. A write that the partner sent before the opening must not arrive after it, so end the
        // sessions first.
        self.surroundings.turn_partner_away().await?;
        let halves = [Some(here), theirs.filter(|_| plan == PairOpeningPlan::Both)];
        let mirror = Mirror::open(halves, random("mirror"), plan == PairOpeningPlan::Here).await;
        let mirror = Arc::new(mirror.map_err(told)?);
        let cache = self.surroundings.serve(Arc::clone(&mirror)).await?;
        if plan == PairOpeningPlan::Both {
            cache.renew(sent + self.timing.dead_after);
        }
        Ok(Active { mirror, cache })
    }

    /// The partner has not asked for anything since `dead_after`.
    fn is_unheard(&self, watch: &PartnerWatch) -> bool {
        let since = self.half.heard().map_or(watch.begun, |heard| heard.max(watch.begun));
        since.elapsed() >= self.timing.dead_after
    }

    async fn while_active(
        &self,
        watch: &mut PartnerWatch,
        active: &Active,
        seen: PartnerObservation,
    ) {
        if let Err(error) = active.cache.check() {
            let reason = told(error);
            tracing::error!(%reason, "this gateway does not serve the unit any more");
            return self.step_back(watch, active, false, Some(reason)).await;
        }
        if std::mem::take(&mut self.known.lock().is_asked) {
            // It may not be any more as it was when that was asked.
            if let Err(reason) = active.may_hand_over(seen) {
                tracing::warn!(%reason, "the unit does not change places");
                self.known.lock().reason = Some(reason);
            } else {
                watch.handed_over = true;
                return self.step_back(watch, active, true, None).await;
            }
        }
        // Reads are not answered from here on, until the node knows that this one goes on alone.
        let is_gone =
            seen == PartnerObservation::Silent && watch.heard.elapsed() >= self.timing.dead_after;
        if is_gone && active.mirror.alone().is_none() {
            let alone = active.mirror.release(1).await;
            let vouched = match alone {
                Ok(()) => active.cache.vouch().await.map_err(told),
                Err(error) => Err(told(error)),
            };
            if let Err(reason) = vouched {
                tracing::warn!(%reason, "the partner is away");
            }
        }
        if seen == PartnerObservation::Standby
            && matches!(active.mirror.standings()[1], MirrorLegStatus::Out(_))
        {
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
        watch: &mut PartnerWatch,
        active: &Active,
        at_rest: bool,
        reason: Option<Arc<str>>,
    ) {
        let withdrawn = self.surroundings.withdraw(at_rest).await;
        if let Err(error) = &withdrawn {
            tracing::error!(%error, "the unit was not put away in order; its log has what was acknowledged");
        }
        active.cache.abandon("the partner of this gateway serves the unit");
        if at_rest && active.mirror.alone().is_some() {
            // The partner's half was lost while the cache was being stopped, so the partner cannot serve the
            // unit.
            tracing::warn!(
                "the partner's half of the log lacks writes, so the unit is not handed over"
            );
            watch.handed_over = false;
        }
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
    async fn rejoin(&self, watch: &mut PartnerWatch, active: &Active) -> Result<(), Arc<str>> {
        let theirs = self.fresh(watch).await?;
        // Though nobody may have written since.
        if let Err(error @ Error::Fenced(_)) = active.cache.vouch().await {
            return Err(told(error));
        }
        // Not before: what the node said just now may be that somebody has gone on with it.
        let label = Mirror::label_of(&theirs).await.map_err(told)?;
        active.cache.may_rejoin(label).map_err(Arc::<str>::from)?;
        active.cache.has_all_of(&theirs).await.map_err(Arc::<str>::from)?;
        active.cache.rejoin(1, theirs).await.map_err(told)
    }
}

/// What may be opened if nobody has gone on with the partner's half: not one that was put back from a backup.
async fn compare(
    plan: PairOpeningPlan,
    here: &Stack,
    theirs: &Stack,
) -> Result<PairOpeningPlan, Arc<str>> {
    let reached = async |half: &Stack| match blocks_of(half).await {
        Some(log) => LegProgress::of(&log).await,
        None => Ok(None),
    };
    let (ours, theirs) = tokio::join!(reached(here), reached(theirs));
    let (Some(ours), Some(theirs)) = (ours.map_err(told)?, theirs.map_err(told)?) else {
        return Ok(plan);
    };
    if ours.is_behind(&theirs) {
        return Err(format!(
            "this half of the log has segments up to {}, and the partner's up to {}: it was put back from a \
             backup, or its NVRAM was lost, and it is filled when the partner serves the unit",
            ours.last, theirs.last
        )
        .into());
    }
    if theirs.is_behind(&ours) {
        tracing::warn!(
            ours = ours.last,
            theirs = theirs.last,
            "the partner's half of the log was put back from a backup, or its NVRAM was lost: it is filled anew"
        );
        return Ok(PairOpeningPlan::Here);
    }
    Ok(plan)
}

fn told(error: impl std::fmt::Display) -> Arc<str> {
    error.to_string().into()
}

/// Between two attempts to take over: each may write to the half that is here.
const REST: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::future::ready;

    use volume::{
        Extent, FaultCallKind, FaultRule, FaultVolume, Geometry, Lba, MemVolume, Symptom,
    };

    use super::*;
    use crate::PairMemberAnswer;

    /// A partner's half, if it is there, and no unit to serve.
    struct Around(Option<Stack>);

    impl PairMemberHost for Around {
        fn partner(&self) -> PairMemberAnswer<'_, Stack> {
            Box::pin(ready(self.0.clone().ok_or_else(|| "it is away".into())))
        }

        fn turn_partner_away(&self) -> PairMemberAnswer<'_, ()> {
            Box::pin(ready(Ok(())))
        }

        fn far(&self) -> PairMemberAnswer<'_, ()> {
            Box::pin(ready(Err("the node is away".into())))
        }

        fn serve(&self, _log: Arc<Mirror>) -> PairMemberAnswer<'_, Arc<Cache>> {
            Box::pin(ready(Err("there is no unit".into())))
        }

        fn withdraw(&self, _at_rest: bool) -> PairMemberAnswer<'_, ()> {
            Box::pin(ready(Ok(())))
        }
    }

    fn disk() -> Stack {
        let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(400) };
        Arc::new(MemVolume::new(geometry))
    }

    /// How a partner is seen whose half answers like this.
    async fn seen(half: Stack) -> PartnerObservation {
        let timing = PairTiming { dead_after: Duration::from_secs(3), is_first: false };
        let member = PairMember::new(LogLeg::new(disk()), Arc::new(Around(Some(half))), timing);
        let running = tokio::spawn(Arc::clone(&member).run()).abort_handle();
        sleep(Duration::from_millis(100)).await;
        running.abort();
        member.known.lock().seen
    }

    /// A gateway whose disk is broken would be left with the unit for ever.
    #[tokio::test(start_paused = true)]
    async fn only_who_says_so_serves_the_unit() {
        let half = LogLeg::new(disk());
        assert_eq!(seen(half.for_partner()).await, PartnerObservation::Active);
        half.lend().await;
        assert_eq!(seen(half.for_partner()).await, PartnerObservation::Standby);
        let extent = Extent { lba: Lba(0), blocks: 1 };
        for error in [
            Error::Device("it is broken".into()),
            Error::Medium { extent, reason: "scratched".into() },
            Error::Unreachable("no route".into()),
        ] {
            let fault = FaultVolume::new(half.for_partner());
            fault
                .faults()
                .add(FaultRule::always(FaultCallKind::Read, Symptom::Fails(error.clone())));
            assert_eq!(seen(Arc::new(fault)).await, PartnerObservation::Silent, "{error}");
        }
    }

    /// Its partner may have everything, and would not fill a half that says otherwise.
    #[tokio::test(start_paused = true)]
    async fn a_half_does_not_say_that_it_is_alone_while_the_node_is_away() {
        let (ours, theirs) = (disk(), disk());
        let halves = [Some(Arc::clone(&ours)), Some(theirs)];
        drop(Mirror::open(halves, [1; 16], false).await.expect("a mirror"));
        let before = Mirror::label_of(&ours).await.expect("readable");
        assert!(before.is_some_and(|label| !label.alone));
        let timing = PairTiming { dead_after: Duration::from_secs(3), is_first: true };
        let around = Arc::new(Around(None));
        let member = PairMember::new(LogLeg::new(Arc::clone(&ours)), around, timing);
        let running = tokio::spawn(Arc::clone(&member).run()).abort_handle();
        sleep(Duration::from_secs(20)).await;
        running.abort();
        assert_eq!(member.standing().reason.as_deref(), Some("the node is away"));
        assert_eq!(Mirror::label_of(&ours).await.expect("readable"), before);
    }
}
