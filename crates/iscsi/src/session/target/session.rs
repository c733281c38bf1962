//! What the connections of one session share, and the connections themselves.

use std::{
    collections::{VecDeque, hash_map::Entry},
    time::Instant,
};

use smallvec::SmallVec;

use crate::{
    Bhs, Cid, Isid, Itt, Pdu, Serial, Tsih, Ttt,
    codec::PduOutput,
    keys::Parameters,
    login::{EstablishedLogin, SessionType},
    pdu::{DataOut, Numbers, RejectReason, TaskFunctionResult},
    window::TargetCommandWindow,
};

use super::{
    connection::{Connection, TargetPduCounters},
    event::{ManagementRequest, TargetEvent},
    response::CommandResponse,
    settings::Settings,
    task::{IncomingWrite, Instance, TargetTask, TargetTaskStage, Tasks, is_same_unit},
    waiting::{Charge, Stall, WaitingWriteBytes},
};

/// One session: command order, tasks, what was agreed on, and its connections.
///
/// ```text
/// loop { handle_frame() for every frame of a connection, handle_timeout() when poll_timeout() is
///        due; poll_event() until None; write every connection's output();
///        drop_connection() when it is_closing() and all is written, or when its socket fails }
/// until is_over()
/// ```
///
/// An `Err` of `handle_frame` ends the connection, or all of them: see
/// [`Error::ends_session`](super::TargetSessionError::ends_session). Write what is in the output, close, and
/// call `drop_connection`.
#[derive(Debug)]
pub struct Session {
    pub(super) settings: Settings,
    pub(super) parameters: Parameters,
    pub(super) discovery: bool,
    pub(super) window: TargetCommandWindow<Early>,
    pub(super) tasks: Tasks<TargetTask>,
    /// Writes whose data is not complete, by tag.
    pub(super) gathers: Tasks<IncomingWrite>,
    /// Memory that waiting commands and `gathers` hold, and its limit.
    pub(super) waiting: WaitingWriteBytes,
    /// The data of the PDU at hand is a piece of a larger buffer
    /// ([`Frame::is_shared`](crate::codec::PduFrame::is_shared)). Data that has to wait is copied then: it would
    /// keep the whole buffer in memory, and be charged for its own length only.
    pub(super) is_shared: bool,
    /// The number of the missing command for which others wait, and for how long it has been missing.
    pub(super) hole: Option<(Serial, Stall)>,
    /// When the progress of the waiting writes is checked next.
    pub(super) stall_check: Option<Instant>,
    /// Since when other sessions have lacked room for their writes.
    pub(super) contended_since: Option<Instant>,
    /// What one connection may have asked for at once, in bytes.
    pub(super) solicited_share: u64,
    /// Entries of `tasks` that take a place in the window.
    in_progress: u32,
    /// Entries of `tasks` that are immediate.
    pub(super) immediate: u32,
    /// One for each CID in use; at most MaxConnections, and one that is closing for each.
    pub(super) connections: SmallVec<[Connection; 1]>,
    /// Connections that failed or were removed for recovery, at level 2.
    pub(super) lost: Vec<ReassignableConnection>,
    pub(super) events: VecDeque<TargetEvent>,
    /// Task management functions that wait for commands before them; few, since they are tasks.
    pub(super) postponed: Vec<Postponed>,
    /// Answers to them that wait for acknowledgments.
    pub(super) fenced: Vec<Fenced>,
    /// When writes are next looked at whether they come further, from level 1 on.
    pub(super) sequence_check: Option<Instant>,
    /// The last time that anybody told.
    pub(super) now: Instant,
    /// Logged out as a whole.
    pub(super) ended: bool,
    pub(super) next_ttt: u32,
    next_instance: u32,
    /// What dropped connections had counted.
    past: TargetPduCounters,
    initiator_name: String,
    target_name: Option<String>,
    isid: Isid,
    tsih: Tsih,
}

/// A PDU that arrived before its turn.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) pdu: Pdu,
    pub(super) bhs: Bhs,
    /// The connection it came on.
    pub(super) allegiance: Instance,
    /// Unsolicited data of the command that came before its turn, with its headers: up to FirstBurstLength.
    pub(super) data: Vec<(DataOut, Bhs)>,
    /// The bytes that `data` counts for.
    pub(super) data_bytes: usize,
    /// When the PDU arrived.
    pub(super) begun: Instant,
    /// The charge for its data.
    pub(super) charge: Charge,
    /// Its data was dropped for lack of room. The command is answered with BUSY in its turn.
    pub(super) is_shed: bool,
    /// The last PDU of its unsolicited data has come, and was dropped.
    pub(super) has_ended: bool,
}

/// A connection whose tasks may be reassigned (RFC 7143, 7.2.2, 8.2).
#[derive(Debug)]
pub(super) struct ReassignableConnection {
    pub(super) instance: Instance,
    pub(super) cid: Cid,
    /// Its logout, which must come before any reassignment, has come.
    pub(super) is_logged_out: bool,
    /// Then its tasks are terminated.
    pub(super) deadline: Instant,
    /// Answers that the initiator may not have received.
    pub(super) responses: Tasks<CommandResponse>,
}

