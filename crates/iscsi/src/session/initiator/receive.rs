//! Processes PDUs of the target: dispatches them, and handles the kinds that have no file of their
//! own.

use std::time::{Duration, Instant};

use bytes::Bytes;
use scsi::{ScsiStatus, Sense};

use super::{
    CommandFailure, InitiatorEvent, InitiatorSessionError,
    burst::DataOutBurst,
    commands::SessionCommands,
    connection::{InitiatorConnection, Logout},
    gather::DataInArrival,
    task::TaskFinalStatus,
};
use crate::{
    Itt, Pdu,
    codec::PduFrame,
    pdu::{
        AsyncEvent, AsyncMessage, DataIn, ReadyToTransfer, Reject, RejectReason, Residual,
        ScsiResponse, SnackKind,
    },
};

impl InitiatorConnection {
    pub(super) fn handle_frame(
        &mut self,
        commands: &mut SessionCommands,
        frame: PduFrame,
        now: Instant,
    ) -> Result<(), InitiatorSessionError> {
        self.liveness.last_message = now;
        self.counters.pdus_in += 1;
        self.counters.sizes_in.count(frame.length());
        if frame.data_digest_error {
            self.counters.digest_errors += 1;
            if !commands.recovers() {
                return Err(InitiatorSessionError::DataDigest);
            }
            return self.handle_damaged(commands, &frame.bhs, now);
        }
        let pdu = Pdu::parse(&frame.bhs, &frame.ahs, frame.data)?;
        if !matches!(pdu, Pdu::NopIn(_)) {
            self.liveness.probe_after = self.timing.probe_after;
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
            Pdu::LoginResponse(_) => {
                Err(InitiatorSessionError::Protocol("a login response after the login"))
            }
            _ => Err(InitiatorSessionError::Protocol("a PDU that only initiators send")),
        }
    }

    fn handle_data_in(
        &mut self,
        commands: &mut SessionCommands,
        pdu: DataIn,
        now: Instant,
    ) -> Result<(), InitiatorSessionError> {
        let (itt, status, numbers) = (pdu.itt, pdu.status, pdu.numbers);
        commands.window.update(&numbers);
        let length: usize = pdu.data.iter().map(Bytes::len).sum();
        self.counters.data_in_bytes += length as u64;
        let recovers = commands.recovers();
        let Some(task) = self.find_task(commands, itt)? else {
            // The task has ended: its data was requested twice, and this is the second answer.
            return match status {
                Some(_) => self.take_stat_sn(commands, &numbers, now).map(drop),
                None => Ok(()),
            };
        };
        if recovers && pdu.acknowledge {
            task.gather.request_acknowledgment(pdu.ttt, pdu.lun);
        }
        let taken = task.gather.take(pdu, recovers)?;
        if let DataInArrival::After { first, count } = taken {
            self.ask_for_data(itt, first, count, now);
        }
        if let Some(status) = status {
            let (status, residual, stat_sn) = (status.status, status.residual, numbers.stat_sn);
            let ending = TaskFinalStatus {
                status,
                sense: Bytes::new(),
                residual,
                bidirectional_read_residual: Residual::None,
                stat_sn,
            };
            return self.take_ending(commands, itt, ending, now);
        }
        self.look_at(commands, itt)
    }

