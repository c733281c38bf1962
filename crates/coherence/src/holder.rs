//! The gateway's state machine: which ranges it may use, what it requests, and what it has to release.
//!
//! A token is kept after its last use until another gateway wants it (local consistency, lazy release). Then new uses
//! wait, uses in progress end, dirty data is destaged, cached data that may not be kept is dropped, and the token is
//! released.
//!
//! Shared tokens end with the lease. This machine measures the lease by its own clock, from the moment when it *sent*
//! the last renewal that was answered. Exclusive tokens do not end with the lease, because the node does not grant them
//! to others (see `grantor`): a lost link does not stop a writer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{
    holder_lease::HolderLease,
    holder_range_state::{
        Cleaning, CoherenceReleaseStep, CoherenceTicket, HolderRangeState, UNCONFIRMED,
    },
    message::{CoherenceReply, CoherenceRequest},
    token::{CoherenceRange, CoherenceToken, Grant, MOST_TOKENS, Millis},
};

/// The result of [`Holder::begin`]: whether the read or write may use the range at once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Begin {
    /// The use of the range has begun: the gateway holds a sufficient token.
    Now,
    /// The use of the range waits for a token, and begins when [`Holder::poll_begun`] returns this ticket.
    Waits(CoherenceTicket),
}

/// A gateway's state machine for one volume.
///
/// After each call that is not a getter, call `poll_request`, `poll_begun` and `poll_cleaning` until they return
/// nothing, and `handle_timeout` at the time that `poll_timeout` returns.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Holder {
    lease: HolderLease,
    standing: HolderMembership,
    /// The number of the last [`CoherenceRequest::Join`] that this gateway has sent to the node.
    join: u64,
    join_sent: Millis,
    renewed: Millis,
    ranges: BTreeMap<CoherenceRange, HolderRangeState>,
    next: u64,
    requests: VecDeque<CoherenceRequest>,
    begun: VecDeque<CoherenceTicket>,
    cleaning: VecDeque<Cleaning>,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
enum HolderMembership {
    /// The gateway must join the sharing again. Before that, it releases the ranges that it holds for reading.
    Leaving,
    Joining,
    Joined {
        life: u64,
    },
    /// The node has no grant for a range of which this gateway has dirty data: the operator has expelled this gateway,
    /// or the node was restored. Other gateways may hold the range, so the data may neither be used nor destaged.
    Lost {
        range: CoherenceRange,
    },
}

impl Holder {
    /// Returns the state machine of a gateway that starts. It requests to join at once. `dirty` are the ranges of which
    /// the gateway's log may have data that was not destaged.
    #[must_use]
    pub fn new(
        lease: Millis,
        dirty: impl IntoIterator<Item = CoherenceRange>,
        now: Millis,
    ) -> Self {
        let mut holder = Self {
            lease: HolderLease::new(lease, now),
            standing: HolderMembership::Leaving,
            join: 0,
            join_sent: now,
            renewed: now,
            ranges: BTreeMap::new(),
            next: 0,
            requests: VecDeque::new(),
            begun: VecDeque::new(),
            cleaning: VecDeque::new(),
        };
        for range in dirty {
            let part = holder.ranges.entry(range).or_insert_with(|| HolderRangeState::new(now));
            part.held = Some((CoherenceToken::ExclusiveWrite, UNCONFIRMED));
        }
        holder.join_if_ready(now);
        holder
    }

    /// Begins a read or write of a range under its token. The caller ends the use with [`Holder::end`].
    pub fn begin(&mut self, range: CoherenceRange, token: CoherenceToken, now: Millis) -> Begin {
        self.expire(now);
        let is_known = self.ranges.contains_key(&range);
        let part = self.ranges.entry(range).or_insert_with(|| HolderRangeState::new(now));
        part.used = now;
        // Do not overtake earlier reads or writes that are waiting for the same range.
        let may_use = part.may_use(token) && part.waiting.is_empty();
        if may_use && !matches!(self.standing, HolderMembership::Lost { .. }) {
            part.uses += 1;
            return Begin::Now;
        }
        self.next += 1;
        let ticket = CoherenceTicket(self.next);
        part.waiting.push_back((ticket, token));
        self.go_on(range, now);
        if !is_known && self.ranges.len() > MOST_TOKENS {
            self.give_back_oldest(now);
        }
        Begin::Waits(ticket)
    }