/// A function that waits until the bursts that its tasks were asked for have come, and all commands
/// before it (RFC 7143, 4.2.3.3 a, b).
#[derive(Debug)]
pub(super) struct Postponed {
    pub(super) request: ManagementRequest,
    pub(super) cmd_sn: Serial,
    /// Then it waits for nothing more.
    pub(super) until: Instant,
    /// Until then data is waited for that is on its way, unless more of it comes; `None` if there
    /// is none.
    pub(super) bursts_until: Option<Instant>,
}

impl Postponed {
    /// Whether it ends this task.
    pub(super) fn is_about(&self, task: &TargetTask) -> bool {
        let is_unit = self.request.unit().is_none_or(|lun| is_same_unit(task.lun, lun));
        task.stage != TargetTaskStage::Management && is_unit && task.comes_before(self.cmd_sn)
    }

    /// When it is to be looked at.
    pub(super) fn due(&self) -> Instant {
        self.bursts_until.map_or(self.until, |bursts| bursts.min(self.until))
    }
}

/// An answer that waits until what other connections sent before it has arrived
/// (RFC 7143, 4.2.2.3.3 b).
#[derive(Debug)]
pub(super) struct Fenced {
    pub(super) itt: Itt,
    pub(super) allegiance: Instance,
    pub(super) result: TaskFunctionResult,
    /// Which statuses must have arrived where.
    pub(super) awaited: SmallVec<[(Instance, Serial); 4]>,
    pub(super) until: Instant,
}

impl Session {
    /// With its leading connection.
    pub(super) fn new(
        settings: Settings,
        login: &EstablishedLogin,
        tsih: Tsih,
        stat_sn: Serial,
        output: PduOutput,
        now: Instant,
    ) -> Self {
        let window = TargetCommandWindow::new(login.cmd_sn, settings.window_commands());
        let mut session = Self {
            solicited_share: settings.solicited_bytes,
            settings,
            parameters: login.parameters.clone(),
            discovery: login.session_type == SessionType::Discovery,
            window,
            tasks: Tasks::default(),
            gathers: Tasks::default(),
            waiting: WaitingWriteBytes::unlimited(),
            is_shared: false,
            hole: None,
            stall_check: None,
            contended_since: None,
            in_progress: 0,
            immediate: 0,
            connections: SmallVec::new(),
            lost: Vec::new(),
            events: VecDeque::new(),
            postponed: Vec::new(),
            fenced: Vec::new(),
            sequence_check: None,
            now,
            ended: false,
            next_ttt: 1,
            next_instance: 0,
            past: TargetPduCounters::default(),
            initiator_name: login.initiator_name.clone(),
            target_name: login.target_name.clone(),
            isid: login.isid,
            tsih,
        };
        session.add_connection(login, stat_sn, output, now);
        session
    }

