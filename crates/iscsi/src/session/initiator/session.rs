//! An initiator's session: its connections, and the distribution of commands to them.

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

/// A session and its connections. The driver passes received frames and the time to it. After each
/// batch it calls [`InitiatorSession::transmit`], [`InitiatorSession::output`],
/// [`InitiatorSession::poll_event`] and [`InitiatorSession::poll_timeout`]. When the session has
/// ended ([`InitiatorSession::is_over`]), the driver takes the unanswered commands
/// ([`InitiatorSession::take_unanswered`]) and submits them to the next session.
pub struct InitiatorSession {
    pub(super) commands: SessionCommands,
    pub(super) timing: ConnectionTiming,
    spread: CommandDistribution,
    /// The number of commands sent so far, which selects the next connection with
    /// [`CommandDistribution::InTurn`].
    turn: usize,
    /// The open connections. There are usually at most eight, so a linear search is sufficient.
    pub(super) connections: Vec<InitiatorConnection>,
    /// The CID of the newest connection.
    last_cid: Cid,
    /// Failed connections. An entry stays until the target has logged the connection out and its
    /// tasks have moved to other connections.
    pub(super) lost: VecDeque<FailedConnection>,
    /// While the session has no connection: the time until which the target keeps its tasks.
    pub(super) kept_until: Option<Instant>,
    /// The error that has ended the session; `None` while it continues.
    pub(super) over: Option<InitiatorSessionError>,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum CommandDistribution {
    /// The connection with the least load gets the command, compared by bytes and then by commands.
    /// A slow connection thus leaves commands to the others.
    #[default]
    LeastToDo,
    /// Each connection gets a command in turn, as in initiators at the time of the Fair-TCP paper.
    /// All connections then wait for the slowest one. Used only to compare in measurements.
    InTurn,
}

/// A connection that has logged in and is to be added to the session.
#[derive(Clone, Copy, Debug)]
pub struct JoinedConnection {
    pub cid: Cid,
    pub digests: Digests,
    /// The longest data segment in bytes that the target accepts.
    pub max_send_data_segment_length: u32,
    /// The StatSN that the target uses next on this connection.
    pub exp_stat_sn: Serial,
    /// ExpCmdSN in the last response of the login.
    pub exp_cmd_sn: Serial,
    /// MaxCmdSN in the last response of the login.
    pub max_cmd_sn: Serial,
}

/// The load of a connection. Values are compared by bytes first, and a command is sent on the
/// connection with the smaller load.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct ConnectionLoad {
    /// Number of data bytes of the commands in flight on this connection, in both directions.
    pub bytes: u64,
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
    /// Makes a session after the login of its first connection. At most `depth` commands may be
    /// unanswered at a time.
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

    /// Adds a connection that has logged in. If a failed connection had the same CID, the login has
    /// logged it out at the target (RFC 7143, 6.3.4).
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

    /// Selects how later commands are distributed over the connections.
    pub fn set_spread(&mut self, spread: CommandDistribution) {
        self.spread = spread;
    }