    fn handle_response(
        &mut self,
        commands: &mut SessionCommands,
        pdu: ScsiResponse,
        now: Instant,
    ) -> Result<(), InitiatorSessionError> {
        let recovers = commands.recovers();
        commands.window.update(&pdu.numbers);
        let Some(task) = self.find_task(commands, pdu.itt)? else {
            return self.take_stat_sn(commands, &pdu.numbers, now).map(drop);
        };
        if pdu.response != 0 {
            if self.take_stat_sn(commands, &pdu.numbers, now)?
                && let Some(task) = self.finish(commands, pdu.itt)
            {
                commands.complete(task.request.tag, Err(CommandFailure::Response(pdu.response)));
            }
            return Ok(());
        }
        // Request missing data only if the command succeeded: the data of a failed command is not
        // used.
        let is_read = task.request.transfer.data_in().is_some();
        if recovers && is_read && pdu.status == ScsiStatus::Good as u8 {
            let expected = task.gather.expect(pdu.exp_data_sn, 0);
            if let DataInArrival::After { first, count } = expected {
                self.ask_for_data(pdu.itt, first, count, now);
            }
        }
        let stat_sn = pdu.numbers.stat_sn;
        let ending = TaskFinalStatus {
            status: pdu.status,
            sense: pdu.sense,
            residual: pdu.residual,
            bidirectional_read_residual: pdu.bidirectional_read_residual,
            stat_sn,
        };
        self.take_ending(commands, pdu.itt, ending, now)
    }