    /// What was agreed on at the first login.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Only SendTargets is served.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.discovery
    }

    /// The initiator's iSCSI name.
    #[must_use]
    pub fn initiator_name(&self) -> &str {
        &self.initiator_name
    }

    /// The target's iSCSI name; a discovery session may have none.
    #[must_use]
    pub fn target_name(&self) -> Option<&str> {
        self.target_name.as_deref()
    }

    /// The initiator's half of the session's name.
    #[must_use]
    pub fn isid(&self) -> Isid {
        self.isid
    }

    /// Our half of it.
    #[must_use]
    pub fn tsih(&self) -> Tsih {
        self.tsih
    }

    /// Tasks in progress: commands and task management functions.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Its connections, in the order in which they came.
    pub fn connections(&self) -> impl ExactSizeIterator<Item = &Connection> {
        self.connections.iter()
    }

    /// The connection with this CID.
    #[must_use]
    pub fn connection(&self, cid: Cid) -> Option<&Connection> {
        self.connections.iter().find(|connection| connection.cid() == cid)
    }

    /// The connection with this CID, for the driver to take its output.
    pub fn connection_mut(&mut self, cid: Cid) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| connection.cid() == cid)
    }

    /// The connection on which this command is answered; `None` if that is lost, or the command is
    /// over.
    #[must_use]
    pub fn allegiance(&self, itt: Itt) -> Option<&Connection> {
        let task = self.tasks.get(&itt)?;
        self.connections.iter().find(|connection| connection.instance == task.allegiance)
    }

    /// Nothing is left of it: no connection, and none to be recovered.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.connections.is_empty() && self.lost.is_empty()
    }

    /// Returns true if the initiator has logged the session out: no connection takes another command, and none
    /// is to be recovered. The session is over when what is queued has been written.
    #[must_use]
    pub fn is_logged_out(&self) -> bool {
        let is_closing = self.connections.iter().all(Connection::is_closing);
        is_closing && !self.connections.is_empty() && self.lost.is_empty()
    }

    /// What was counted so far, on all connections that there were.
    #[must_use]
    pub fn counters(&self) -> TargetPduCounters {
        let mut counters = self.past;
        self.connections.iter().for_each(|connection| counters += connection.counters);
        counters
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<TargetEvent> {
        self.events.pop_front()
    }

    /// From this level on (RFC 7143, 7.1.5).
    pub(super) fn recovers(&self, level: u8) -> bool {
        self.parameters.error_recovery_level >= level
    }

    pub(super) fn index(&self, cid: Cid) -> Option<usize> {
        self.connections.iter().position(|connection| connection.cid() == cid)
    }

    /// Where this connection is, unless it is gone or logged out: then nothing more goes out there.
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
        // Digests, compression and segment lengths are the connection's, all else the session's
        // (RFC 7143, 13).
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

    /// Returns ExpCmdSN and MaxCmdSN; the caller adds a StatSN. Opens the window as far as there is room before
    /// it is reported: not only the end of a task makes room, but each PDU in order that is no task, too. A
    /// session whose waiting writes have used up their share of memory gets no further command numbers; the
    /// answers to these writes open the window again.
    pub(super) fn window_numbers(&mut self) -> Numbers {
        if !self.is_over_share() {
            self.window.open(self.in_progress);
        }
        Numbers {
            stat_sn: Serial(0),
            exp_cmd_sn: self.window.exp_cmd_sn(),
            max_cmd_sn: self.window.max_cmd_sn(),
        }
    }

    /// Returns the bytes that waiting writes hold: data that came before its turn, data of writes that are not
    /// complete, and room for data that was requested.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.held()
    }

    /// Returns whether a postponed function will end this task. No more data is requested for such a task, and it does not
    /// begin.
    pub(super) fn is_about_to_end(&self, itt: Itt) -> bool {
        !self.postponed.is_empty()
            && self
                .tasks
                .get(&itt)
                .is_some_and(|task| self.postponed.iter().any(|postponed| postponed.is_about(task)))
    }

    /// Notes whether other sessions lack room for their writes. Call this before `handle_timeout`.
    pub fn note_contention(&mut self, is_contended: bool, now: Instant) {
        self.contended_since = if is_contended { self.contended_since.or(Some(now)) } else { None };
    }

    /// Returns true if a write that is not done has been asked for data.
    #[must_use]
    pub fn has_solicited(&self) -> bool {
        self.connections.iter().any(|connection| connection.solicited > 0)
    }

    /// Returns the bytes that are lacking before the data of the next write can be requested; zero if no write
    /// waits for room. A write that waits for other writes of its connection lacks nothing: more room would
    /// not let it continue.
    #[must_use]
    pub fn lacking_bytes(&self) -> usize {
        let first = |connection: &Connection| {
            let transfer = self.gathers.get(connection.waiting.front()?)?;
            let wanted = transfer.gather.to_solicit();
            if connection.exceeds_solicited(wanted.into(), self.solicited_share) {
                return None;
            }
            let held = self.waiting.held() + wanted as usize;
            Some(held.saturating_sub(self.waiting.limit()))
        };
        self.connections.iter().filter_map(first).max().unwrap_or(0)
    }

    /// Returns true if the waiting writes leave no room for the first burst of one more command.
    #[must_use]
    pub fn is_over_share(&self) -> bool {
        let next = self.parameters.first_burst_length as usize;
        self.waiting.held() > 0 && !self.waiting.has_room(next)
    }

    /// Sends a PDU that carries a status.
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

    /// A task begins. The caller has seen that its tag is free.
    pub(super) fn begin(&mut self, itt: Itt, task: TargetTask) {
        if task.immediate {
            self.immediate += 1;
        } else {
            self.in_progress += 1;
        }
        self.tasks.insert(itt, task);
    }

    /// A task ends; its place in the window is free again.
    pub(super) fn end(&mut self, itt: Itt) -> Option<TargetTask> {
        self.end_if(itt, |_| true)
    }

    /// Ends a task as [`Self::end`] does, if `ends` returns true for it.
    pub(super) fn end_if(
        &mut self,
        itt: Itt,
        ends: impl FnOnce(&TargetTask) -> bool,
    ) -> Option<TargetTask> {
        let Entry::Occupied(task) = self.tasks.entry(itt) else { return None };
        if !ends(task.get()) {
            return None;
        }
        let task = task.remove();
        if task.immediate {
            self.immediate -= 1;
        } else {
            self.in_progress -= 1;
        }
        Some(task)
    }
}

/// Tags count up; only NONE is left out.
pub(super) fn new_ttt(next: &mut u32) -> Ttt {
    let ttt = Ttt(*next);
    *next = next.wrapping_add(1);
    if Ttt(*next) == Ttt::NONE {
        *next = 0;
    }
    ttt
}
