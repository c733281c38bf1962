//! The node's machine: who has which ranges of one volume, who waits for them, who is still there.
//!
//! Two rules carry it. A *shared* token of a gateway that was silent for a lease is given on: the
//! gateway has stopped using it by then, by its own clock. An *exclusive* one is never given on without
//! the gateway, or the operator: its log may have acknowledged writes that nobody else has.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{
    message::{CoherenceReply, CoherenceRequest},
    token::{CoherenceRange, CoherenceToken, Grant, MOST_TOKENS, Millis},
};

/// A gateway, as the node numbers them.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SharingMember(pub u32);

/// What holds for a shared volume as a whole.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Terms {
    /// After so long without a word a gateway's shared tokens are given on. At least 8.
    pub lease: Millis,
    /// Ranges that the volume has; others are asked for in vain.
    pub ranges: u32,
}

/// How a member stands, for people.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SharingMemberStatus {
    /// Nothing was heard of it for a lease.
    pub is_silent: bool,
    /// It has not joined since the node started: until then nobody is granted anything.
    pub is_awaited: bool,
    /// Ranges that it has for reading.
    pub shared: usize,
    /// Ranges that it has for writing: it may have data of them that nobody else has.
    pub exclusive: usize,
    /// Ranges of which others wait for it.
    pub recalled: usize,
}

/// The node's machine for one volume.
///
/// Bounds: a member has and waits for at most twice [`MOST_TOKENS`] tokens, so that it can ask for others
/// while it gives some back, and waits for at most [`MOST_TOKENS`], once each. Of what it does not fetch it is
/// kept the newest Joined and Renewed, one Recall for each range, and [`MOST_ANSWERS`] others.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Grantor {
    terms: Terms,
    members: BTreeMap<SharingMember, MemberState>,
    /// Those that have tokens or wait for some.
    ranges: BTreeMap<CoherenceRange, RangeGrants>,
    /// Members of before the node started. Each may have dirty data of any range: nothing is granted
    /// until all have said what they have.
    awaited: BTreeSet<SharingMember>,
    started: Millis,
    /// Nothing is granted before: who was awaited and expelled may read until then.
    quiet_until: Millis,
    next_grant: u64,
    next_life: u64,
    outboxes: BTreeMap<SharingMember, MemberOutbox>,
}

