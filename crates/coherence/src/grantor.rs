//! The node's state machine: which gateway holds a token for which range of one volume, which gateways wait, and
//! which are alive.
//!
//! Two rules matter. A *shared* token of a gateway that has sent nothing for a lease is granted to others: by its own
//! clock, the gateway has stopped using it by then. An *exclusive* token is never granted to others without a release
//! by the gateway or an order of the operator: the gateway's log may have acknowledged writes that exist nowhere
//! else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{
    message::{CoherenceReply, CoherenceRequest},
    token::{CoherenceRange, CoherenceToken, Grant, MOST_TOKENS, Millis},
};

/// A gateway that shares the volume; the node assigns the number.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SharingMember(pub u32);

/// The parameters of a volume that several gateways share.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Terms {
    /// Shared tokens of a gateway that has sent nothing for this time are granted to others. At least 8 ms.
    pub lease: Millis,
    /// Number of token ranges of the volume. Requests for higher range numbers are ignored.
    pub ranges: u32,
}

/// The state of a gateway that shares the volume, as the node's status report shows it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SharingMemberStatus {
    /// True if no message of the member has arrived for the time of a lease.
    pub is_silent: bool,
    /// True if the member held tokens before the node started and has not joined since. Until it joins, the node grants
    /// no tokens to any member.
    pub is_awaited: bool,
    /// Number of ranges for which the member holds a shared token.
    pub shared: usize,
    /// Number of ranges for which the member holds an exclusive token: the gateway may have data of these ranges that
    /// exists nowhere else.
    pub exclusive: usize,
    /// Number of this gateway's tokens for which other gateways are waiting.
    pub recalled: usize,
}

/// The node's state machine for one volume.
///
/// Bounds: a member holds and waits for at most twice [`MOST_TOKENS`] tokens together, so that it can request new
/// ones while it releases others. It waits for at most [`MOST_TOKENS`] of them, once for each range. Of the answers
/// that it does not fetch, the node keeps the newest Joined and Renewed, one Recall for each range, and
/// [`MOST_ANSWERS`] others.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Grantor {
    terms: Terms,
    members: BTreeMap<SharingMember, MemberState>,
    /// The ranges for which a token is held or requested.
    ranges: BTreeMap<CoherenceRange, RangeGrants>,
    /// Members from before the start of the node that have not joined since. Each may have dirty data of any range,
    /// so no token is granted until each of them has reported which tokens it holds.
    awaited: BTreeSet<SharingMember>,
    started: Millis,
    /// No token is granted before this time. A member that the node was waiting for was expelled, and may still read
    /// until then.
    quiet_until: Millis,
    next_grant: u64,
    next_life: u64,
    outboxes: BTreeMap<SharingMember, MemberOutbox>,
}

/// The answers that a member has not fetched, in the order in which they are sent.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
struct MemberOutbox {
    said: VecDeque<CoherenceReply>,
    recalls: BTreeMap<CoherenceRange, CoherenceReply>,
    renewed: Option<CoherenceReply>,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct MemberState {
    /// `None`: the member has not joined since its session began, or since the node was started.
    life: Option<u64>,
    /// The highest number of a Join message in this session of the gateway.
    joined: u64,
    last_message: Millis,
    /// True if the operator has expelled the member, and the member has not joined again. Messages of a new session
    /// then do not extend the time for which its tokens are valid.
    is_expelled: bool,
    tokens: usize,
    waits: usize,
}

#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
struct RangeGrants {
    /// The tokens that members hold for the range: one `ExclusiveWrite`, or any number of
    /// `SharedRead`.
    held: Vec<HeldToken>,
    /// Token requests that wait for this range, oldest first; at most one for each gateway.
    queue: VecDeque<QueuedTokenRequest>,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct HeldToken {
    member: SharingMember,
    token: CoherenceToken,
    grant: Grant,
    /// The number of the gateway's request that was answered with this token.
    number: u64,
    recall: Recall,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Recall {
    No,
    /// The member has to give up its exclusive token, and may keep a shared one.
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
    /// Returns the state machine of a node that has just started. `awaited` are the members that may have dirty data
    /// of the volume from before the start. Lives and grants are numbered from `first` on, which must be well above
    /// all numbers of earlier starts.
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

    #[must_use]
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// Notes that the volume has grown to this number of ranges. A smaller number than before is ignored.
    pub fn grow(&mut self, ranges: u32) {
        self.terms.ranges = self.terms.ranges.max(ranges);
    }

    /// Begins a new session of a member, which keeps its tokens. From now on, pass only messages of this session: the
    /// caller drops late messages of an earlier one.
    pub fn attach(&mut self, member: SharingMember, now: Millis) {
        let known = self.members.entry(member).or_insert(MemberState {
            life: None,
            joined: 0,
            last_message: now,
            is_expelled: false,
            tokens: 0,
            waits: 0,
        });
        known.joined = 0;
        if !known.is_expelled {
            known.last_message = now;
        }
        // Drop the queued answers for the gateway's earlier session: the gateway repeats its requests.
        self.outboxes.remove(&member);
    }

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
            // If the node does not know the member's life, ask it to join again. Ignore a request of an earlier life
            // than the present one.
            if known_life.is_none() {
                self.say(member, CoherenceReply::Rejoin { life });
            }
            return;
        }
        if life.is_some() {
            known.last_message = known.last_message.max(now);
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
                // A member may keep a shared token only if it still held this grant: the node may have granted the
                // range to another member in between.
                let keeps = self.release(member, range, grant, keeps, now) && keeps;
                self.say(member, CoherenceReply::Released { life, range, grant, keeps });
            }
            CoherenceRequest::Renew { life, sent } => {
                let renewed = &mut self.outboxes.entry(member).or_default().renewed;
                // Repeat the recalls once for each fetched Renewed. If the member has not fetched the earlier
                // Renewed, the recalls that were repeated with it are still in the outbox.
                if renewed.replace(CoherenceReply::Renewed { life, sent }).is_none() {
                    self.recall_again(member, life);
                }
            }
        }
    }

