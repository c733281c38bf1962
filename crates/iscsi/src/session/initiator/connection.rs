//! One connection of a session at the initiator: commands and their data.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use scsi::{ScsiStatus, Sense};

use super::{
    CommandFailure, ConnectionLoad, ConnectionTiming, DataPhase, InitiatorCommandOutcome,
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

/// What belongs to one TCP connection.
pub(super) struct InitiatorConnection {
    pub(super) cid: Cid,
    digests: Digests,
    /// The length of the longest data segment that the target takes on this connection.
    max_send_data_segment_length: u32,
    pub(super) timing: ConnectionTiming,
    pub(super) statuses: Statuses,
    pub(super) output: PduOutput,
    /// Data that is being sent, in the order of the commands, which unsolicited data must follow (RFC 7143, 4.2.4.2).
    pub(super) bursts: VecDeque<DataOutBurst>,
    pub(super) liveness: TargetLiveness,
    pub(super) losses: PduLosses,
    pub(super) requests: Vec<PendingTaskManagement>,
    pub(super) text: Option<TextExchange>,
    pub(super) logout: Logout,
    /// Logouts that were sent on this connection for connections that failed.
    pub(super) foreign_logouts: Vec<Itt>,
    /// The commands in flight on this connection, and their data.
    pub(super) load: ConnectionLoad,
    pub(super) counters: InitiatorPduCounters,
}

/// The signs of life of the target on one connection.
pub(super) struct TargetLiveness {
    /// When a PDU was last received.
    pub(super) heard: Instant,
    /// When bytes last passed that delay a ping or its answer, in either direction, as far as that is noted.
    pub(super) carried: Instant,
    /// The ping that is not answered.
    pub(super) ping: Option<Ping>,
    /// The silence after which a ping is sent while commands are in flight.
    pub(super) probe_after: Duration,
}

/// What was lost on one connection, in either direction.
#[derive(Default)]
pub(super) struct PduLosses {
    /// Since when a PDU of the target is missing.
    pub(super) missing_since: Option<Instant>,
    /// How often in a row a PDU was missing when a ping was answered.
    pub(super) rounds: u32,
    /// The number of a command that should have arrived, and since when answers to pings say that it has not.
    pub(super) missed: Option<(Serial, Instant)>,
}

/// Counters of the PDUs of a connection, and of the payload bytes in them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InitiatorPduCounters {
    /// PDUs sent.
    pub pdus_out: u64,
    /// PDUs received.
    pub pdus_in: u64,
    /// PDUs sent, by size.
    pub sizes_out: PduSizes,
    /// PDUs received, by size.
    pub sizes_in: PduSizes,
    /// R2Ts served.
    pub r2ts: u64,
    /// Bytes of Data-Out, immediate data included.
    pub data_out_bytes: u64,
    /// Bytes of Data-In.
    pub data_in_bytes: u64,
    /// Data segments with a wrong digest.
    pub digest_errors: u64,
    /// SNACKs that were sent.
    pub snacks: u64,
    /// Commands that the target had not received, sent again with their number.
    pub retries: u64,
    /// Tasks taken over from another connection.
    pub reassigned: u64,
}

pub(super) struct Ping {
    pub(super) itt: Itt,
    pub(super) sent: Instant,
    /// Commands on this connection with a number before this were sent before the ping.
    pub(super) cmd_sn: Serial,
    /// The position in the output of the connection where the ping ends.
    pub(super) end: u64,
    /// The answer took so long that the other connections were pinged, too.
    pub(super) suspected: bool,
}

/// A task management function that is not answered.
pub(super) struct PendingTaskManagement {
    pub(super) itt: Itt,
    pub(super) task: Itt,
    pub(super) kind: Management,
}

pub(super) enum Management {
    Abort,
    Reassign { deadline: Instant },
}

/// A text exchange that is not finished.
pub(super) struct TextExchange {
    pub(super) itt: Itt,
    pub(super) answer: BytesMut,
    pub(super) deadline: Instant,
    /// The application has started the exchange, and gets its result.
    pub(super) wanted: bool,
}

pub(super) enum Logout {
    /// No logout was requested.
    No,
    /// A logout was requested: no new commands are sent. The logout is sent at this time at the latest.
    Draining(Instant),
    /// The logout was sent, for this connection, another connection or the session.
    Sent { itt: Itt, deadline: Instant, scope: LogoutScope },
    /// Another connection is logging out the session.
    Ending,
    /// The logout was answered. The next login has to wait for `time2wait` seconds.
    Done { time2wait: u16, result: LogoutResult, scope: LogoutScope },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LogoutScope {
    Connection,
    Session,
}

/// No PDU is made while this much output waits; what is on its way the transport holds. A PDU belongs to its connection
/// and a command has its place in the order of all, so that what is made early waits behind a slow
/// connection and makes the others wait for it: 1 MiB here cost four lossy connections 5 % of their
/// throughput and five times the deviation of the turnaround (docs/decisions/0023-fair-tcp.md).
const OUTPUT_BYTES: usize = 64 << 10;

/// A command that does not arrive is sent so often, and what is missing is asked for so often,
/// before the connection is given up: each takes another loss, and a network that loses more than
/// every tenth PDU past TCP's checksum is better left.
const MOST_RETRIES: u32 = 5;
pub(super) const MOST_ROUNDS: u32 = 5;

impl InitiatorConnection {
    /// A connection that has just logged in. `exp_stat_sn` is the next status number.
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
                heard: now,
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

