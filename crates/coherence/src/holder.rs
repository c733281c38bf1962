//! The gateway's machine: which ranges it may use, what it asks for, what it has to give back.
//!
//! A token stays after its last use, until somebody else wants it (local consistency, lazy release). Then
//! new uses wait, those under way end, what is dirty goes down, what may not be kept is dropped,
//! and the token is released. Shared tokens end with the lease, by this machine's own clock, counted from
//! when the last renewal that was answered was *sent*; exclusive ones do not, since the node does not
//! give them to others (see `grantor`): a link that is down does not stop who writes here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{
    message::{CoherenceReply, CoherenceRequest},
    token::{CoherenceRange, CoherenceToken, Grant, MOST_TOKENS, Millis},
};

/// A use that waits, or has begun after it waited.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CoherenceTicket(pub u64);

/// Whether a use may begin.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Begin {
    /// It has begun.
    Now,
    /// It begins when [`Holder::poll_begun`] says so.
    Waits(CoherenceTicket),
}

/// What is to be done with a range before it is released: what is dirty goes down and is flushed there, and
/// the log can give none of it back after a crash any more (that is stable, too: else it would go down over
/// what others have written since); then, unless it is kept, what is cached of it is dropped.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Cleaning {
    /// Which range.
    pub range: CoherenceRange,
    /// There may be dirty data.
    pub writes_back: bool,
    /// Clean data of it stays right.
    pub keeps: bool,
}

/// A gateway's machine for one volume.
///
/// After any call that is not a getter: `poll_request`, `poll_begun` and `poll_cleaning` until each
/// has nothing, and `handle_timeout` at the time that `poll_timeout` says.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Holder {
    lease: Millis,
    standing: HolderMembership,
    /// Of the last [`CoherenceRequest::Join`].
    join: u64,
    /// When that was sent.
    join_sent: Millis,
    /// Until when shared tokens hold.
    until: Millis,
    /// They did when somebody last looked.
    was_leased: bool,
    renewed: Millis,
    ranges: BTreeMap<CoherenceRange, HolderRangeState>,
    next: u64,
    requests: VecDeque<CoherenceRequest>,
    begun: VecDeque<CoherenceTicket>,
    cleaning: VecDeque<Cleaning>,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
enum HolderMembership {
    /// Before it can join, what is held for reading is given up.
    Leaving,
    Joining,
    Joined {
        life: u64,
    },
    /// The node knows nothing of what was dirty here: it has given it up, or was put back to a time before.
    /// Others may have it, so it may not be used, nor sent down.
    Lost {
        range: CoherenceRange,
    },
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct HolderRangeState {
    held: Option<(CoherenceToken, Grant)>,
    /// Under way.
    uses: u32,
    stop: CoherenceReleaseStep,
    /// What is asked for, and the number that it was asked with.
    wanted: Option<(CoherenceToken, u64)>,
    /// Recalled before it came, and given back: this grant and those before it are not taken.
    refused: Grant,
    waiting: VecDeque<(CoherenceTicket, CoherenceToken)>,
    used: Millis,
}

/// How far the giving back of a token has come.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum CoherenceReleaseStep {
    /// It may be used.
    No,
    /// Uses end.
    Ending { keeps: bool },
    /// The caller cleans up.
    Cleaning { keeps: bool },
    /// The node has to answer.
    Releasing { keeps: bool },
}

