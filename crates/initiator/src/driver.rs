//! The driver: one tokio task owns the session and all its connections, what waits for them, and
//! the reconnecting.

use std::{
    future::Future,
    hash::{BuildHasher, RandomState},
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use iscsi::{
    Cid,
    session::initiator::{Counters, Event, MOST_PATIENCE},
};
use scsi::{Lun, Sense};
use tokio::{
    sync::mpsc,
    time::{sleep, sleep_until, timeout},
};
use tracing::{debug, info, warn};
use volume::{Geometry, Holding};

use crate::{
    CommandError, ConnectionStatistics, Error, Facts, LinkState, Settings, Statistics,
    clock::now,
    facts::{tells_of_change, tells_of_reset, tells_of_size},
    login::{LoggedIn, log_in},
    pending::{Job, PendingTable},
    probe::probe,
    shared::Shared,
    wire::Traffic,
    wires::Wires,
};

/// What callers send.
pub(crate) enum Message {
    /// Perform this.
    Job(Job),
    /// The unit may have become another one: look at it by way of a new session.
    Judge,
    /// Answer what is under way, log out, end.
    Close,
}

/// The unit that is expected behind the link.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub(crate) identity: String,
    pub(crate) block_size: u32,
    pub(crate) blocks: u64,
}

/// A session with the unit that is expected.
pub(crate) struct Live {
    /// Where it was found.
    pub(crate) settings: Arc<Settings>,
    pub(crate) wires: Wires,
    pub(crate) facts: Facts,
}

pub(crate) struct Driver {
    settings: Arc<Settings>,
    messages: mpsc::Receiver<Message>,
    shared: Arc<Shared>,
    expected: Expected,
    pending: PendingTable,
    statistics: Statistics,
    /// The portal group of the last session, if that was at one of several portals of the settings.
    group: Option<u16>,
    /// The unit may have become another one.
    suspicious: bool,
    /// It was said that the target does not compress what was wanted.
    told_uncompressed: bool,
    /// No more jobs come.
    closing: bool,
}

/// How a connection ended.
enum End {
    /// We wanted it.
    Closed,
    /// It was lost; not to be made again before so long.
    Lost { reason: Arc<str>, wait: Duration },
}

/// The longest pause where another portal may serve the unit at any moment: a gateway of a pair takes
/// over within a few seconds.
const MOST_BESIDE_OTHERS: Duration = Duration::from_secs(1);

/// A connection that held for so long was a good one: the next pause is the first again.
const GOOD_CONNECTION: Duration = Duration::from_secs(5);

impl Expected {
    pub(crate) fn new(identity: String, geometry: &Geometry) -> Self {
        Self { identity, block_size: geometry.block_size, blocks: geometry.blocks }
    }

    /// Is this the unit? Data must never go to another one.
    fn check(&self, facts: &Facts) -> Result<(), Error> {
        let found = Self::new(facts.identity.clone(), &facts.geometry);
        if found.identity != self.identity {
            let (found, expected) = (found.identity, &self.identity);
            let reason = format!("the remote unit is {found}, and {expected} is expected");
            return Err(Error::Changed(reason.into()));
        }
        // One that has grown still has all that was there.
        if found.block_size != self.block_size || found.blocks < self.blocks {
            let reason = format!(
                "the remote unit {} has {} blocks of {} bytes, and {} of {} or more are expected",
                self.identity, found.blocks, found.block_size, self.blocks, self.block_size
            );
            return Err(Error::Changed(reason.into()));
        }
        Ok(())
    }
}

impl Live {
    /// A login ends the session that was lost only in the same portal group (RFC 7143, 6.3.5): at
    /// another one that may still perform what was sent again here, after newer writes.
    fn check_group(&self, before: Option<u16>) -> Result<(), Error> {
        match (self.wires.tpgt, before) {
            (Some(tag), Some(before)) if tag != before => {
                Err(Error::OtherGroup { portal: self.wires.portal.as_str().into(), tag, before })
            }
            _ => Ok(()),
        }
    }
}

