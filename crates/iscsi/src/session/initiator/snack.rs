//! Recovery within a connection (error recovery level 1; RFC 7143, 7.1.4.1, 7.1.4.2): requests lost
//! PDUs with a SNACK, and sends commands again that the target did not receive.
//!
//! MaxRecvDataSegmentLength never changes during a connection, nor from one connection to the next.
//! Data-In is therefore always requested by DataSN and never by an R-Data SNACK (11.16.3).

use std::time::Instant;

use bytes::Bytes;
use scsi::{Lun, ScsiStatus, Sense};

use super::{
    InitiatorSessionError,
    commands::SessionCommands,
    connection::{InitiatorConnection, MOST_ROUNDS, Management, PendingTaskManagement, Ping},
    gather::DataInArrival,
    statuses::Arrival,
    task::{InitiatorTask, TaskFinalStatus},
};
use crate::{
    Bhs, Itt, Pdu, Serial, Ttt,
    pdu::{Numbers, RejectReason, Residual, Snack, SnackKind, TaskFunction, TaskRequest},
};

impl InitiatorConnection {
    /// Handles a PDU with a data digest error and a valid header. Its data counts as lost and is
    /// requested again.
    pub(super) fn handle_damaged(
        &mut self,
        commands: &mut SessionCommands,
        bhs: &Bhs,
        now: Instant,
    ) -> Result<(), InitiatorSessionError> {
        let opcode = bhs[0] & 0x3f;
        let word = |at: usize| u32::from_be_bytes([bhs[at], bhs[at + 1], bhs[at + 2], bhs[at + 3]]);
        let (itt, stat_sn) = (Itt(word(16)), Serial(word(24)));
        if opcode == OPCODE_DATA_IN {
            let Pdu::DataIn(pdu) = Pdu::parse(bhs, &[], Bytes::new())? else {
                unreachable!("the opcode says what it is")
            };
            if pdu.status.is_some() {
                // Mark the status as missing, but do not request it: the target sends it again with the data.
                self.statuses.expect(stat_sn.next());
            }
            if let Some(task) = self.find_task(commands, itt)?
                && let DataInArrival::After { first, count } = task.gather.lose(pdu.data_sn)
            {
                self.ask_for_data(itt, first, count, now);
            } else {
                self.losses.missing_since.get_or_insert(now);
            }
        } else if !(opcode == OPCODE_NOP_IN && itt == Itt::NONE)
            && self.statuses.expect(stat_sn.next())
        {
            self.ask_for_statuses(now);
        }
        Ok(())
    }

    /// Processes the sequence numbers of a PDU that carries a status. Returns false if this status
    /// has arrived before.
    pub(super) fn take_stat_sn(
        &mut self,
        commands: &mut SessionCommands,
        numbers: &Numbers,
        now: Instant,
    ) -> Result<bool, InitiatorSessionError> {
        commands.window.update(numbers);
        let arrival = self.statuses.arrive(numbers.stat_sn, true);
        self.judge(arrival, commands.recovers(), now)
    }

    /// Checks the StatSN of a status. Requests the statuses that are missing before it. Returns
    /// false if the status has arrived before. At error recovery level 0, TCP loses no data, so a
    /// gap or a repetition is an error of the target.
    pub(super) fn judge(
        &mut self,
        arrival: Arrival,
        recovers: bool,
        now: Instant,
    ) -> Result<bool, InitiatorSessionError> {
        match arrival {
            Arrival::Next => Ok(true),
            Arrival::OutOfOrder if recovers => {
                self.ask_for_statuses(now);
                Ok(true)
            }
            Arrival::Repeated if recovers => Ok(false),
            _ => Err(InitiatorSessionError::Protocol("a StatSN out of order")),
        }
    }

    /// Requests the Data-In or R2T PDUs of a task from number `first` on: `count` of them, or all
    /// with a `count` of 0.
    pub(super) fn ask_for_data(&mut self, itt: Itt, first: u32, count: u32, now: Instant) {
        self.losses.missing_since.get_or_insert(now);
        self.counters.snacks += 1;
        self.send_snack(SnackKind::DataOrR2t, Lun(0), itt, Ttt::NONE, first, count);
    }

    /// Sends a SNACK for the first gap in the received status numbers (StatSN), if there is one.
    pub(super) fn ask_for_statuses(&mut self, now: Instant) {
        let Some((first, count)) = self.statuses.missing() else { return };
        self.losses.missing_since.get_or_insert(now);
        self.counters.snacks += 1;
        self.send_snack(SnackKind::Status, Lun(0), Itt::NONE, Ttt::NONE, first.0, count);
    }

    pub(super) fn send_snack(
        &mut self,
        kind: SnackKind,
        lun: Lun,
        itt: Itt,
        ttt: Ttt,
        begin: u32,
        run_length: u32,
    ) {
        let exp_stat_sn = self.exp_stat_sn();
        let kind = Ok(kind);
        self.send(Pdu::Snack(Snack { kind, lun, itt, ttt, exp_stat_sn, begin, run_length }));
    }

