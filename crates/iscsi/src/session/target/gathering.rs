//! Writes whose data is incomplete: what a write does next, and which writes have waited too long.

use scsi::ScsiStatus;
use smallvec::SmallVec;

use crate::Itt;

use super::{
    event::{ReceivedCommand, TargetCommandOutcome, TargetEvent},
    session::Session,
    settings::Settings,
    task::{AdmissionState, IncomingWrite, TargetTaskStage},
};

impl Session {
    /// Performs the next step of a write: requests more data, sends its status, or passes the
    /// complete write to the driver.
    pub(super) fn advance_transfer(&mut self, itt: Itt) {
        let about_to_end = self.is_about_to_end(itt);
        let Some(transfer) = self.writes.incoming.get_mut(&itt) else { return };
        if transfer.gather.is_quiet()
            && (transfer.gather.failure().is_some() || transfer.refusal.is_some())
        {
            let failure = transfer.gather.failure().map(TargetCommandOutcome::check_condition);
            let refusal = transfer.refusal.take();
            self.take_gather(itt);
            if let Some(outcome) = refusal.or(failure) {
                self.finish(itt, outcome);
            }
        } else if about_to_end {
            // Wait: a task management function will end this write once the data on its way has
            // arrived.
        } else if transfer.gather.is_complete() {
            let Some(task) = self.tasks.by_tag.get_mut(&itt) else { return };
            task.stage = TargetTaskStage::Executing;
            let (lun, data_in_capacity) = (task.lun, task.data_in_capacity());
            let allegiance = task.allegiance;
            let Some(IncomingWrite { gather, cdb, attribute, admitted, .. }) =
                self.writes.incoming.remove(&itt)
            else {
                return;
            };
            let data_out = gather.into_data();
            if let Some(at) = self.position(allegiance) {
                self.connections[at].counters.data_out_bytes +=
                    data_out.iter().map(|piece| piece.len() as u64).sum::<u64>();
            }
            self.events.push_back(TargetEvent::Command(ReceivedCommand {
                itt,
                lun,
                cdb,
                attribute,
                data_out,
                data_in_capacity,
                admitted,
            }));
        } else if transfer.admission == AdmissionState::Granted || transfer.gather.is_recovering() {
            let allegiance = self.tasks.by_tag.get(&itt).map(|task| task.allegiance);
            if let Some(at) = allegiance.and_then(|instance| self.position(instance)) {
                self.solicit(at, itt);
            }
        }
    }

    /// Ends writes with BUSY that have waited too long: for memory, or for other writes of their
    /// connection while other sessions lack memory. If they waited longer, the data that came with
    /// them would stay in memory.
    pub(super) fn refuse_waiting(&mut self) {
        let mut is_any = false;
        for at in 0..self.connections.len() {
            let connection = &self.connections[at];
            let lacks_room = self.room_due(connection).is_some_and(|due| due <= self.now);
            let contended = self.writes.contended_since;
            let Settings { room_time, data_time, .. } = self.settings;
            let is_late = |transfer: &IncomingWrite| {
                lacks_room && transfer.begun + room_time <= self.now
                    || contended.is_some_and(|it| transfer.begun.max(it) + data_time <= self.now)
            };
            if !lacks_room && contended.is_none() {
                continue;
            }
            let is_late = |itt: &&Itt| self.writes.incoming.get(itt).is_some_and(is_late);
            let late: SmallVec<[Itt; 4]> =
                connection.writes.waiting.iter().filter(is_late).copied().collect();
            for itt in late {
                let waiting = &mut self.connections[at].writes.waiting;
                let Some(place) = waiting.iter().position(|waiting| *waiting == itt) else {
                    continue; // it proceeded with the memory of a write before it
                };
                waiting.remove(place);
                is_any = true;
                self.complete(itt, TargetCommandOutcome::status(ScsiStatus::Busy));
            }
        }
        if is_any {
            // The data of the refused writes was dropped, so there may be memory for other writes.
            (0..self.connections.len()).for_each(|at| self.grant_waiting(at));
        }
    }

    /// Sets the time at which to check next that waiting writes make progress, unless it is set
    /// already.
    pub(super) fn watch_progress(&mut self) {
        if self.writes.stall_check.is_none() {
            self.writes.stall_check = Some(self.now + self.settings.stalled_after);
        }
    }
}
