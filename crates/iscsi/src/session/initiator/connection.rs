//! A connection of a session at the initiator: sends commands and their data.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use scsi::{ReceivedObjectSense, ScsiStatus, Sense};

use super::{
    CommandFailure, ConnectionLoad, ConnectionTiming, InitiatorCommandOutcome,
    InitiatorSessionError,
    burst::DataOutBurst,
    commands::{QueuedCommand, SessionCommands},
    statuses::Statuses,
    task::{InitiatorTask, TaskFinalStatus},
};
use crate::{
    Cid, DataSegment, Itt, Pdu, PduSizes, Serial, Ttt,
    codec::{Digests, PduOutput},
    pdu::{LogoutResult, Residual, ScsiCommand},
};

pub(super) struct InitiatorConnection {
    pub(super) cid: Cid,
    digests: Digests,
    /// The longest data segment in bytes that the target accepts on this connection.
    max_send_data_segment_length: u32,
    pub(super) timing: ConnectionTiming,
    pub(super) statuses: Statuses,
    pub(super) output: PduOutput,
    /// The bursts that are being sent. Unsolicited data must follow in the order of the commands
    /// (RFC 7143, 4.2.4.2).
    pub(super) bursts: VecDeque<DataOutBurst>,
    pub(super) liveness: TargetLiveness,
    pub(super) losses: PduLosses,
    pub(super) requests: Vec<PendingTaskManagement>,
    pub(super) text: Option<TextExchange>,
    pub(super) logout: Logout,
    /// The tags of logouts that were sent on this connection for other connections, which have
    /// failed.
    pub(super) foreign_logouts: Vec<Itt>,
    /// The number of commands in flight on this connection, and the bytes of their data.
    pub(super) load: ConnectionLoad,
    pub(super) counters: InitiatorPduCounters,
}

/// The last activity of the target on one connection, and the ping that it has not answered.
pub(super) struct TargetLiveness {
    /// When a PDU was last received.
    pub(super) last_message: Instant,
    /// The time at which bytes in front of the answer to a ping were last transferred, in either direction; see
    /// `note_carried`.
    pub(super) carried: Instant,
    /// The ping whose answer has not arrived.
    pub(super) ping: Option<Ping>,
    /// While commands are in flight, a ping is sent after this time without a PDU. The time doubles
    /// with each answered ping.
    pub(super) probe_after: Duration,
}

/// The PDUs that were lost on one connection, in either direction.
#[derive(Default)]
pub(super) struct PduLosses {
    /// The time since when a PDU of the target is known to be missing.
    pub(super) missing_since: Option<Instant>,
    /// The number of consecutive ping answers that arrived while a PDU was missing. The connection
    /// fails after [`MOST_ROUNDS`].
    pub(super) rounds: u32,
    /// The CmdSN of a command that the target reports as not received, and the time of the first
    /// ping answer that showed this.
    pub(super) missed: Option<(Serial, Instant)>,
}

/// Counters of one connection: the PDUs in each direction, and the bytes of data in them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InitiatorPduCounters {
    pub pdus_out: u64,
    pub pdus_in: u64,
    pub sizes_out: PduSizes,
    pub sizes_in: PduSizes,
    /// R2Ts that were answered with data.
    pub r2ts: u64,
    /// Bytes of Data-Out, immediate data included.
    pub data_out_bytes: u64,
    pub data_in_bytes: u64,
    pub digest_errors: u64,
    pub snacks: u64,
    /// Commands that were sent again with their CmdSN because the target had not received them.
    pub retries: u64,
    /// Number of tasks that TASK REASSIGN has moved to this connection.
    pub reassigned: u64,
}

pub(super) struct Ping {
    pub(super) itt: Itt,
    pub(super) sent: Instant,
    /// All commands of this connection with a CmdSN before this one were sent before the ping.
    pub(super) cmd_sn: Serial,
    /// The end of the ping as a position in the output of the connection ([`PduOutput::end`]).
    pub(super) end: u64,
    /// True if the answer was late, so that the other connections were pinged, too.
    pub(super) suspected: bool,
}

