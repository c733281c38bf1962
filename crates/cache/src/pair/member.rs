//! The behaviour of one of the two gateways of a pair: watches the partner, and decides when to serve the
//! unit and when to stand by. The documentation of the parent module has the rules as a table.

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
    remedies::{
        CLOSED_REMEDY, FILL_REMEDY, HANDOVER_REMEDY, NOT_SERVED_REMEDY, PARTNER_REMEDY,
        TAKEOVER_REMEDY,
    },
};
use crate::{Cache, random::random, witness::blocks_of};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// The member serves the unit to hosts.
    Active,
    /// The member does not serve the unit: the active partner writes to this member's leg of the log.
    Standby,
}

/// The result of a question to the partner.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PartnerObservation {
    /// The partner serves the unit to hosts.
    Active,
    /// The partner does not serve the unit: this member may write to the partner's leg of the log.
    Standby,
    Silent,
}

/// The partner has not answered. The value is true if the session has ended for good, so that a new session may
/// be answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct HasEnded(bool);

#[derive(Clone, Debug)]
pub struct PairMemberStatus {
    pub role: Role,
    /// True if the partner has answered the last question.
    pub partner_is_there: bool,
    /// The status of both legs, the local one first; only while the member is active.
    pub halves: Option<[MirrorLegStatus; 2]>,
    /// The reason why this member's last action, such as a takeover, has failed; `None` if none failed.
    pub reason: Option<Arc<str>>,
}

/// A gateway of a pair: it serves the unit, or stands by with a leg of the log.
pub struct PairMember {
    half: Arc<LogLeg>,
    surroundings: Arc<dyn PairMemberHost>,
    timing: PairTiming,
    known: Mutex<PairMemberState>,
    /// Signalled when an operator has requested a takeover or handover.
    news: Notify,
}

struct PairMemberState {
    seen: PartnerObservation,
    active: Option<Active>,
    reason: Option<Arc<str>>,
    /// True if an operator has requested a takeover or handover.
    is_asked: bool,
}

/// The open log and cache, which exist while this member serves the unit.
#[derive(Clone)]
struct Active {
    mirror: Arc<Mirror>,
    cache: Arc<Cache>,
}

impl Active {
    /// Fails unless the partner is on standby and its leg of the log holds all data.
    fn may_hand_over(&self, seen: PartnerObservation) -> Result<(), Arc<str>> {
        if seen != PartnerObservation::Standby {
            return Err("the partner is not on standby".into());
        }
        if self.mirror.standings() != [MirrorLegStatus::InSync, MirrorLegStatus::InSync] {
            return Err("the partner's leg of the log is not complete".into());
        }
        Ok(())
    }
}

/// The state that a member keeps between two requests for the state of its partner.
struct PartnerWatch {
    session: Option<Stack>,
    /// The time of the partner's last answer.
    last_answer: Instant,
    /// The start of this member. Earlier calls of the partner to the local leg are unknown.
    begun: Instant,
    /// Both members have been on standby since this time.
    idle: Instant,
    before: PartnerObservation,
    /// True if the label of the partner's leg says that the leg was not used alone.
    is_as_it_was: bool,
    /// This member does not take over the unit before this time.
    rest_until: Instant,
    /// True if this member has handed the unit over to its partner. The member takes the unit back only if the partner
    /// has failed, or if both members have stood by for ten times `dead_after`.
    handed_over: bool,
}

impl PairMember {
    /// Creates a member on standby that owns the leg `half` of the log.
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

