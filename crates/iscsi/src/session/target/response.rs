//! The response to a command: its Data-In and status, and how they are divided into PDUs. A
//! response can be sent again, completely or in part (RFC 7143, 11.4, 11.7, 11.16).

use std::cmp::Ordering;

use bytes::Bytes;
use scsi::{Lun, ObjectSense, ScsiStatus, Sense};

use crate::{DataSegment, Itt, Ttt, pdu::Residual};

use super::{
    event::TargetCommandOutcome,
    task::{SenseFormat, TargetTask},
};

#[derive(Debug)]
pub(super) struct CommandResponse {
    pub(super) itt: Itt,
    pub(super) lun: Lun,
    pub(super) status: u8,
    pub(super) sense: Bytes,
    /// The format of the sense data of this command: fixed or descriptor.
    sense_format: SenseFormat,
    pub(super) residual: Residual,
    pub(super) bidirectional_read_residual: Residual,
    /// The data that the command returns; empty if it was discarded, see `is_forgotten`.
    pub(super) data: DataSegment,
    /// The length of the Data-In in bytes, even after `data` was discarded.
    pub(super) length: u32,
    /// How `data` is divided into PDUs.
    pub(super) layout: DataInLayout,
    /// True if the last Data-In carries the status (phase collapse).
    pub(super) collapses: bool,
    /// The tag of the last R-Data SNACK, otherwise 0.
    pub(super) snack_tag: u32,
    /// The target transfer tag that the initiator has to repeat when it acknowledges this data.
    pub(super) ttt: Ttt,
    /// The number of R2Ts that were sent. The Data-In of a bidirectional command is numbered after
    /// them (RFC 7143, 11.8.2).
    r2ts: u32,
}

/// How Data-In is divided into PDUs, from the first byte that the initiator has not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataInLayout {
    pub(super) data_sn: u32,
    pub(super) offset: u32,
    /// Maximum number of data bytes in one Data-In PDU.
    pub(super) segment: u32,
    /// A sequence of Data-In PDUs ends at each multiple of this number of bytes (MaxBurstLength).
    pub(super) burst: u32,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct DataInPart {
    pub(super) data_sn: u32,
    pub(super) offset: u32,
    pub(super) end: u32,
    pub(super) ends_burst: bool,
}

impl DataInLayout {
    /// Divides the data before offset `length` into parts, one for each Data-In PDU.
    pub(super) fn parts(mut self, length: u32) -> impl Iterator<Item = DataInPart> {
        let (segment, burst) = (self.segment.max(1), self.burst.max(1));
        std::iter::from_fn(move || {
            let Self { data_sn, offset, .. } = self;
            if offset >= length {
                return None;
            }
            let burst_end = (offset / burst + 1).saturating_mul(burst);
            let end = length.min(offset.saturating_add(segment)).min(burst_end);
            (self.offset, self.data_sn) = (end, data_sn.wrapping_add(1));
            Some(DataInPart { data_sn, offset, end, ends_burst: end == burst_end || end == length })
        })
    }

    /// Returns the DataSN that follows the last Data-In PDU of `length` bytes of data.
    pub(super) fn end(self, length: u32) -> u32 {
        self.parts(length).last().map_or(self.data_sn, |part| part.data_sn.wrapping_add(1))
    }
}

impl CommandResponse {
    pub(super) fn new(
        task: &TargetTask,
        itt: Itt,
        outcome: TargetCommandOutcome,
        layout: DataInLayout,
        ttt: Ttt,
        sense_format: SenseFormat,
    ) -> Self {
        let total: usize = outcome.data_in.iter().map(Bytes::len).sum();
        let (residual, bidirectional_read_residual) = residuals(task, total, &outcome);
        let length = u32::try_from(total).unwrap_or(u32::MAX).min(task.data_in_capacity());
        let mut data = outcome.data_in;
        if total > length as usize {
            cut(&mut data, length as usize);
        }
        let sense = match outcome.sense {
            Some(sense) if outcome.status == ScsiStatus::CheckCondition => {
                encode_sense(sense, outcome.object_sense.as_deref(), sense_format)
            }
            _ => Bytes::new(),
        };
        let r2ts = if task.read && task.write { task.r2t_sn } else { 0 };
        Self {
            itt,
            lun: task.lun,
            status: outcome.status as u8,
            sense,
            sense_format,
            residual,
            bidirectional_read_residual,
            data,
            length,
            layout: DataInLayout { data_sn: r2ts, ..layout },
            // A status other than GOOD, or residuals of both directions, need a PDU of their own.
            collapses: length > 0
                && outcome.status == ScsiStatus::Good
                && !task.write
                && task.snack_tag == 0,
            snack_tag: task.snack_tag,
            ttt,
            r2ts: if task.write { task.r2t_sn } else { 0 },
        }
    }

    /// Returns the number of Data-In and R2T PDUs of the command (RFC 7143, 11.4.8).
    pub(super) fn exp_data_sn(&self) -> u32 {
        if self.length == 0 { self.r2ts } else { self.layout.end(self.length) }
    }

    /// Returns the number of bytes for which this response is charged while it is kept: all its
    /// data, even if the initiator has acknowledged a part.
    pub(super) fn kept(&self) -> usize {
        if self.data.is_empty() { 0 } else { self.length as usize }
    }

