//! One connection of a session, as the initiator runs it: commands and their data.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use scsi::{Sense, Status};

use super::{
    Error, Event, Failure, Load, Outcome, Timing, Transfer,
    burst::Burst,
    commands::{Commands, Waiting},
    gather::Taken,
    statuses::{Arrival, Statuses},
    task::{Ending, Task},
};
use crate::{
    Cid, DataSegment, Itt, Pdu, Serial, Sizes, Ttt,
    codec::{Digests, Frame, Output},
    pdu::{
        AsyncEvent, AsyncMessage, DataIn, LogoutResult, Numbers, ReadyToTransfer, Reject,
        RejectReason, Residual, ScsiCommand, ScsiResponse, SnackKind,
    },
};

/// What belongs to one TCP connection.
pub(super) struct Connection {
    pub(super) cid: Cid,
    digests: Digests,
    /// What the target takes in one data segment, on this connection.
    max_send_data_segment_length: u32,
    pub(super) timing: Timing,
    pub(super) statuses: Statuses,
    pub(super) output: Output,
    /// Data being sent, first come first served: unsolicited data must follow the order of the
    /// commands (RFC 7143, 4.2.4.2).
    bursts: VecDeque<Burst>,
    /// When anything was last heard.
    pub(super) heard: Instant,
    /// When bytes got through last that what is asked waits behind, in either direction, as far as that is noted.
    pub(super) carried: Instant,
    pub(super) ping: Option<Ping>,
    /// How long to wait, with commands on their way and nothing heard, before asking.
    pub(super) probe_after: Duration,
    /// Since when something that the target sent is missing.
    pub(super) missing_since: Option<Instant>,
    /// How often in a row something was missing when a ping was answered.
    pub(super) rounds: u32,
    /// A command that ought to have arrived, and since when answers to pings say that it has not.
    pub(super) missed: Option<(Serial, Instant)>,
    pub(super) requests: Vec<TaskManagement>,
    pub(super) text: Option<Text>,
    pub(super) logout: Logout,
    /// Logouts that were sent here for connections that failed.
    pub(super) foreign_logouts: Vec<Itt>,
    /// What the commands on this connection move.
    pub(super) load: Load,
    pub(super) counters: Counters,
}

/// PDUs of a connection, and payload bytes in them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// PDUs sent.
    pub pdus_out: u64,
    /// PDUs received.
    pub pdus_in: u64,
    /// PDUs sent, by size.
    pub sizes_out: Sizes,
    /// PDUs received, by size.
    pub sizes_in: Sizes,
    /// R2Ts served.
    pub r2ts: u64,
    /// Bytes of Data-Out, immediate data included.
    pub data_out_bytes: u64,
    /// Bytes of Data-In.
    pub data_in_bytes: u64,
    /// Data segments that came damaged.
    pub digest_errors: u64,
    /// SNACKs that asked for something again.
    pub snacks: u64,
    /// Commands that the target did not get, sent again with their number.
    pub retries: u64,
    /// Tasks taken over from another connection.
    pub reassigned: u64,
}

pub(super) struct Ping {
    pub(super) itt: Itt,
    pub(super) sent: Instant,
    /// Commands on this connection with a number before this were sent before the ping.
    pub(super) cmd_sn: Serial,
    /// Where it ends in the connection's output.
    pub(super) end: u64,
    /// It took so long that the other connections were asked, too.
    pub(super) suspected: bool,
}

/// A task management function under way.
pub(super) struct TaskManagement {
    pub(super) itt: Itt,
    pub(super) task: Itt,
    pub(super) kind: Management,
}

pub(super) enum Management {
    Abort,
    Reassign { deadline: Instant },
}

/// A text exchange under way.
pub(super) struct Text {
    pub(super) itt: Itt,
    pub(super) answer: BytesMut,
    pub(super) deadline: Instant,
    /// The application asked, so it is told.
    pub(super) wanted: bool,
}

