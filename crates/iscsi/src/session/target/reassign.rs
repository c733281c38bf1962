//! TASK REASSIGN, with which a task continues on another connection (RFC 7143, 7.2.2, 11.5.1, 11.5.6).

use crate::{
    Itt,
    pdu::{TaskFunctionResult, TaskRequest},
};

use super::{
    response::CommandResponse,
    session::Session,
    task::{Instance, TargetTaskStage},
};

impl Session {
    pub(super) fn reassign(&mut self, at: usize, request: &TaskRequest) {
        let meant = request.referenced_itt;
        let task = self.tasks.by_tag.get(&meant).map(|task| (task.allegiance, task.stage));
        let result = if !self.recovers(2) {
            TaskFunctionResult::ReassignNotSupported
        } else if let Some((allegiance, stage)) = task {
            if stage == TargetTaskStage::Management {
                TaskFunctionResult::Rejected
            } else if self.is_free(allegiance) {
                TaskFunctionResult::Complete
            } else {
                TaskFunctionResult::StillAllegiant
            }
        } else {
            let lost = self.lost.iter().find(|lost| lost.responses.contains_key(&meant));
            match lost.map(|lost| lost.is_logged_out) {
                Some(true) => TaskFunctionResult::Complete,
                Some(false) => TaskFunctionResult::StillAllegiant,
                None if self.is_answered(meant) => TaskFunctionResult::StillAllegiant,
                None => TaskFunctionResult::NoTask,
            }
        };
        // Send this response before the task moves: the initiator must receive it before all PDUs
        // of the task on this connection.
        self.respond_to_management(at, request.itt, result);
        if result != TaskFunctionResult::Complete {
            return;
        }
        if task.is_some() {
            self.move_task(meant, at);
        } else if let Some(mut response) = self.take_lost(meant) {
            let segment = self.connections[at].parameters.max_send_data_segment_length;
            restart(&mut response, request.exp_data_sn, segment);
            self.answer_again(at, response);
        }
    }

    /// Sends the response to a command again on connection `at`, because it may have been lost with
    /// its connection.
    pub(super) fn resend_lost(&mut self, at: usize, itt: Itt) {
        if let Some(mut response) = self.take_lost(itt) {
            let segment = self.connections[at].parameters.max_send_data_segment_length;
            restart(&mut response, 0, segment);
            self.answer_again(at, response);
        }
    }

    fn answer_again(&mut self, at: usize, mut response: CommandResponse) {
        response.ttt = self.new_ttt();
        let window = self.window_numbers();
        self.connections[at].answer(window, response);
    }

    /// Returns true if the connection of a task has failed and was logged out, so that the task may
    /// move.
    fn is_free(&self, allegiance: Instance) -> bool {
        self.lost.iter().any(|lost| lost.instance == allegiance && lost.is_logged_out)
    }

    /// Returns true if the command has ended on a connection that is still open, which keeps the
    /// response to it.
    fn is_answered(&mut self, itt: Itt) -> bool {
        self.connections.iter_mut().any(|connection| connection.retained.response(itt).is_some())
    }

    fn take_lost(&mut self, itt: Itt) -> Option<CommandResponse> {
        let is_free = |lost: &&mut super::session::ReassignableConnection| lost.is_logged_out;
        self.lost.iter_mut().filter(is_free).find_map(|lost| lost.responses.remove(&itt))
    }
}

/// Makes a response start at the first PDU that the initiator has not acknowledged. An invalid
/// ExpDataSN acknowledges nothing (RFC 7143, 11.5.6).
fn restart(response: &mut CommandResponse, exp_data_sn: u32, segment: u32) {
    if exp_data_sn != 0 {
        response.acknowledge(exp_data_sn);
    }
    response.snack_tag = 0;
    response.resegment(segment);
    if response.is_forgotten() {
        response.fail();
    }
    if response.layout.offset == response.length {
        // All data has arrived, so no Data-In can carry the status.
        response.collapses = false;
    }
}