    /// Ends the use of a range which [`Holder::begin`] or [`Holder::poll_begun`] has begun.
    pub fn end(&mut self, range: CoherenceRange, now: Millis) {
        let Some(part) = self.ranges.get_mut(&range) else { return };
        part.uses = part.uses.saturating_sub(1);
        part.used = now;
        self.go_on(range, now);
    }

    /// Cancels a use that waits for the token of a range, or ends it if it has begun meanwhile.
    pub fn cancel(&mut self, range: CoherenceRange, ticket: CoherenceTicket, now: Millis) {
        let Some(part) = self.ranges.get_mut(&range) else { return };
        let before = part.waiting.len();
        part.waiting.retain(|(waits, _)| *waits != ticket);
        if part.waiting.len() == before {
            self.begun.retain(|begun| *begun != ticket);
            self.end(range, now);
        } else {
            self.go_on(range, now);
        }
    }

    /// Tells the state machine that the caller has finished the cleaning that [`Holder::poll_cleaning`] returned.
    pub fn cleaned(&mut self, range: CoherenceRange, now: Millis) {
        let Some(part) = self.ranges.get_mut(&range) else { return };
        let CoherenceReleaseStep::Cleaning { keeps } = part.stop else { return };
        let Some((_, grant)) = part.held else { return };
        part.stop = CoherenceReleaseStep::Releasing { keeps };
        match self.standing {
            HolderMembership::Joined { life } => {
                self.requests.push_back(CoherenceRequest::Release { life, range, grant, keeps });
            }
            // A clean range needs no message: the next Join does not name it, and thereby releases it.
            HolderMembership::Leaving
            | HolderMembership::Joining
            | HolderMembership::Lost { .. } => {
                self.let_go(range, now);
                self.join_if_ready(now);
            }
        }
    }

    pub fn handle(&mut self, answer: CoherenceReply, now: Millis) {
        self.expire(now);
        if let CoherenceReply::Joined { number, life, grants, lost } = answer {
            return self.joined(number, life, &grants, &lost, now);
        }
        let HolderMembership::Joined { life: ours } = self.standing else { return };
        match answer {
            CoherenceReply::Granted { life, range, token, number, grant } if life == ours => {
                self.granted(range, token, number, grant, now);
            }
            CoherenceReply::Recall { life, range, grant, keeps } if life == ours => {
                self.recalled(range, grant, keeps, now);
            }
            CoherenceReply::Released { life, range, grant, keeps } if life == ours => {
                self.released(range, grant, keeps, now);
            }
            CoherenceReply::Renewed { life, sent } if life == ours => {
                self.extend(sent, now);
            }
            CoherenceReply::Rejoin { life } if life == ours => self.leave(now),
            _ => {}
        }
    }

    /// Begins a new session with the node. Messages of the last session may be lost, so requests are sent again.
    pub fn handle_reconnected(&mut self, now: Millis) {
        self.expire(now);
        self.requests.clear();
        self.ask_again(now);
    }