    /// Watches the partner and acts on the observations, without end. Drop it only at the end of the process.
    pub async fn run(self: Arc<Self>) {
        self.half.lend().await;
        let now = Instant::now();
        let mut watch = PartnerWatch {
            session: None,
            last_answer: now,
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
                    // Do not extend the time in which reads are answered if the partner may have taken over, accepted
                    // writes, failed, and restarted.
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

    /// Requests a change of the roles. An active member hands the unit over to the partner, which must stand
    /// by and have everything. A standby member takes the unit over at once if the partner does not answer.
    ///
    /// # Errors
    /// The reason why the roles cannot change.
    pub fn change_places(&self) -> Result<(), Arc<str>> {
        let mut known = self.known.lock();
        match (&known.active, known.seen) {
            (Some(active), seen) => active.may_hand_over(seen)?,
            (None, PartnerObservation::Active) => {
                return Err("the partner serves the unit: request the handover there".into());
            }
            (None, _) => {}
        }
        known.is_asked = true;
        self.news.notify_one();
        Ok(())
    }

    /// Finds out the role of the partner by reading the label of its leg. Opens a new session if the present
    /// one has ended or may be dead.
    async fn look(&self, watch: &mut PartnerWatch) -> PartnerObservation {
        let mut answer = self.ask(watch).await;
        // The partner ends our session when it opens its leg: try a new one. While this member is active,
        // its log uses the session, so keep it.
        if answer == Err(HasEnded(true)) && self.known.lock().active.is_none() {
            watch.session = None;
            answer = self.ask(watch).await;
        }
        let Ok(seen) = answer else {
            // The session may never be answered again, so the next question to the partner uses a new session.
            if watch.last_answer.elapsed() >= self.timing.dead_after {
                watch.session = None;
            }
            return PartnerObservation::Silent;
        };
        watch.last_answer = Instant::now();
        seen
    }

    /// Reads the label of the partner's leg, in a new session if there is none.
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
                // A gateway that continues with its leg alone writes that into the label before it accepts a
                // write.
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

    /// Opens a new session with the partner's leg. The partner executes its calls after all calls of earlier sessions.
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
            // If only one direction of the link is broken, the partner still uses the local leg: do not take
            // over.
            PartnerObservation::Silent => {
                let has_called =
                    self.half.last_call().is_some_and(|called| called + dead_after > now);
                is_asked || (!has_called && watch.last_answer + dead_after <= now)
            }
            // The partner is on standby because it has handed the unit over, or because it or both members have
            // just started.
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
                if let Some(reason) = self.note_reason(Err(reason)) {
                    tracing::warn!(%reason, remedy = TAKEOVER_REMEDY, "the unit of the pair cannot be taken over");
                }
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
        // From here on, calls of the partner to the local leg fail, and the partner cannot extend the time in which it
        // answers reads ([`Cache::renew`]). That time is over if it stands by, or has not used this leg for `dead_after`.
        let sent = Instant::now();
        let theirs = if with_partner { self.fresh(watch).await.ok() } else { None };
        if theirs.is_none() && !self.is_partner_silent(watch) {
            return Err("the partner has just used this leg of the log".into());
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
            // The opening marks the leg as used alone, and the mark stays even if the node cannot be asked.
            // Check that the node answers before that.
            self.surroundings.far().await?;
        }
        // The opening writes to the local leg, and may fail after that; then the leg is lent to the partner
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

    /// Returns true if the partner has not used the local leg for `dead_after`.
    fn is_partner_silent(&self, watch: &PartnerWatch) -> bool {
        let since = self.half.last_call().map_or(watch.begun, |called| called.max(watch.begun));
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
            tracing::error!(%reason, remedy = NOT_SERVED_REMEDY, "this gateway does not serve the unit any more");
            return self.step_back(watch, active, false, Some(reason)).await;
        }
        if std::mem::take(&mut self.known.lock().is_asked) {
            // Repeat the check: since the request, the partner or its leg may have failed.
            if let Err(reason) = active.may_hand_over(seen) {
                tracing::warn!(%reason, remedy = HANDOVER_REMEDY, "handover refused");
                self.known.lock().reason = Some(reason);
            } else {
                watch.handed_over = true;
                return self.step_back(watch, active, true, None).await;
            }
        }
        // From here on the cache answers no reads until the node has granted that this gateway continues alone.
        let is_gone = seen == PartnerObservation::Silent
            && watch.last_answer.elapsed() >= self.timing.dead_after;
        if is_gone && active.mirror.alone().is_none() {
            let alone = active.mirror.release(1).await;
            let vouched = match alone {
                Ok(()) => active.cache.vouch().await.map_err(told),
                Err(error) => Err(told(error)),
            };
            if let Some(reason) = self.note_reason(vouched) {
                tracing::warn!(%reason, remedy = PARTNER_REMEDY, "the partner does not answer");
            }
        }
        if seen == PartnerObservation::Standby
            && matches!(active.mirror.standings()[1], MirrorLegStatus::Out(_))
        {
            let rejoined = self.rejoin(watch, active).await;
            if let Some(reason) = self.note_reason(rejoined) {
                tracing::warn!(%reason, remedy = FILL_REMEDY, "the partner's leg of the log cannot be filled");
            }
        }
    }

    /// Keeps the reason of a failure for the status. Returns the reason, for an event, if it differs from the last one.
    fn note_reason(&self, done: Result<(), Arc<str>>) -> Option<Arc<str>> {
        let reason = done.err();
        let former = std::mem::replace(&mut self.known.lock().reason, reason.clone());
        reason.filter(|reason| former.as_ref() != Some(reason))
    }

    /// Stops serving the unit and stands by.
    async fn step_back(
        &self,
        watch: &mut PartnerWatch,
        active: &Active,
        at_rest: bool,
        reason: Option<Arc<str>>,
    ) {
        let withdrawn = self.surroundings.withdraw(at_rest).await;
        if let Err(error) = &withdrawn {
            tracing::error!(
                %error, remedy = CLOSED_REMEDY,
                "closing the unit has failed; all acknowledged writes are in its log"
            );
        }
        active.cache.abandon("the partner of this gateway serves the unit");
        if at_rest && active.mirror.alone().is_some() {
            // The partner's leg, lost while the cache was being stopped, lacks writes.
            tracing::warn!(
                remedy = HANDOVER_REMEDY,
                "the partner's leg of the log lacks writes, so the unit is not handed over"
            );
            watch.handed_over = false;
        }
        {
            let mut known = self.known.lock();
            (known.active, known.reason) = (None, reason);
        }
        // Lend the leg to the partner: calls of the old cache to its log fail from now on.
        self.half.lend().await;
        watch.idle = Instant::now();
        watch.rest_until = Instant::now() + REST;
    }

    /// Copies the log to the partner's leg, so that both legs hold all data again.
    async fn rejoin(&self, watch: &mut PartnerWatch, active: &Active) -> Result<(), Arc<str>> {
        let theirs = self.fresh(watch).await?;
        // Ask again before the leg is overwritten, even if no host has written since: the partner may have
        // taken over.
        if let Err(error @ Error::Fenced(_)) = active.cache.vouch().await {
            return Err(told(error));
        }
        // Read the label only after the node has answered: the answer may show that the partner has used its
        // leg alone.
        let label = Mirror::label_of(&theirs).await.map_err(told)?;
        active.cache.may_rejoin(label).map_err(Arc::<str>::from)?;
        active.cache.has_all_of(&theirs).await.map_err(Arc::<str>::from)?;
        active.cache.rejoin(1, theirs).await.map_err(told)
    }
}

/// Compares the last segments of both legs, provided that neither leg was used alone. A leg that was restored
/// from a backup must not be used. Returns the plan, or the reason why the log must not be opened here.
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
            "this leg of the log has segments up to {}, and the partner's leg up to {}: this one \
             was restored from a backup, or its NVRAM was lost; it is filled when the partner \
             serves the unit",
            ours.last, theirs.last
        )
        .into());
    }
    if theirs.is_behind(&ours) {
        tracing::warn!(
            ours = ours.last,
            theirs = theirs.last,
            "the partner's leg of the log was restored from a backup, or its NVRAM was lost: the \
             leg is filled again"
        );
        return Ok(PairOpeningPlan::Here);
    }
    Ok(plan)
}

