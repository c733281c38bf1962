//! A session: its connections, and which of them a command takes.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    CommandRequest, ConnectionTiming, InitiatorCommandWindow, InitiatorEvent,
    InitiatorSessionError,
    commands::{NextCommand, SessionCommands},
    connection::{InitiatorConnection, InitiatorPduCounters, Logout, LogoutScope},
    lost::FailedConnection,
};
use crate::{
    Cid, Serial,
    codec::{Digests, PduFrame, PduOutput},
    keys::Parameters,
    pdu::{LogoutResult, Numbers},
};

/// A session and its connections. The driver hands in frames and time, and after each batch of
/// them polls: [`InitiatorSession::transmit`], [`InitiatorSession::output`], [`InitiatorSession::poll_event`],
/// [`InitiatorSession::poll_timeout`]. When [`InitiatorSession::is_over`], what was not answered comes out of
/// [`InitiatorSession::take_unanswered`], to be submitted to the next one.
pub struct InitiatorSession {
    pub(super) commands: SessionCommands,
    pub(super) timing: ConnectionTiming,
    spread: CommandDistribution,
    /// Commands sent so far, for [`CommandDistribution::InTurn`].
    turn: usize,
    /// At most eight or so: looked through.
    pub(super) connections: Vec<InitiatorConnection>,
    /// The number given last.
    last_cid: Cid,
    /// Connections that failed, until the target knows it and their tasks have found others.
    pub(super) lost: VecDeque<FailedConnection>,
    /// Without any connection the target keeps the tasks until then.
    pub(super) kept_until: Option<Instant>,
    /// Why the session cannot go on.
    pub(super) over: Option<InitiatorSessionError>,
}

/// Which connection of several a command goes to.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum CommandDistribution {
    /// The one with the least to do, bytes before commands: what comes slowly off one connection goes to
    /// the others.
    #[default]
    LeastToDo,
    /// Each in its turn, as initiators of the Fair-TCP paper's time did: all wait for the slowest. To
    /// measure the other by.
    InTurn,
}

/// A connection that has just logged in.
#[derive(Clone, Copy, Debug)]
pub struct JoinedConnection {
    /// Its number.
    pub cid: Cid,
    /// What was negotiated for it.
    pub digests: Digests,
    /// What the target takes in one data segment, in bytes.
    pub max_send_data_segment_length: u32,
    /// The next status number.
    pub exp_stat_sn: Serial,
    /// The window as the login's last response tells it.
    pub exp_cmd_sn: Serial,
    /// See `exp_cmd_sn`.
    pub max_cmd_sn: Serial,
}

/// What commands on a connection move; the lesser is preferred.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct ConnectionLoad {
    /// Bytes, in either direction.
    pub bytes: u64,
    /// Commands.
    pub commands: u32,
}

impl ConnectionLoad {
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.commands += 1;
    }

    pub(super) fn remove(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.commands -= 1;
    }
}

impl InitiatorSession {
    /// A session after the login of its first connection, which takes `depth` commands at a time.
    #[must_use]
    pub fn new(
        parameters: Parameters,
        window: InitiatorCommandWindow,
        depth: usize,
        timing: ConnectionTiming,
        first: JoinedConnection,
        now: Instant,
    ) -> Self {
        let mut session = Self {
            commands: SessionCommands::new(parameters, window, depth),
            timing,
            spread: CommandDistribution::default(),
            turn: 0,
            connections: Vec::new(),
            last_cid: first.cid,
            lost: VecDeque::new(),
            kept_until: None,
            over: None,
        };
        session.join(first, now);
        session
    }

    /// Another connection of this session has logged in. If it has the number of one that was
    /// lost, the target has taken that for logged out (RFC 7143, 6.3.4).
    pub fn join(&mut self, joined: JoinedConnection, now: Instant) {
        let JoinedConnection { cid, digests, max_send_data_segment_length, exp_stat_sn, .. } =
            joined;
        debug_assert!(self.connections.iter().all(|connection| connection.cid != cid));
        let timing = self.timing;
        let segment = max_send_data_segment_length;
        let connection = InitiatorConnection::new(cid, digests, segment, exp_stat_sn, timing, now);
        self.connections.push(connection);
        self.last_cid = cid;
        self.kept_until = None;
        let JoinedConnection { exp_cmd_sn, max_cmd_sn, .. } = joined;
        let numbers = Numbers { stat_sn: exp_stat_sn, exp_cmd_sn, max_cmd_sn };
        self.commands.window.update(&numbers);
        self.note_reinstated(cid, now);
        self.recover(now);
    }

    /// Spreads commands in this way from now on.
    pub fn set_spread(&mut self, spread: CommandDistribution) {
        self.spread = spread;
    }