    /// Detects losses when a ping is answered. The target sends the answer to a ping after its
    /// answers to everything that was sent before the ping. An earlier answer that has not arrived
    /// was therefore lost.
    pub(super) fn review(
        &mut self,
        commands: &mut SessionCommands,
        ping: &Ping,
        now: Instant,
    ) -> Result<(), InitiatorSessionError> {
        match commands.first_missed(self.cid, ping.cmd_sn) {
            None => self.losses.missed = None,
            Some(itt) if self.is_lost(commands, now) => {
                if !commands.recovers() {
                    return Err(InitiatorSessionError::Unanswered("a command that did not arrive"));
                }
                self.retry(commands, itt)?;
            }
            Some(_) => {}
        }
        // Return if no PDU is missing, or if the loss was noticed after the ping was sent: the
        // SNACK for it may still be on its way.
        if self.losses.missing_since.is_none_or(|since| since > ping.sent) {
            return Ok(());
        }
        let mut runs = Vec::new();
        for (itt, task) in commands.tasks.iter() {
            if task.allegiance == self.cid
                && !task.lost
                && let Some((first, count)) = task.gather.missing()
            {
                runs.push((itt, first, count));
            }
        }
        self.losses.missing_since = None;
        if runs.is_empty() && self.statuses.missing().is_none() {
            self.losses.rounds = 0;
            return Ok(());
        }
        self.losses.rounds += 1;
        if self.losses.rounds > MOST_ROUNDS {
            return Err(InitiatorSessionError::Unanswered("a SNACK"));
        }
        for (itt, first, count) in runs {
            self.ask_for_data(itt, first, count, now);
        }
        self.ask_for_statuses(now);
        Ok(())
    }

    /// Returns true if the next command that the target expects was sent on this connection and was
    /// lost. One ping answer is no proof: with several connections, commands may arrive before
    /// their turn, and a target (LIO) may advance ExpCmdSN over them one by one, as it starts them,
    /// and answer a ping in between. From error recovery level 1 on, the second such answer is
    /// sufficient, since a mistake only sends the command twice. At level 0 the connection fails if
    /// this returns true, and TCP loses no data, so wait for `ping_time_out`.
    fn is_lost(&mut self, commands: &SessionCommands, now: Instant) -> bool {
        let expected = commands.window.exp_cmd_sn();
        match self.losses.missed {
            Some((missed, since)) if missed == expected => {
                let is_lost = commands.recovers() || since + self.timing.ping_time_out <= now;
                if is_lost {
                    self.losses.missed = None;
                }
                is_lost
            }
            _ => {
                self.losses.missed = Some((expected, now));
                false
            }
        }
    }

    /// Handles the rejection of a SNACK, which means that the target no longer has the requested
    /// PDUs.
    pub(super) fn handle_refused_snack(
        &mut self,
        commands: &mut SessionCommands,
        header: &Bhs,
        itt: Itt,
        reason: RejectReason,
    ) -> Result<(), InitiatorSessionError> {
        match header[1] & 0x0f {
            // End the connection: the status is lost, and only the end of the connection settles
            // the outcome of the command.
            kind if kind == SnackKind::Status as u8 => Err(InitiatorSessionError::Rejected(reason)),
            kind if kind == SnackKind::DataOrR2t as u8 => {
                let Some(task) = self.find_task(commands, itt)? else { return Ok(()) };
                // Do nothing if no status has arrived: the target itself will end the task (RFC
                // 7143, 7.8).
                let Some(ending) = task.status.take() else { return Ok(()) };
                self.statuses.settle(ending.stat_sn);
                let sense = Sense::PROTOCOL_SERVICE_CRC_ERROR.to_bytes().into();
                let status = ScsiStatus::CheckCondition as u8;
                let none = Residual::None;
                let ending = TaskFinalStatus {
                    status,
                    sense,
                    residual: none,
                    bidirectional_read_residual: none,
                    ..ending
                };
                self.end_task(commands, itt, ending)
            }
            _ => Ok(()),
        }
    }

    /// Closes the gap in the command order that a rejected command may leave. If the target has not
    /// counted its CmdSN as received, sends an ABORT TASK for it (RFC 7143, 7.3).
    pub(super) fn plug(&mut self, commands: &mut SessionCommands, task: &InitiatorTask, itt: Itt) {
        if task.cmd_sn.is_before(commands.window.exp_cmd_sn()) {
            return;
        }
        let abort = commands.control_itt();
        self.requests.push(PendingTaskManagement {
            itt: abort,
            task: itt,
            kind: Management::Abort,
        });
        self.send(Pdu::TaskRequest(TaskRequest {
            immediate: true,
            function: Ok(TaskFunction::AbortTask),
            lun: task.request.lun,
            itt: abort,
            referenced_itt: itt,
            cmd_sn: commands.window.cmd_sn(),
            exp_stat_sn: self.exp_stat_sn(),
            ref_cmd_sn: task.cmd_sn,
            exp_data_sn: 0,
        }));
    }
}

const OPCODE_NOP_IN: u8 = 0x20;
const OPCODE_DATA_IN: u8 = 0x25;