    /// Performs all work that is due at the time `now`. See [`Holder::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Millis) {
        self.expire(now);
        if now < self.poll_timeout() {
            return;
        }
        self.ask_again(now);
        self.give_back_idle(now);
    }

    /// Returns the latest time for the next call of [`Holder::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Millis {
        self.renewed.saturating_add(self.lease.length() / 4)
    }

    /// Returns the next message to the node.
    pub fn poll_request(&mut self) -> Option<CoherenceRequest> {
        self.requests.pop_front()
    }

    /// Returns the ticket of a use that was waiting for a token and may begin now.
    pub fn poll_begun(&mut self) -> Option<CoherenceTicket> {
        self.begun.pop_front()
    }

    /// Returns the next range that the caller must clean before the range is released.
    pub fn poll_cleaning(&mut self) -> Option<Cleaning> {
        self.cleaning.pop_front()
    }

    /// Returns a range whose dirty data is lost, since the node no longer grants it. No range may be used from then on.
    #[must_use]
    pub fn lost(&self) -> Option<CoherenceRange> {
        match self.standing {
            HolderMembership::Lost { range } => Some(range),
            _ => None,
        }
    }

    /// Returns true if the gateway has joined at the node.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        matches!(self.standing, HolderMembership::Joined { .. })
    }

    /// Returns true if the lease is valid at the time `now`, so that shared tokens may be used.
    #[must_use]
    pub fn is_leased(&self, now: Millis) -> bool {
        self.lease.is_valid(now)
    }

    /// Returns the number of ranges that are held for reading and for writing.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        let held = self.ranges.values().filter_map(|part| part.held);
        held.fold((0, 0), |(shared, exclusive), (token, _)| match token {
            CoherenceToken::SharedRead => (shared + 1, exclusive),
            CoherenceToken::ExclusiveWrite => (shared, exclusive + 1),
        })
    }

    /// Returns the token under which a range may be used at once, without asking the node.
    #[must_use]
    pub fn usable(&self, range: CoherenceRange, now: Millis) -> Option<CoherenceToken> {
        let part = self.ranges.get(&range)?;
        let (token, _) = part.held.filter(|(token, _)| part.may_use(*token))?;
        let is_good = self.lost().is_none()
            && (token == CoherenceToken::ExclusiveWrite || self.is_leased(now) && self.is_joined());
        is_good.then_some(token)
    }

    /// Extends the lease after the answer to a message that was sent at `sent`.
    fn extend(&mut self, sent: Millis, now: Millis) {
        if self.lease.extend(sent, now) {
            self.begin_lease(now);
            let waited = self.ranges.iter().filter(|(_, part)| !part.waiting.is_empty());
            let waited: Vec<_> = waited.map(|(range, _)| *range).collect();
            waited.into_iter().for_each(|range| self.go_on(range, now));
        }
    }

    /// Begins a new lease after a time without one. Meanwhile the node may have granted the shared tokens of this
    /// gateway to others. An answer to an earlier request may carry such a token, so it is not accepted.
    fn begin_lease(&mut self, now: Millis) {
        self.renumber_reads();
        let (mut asked, mut kept) = (Vec::new(), Vec::new());
        for (&range, part) in &mut self.ranges {
            if matches!(part.wanted, Some((CoherenceToken::SharedRead, _))) {
                asked.push(range);
            }
            // The cached data of this clean range may be outdated now: drop it, and release the range.
            if let (CoherenceReleaseStep::Releasing { keeps: true }, Some((_, grant))) =
                (part.stop, part.held)
            {
                part.held = Some((CoherenceToken::SharedRead, grant));
                part.stop = CoherenceReleaseStep::Ending { keeps: false };
                kept.push(range);
            }
        }
        asked.into_iter().for_each(|range| self.acquire_again(range));
        kept.into_iter().for_each(|range| self.go_on(range, now));
    }

    /// Gives requests for shared tokens new numbers, so that grants in answer to the old numbers are ignored.
    fn renumber_reads(&mut self) {
        for part in self.ranges.values_mut() {
            if let Some((CoherenceToken::SharedRead, number)) = &mut part.wanted {
                self.next += 1;
                *number = self.next;
            }
        }
    }

    /// Stops all reading if a lease has ended since the last check, even if a new one has begun: the node may have
    /// granted the ranges to others in between.
    fn expire(&mut self, now: Millis) {
        if self.lease.has_ended(now) {
            self.stop_reading(now);
        }
    }

    fn stop_reading(&mut self, now: Millis) {
        // Ignore a grant that arrives late: the node may have granted the range to others since.
        self.renumber_reads();
        let is_read =
            |part: &HolderRangeState| matches!(part.held, Some((CoherenceToken::SharedRead, _)));
        let keeps = |stop| {
            matches!(stop, CoherenceReleaseStep::No | CoherenceReleaseStep::Ending { keeps: true })
        };
        let read = self.ranges.iter().filter(|(_, part)| is_read(part) && keeps(part.stop));
        let read: Vec<_> = read.map(|(range, _)| *range).collect();
        read.into_iter().for_each(|range| self.stop(range, false, now));
    }

    /// Prepares a new Join after the node was restarted. Releases the ranges that are held for reading; the Join names
    /// the ranges that are held for writing.
    fn leave(&mut self, now: Millis) {
        self.standing = HolderMembership::Leaving;
        self.requests.clear();
        // Messages of the earlier life are ignored, so none of its grants needs to be refused any more.
        self.ranges.values_mut().for_each(|part| part.refused = UNCONFIRMED);
        self.lease.end(now);
        self.stop_reading(now);
        let releasing =
            |part: &HolderRangeState| matches!(part.stop, CoherenceReleaseStep::Releasing { .. });
        let released = self.ranges.iter().filter(|(_, part)| releasing(part));
        let released: Vec<_> = released.map(|(range, _)| *range).collect();
        released.into_iter().for_each(|range| self.let_go(range, now));
        self.join_if_ready(now);
    }

    fn join_if_ready(&mut self, now: Millis) {
        let reads =
            self.ranges.values().any(|p| matches!(p.held, Some((CoherenceToken::SharedRead, _))));
        if self.standing == HolderMembership::Leaving && !reads {
            self.standing = HolderMembership::Joining;
            self.join(now);
        }
    }

    fn join(&mut self, now: Millis) {
        self.join += 1;
        self.join_sent = now;
        let exclusive =
            self.ranges.iter().filter(|(_, part)| part.has(CoherenceToken::ExclusiveWrite));
        let exclusive = exclusive.map(|(range, _)| *range).collect();
        self.requests.push_back(CoherenceRequest::Join { number: self.join, exclusive });
    }

    fn joined(
        &mut self,
        number: u64,
        life: u64,
        grants: &[(CoherenceRange, Grant)],
        lost: &[CoherenceRange],
        now: Millis,
    ) {
        if self.standing != HolderMembership::Joining || number != self.join {
            return;
        }
        for (range, grant) in grants {
            match self.ranges.get_mut(range).and_then(|part| part.held.as_mut()) {
                Some((_, known)) => *known = *grant,
                // The Join has listed this range, but the gateway has released it since then.
                None => self.refuse(life, *range, *grant, now),
            }
        }
        // An exclusive range that the Join has named and the answer does not mention is lost, too.
        let granted: BTreeSet<CoherenceRange> = grants.iter().map(|(range, _)| *range).collect();
        let named_lost: BTreeSet<CoherenceRange> = lost.iter().copied().collect();
        let is_lost = |range: &CoherenceRange, part: &HolderRangeState| {
            part.held.is_some() && named_lost.contains(range)
                || part.has(CoherenceToken::ExclusiveWrite) && !granted.contains(range)
        };
        if let Some((range, _)) = self.ranges.iter().find(|(range, part)| is_lost(range, part)) {
            self.standing = HolderMembership::Lost { range: *range };
            return;
        }
        self.standing = HolderMembership::Joined { life };
        self.extend(self.join_sent, now);
        self.ask_again(now);
        let ranges: Vec<_> = self.ranges.keys().copied().collect();
        ranges.into_iter().for_each(|range| self.go_on(range, now));
    }

    fn granted(
        &mut self,
        range: CoherenceRange,
        token: CoherenceToken,
        number: u64,
        grant: Grant,
        now: Millis,
    ) {
        let is_leased = self.is_leased(now);
        let Some(part) = self.ranges.get_mut(&range) else { return };
        if part.wanted.is_none_or(|(_, wanted)| wanted != number) || grant <= part.refused {
            return;
        }
        // Ignore a grant of a range that is being cleaned: its cached data may be outdated.
        if matches!(
            part.stop,
            CoherenceReleaseStep::Ending { .. } | CoherenceReleaseStep::Cleaning { .. }
        ) {
            return;
        }
        part.wanted = None;
        part.held = Some((token, grant));
        // A shared token that is granted while no lease is valid must be released at once: a lease that begins later
        // does not cover it.
        let is_late = token == CoherenceToken::SharedRead && !is_leased;
        part.stop = if is_late {
            CoherenceReleaseStep::Ending { keeps: false }
        } else {
            CoherenceReleaseStep::No
        };
        self.go_on(range, now);
    }

    fn recalled(&mut self, range: CoherenceRange, grant: Grant, keeps: bool, now: Millis) {
        let HolderMembership::Joined { life } = self.standing else { return };
        let known = self.ranges.get(&range).and_then(|part| part.held);
        match (known, self.ranges.get(&range).and_then(|part| part.wanted)) {
            (Some((token, held)), _) if held == grant => {
                if !(keeps && token == CoherenceToken::SharedRead) {
                    self.stop(range, keeps, now);
                }
            }
            // A new grant for this range is on its way and will be recalled again.
            (Some(_), Some(_)) => {}
            // The node recalls another grant than the one that this gateway holds: release the range.
            (Some(_), None) => self.stop(range, false, now),
            // The recall has arrived before the grant that it recalls: refuse that grant when it arrives.
            (None, _) => self.refuse(life, range, grant, now),
        }
    }

    /// Releases a grant that has not arrived yet. When it arrives, the gateway does not accept it.
    fn refuse(&mut self, life: u64, range: CoherenceRange, grant: Grant, now: Millis) {
        let part = self.ranges.entry(range).or_insert_with(|| HolderRangeState::new(now));
        part.refused = part.refused.max(grant);
        let (grant, keeps) = (part.refused, false);
        self.requests.push_back(CoherenceRequest::Release { life, range, grant, keeps });
    }

    /// Begins to release the token of a range.
    fn stop(&mut self, range: CoherenceRange, keeps: bool, now: Millis) {
        let Some(part) = self.ranges.get_mut(&range) else { return };
        match part.stop {
            CoherenceReleaseStep::No | CoherenceReleaseStep::Ending { keeps: true } => {
                part.stop = CoherenceReleaseStep::Ending { keeps }
            }
            CoherenceReleaseStep::Ending { .. }
            | CoherenceReleaseStep::Cleaning { .. }
            | CoherenceReleaseStep::Releasing { .. } => {}
        }
        self.go_on(range, now);
    }

    fn released(&mut self, range: CoherenceRange, grant: Grant, keeps: bool, now: Millis) {
        let Some(part) = self.ranges.get_mut(&range) else { return };
        let is_it = part.held.is_some_and(|(_, held)| held == grant);
        if part.refused == grant && !keeps {
            part.refused = UNCONFIRMED;
            // The refused grant may still arrive in answer to the old request number, so give the request a new number.
            if let Some((_, number)) = &mut part.wanted {
                self.next += 1;
                *number = self.next;
            }
            self.acquire_again(range);
            self.go_on(range, now);
        } else if is_it && part.stop == (CoherenceReleaseStep::Releasing { keeps }) {
            self.let_go(range, now);
        } else if is_it && part.stop == (CoherenceReleaseStep::Releasing { keeps: true }) {
            // The gateway wanted to keep a shared token, but the node had taken the grant away already. Other gateways
            // may have written the cached blocks.
            part.held = Some((CoherenceToken::SharedRead, grant));
            part.stop = CoherenceReleaseStep::Ending { keeps: false };
            self.go_on(range, now);
        }
    }

    /// Ends a release: the gateway no longer holds the range, or holds it for reading.
    fn let_go(&mut self, range: CoherenceRange, now: Millis) {
        let is_leased = self.is_leased(now) && self.is_joined();
        let Some(part) = self.ranges.get_mut(&range) else { return };
        match (part.stop, part.held) {
            (CoherenceReleaseStep::Releasing { keeps: true }, Some((_, grant))) => {
                part.held = Some((CoherenceToken::SharedRead, grant));
                part.stop = if is_leased {
                    CoherenceReleaseStep::No
                } else {
                    CoherenceReleaseStep::Ending { keeps: false }
                };
            }
            _ => (part.held, part.stop) = (None, CoherenceReleaseStep::No),
        }
        // A grant that arrived while the token was being released was ignored: request the token again.
        self.acquire_again(range);
        self.go_on(range, now);
    }

    fn acquire_again(&mut self, range: CoherenceRange) {
        let wanted = self.ranges.get(&range).and_then(|part| part.wanted);
        if let (&HolderMembership::Joined { life }, Some((token, number))) =
            (&self.standing, wanted)
        {
            self.requests.push_back(CoherenceRequest::Acquire { life, range, token, number });
        }
    }

    /// Does everything that is possible for a range now: starts uses that wait, requests the token that they need, and
    /// starts the cleaning if the range has to be released.
    fn go_on(&mut self, range: CoherenceRange, now: Millis) {
        let is_leased = self.is_leased(now) && self.is_joined();
        let is_lost = self.lost().is_some();
        let Some(part) = self.ranges.get_mut(&range) else { return };
        if let CoherenceReleaseStep::Ending { keeps } = part.stop
            && part.uses == 0
        {
            part.stop = CoherenceReleaseStep::Cleaning { keeps };
            let writes_back = part.has(CoherenceToken::ExclusiveWrite);
            self.cleaning.push_back(Cleaning { range, writes_back, keeps });
        }
        while !is_lost
            && let Some(&(ticket, token)) = part.waiting.front()
            && part.may_use(token)
            && (is_leased || part.has(CoherenceToken::ExclusiveWrite))
        {
            part.waiting.pop_front();
            part.uses += 1;
            part.used = now;
            self.begun.push_back(ticket);
        }
        let greatest = part.waiting.iter().map(|(_, token)| *token).max();
        if let Some(token) = greatest
            && let HolderMembership::Joined { life } = self.standing
            && part.stop == CoherenceReleaseStep::No
            && !part.has(token)
            && part.wanted.is_none_or(|(wanted, _)| wanted < token)
            // Without a valid lease, a shared token may not be used, so do not request one.
            && (is_leased || token == CoherenceToken::ExclusiveWrite)
        {
            self.next += 1;
            let number = self.next;
            part.wanted = Some((token, number));
            self.requests.push_back(CoherenceRequest::Acquire { life, range, token, number });
        }
        if part.is_idle() {
            self.ranges.remove(&range);
        }
    }

    /// Repeats all requests to the node that are not answered yet.
    fn ask_again(&mut self, now: Millis) {
        self.renewed = now;
        let life = match self.standing {
            HolderMembership::Joining => return self.join(now),
            HolderMembership::Joined { life } => life,
            HolderMembership::Leaving | HolderMembership::Lost { .. } => return,
        };
        self.requests.push_back(CoherenceRequest::Renew { life, sent: now });
        for (&range, part) in &self.ranges {
            self.requests.extend(part.unanswered(life, range));
        }
    }

    /// Releases the exclusive tokens of ranges that were not used for a while, and keeps shared ones. If this gateway
    /// fails later, these ranges do not block other gateways.
    fn give_back_idle(&mut self, now: Millis) {
        let before = self.lease.idle_since(now);
        let is_idle = |part: &HolderRangeState| {
            part.is_unused() && part.has(CoherenceToken::ExclusiveWrite) && part.used < before
        };
        let idle = self.ranges.iter().filter(|(_, part)| is_idle(part));
        let idle: Vec<_> = idle.map(|(range, _)| *range).collect();
        if !self.is_joined() {
            return;
        }
        idle.into_iter().for_each(|range| self.stop(range, true, now));
    }

    /// Releases the range that was not used for the longest time, to make room for another one.
    fn give_back_oldest(&mut self, now: Millis) {
        let is_free = |part: &HolderRangeState| part.is_unused() && part.held.is_some();
        let free = self.ranges.iter().filter(|(_, part)| is_free(part) && part.waiting.is_empty());
        let oldest = free.min_by_key(|(_, part)| part.used).map(|(range, _)| *range);
        if let Some(range) = oldest {
            self.stop(range, false, now);
        }
    }
}
