//! The driver: one tokio task that owns the session, all its connections and the pending commands, and that
//! reconnects.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use iscsi::{login::LoginFailure, pdu::LoginStatus, session::initiator::InitiatorEvent};
use scsi::{Lun, Sense};
use tokio::{
    sync::mpsc,
    time::{sleep, sleep_until},
};
use tracing::{debug, info, warn};

use crate::{
    CommandError, Error, InitiatorConnectionStats, InitiatorStatistics, LinkState, Settings,
    backoff::{Backoff, GOOD_CONNECTION},
    clock::now,
    connection_io::ConnectionTraffic,
    login::LoggedIn,
    missing_connections::MissingConnections,
    pending_commands::{Job, PendingTable},
    session_io::SessionIo,
    session_state::RemoteSessionState,
    statistics_baseline::StatisticsBaseline,
    unit_description::{reports_change, reports_reset, reports_size},
    verified_session::{ExpectedUnit, VerifiedSession, attempt},
};

/// A request of a [`crate::RemoteSession`] to the task that drives it.
pub(crate) enum Message {
    Job(Job),
    /// Verify the unit in a new session, because another unit may have replaced it.
    Judge,
    /// Wait for the commands in progress, log out, and end the driver.
    Close,
}

pub(crate) struct InitiatorDriver {
    settings: Arc<Settings>,
    messages: mpsc::Receiver<Message>,
    shared: Arc<RemoteSessionState>,
    expected: ExpectedUnit,
    pending: PendingTable,
    statistics: InitiatorStatistics,
    /// The portal group of the last session; `None` if the settings have one portal only.
    group: Option<u16>,
    /// True if another unit may have replaced the unit, so that a new session must verify it.
    suspicious: bool,
    /// True if the log of events already says that the target does not support the wanted compression.
    told_uncompressed: bool,
    /// True after a close was requested: no further jobs are accepted.
    closing: bool,
}

/// The reason why a session has ended.
enum ConnectionEnd {
    /// The driver was asked to close the session, and has logged out.
    Closed,
    /// The session was lost, for this reason. Wait for the time `wait` before the next attempt to connect.
    Lost { reason: Arc<str>, wait: Duration },
}

/// Returns true if logins will fail until an operator changes a certificate, a secret or a permission.
fn needs_somebody(error: &Error) -> bool {
    match error {
        Error::Tls(_) | Error::Login(LoginFailure::Proof(_)) => true,
        Error::Login(LoginFailure::Refused(status)) => {
            matches!(status, LoginStatus::AuthenticationFailure | LoginStatus::AuthorizationFailure)
        }
        _ => false,
    }
}

/// Returns true for a refused login that will most likely be refused again. A target that has withdrawn the permission
/// of this initiator answers as if the target did not exist (0203h).
fn is_refused(error: &Error) -> bool {
    use LoginStatus::{OutOfResources, ServiceUnavailable};
    matches!(error, Error::Login(LoginFailure::Refused(status))
        if !matches!(status, OutOfResources | ServiceUnavailable))
}

/// How long the driver waits when no timer is running.
const IDLE: Duration = Duration::from_secs(3600);