    /// Discards the data to free its memory, so it cannot be sent again afterwards.
    pub(super) fn forget(&mut self) {
        self.data = DataSegment::new();
    }

    /// Returns true if data was discarded without being acknowledged.
    pub(super) fn is_forgotten(&self) -> bool {
        self.data.is_empty() && self.layout.offset < self.length
    }

    /// Records that all data before the PDU with this DataSN has arrived. Returns false if there is
    /// no such PDU.
    pub(super) fn acknowledge(&mut self, data_sn: u32) -> bool {
        if data_sn == self.layout.end(self.length) {
            (self.layout.data_sn, self.layout.offset) = (data_sn, self.length);
            self.data = DataSegment::new();
            return true;
        }
        let found = self.layout.parts(self.length).find(|part| part.data_sn == data_sn);
        if let Some(part) = found {
            (self.layout.data_sn, self.layout.offset) = (data_sn, part.offset);
        }
        found.is_some()
    }

    /// Returns a copy of the response that shares its data instead of copying it.
    pub(super) fn reference(&self) -> Self {
        Self { sense: self.sense.clone(), data: self.data.clone(), ..*self }
    }

    /// Sets the length of the PDUs in which the data that is not acknowledged is sent again.
    pub(super) fn resegment(&mut self, segment: u32) {
        self.layout.segment = segment;
    }

    /// Turns the response into a failure because its data cannot be sent again (RFC 7143, 11.4.7.2,
    /// SNACK rejected).
    pub(super) fn fail(&mut self) {
        self.length = self.layout.offset;
        self.collapses = false;
        self.status = ScsiStatus::CheckCondition as u8;
        self.sense = encode_sense(Sense::SNACK_REJECTED, None, self.sense_format);
    }
}

fn encode_sense(mut sense: Sense, object: Option<&ObjectSense>, format: SenseFormat) -> Bytes {
    sense.descriptor_format |= format == SenseFormat::Descriptor;
    match object {
        // Use the descriptor format: only that has space for the descriptors of object storage devices.
        Some(object) => object.encode(&sense).0.into(),
        None => sense.to_bytes().into(),
    }
}

/// Truncates the data to `length`. The rest is never sent, but would stay in memory until the
/// initiator acknowledges the status.
fn cut(data: &mut DataSegment, length: usize) {
    let mut room = length;
    data.retain(|piece| {
        let whole = piece.len();
        piece.truncate(room);
        room -= piece.len();
        // Copy a piece that is now short: otherwise it would keep its whole buffer in memory.
        if piece.len() < whole / 2 {
            *piece = Bytes::copy_from_slice(piece);
        }
        !piece.is_empty()
    });
}

/// Returns two residuals: that of the command, and that of the Data-In of a bidirectional command.
fn residuals(
    task: &TargetTask,
    data_in: usize,
    outcome: &TargetCommandOutcome,
) -> (Residual, Residual) {
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
        // The initiator expects no data, so all data counts as overflow.
        (false, false) => (residual(0, data_in.max(data_out.unwrap_or(0))), Residual::None),
    }
}

fn residual(expected: u32, actual: u32) -> Residual {
    match actual.cmp(&expected) {
        Ordering::Less => Residual::Underflow(expected - actual),
        Ordering::Equal => Residual::None,
        Ordering::Greater => Residual::Overflow(actual - expected),
    }
}

/// A sequence of pieces of memory, from which bytes are taken in order.
pub(super) struct Pieces<I> {
    pieces: I,
    front: Bytes,
}

impl<I: Iterator<Item = Bytes>> Pieces<I> {
    pub(super) fn new(pieces: I) -> Self {
        Self { pieces, front: Bytes::new() }
    }

    /// Takes the next `length` bytes. Panics if fewer bytes are left.
    pub(super) fn take(&mut self, mut length: usize) -> DataSegment {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_is_never_sent_is_not_kept() {
        let pieces =
            || -> DataSegment { [100, 200, 300].map(|n| vec![7; n].into()).into_iter().collect() };
        for (length, expected) in
            [(0, &[][..]), (40, &[40]), (100, &[100]), (299, &[100, 199]), (600, &[100, 200, 300])]
        {
            let mut data = pieces();
            let begin = data[0].as_ptr();
            cut(&mut data, length);
            let lengths: Vec<usize> = data.iter().map(Bytes::len).collect();
            assert_eq!(lengths, expected);
            let is_shared = data.first().is_some_and(|piece| piece.as_ptr() == begin);
            assert_eq!(is_shared, length >= 50, "{length}");
        }
    }

    #[test]
    fn data_is_cut_at_segments_and_at_the_ends_of_bursts() {
        let layout = DataInLayout { data_sn: 3, offset: 0, segment: 400, burst: 1000 };
        let parts: Vec<_> = layout.parts(1500).map(|p| (p.data_sn, p.end, p.ends_burst)).collect();
        let expected = [(3, 400, false), (4, 800, false), (5, 1000, true), (6, 1400, false)];
        assert_eq!(parts[..4], expected);
        assert_eq!(parts[4..], [(7, 1500, true)]);
        assert_eq!((layout.end(1500), layout.end(0)), (8, 3));
        let all = DataInLayout { segment: u32::MAX, burst: u32::MAX, ..layout };
        assert_eq!(all.parts(u32::MAX).count(), 1);
    }
}
