//! One connection of a session, as the initiator runs it: commands and their data.

use std::{collections::VecDeque, time::Instant};

use bytes::{Bytes, BytesMut};
use scsi::{Sense, Status};

use super::{
    Error, Event, Failure, Outcome, Session, Timing, Transfer, Waiting, burst::Burst,
    gather::Gather, task::Task,
};
use crate::{
    Cid, DataSegment, Itt, Pdu, Serial, Ttt,
    codec::{Digests, Frame, Output},
    pdu::{
        AsyncEvent, AsyncMessage, DataIn, Numbers, ReadyToTransfer, Reject, RejectReason, Residual,
        ScsiCommand, ScsiResponse,
    },
};

/// What belongs to one TCP connection. The driver hands in frames and time, and after each batch
/// of them polls: [`Connection::transmit`], [`Connection::output`], [`Connection::poll_event`],
/// [`Connection::poll_timeout`]. After an error there is nothing more to do with it.
pub struct Connection {
    pub(super) cid: Cid,
    digests: Digests,
    pub(super) timing: Timing,
    pub(super) exp_stat_sn: Serial,
    output: Output,
    /// Data being sent, first come first served: unsolicited data must follow the order of the
    /// commands (RFC 7143, 4.2.4.2).
    bursts: VecDeque<Burst>,
    pub(super) events: VecDeque<Event>,
    /// When anything was last heard.
    pub(super) heard: Instant,
    pub(super) ping: Option<Ping>,
    pub(super) aborts: Vec<Abort>,
    pub(super) text: Option<Text>,
    pub(super) logout: Logout,
    counters: Counters,
}

/// PDUs of a connection, and payload bytes in them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// PDUs sent.
    pub pdus_out: u64,
    /// PDUs received.
    pub pdus_in: u64,
    /// R2Ts served.
    pub r2ts: u64,
    /// Bytes of Data-Out, immediate data included.
    pub data_out_bytes: u64,
    /// Bytes of Data-In.
    pub data_in_bytes: u64,
}

pub(super) struct Ping {
    pub(super) itt: Itt,
    pub(super) sent: Instant,
}

/// An ABORT TASK under way.
pub(super) struct Abort {
    pub(super) itt: Itt,
    pub(super) task: Itt,
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
    /// The target does: no new commands; at the latest then.
    Draining(Instant),
    /// Sent.
    Sent { itt: Itt, deadline: Instant },
    /// Answered.
    Done,
}

/// No PDU is made while this much output waits: enough for the bandwidth-delay product of a
/// gigabit over 8 ms, and what is cut late can still be left out when its task has ended.
const OUTPUT_BYTES: usize = 1 << 20;

impl Connection {
    /// A connection that has just logged in. `exp_stat_sn` is the next status number.
    #[must_use]
    pub fn new(
        cid: Cid,
        digests: Digests,
        exp_stat_sn: Serial,
        timing: Timing,
        now: Instant,
    ) -> Self {
        Self {
            cid,
            digests,
            timing,
            exp_stat_sn,
            output: Output::default(),
            bursts: VecDeque::new(),
            events: VecDeque::new(),
            heard: now,
            ping: None,
            aborts: Vec::new(),
            text: None,
            logout: Logout::No,
            counters: Counters::default(),
        }
    }

