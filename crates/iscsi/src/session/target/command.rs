//! Receives commands and the data of writes, and passes complete commands to the driver.

use bytes::Bytes;
use scsi::{ScsiStatus, Sense};

use crate::{
    Bhs, DataSegment, Itt, Pdu,
    codec::LARGE,
    pdu::{DataOut, RejectReason, ScsiCommand},
    transfer::{DataOutGather, unshared},
};

use super::{
    event::{ReceivedCommand, TargetCommandOutcome, TargetEvent, WriteAdmission},
    session::Session,
    task::{AdmissionState, IncomingWrite, TargetTask, TargetTaskStage},
    waiting::{KEPT_DATA_OUT, PROGRESS, Stall},
};

impl Session {
    pub(super) fn handle_command(&mut self, at: usize, pdu: ScsiCommand, bhs: &Bhs) {
        self.begin_command(at, pdu, None, bhs);
    }

    /// Answers a command with BUSY, because its data was dropped for lack of memory while the
    /// command waited for its turn. `has_ended` is true if the last unsolicited Data-Out of the
    /// command has arrived.
    pub(super) fn refuse_command(
        &mut self,
        at: usize,
        mut pdu: ScsiCommand,
        has_ended: bool,
        bhs: &Bhs,
    ) {
        pdu.is_final |= has_ended;
        self.begin_command(at, pdu, Some(TargetCommandOutcome::status(ScsiStatus::Busy)), bhs);
    }

    fn begin_command(
        &mut self,
        at: usize,
        pdu: ScsiCommand,
        refusal: Option<TargetCommandOutcome>,
        bhs: &Bhs,
    ) {
        let itt = pdu.itt;
        if itt == Itt::NONE || self.tasks.by_tag.contains_key(&itt) || !(pdu.write || pdu.is_final)
        {
            // Reject a tag that is in use as an invalid field: "task in progress" is for TASK
            // REASSIGN only (RFC 7143, 11.17.1, note 2). W or F must be set (11.3.1).
            self.reject(at, RejectReason::InvalidPduField, bhs);
            return;
        }
        if pdu.immediate && self.tasks.immediate >= self.settings.immediate_commands {
            self.reject(at, RejectReason::ImmediateCommandReject, bhs);
            return;
        }
        // An initiator that reuses a task tag has received the earlier response with it: drop that response.
        self.lost.iter_mut().for_each(|lost| _ = lost.responses.remove(&itt));
        self.connections[at].counters.commands += 1;
        let length = pdu.expected_data_transfer_length;
        let fault = self.unsolicited_fault(&pdu);
        let refusal = refusal.or_else(|| fault.map(TargetCommandOutcome::check_condition));
        let all_there = !pdu.write || pdu.is_final && pdu.data.len() == length as usize;
        let stage = if all_there && refusal.is_none() {
            TargetTaskStage::Executing
        } else {
            TargetTaskStage::Gathering
        };
        let task = TargetTask {
            allegiance: self.connections[at].instance,
            lun: pdu.lun,
            cmd_sn: pdu.cmd_sn,
            immediate: pdu.immediate,
            stage,
            read: pdu.read,
            write: pdu.write,
            expected_data_transfer_length: length,
            bidirectional_read_length: pdu.bidirectional_read_length,
            solicited: 0,
            r2t_sn: 0,
            snack_tag: 0,
        };
        if stage == TargetTaskStage::Executing {
            let data_in_capacity = task.data_in_capacity();
            self.tasks.begin(itt, task);
            self.connections[at].counters.data_out_bytes += pdu.data.len() as u64;
            let mut data_out = DataSegment::new();
            if !pdu.data.is_empty() {
                data_out.push(pdu.data);
            }
            self.events.push_back(TargetEvent::Command(ReceivedCommand {
                itt,
                lun: pdu.lun,
                cdb: pdu.cdb,
                attribute: pdu.attribute,
                data_out,
                data_in_capacity,
                admitted: None,
            }));
            return;
        }
        self.tasks.begin(itt, task);
        let has_room = self.writes.memory.has_room(pdu.data.len());
        let refusal =
            refusal.or((!has_room).then(|| TargetCommandOutcome::status(ScsiStatus::Busy)));
        self.begin_gather(pdu, refusal);
    }

    /// Begins a write whose data is incomplete. With a `refusal`, the write is not executed: that
    /// outcome is sent once all data on its way has arrived.
    fn begin_gather(&mut self, pdu: ScsiCommand, refusal: Option<TargetCommandOutcome>) {
        let itt = pdu.itt;
        let length = pdu.expected_data_transfer_length;
        let follows = (!pdu.is_final).then_some(self.parameters.first_burst_length);
        let is_copied = self.writes.is_shared && pdu.data.len() >= LARGE;
        let immediate =
            if refusal.is_some() { Bytes::new() } else { unshared(pdu.data, is_copied) };
        let mut charge = self.writes.memory.charge();
        charge.add(immediate.len());
        let mut gather = DataOutGather::new(length, immediate, follows);
        if refusal.is_some() {
            gather.drain();
        } else if gather.to_solicit() > 0 {
            if length > self.settings.max_transfer_bytes {
                gather.fail(Sense::INVALID_FIELD_IN_CDB);
            } else {
                self.events.push_back(TargetEvent::Admission(WriteAdmission {
                    itt,
                    lun: pdu.lun,
                    cdb: pdu.cdb.clone(),
                    data_out_length: length,
                }));
            }
        }
        let mut transfer = IncomingWrite {
            gather,
            cdb: pdu.cdb,
            attribute: pdu.attribute,
            admission: AdmissionState::Pending,
            admitted: None,
            refusal,
            progress: self.now,
            charge,
            begun: self.now,
            stall: Stall::new(self.now),
            arrived: 0,
        };
        if transfer.gather.is_draining() {
            transfer.charge.clear();
        }
        self.writes.incoming.insert(itt, transfer);
        self.watch_progress();
        if self.recovers(1) && self.writes.sequence_check.is_none() {
            self.writes.sequence_check = Some(self.now + self.settings.sequence_time);
        }
        self.advance_transfer(itt);
    }