/// A task management function whose response has not arrived.
pub(super) struct PendingTaskManagement {
    pub(super) itt: Itt,
    pub(super) task: Itt,
    pub(super) kind: Management,
}

pub(super) enum Management {
    Abort,
    Reassign { deadline: Instant },
}

pub(super) struct TextExchange {
    pub(super) itt: Itt,
    pub(super) answer: BytesMut,
    pub(super) deadline: Instant,
    /// True if the application has started this text exchange and waits for its result; false if the target has
    /// requested it.
    pub(super) wanted: bool,
}

pub(super) enum Logout {
    /// No logout was requested, so commands may be sent.
    No,
    /// A logout was requested, so no new commands are sent. The logout is sent at this time at the
    /// latest.
    Draining(Instant),
    /// This connection has sent a logout of itself or of the session, and waits for the response.
    Sent { itt: Itt, deadline: Instant, scope: LogoutScope },
    /// The session is being logged out by a request on another connection.
    Ending,
    /// The logout was answered. The next login must wait for `time2wait` seconds.
    Done { time2wait: u16, result: LogoutResult, scope: LogoutScope },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LogoutScope {
    Connection,
    Session,
}

/// The most bytes of output that may wait in the queue: no PDU is made while more wait. (Bytes in
/// flight are in the buffers of the transport.) A PDU belongs to its connection, and a command has
/// a fixed place in the order of all connections. If a PDU is made too early for a slow connection,
/// it waits there and delays the commands of all other connections. A limit of 1 MiB cost four
/// lossy connections 5 % of their throughput and five times the deviation of the turnaround time
/// (docs/decisions/0023-fair-tcp.md).
const OUTPUT_BYTES: usize = 64 << 10;

/// The most times that a command which does not arrive is sent again before the connection fails.
/// Each further attempt means another loss. If a network damages more than every tenth PDU in a way
/// that TCP's checksum does not detect, closing the connection is better.
const MOST_RETRIES: u32 = 5;
/// The most consecutive ping answers that may arrive while a PDU is missing, each of which requests
/// the PDU again, before the connection fails.
pub(super) const MOST_ROUNDS: u32 = 5;

impl InitiatorConnection {
    /// Makes the state of a connection that has just logged in. `exp_stat_sn` is the next StatSN.
    pub(super) fn new(
        cid: Cid,
        digests: Digests,
        max_send_data_segment_length: u32,
        exp_stat_sn: Serial,
        timing: ConnectionTiming,
        now: Instant,
    ) -> Self {
        Self {
            cid,
            digests,
            max_send_data_segment_length,
            timing,
            statuses: Statuses::new(exp_stat_sn),
            output: PduOutput::default(),
            bursts: VecDeque::new(),
            liveness: TargetLiveness {
                last_message: now,
                carried: now,
                ping: None,
                probe_after: timing.probe_after,
            },
            losses: PduLosses::default(),
            requests: Vec::new(),
            text: None,
            logout: Logout::No,
            foreign_logouts: Vec::new(),
            load: ConnectionLoad::default(),
            counters: InitiatorPduCounters::default(),
        }
    }

    pub(super) fn exp_stat_sn(&self) -> Serial {
        self.statuses.exp_stat_sn()
    }

    /// Returns true if this connection waits for an answer of the target, or if a PDU of the target
    /// is missing.
    pub(super) fn expects(&self) -> bool {
        self.load.commands > 0
            || !self.requests.is_empty()
            || !self.foreign_logouts.is_empty()
            || self.losses.missing_since.is_some()
    }

    /// Returns true if this connection may send commands: no logout of it was begun.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.logout, Logout::No)
    }

    pub(super) fn has_room(&self) -> bool {
        self.output.len() < OUTPUT_BYTES
    }