    /// What to write to the socket.
    pub fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// PDUs and bytes so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The next event, if there is one.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Connection::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self, session: &Session) -> Instant {
        let mut next = match &self.ping {
            None => self.heard + self.timing.ping_after,
            Some(ping) => self.heard.max(ping.sent) + self.timing.ping_time_out,
        };
        if let Some(deadline) = session.earliest_deadline {
            next = next.min(deadline);
        }
        if let Some(text) = &self.text {
            next = next.min(text.deadline);
        }
        match self.logout {
            Logout::Draining(deadline) | Logout::Sent { deadline, .. } => next.min(deadline),
            Logout::No | Logout::Done => next,
        }
    }

    /// A PDU arrived.
    pub fn handle_frame(
        &mut self,
        session: &mut Session,
        frame: Frame,
        now: Instant,
    ) -> Result<(), Error> {
        self.heard = now;
        self.counters.pdus_in += 1;
        if frame.data_digest_error {
            return Err(Error::DataDigest);
        }
        match Pdu::parse(&frame.bhs, &frame.ahs, frame.data)? {
            Pdu::DataIn(pdu) => self.handle_data_in(session, pdu)?,
            Pdu::ScsiResponse(pdu) => self.handle_response(session, pdu)?,
            Pdu::ReadyToTransfer(pdu) => self.handle_r2t(session, pdu)?,
            Pdu::NopIn(pdu) => self.handle_nop(session, pdu)?,
            Pdu::TaskResponse(pdu) => self.handle_task_response(session, pdu)?,
            Pdu::TextResponse(pdu) => self.handle_text(session, pdu)?,
            Pdu::LogoutResponse(pdu) => self.handle_logout(session, &pdu)?,
            Pdu::Async(pdu) => self.handle_async(session, pdu, now)?,
            Pdu::Reject(pdu) => self.handle_reject(session, pdu)?,
            Pdu::LoginResponse(_) => {
                return Err(Error::Protocol("a login response after the login"));
            }
            _ => return Err(Error::Protocol("a PDU that only initiators send")),
        }
        if matches!(self.logout, Logout::Draining(_)) && session.tasks.len() == 0 {
            self.logout(session, now);
        }
        Ok(())
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, session: &mut Session, now: Instant) -> Result<(), Error> {
        self.check_ping(session, now)?;
        if self.text.as_ref().is_some_and(|text| text.deadline <= now) {
            return Err(Error::Unanswered("a text request"));
        }
        match self.logout {
            Logout::Draining(deadline) if deadline <= now => self.logout(session, now),
            Logout::Sent { deadline, .. } if deadline <= now => {
                return Err(Error::Unanswered("a logout"));
            }
            _ => {}
        }
        if session.earliest_deadline.is_some_and(|deadline| deadline <= now) {
            for request in session.expire_waiting(now) {
                self.complete(request.tag, Err(Failure::TimedOut));
            }
            self.abort_late_tasks(session, now)?;
            session.recompute_deadline();
        }
        Ok(())
    }

    /// Makes PDUs out of what may be sent now. Call it after every batch of frames, verbs and
    /// whenever output was written.
    pub fn transmit(&mut self, session: &mut Session) {
        // A command, then a Data-Out, in turn: neither do small reads wait for a long burst, nor
        // does data that the target waits for queue behind all commands.
        while self.output.len() < OUTPUT_BYTES {
            let command = self.send_command(session);
            let data = self.send_data(session);
            if !command && !data {
                break;
            }
        }
    }

    pub(super) fn send(&mut self, pdu: Pdu) {
        self.counters.pdus_out += 1;
        self.output.push(pdu, self.digests);
    }

    fn send_command(&mut self, session: &mut Session) -> bool {
        if !matches!(self.logout, Logout::No) {
            return false;
        }
        let Some(Waiting { request, order, deadline }) = session.next_to_send() else {
            return false;
        };
        let cmd_sn = session.window.take();
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
            expected_data_transfer_length: length,
            cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            cdb: request.cdb.clone(),
            ..ScsiCommand::default()
        };
        let data_out = match &request.transfer {
            Transfer::Out(data) => data.clone(),
            _ => Bytes::new(),
        };
        let task = Task {
            gather: Gather::new(if read { length } else { 0 }),
            request,
            order,
            cmd_sn,
            allegiance: self.cid,
            deadline,
            abort: None,
            r2t_sn: 0,
            sent: 0,
            open_r2ts: 0,
        };
        command.itt = session.tasks.insert(task);
        if write {
            let burst = Burst::begin(&mut command, &data_out, &session.parameters);
            let sent = burst.as_ref().map_or(command.data.len() as u32, Burst::end);
            let task = session.tasks.get_mut(command.itt).expect("just inserted");
            task.sent = sent;
            self.bursts.extend(burst);
            self.counters.data_out_bytes += command.data.len() as u64;
        }
        self.send(Pdu::ScsiCommand(command));
        true
    }

    /// Sends one Data-Out PDU of the oldest burst.
    fn send_data(&mut self, session: &mut Session) -> bool {
        loop {
            let Some(burst) = self.bursts.front_mut() else { return false };
            // A task may end before all its data was sent; then the rest is not wanted.
            let Some(task) = session.tasks.get_mut(burst.itt) else {
                self.bursts.pop_front();
                continue;
            };
            let Transfer::Out(data) = &task.request.transfer else {
                unreachable!("bursts are made of Data-Out only")
            };
            let mut pdu = burst.next_pdu(data, session.parameters.max_send_data_segment_length);
            if pdu.is_final {
                if burst.ttt != Ttt::NONE {
                    task.open_r2ts -= 1;
                }
                self.bursts.pop_front();
            }
            pdu.exp_stat_sn = self.exp_stat_sn;
            self.counters.data_out_bytes += pdu.data.len() as u64;
            self.send(Pdu::DataOut(pdu));
            return true;
        }
    }

    fn handle_data_in(&mut self, session: &mut Session, pdu: DataIn) -> Result<(), Error> {
        let (itt, status, numbers) = (pdu.itt, pdu.status, pdu.numbers);
        if status.is_some() {
            self.take_stat_sn(session, &numbers)?;
        } else {
            session.window.update(&numbers);
        }
        let length: usize = pdu.data.iter().map(Bytes::len).sum();
        self.counters.data_in_bytes += length as u64;
        self.task(session, itt)?.gather.take(pdu)?;
        match status {
            Some(status) => {
                self.end_task(session, itt, status.status, Bytes::new(), status.residual)
            }
            None => Ok(()),
        }
    }

    fn handle_response(&mut self, session: &mut Session, pdu: ScsiResponse) -> Result<(), Error> {
        self.take_stat_sn(session, &pdu.numbers)?;
        self.task(session, pdu.itt)?;
        if pdu.response != 0 {
            let task = session.tasks.remove(pdu.itt).expect("just looked at");
            self.complete(task.request.tag, Err(Failure::Response(pdu.response)));
            return Ok(());
        }
        self.end_task(session, pdu.itt, pdu.status, pdu.sense, pdu.residual)
    }

    fn handle_r2t(&mut self, session: &mut Session, pdu: ReadyToTransfer) -> Result<(), Error> {
        session.window.update(&pdu.numbers);
        let cid = self.cid;
        let parameters = &session.parameters;
        let task = session.tasks.get_mut(pdu.itt).filter(|task| task.allegiance == cid);
        let task = task.ok_or(UNKNOWN_TASK)?;
        let burst = Burst::solicited(&pdu, task, parameters)?;
        task.r2t_sn = task.r2t_sn.wrapping_add(1);
        task.open_r2ts += 1;
        task.sent = burst.end();
        self.counters.r2ts += 1;
        self.bursts.push_back(burst);
        Ok(())
    }

    fn handle_async(
        &mut self,
        session: &mut Session,
        pdu: AsyncMessage,
        now: Instant,
    ) -> Result<(), Error> {
        self.take_stat_sn(session, &pdu.numbers)?;
        match pdu.event {
            AsyncEvent::Scsi => {
                self.events.push_back(Event::Sense(pdu.lun, Sense::from_bytes(&pdu.data)));
            }
            AsyncEvent::LogoutRequested { time } => {
                if matches!(self.logout, Logout::No) {
                    // a second before the target's time is up, half of it if it is short
                    let time = std::time::Duration::from_secs(u64::from(time));
                    let wait = time.saturating_sub(std::time::Duration::from_secs(1)).max(time / 2);
                    self.logout = Logout::Draining(now + wait);
                    self.events.push_back(Event::LogoutRequested);
                }
            }
            AsyncEvent::ConnectionDropped { cid, time2wait, .. } if cid == self.cid => {
                return Err(Error::Dropped { time2wait });
            }
            AsyncEvent::SessionDropped { time2wait, .. } => {
                return Err(Error::Dropped { time2wait });
            }
            // The standard has us answer with a text request, which may be empty.
            AsyncEvent::NegotiationRequested { .. } if self.text.is_none() => {
                self.begin_text(session, Bytes::new(), false, now);
            }
            // News of other connections, vendors' news; terminated tasks run into their time-out
            // and are found missing by the ABORT TASK.
            _ => {}
        }
        Ok(())
    }

    fn handle_reject(&mut self, session: &mut Session, pdu: Reject) -> Result<(), Error> {
        self.take_stat_sn(session, &pdu.numbers)?;
        let Some(header) = pdu.header.first_chunk::<48>() else {
            return Err(Error::Rejected(pdu.reason));
        };
        let itt = Itt(u32::from_be_bytes([header[16], header[17], header[18], header[19]]));
        match (header[0] & 0x3f, pdu.reason) {
            // The command did not arrive whole: sent again by way of a new session.
            (_, RejectReason::DataDigestError | RejectReason::WaitingForLogout) => {
                Err(Error::Rejected(pdu.reason))
            }
            (OPCODE_SCSI_COMMAND, reason) => {
                self.task(session, itt)?;
                let task = session.tasks.remove(itt).expect("just looked at");
                self.complete(task.request.tag, Err(Failure::Rejected(reason)));
                Ok(())
            }
            // The ping arrived, which is what it was for.
            (OPCODE_NOP_OUT, _) => {
                self.ping = None;
                Ok(())
            }
            // The command that the data belongs to is going to end with a status.
            (OPCODE_DATA_OUT, _) => Ok(()),
            (OPCODE_TEXT_REQUEST, _) if self.text.as_ref().is_some_and(|text| !text.wanted) => {
                self.text = None;
                Ok(())
            }
            (_, reason) => Err(Error::Rejected(reason)),
        }
    }

    /// The numbers of a PDU that carries a status. Nothing is lost on TCP, so a gap or a
    /// repetition is a target that lost its count.
    pub(super) fn take_stat_sn(
        &mut self,
        session: &mut Session,
        numbers: &Numbers,
    ) -> Result<(), Error> {
        session.window.update(numbers);
        if numbers.stat_sn != self.exp_stat_sn {
            return Err(Error::Protocol("a StatSN out of order"));
        }
        self.exp_stat_sn = self.exp_stat_sn.next();
        Ok(())
    }

    /// The task that a PDU of this connection may speak of.
    fn task<'a>(&self, session: &'a mut Session, itt: Itt) -> Result<&'a mut Task, Error> {
        let task = session.tasks.get_mut(itt).filter(|task| task.allegiance == self.cid);
        task.ok_or(UNKNOWN_TASK)
    }

    fn end_task(
        &mut self,
        session: &mut Session,
        itt: Itt,
        status: u8,
        sense: Bytes,
        residual: Residual,
    ) -> Result<(), Error> {
        let task = self.task(session, itt)?;
        // Never report a success that did not happen. The task stays, for the next session.
        if Status::from_byte(status) == Some(Status::Good)
            && residual == Residual::None
            && let Transfer::Out(data) = &task.request.transfer
            && ((task.sent as usize) < data.len() || self.bursts.iter().any(|b| b.itt == itt))
        {
            return Err(Error::Protocol("GOOD for a write whose data it has not got"));
        }
        let mut task = session.tasks.remove(itt).expect("just looked at");
        let Some(status) = Status::from_byte(status) else {
            self.complete(task.request.tag, Err(Failure::Status(status)));
            return Ok(());
        };
        let sense = if status == Status::CheckCondition { Sense::from_bytes(&sense) } else { None };
        let data_in: DataSegment = task.gather.finish();
        self.complete(task.request.tag, Ok(Outcome { status, sense, data_in, residual }));
        Ok(())
    }

    pub(super) fn complete(&mut self, tag: u64, result: Result<Outcome, Failure>) {
        self.events.push_back(Event::Completed { tag, result });
    }
}

const UNKNOWN_TASK: Error = Error::Protocol("a PDU for a task that does not exist");

/// Task attribute SIMPLE (RFC 7143, 11.3.1).
const SIMPLE: u8 = 1;

const OPCODE_NOP_OUT: u8 = 0x00;
const OPCODE_SCSI_COMMAND: u8 = 0x01;
const OPCODE_TEXT_REQUEST: u8 = 0x04;
const OPCODE_DATA_OUT: u8 = 0x05;
