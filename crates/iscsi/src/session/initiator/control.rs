//! What a connection says beside commands: pings, aborts, text, the logout.

use std::time::Instant;

use bytes::{Bytes, BytesMut};

use super::{
    Error, Event, Failure, Session,
    connection::{Abort, Connection, Logout, Ping, Text},
};
use crate::{
    Itt, Pdu, Ttt,
    pdu::{
        LogoutReason, LogoutRequest, LogoutResponse, NopIn, NopOut, TaskFunction,
        TaskFunctionResult, TaskRequest, TaskResponse, TextRequest, TextResponse,
    },
};

/// SendTargets of 4,000 targets with 250 bytes each.
const TEXT_BYTES: usize = 1 << 20;

/// A target that answers late what it was told to abort, and never the abort itself, is not worth
/// more patience than this.
const MOST_ABORTS: usize = 1024;

impl Connection {
    /// Asks for text keys, for example `SendTargets=All`; the answer is an [`Event::Text`]. False,
    /// and nothing happens, while another exchange is under way: the target may have asked for one.
    #[must_use]
    pub fn text(&mut self, session: &mut Session, text: Bytes, now: Instant) -> bool {
        let free = self.text.is_none();
        if free {
            self.begin_text(session, text, true, now);
        }
        free
    }

    /// Leaves: closes the session. The answer is an [`Event::LoggedOut`]. Commands on their way
    /// may or may not be performed.
    pub fn logout(&mut self, session: &mut Session, now: Instant) {
        if matches!(self.logout, Logout::Sent { .. } | Logout::Done) {
            return;
        }
        let itt = session.control_itt();
        self.logout = Logout::Sent { itt, deadline: now + self.timing.abort_time_out };
        self.send(Pdu::LogoutRequest(LogoutRequest {
            immediate: true,
            reason: Ok(LogoutReason::CloseSession),
            itt,
            cid: self.cid,
            cmd_sn: session.window.cmd_sn(),
            exp_stat_sn: self.exp_stat_sn,
        }));
    }

    pub(super) fn handle_nop(&mut self, session: &mut Session, pdu: NopIn) -> Result<(), Error> {
        if pdu.itt == Itt::NONE {
            session.window.update(&pdu.numbers);
        } else {
            self.take_stat_sn(session, &pdu.numbers)?;
            match &self.ping {
                Some(ping) if ping.itt == pdu.itt => self.ping = None,
                _ => return Err(Error::Protocol("an answer to a ping that was not sent")),
            }
        }
        if pdu.ttt != Ttt::NONE {
            self.send(Pdu::NopOut(NopOut {
                immediate: true,
                lun: pdu.lun,
                itt: Itt::NONE,
                ttt: pdu.ttt,
                cmd_sn: session.window.cmd_sn(),
                exp_stat_sn: self.exp_stat_sn,
                data: Bytes::new(),
            }));
        }
        Ok(())
    }

    pub(super) fn handle_task_response(
        &mut self,
        session: &mut Session,
        pdu: TaskResponse,
    ) -> Result<(), Error> {
        self.take_stat_sn(session, &pdu.numbers)?;
        let Some(index) = self.aborts.iter().position(|abort| abort.itt == pdu.itt) else {
            return Err(Error::Protocol("an answer to a task management that was not asked"));
        };
        let abort = self.aborts.swap_remove(index);
        // It may have ended while the request was on its way: then that is what counts.
        let Some(task) = session.tasks.get_mut(abort.task) else { return Ok(()) };
        match pdu.result {
            // A response that was sent before this one would have arrived before it.
            TaskFunctionResult::Complete | TaskFunctionResult::NoTask => {
                let tag = task.request.tag;
                session.tasks.remove(abort.task);
                self.complete(tag, Err(Failure::TimedOut));
                Ok(())
            }
            _ => Err(Error::Unanswered("a command, and it cannot be aborted")),
        }
    }