    pub(super) fn send(&mut self, pdu: Pdu) {
        self.counters.pdus_out += 1;
        let length = self.output.push(pdu, self.digests);
        self.counters.sizes_out.count(length);
    }

    /// Sends a new command: gives it a CmdSN and a tag, and assigns it to this connection.
    pub(super) fn send_new(&mut self, commands: &mut SessionCommands, waiting: QueuedCommand) {
        let QueuedCommand { request, order, deadline } = waiting;
        let task = InitiatorTask::new(request, order, commands.window.take(), deadline);
        let itt = commands.tasks.insert(task);
        self.adopt(commands, itt);
        self.send_command(commands, itt);
    }

    /// Sends a command of a failed connection on this connection, with the same CmdSN (RFC 7143,
    /// 7.2.1). The target has not received it.
    pub(super) fn send_again(&mut self, commands: &mut SessionCommands, itt: Itt) {
        self.adopt(commands, itt);
        self.counters.retries += 1;
        self.send_command(commands, itt);
    }

    /// Sends a command again that this connection has sent before and the target has not received.
    /// Fails after [`MOST_RETRIES`].
    pub(super) fn retry(
        &mut self,
        commands: &mut SessionCommands,
        itt: Itt,
    ) -> Result<(), InitiatorSessionError> {
        let task = self.task(commands, itt)?;
        task.retries += 1;
        if task.retries > MOST_RETRIES {
            return Err(InitiatorSessionError::Unanswered(
                "a command that did not arrive after several retries",
            ));
        }
        self.bursts.retain(|burst| burst.itt != itt);
        self.counters.retries += 1;
        self.send_command(commands, itt);
        Ok(())
    }

    /// Assigns a task to this connection, on which all its PDUs then travel (connection allegiance).
    pub(super) fn adopt(&mut self, commands: &mut SessionCommands, itt: Itt) {
        let task = commands.tasks.get_mut(itt).expect("the caller has found it");
        (task.allegiance, task.lost) = (self.cid, false);
        self.load.add(task.bytes());
        let deadline = task.deadline;
        commands.note_deadline(deadline);
    }

    /// Removes a completed task from this connection and from the session.
    pub(super) fn finish(
        &mut self,
        commands: &mut SessionCommands,
        itt: Itt,
    ) -> Option<InitiatorTask> {
        let task = commands.tasks.remove(itt)?;
        self.load.remove(task.bytes());
        Some(task)
    }

    fn send_command(&mut self, commands: &mut SessionCommands, itt: Itt) {
        let SessionCommands { tasks, parameters, .. } = commands;
        let task = tasks.get_mut(itt).expect("the caller has found it");
        task.start_again();
        let request = &task.request;
        let (data_out, data_in) = (request.transfer.data_out(), request.transfer.data_in());
        let length = data_out.map_or(data_in.unwrap_or(0), |data| data.len() as u32);
        let mut command = ScsiCommand {
            is_final: true,
            read: data_in.is_some(),
            write: data_out.is_some(),
            attribute: SIMPLE,
            lun: request.lun,
            itt,
            expected_data_transfer_length: length,
            cmd_sn: task.cmd_sn,
            exp_stat_sn: self.exp_stat_sn(),
            cdb: request.cdb.clone(),
            bidirectional_read_length: data_out.and(data_in),
            ..ScsiCommand::default()
        };
        if let Some(data) = data_out {
            let segment = self.max_send_data_segment_length;
            let burst = DataOutBurst::begin(&mut command, data, parameters, segment);
            task.sent = burst.as_ref().map_or(command.data.len() as u32, DataOutBurst::end);
            self.bursts.extend(burst);
            self.counters.data_out_bytes += command.data.len() as u64;
        }
        self.send(Pdu::ScsiCommand(command));
    }