    /// Returns the parameters that the first connection negotiated.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.commands.parameters
    }

    /// Returns the number of commands that were submitted and have not ended.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.commands.unanswered()
    }

    /// Returns the number of commands that wait to be sent.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.commands.waiting()
    }

    /// Returns the CmdSN with which another connection of this session has to log in.
    #[must_use]
    pub fn cmd_sn(&self) -> Serial {
        self.commands.window.cmd_sn()
    }

    pub fn cids(&self) -> impl Iterator<Item = Cid> {
        self.connections.iter().map(|connection| connection.cid)
    }

    /// Returns a CID for the next connection. While the session has connections, the CID is one
    /// that was not used recently, so that late messages about a failed connection are not mistaken
    /// for messages about the new one. Otherwise it is the CID of a failed connection, which the
    /// new connection replaces.
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

    /// Returns the counters of a connection; `None` if the session has no connection with this CID.
    #[must_use]
    pub fn counters(&self, cid: Cid) -> Option<InitiatorPduCounters> {
        self.connection(cid).map(|connection| connection.counters)
    }

    #[must_use]
    pub fn load(&self, cid: Cid) -> Option<ConnectionLoad> {
        self.connection(cid).map(|connection| connection.load)
    }

    /// Returns the output of a connection, from which the driver removes the bytes that it has
    /// sent.
    pub fn output(&mut self, cid: Cid) -> Option<&mut PduOutput> {
        self.connection_mut(cid).map(|connection| &mut connection.output)
    }

    /// Accepts a command. [`InitiatorSession::transmit`] sends it as soon as the window is open, in
    /// the order of submission. Returns the command if `depth` commands are unanswered.
    ///
    /// A command that writes blocks must not be submitted before an earlier write to some of these
    /// blocks has been answered: if the earlier write had to be sent again, it would overwrite the
    /// data of the later one.
    pub fn submit(&mut self, request: CommandRequest, now: Instant) -> Result<(), CommandRequest> {
        self.commands.submit(request, now)
    }

    /// Makes a command time out now, because the application does not wait for it any more. The
    /// next [`InitiatorSession::handle_timeout`], which is due at once, aborts the command.
    pub fn expire(&mut self, tag: u64, now: Instant) {
        self.commands.expire(tag, now);
    }

    /// Ends the session and returns every unanswered command in the order of submission. Submit
    /// them to the next session.
    pub fn take_unanswered(&mut self) -> Vec<CommandRequest> {
        self.commands.take_unanswered()
    }

    pub fn poll_event(&mut self) -> Option<InitiatorEvent> {
        self.commands.events.pop_front()
    }

    /// Processes a PDU that has arrived on a connection. An error means that the connection has
    /// failed: close its socket. Does nothing after the end of the session;
    /// [`InitiatorSession::take_unanswered`] then returns the commands that were not answered.
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

    /// Records that the socket of a connection is closed or has failed.
    pub fn close(&mut self, cid: Cid, error: InitiatorSessionError, now: Instant) {
        if self.connection(cid).is_some() {
            self.lose(cid, error, now);
        }
    }

    /// Returns when to call [`InitiatorSession::handle_timeout`]; `None` if the session is over.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_over() {
            return None;
        }
        let commands = &self.commands;
        let connections = self.connections.iter().map(|connection| {
            connection.poll_timeout(commands, self.last_message_elsewhere(connection.cid))
        });
        let recovery = self.recovery_timeout().into_iter().chain(self.kept_until);
        let deadline = self.commands.earliest_deadline();
        connections.chain(recovery).chain(deadline).min()
    }

    /// Returns the position of the end of the unanswered ping in the connection's output
    /// ([`PduOutput::end`]); `None` if no ping is unanswered. While a ping is unanswered, the
    /// driver must observe the transport and call [`InitiatorSession::note_carried`].
    #[must_use]
    pub fn asked(&self, cid: Cid) -> Option<u64> {
        Some(self.connection(cid)?.liveness.ping.as_ref()?.end)
    }

    /// Records that bytes were transferred on a connection at time `at`, as its transport reports:
    /// bytes have arrived, or the target's host has acknowledged the ping
    /// ([`InitiatorSession::asked`]) or bytes before the ping. Acknowledgments of bytes sent after
    /// the ping do not count: the host also acknowledges bytes for a process that has stopped. No
    /// call is needed for complete PDUs. Call this before [`InitiatorSession::handle_timeout`], so
    /// that a slow connection is not mistaken for a failed one.
    pub fn note_carried(&mut self, cid: Cid, at: Instant) {
        if let Some(connection) = self.connection_mut(cid) {
            connection.note_carried(at);
        }
    }

    /// Returns since when the whole target is silent: every connection waits for the answer to a
    /// ping, the target has sent nothing, and no byte of ours was transferred. Returns `None` if
    /// one connection waits for no ping. A target that works on a long command still answers pings.
    #[must_use]
    pub fn silent_since(&self) -> Option<Instant> {
        let silent: Option<Vec<_>> =
            self.connections.iter().map(InitiatorConnection::owed_since).collect();
        silent?.into_iter().max()
    }

    /// Processes time-outs. Connections that fail are reported by [`InitiatorEvent::Closed`].
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.is_over() {
            return;
        }
        let mut failed = Vec::new();
        let mut asks = false;
        for at in 0..self.connections.len() {
            let last_message_elsewhere = self.last_message_elsewhere(self.connections[at].cid);
            let connection = &mut self.connections[at];
            match connection.check(&mut self.commands, last_message_elsewhere, now) {
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
            self.end(InitiatorSessionError::Unanswered(
                "a login before the target discarded the tasks",
            ));
        }
        self.recover(now);
    }

    /// Makes the PDUs that may be sent now. Call this after every batch of frames and calls, and
    /// whenever output was written to a socket.
    pub fn transmit(&mut self) {
        // Alternate between commands and Data-Out: small reads then do not wait for a long burst,
        // and data that the target waits for does not queue behind all commands.
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

    /// Sends one command on the connection that `spread` selects. Returns false if no command
    /// waits, or if the connection has no space for more output.
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
        // While its ping is unanswered, a connection that has commands gets no more of them, unless
        // all others are in the same state.
        let in_doubt =
            |c: &InitiatorConnection| several && c.liveness.ping.is_some() && c.load.commands > 0;
        let all = self.connections.iter().enumerate();
        let open = all.filter(|(_, c)| c.is_open() && c.has_room());
        Some(open.min_by_key(|(_, c)| (in_doubt(c), c.load))?.0)
    }

    /// Returns the connection whose turn it is. Returns `None` if that connection has no space: the
    /// next command must wait and does not use another connection.
    fn next_in_turn(&self) -> Option<usize> {
        let all = self.connections.iter().enumerate();
        let open: SmallVec<[usize; 8]> =
            all.filter(|(_, c)| c.is_open()).map(|(at, _)| at).collect();
        let at = *open.get(self.turn.checked_rem(open.len())?)?;
        self.connections[at].has_room().then_some(at)
    }

    /// Sends text keys, for example `SendTargets=All`; the answer is an [`InitiatorEvent::Text`].
    /// Returns false and sends nothing while another text exchange is in progress, which may be one
    /// that the target has requested.
    #[must_use]
    pub fn text(&mut self, text: Bytes, now: Instant) -> bool {
        let Some(connection) = self.connections.first_mut() else { return false };
        let free = connection.text.is_none();
        if free {
            connection.begin_text(&mut self.commands, text, true, now);
        }
        free
    }

    /// Logs out and closes the session. The answer is an [`InitiatorEvent::LoggedOut`]. Commands in
    /// flight may or may not be executed.
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

    /// Removes a connection from the session while the others continue. Its commands may end within
    /// `patience`; those left are then returned. The session then logs the connection out and
    /// reports an [`InitiatorEvent::Closed`].
    pub fn remove(&mut self, cid: Cid, patience: Duration, now: Instant) {
        if let Some(connection) = self.connection_mut(cid)
            && connection.is_open()
        {
            connection.logout = Logout::Draining(now + patience);
            self.leave(cid, now);
        }
    }

    /// Continues a logout of a connection. Sends it when the connection has no tasks left or its
    /// deadline is over. Removes the connection when the logout is answered.
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
            // End the session: the logout has failed, so the target may still execute commands of
            // this connection. Only the login of the next session stops them for certain.
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

    /// Returns when any other connection last received a PDU; `None` if the session has only this
    /// connection.
    fn last_message_elsewhere(&self, cid: Cid) -> Option<Instant> {
        if self.connections.len() < 2 {
            return None;
        }
        let others = self.connections.iter().filter(|connection| connection.cid != cid);
        others.map(|connection| connection.liveness.last_message).max()
    }

    pub(super) fn connection(&self, cid: Cid) -> Option<&InitiatorConnection> {
        self.connections.iter().find(|connection| connection.cid == cid)
    }

    pub(super) fn connection_mut(&mut self, cid: Cid) -> Option<&mut InitiatorConnection> {
        self.connections.iter_mut().find(|connection| connection.cid == cid)
    }
}