/// Connects where the unit is, logs in, asks it what it is. Of several places the first that answers.
pub(crate) async fn connect(settings: &Settings) -> Result<Live, Error> {
    let mut failed = Error::Closed;
    for place in settings.places().await? {
        match connect_to(place).await {
            Ok(live) => return Ok(live),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

async fn connect_to(settings: Settings) -> Result<Live, Error> {
    let mut wires = Wires::open(&settings, false).await?;
    let probing = timeout(settings.login_time_out, probe(&mut wires, &settings)).await;
    let facts = probing.map_err(|_| Error::TimedOut("what the unit is"))??;
    Ok(Live { settings: Arc::new(settings), wires, facts })
}

impl Driver {
    pub(crate) fn new(
        settings: Arc<Settings>,
        messages: mpsc::Receiver<Message>,
        shared: Arc<Shared>,
        expected: Expected,
    ) -> Self {
        let lun = Lun::from_number(settings.lun).unwrap_or_default();
        let mut pending = PendingTable::new(lun, settings.command_time_out, settings.busy_time_out);
        pending.answered = Arc::clone(&shared.answered);
        pending.has_choice = settings.has_choice();
        let statistics = Statistics::default();
        Self {
            settings,
            messages,
            shared,
            expected,
            pending,
            statistics,
            group: None,
            suspicious: false,
            told_uncompressed: false,
            closing: false,
        }
    }

    /// Runs until every handle is gone or one of them says so.
    pub(crate) async fn run(mut self, first: Option<Live>) {
        let mut pauses = Pauses::new(&self.settings);
        let mut wait = Duration::ZERO;
        let mut live = first;
        loop {
            let current = match live.take() {
                Some(live) => live,
                None => match self.reconnect(wait, &mut pauses).await {
                    Some(live) => live,
                    None => break,
                },
            };
            let begun = now();
            match self.serve(current).await {
                End::Closed => break,
                End::Lost { reason, wait: at_least } => {
                    warn!(target = self.settings.target, %reason, "lost the session");
                    if now().saturating_duration_since(begun) >= GOOD_CONNECTION {
                        pauses = Pauses::new(&self.settings);
                    }
                    wait = pauses.next_after(at_least);
                    self.settings = Arc::new((*self.settings).clone().at_the_next_portal());
                    self.statistics.reconnects += 1;
                    let since = match *self.shared.state.borrow() {
                        LinkState::Down { since, .. } => since,
                        _ => now(),
                    };
                    let given_up = false;
                    self.shared.state.send_replace(LinkState::Down { since, reason, given_up });
                }
            }
        }
        self.shared.state.send_replace(LinkState::Closed);
        let closed = CommandError::Unreachable("the session was closed".into());
        self.pending.fail_all(&closed, &mut self.statistics);
        self.publish();
        // Who follows the size learns that there is nothing more to follow.
        self.messages.close();
        self.shared.look_at_size.notify_one();
    }

    /// Runs a session until it ends.
    async fn serve(&mut self, live: Live) -> End {
        let Live { settings, mut wires, facts } = live;
        self.pending.lun = Lun::from_number(settings.lun).unwrap_or_default();
        // A target with one portal may have another tag when it is started again.
        if settings.locate.is_none() && settings.has_choice() {
            self.group = wires.tpgt;
        }
        self.settings = settings;
        *self.shared.portal.lock() = Some(wires.portal.as_str().into());
        let default_wait = wires.session.parameters().default_time2wait;
        self.pending.volatile_cache = facts.geometry.volatile_cache;
        self.shared.set_facts(facts);
        self.suspicious = false;
        self.shared.next_generation();
        self.shared.state.send_replace(LinkState::Up);
        info!(target = self.settings.target, portal = wires.portal, "session is up");
        self.note_compression(&wires);
        *self.shared.congestion.lock() = Some(wires.congestion.clone());

        let mut counted = Counted::default();
        let ended = self.serve_until_it_ends(&mut wires, &mut counted).await;
        // Whatever ended it: what was answered before is answered.
        let _ = self.handle_events(&mut wires, &mut counted);
        counted.add_to(&mut self.statistics, &wires);
        self.pending.replay(wires.session.take_unanswered(), &mut self.statistics);
        if matches!(ended, Err(Error::NotServed(_))) {
            // What it still has of ours must have ended before it is sent elsewhere.
            wires.log_out().await;
        } else {
            drop(wires);
        }
        self.shared.connections.lock().clear();
        *self.shared.congestion.lock() = None;
        self.publish();
        match ended {
            Ok(end) => end,
            Err(error) => {
                let wait = error.time2wait().unwrap_or(default_wait);
                let wait = Duration::from_secs(wait.into());
                End::Lost { reason: error.to_string().into(), wait }
            }
        }
    }

    async fn serve_until_it_ends(
        &mut self,
        wires: &mut Wires,
        counted: &mut Counted,
    ) -> Result<End, Error> {
        let mut crew = Crew::new(&self.settings, wires);
        let timer = sleep(Duration::ZERO);
        tokio::pin!(timer);
        let mut deadline = now();
        loop {
            // Every turn looks at the time: sockets that always have something would keep a timer
            // of lesser rank from ever being looked at.
            if deadline <= now() {
                self.pending.wake(now());
                wires.handle_timeout(now());
                if let Some(end) = self.handle_events(wires, counted)? {
                    return Ok(end);
                }
            }
            self.take_messages();
            if self.suspicious {
                return Err(Error::unit("it has another size than before"));
            }
            self.submit(wires);
            if self.closing && self.pending.len() == 0 {
                wires.session.log_out(now());
            }
            wires.pump();
            wires.check()?;
            crew.look(wires, self.closing);
            let give_up_at = self.note_link(wires);
            if give_up_at.is_some_and(|at| at <= now()) {
                return Err(Error::TimedOut("another connection of the session"));
            }
            counted.add_to(&mut self.statistics, wires);
            self.publish();
            self.publish_connections(wires);

            // The machine's deadline moves with every PDU: the timer is left to fire too early
            // rather than set again each time.
            let deadlines =
                [wires.deadline(), self.pending.deadline(), crew.deadline(), give_up_at];
            let earliest = deadlines.into_iter().flatten().min();
            deadline = earliest.unwrap_or_else(|| now() + IDLE);
            if timer.is_elapsed() || deadline < timer.deadline().into_std() {
                timer.as_mut().reset(deadline.into());
            }
            let has_room = self.has_room();
            tokio::select! {
                biased;
                () = wires.readiness() => {
                    wires.receive(now());
                    // what was answered before an error was answered
                    if let Some(end) = self.handle_events(wires, counted)? {
                        return Ok(end);
                    }
                }
                message = self.messages.recv(), if has_room => self.handle_message(message),
                joined = crew.joined() => {
                    if let Some(error) = self.handle_join(wires, &mut crew, joined) {
                        return Err(error);
                    }
                }
                () = &mut timer => {}
            }
        }
    }

    /// Tells once who wanted compression that there is none: it is worth nobody's waiting.
    fn note_compression(&mut self, wires: &Wires) {
        let compression = wires.compression();
        self.statistics.compression = compression;
        let is_wanted = !self.settings.offer.compression.is_empty();
        if is_wanted && compression.is_none() && !self.told_uncompressed {
            self.told_uncompressed = true;
            let (target, portal) = (&self.settings.target, &self.settings.portal);
            warn!(target, portal, "the target does not compress: going on without");
        }
    }

    /// Another connection is there, or not.
    fn handle_join(
        &mut self,
        wires: &mut Wires,
        crew: &mut Crew,
        joined: Result<LoggedIn, Error>,
    ) -> Option<Error> {
        match joined {
            Ok(logged_in) => {
                crew.succeeded();
                self.statistics.reconnects += u64::from(crew.replaces());
                wires.join(logged_in);
                None
            }
            // The target knows no such session any more: only a new one helps.
            Err(error @ Error::Login(_)) if wires.len() == 0 => Some(error),
            // It may be elsewhere by now, and is looked for by way of a new session.
            Err(error) if wires.len() == 0 && self.settings.has_choice() => Some(error),
            Err(error) => {
                debug!(%error, "cannot add a connection");
                crew.failed();
                None
            }
        }
    }

    /// Without a connection a session of level 2 goes on at the target, but not for callers: they
    /// wait until the returned time at most.
    fn note_link(&mut self, wires: &Wires) -> Option<Instant> {
        let is_up = wires.len() > 0;
        self.shared.state.send_if_modified(|state| match (&state, is_up) {
            (LinkState::Up, false) => {
                let reason = "the session has no connection".into();
                *state = LinkState::Down { since: now(), reason, given_up: false };
                true
            }
            (LinkState::Down { .. }, true) => {
                *state = LinkState::Up;
                true
            }
            _ => false,
        });
        match *self.shared.state.borrow() {
            LinkState::Down { since, .. } => Some(since + self.settings.give_up_after),
            _ => None,
        }
    }

    fn has_room(&self) -> bool {
        !self.closing && self.pending.len() < self.settings.queue_depth
    }

    /// Takes all jobs that there is room for, so that they leave in one write.
    fn take_messages(&mut self) {
        while self.has_room() {
            match self.messages.try_recv() {
                Ok(message) => self.handle_message(Some(message)),
                Err(_) => break,
            }
        }
    }

    fn handle_message(&mut self, message: Option<Message>) {
        match message {
            Some(Message::Job(job)) => self.pending.add(job, now()),
            Some(Message::Judge) => self.suspicious = true,
            Some(Message::Close) | None => {
                self.closing = true;
                self.messages.close();
            }
        }
    }

    fn submit(&mut self, wires: &mut Wires) {
        while wires.session.unanswered() < self.settings.queue_depth {
            let Some(request) = self.pending.next(now()) else { break };
            let refused = wires.session.submit(request, now());
            assert!(refused.is_ok(), "the session has the queue's depth");
        }
        for tag in self.pending.in_the_way() {
            wires.session.expire(tag, now());
        }
    }

    fn handle_events(
        &mut self,
        wires: &mut Wires,
        counted: &mut Counted,
    ) -> Result<Option<End>, Error> {
        let (mut changed, mut not_served, mut end) = (None, None, None);
        // before it forgets the connections that ended
        counted.add_to(&mut self.statistics, wires);
        while let Some(event) = wires.poll_event() {
            match event {
                Event::Completed { tag, result } => {
                    let generation = self.shared.generation();
                    let statistics = &mut self.statistics;
                    let news = self.pending.complete(tag, result, generation, now(), statistics);
                    changed = news.attention.and_then(|sense| self.attend(sense)).or(changed);
                    not_served = news.not_served.or(not_served);
                }
                Event::LoggedOut { time2wait } if !self.closing => {
                    let wait = Duration::from_secs(time2wait.into());
                    let reason = "the target asked for a logout".into();
                    end = Some(End::Lost { reason, wait });
                }
                Event::LoggedOut { .. } => end = Some(End::Closed),
                Event::LogoutRequested { cid } => debug!(cid = cid.0, "asked for a logout"),
                Event::Closed { cid, error } => {
                    debug!(cid = cid.0, %error, "a connection ended");
                }
                Event::Returned(requests) => {
                    self.pending.take_back(requests, &mut self.statistics);
                }
                Event::Sense(_, sense) => {
                    changed = sense.and_then(|sense| self.attend(sense)).or(changed);
                }
                Event::Text(_) => {}
            }
        }
        match changed {
            _ if end.is_some() => Ok(end),
            // asked again, and judged, by way of a new session
            Some(sense) => Err(Error::unit(format!("it tells of a change: {sense}"))),
            None => not_served.map_or(Ok(None), |sense| Err(Error::NotServed(sense))),
        }
    }

    /// Takes notice of a unit attention or a deferred error; returned, if it makes what we know of
    /// the unit void.
    fn attend(&mut self, sense: Sense) -> Option<Sense> {
        debug!(%sense, "unit attention");
        // A deferred error is about a write that was answered: the next flush must not speak for it.
        if tells_of_reset(&sense) || sense.deferred {
            self.shared.next_generation();
        }
        if tells_of_size(&sense) {
            self.shared.size_changed.store(true, Ordering::Release);
            self.shared.look_at_size.notify_one();
        }
        tells_of_change(&sense).then_some(sense)
    }

    /// Connects again until it succeeds; `None` if nobody wants it any more.
    async fn reconnect(&mut self, mut wait: Duration, pauses: &mut Pauses) -> Option<Live> {
        let give_up_at = match &*self.shared.state.borrow() {
            LinkState::Down { since, .. } => *since + self.settings.give_up_after,
            _ => now(),
        };
        if let Some(blocks) = self.shared.blocks() {
            self.expected.blocks = blocks;
        }
        // what calls are told instead of waiting
        let mut verdict: Option<CommandError> = None;
        loop {
            let shared = self.shared.clone();
            let expected = (self.expected.clone(), self.group);
            let attempt = attempt(wait, self.settings.clone(), expected, shared);
            tokio::pin!(attempt);
            let result = loop {
                if self.closing {
                    return None;
                }
                if let Some(verdict) = &verdict {
                    self.pending.fail_all(verdict, &mut self.statistics);
                    self.publish();
                }
                let has_room = self.has_room();
                tokio::select! {
                    biased;
                    result = &mut attempt => break result,
                    message = self.messages.recv(), if has_room => self.handle_message(message),
                    () = sleep_until(give_up_at.into()), if verdict.is_none() => {
                        verdict = Some(CommandError::Unreachable(self.give_up()));
                    }
                }
            };
            match result {
                Ok(live) => return Some(live),
                Err(Error::Changed(reason)) => {
                    self.shared.state.send_replace(LinkState::Changed(reason.clone()));
                    verdict = Some(CommandError::Changed(reason));
                }
                Err(Error::Fenced(reason)) => {
                    warn!(target = self.settings.target, %reason, "the claim is refused");
                    self.shared.state.send_replace(LinkState::Fenced(reason.clone()));
                    verdict = Some(CommandError::Fenced(reason));
                    // It was the last word.
                    wait = IDLE;
                    continue;
                }
                Err(error @ Error::Tls(_)) => {
                    // Somebody has to change a certificate: nobody waits for that, and it is
                    // looked for at the longest pauses.
                    self.note_reason(&error);
                    let reason = self.give_up();
                    warn!(target = self.settings.target, %reason, "cannot reconnect");
                    verdict = Some(CommandError::Unreachable(reason));
                    pauses.longest();
                }
                Err(error) => {
                    debug!(%error, "cannot reconnect");
                    self.note_reason(&error);
                    // it was another one, and now it does not answer: still not the right one
                    if let Some(CommandError::Unreachable(reason)) = &mut verdict {
                        *reason = error.to_string().into();
                    }
                }
            }
            wait = pauses.next();
        }
    }

    /// The reason of the last failure replaces the one before.
    fn note_reason(&self, error: &Error) {
        self.shared.state.send_if_modified(|state| match state {
            LinkState::Down { reason, .. } => {
                *reason = error.to_string().into();
                true
            }
            _ => false,
        });
    }

    /// Calls have waited long enough.
    fn give_up(&mut self) -> Arc<str> {
        let mut why: Arc<str> = "not connected".into();
        self.shared.state.send_if_modified(|state| match state {
            LinkState::Down { reason, given_up, .. } => {
                *given_up = true;
                why = reason.clone();
                true
            }
            _ => false,
        });
        why
    }

    fn publish(&self) {
        *self.shared.statistics.lock() = self.statistics;
    }

    fn publish_connections(&self, wires: &Wires) {
        let mut connections = self.shared.connections.lock();
        connections.clear();
        connections.extend(wires.traffic().map(|(cid, Traffic { bytes_in, bytes_out, .. })| {
            let load = wires.session.load(cid).unwrap_or_default();
            let (commands, bytes) = (load.commands, load.bytes);
            ConnectionStatistics { cid: cid.0, commands, bytes, bytes_out, bytes_in }
        }));
    }
}

async fn attempt(
    wait: Duration,
    settings: Arc<Settings>,
    (expected, group): (Expected, Option<u16>),
    shared: Arc<Shared>,
) -> Result<Live, Error> {
    sleep(wait).await;
    // Not even a login: it would end the session of a rightful owner of the same name.
    shared.claimed.check()?;
    let mut failed = Error::Closed;
    for place in settings.places().await? {
        match attempt_at(place, &expected, group, &shared).await {
            Ok(live) => return Ok(live),
            // It was the last word, wherever it was said.
            Err(error @ Error::Fenced(_)) => return Err(error),
            // Another unit is worth more words than a place where there is none.
            Err(error) if !matches!(failed, Error::Changed(_)) => failed = error,
            Err(_) => {}
        }
    }
    Err(failed)
}

async fn attempt_at(
    settings: Settings,
    expected: &Expected,
    group: Option<u16>,
    shared: &Shared,
) -> Result<Live, Error> {
    let mut live = connect_to(settings).await?;
    let mut taken = expected.check(&live.facts);
    // Nothing is claimed of another unit.
    if taken.is_ok() {
        let presenting = shared.claimed.present(&mut live.wires, &live.settings);
        let presented = timeout(live.settings.login_time_out, presenting).await;
        taken = presented.unwrap_or(Err(Error::TimedOut("the claim")));
    }
    // A claim that is granted shuts the sessions before this one out, whichever group they are at.
    if taken.is_ok() && shared.claimed.holding() != Holding::Held {
        taken = live.check_group(group);
    }
    match taken {
        Ok(()) => Ok(live),
        Err(error) => {
            live.wires.log_out().await;
            Err(error)
        }
    }
}

/// As good as never, for a timer.
const IDLE: Duration = Duration::from_secs(3600);

/// A connection on its way.
type Joining = Pin<Box<dyn Future<Output = Result<LoggedIn, Error>> + Send>>;

/// The connections that are wanted and not there.
struct Crew {
    settings: Arc<Settings>,
    /// So many are wanted.
    wanted: usize,
    /// So many there were at most: what is added beyond is no replacement.
    most: usize,
    joining: Option<Joining>,
    pauses: Pauses,
    /// When the last one was added.
    added: Instant,
    /// Not before then.
    next: Instant,
    present: usize,
    /// No more are wanted.
    closing: bool,
}

impl Crew {
    fn new(settings: &Arc<Settings>, wires: &Wires) -> Self {
        let offered = wires.session.parameters().max_connections;
        Self {
            settings: settings.clone(),
            wanted: usize::from(settings.offer().max_connections.min(offered).max(1)),
            most: wires.len(),
            joining: None,
            pauses: Pauses::new(settings),
            added: now(),
            next: now(),
            present: wires.len(),
            closing: false,
        }
    }

    /// Begins to add a connection if one is missing and it is time.
    fn look(&mut self, wires: &Wires, closing: bool) {
        self.closing = closing;
        if wires.len() < self.present {
            // One that did not last is not made again at once.
            if now().saturating_duration_since(self.added) >= GOOD_CONNECTION {
                self.pauses = Pauses::new(&self.settings);
            }
            self.next = self.next.max(now() + self.pauses.next());
        }
        self.present = wires.len();
        if wires.len() == 0
            && let Some(at) = wires.session.reinstate_at()
        {
            self.next = self.next.max(at);
        }
        if self.joining.is_some() || closing || self.present >= self.wanted || now() < self.next {
            return;
        }
        let (settings, purpose) = (self.settings.clone(), wires.next_join());
        self.joining = Some(Box::pin(async move { log_in(&settings, purpose).await }));
    }

    fn deadline(&self) -> Option<Instant> {
        let wants = !self.closing && self.joining.is_none() && self.present < self.wanted;
        wants.then_some(self.next)
    }

    /// Waits for the connection that is being added; for ever if there is none.
    async fn joined(&mut self) -> Result<LoggedIn, Error> {
        match &mut self.joining {
            Some(joining) => {
                let joined = joining.await;
                self.joining = None;
                joined
            }
            None => std::future::pending().await,
        }
    }

    fn succeeded(&mut self) {
        self.present += 1;
        self.added = now();
    }

    /// Whether the one that was just added takes the place of another.
    fn replaces(&mut self) -> bool {
        let replaces = self.present <= self.most;
        self.most = self.most.max(self.present);
        replaces
    }

    fn failed(&mut self) {
        self.next = now() + self.pauses.next();
    }
}

/// How much of each connection's counts has been added to the statistics.
#[derive(Default)]
struct Counted {
    connections: Vec<(Cid, Counters)>,
    passed: Traffic,
    lost: u64,
}

impl Counted {
    fn add_to(&mut self, statistics: &mut Statistics, wires: &Wires) {
        self.connections.retain(|&(cid, _)| wires.session.counters(cid).is_some());
        for cid in wires.session.cids() {
            let counters = wires.session.counters(cid).unwrap_or_default();
            let at = self.connections.iter().position(|&(known, _)| known == cid);
            let at = at.unwrap_or_else(|| {
                self.connections.push((cid, Counters::default()));
                self.connections.len() - 1
            });
            statistics.add_counters(&self.connections[at].1, &counters);
            self.connections[at].1 = counters;
        }
        let passed = wires.passed();
        statistics.bytes_in += passed.bytes_in - self.passed.bytes_in;
        statistics.bytes_out += passed.bytes_out - self.passed.bytes_out;
        statistics.link_bytes_in += passed.link_in - self.passed.link_in;
        statistics.link_bytes_out += passed.link_out - self.passed.link_out;
        self.passed = passed;
        statistics.connections_lost += wires.lost - self.lost;
        self.lost = wires.lost;
    }
}

/// The pauses before attempts to connect: doubling, and of random length so that many initiators
/// do not come back all at once.
struct Pauses {
    next: Duration,
    most: Duration,
}

impl Pauses {
    fn new(settings: &Settings) -> Self {
        let most = if settings.has_choice() { MOST_BESIDE_OTHERS } else { Duration::MAX };
        Self { next: settings.back_off, most: settings.back_off_max.min(most) }
    }

    /// From now on they are as long as they get.
    fn longest(&mut self) {
        self.next = self.most;
    }

    /// The next, but what the target asked for if that is longer, within reason.
    fn next_after(&mut self, asked: Duration) -> Duration {
        self.next().max(asked.min(MOST_PATIENCE))
    }

    fn next(&mut self) -> Duration {
        let pause = self.next.min(self.most);
        self.next = pause * 2;
        let random = RandomState::new().hash_one(0) % 256;
        pause + pause * random as u32 / 1024
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut pauses = Pauses::new(&Settings::new("node", "iqn.x:y", 0));
        for expected in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let ms = pauses.next().as_millis();
            assert!((expected..=expected * 5 / 4).contains(&ms), "{ms} for {expected}");
        }
    }

    #[test]
    fn who_has_a_choice_looks_again_soon() {
        let mut settings = Settings::new("node", "iqn.x:y", 0);
        settings.other_portals.push("other".into());
        let mut pauses = Pauses::new(&settings);
        let longest = (0..8).map(|_| pauses.next()).max();
        assert!(longest.is_some_and(|longest| longest <= Duration::from_millis(1250)));
    }

    #[test]
    fn no_target_makes_us_wait_for_hours() {
        let mut pauses = Pauses::new(&Settings::new("node", "iqn.x:y", 0));
        assert_eq!(pauses.next_after(Duration::from_secs(3)), Duration::from_secs(3));
        assert_eq!(pauses.next_after(Duration::from_secs(65_535)), MOST_PATIENCE);
    }

    #[test]
    fn another_unit_is_told_by_its_name_and_size() {
        let facts = Facts {
            identity: "naa.1".into(),
            vendor: String::new(),
            product: String::new(),
            geometry: Geometry::with_blocks(100),
            fua: true,
            max_transfer_blocks: None,
            write_same_unmap_blocks: None,
        };
        let expected = Expected::new("naa.1".into(), &facts.geometry);
        assert!(expected.check(&facts).is_ok());
        let other = Expected { identity: "naa.2".into(), ..expected.clone() };
        let message = other.check(&facts).unwrap_err().to_string();
        assert!(message.contains("naa.1") && message.contains("naa.2"), "{message}");
        assert!(Expected { blocks: 99, ..expected.clone() }.check(&facts).is_ok(), "it has grown");
        let shrunk = Expected { blocks: 101, ..expected };
        let message = shrunk.check(&facts).unwrap_err().to_string();
        assert!(message.contains("100") && message.contains("101"), "{message}");
    }
}