    /// Sends one Data-Out PDU of the oldest burst. Returns false if there is no burst.
    pub(super) fn send_data(&mut self, commands: &mut SessionCommands) -> bool {
        loop {
            let Some(burst) = self.bursts.front_mut() else { return false };
            // Drop the burst of a task that has ended before all its data was sent: the target does
            // not need the rest.
            let Some(task) = commands.tasks.get_mut(burst.itt) else {
                self.bursts.pop_front();
                continue;
            };
            let data = task.request.transfer.data_out().expect("bursts are made of Data-Out only");
            let mut pdu = burst.next_pdu(data, self.max_send_data_segment_length);
            if pdu.is_final {
                if burst.ttt != Ttt::NONE {
                    task.open_r2ts -= 1;
                }
                self.bursts.pop_front();
            }
            pdu.exp_stat_sn = self.exp_stat_sn();
            self.counters.data_out_bytes += pdu.data.len() as u64;
            self.send(Pdu::DataOut(pdu));
            return true;
        }
    }

    /// Returns the task to which a received PDU belongs. Fails if that task is not on this connection.
    pub(super) fn task<'a>(
        &self,
        commands: &'a mut SessionCommands,
        itt: Itt,
    ) -> Result<&'a mut InitiatorTask, InitiatorSessionError> {
        let is_ours = |task: &&mut InitiatorTask| task.allegiance == self.cid && !task.lost;
        commands.tasks.get_mut(itt).filter(is_ours).ok_or(UNKNOWN_TASK)
    }

    /// Returns the task of a received PDU, like [`Self::task`]. From error recovery level 1 on, the
    /// target may repeat a PDU of a task that has already ended; returns `None` for such a PDU.
    pub(super) fn find_task<'a>(
        &self,
        commands: &'a mut SessionCommands,
        itt: Itt,
    ) -> Result<Option<&'a mut InitiatorTask>, InitiatorSessionError> {
        let recovers = commands.recovers();
        match self.task(commands, itt) {
            Ok(task) => Ok(Some(task)),
            Err(_) if recovers => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn end_task(
        &mut self,
        commands: &mut SessionCommands,
        itt: Itt,
        ending: TaskFinalStatus,
    ) -> Result<(), InitiatorSessionError> {
        let TaskFinalStatus { status, sense, residual, bidirectional_read_residual, .. } = ending;
        let task = self.task(commands, itt)?;
        // Never report a success that did not happen: the target cannot have executed a write
        // without all of its data. The task stays in the table and is submitted to the next
        // session.
        if ScsiStatus::from_byte(status) == Some(ScsiStatus::Good)
            && residual == Residual::None
            && let Some(data) = task.request.transfer.data_out()
            && ((task.sent as usize) < data.len() || self.bursts.iter().any(|b| b.itt == itt))
        {
            return Err(InitiatorSessionError::Protocol(
                "GOOD for a write before it had all the data",
            ));
        }
        if ScsiStatus::from_byte(status) == Some(ScsiStatus::Good)
            && task.lacks_data_in(bidirectional_read_residual)
        {
            return Err(InitiatorSessionError::Protocol(
                "GOOD for a bidirectional command without all its Data-In",
            ));
        }
        let mut task = self.finish(commands, itt).expect("just looked at");
        let Some(status) = ScsiStatus::from_byte(status) else {
            commands.complete(task.request.tag, Err(CommandFailure::Status(status)));
            return Ok(());
        };
        let bytes: &[u8] = if status == ScsiStatus::CheckCondition { &sense } else { &[] };
        let sense = Sense::from_bytes(bytes);
        let object_sense = ReceivedObjectSense::from_bytes(bytes).map(Box::new);
        let data_in: DataSegment = task.gather.finish();
        commands.complete(
            task.request.tag,
            Ok(InitiatorCommandOutcome {
                status,
                sense,
                object_sense,
                data_in,
                residual,
                bidirectional_read_residual,
            }),
        );
        Ok(())
    }
}

const UNKNOWN_TASK: InitiatorSessionError =
    InitiatorSessionError::Protocol("a PDU for a task that does not exist");

/// The ATTR bits of a task with the attribute SIMPLE (RFC 7143, 11.3.1).
const SIMPLE: u8 = 1;