fn told(error: impl std::fmt::Display) -> Arc<str> {
    error.to_string().into()
}

/// The pause between two attempts to take over, since each may write to the local leg.
const REST: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::future::ready;

    use volume::{
        Extent, FaultCallKind, FaultRule, FaultVolume, Geometry, Lba, MemVolume, Symptom,
    };

    use super::*;
    use crate::PairMemberAnswer;

    /// The context of a member in a test: the partner's leg, if there is one, and no unit to serve.
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

    /// Returns how a member sees a partner whose leg answers with `half`.
    async fn seen(half: Stack) -> PartnerObservation {
        let timing = PairTiming { dead_after: Duration::from_secs(3), is_first: false };
        let member = PairMember::new(LogLeg::new(disk()), Arc::new(Around(Some(half))), timing);
        let running = tokio::spawn(Arc::clone(&member).run()).abort_handle();
        sleep(Duration::from_millis(100)).await;
        running.abort();
        member.known.lock().seen
    }

    /// An error of the partner's disk or of the link must not count as "active": then the partner of a gateway
    /// with a broken disk would never take over.
    #[tokio::test(start_paused = true)]
    async fn a_partner_counts_as_active_only_if_its_own_answer_says_so() {
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

    /// While the node is unreachable, this gateway cannot continue alone. If it marked its leg as used alone
    /// all the same, the partner, which may have everything, would later refuse to fill this leg.
    #[tokio::test(start_paused = true)]
    async fn a_leg_is_not_marked_as_used_alone_while_the_node_is_unreachable() {
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