pub(super) enum Logout {
    /// Nobody wants one.
    No,
    /// Somebody does: no new commands; at the latest then.
    Draining(Instant),
    /// Sent: of this connection, of another one, or of the session.
    Sent { itt: Itt, deadline: Instant, scope: Scope },
    /// Another connection is logging out the session.
    Ending,
    /// Answered: so many seconds before the next login.
    Done { time2wait: u16, result: LogoutResult, scope: Scope },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Scope {
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

impl Connection {
    /// A connection that has just logged in. `exp_stat_sn` is the next status number.
    pub(super) fn new(
        cid: Cid,
        digests: Digests,
        max_send_data_segment_length: u32,
        exp_stat_sn: Serial,
        timing: Timing,
        now: Instant,
    ) -> Self {
        Self {
            cid,
            digests,
            max_send_data_segment_length,
            timing,
            statuses: Statuses::new(exp_stat_sn),
            output: Output::default(),
            bursts: VecDeque::new(),
            heard: now,
            carried: now,
            ping: None,
            probe_after: timing.probe_after,
            missing_since: None,
            rounds: 0,
            missed: None,
            requests: Vec::new(),
            text: None,
            logout: Logout::No,
            foreign_logouts: Vec::new(),
            load: Load::default(),
            counters: Counters::default(),
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
            || self.missing_since.is_some()
    }

    /// May commands be sent on it?
    pub(super) fn is_open(&self) -> bool {
        matches!(self.logout, Logout::No)
    }

    pub(super) fn has_room(&self) -> bool {
        self.output.len() < OUTPUT_BYTES
    }

    /// A PDU arrived.
    pub(super) fn handle_frame(
        &mut self,
        commands: &mut Commands,
        frame: Frame,
        now: Instant,
    ) -> Result<(), Error> {
        self.heard = now;
        self.counters.pdus_in += 1;
        self.counters.sizes_in.count(frame.length());
        if frame.data_digest_error {
            self.counters.digest_errors += 1;
            if !commands.recovers() {
                return Err(Error::DataDigest);
            }
            return self.handle_damaged(commands, &frame.bhs, now);
        }
        let pdu = Pdu::parse(&frame.bhs, &frame.ahs, frame.data)?;
        if !matches!(pdu, Pdu::NopIn(_)) {
            self.probe_after = self.timing.probe_after;
        }
        match pdu {
            Pdu::DataIn(pdu) => self.handle_data_in(commands, pdu, now),
            Pdu::ScsiResponse(pdu) => self.handle_response(commands, pdu, now),
            Pdu::ReadyToTransfer(pdu) => self.handle_r2t(commands, pdu, now),
            Pdu::NopIn(pdu) => self.handle_nop(commands, pdu, now),
            Pdu::TaskResponse(pdu) => self.handle_task_response(commands, pdu, now),
            Pdu::TextResponse(pdu) => self.handle_text(commands, pdu, now),
            Pdu::LogoutResponse(pdu) => self.handle_logout(commands, &pdu, now),
            Pdu::Async(pdu) => self.handle_async(commands, pdu, now),
            Pdu::Reject(pdu) => self.handle_reject(commands, pdu, now),
            Pdu::LoginResponse(_) => Err(Error::Protocol("a login response after the login")),
            _ => Err(Error::Protocol("a PDU that only initiators send")),
        }
    }

    pub(super) fn send(&mut self, pdu: Pdu) {
        self.counters.pdus_out += 1;
        let length = self.output.push(pdu, self.digests);
        self.counters.sizes_out.count(length);
    }

    /// Sends a command for the first time.
    pub(super) fn send_new(&mut self, commands: &mut Commands, waiting: Waiting) {
        let Waiting { request, order, deadline } = waiting;
        let task = Task::new(request, order, commands.window.take(), deadline);
        let itt = commands.tasks.insert(task);
        self.adopt(commands, itt);
        self.send_command(commands, itt);
    }

    /// Sends a command that the target has never got with its number again (RFC 7143, 7.2.1).
    pub(super) fn send_again(&mut self, commands: &mut Commands, itt: Itt) {
        self.adopt(commands, itt);
        self.counters.retries += 1;
        self.send_command(commands, itt);
    }

    /// The same for one whose connection this was all the time.
    pub(super) fn retry(&mut self, commands: &mut Commands, itt: Itt) -> Result<(), Error> {
        let task = self.task(commands, itt)?;
        task.retries += 1;
        if task.retries > MOST_RETRIES {
            return Err(Error::Unanswered("a command, which never arrives"));
        }
        self.bursts.retain(|burst| burst.itt != itt);
        self.counters.retries += 1;
        self.send_command(commands, itt);
        Ok(())
    }

    /// A task belongs to this connection from now on.
    pub(super) fn adopt(&mut self, commands: &mut Commands, itt: Itt) {
        let task = commands.tasks.get_mut(itt).expect("the caller has found it");
        (task.allegiance, task.lost) = (self.cid, false);
        self.load.add(task.bytes());
        let deadline = task.deadline;
        commands.note_deadline(deadline);
    }

    /// A task has ended, or belongs to this connection no more.
    pub(super) fn finish(&mut self, commands: &mut Commands, itt: Itt) -> Option<Task> {
        let task = commands.tasks.remove(itt)?;
        self.load.remove(task.bytes());
        Some(task)
    }

    fn send_command(&mut self, commands: &mut Commands, itt: Itt) {
        let Commands { tasks, parameters, .. } = commands;
        let task = tasks.get_mut(itt).expect("the caller has found it");
        task.start_again();
        let request = &task.request;
        let (read, write, length) = match &request.transfer {
            Transfer::None => (false, false, 0),
            Transfer::In(length) => (true, false, *length),
            Transfer::Out(data) => (false, true, data.len() as u32),
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
        if let Transfer::Out(data) = &request.transfer {
            let segment = self.max_send_data_segment_length;
            let burst = Burst::begin(&mut command, data, parameters, segment);
            task.sent = burst.as_ref().map_or(command.data.len() as u32, Burst::end);
            self.bursts.extend(burst);
            self.counters.data_out_bytes += command.data.len() as u64;
        }
        self.send(Pdu::ScsiCommand(command));
    }

    /// Sends one Data-Out PDU of the oldest burst.
    pub(super) fn send_data(&mut self, commands: &mut Commands) -> bool {
        loop {
            let Some(burst) = self.bursts.front_mut() else { return false };
            // A task may end before all its data was sent; then the rest is not wanted.
            let Some(task) = commands.tasks.get_mut(burst.itt) else {
                self.bursts.pop_front();
                continue;
            };
            let Transfer::Out(data) = &task.request.transfer else {
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

    fn handle_data_in(
        &mut self,
        commands: &mut Commands,
        pdu: DataIn,
        now: Instant,
    ) -> Result<(), Error> {
        let (itt, status, numbers) = (pdu.itt, pdu.status, pdu.numbers);
        commands.window.update(&numbers);
        let length: usize = pdu.data.iter().map(Bytes::len).sum();
        self.counters.data_in_bytes += length as u64;
        let recovers = commands.recovers();
        let Some(task) = self.find_task(commands, itt)? else {
            // Asked for twice, and the first answer ended the task.
            return match status {
                Some(_) => self.take_stat_sn(commands, &numbers, now).map(drop),
                None => Ok(()),
            };
        };
        if recovers && pdu.acknowledge {
            task.gather.wish(pdu.ttt, pdu.lun);
        }
        let taken = task.gather.take(pdu, recovers)?;
        if let Taken::After { first, count } = taken {
            self.ask_for_data(itt, first, count, now);
        }
        if let Some(status) = status {
            let (status, residual, stat_sn) = (status.status, status.residual, numbers.stat_sn);
            let ending = Ending { status, sense: Bytes::new(), residual, stat_sn };
            return self.take_ending(commands, itt, ending, now);
        }
        self.look_at(commands, itt)
    }

    fn handle_response(
        &mut self,
        commands: &mut Commands,
        pdu: ScsiResponse,
        now: Instant,
    ) -> Result<(), Error> {
        let recovers = commands.recovers();
        commands.window.update(&pdu.numbers);
        let Some(task) = self.find_task(commands, pdu.itt)? else {
            return self.take_stat_sn(commands, &pdu.numbers, now).map(drop);
        };
        if pdu.response != 0 {
            if self.take_stat_sn(commands, &pdu.numbers, now)?
                && let Some(task) = self.finish(commands, pdu.itt)
            {
                commands.complete(task.request.tag, Err(Failure::Response(pdu.response)));
            }
            return Ok(());
        }
        // The data of a command that failed is not worth asking for.
        let is_read = matches!(task.request.transfer, Transfer::In(_));
        if recovers && is_read && pdu.status == Status::Good as u8 {
            let expected = task.gather.expect(pdu.exp_data_sn, 0);
            if let Taken::After { first, count } = expected {
                self.ask_for_data(pdu.itt, first, count, now);
            }
        }
        let stat_sn = pdu.numbers.stat_sn;
        let ending =
            Ending { status: pdu.status, sense: pdu.sense, residual: pdu.residual, stat_sn };
        self.take_ending(commands, pdu.itt, ending, now)
    }

    /// A status has come. It ends its task, unless data of it is missing.
    fn take_ending(
        &mut self,
        commands: &mut Commands,
        itt: Itt,
        ending: Ending,
        now: Instant,
    ) -> Result<(), Error> {
        let recovers = commands.recovers();
        let task = self.task(commands, itt)?;
        let waits = recovers && ending.status == Status::Good as u8 && !task.gather.is_whole();
        let arrival = self.statuses.arrive(ending.stat_sn, !waits);
        if !self.judge(arrival, recovers, now)? {
            return Ok(());
        }
        if waits {
            let task = self.task(commands, itt)?;
            task.status = Some(ending);
            return Ok(());
        }
        self.end_task(commands, itt, ending)
    }

    /// Does what was waiting for the data that has just come.
    fn look_at(&mut self, commands: &mut Commands, itt: Itt) -> Result<(), Error> {
        let task = self.task(commands, itt)?;
        if task.status.is_some() {
            if !task.gather.is_whole() {
                return Ok(());
            }
            let ending = task.status.take().expect("just looked at");
            self.statuses.settle(ending.stat_sn);
            return self.end_task(commands, itt, ending);
        }
        if let Some((ttt, lun, begin)) = task.gather.acknowledgment() {
            self.send_snack(SnackKind::DataAck, lun, Itt::NONE, ttt, begin, 0);
        }
        Ok(())
    }

    fn handle_r2t(
        &mut self,
        commands: &mut Commands,
        pdu: ReadyToTransfer,
        now: Instant,
    ) -> Result<(), Error> {
        commands.window.update(&pdu.numbers);
        let recovers = commands.recovers();
        let Some(task) = self.find_task(commands, pdu.itt)? else { return Ok(()) };
        let expected = task.r2t_sn.unwrap_or(pdu.r2t_sn);
        if pdu.r2t_sn != expected {
            if !recovers {
                return Err(Error::Protocol("an R2TSN out of order"));
            }
            if expected < pdu.r2t_sn {
                // This one comes again, too.
                self.ask_for_data(pdu.itt, expected, 0, now);
            }
            return Ok(());
        }
        let Commands { tasks, parameters, .. } = commands;
        let task = tasks.get_mut(pdu.itt).expect("just found");
        let burst = Burst::solicited(&pdu, task, parameters)?;
        task.r2t_sn = Some(expected.wrapping_add(1));
        task.open_r2ts += 1;
        task.sent = task.sent.max(burst.end());
        self.counters.r2ts += 1;
        self.bursts.push_back(burst);
        Ok(())
    }

    fn handle_async(
        &mut self,
        commands: &mut Commands,
        pdu: AsyncMessage,
        now: Instant,
    ) -> Result<(), Error> {
        if !self.take_stat_sn(commands, &pdu.numbers, now)? {
            return Ok(());
        }
        match pdu.event {
            AsyncEvent::Scsi => {
                commands.events.push_back(Event::Sense(pdu.lun, Sense::from_bytes(&pdu.data)));
            }
            AsyncEvent::LogoutRequested { time } if self.is_open() => {
                // a second before the target's time is up, half of it if it is short
                let time = Duration::from_secs(u64::from(time));
                let wait = time.saturating_sub(Duration::from_secs(1)).max(time / 2);
                self.logout = Logout::Draining(now + wait);
                commands.events.push_back(Event::LogoutRequested { cid: self.cid });
            }
            AsyncEvent::ConnectionDropped { cid, time2wait, .. } if cid == self.cid => {
                return Err(Error::Dropped { time2wait });
            }
            AsyncEvent::ConnectionDropped { cid, time2wait, .. } => {
                commands
                    .events
                    .push_back(Event::Closed { cid, error: Error::Dropped { time2wait } });
            }
            AsyncEvent::SessionDropped { time2wait, .. } => {
                return Err(Error::SessionDropped { time2wait });
            }
            // The standard has us answer with a text request, which may be empty.
            AsyncEvent::NegotiationRequested { .. } if self.text.is_none() => {
                self.begin_text(commands, Bytes::new(), false, now);
            }
            // Vendors' news; terminated tasks run into their time-out and are found missing by
            // the ABORT TASK.
            _ => {}
        }
        Ok(())
    }

    fn handle_reject(
        &mut self,
        commands: &mut Commands,
        pdu: Reject,
        now: Instant,
    ) -> Result<(), Error> {
        if !self.take_stat_sn(commands, &pdu.numbers, now)? {
            return Ok(());
        }
        let Some(header) = pdu.header.first_chunk::<48>() else {
            return Err(Error::Rejected(pdu.reason));
        };
        let itt = Itt(u32::from_be_bytes([header[16], header[17], header[18], header[19]]));
        match (header[0] & 0x3f, pdu.reason) {
            // The command did not arrive whole: once more.
            (OPCODE_SCSI_COMMAND, RejectReason::DataDigestError) if commands.recovers() => {
                match self.find_task(commands, itt)? {
                    Some(_) => self.retry(commands, itt),
                    None => Ok(()),
                }
            }
            // The target asks for it again, or ends the command with a status.
            (OPCODE_DATA_OUT, RejectReason::DataDigestError) if commands.recovers() => Ok(()),
            // At level 0 it is sent again by way of a new session.
            (_, RejectReason::DataDigestError | RejectReason::WaitingForLogout) => {
                Err(Error::Rejected(pdu.reason))
            }
            (OPCODE_SCSI_COMMAND, reason) => {
                if self.find_task(commands, itt)?.is_some()
                    && let Some(task) = self.finish(commands, itt)
                {
                    commands.complete(task.request.tag, Err(Failure::Rejected(reason)));
                    self.plug(commands, &task, itt);
                }
                Ok(())
            }
            // The ping arrived, which is what it was for.
            (OPCODE_NOP_OUT, _) => {
                self.ping = None;
                Ok(())
            }
            // The command that the data belongs to is going to end with a status.
            (OPCODE_DATA_OUT, _) => Ok(()),
            (OPCODE_SNACK, reason) => self.handle_refused_snack(commands, header, itt, reason),
            (OPCODE_TASK_REQUEST, RejectReason::ImmediateCommandReject) => {
                self.handle_refused_management(commands, itt)
            }
            (OPCODE_TEXT_REQUEST, _) if self.text.as_ref().is_some_and(|text| !text.wanted) => {
                self.text = None;
                Ok(())
            }
            (_, reason) => Err(Error::Rejected(reason)),
        }
    }

    /// The numbers of a PDU that carries a status. False if it was here before. At level 0 nothing
    /// is lost on TCP, so a gap or a repetition is a target that lost its count.
    pub(super) fn take_stat_sn(
        &mut self,
        commands: &mut Commands,
        numbers: &Numbers,
        now: Instant,
    ) -> Result<bool, Error> {
        commands.window.update(numbers);
        let arrival = self.statuses.arrive(numbers.stat_sn, true);
        self.judge(arrival, commands.recovers(), now)
    }

    fn judge(&mut self, arrival: Arrival, recovers: bool, now: Instant) -> Result<bool, Error> {
        match arrival {
            Arrival::Next => Ok(true),
            Arrival::OutOfOrder if recovers => {
                self.ask_for_statuses(now);
                Ok(true)
            }
            Arrival::Repeated if recovers => Ok(false),
            _ => Err(Error::Protocol("a StatSN out of order")),
        }
    }

    /// The task that a PDU of this connection may speak of.
    pub(super) fn task<'a>(
        &self,
        commands: &'a mut Commands,
        itt: Itt,
    ) -> Result<&'a mut Task, Error> {
        let is_ours = |task: &&mut Task| task.allegiance == self.cid && !task.lost;
        commands.tasks.get_mut(itt).filter(is_ours).ok_or(UNKNOWN_TASK)
    }

    /// The same, where a PDU may have been sent again for a task that has ended meanwhile.
    pub(super) fn find_task<'a>(
        &self,
        commands: &'a mut Commands,
        itt: Itt,
    ) -> Result<Option<&'a mut Task>, Error> {
        let recovers = commands.recovers();
        match self.task(commands, itt) {
            Ok(task) => Ok(Some(task)),
            Err(_) if recovers => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn end_task(
        &mut self,
        commands: &mut Commands,
        itt: Itt,
        ending: Ending,
    ) -> Result<(), Error> {
        let Ending { status, sense, residual, .. } = ending;
        let task = self.task(commands, itt)?;
        // Never report a success that did not happen. The task stays, for the next session.
        if Status::from_byte(status) == Some(Status::Good)
            && residual == Residual::None
            && let Transfer::Out(data) = &task.request.transfer
            && ((task.sent as usize) < data.len() || self.bursts.iter().any(|b| b.itt == itt))
        {
            return Err(Error::Protocol("GOOD for a write whose data it has not got"));
        }
        let mut task = self.finish(commands, itt).expect("just looked at");
        let Some(status) = Status::from_byte(status) else {
            commands.complete(task.request.tag, Err(Failure::Status(status)));
            return Ok(());
        };
        let sense = if status == Status::CheckCondition { Sense::from_bytes(&sense) } else { None };
        let data_in: DataSegment = task.gather.finish();
        commands.complete(task.request.tag, Ok(Outcome { status, sense, data_in, residual }));
        Ok(())
    }
}

const UNKNOWN_TASK: Error = Error::Protocol("a PDU for a task that does not exist");

/// Task attribute SIMPLE (RFC 7143, 11.3.1).
const SIMPLE: u8 = 1;

const OPCODE_NOP_OUT: u8 = 0x00;
const OPCODE_SCSI_COMMAND: u8 = 0x01;
const OPCODE_TASK_REQUEST: u8 = 0x02;
const OPCODE_TEXT_REQUEST: u8 = 0x04;
const OPCODE_DATA_OUT: u8 = 0x05;
const OPCODE_SNACK: u8 = 0x10;