    /// Grants waiting gateways the tokens whose holders have lost them because a lease or the quiet time has ended.
    pub fn handle_timeout(&mut self, now: Millis) {
        let waited: Vec<_> = self.waited().collect();
        waited.into_iter().for_each(|range| self.advance(range, now));
    }

    /// Removes and returns the next answer, and the gateway to which it has to be sent.
    pub fn poll_answer(&mut self) -> Option<(SharingMember, CoherenceReply)> {
        let mut outboxes = self.outboxes.iter_mut();
        outboxes.find_map(|(to, outbox)| Some((*to, outbox.pop()?)))
    }

    /// Returns the answers that a member has not fetched.
    pub fn answers(&self, member: SharingMember) -> impl Iterator<Item = &CoherenceReply> {
        self.outboxes.get(&member).into_iter().flat_map(MemberOutbox::iter)
    }

    /// Removes the first `count` of [`Grantor::answers`], which the caller has sent to the member.
    pub fn told(&mut self, member: SharingMember, count: usize) {
        if let Some(outbox) = self.outboxes.get_mut(&member) {
            (0..count).for_each(|_| drop(outbox.pop()));
        }
    }

    /// Returns true if a member may change a range now, in its present session.
    ///
    /// The caller must drop writes of an earlier session. While a write of the member is in progress, the caller must
    /// hold back `Release` and `Join` of the member for these blocks, and must not call [`Grantor::remove`] or
    /// [`Grantor::expel`].
    #[must_use]
    pub fn may_write(&self, member: SharingMember, range: CoherenceRange) -> bool {
        self.held(member, range).is_some_and(|held| held.token == CoherenceToken::ExclusiveWrite)
    }

    /// Returns true if a member has joined since the node started, and has thereby reported which tokens it holds.
    #[must_use]
    pub fn is_joined(&self, member: SharingMember) -> bool {
        self.members.get(&member).is_some_and(|known| known.life.is_some())
    }

    /// Removes a member that has left and holds no tokens any more.
    pub fn remove(&mut self, member: SharingMember, now: Millis) {
        self.members.remove(&member);
        self.awaited.remove(&member);
        self.outboxes.remove(&member);
        self.give_up_all(member, &BTreeSet::new(), now);
        self.handle_timeout(now);
    }

    /// Takes all tokens from a member, by order of the operator. Its writes are refused from now on. Its tokens are
    /// granted to others when nothing was received from it for a lease, or when it has joined again, because its
    /// reads have ended by then. While the member cannot reach the node, it continues to use its exclusive tokens:
    /// its hosts may read outdated data, and their writes are acknowledged and then lost. The member learns of the
    /// expulsion in its next session.
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

    #[must_use]
    pub fn standing(&self, member: SharingMember, now: Millis) -> SharingMemberStatus {
        let held = self.ranges.values().flat_map(|tokens| &tokens.held);
        let held: Vec<_> = held.filter(|held| held.member == member).collect();
        let of = |token| held.iter().filter(|held| held.token == token).count();
        SharingMemberStatus {
            is_silent: !self.is_responsive(member, now),
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
        known.last_message = known.last_message.max(now);
        known.is_expelled = false;
        // A Join begins a new life of the member: drop the answers to its earlier life.
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
            // The node was waiting for this member, and has granted no token since its start. The member's own list
            // therefore decides which tokens it holds.
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
            // The member asks again for a token that it holds already, or has a greater one. The answer may have been
            // lost, so send it again.
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

    /// Processes the release of a token. Returns true if the gateway held this grant.
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
            // If other members by now need a complete release, `advance` recalls the shared token, too.
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

    /// Grants a range to the waiting members, as far as possible, and recalls the tokens that block the first one.
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
                held.token == CoherenceToken::SharedRead && !self.is_responsive(held.member, now)
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

    /// Sends again the recalls of a member whose tokens were not released: the first ones may have been lost.
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

    /// Takes all tokens from a member except those for the ranges in `kept`, and removes its waiting requests.
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

    /// Queues an answer. If the member does not fetch its answers, the oldest one is dropped: the member repeats its
    /// request.
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

    fn is_responsive(&self, member: SharingMember, now: Millis) -> bool {
        let is_recent =
            |known: &MemberState| now < known.last_message.saturating_add(self.terms.lease);
        self.members.get(&member).is_some_and(is_recent)
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

/// Maximum number of answers that wait for a member to fetch them, besides Renewed and Recall: a grant and a release
/// of each token that it may hold and request.
const MOST_ANSWERS: usize = 4 * MOST_TOKENS;
