//! A session at the target: its connections, and the state that they share.

use std::{collections::VecDeque, time::Instant};

use smallvec::SmallVec;

use crate::{
    Bhs, Cid, Isid, Itt, Pdu, Serial, Tsih, Ttt,
    codec::PduOutput,
    keys::Parameters,
    login::{EstablishedLogin, SessionType},
    pdu::{Numbers, RejectReason},
    window::TargetCommandWindow,
};

use super::{
    connection::{Connection, TargetPduCounters},
    event::TargetEvent,
    order::CommandOrder,
    pending_functions::PendingFunctions,
    response::CommandResponse,
    settings::Settings,
    task::{Instance, SessionTasks, Tasks},
    writes::SessionWrites,
};

/// One session: command order, tasks, negotiated parameters, and its connections.
///
/// ```text
/// loop { handle_frame() for every frame of a connection, handle_timeout() when poll_timeout() is
///        due; poll_event() until None; write every connection's output();
///        drop_connection() when it is_closing() and all is written, or when its socket fails }
/// until is_over()
/// ```
///
/// An `Err` of `handle_frame` ends the connection or all connections: see
/// [`TargetSessionError::ends_session`](super::TargetSessionError::ends_session). Write the output,
/// close the socket, and call `drop_connection`.
#[derive(Debug)]
pub struct Session {
    pub(super) settings: Settings,
    pub(super) parameters: Parameters,
    pub(super) identity: SessionIdentity,
    pub(super) order: CommandOrder,
    pub(super) tasks: SessionTasks,
    pub(super) writes: SessionWrites,
    pub(super) functions: PendingFunctions,
    /// The connections: one for each CID in use, at most MaxConnections of them. A connection that
    /// is closing may be here besides a new one with the same CID.
    pub(super) connections: SmallVec<[Connection; 1]>,
    /// Connections that failed or were removed for recovery, at error recovery level 2.
    pub(super) lost: Vec<ReassignableConnection>,
    pub(super) events: VecDeque<TargetEvent>,
    /// The current time, as the most recent call with a time argument has passed it.
    pub(super) now: Instant,
    /// True if the whole session was logged out.
    pub(super) ended: bool,
    pub(super) next_ttt: u32,
    next_instance: u32,
    /// The sum of the counters of connections that have ended.
    past: TargetPduCounters,
}

/// The names of initiator and target, and the identifier and type of their session.
#[derive(Debug)]
pub(super) struct SessionIdentity {
    pub(super) discovery: bool,
    pub(super) initiator_name: String,
    pub(super) target_name: Option<String>,
    pub(super) isid: Isid,
    pub(super) tsih: Tsih,
}

/// A connection that has failed or was logged out for recovery, and whose tasks may be reassigned
/// (RFC 7143, 7.2.2, 8.2).
#[derive(Debug)]
pub(super) struct ReassignableConnection {
    pub(super) instance: Instance,
    pub(super) cid: Cid,
    /// True if this failed connection was logged out. Only then may its tasks be reassigned.
    pub(super) is_logged_out: bool,
    /// The time at which the tasks of this failed connection are aborted, unless another connection takes them over.
    pub(super) deadline: Instant,
    /// The responses that were sent on this connection and that the initiator may not have
    /// received.
    pub(super) responses: Tasks<CommandResponse>,
}

impl Session {
    pub(super) fn new(
        settings: Settings,
        login: &EstablishedLogin,
        tsih: Tsih,
        stat_sn: Serial,
        output: PduOutput,
        now: Instant,
    ) -> Self {
        let window = TargetCommandWindow::new(login.cmd_sn, settings.window_commands());
        let identity = SessionIdentity {
            discovery: login.session_type == SessionType::Discovery,
            initiator_name: login.initiator_name.clone(),
            target_name: login.target_name.clone(),
            isid: login.isid,
            tsih,
        };
        let mut session = Self {
            writes: SessionWrites::new(settings.solicited_bytes),
            settings,
            parameters: login.parameters.clone(),
            identity,
            order: CommandOrder { window, hole: None },
            tasks: SessionTasks::default(),
            functions: PendingFunctions::default(),
            connections: SmallVec::new(),
            lost: Vec::new(),
            events: VecDeque::new(),
            now,
            ended: false,
            next_ttt: 1,
            next_instance: 0,
            past: TargetPduCounters::default(),
        };
        session.add_connection(login, stat_sn, output, now);
        session
    }