    /// What was negotiated by the first connection.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.commands.parameters
    }

    /// Commands submitted and not ended.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.commands.unanswered()
    }

    /// Commands that wait to be sent.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.commands.waiting()
    }

    /// The CmdSN that a login of another connection carries.
    #[must_use]
    pub fn cmd_sn(&self) -> Serial {
        self.commands.window.cmd_sn()
    }

    /// The connections there are.
    pub fn cids(&self) -> impl Iterator<Item = Cid> {
        self.connections.iter().map(|connection| connection.cid)
    }

    /// A number for the next connection. While there are others, one that was not used lately, so
    /// that late news of a lost one are not taken for its; else that of a lost one, whose place it
    /// takes.
    #[must_use]
    pub fn next_cid(&self) -> Cid {
        if self.connections.is_empty()
            && let Some(lost) = self.lost.front()
        {
            return lost.cid;
        }
        let is_free = |cid: &Cid| {
            self.connections.iter().all(|connection| connection.cid != *cid)
                && self.lost.iter().all(|lost| lost.cid != *cid)
        };
        let mut after = (1..=u16::MAX).map(|count| Cid(self.last_cid.0.wrapping_add(count)));
        after.find(is_free).unwrap_or_default()
    }

    /// What a connection counted; `None` if there is no such connection (any more).
    #[must_use]
    pub fn counters(&self, cid: Cid) -> Option<InitiatorPduCounters> {
        self.connection(cid).map(|connection| connection.counters)
    }

    /// What the commands on a connection move.
    #[must_use]
    pub fn load(&self, cid: Cid) -> Option<ConnectionLoad> {
        self.connection(cid).map(|connection| connection.load)
    }

    /// What to write to the socket of a connection.
    pub fn output(&mut self, cid: Cid) -> Option<&mut PduOutput> {
        self.connection_mut(cid).map(|connection| &mut connection.output)
    }

    /// Takes a command. It is sent by [`InitiatorSession::transmit`], as soon as the window is open, in
    /// the order of submission. Comes back if `depth` commands are unanswered.
    ///
    /// A command that changes blocks must not be submitted before another one that changes some
    /// of them has been answered: it may have to be sent again, and would then undo the later one.
    pub fn submit(&mut self, request: CommandRequest, now: Instant) -> Result<(), CommandRequest> {
        self.commands.submit(request, now)
    }

    /// Nobody waits for this command any more: its time ends now. The next
    /// [`InitiatorSession::handle_timeout`], due at once, aborts it.
    pub fn expire(&mut self, tag: u64, now: Instant) {
        self.commands.expire(tag, now);
    }

    /// Ends the session: every command that was not answered, in the order of submission, to be
    /// submitted to the next one.
    pub fn take_unanswered(&mut self) -> Vec<CommandRequest> {
        self.commands.take_unanswered()
    }

    /// The next event, if there is one.
    pub fn poll_event(&mut self) -> Option<InitiatorEvent> {
        self.commands.events.pop_front()
    }

    /// A PDU arrived on a connection. After an error the connection is no more: its socket is to
    /// be closed. Nothing is taken when the session is over: what was not answered by then comes
    /// out of [`InitiatorSession::take_unanswered`].
    pub fn handle_frame(
        &mut self,
        cid: Cid,
        frame: PduFrame,
        now: Instant,
    ) -> Result<(), InitiatorSessionError> {
        if self.is_over() {
            return Ok(());
        }
        let Self { commands, connections, .. } = self;
        let Some(connection) = connections.iter_mut().find(|connection| connection.cid == cid)
        else {
            return Ok(());
        };
        let taken = connection.handle_frame(commands, frame, now);
        if let Err(error) = &taken {
            self.lose(cid, error.clone(), now);
            return taken;
        }
        if !matches!(connection.logout, Logout::No) {
            self.leave(cid, now);
        }
        while let Some(answer) = self.commands.logged_out.pop() {
            self.handle_foreign_logout(&answer, now);
        }
        if !self.lost.is_empty() || !self.commands.orphans.is_empty() {
            self.recover(now);
        }
        Ok(())
    }

    /// The connection's socket is closed or broken: the connection is no more.
    pub fn close(&mut self, cid: Cid, error: InitiatorSessionError, now: Instant) {
        if self.connection(cid).is_some() {
            self.lose(cid, error, now);
        }
    }

    /// When [`InitiatorSession::handle_timeout`] wants to be called; never, if the session is over.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_over() {
            return None;
        }
        let commands = &self.commands;
        let connections = self.connections.iter().map(|connection| {
            connection.poll_timeout(commands, self.heard_elsewhere(connection.cid))
        });
        let recovery = self.recovery_timeout().into_iter().chain(self.kept_until);
        let deadline = self.commands.earliest_deadline();
        connections.chain(recovery).chain(deadline).min()
    }

    /// Where the ping that is not answered yet ends in the connection's output ([`PduOutput::end`]); `None` if there
    /// is none. Meanwhile its transport is to be looked at every now and then, for [`InitiatorSession::note_carried`].
    #[must_use]
    pub fn asked(&self, cid: Cid) -> Option<u64> {
        Some(self.connection(cid)?.liveness.ping.as_ref()?.end)
    }

    /// Bytes got through on a connection in a moment not before `at`, as its transport knows: some came, or the target's
    /// host acknowledged some that a ping waits behind ([`InitiatorSession::asked`]), or the ping. What was sent after the ping
    /// does not count: a host acknowledges also for a process that has stopped. Not needed for whole PDUs that come. To
    /// be told before [`InitiatorSession::handle_timeout`]: a connection that is slow is then not taken for one that has failed.
    pub fn note_carried(&mut self, cid: Cid, at: Instant) {
        if let Some(connection) = self.connection_mut(cid) {
            connection.note_carried(at);
        }
    }

    /// Returns since when the target has sent nothing although every connection waits for the answer to a ping and
    /// no byte of ours got through; `None` if one connection waits for no answer. A target that takes long for a
    /// command answers pings meanwhile.
    #[must_use]
    pub fn silent_since(&self) -> Option<Instant> {
        let silent: Option<Vec<_>> =
            self.connections.iter().map(InitiatorConnection::owed_since).collect();
        silent?.into_iter().max()
    }

    /// Time passed. Connections that failed in it come out as [`InitiatorEvent::Closed`].
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.is_over() {
            return;
        }
        let mut failed = Vec::new();
        let mut asks = false;
        for at in 0..self.connections.len() {
            let heard_elsewhere = self.heard_elsewhere(self.connections[at].cid);
            let connection = &mut self.connections[at];
            match connection.check(&mut self.commands, heard_elsewhere, now) {
                Ok(suspects) => asks |= suspects,
                Err(error) => failed.push((connection.cid, error)),
            }
        }
        if asks {
            let commands = &mut self.commands;
            self.connections.iter_mut().for_each(|connection| connection.ping(commands, now));
        }
        if self.commands.earliest_deadline().is_some_and(|deadline| deadline <= now) {
            self.commands.expire_waiting(now);
            for connection in &mut self.connections {
                if let Err(error) = connection.abort_late_tasks(&mut self.commands, now) {
                    failed.push((connection.cid, error));
                }
            }
            self.commands.recompute_deadline();
        }
        for (cid, error) in failed {
            if self.connection(cid).is_some() {
                self.commands
                    .events
                    .push_back(InitiatorEvent::Closed { cid, error: error.clone() });
                self.lose(cid, error, now);
            }
        }
        let leaving: Vec<Cid> = self.cids().collect();
        leaving.into_iter().for_each(|cid| self.leave(cid, now));
        if self.kept_until.is_some_and(|until| until <= now) {
            self.end(InitiatorSessionError::Unanswered("a login, while the target kept the tasks"));
        }
        self.recover(now);
    }

    /// Makes PDUs out of what may be sent now. Call it after every batch of frames, verbs and
    /// whenever output was written.
    pub fn transmit(&mut self) {
        // A command, then a Data-Out, in turn: neither do small reads wait for a long burst, nor
        // does data that the target waits for queue behind all commands.
        loop {
            let mut sent = self.send_command();
            for connection in &mut self.connections {
                sent |= connection.has_room() && connection.send_data(&mut self.commands);
            }
            if !sent {
                return;
            }
        }
    }

    /// Sends a command on the connection whose it is. False if there is none to send, or none that has room.
    fn send_command(&mut self) -> bool {
        let chosen = match self.spread {
            CommandDistribution::LeastToDo => self.least_to_do(),
            CommandDistribution::InTurn => self.next_in_turn(),
        };
        let Some(at) = chosen else { return false };
        let connection = &mut self.connections[at];
        match self.commands.next_to_send() {
            None => return false,
            Some(NextCommand::New(waiting)) => connection.send_new(&mut self.commands, waiting),
            Some(NextCommand::Again(itt)) => connection.send_again(&mut self.commands, itt),
        }
        self.turn = self.turn.wrapping_add(1);
        true
    }

    fn least_to_do(&self) -> Option<usize> {
        let several = self.connections.len() > 1;
        // One that does not answer a ping gets nothing while another one does.
        let in_doubt =
            |c: &InitiatorConnection| several && c.liveness.ping.is_some() && c.load.commands > 0;
        let all = self.connections.iter().enumerate();
        let open = all.filter(|(_, c)| c.is_open() && c.has_room());
        Some(open.min_by_key(|(_, c)| (in_doubt(c), c.load))?.0)
    }

    /// Nothing goes past one whose turn it is and that has no room.
    fn next_in_turn(&self) -> Option<usize> {
        let all = self.connections.iter().enumerate();
        let open: SmallVec<[usize; 8]> =
            all.filter(|(_, c)| c.is_open()).map(|(at, _)| at).collect();
        let at = *open.get(self.turn.checked_rem(open.len())?)?;
        self.connections[at].has_room().then_some(at)
    }

    /// Asks for text keys, for example `SendTargets=All`; the answer is an [`InitiatorEvent::Text`]. False,
    /// and nothing happens, while another exchange is under way: the target may have asked for one.
    #[must_use]
    pub fn text(&mut self, text: Bytes, now: Instant) -> bool {
        let Some(connection) = self.connections.first_mut() else { return false };
        let free = connection.text.is_none();
        if free {
            connection.begin_text(&mut self.commands, text, true, now);
        }
        free
    }

    /// Leaves: closes the session. The answer is an [`InitiatorEvent::LoggedOut`]. Commands on their way
    /// may or may not be performed.
    pub fn log_out(&mut self, now: Instant) {
        let is_leaving = |c: &InitiatorConnection| {
            let session = LogoutScope::Session;
            matches!(c.logout, Logout::Sent { scope, .. } | Logout::Done { scope, .. } if scope == session)
        };
        if self.connections.iter().any(is_leaving) {
            return;
        }
        let carrier = self.connections.iter().position(InitiatorConnection::is_open).unwrap_or(0);
        for (at, connection) in self.connections.iter_mut().enumerate() {
            if at == carrier {
                connection.log_out(&mut self.commands, LogoutScope::Session, now);
            } else {
                connection.logout = Logout::Ending;
            }
        }
    }

    /// Takes a connection out of the session while others go on: its commands end, or are handed
    /// back after `patience`; then it is logged out. The answer is an [`InitiatorEvent::Closed`].
    pub fn remove(&mut self, cid: Cid, patience: Duration, now: Instant) {
        if let Some(connection) = self.connection_mut(cid)
            && connection.is_open()
        {
            connection.logout = Logout::Draining(now + patience);
            self.leave(cid, now);
        }
    }

    /// Goes on with a logout: sends it when the connection has no tasks left or its time is up,
    /// and takes the connection away when it is answered.
    fn leave(&mut self, cid: Cid, now: Instant) {
        let alone = self.connections.len() == 1;
        let Some(at) = self.connections.iter().position(|c| c.cid == cid) else { return };
        let connection = &mut self.connections[at];
        match connection.logout {
            Logout::Draining(deadline) if connection.load.commands == 0 || deadline <= now => {
                let scope = if alone { LogoutScope::Session } else { LogoutScope::Connection };
                connection.log_out(&mut self.commands, scope, now);
            }
            Logout::Done { time2wait, scope: LogoutScope::Session, .. } => {
                let error = InitiatorSessionError::LoggedOut { time2wait };
                self.end(error);
                self.commands.events.push_back(InitiatorEvent::LoggedOut { time2wait });
            }
            // The target may still perform what was sent there: only the login of the next session
            // ends that for certain.
            Logout::Done { result, scope: LogoutScope::Connection, .. }
                if result != LogoutResult::Closed && connection.load.commands > 0 =>
            {
                self.end(InitiatorSessionError::Unanswered("the logout of a connection"));
            }
            Logout::Done { time2wait, scope: LogoutScope::Connection, .. } => {
                self.connections.remove(at);
                self.mark_lost(cid, now);
                self.give_back(cid);
                let error = InitiatorSessionError::LoggedOut { time2wait };
                self.commands
                    .events
                    .push_back(InitiatorEvent::Closed { cid, error: error.clone() });
                if self.connections.is_empty() {
                    self.end(error);
                    self.commands.events.push_back(InitiatorEvent::LoggedOut { time2wait });
                }
            }
            _ => {}
        }
    }

    /// When another connection was last heard.
    fn heard_elsewhere(&self, cid: Cid) -> Option<Instant> {
        if self.connections.len() < 2 {
            return None;
        }
        let others = self.connections.iter().filter(|connection| connection.cid != cid);
        others.map(|connection| connection.liveness.heard).max()
    }

    pub(super) fn connection(&self, cid: Cid) -> Option<&InitiatorConnection> {
        self.connections.iter().find(|connection| connection.cid == cid)
    }

    pub(super) fn connection_mut(&mut self, cid: Cid) -> Option<&mut InitiatorConnection> {
        self.connections.iter_mut().find(|connection| connection.cid == cid)
    }
}
