//! Commands and the data of writes, up to the moment when the driver gets them.

use bytes::Bytes;
use scsi::{Sense, SenseKey};

use crate::{
    Bhs, Itt,
    pdu::{DataOut, RejectReason, ScsiCommand},
    transfer::{Gather, INCORRECT_AMOUNT_OF_DATA, UNEXPECTED_UNSOLICITED_DATA},
};

use super::{
    connection::{AdmissionState, Connection, Transfer},
    event::{Admission, Command, Event, Outcome},
    session::Session,
    task::{Stage, Task},
};

/// For a write that is longer than we ever take in one command.
const INVALID_FIELD_IN_CDB: Sense = Sense::new(SenseKey::IllegalRequest, 0x24, 0x00);

impl Connection {
    pub(super) fn handle_command(&mut self, session: &mut Session, pdu: ScsiCommand, bhs: &Bhs) {
        let itt = pdu.itt;
        if itt == Itt::NONE || session.tasks.contains_key(&itt) || !(pdu.write || pdu.is_final) {
            // A tag in use is an invalid field rather than "task in progress", which belongs to
            // TASK REASSIGN (RFC 7143, 11.17.1, note 2). W or F must be set: 11.3.1.
            self.reject(session, RejectReason::InvalidPduField, bhs);
            return;
        }
        if pdu.immediate && session.immediate >= session.settings.immediate_commands {
            self.reject(session, RejectReason::ImmediateCommandReject, bhs);
            return;
        }
        self.counters.commands += 1;
        let length = pdu.expected_data_transfer_length;
        let fault = unsolicited_fault(session, &pdu);
        let all_there =
            !pdu.write || fault.is_none() && pdu.is_final && pdu.data.len() == length as usize;
        let stage = if all_there && fault.is_none() { Stage::Executing } else { Stage::Gathering };
        let task = Task {
            allegiance: self.cid,
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
        };
        if stage == Stage::Executing {
            let data_in_capacity = task.data_in_capacity();
            session.begin(itt, task);
            self.counters.data_out_bytes += pdu.data.len() as u64;
            let data_out = Some(pdu.data).filter(|data| !data.is_empty()).into_iter().collect();
            self.events.push_back(Event::Command(Command {
                itt,
                lun: pdu.lun,
                cdb: pdu.cdb,
                attribute: pdu.attribute,
                data_out,
                data_in_capacity,
            }));
            return;
        }
        session.begin(itt, task);
        self.begin_gather(session, pdu, fault);
    }

    /// A write with data still to come, or one that is wrong and must be answered when the data
    /// that is on its way has come.
    fn begin_gather(&mut self, session: &mut Session, pdu: ScsiCommand, fault: Option<Sense>) {
        let itt = pdu.itt;
        let length = pdu.expected_data_transfer_length;
        let follows = (!pdu.is_final).then_some(session.parameters.first_burst_length);
        let immediate = if fault.is_some() { Bytes::new() } else { pdu.data };
        let mut gather = Gather::new(length, immediate, follows);
        if let Some(sense) = fault {
            gather.fail(sense);
        } else if gather.to_solicit() > 0 {
            if length > session.settings.max_transfer_bytes {
                gather.fail(INVALID_FIELD_IN_CDB);
            } else {
                self.events.push_back(Event::Admission(Admission {
                    itt,
                    lun: pdu.lun,
                    cdb: pdu.cdb.clone(),
                    data_out_length: length,
                }));
            }
        }
        let transfer = Transfer {
            gather,
            cdb: pdu.cdb,
            attribute: pdu.attribute,
            admission: AdmissionState::Pending,
            refusal: None,
        };
        self.gathers.insert(itt, transfer);
        self.advance_transfer(session, itt);
    }

    /// The data of a write is wanted (answer to `Event::Admission`).
    pub fn admit(&mut self, session: &mut Session, itt: Itt) {
        let Some(transfer) = self.gathers.get_mut(&itt) else { return };
        if transfer.admission == AdmissionState::Pending && transfer.gather.to_solicit() > 0 {
            transfer.admission = AdmissionState::Waiting;
            self.waiting.push_back(itt);
            self.grant_waiting(session);
        }
    }