    /// Handles the status of a task. Ends the task, unless some of its data is missing.
    fn take_ending(
        &mut self,
        commands: &mut SessionCommands,
        itt: Itt,
        ending: TaskFinalStatus,
        now: Instant,
    ) -> Result<(), InitiatorSessionError> {
        let recovers = commands.recovers();
        let task = self.task(commands, itt)?;
        let waits = recovers && ending.status == ScsiStatus::Good as u8 && !task.gather.is_whole();
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

    /// Checks a task after data has arrived. Ends it if its status came before its last data and no
    /// data is missing now. Otherwise acknowledges the data if the target has requested that.
    fn look_at(
        &mut self,
        commands: &mut SessionCommands,
        itt: Itt,
    ) -> Result<(), InitiatorSessionError> {
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
        commands: &mut SessionCommands,
        pdu: ReadyToTransfer,
        now: Instant,
    ) -> Result<(), InitiatorSessionError> {
        commands.window.update(&pdu.numbers);
        let recovers = commands.recovers();
        let Some(task) = self.find_task(commands, pdu.itt)? else { return Ok(()) };
        let expected = task.next_r2t_sn().unwrap_or(pdu.r2t_sn);
        if pdu.r2t_sn != expected {
            if !recovers {
                return Err(InitiatorSessionError::Protocol("an R2TSN out of order"));
            }
            if expected < pdu.r2t_sn
                && let Some((first, count)) = task.miss_r2t(pdu.r2t_sn, expected)
            {
                // Drop this R2T, which came after a gap: the SNACK requests it again with the missing PDUs.
                self.ask_for_data(pdu.itt, first, count, now);
            }
            return Ok(());
        }
        let SessionCommands { tasks, parameters, .. } = commands;
        let task = tasks.get_mut(pdu.itt).expect("just found");
        let burst = DataOutBurst::solicited(&pdu, task, parameters)?;
        task.take_r2t_sn(expected)?;
        task.open_r2ts += 1;
        task.sent = task.sent.max(burst.end());
        self.counters.r2ts += 1;
        self.bursts.push_back(burst);
        Ok(())
    }

    fn handle_async(
        &mut self,
        commands: &mut SessionCommands,
        pdu: AsyncMessage,
        now: Instant,
    ) -> Result<(), InitiatorSessionError> {
        if !self.take_stat_sn(commands, &pdu.numbers, now)? {
            return Ok(());
        }
        match pdu.event {
            AsyncEvent::Scsi => {
                commands
                    .events
                    .push_back(InitiatorEvent::Sense(pdu.lun, Sense::from_bytes(&pdu.data)));
            }
            AsyncEvent::LogoutRequested { time } if self.is_open() => {
                // Send the logout at the latest one second before the time that the target allows
                // is over. If that time is short, use half of it.
                let time = Duration::from_secs(u64::from(time));
                let wait = time.saturating_sub(Duration::from_secs(1)).max(time / 2);
                self.logout = Logout::Draining(now + wait);
                commands.events.push_back(InitiatorEvent::LogoutRequested { cid: self.cid });
            }
            AsyncEvent::ConnectionDropped { cid, time2wait, .. } if cid == self.cid => {
                return Err(InitiatorSessionError::Dropped { time2wait });
            }
            AsyncEvent::ConnectionDropped { cid, time2wait, .. } => {
                commands.events.push_back(InitiatorEvent::Closed {
                    cid,
                    error: InitiatorSessionError::Dropped { time2wait },
                });
            }
            AsyncEvent::SessionDropped { time2wait, .. } => {
                return Err(InitiatorSessionError::SessionDropped { time2wait });
            }
            // The initiator must answer this event with a text request, which may be empty (RFC
            // 7143, 11.9.1).
            AsyncEvent::NegotiationRequested { .. } if self.text.is_none() => {
                self.begin_text(commands, Bytes::new(), false, now);
            }
            // Ignore vendor specific events. If the target has terminated tasks, nothing is done
            // here either: they time out, and the response to their ABORT TASK says that they do
            // not exist.
            _ => {}
        }
        Ok(())
    }

    fn handle_reject(
        &mut self,
        commands: &mut SessionCommands,
        pdu: Reject,
        now: Instant,
    ) -> Result<(), InitiatorSessionError> {
        if !self.take_stat_sn(commands, &pdu.numbers, now)? {
            return Ok(());
        }
        let Some(header) = pdu.header.first_chunk::<48>() else {
            return Err(InitiatorSessionError::Rejected(pdu.reason));
        };
        let itt = Itt(u32::from_be_bytes([header[16], header[17], header[18], header[19]]));
        match (header[0] & 0x3f, pdu.reason) {
            // The target rejects the command because its data arrived damaged: send the command again.
            (OPCODE_SCSI_COMMAND, RejectReason::DataDigestError) if commands.recovers() => {
                match self.find_task(commands, itt)? {
                    Some(_) => self.retry(commands, itt),
                    None => Ok(()),
                }
            }
            // Do nothing: the target requests the damaged data again with an R2T, or ends the
            // command with a status.
            (OPCODE_DATA_OUT, RejectReason::DataDigestError) if commands.recovers() => Ok(()),
            // End the connection. At error recovery level 0, the next session sends the commands
            // again.
            (_, RejectReason::DataDigestError | RejectReason::WaitingForLogout) => {
                Err(InitiatorSessionError::Rejected(pdu.reason))
            }
            (OPCODE_SCSI_COMMAND, reason) => {
                if self.find_task(commands, itt)?.is_some()
                    && let Some(task) = self.finish(commands, itt)
                {
                    commands.complete(task.request.tag, Err(CommandFailure::Rejected(reason)));
                    self.plug(commands, &task, itt);
                }
                Ok(())
            }
            // A rejected ping has arrived at the target, so the target is alive.
            (OPCODE_NOP_OUT, _) => {
                self.liveness.ping = None;
                Ok(())
            }
            // Ignore the rejected Data-Out: the target will complete the command with a status.
            (OPCODE_DATA_OUT, _) => Ok(()),
            (OPCODE_SNACK, reason) => self.handle_refused_snack(commands, header, itt, reason),
            (OPCODE_TASK_REQUEST, RejectReason::ImmediateCommandReject) => {
                self.handle_refused_management(commands, itt)
            }
            (OPCODE_TEXT_REQUEST, _) if self.text.as_ref().is_some_and(|text| !text.wanted) => {
                self.text = None;
                Ok(())
            }
            (_, reason) => Err(InitiatorSessionError::Rejected(reason)),
        }
    }
}

const OPCODE_NOP_OUT: u8 = 0x00;
const OPCODE_SCSI_COMMAND: u8 = 0x01;
const OPCODE_TASK_REQUEST: u8 = 0x02;
const OPCODE_TEXT_REQUEST: u8 = 0x04;
const OPCODE_DATA_OUT: u8 = 0x05;
const OPCODE_SNACK: u8 = 0x10;