impl Holder {
    /// A gateway that begins, and asks to join at once. `dirty`: ranges of which its log has data
    /// that may not have gone down.
    #[must_use]
    pub fn new(
        lease: Millis,
        dirty: impl IntoIterator<Item = CoherenceRange>,
        now: Millis,
    ) -> Self {
        let mut holder = Self {
            lease,
            standing: HolderMembership::Leaving,
            join: 0,
            join_sent: now,
            until: now,
            was_leased: false,
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

    /// A use of a range, which [`Holder::end`] ends.
    pub fn begin(&mut self, range: CoherenceRange, token: CoherenceToken, now: Millis) -> Begin {
        self.expire(now);
        let is_known = self.ranges.contains_key(&range);
        let part = self.ranges.entry(range).or_insert_with(|| HolderRangeState::new(now));
        part.used = now;
        // Who waits is not overtaken.
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

    /// A use has ended.
    pub fn end(&mut self, range: CoherenceRange, now: Millis) {
        let Some(part) = self.ranges.get_mut(&range) else { return };
        part.uses = part.uses.saturating_sub(1);
        part.used = now;
        self.go_on(range, now);
    }

    /// A use that waits is not wanted any more; or it has begun, and ends.
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

    /// What [`Holder::poll_cleaning`] asked for is done.
    pub fn cleaned(&mut self, range: CoherenceRange, now: Millis) {
        let Some(part) = self.ranges.get_mut(&range) else { return };
        let CoherenceReleaseStep::Cleaning { keeps } = part.stop else { return };
        let Some((_, grant)) = part.held else { return };
        part.stop = CoherenceReleaseStep::Releasing { keeps };
        match self.standing {
            HolderMembership::Joined { life } => {
                self.requests.push_back(CoherenceRequest::Release { life, range, grant, keeps });
            }
            // Who does not name it when it joins has given it back.
            HolderMembership::Leaving
            | HolderMembership::Joining
            | HolderMembership::Lost { .. } => {
                self.let_go(range, now);
                self.join_if_ready(now);
            }
        }
    }

    /// The node has said something.
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

    /// A new session to the node: what was on its way may be lost.
    pub fn handle_reconnected(&mut self, now: Millis) {
        self.expire(now);
        self.requests.clear();
        self.ask_again(now);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Millis) {
        self.expire(now);
        if now < self.poll_timeout() {
            return;
        }
        self.ask_again(now);
        self.give_back_idle(now);
    }

    /// When to call [`Holder::handle_timeout`] at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Millis {
        self.renewed.saturating_add(self.lease / 4)
    }

    /// What is to be sent to the node.
    pub fn poll_request(&mut self) -> Option<CoherenceRequest> {
        self.requests.pop_front()
    }

    /// A use that waited has begun.
    pub fn poll_begun(&mut self) -> Option<CoherenceTicket> {
        self.begun.pop_front()
    }

    /// What is to be cleaned up.
    pub fn poll_cleaning(&mut self) -> Option<Cleaning> {
        self.cleaning.pop_front()
    }

    /// A range whose dirty data was given up at the node, for good: nothing may be used any more.
    #[must_use]
    pub fn lost(&self) -> Option<CoherenceRange> {
        match self.standing {
            HolderMembership::Lost { range } => Some(range),
            _ => None,
        }
    }

    /// Whether the node knows it.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        matches!(self.standing, HolderMembership::Joined { .. })
    }

    /// Whether shared tokens hold now.
    #[must_use]
    pub fn is_leased(&self, now: Millis) -> bool {
        now < self.until
    }

    /// Ranges held for reading and for writing.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        let held = self.ranges.values().filter_map(|part| part.held);
        held.fold((0, 0), |(shared, exclusive), (token, _)| match token {
            CoherenceToken::SharedRead => (shared + 1, exclusive),
            CoherenceToken::ExclusiveWrite => (shared, exclusive + 1),
        })
    }

    /// What may be used of a range now, without asking.
    #[must_use]
    pub fn usable(&self, range: CoherenceRange, now: Millis) -> Option<CoherenceToken> {
        let part = self.ranges.get(&range)?;
        let (token, _) = part.held.filter(|(token, _)| part.may_use(*token))?;
        let is_good = self.lost().is_none()
            && (token == CoherenceToken::ExclusiveWrite || self.is_leased(now) && self.is_joined());
        is_good.then_some(token)
    }

    /// Clocks may differ by so much of a lease.
    fn margin(&self) -> Millis {
        self.lease.div_ceil(8)
    }

