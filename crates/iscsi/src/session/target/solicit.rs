//! Solicited data of writes (RFC 7143, 11.8): decides which writes may request their data,
//! depending on the memory left, and sends the R2Ts.

use std::time::Instant;

use scsi::AdmittedCommand;
use smallvec::SmallVec;

use crate::{
    Itt, Pdu,
    pdu::{Numbers, ReadyToTransfer},
    transfer::R2tBurst,
};

use super::{
    connection::Connection,
    session::{Session, new_ttt},
    task::{AdmissionState, IncomingWrite},
    waiting::Stall,
};

impl Session {
    /// Limits the data that is requested at a time for all writes of one connection to `bytes`, but
    /// at most to `Settings::solicited_bytes`. A write that is alone may exceed the limit.
    pub fn share_solicited(&mut self, bytes: u64) {
        self.writes.solicited_share = bytes.min(self.settings.solicited_bytes);
    }

    /// Permits a write to send its data: the driver's answer to
    /// [`TargetEvent::Admission`](super::TargetEvent::Admission). `admitted` is returned with the
    /// data in [`ReceivedCommand::admitted`](super::ReceivedCommand::admitted).
    pub fn admit(&mut self, itt: Itt, admitted: Option<AdmittedCommand>) {
        let Some(transfer) = self.writes.incoming.get_mut(&itt) else { return };
        if transfer.admission == AdmissionState::Pending && transfer.gather.to_solicit() > 0 {
            transfer.admission = AdmissionState::Waiting;
            transfer.admitted = admitted;
            transfer.begun = self.now;
            let allegiance = self.tasks.by_tag.get(&itt).map(|task| task.allegiance);
            if let Some(at) = allegiance.and_then(|instance| self.position(instance)) {
                self.connections[at].writes.waiting.push_back(itt);
                self.grant_waiting(at);
            }
        }
    }

    /// Removes a write that ends from the incomplete writes, so that no more of its data is
    /// requested. Also removes its tag from the queues of waiting writes, since the initiator may
    /// use the tag for another command at once.
    pub(super) fn take_gather(&mut self, itt: Itt) -> Option<IncomingWrite> {
        let transfer = self.writes.incoming.remove(&itt)?;
        if transfer.admission == AdmissionState::Waiting {
            for connection in &mut self.connections {
                connection.writes.waiting.retain(|waiting| *waiting != itt);
            }
        }
        Some(transfer)
    }

    /// Requests the data of the waiting writes of a connection, in their order, until the memory or
    /// the connection's share is used up.
    pub(super) fn grant_waiting(&mut self, at: usize) {
        while let Some(&itt) = self.connections[at].writes.waiting.front() {
            let connection = &mut self.connections[at];
            let (Some(transfer), Some(task)) =
                (self.writes.incoming.get_mut(&itt), self.tasks.by_tag.get_mut(&itt))
            else {
                connection.writes.waiting.pop_front();
                continue;
            };
            if transfer.admission != AdmissionState::Waiting
                || transfer.gather.is_draining()
                || task.allegiance != connection.instance
            {
                connection.writes.waiting.pop_front();
                continue;
            }
            let wanted = u64::from(transfer.gather.to_solicit());
            if connection.writes.exceeds(wanted, self.writes.solicited_share) {
                connection.writes.lacks_room_since = None;
                return;
            }
            if !self.writes.memory.has_room(wanted as usize) {
                connection.writes.lacks_room_since.get_or_insert(self.now);
                return;
            }
            connection.writes.waiting.pop_front();
            transfer.charge.add(wanted as usize);
            (transfer.begun, transfer.stall) = (self.now, Stall::new(self.now));
            transfer.admission = AdmissionState::Granted;
            task.solicited = wanted;
            connection.writes.solicited += wanted;
            self.solicit(at, itt);
        }
        self.connections[at].writes.lacks_room_since = None;
    }

    /// Returns when the first waiting write of a connection will have waited too long for memory;
    /// `None` if it does not wait for memory.
    pub(super) fn room_due(&self, connection: &Connection) -> Option<Instant> {
        let since = connection.writes.lacks_room_since?;
        let first = self.writes.incoming.get(connection.writes.waiting.front()?)?;
        Some(first.begun.max(since) + self.settings.room_time)
    }

    /// Sends R2Ts for a write, as many as may be outstanding at a time.
    pub(super) fn solicit(&mut self, at: usize, itt: Itt) {
        if self.is_about_to_end(itt) {
            return;
        }
        let outstanding = self.parameters.max_outstanding_r2t;
        let max_burst = self.parameters.max_burst_length;
        let Some(transfer) = self.writes.incoming.get_mut(&itt) else { return };
        let Some(task) = self.tasks.by_tag.get_mut(&itt) else { return };
        let solicits = transfer.admission == AdmissionState::Granted;
        let mut bursts = SmallVec::<[R2tBurst; 4]>::new();
        while let Some(burst) = transfer
            .gather
            .next_burst(solicits, outstanding, max_burst, || new_ttt(&mut self.next_ttt))
        {
            bursts.push(burst);
        }
        if bursts.is_empty() {
            return;
        }
        transfer.progress = self.now;
        task.r2t_sn = transfer.gather.r2t_sn();
        self.ask_for(at, itt, &bursts);
    }

    pub(super) fn ask_for(&mut self, at: usize, itt: Itt, bursts: &[R2tBurst]) {
        let Some(lun) = self.tasks.by_tag.get(&itt).map(|task| task.lun) else { return };
        let window = self.window_numbers();
        let connection = &mut self.connections[at];
        for burst in bursts {
            let numbers = Numbers { stat_sn: connection.stat_sn, ..window };
            connection.send(Pdu::ReadyToTransfer(ReadyToTransfer {
                lun,
                itt,
                ttt: burst.ttt,
                numbers,
                r2t_sn: burst.r2t_sn,
                buffer_offset: burst.offset,
                desired_data_transfer_length: burst.length,
            }));
        }
    }

    /// Limits the bytes that waiting writes may hold. Bytes above the limit that are held already
    /// stay. Without this call there is no limit.
    pub fn limit_waiting(&mut self, bytes: usize) {
        let is_more = bytes > self.writes.memory.limit();
        self.writes.memory.set_limit(bytes);
        if is_more {
            (0..self.connections.len()).for_each(|at| self.grant_waiting(at));
        }
    }
}