    /// Something is on its way that the target has to answer.
    pub(super) fn expects(&self) -> bool {
        self.load.commands > 0
            || !self.requests.is_empty()
            || !self.foreign_logouts.is_empty()
            || self.losses.missing_since.is_some()
    }

    /// May commands be sent on it?
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

    /// Sends a command for the first time.
    pub(super) fn send_new(&mut self, commands: &mut SessionCommands, waiting: QueuedCommand) {
        let QueuedCommand { request, order, deadline } = waiting;
        let task = InitiatorTask::new(request, order, commands.window.take(), deadline);
        let itt = commands.tasks.insert(task);
        self.adopt(commands, itt);
        self.send_command(commands, itt);
    }

    /// Sends a command that the target has never got with its number again (RFC 7143, 7.2.1).
    pub(super) fn send_again(&mut self, commands: &mut SessionCommands, itt: Itt) {
        self.adopt(commands, itt);
        self.counters.retries += 1;
        self.send_command(commands, itt);
    }

    /// The same for one whose connection this was all the time.
    pub(super) fn retry(
        &mut self,
        commands: &mut SessionCommands,
        itt: Itt,
    ) -> Result<(), InitiatorSessionError> {
        let task = self.task(commands, itt)?;
        task.retries += 1;
        if task.retries > MOST_RETRIES {
            return Err(InitiatorSessionError::Unanswered("a command, which never arrives"));
        }
        self.bursts.retain(|burst| burst.itt != itt);
        self.counters.retries += 1;
        self.send_command(commands, itt);
        Ok(())
    }

    /// A task belongs to this connection from now on.
    pub(super) fn adopt(&mut self, commands: &mut SessionCommands, itt: Itt) {
        let task = commands.tasks.get_mut(itt).expect("the caller has found it");
        (task.allegiance, task.lost) = (self.cid, false);
        self.load.add(task.bytes());
        let deadline = task.deadline;
        commands.note_deadline(deadline);
    }

    /// A task has ended, or belongs to this connection no more.
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
        let (read, write, length) = match &request.transfer {
            DataPhase::None => (false, false, 0),
            DataPhase::In(length) => (true, false, *length),
            DataPhase::Out(data) => (false, true, data.len() as u32),
        };
        let mut command = ScsiCommand {
            is_final: true,
            read,
            write,
            attribute: SIMPLE,
            lun: request.lun,
            itt,
            expected_data_transfer_length: length,
            cmd_sn: task.cmd_sn,
            exp_stat_sn: self.exp_stat_sn(),
            cdb: request.cdb.clone(),
            ..ScsiCommand::default()
        };
        if let DataPhase::Out(data) = &request.transfer {
            let segment = self.max_send_data_segment_length;
            let burst = DataOutBurst::begin(&mut command, data, parameters, segment);
            task.sent = burst.as_ref().map_or(command.data.len() as u32, DataOutBurst::end);
            self.bursts.extend(burst);
            self.counters.data_out_bytes += command.data.len() as u64;
        }
        self.send(Pdu::ScsiCommand(command));
    }

    /// Sends one Data-Out PDU of the oldest burst.
    pub(super) fn send_data(&mut self, commands: &mut SessionCommands) -> bool {
        loop {
            let Some(burst) = self.bursts.front_mut() else { return false };
            // A task may end before all its data was sent; then the rest is not wanted.
            let Some(task) = commands.tasks.get_mut(burst.itt) else {
                self.bursts.pop_front();
                continue;
            };
            let DataPhase::Out(data) = &task.request.transfer else {
                unreachable!("bursts are made of Data-Out only")
            };
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

    /// The task that a PDU of this connection may speak of.
    pub(super) fn task<'a>(
        &self,
        commands: &'a mut SessionCommands,
        itt: Itt,
    ) -> Result<&'a mut InitiatorTask, InitiatorSessionError> {
        let is_ours = |task: &&mut InitiatorTask| task.allegiance == self.cid && !task.lost;
        commands.tasks.get_mut(itt).filter(is_ours).ok_or(UNKNOWN_TASK)
    }

    /// The same, where a PDU may have been sent again for a task that has ended meanwhile.
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
        let TaskFinalStatus { status, sense, residual, .. } = ending;
        let task = self.task(commands, itt)?;
        // Never report a success that did not happen. The task stays, for the next session.
        if ScsiStatus::from_byte(status) == Some(ScsiStatus::Good)
            && residual == Residual::None
            && let DataPhase::Out(data) = &task.request.transfer
            && ((task.sent as usize) < data.len() || self.bursts.iter().any(|b| b.itt == itt))
        {
            return Err(InitiatorSessionError::Protocol(
                "GOOD for a write whose data it has not got",
            ));
        }
        let mut task = self.finish(commands, itt).expect("just looked at");
        let Some(status) = ScsiStatus::from_byte(status) else {
            commands.complete(task.request.tag, Err(CommandFailure::Status(status)));
            return Ok(());
        };
        let sense =
            if status == ScsiStatus::CheckCondition { Sense::from_bytes(&sense) } else { None };
        let data_in: DataSegment = task.gather.finish();
        commands.complete(
            task.request.tag,
            Ok(InitiatorCommandOutcome { status, sense, data_in, residual }),
        );
        Ok(())
    }
}

const UNKNOWN_TASK: InitiatorSessionError =
    InitiatorSessionError::Protocol("a PDU for a task that does not exist");

/// Task attribute SIMPLE (RFC 7143, 11.3.1).
const SIMPLE: u8 = 1;
