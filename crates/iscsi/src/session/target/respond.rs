//! Responses to commands, with Data-In, status and residuals (RFC 7143, 11.4, 11.7), and to task
//! management functions.

use scsi::Lun;

use crate::{
    Itt, Pdu,
    pdu::{TaskFunctionResult, TaskResponse},
};

use super::{
    event::TargetCommandOutcome,
    response::{CommandResponse, DataInLayout},
    session::Session,
    task::{TargetTask, TargetTaskStage},
};

impl Session {
    /// Ends a command with this outcome. Does nothing if the command was aborted meanwhile.
    ///
    /// If a part of the command's data has not arrived, the outcome is sent when all data on its
    /// way has arrived (RFC 7143, 11.4.2); the data is dropped.
    pub fn complete(&mut self, itt: Itt, outcome: TargetCommandOutcome) {
        if !self.writes.incoming.is_empty()
            && let Some(transfer) = self.writes.incoming.get_mut(&itt)
        {
            if !transfer.gather.is_quiet() {
                transfer.gather.drain();
                transfer.charge.clear();
                transfer.refusal.get_or_insert(outcome);
                return;
            }
            self.take_gather(itt);
        }
        self.finish(itt, outcome);
    }

    /// Sets the units for which all sense data must have descriptor format: object storage devices.
    /// The session then uses this format also for sense data that it makes itself.
    pub fn use_descriptor_sense(&mut self, units: Vec<Lun>) {
        self.tasks.descriptor_sense_units = units;
    }

    /// Sends the data and the status of the command `itt`, and ends its task.
    pub(super) fn finish(&mut self, itt: Itt, outcome: TargetCommandOutcome) {
        let Some(task) = self.tasks.end_if(itt, |task| task.stage != TargetTaskStage::Management)
        else {
            return;
        };
        let at = self.position(task.allegiance);
        let segment = match at {
            Some(at) => self.connections[at].parameters.max_send_data_segment_length,
            // The connection has failed. If another connection takes over the response, it sets its
            // own segment length.
            None => self.parameters.max_send_data_segment_length,
        };
        let ttt = self.new_ttt();
        let burst = self.parameters.max_burst_length;
        let layout = DataInLayout { data_sn: 0, offset: 0, segment, burst };
        let sense_format = self.tasks.sense_format(task.lun);
        let mut response = CommandResponse::new(&task, itt, outcome, layout, ttt, sense_format);
        match at {
            Some(at) => {
                self.release(at, &task);
                let window = self.window_numbers();
                self.connections[at].answer(window, response);
            }
            None => {
                let lost = self.lost.iter_mut().find(|lost| lost.instance == task.allegiance);
                if let Some(lost) = lost {
                    let kept: usize = lost.responses.values().map(CommandResponse::kept).sum();
                    if kept + response.kept() > self.settings.retained_bytes {
                        response.forget();
                    }
                    lost.responses.insert(itt, response);
                }
            }
        }
    }

    /// Releases the share of the requested data that a task has used, since the task has ended or
    /// was aborted. Other writes of the connection may then request their data.
    pub(super) fn release(&mut self, at: usize, task: &TargetTask) {
        self.connections[at].writes.solicited -= task.solicited;
        if !self.connections[at].writes.waiting.is_empty() {
            self.grant_waiting(at);
        }
    }

    pub(super) fn respond_to_management(
        &mut self,
        at: usize,
        itt: Itt,
        result: TaskFunctionResult,
    ) {
        self.send_status(at, |numbers| Pdu::TaskResponse(TaskResponse { result, itt, numbers }));
    }
}