    pub(super) fn handle_text(
        &mut self,
        session: &mut Session,
        pdu: TextResponse,
    ) -> Result<(), Error> {
        self.take_stat_sn(session, &pdu.numbers)?;
        let text = self.text.as_mut().filter(|text| text.itt == pdu.itt);
        let text = text.ok_or(Error::Protocol("an answer to a text that was not asked"))?;
        if text.answer.len() + pdu.text.len() > TEXT_BYTES {
            return Err(Error::Protocol("more text than can be taken"));
        }
        text.answer.extend_from_slice(&pdu.text);
        if pdu.is_final && !pdu.continues {
            let text = self.text.take().expect("just looked at");
            if text.wanted {
                self.events.push_back(Event::Text(text.answer.freeze()));
            }
            return Ok(());
        }
        // Without this a target could keep the exchange going for ever.
        if pdu.text.is_empty() {
            return Err(Error::Protocol("an empty text response that is not the last"));
        }
        if pdu.ttt == Ttt::NONE {
            return Err(Error::Protocol("a text response to be continued, without a tag"));
        }
        self.send(Pdu::TextRequest(TextRequest {
            immediate: true,
            is_final: true,
            continues: false,
            lun: pdu.lun,
            itt: pdu.itt,
            ttt: pdu.ttt,
            cmd_sn: session.window.cmd_sn(),
            exp_stat_sn: self.exp_stat_sn,
            text: Bytes::new(),
        }));
        Ok(())
    }

    pub(super) fn check_ping(&mut self, session: &mut Session, now: Instant) -> Result<(), Error> {
        match &self.ping {
            // Counted from the ping, so that a process that was suspended asks before it judges.
            Some(ping) if self.heard.max(ping.sent) + self.timing.ping_time_out <= now => {
                Err(Error::Silent)
            }
            None if self.heard + self.timing.ping_after <= now => {
                let itt = session.control_itt();
                self.ping = Some(Ping { itt, sent: now });
                self.send(Pdu::NopOut(NopOut {
                    immediate: true,
                    lun: scsi::Lun(0),
                    itt,
                    ttt: Ttt::NONE,
                    cmd_sn: session.window.cmd_sn(),
                    exp_stat_sn: self.exp_stat_sn,
                    data: Bytes::new(),
                }));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn abort_late_tasks(
        &mut self,
        session: &mut Session,
        now: Instant,
    ) -> Result<(), Error> {
        let mut late = Vec::new();
        for (itt, task) in session.tasks.iter_mut() {
            if task.allegiance == self.cid && task.deadline <= now {
                if task.abort.is_some() {
                    return Err(Error::Unanswered("an ABORT TASK"));
                }
                late.push((itt, task.request.lun, task.cmd_sn));
            }
        }
        if self.aborts.len() + late.len() > MOST_ABORTS {
            return Err(Error::Unanswered("many an ABORT TASK"));
        }
        for (itt, lun, ref_cmd_sn) in late {
            let abort = session.control_itt();
            let task = session.tasks.get_mut(itt).expect("just found");
            task.abort = Some(abort);
            task.deadline = now + self.timing.abort_time_out;
            self.aborts.push(Abort { itt: abort, task: itt });
            self.send(Pdu::TaskRequest(TaskRequest {
                immediate: true,
                function: Ok(TaskFunction::AbortTask),
                lun,
                itt: abort,
                referenced_itt: itt,
                cmd_sn: session.window.cmd_sn(),
                exp_stat_sn: self.exp_stat_sn,
                ref_cmd_sn,
                exp_data_sn: 0,
            }));
        }
        Ok(())
    }

    pub(super) fn begin_text(
        &mut self,
        session: &mut Session,
        text: Bytes,
        wanted: bool,
        now: Instant,
    ) {
        let itt = session.control_itt();
        let deadline = now + self.timing.ping_after + self.timing.ping_time_out;
        self.text = Some(Text { itt, answer: BytesMut::new(), deadline, wanted });
        self.send(Pdu::TextRequest(TextRequest {
            immediate: true,
            is_final: true,
            continues: false,
            lun: scsi::Lun(0),
            itt,
            ttt: Ttt::NONE,
            cmd_sn: session.window.cmd_sn(),
            exp_stat_sn: self.exp_stat_sn,
            text,
        }));
    }

    pub(super) fn handle_logout(
        &mut self,
        session: &mut Session,
        pdu: &LogoutResponse,
    ) -> Result<(), Error> {
        self.take_stat_sn(session, &pdu.numbers)?;
        match self.logout {
            Logout::Sent { itt, .. } if itt == pdu.itt => self.logout = Logout::Done,
            _ => return Err(Error::Protocol("an answer to a logout that was not asked")),
        }
        self.events.push_back(Event::LoggedOut { time2wait: pdu.time2wait });
        Ok(())
    }
}