/// What a member has not been told yet, in this order.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
struct MemberOutbox {
    said: VecDeque<CoherenceReply>,
    recalls: BTreeMap<CoherenceRange, CoherenceReply>,
    renewed: Option<CoherenceReply>,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct MemberState {
    /// `None`: it has not joined since its session began, or the node did.
    life: Option<u64>,
    /// The highest number that it has joined with in this session.
    joined: u64,
    /// When it was heard of last.
    heard: Millis,
    /// Until it joins again: that it comes back makes what it had last no longer.
    is_expelled: bool,
    tokens: usize,
    waits: usize,
}

#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
struct RangeGrants {
    /// One `ExclusiveWrite`, or any number of `SharedRead`.
    held: Vec<HeldToken>,
    /// The oldest first; of each member one.
    queue: VecDeque<QueuedTokenRequest>,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct HeldToken {
    member: SharingMember,
    token: CoherenceToken,
    grant: Grant,
    /// The number it was asked with.
    number: u64,
    recall: Recall,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Recall {
    No,
    /// For reading it may be kept.
    Lessened,
    Whole,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct QueuedTokenRequest {
    member: SharingMember,
    token: CoherenceToken,
    number: u64,
}

impl Grantor {
    /// A node that has just started. `awaited`: who may have dirty data of the volume from before.
    /// Lives and grants are numbered from `first` on, which is near no number of an earlier start.
    #[must_use]
    pub fn new(
        terms: Terms,
        first: u64,
        awaited: impl IntoIterator<Item = SharingMember>,
        now: Millis,
    ) -> Self {
        Self {
            started: now,
            quiet_until: now,
            terms,
            members: BTreeMap::new(),
            ranges: BTreeMap::new(),
            awaited: awaited.into_iter().collect(),
            next_grant: first,
            next_life: first,
            outboxes: BTreeMap::new(),
        }
    }

    /// What holds for the volume.
    #[must_use]
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// The volume has become larger: this many ranges from now on. Fewer than before change nothing.
    pub fn grow(&mut self, ranges: u32) {
        self.terms.ranges = self.terms.ranges.max(ranges);
    }

    /// A member's session begins: what it says from now on comes in this one, and what was said in its
    /// last one must not come here any more. Its tokens stay.
    pub fn attach(&mut self, member: SharingMember, now: Millis) {
        let known = self.members.entry(member).or_insert(MemberState {
            life: None,
            joined: 0,
            heard: now,
            is_expelled: false,
            tokens: 0,
            waits: 0,
        });
        known.joined = 0;
        if !known.is_expelled {
            known.heard = now;
        }
        // What was on its way to the last session may be lost.
        self.outboxes.remove(&member);
    }

    /// A member has said something.
    pub fn handle(&mut self, member: SharingMember, request: CoherenceRequest, now: Millis) {
        let Some(known) = self.members.get_mut(&member) else { return };
        let (life, known_life) = match &request {
            CoherenceRequest::Join { .. } => (None, known.life),
            CoherenceRequest::Acquire { life, .. }
            | CoherenceRequest::Release { life, .. }
            | CoherenceRequest::Renew { life, .. } => (Some(*life), known.life),
        };
        if let Some(life) = life
            && known_life != Some(life)
        {
            // An earlier one of a member that goes on here: what it asked then counts for nothing.
            if known_life.is_none() {
                self.say(member, CoherenceReply::Rejoin { life });
            }
            return;
        }
        if life.is_some() {
            known.heard = known.heard.max(now);
        }
        match request {
            CoherenceRequest::Join { number, exclusive } => {
                self.join(member, number, &exclusive, now)
            }
            CoherenceRequest::Acquire { life, range, token, number } => {
                self.acquire(
                    member,
                    life,
                    range,
                    QueuedTokenRequest { member, token, number },
                    now,
                );
            }
            CoherenceRequest::Release { life, range, grant, keeps } => {
                // Of what was given on meanwhile nothing is kept.
                let keeps = self.release(member, range, grant, keeps, now) && keeps;
                self.say(member, CoherenceReply::Released { life, range, grant, keeps });
            }
            CoherenceRequest::Renew { life, sent } => {
                let renewed = &mut self.outboxes.entry(member).or_default().renewed;
                // What was recalled again with one that it has not fetched is there still.
                if renewed.replace(CoherenceReply::Renewed { life, sent }).is_none() {
                    self.recall_again(member, life);
                }
            }
        }
    }

    /// Time has passed: what is waited for may be free now.
    pub fn handle_timeout(&mut self, now: Millis) {
        let waited: Vec<_> = self.waited().collect();
        waited.into_iter().for_each(|range| self.advance(range, now));
    }

    /// The next answer, and whom it is for.
    pub fn poll_answer(&mut self) -> Option<(SharingMember, CoherenceReply)> {
        let mut outboxes = self.outboxes.iter_mut();
        outboxes.find_map(|(to, outbox)| Some((*to, outbox.pop()?)))
    }

    /// What a member has not been told yet.
    pub fn answers(&self, member: SharingMember) -> impl Iterator<Item = &CoherenceReply> {
        self.outboxes.get(&member).into_iter().flat_map(MemberOutbox::iter)
    }

    /// The first so many of [`Grantor::answers`] have been told.
    pub fn told(&mut self, member: SharingMember, count: usize) {
        if let Some(outbox) = self.outboxes.get_mut(&member) {
            (0..count).for_each(|_| drop(outbox.pop()));
        }
    }

    /// Whether a member may change a range now. Of its present session only: the caller takes nothing of an
    /// earlier one, asks while it holds up `Release` and `Join` of the member for these blocks, and calls
    /// [`Grantor::remove`] and [`Grantor::expel`] when no write of the member is under way.
    #[must_use]
    pub fn may_write(&self, member: SharingMember, range: CoherenceRange) -> bool {
        self.held(member, range).is_some_and(|held| held.token == CoherenceToken::ExclusiveWrite)
    }

    /// Whether a member has said what it has, since the node started.
    #[must_use]
    pub fn is_joined(&self, member: SharingMember) -> bool {
        self.members.get(&member).is_some_and(|known| known.life.is_some())
    }

    /// A member has gone, and has nothing any more.
    pub fn remove(&mut self, member: SharingMember, now: Millis) {
        self.members.remove(&member);
        self.awaited.remove(&member);
        self.outboxes.remove(&member);
        self.give_up_all(member, &BTreeSet::new(), now);
        self.handle_timeout(now);
    }

    /// The operator takes everything from a member, whatever it has. Nothing that it writes is taken from now
    /// on; what it had is given on when nothing was heard of it for a lease, or it has joined again, which
    /// ends what it reads. What it has for writing it goes on using while it is cut off: its hosts read there what others may
    /// have changed since, and what they write is acknowledged and lost. It hears of it with its next session.
    pub fn expel(&mut self, member: SharingMember, now: Millis) {
        if self.awaited.remove(&member) {
            self.quiet_until = self.started.saturating_add(self.terms.lease);
        }
        if let Some(known) = self.members.get_mut(&member) {
            (known.life, known.waits, known.is_expelled) = (None, 0, true);
        }
        self.outboxes.remove(&member);
        for tokens in self.ranges.values_mut() {
            tokens.queue.retain(|wanted| wanted.member != member);
            let its = tokens.held.iter_mut().filter(|held| held.member == member);
            its.for_each(|held| held.token = CoherenceToken::SharedRead);
        }
        self.handle_timeout(now);
    }

    /// How a member stands.
    #[must_use]
    pub fn standing(&self, member: SharingMember, now: Millis) -> SharingMemberStatus {
        let held = self.ranges.values().flat_map(|tokens| &tokens.held);
        let held: Vec<_> = held.filter(|held| held.member == member).collect();
        let of = |token| held.iter().filter(|held| held.token == token).count();
        SharingMemberStatus {
            is_silent: !self.is_heard(member, now),
            is_awaited: self.awaited.contains(&member),
            shared: of(CoherenceToken::SharedRead),
            exclusive: of(CoherenceToken::ExclusiveWrite),
            recalled: held.iter().filter(|held| held.recall != Recall::No).count(),
        }
    }

    fn join(&mut self, member: SharingMember, number: u64, named: &[CoherenceRange], now: Millis) {
        let known = self.members.get_mut(&member).expect("it was looked up before");
        if number <= known.joined {
            return;
        }
        known.joined = number;
        known.heard = known.heard.max(now);
        known.is_expelled = false;
        // Of an earlier life nothing is told any more.
        self.outboxes.remove(&member);
        let life = self.next_life;
        self.next_life += 1;
        known.life = Some(life);
        let was_awaited = self.awaited.remove(&member);
        let (mut grants, mut lost) = (Vec::new(), Vec::new());
        let mut kept = BTreeSet::new();
        for range in named.iter().take(2 * MOST_TOKENS) {
            if !kept.insert(*range) {
                continue;
            }
            // Who joins for the first time since the start has the word: nobody was granted anything
            // before.
            if was_awaited && range.0 < self.terms.ranges {
                let held = &mut self.ranges.entry(*range).or_default().held;
                if held.is_empty() {
                    let grant = Grant(0);
                    let token = CoherenceToken::ExclusiveWrite;
                    held.push(HeldToken { member, token, grant, number: 0, recall: Recall::No });
                    self.members.get_mut(&member).expect("as above").tokens += 1;
                }
            }
            let grant = Grant(self.next_grant);
            let tokens = self.ranges.get_mut(range);
            let held = tokens.and_then(|tokens| tokens.writer_mut(member));
            match held {
                Some(held) => {
                    (held.grant, held.number, held.recall) = (grant, 0, Recall::No);
                    self.next_grant += 1;
                    grants.push((*range, grant));
                }
                None => {
                    kept.remove(range);
                    lost.push(*range);
                }
            }
        }
        self.say(member, CoherenceReply::Joined { number, life, grants, lost });
        self.give_up_all(member, &kept, now);
        self.handle_timeout(now);
    }

    fn acquire(
        &mut self,
        member: SharingMember,
        life: u64,
        range: CoherenceRange,
        wanted: QueuedTokenRequest,
        now: Millis,
    ) {
        if range.0 >= self.terms.ranges {
            return;
        }
        if let Some(held) = self.held(member, range)
            && held.token >= wanted.token
        {
            // The grant was lost on its way; or what it has is enough.
            let HeldToken { token, grant, .. } = *held;
            let number = wanted.number;
            self.say(member, CoherenceReply::Granted { life, range, token, number, grant });
            return;
        }
        let known = self.members.get_mut(&member).expect("it was looked up before");
        let tokens = self.ranges.entry(range).or_default();
        match tokens.queue.iter_mut().find(|waiting| waiting.member == member) {
            Some(waiting) => {
                waiting.number = wanted.number;
                waiting.token = waiting.token.max(wanted.token);
            }
            None if known.waits >= MOST_TOKENS || known.tokens + known.waits >= 2 * MOST_TOKENS => {
                self.forget_if_free(range);
                return;
            }
            None => {
                known.waits += 1;
                tokens.queue.push_back(wanted);
            }
        }
        self.advance(range, now);
    }

    /// Whether the member had that grant.
    fn release(
        &mut self,
        member: SharingMember,
        range: CoherenceRange,
        grant: Grant,
        keeps: bool,
        now: Millis,
    ) -> bool {
        let Some(tokens) = self.ranges.get_mut(&range) else { return false };
        let is_it = |held: &&mut HeldToken| held.member == member && held.grant == grant;
        let Some(held) = tokens.held.iter_mut().find(is_it) else { return false };
        if keeps {
            // Should more be recalled by now, that is said again.
            (held.token, held.recall) = (CoherenceToken::SharedRead, Recall::No);
        } else {
            tokens.held.retain(|held| (held.member, held.grant) != (member, grant));
            if let Some(known) = self.members.get_mut(&member) {
                known.tokens -= 1;
            }
        }
        self.advance(range, now);
        true
    }

    /// Grants what can be granted of a range, and recalls what is in the way of the first that waits.
    fn advance(&mut self, range: CoherenceRange, now: Millis) {
        if !self.awaited.is_empty() || now < self.quiet_until {
            return;
        }
        while let Some(tokens) = self.ranges.get(&range)
            && let Some(&wanted) = tokens.queue.front()
        {
            let in_the_way = |held: &HeldToken| {
                held.member != wanted.member
                    && (held.token == CoherenceToken::ExclusiveWrite
                        || wanted.token == CoherenceToken::ExclusiveWrite)
            };
            let others = tokens.held.iter().copied().filter(in_the_way);
            let (gone, there): (Vec<_>, Vec<_>) = others.partition(|held| {
                held.token == CoherenceToken::SharedRead && !self.is_heard(held.member, now)
            });
            for held in gone {
                self.take(range, held);
            }
            if !there.is_empty() {
                there.into_iter().for_each(|held| self.recall(range, held, wanted.token));
                return;
            }
            self.grant(range, wanted);
        }
        self.forget_if_free(range);
    }

    fn grant(&mut self, range: CoherenceRange, wanted: QueuedTokenRequest) {
        let QueuedTokenRequest { member, token, number } = wanted;
        let grant = Grant(self.next_grant);
        self.next_grant += 1;
        let tokens = self.ranges.get_mut(&range).expect("somebody waits for it");
        tokens.queue.pop_front();
        let had = tokens.held.iter().position(|held| held.member == member);
        if let Some(at) = had {
            tokens.held.remove(at);
        }
        tokens.held.push(HeldToken { member, token, grant, number, recall: Recall::No });
        let known = self.members.get_mut(&member).expect("who waits is a member");
        known.waits -= 1;
        known.tokens += usize::from(had.is_none());
        if let Some(life) = known.life {
            self.say(member, CoherenceReply::Granted { life, range, token, number, grant });
        }
    }

    fn recall(&mut self, range: CoherenceRange, held: HeldToken, wanted: CoherenceToken) {
        let recall = match wanted {
            CoherenceToken::SharedRead => Recall::Lessened,
            CoherenceToken::ExclusiveWrite => Recall::Whole,
        };
        let tokens = self.ranges.get_mut(&range).expect("it is held");
        let held = tokens.held.iter_mut().find(|other| other.grant == held.grant);
        let held = held.expect("it is held");
        if held.recall == recall || held.recall == Recall::Whole {
            return;
        }
        held.recall = recall;
        let (member, grant, keeps) = (held.member, held.grant, recall == Recall::Lessened);
        if let Some(life) = self.members.get(&member).and_then(|known| known.life) {
            let recalls = &mut self.outboxes.entry(member).or_default().recalls;
            recalls.insert(range, CoherenceReply::Recall { life, range, grant, keeps });
        }
    }

    /// What is recalled of a member and was not given back yet: the recall may have been lost.
    fn recall_again(&mut self, member: SharingMember, life: u64) {
        let recalls = &mut self.outboxes.entry(member).or_default().recalls;
        for (&range, tokens) in &self.ranges {
            let Some(held) = tokens.held.iter().find(|held| held.member == member) else {
                continue;
            };
            let keeps = match held.recall {
                Recall::No => continue,
                Recall::Lessened => true,
                Recall::Whole => false,
            };
            let recall = CoherenceReply::Recall { life, range, grant: held.grant, keeps };
            recalls.insert(range, recall);
        }
    }

    /// Takes everything from a member but these ranges; it waits for nothing any more.
    fn give_up_all(&mut self, member: SharingMember, kept: &BTreeSet<CoherenceRange>, now: Millis) {
        let mut freed = Vec::new();
        for (range, tokens) in &mut self.ranges {
            let before = (tokens.held.len(), tokens.queue.len());
            tokens.held.retain(|held| held.member != member || kept.contains(range));
            tokens.queue.retain(|wanted| wanted.member != member);
            if before != (tokens.held.len(), tokens.queue.len()) {
                freed.push(*range);
            }
        }
        if let Some(known) = self.members.get_mut(&member) {
            (known.tokens, known.waits) = (kept.len(), 0);
        }
        freed.into_iter().for_each(|range| self.advance(range, now));
    }

    fn take(&mut self, range: CoherenceRange, held: HeldToken) {
        let tokens = self.ranges.get_mut(&range).expect("it is held");
        tokens.held.retain(|other| other.grant != held.grant);
        if let Some(known) = self.members.get_mut(&held.member) {
            known.tokens -= 1;
        }
    }

    /// What it does not fetch is lost, the oldest first: it asks again.
    fn say(&mut self, member: SharingMember, answer: CoherenceReply) {
        let said = &mut self.outboxes.entry(member).or_default().said;
        if said.len() >= MOST_ANSWERS {
            said.pop_front();
        }
        said.push_back(answer);
    }

    fn forget_if_free(&mut self, range: CoherenceRange) {
        let is_free = |tokens: &RangeGrants| tokens.held.is_empty() && tokens.queue.is_empty();
        if self.ranges.get(&range).is_some_and(is_free) {
            self.ranges.remove(&range);
        }
    }

    fn held(&self, member: SharingMember, range: CoherenceRange) -> Option<&HeldToken> {
        self.ranges.get(&range)?.held.iter().find(|held| held.member == member)
    }

    fn is_heard(&self, member: SharingMember, now: Millis) -> bool {
        let heard = |known: &MemberState| now < known.heard.saturating_add(self.terms.lease);
        self.members.get(&member).is_some_and(heard)
    }

    fn waited(&self) -> impl Iterator<Item = CoherenceRange> {
        let ranges = self.ranges.iter();
        ranges.filter(|(_, tokens)| !tokens.queue.is_empty()).map(|(range, _)| *range)
    }
}

impl MemberOutbox {
    fn iter(&self) -> impl Iterator<Item = &CoherenceReply> {
        self.said.iter().chain(self.recalls.values()).chain(&self.renewed)
    }

    fn pop(&mut self) -> Option<CoherenceReply> {
        let next = self.said.pop_front();
        let next = next.or_else(|| Some(self.recalls.pop_first()?.1));
        next.or_else(|| self.renewed.take())
    }
}

impl RangeGrants {
    fn writer_mut(&mut self, member: SharingMember) -> Option<&mut HeldToken> {
        let is_it = |held: &&mut HeldToken| {
            held.member == member && held.token == CoherenceToken::ExclusiveWrite
        };
        self.held.iter_mut().find(is_it)
    }
}

/// Answers that a member has not fetched, but for renewals and recalls: a grant and a release of all that it
/// may have and wait for.
const MOST_ANSWERS: usize = 4 * MOST_TOKENS;