    /// The node has answered what was sent then.
    fn extend(&mut self, sent: Millis, now: Millis) {
        self.until = self.until.max(sent.saturating_add(self.lease - self.margin()));
        let is_leased = self.is_leased(now);
        let was_leased = std::mem::replace(&mut self.was_leased, is_leased);
        if is_leased && !was_leased {
            self.begin_lease(now);
            let waited = self.ranges.iter().filter(|(_, part)| !part.waiting.is_empty());
            let waited: Vec<_> = waited.map(|(range, _)| *range).collect();
            waited.into_iter().for_each(|range| self.go_on(range, now));
        }
    }

    /// Between the last lease and this one the node may have given on what it had granted for reading,
    /// also what has not come yet: an answer to anything from before does not count as a token.
    fn begin_lease(&mut self, now: Millis) {
        self.renumber_reads();
        let (mut asked, mut kept) = (Vec::new(), Vec::new());
        for (&range, part) in &mut self.ranges {
            if matches!(part.wanted, Some((CoherenceToken::SharedRead, _))) {
                asked.push(range);
            }
            // It is clean: what is cached of it goes as well, and then all of it is given back.
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

    /// What is granted for reading and has not come is not taken when it comes.
    fn renumber_reads(&mut self) {
        for part in self.ranges.values_mut() {
            if let Some((CoherenceToken::SharedRead, number)) = &mut part.wanted {
                self.next += 1;
                *number = self.next;
            }
        }
    }

    /// Nothing that was granted for reading is used after the lease, also if there is another by now:
    /// the node may have given it to others in between.
    fn expire(&mut self, now: Millis) {
        if self.was_leased && !self.is_leased(now) {
            self.was_leased = false;
            self.stop_reading(now);
        }
    }

    fn stop_reading(&mut self, now: Millis) {
        // What is granted and has not come may have been given on as well: it is not taken.
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

    /// The node has started anew: what was held for reading ends, what is held for writing is named
    /// when joining.
    fn leave(&mut self, now: Millis) {
        self.standing = HolderMembership::Leaving;
        self.requests.clear();
        // Grants of an earlier life do not come any more.
        self.ranges.values_mut().for_each(|part| part.refused = UNCONFIRMED);
        (self.until, self.was_leased) = (now, false);
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
                // Let go since it was named.
                None => self.refuse(life, *range, *grant, now),
            }
        }
        // Also what the node says nothing of: it was named, and it is not granted.
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
        // What is cached of it may be older: that goes first, and then it is asked for again.
        if matches!(
            part.stop,
            CoherenceReleaseStep::Ending { .. } | CoherenceReleaseStep::Cleaning { .. }
        ) {
            return;
        }
        part.wanted = None;
        part.held = Some((token, grant));
        // A lease that begins later says nothing of it.
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
            // The grant is on its way, in place of what is held: it is recalled again.
            (Some(_), Some(_)) => {}
            // What is held here is not what the node takes it for.
            (Some(_), None) => self.stop(range, false, now),
            // The grant has not come.
            (None, _) => self.refuse(life, range, grant, now),
        }
    }

    /// Gives a grant back that is not used, and is not to be taken any more should it still come.
    fn refuse(&mut self, life: u64, range: CoherenceRange, grant: Grant, now: Millis) {
        let part = self.ranges.entry(range).or_insert_with(|| HolderRangeState::new(now));
        part.refused = part.refused.max(grant);
        let (grant, keeps) = (part.refused, false);
        self.requests.push_back(CoherenceRequest::Release { life, range, grant, keeps });
    }