    pub(super) fn handle_data_out(
        &mut self,
        at: usize,
        mut data_out: DataOut,
        digest_error: bool,
        bhs: &Bhs,
    ) {
        let itt = data_out.itt;
        let instance = self.connections[at].instance;
        let is_own = |task: &TargetTask| task.allegiance == instance;
        if !self.writes.incoming.contains_key(&itt)
            || !self.tasks.by_tag.get(&itt).is_some_and(is_own)
        {
            if digest_error || !self.keep_early_data(at, data_out, bhs) {
                // Ignore the data: its task may have been aborted while the data was on its way.
                self.connections[at].counters.ignored += 1;
            }
            return;
        }
        let recovers = self.recovers(1);
        let (Some(transfer), Some(task)) =
            (self.writes.incoming.get_mut(&itt), self.tasks.by_tag.get(&itt))
        else {
            return;
        };
        transfer.progress = self.now;
        let length = data_out.data.len();
        transfer.arrived = transfer.arrived.saturating_add(length as u32);
        if transfer.arrived >= PROGRESS {
            (transfer.arrived, transfer.stall) = (0, Stall::new(self.now));
        }
        let lun_fits = data_out.ttt == crate::Ttt::NONE || task.lun == data_out.lun;
        let mut is_known = lun_fits;
        // Charge only the bytes that are not charged yet. Data that R2Ts have requested is charged
        // already, except for lost data that is requested again.
        let held = transfer.gather.received() as usize + length;
        let lacking = held.saturating_sub(transfer.charge.bytes());
        if !transfer.gather.is_draining() && lacking > 0 {
            if self.writes.memory.has_room(lacking) {
                transfer.charge.add(lacking);
            } else {
                transfer.gather.drain();
                transfer.refusal.get_or_insert(TargetCommandOutcome::status(ScsiStatus::Busy));
            }
        }
        let is_copied = self.writes.is_shared && length >= LARGE && !transfer.gather.is_draining();
        if is_copied && !transfer.gather.is_completed_by(&data_out) {
            data_out.data = unshared(data_out.data, true);
        }
        if lun_fits {
            is_known = transfer.gather.handle_data(data_out, digest_error, recovers).is_ok();
        } else {
            transfer.gather.fail(Sense::INCORRECT_AMOUNT_OF_DATA);
        }
        if transfer.gather.is_draining() {
            transfer.charge.clear();
        }
        if !is_known && !digest_error {
            self.reject(at, RejectReason::InvalidPduField, bhs);
        }
        self.advance_transfer(itt);
        if !self.functions.postponed.is_empty() {
            self.check_postponed();
        }
    }

    /// Keeps unsolicited data of a command that waits for its turn, as is common with several
    /// connections. Returns false if no such command waits, or if the data exceeds what the command
    /// may send unsolicited.
    fn keep_early_data(&mut self, at: usize, mut data_out: DataOut, bhs: &Bhs) -> bool {
        let instance = self.connections[at].instance;
        // Allow for the last Data-Out of a burst, which is charged with KEPT_DATA_OUT if it has
        // less data.
        let limit = self.parameters.first_burst_length as usize + KEPT_DATA_OUT;
        let early = self.order.window.find_held(|early| {
            early.allegiance == instance
                && matches!(&early.pdu, Pdu::ScsiCommand(command) if command.itt == data_out.itt)
        });
        let Some(early) = early else { return false };
        let length = data_out.data.len();
        // Charge an empty or short Data-Out with KEPT_DATA_OUT bytes. Otherwise an initiator could
        // make the target keep any number of empty ones.
        let bytes = early.data_bytes + length.max(KEPT_DATA_OUT);
        if bytes > limit {
            return false;
        }
        if !early.is_shed && !self.writes.memory.has_room(length + KEPT_DATA_OUT) {
            early.is_shed = true;
            early.has_ended = early.data.iter().any(|(data_out, _)| data_out.is_final);
            early.data = Vec::new();
            if let Pdu::ScsiCommand(command) = &mut early.pdu {
                command.data = Bytes::new();
            }
            early.charge.clear();
        }
        early.data_bytes = bytes;
        if early.is_shed {
            early.has_ended |= data_out.is_final;
        } else {
            early.charge.add(length + KEPT_DATA_OUT);
            data_out.data = unshared(data_out.data, self.writes.is_shared);
            early.data.push((data_out, *bhs));
        }
        true
    }

    /// Returns the sense data to send if the unsolicited data of a command violates the negotiated
    /// parameters (RFC 7143, 11.4.7.2).
    fn unsolicited_fault(&self, pdu: &ScsiCommand) -> Option<Sense> {
        let parameters = &self.parameters;
        let immediate = pdu.data.len() as u64;
        let length = u64::from(pdu.expected_data_transfer_length);
        let allowed = pdu.write && parameters.immediate_data;
        if immediate > 0 && !allowed || !pdu.is_final && parameters.initial_r2t {
            return Some(Sense::UNEXPECTED_UNSOLICITED_DATA);
        }
        (immediate > length.min(u64::from(parameters.first_burst_length)))
            .then_some(Sense::INCORRECT_AMOUNT_OF_DATA)
    }
}