    /// Returns the parameters that were negotiated at the first login.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Returns true for a discovery session, which serves SendTargets only.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.identity.discovery
    }

    #[must_use]
    pub fn initiator_name(&self) -> &str {
        &self.identity.initiator_name
    }

    /// Returns the target's iSCSI name; a discovery session may have none.
    #[must_use]
    pub fn target_name(&self) -> Option<&str> {
        self.identity.target_name.as_deref()
    }

    /// Returns the initiator's part of the session identifier.
    #[must_use]
    pub fn isid(&self) -> Isid {
        self.identity.isid
    }

    /// Returns the target's part of the session identifier.
    #[must_use]
    pub fn tsih(&self) -> Tsih {
        self.identity.tsih
    }

    /// Returns the number of tasks in progress: commands and task management functions.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.tasks.by_tag.len()
    }

    /// Returns the connections of the session in the order of their logins.
    pub fn connections(&self) -> impl ExactSizeIterator<Item = &Connection> {
        self.connections.iter()
    }

    #[must_use]
    pub fn connection(&self, cid: Cid) -> Option<&Connection> {
        self.connections.iter().find(|connection| connection.cid() == cid)
    }

    /// Returns the connection `cid`, from which the driver takes the output.
    pub fn connection_mut(&mut self, cid: Cid) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| connection.cid() == cid)
    }

    /// Returns the connection on which this command is answered; `None` if the connection is lost
    /// or the command has ended.
    #[must_use]
    pub fn allegiance(&self, itt: Itt) -> Option<&Connection> {
        let task = self.tasks.by_tag.get(&itt)?;
        self.connections.iter().find(|connection| connection.instance == task.allegiance)
    }

    /// Returns true if the session has no connections, not even failed ones whose tasks may be
    /// reassigned.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.connections.is_empty() && self.lost.is_empty()
    }

    /// Returns true if the initiator has logged the session out. No connection accepts another
    /// command then, and none can be recovered. The session is over when all queued output is
    /// written.
    #[must_use]
    pub fn is_logged_out(&self) -> bool {
        let is_closing = self.connections.iter().all(Connection::is_closing);
        is_closing && !self.connections.is_empty() && self.lost.is_empty()
    }

    /// Returns the counters of all connections that the session has had.
    #[must_use]
    pub fn counters(&self) -> TargetPduCounters {
        let mut counters = self.past;
        self.connections.iter().for_each(|connection| counters += connection.counters);
        counters
    }

    pub fn poll_event(&mut self) -> Option<TargetEvent> {
        self.events.pop_front()
    }

    /// Returns true if the error recovery level is at least `level` (RFC 7143, 7.1.5).
    pub(super) fn recovers(&self, level: u8) -> bool {
        self.parameters.error_recovery_level >= level
    }

    pub(super) fn index(&self, cid: Cid) -> Option<usize> {
        self.connections.iter().position(|connection| connection.cid() == cid)
    }

    /// Returns the index of a connection; `None` if the connection has ended or is logged out, so
    /// that no more PDUs may be sent on it.
    pub(super) fn position(&self, instance: Instance) -> Option<usize> {
        self.connections.iter().position(|c| c.instance == instance && !c.closing)
    }

    pub(super) fn add_connection(
        &mut self,
        login: &EstablishedLogin,
        stat_sn: Serial,
        output: PduOutput,
        now: Instant,
    ) {
        // Take digests, compression and segment lengths from the login of this connection, and all
        // other parameters from the session (RFC 7143, 13).
        let parameters = Parameters {
            digests: login.parameters.digests,
            compression: login.parameters.compression,
            max_recv_data_segment_length: login.parameters.max_recv_data_segment_length,
            max_send_data_segment_length: login.parameters.max_send_data_segment_length,
            ..self.parameters.clone()
        };
        let instance = Instance(self.next_instance);
        self.next_instance += 1;
        let settings = &self.settings;
        let connection =
            Connection::new(login, parameters, settings, instance, stat_sn, output, now);
        self.connections.push(connection);
    }

    pub(super) fn remove_connection(&mut self, at: usize) -> Connection {
        let connection = self.connections.remove(at);
        self.past += connection.counters;
        connection
    }

    /// Returns ExpCmdSN and MaxCmdSN; the caller adds a StatSN. Before, raises MaxCmdSN if there is
    /// space in the window: a task that has ended makes space, and so does each received PDU that
    /// starts no task. If the waiting writes of a session have used up its share of memory,
    /// MaxCmdSN stays as it was until some of them have ended.
    pub(super) fn window_numbers(&mut self) -> Numbers {
        if !self.is_over_share() {
            self.order.window.open(self.tasks.in_progress);
        }
        Numbers {
            stat_sn: Serial(0),
            exp_cmd_sn: self.order.window.exp_cmd_sn(),
            max_cmd_sn: self.order.window.max_cmd_sn(),
        }
    }

    /// Returns the number of bytes that waiting writes hold: data that arrived before its turn,
    /// data of incomplete writes, and memory reserved for requested data.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.writes.memory.held()
    }

    /// Returns true if a task management function that is still waiting will end this task. The
    /// session then requests no more data for the task and does not pass it to the driver.
    pub(super) fn is_about_to_end(&self, itt: Itt) -> bool {
        !self.functions.postponed.is_empty()
            && self.tasks.by_tag.get(&itt).is_some_and(|task| {
                self.functions.postponed.iter().any(|postponed| postponed.is_about(task))
            })
    }

    /// Records whether other sessions lack memory for their writes, which shortens the time that
    /// writes of this session may take. Call this before `handle_timeout`.
    pub fn note_contention(&mut self, is_contended: bool, now: Instant) {
        self.writes.contended_since =
            if is_contended { self.writes.contended_since.or(Some(now)) } else { None };
    }

    /// Returns true if data was requested for a write in progress.
    #[must_use]
    pub fn has_solicited(&self) -> bool {
        self.connections.iter().any(|connection| connection.writes.solicited > 0)
    }

    /// Returns the number of bytes of memory that are missing before the session can request the
    /// data of its next write; zero if no write waits for memory. A write that waits for other
    /// writes of its connection does not count: more memory would not let it continue.
    #[must_use]
    pub fn lacking_bytes(&self) -> usize {
        let first = |connection: &Connection| {
            let transfer = self.writes.incoming.get(connection.writes.waiting.front()?)?;
            let wanted = transfer.gather.to_solicit();
            if connection.writes.exceeds(wanted.into(), self.writes.solicited_share) {
                return None;
            }
            let held = self.writes.memory.held() + wanted as usize;
            Some(held.saturating_sub(self.writes.memory.limit()))
        };
        self.connections.iter().filter_map(first).max().unwrap_or(0)
    }

    /// Returns true if the waiting writes have used so much of the memory limit that the first
    /// burst of one more command does not fit.
    #[must_use]
    pub fn is_over_share(&self) -> bool {
        let next = self.parameters.first_burst_length as usize;
        self.writes.memory.held() > 0 && !self.writes.memory.has_room(next)
    }

    /// Sends a PDU that consumes a StatSN.
    pub(super) fn send_status(&mut self, at: usize, make: impl FnOnce(Numbers) -> Pdu) {
        let window = self.window_numbers();
        self.connections[at].send_status(window, make);
    }

    pub(super) fn reject(&mut self, at: usize, reason: RejectReason, bhs: &Bhs) {
        let window = self.window_numbers();
        self.connections[at].reject(window, reason, bhs, 0);
    }

    pub(super) fn new_ttt(&mut self) -> Ttt {
        new_ttt(&mut self.next_ttt)
    }
}

/// Returns the next target transfer tag. Tags count up and skip the reserved value NONE.
pub(super) fn new_ttt(next: &mut u32) -> Ttt {
    let ttt = Ttt(*next);
    *next = next.wrapping_add(1);
    if Ttt(*next) == Ttt::NONE {
        *next = 0;
    }
    ttt
}