    /// Lets writes that wait go on while there is room for their data.
    pub(super) fn grant_waiting(&mut self, session: &mut Session) {
        while let Some(&itt) = self.waiting.front() {
            let (Some(transfer), Some(task)) =
                (self.gathers.get_mut(&itt), session.tasks.get_mut(&itt))
            else {
                self.waiting.pop_front(); // aborted or failed meanwhile
                continue;
            };
            let wanted = u64::from(transfer.gather.to_solicit());
            if self.solicited > 0 && self.solicited + wanted > session.settings.solicited_bytes {
                return;
            }
            self.waiting.pop_front();
            transfer.admission = AdmissionState::Granted;
            task.solicited = wanted;
            self.solicited += wanted;
            self.solicit(session, itt);
        }
    }

    pub(super) fn handle_data_out(
        &mut self,
        session: &mut Session,
        data_out: DataOut,
        digest_error: bool,
        bhs: &Bhs,
    ) {
        let itt = data_out.itt;
        let Some(transfer) = self.gathers.get_mut(&itt) else {
            // Data of a task that was aborted may still be on its way.
            self.counters.ignored += 1;
            return;
        };
        let lun_fits = data_out.ttt == crate::Ttt::NONE
            || session.tasks.get(&itt).is_some_and(|task| task.lun == data_out.lun);
        let mut is_known = lun_fits;
        if lun_fits {
            is_known = transfer.gather.handle_data(data_out, digest_error).is_ok();
        } else {
            transfer.gather.fail(INCORRECT_AMOUNT_OF_DATA);
        }
        if !is_known && !digest_error {
            self.reject(session, RejectReason::InvalidPduField, bhs);
        }
        self.advance_transfer(session, itt);
    }

    /// Does what the state of a write calls for: ask for more, answer, or hand it to the driver.
    fn advance_transfer(&mut self, session: &mut Session, itt: Itt) {
        let Some(transfer) = self.gathers.get_mut(&itt) else { return };
        if transfer.gather.is_quiet()
            && (transfer.gather.failure().is_some() || transfer.refusal.is_some())
        {
            let failure = transfer.gather.failure().map(Outcome::check_condition);
            let refusal = transfer.refusal.take();
            self.gathers.remove(&itt);
            if let Some(outcome) = refusal.or(failure) {
                self.finish(session, itt, outcome);
            }
        } else if transfer.gather.is_complete() {
            let Some(task) = session.tasks.get_mut(&itt) else { return };
            task.stage = Stage::Executing;
            let (lun, data_in_capacity) = (task.lun, task.data_in_capacity());
            let Some(Transfer { gather, cdb, attribute, .. }) = self.gathers.remove(&itt) else {
                return;
            };
            let data_out = gather.into_data();
            self.counters.data_out_bytes +=
                data_out.iter().map(|piece| piece.len() as u64).sum::<u64>();
            self.events.push_back(Event::Command(Command {
                itt,
                lun,
                cdb,
                attribute,
                data_out,
                data_in_capacity,
            }));
        } else if transfer.admission == AdmissionState::Granted {
            self.solicit(session, itt);
        }
    }
}

/// Is the unsolicited data of a command what was agreed on (RFC 7143, 11.4.7.2)?
fn unsolicited_fault(session: &Session, pdu: &ScsiCommand) -> Option<Sense> {
    let parameters = &session.parameters;
    let immediate = pdu.data.len() as u64;
    let length = u64::from(pdu.expected_data_transfer_length);
    let allowed = pdu.write && parameters.immediate_data;
    if immediate > 0 && !allowed || !pdu.is_final && parameters.initial_r2t {
        return Some(UNEXPECTED_UNSOLICITED_DATA);
    }
    (immediate > length.min(u64::from(parameters.first_burst_length)))
        .then_some(INCORRECT_AMOUNT_OF_DATA)
}