impl InitiatorDriver {
    pub(crate) fn new(
        settings: Arc<Settings>,
        messages: mpsc::Receiver<Message>,
        shared: Arc<RemoteSessionState>,
        expected: ExpectedUnit,
    ) -> Self {
        let lun = Lun::from_number(settings.lun).unwrap_or_default();
        let mut pending = PendingTable::new(lun, settings.command_time_out, settings.busy_time_out);
        pending.answered = Arc::clone(&shared.answered);
        pending.has_choice = settings.has_choice();
        let statistics = InitiatorStatistics::default();
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

    /// Runs until the last handle of the session is dropped, or one of them closes the session.
    pub(crate) async fn run(mut self, first: Option<VerifiedSession>) {
        let mut backoff = Backoff::new(&self.settings);
        let mut wait = Duration::ZERO;
        let mut live = first;
        loop {
            let current = match live.take() {
                Some(live) => live,
                None => match self.reconnect(wait, &mut backoff).await {
                    Some(live) => live,
                    None => break,
                },
            };
            let begun = now();
            match self.serve(current).await {
                ConnectionEnd::Closed => break,
                ConnectionEnd::Lost { reason, wait: at_least } => {
                    warn!(target = self.settings.target, %reason, "lost the session");
                    if now().saturating_duration_since(begun) >= GOOD_CONNECTION {
                        backoff = Backoff::new(&self.settings);
                    }
                    wait = backoff.next_after(at_least);
                    self.settings = Arc::new((*self.settings).clone().at_the_next_portal());
                    self.statistics.recovery.reconnects += 1;
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
        // Wake the task that refreshes the capacity. It sees that the channel is closed, and ends.
        self.messages.close();
        self.shared.look_at_size.notify_one();
    }

    /// Sends the commands of callers through one session, until that session ends.
    async fn serve(&mut self, live: VerifiedSession) -> ConnectionEnd {
        let VerifiedSession { settings, mut io, facts } = live;
        self.pending.lun = Lun::from_number(settings.lun).unwrap_or_default();
        // Record the portal group only if the settings name several portals. With a single portal it is not compared,
        // since a target may use another tag after a restart.
        if settings.locate.is_none() && settings.has_choice() {
            self.group = io.tpgt;
        }
        self.settings = settings;
        *self.shared.portal.lock() = Some(io.portal.as_str().into());
        let default_wait = io.session.parameters().default_time2wait;
        self.pending.volatile_cache = facts.geometry.volatile_cache;
        self.shared.set_facts(facts);
        self.suspicious = false;
        self.shared.next_generation();
        self.shared.state.send_replace(LinkState::Up);
        info!(target = self.settings.target, portal = io.portal, "session is up");
        self.note_compression(&io);
        *self.shared.congestion.lock() = Some(io.congestion.clone());

        let mut counted = StatisticsBaseline::default();
        let ended = self.serve_until_it_ends(&mut io, &mut counted).await;
        // Handle the answers that arrived before the end of the session, whatever the reason of the end.
        let _ = self.handle_events(&mut io, &mut counted);
        counted.add_to(&mut self.statistics, &io);
        self.pending.replay(io.session.take_unanswered(), &mut self.statistics);
        if matches!(ended, Err(Error::NotServed(_))) {
            // Log out, which ends our commands at this portal. Only then may they be sent again to another portal.
            io.log_out().await;
        } else {
            drop(io);
        }
        self.shared.connections.lock().clear();
        *self.shared.silent_since.lock() = None;
        *self.shared.congestion.lock() = None;
        self.publish();
        match ended {
            Ok(end) => end,
            Err(error) => {
                let wait = error.time2wait().unwrap_or(default_wait);
                let wait = Duration::from_secs(wait.into());
                ConnectionEnd::Lost { reason: error.to_string().into(), wait }
            }
        }
    }

    async fn serve_until_it_ends(
        &mut self,
        io: &mut SessionIo,
        counted: &mut StatisticsBaseline,
    ) -> Result<ConnectionEnd, Error> {
        let mut missing = MissingConnections::new(&self.settings, io);
        let timer = sleep(Duration::ZERO);
        tokio::pin!(timer);
        let mut deadline = now();
        loop {
            // Check the time in every iteration. `select!` polls the timer last, so sockets that are always ready would
            // otherwise keep it from being polled.
            if deadline <= now() {
                self.pending.wake(now());
                io.handle_timeout(now());
                if let Some(end) = self.handle_events(io, counted)? {
                    return Ok(end);
                }
            }
            self.take_messages();
            if self.suspicious {
                return Err(Error::unit("its capacity has changed"));
            }
            self.submit(io);
            if self.closing && self.pending.len() == 0 {
                io.session.log_out(now());
            }
            io.pump();
            io.check()?;
            missing.look(io, self.closing);
            let give_up_at = self.note_link(io);
            if give_up_at.is_some_and(|at| at <= now()) {
                return Err(Error::TimedOut("another connection of the session"));
            }
            counted.add_to(&mut self.statistics, io);
            self.publish();
            self.publish_connections(io);
            *self.shared.silent_since.lock() = io.session.silent_since();

            // Every PDU moves the deadline of the state machine. Resetting the timer each time costs more than letting
            // it expire too early now and then.
            let deadlines =
                [io.deadline(), self.pending.deadline(), missing.deadline(), give_up_at];
            let earliest = deadlines.into_iter().flatten().min();
            deadline = earliest.unwrap_or_else(|| now() + IDLE);
            if timer.is_elapsed() || deadline < timer.deadline().into_std() {
                timer.as_mut().reset(deadline.into());
            }
            let has_room = self.has_room();
            tokio::select! {
                biased;
                () = io.exchange() => {
                    // Process the responses that were received before the error: their commands are complete.
                    if let Some(end) = self.handle_events(io, counted)? {
                        return Ok(end);
                    }
                }
                message = self.messages.recv(), if has_room => self.handle_message(message),
                joined = missing.joined() => {
                    if let Some(error) = self.handle_join(io, &mut missing, joined) {
                        return Err(error);
                    }
                }
                () = &mut timer => {}
            }
        }
    }

    /// Reports once if the target does not support the compression that the settings want.
    fn note_compression(&mut self, io: &SessionIo) {
        let compression = io.compression();
        self.statistics.compression = compression;
        let is_wanted = !self.settings.offer.compression.is_empty();
        if is_wanted && compression.is_none() && !self.told_uncompressed {
            self.told_uncompressed = true;
            let (target, portal) = (&self.settings.target, &self.settings.portal);
            warn!(
                target,
                portal, "the target does not support the wanted compression: continuing without"
            );
        }
    }

    /// Handles the result of a login for a further connection. Returns an error if the session must end.
    fn handle_join(
        &mut self,
        io: &mut SessionIo,
        missing: &mut MissingConnections,
        joined: Result<LoggedIn, Error>,
    ) -> Option<Error> {
        match joined {
            Ok(logged_in) => {
                missing.succeeded();
                self.statistics.recovery.reconnects += u64::from(missing.replaces());
                io.join(logged_in);
                None
            }
            // The target refuses the login because it has discarded the session, so a new session is needed.
            Err(error @ Error::Login(_)) if io.len() == 0 => Some(error),
            // End the session: the next one looks for the unit at all portals, since the unit may have moved.
            Err(error) if io.len() == 0 && self.settings.has_choice() => Some(error),
            Err(error) => {
                debug!(%error, "cannot add a connection");
                missing.failed();
                None
            }
        }
    }

    /// Updates the link state. At error recovery level 2, the target keeps a session that has no connection, but
    /// callers have no link meanwhile. They wait at most until the returned time.
    fn note_link(&mut self, io: &SessionIo) -> Option<Instant> {
        let is_up = io.len() > 0;
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

    /// Takes as many jobs from the queue as fit, so that one write to the socket sends all of them.
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

    fn submit(&mut self, io: &mut SessionIo) {
        self.pending.generation = self.shared.generation();
        while io.session.unanswered() < self.settings.queue_depth {
            let Some(request) = self.pending.next(now(), &mut self.statistics) else { break };
            let refused = io.session.submit(request, now());
            assert!(refused.is_ok(), "the session has the queue's depth");
        }
        for tag in self.pending.in_the_way() {
            io.session.expire(tag, now());
        }
    }

    fn handle_events(
        &mut self,
        io: &mut SessionIo,
        counted: &mut StatisticsBaseline,
    ) -> Result<Option<ConnectionEnd>, Error> {
        let (mut changed, mut not_served, mut end) = (None, None, None);
        // Add the counters first: the events below remove connections that have ended.
        counted.add_to(&mut self.statistics, io);
        while let Some(event) = io.poll_event() {
            match event {
                InitiatorEvent::Completed { tag, result } => {
                    let generation = self.shared.generation();
                    let statistics = &mut self.statistics;
                    let news = self.pending.complete(tag, result, generation, now(), statistics);
                    changed = news.attention.and_then(|sense| self.attend(sense)).or(changed);
                    not_served = news.not_served.or(not_served);
                }
                InitiatorEvent::LoggedOut { time2wait } if !self.closing => {
                    let wait = Duration::from_secs(time2wait.into());
                    let reason = "the target asked for a logout".into();
                    end = Some(ConnectionEnd::Lost { reason, wait });
                }
                InitiatorEvent::LoggedOut { .. } => end = Some(ConnectionEnd::Closed),
                InitiatorEvent::LogoutRequested { cid } => {
                    debug!(cid = cid.0, "asked for a logout")
                }
                InitiatorEvent::Closed { cid, error } => {
                    debug!(cid = cid.0, %error, "a connection ended");
                }
                InitiatorEvent::Returned(requests) => {
                    self.pending.take_back(requests, &mut self.statistics);
                }
                InitiatorEvent::Sense(_, sense) => {
                    changed = sense.and_then(|sense| self.attend(sense)).or(changed);
                }
                InitiatorEvent::Text(_) => {}
            }
        }
        match changed {
            _ if end.is_some() => Ok(end),
            // Fail, so that a new session is opened: it reads the properties of the unit again and verifies them.
            Some(sense) => Err(Error::unit(format!("it reports a change: {sense}"))),
            None => not_served.map_or(Ok(None), |sense| Err(Error::NotServed(sense))),
        }
    }

    /// Handles a unit attention or a deferred error. Returns the sense data if the description of the unit must be read
    /// again.
    fn attend(&mut self, sense: Sense) -> Option<Sense> {
        debug!(%sense, "unit attention");
        // A deferred error is about a write that was acknowledged, so the next flush must not report success.
        if reports_reset(&sense) || sense.deferred {
            self.shared.next_generation();
        }
        if reports_size(&sense) {
            self.shared.size_changed.store(true, Ordering::Release);
            self.shared.look_at_size.notify_one();
        }
        reports_change(&sense).then_some(sense)
    }

    /// Tries to connect until an attempt succeeds. Returns `None` if the session is closed meanwhile.
    async fn reconnect(
        &mut self,
        mut wait: Duration,
        backoff: &mut Backoff,
    ) -> Option<VerifiedSession> {
        let give_up_at = self.give_up_at();
        if let Some(blocks) = self.shared.blocks() {
            self.expected.blocks = blocks;
        }
        // If set, calls fail with this error at once instead of waiting for the next session.
        let mut verdict: Option<CommandError> = None;
        let mut is_reported = false;
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
                Err(error) => {
                    if self.judge(&error, &mut verdict, &mut is_reported, backoff) {
                        wait = IDLE;
                        continue;
                    }
                }
            }
            wait = backoff.next();
        }
    }

    /// Handles the failure of an attempt to connect. `verdict` is the error with which calls fail instead of waiting;
    /// `is_reported` is true once a refusal was logged. Returns true if no further attempt must be made.
    fn judge(
        &mut self,
        error: &Error,
        verdict: &mut Option<CommandError>,
        is_reported: &mut bool,
        backoff: &mut Backoff,
    ) -> bool {
        match error {
            Error::Changed(reason) => {
                self.shared.state.send_replace(LinkState::Changed(reason.clone()));
                *verdict = Some(CommandError::Changed(reason.clone()));
            }
            Error::Fenced(reason) => {
                warn!(target = self.settings.target, %reason, "the claim is refused");
                self.shared.state.send_replace(LinkState::Fenced(reason.clone()));
                *verdict = Some(CommandError::Fenced(reason.clone()));
                // The unit has refused the claim, which is final: stop connecting.
                return true;
            }
            error if needs_somebody(error) => {
                // Let calls fail: they must not wait until an operator changes a certificate, a secret or a permission.
                self.note_reason(error);
                let reason = self.give_up();
                self.report_refusal(is_reported, &reason);
                *verdict = Some(CommandError::Unreachable(reason));
                backoff.longest();
            }
            error => {
                debug!(%error, "cannot reconnect");
                self.note_reason(error);
                // Do not report the first refusal if there are other portals: after a move of the volume or a takeover,
                // the unit may be served at another one.
                if is_refused(error) && (!self.settings.has_choice() || verdict.is_some()) {
                    self.report_refusal(is_reported, &error.to_string());
                }
                // Calls fail already. From now on, let them fail with this newer error.
                if let Some(CommandError::Unreachable(reason)) = verdict {
                    *reason = error.to_string().into();
                }
            }
        }
        false
    }

    /// Returns the time from which on calls fail if no session exists by then.
    fn give_up_at(&self) -> Instant {
        match &*self.shared.state.borrow() {
            LinkState::Down { since, .. } => *since + self.settings.give_up_after,
            _ => now(),
        }
    }

    fn report_refusal(&self, is_reported: &mut bool, reason: &str) {
        if !std::mem::replace(is_reported, true) {
            warn!(
                target = self.settings.target, %reason,
                "the target refuses the login of this initiator: retrying until it accepts one"
            );
        }
    }

    /// Records the error as the reason why the link is down.
    fn note_reason(&self, error: &Error) {
        self.shared.state.send_if_modified(|state| match state {
            LinkState::Down { reason, .. } => {
                *reason = error.to_string().into();
                true
            }
            _ => false,
        });
    }

    /// Makes all calls fail at once instead of waiting for a connection. Returns the reason why the link is down.
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

    fn publish_connections(&self, io: &SessionIo) {
        let mut connections = self.shared.connections.lock();
        connections.clear();
        connections.extend(io.traffic().map(
            |(cid, ConnectionTraffic { bytes_in, bytes_out, .. })| {
                let load = io.session.load(cid).unwrap_or_default();
                let (commands, bytes) = (load.commands, load.bytes);
                InitiatorConnectionStats { cid: cid.0, commands, bytes, bytes_out, bytes_in }
            },
        ));
    }
}
