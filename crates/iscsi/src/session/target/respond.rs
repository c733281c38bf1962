//! How a command ends: Data-In, status, residuals (RFC 7143, 11.4, 11.7).

use bytes::Bytes;
use scsi::Status;

use crate::{
    DataSegment, Itt, Pdu, Ttt,
    pdu::{DataIn, DataInStatus, Residual, ScsiResponse},
};

use super::{
    connection::Connection,
    event::Outcome,
    session::Session,
    task::{Stage, Task},
};

impl Task {
    /// How many bytes of Data-In the initiator has room for.
    pub(super) fn data_in_capacity(&self) -> u32 {
        match (self.read, self.write) {
            (false, _) => 0,
            (true, false) => self.expected_data_transfer_length,
            (true, true) => self.bidirectional_read_length.unwrap_or(0),
        }
    }
}

impl Connection {
    /// A command has ended. Nothing happens if it was aborted meanwhile.
    ///
    /// Before its data is complete this refuses it: the status goes out when the data that is on
    /// its way has come (RFC 7143, 11.4.2).
    pub fn complete(&mut self, session: &mut Session, itt: Itt, outcome: Outcome) {
        if !self.gathers.is_empty()
            && let Some(transfer) = self.gathers.get_mut(&itt)
        {
            if !transfer.gather.is_quiet() {
                transfer.gather.drain();
                transfer.refusal.get_or_insert(outcome);
                return;
            }
            self.gathers.remove(&itt);
        }
        self.finish(session, itt, outcome);
    }

    /// Sends what a command returns, and its status. The task ends.
    pub(super) fn finish(&mut self, session: &mut Session, itt: Itt, outcome: Outcome) {
        if session.tasks.get(&itt).is_none_or(|task| task.stage == Stage::Management) {
            return;
        }
        let Some(task) = session.end(itt) else { return };
        debug_assert_eq!(task.allegiance, self.cid, "a status goes where the command came from");
        self.release(session, &task);
        let total: usize = outcome.data_in.iter().map(Bytes::len).sum();
        let capacity = task.data_in_capacity();
        let (residual, bidirectional_read_residual) = residuals(&task, total, &outcome);
        let sent = total.min(capacity as usize);
        let is_good = outcome.status == Status::Good;
        // A status other than GOOD, and residuals of two directions, need a response of their own.
        let collapse = (sent > 0 && is_good && !task.write)
            .then_some(DataInStatus { status: Status::Good as u8, residual });
        let data_sn = self.send_data_in(session, itt, outcome.data_in, sent, collapse);
        if collapse.is_some() {
            return;
        }
        let sense = match outcome.sense {
            Some(sense) if outcome.status == Status::CheckCondition => sense.to_bytes().into(),
            _ => Bytes::new(),
        };
        let numbers = self.next_numbers(session);
        self.send(Pdu::ScsiResponse(ScsiResponse {
            itt,
            response: 0,
            status: outcome.status as u8,
            snack_tag: 0,
            numbers,
            exp_data_sn: data_sn + task.r2t_sn,
            residual,
            bidirectional_read_residual,
            sense,
        }));
    }

    /// Sends the first `length` bytes of `data`, split as the initiator takes it; the last PDU
    /// carries `status` if there is one. Returns how many PDUs that made.
    fn send_data_in(
        &mut self,
        session: &Session,
        itt: Itt,
        data: DataSegment,
        length: usize,
        status: Option<DataInStatus>,
    ) -> u32 {
        let segment = self.parameters.max_send_data_segment_length.max(1) as usize;
        let burst = session.parameters.max_burst_length.max(1) as usize;
        self.counters.data_in_bytes += length as u64;
        let mut rest = Pieces { pieces: data.into_iter(), front: Bytes::new() };
        let (mut offset, mut data_sn) = (0, 0);
        while offset < length {
            let burst_end = (offset / burst + 1) * burst;
            let end = length.min(offset + segment).min(burst_end);
            let is_last = end == length;
            let status = status.filter(|_| is_last);
            let numbers =
                if status.is_some() { self.next_numbers(session) } else { self.numbers(session) };
            self.send(Pdu::DataIn(DataIn {
                is_final: is_last || end == burst_end,
                acknowledge: false,
                status,
                lun: scsi::Lun(0),
                itt,
                ttt: Ttt::NONE,
                numbers,
                data_sn,
                buffer_offset: offset as u32,
                data: rest.take(end - offset),
            }));
            offset = end;
            data_sn += 1;
        }
        data_sn
    }

    /// A task has ended or was aborted: others may ask for data in its place.
    pub(super) fn release(&mut self, session: &mut Session, task: &Task) {
        self.solicited -= task.solicited;
        if !self.waiting.is_empty() {
            self.grant_waiting(session);
        }
    }
}

/// The residual of the command, and that of the read half of a bidirectional one.
fn residuals(task: &Task, data_in: usize, outcome: &Outcome) -> (Residual, Residual) {
    let expected = task.expected_data_transfer_length;
    let data_in = u32::try_from(data_in).unwrap_or(u32::MAX);
    let data_out = outcome.data_out_length;
    match (task.read, task.write) {
        (true, true) => (
            data_out.map_or(Residual::None, |length| residual(expected, length)),
            residual(task.data_in_capacity(), data_in),
        ),
        (true, false) => (residual(expected, data_in.max(data_out.unwrap_or(0))), Residual::None),
        (false, true) => {
            let length = data_out.map_or(expected, |length| length.max(data_in));
            (residual(expected, length), Residual::None)
        }
        // Without a direction there is room for nothing.
        (false, false) => (residual(0, data_in.max(data_out.unwrap_or(0))), Residual::None),
    }
}

fn residual(expected: u32, actual: u32) -> Residual {
    match actual.cmp(&expected) {
        std::cmp::Ordering::Less => Residual::Underflow(expected - actual),
        std::cmp::Ordering::Equal => Residual::None,
        std::cmp::Ordering::Greater => Residual::Overflow(actual - expected),
    }
}

/// Pieces of which runs are taken from the front.
struct Pieces<I> {
    pieces: I,
    front: Bytes,
}

impl<I: Iterator<Item = Bytes>> Pieces<I> {
    /// The next `length` bytes; there must be so many.
    fn take(&mut self, mut length: usize) -> DataSegment {
        let mut run = DataSegment::new();
        while length > 0 {
            if self.front.is_empty() {
                self.front = self.pieces.next().expect("the caller counted the bytes");
                continue;
            }
            let count = length.min(self.front.len());
            run.push(self.front.split_to(count));
            length -= count;
        }
        run
    }
}