    /// Begins to give back what is held of a range.
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
            // It may still come as an answer to what was asked before.
            if let Some((_, number)) = &mut part.wanted {
                self.next += 1;
                *number = self.next;
            }
            self.acquire_again(range);
            self.go_on(range, now);
        } else if is_it && part.stop == (CoherenceReleaseStep::Releasing { keeps }) {
            self.let_go(range, now);
        } else if is_it && part.stop == (CoherenceReleaseStep::Releasing { keeps: true }) {
            // The node did not have it any more: others may have written what is cached here.
            part.held = Some((CoherenceToken::SharedRead, grant));
            part.stop = CoherenceReleaseStep::Ending { keeps: false };
            self.go_on(range, now);
        }
    }

    /// A token that was given back is no longer here, or is there for reading.
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
        // What was granted meanwhile was not taken.
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

    /// Takes a range as far as it can go: begins what waits, asks for what that needs, cleans what is to
    /// be given back.
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
            // What is granted for reading without a lease is of no use.
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

    /// Sends everything again that was not answered.
    fn ask_again(&mut self, now: Millis) {
        self.renewed = now;
        let life = match self.standing {
            HolderMembership::Joining => return self.join(now),
            HolderMembership::Joined { life } => life,
            HolderMembership::Leaving | HolderMembership::Lost { .. } => return,
        };
        self.requests.push_back(CoherenceRequest::Renew { life, sent: now });
        for (&range, part) in &mut self.ranges {
            if let (CoherenceReleaseStep::Releasing { keeps }, Some((_, grant))) =
                (part.stop, part.held)
            {
                self.requests.push_back(CoherenceRequest::Release { life, range, grant, keeps });
            }
            if part.refused != UNCONFIRMED {
                let (grant, keeps) = (part.refused, false);
                self.requests.push_back(CoherenceRequest::Release { life, range, grant, keeps });
            }
            if let Some((token, number)) = part.wanted {
                self.requests.push_back(CoherenceRequest::Acquire { life, range, token, number });
            }
        }
    }

    /// What was written a while ago is given back for reading: should this gateway die, it is in nobody's way.
    fn give_back_idle(&mut self, now: Millis) {
        let before = now.saturating_sub(self.lease.saturating_mul(IDLE_LEASES));
        let is_idle = |part: &HolderRangeState| {
            part.stop == CoherenceReleaseStep::No
                && part.uses == 0
                && part.has(CoherenceToken::ExclusiveWrite)
                && part.used < before
        };
        let idle = self.ranges.iter().filter(|(_, part)| is_idle(part));
        let idle: Vec<_> = idle.map(|(range, _)| *range).collect();
        if !self.is_joined() {
            return;
        }
        idle.into_iter().for_each(|range| self.stop(range, true, now));
    }

    /// Makes room for another range.
    fn give_back_oldest(&mut self, now: Millis) {
        let is_free = |part: &HolderRangeState| {
            part.stop == CoherenceReleaseStep::No && part.uses == 0 && part.held.is_some()
        };
        let free = self.ranges.iter().filter(|(_, part)| is_free(part) && part.waiting.is_empty());
        let oldest = free.min_by_key(|(_, part)| part.used).map(|(range, _)| *range);
        if let Some(range) = oldest {
            self.stop(range, false, now);
        }
    }
}

impl HolderRangeState {
    fn new(now: Millis) -> Self {
        Self {
            held: None,
            uses: 0,
            stop: CoherenceReleaseStep::No,
            wanted: None,
            refused: UNCONFIRMED,
            waiting: VecDeque::new(),
            used: now,
        }
    }

    /// Confirmed by the node, and not to be given back.
    fn may_use(&self, token: CoherenceToken) -> bool {
        let is_confirmed = self.held.is_some_and(|(_, grant)| grant != UNCONFIRMED);
        self.stop == CoherenceReleaseStep::No && is_confirmed && self.has(token)
    }

    fn has(&self, token: CoherenceToken) -> bool {
        self.held.is_some_and(|(held, _)| held >= token)
    }

    fn is_idle(&self) -> bool {
        self.held.is_none()
            && self.uses == 0
            && self.stop == CoherenceReleaseStep::No
            && self.wanted.is_none()
            && self.refused == UNCONFIRMED
            && self.waiting.is_empty()
    }
}

/// Leases that a range may be held for writing without being used.
const IDLE_LEASES: Millis = 2;
/// Of what a gateway held before it started: the node has to say that it still does.
const UNCONFIRMED: Grant = Grant(0);
