//! Assembles the data of a read command from its Data-In PDUs without copying it.

use bytes::{Bytes, BytesMut};

use scsi::Lun;

use super::InitiatorSessionError;
use crate::{DataSegment, Ttt, pdu::DataIn};

/// The received Data-In of a command.
///
/// DataPDUInOrder and DataSequenceInOrder are always negotiated to Yes (we propose Yes, and one end
/// that says Yes decides). The offset of the next byte is therefore the number of bytes received.
#[derive(Debug)]
pub(super) struct DataInGather {
    /// The most bytes of Data-In that the command accepts.
    expected: u32,
    received: u32,
    /// The DataSN that is expected next: all Data-In PDUs of the command before it have arrived.
    data_sn: u32,
    /// True if the next PDU may have any number: see [`Self::accept_any_number`].
    any_number: bool,
    /// The target is known to have sent all PDUs before this DataSN. PDUs from `data_sn` to here
    /// that are not in `ahead` were lost.
    sent: u32,
    /// PDUs that arrived after a gap, in the order of DataSN.
    ahead: Vec<DataIn>,
    /// A data acknowledgment that the target has requested and that waits for lost PDUs.
    requested: Option<(Ttt, Lun)>,
    pieces: DataSegment,
    /// After the first few pieces of data, small pieces are joined here by copying them.
    small: BytesMut,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum DataInArrival {
    /// The PDU has the expected DataSN.
    New,
    /// The PDU is new, and it shows that `count` PDUs from DataSN `first` on were lost.
    After { first: u32, count: u32 },
    /// A PDU with this DataSN had arrived before.
    Repeated,
}

/// The number of pieces that are never copied. A piece keeps the whole receive buffer that it was
/// cut from in memory. If a target sent a megabyte byte by byte, each byte would cost us 84 bytes.
/// From the ninth piece on, pieces of less than 2 KiB are therefore copied. A normal target sends
/// MaxRecvDataSegmentLength, 8 KiB or more, in each PDU.
const FREE_PIECES: usize = 8;
const SMALL_PIECE: usize = 2048;

/// The most PDUs that are kept after a missing one. 1024 PDUs of 8 KiB, the default of the
/// standard, are 8 MiB: the data that can be in transit before the target receives the SNACK.
const MOST_AHEAD: usize = 1024;

impl DataInGather {
    /// Starts to collect the data of a command that returns at most `expected` bytes.
    pub(super) fn new(expected: u32) -> Self {
        Self {
            expected,
            received: 0,
            data_sn: 0,
            any_number: false,
            sent: 0,
            ahead: Vec::new(),
            requested: None,
            pieces: DataSegment::new(),
            small: BytesMut::new(),
        }
    }

    /// Adds the data of one PDU. Returns an error if the PDU is invalid, or if a PDU before it is
    /// missing and lost PDUs cannot be requested (`recovers` is false).
    pub(super) fn take(
        &mut self,
        pdu: DataIn,
        recovers: bool,
    ) -> Result<DataInArrival, InitiatorSessionError> {
        let data_sn = pdu.data_sn;
        if self.any_number && pdu.buffer_offset == self.received {
            self.jump_to(data_sn);
        }
        if data_sn == self.data_sn {
            self.append(pdu)?;
            self.append_ahead()?;
            return Ok(DataInArrival::New);
        }
        if !recovers {
            return Err(InitiatorSessionError::Protocol("a Data-In with a DataSN out of order"));
        }
        let place = self.ahead.binary_search_by_key(&data_sn, |pdu| pdu.data_sn);
        let (false, Err(place)) = (data_sn < self.data_sn, place) else {
            return Ok(DataInArrival::Repeated);
        };
        if self.ahead.len() >= MOST_AHEAD {
            return Err(InitiatorSessionError::Protocol(
                "more than 1,000 Data-In PDUs after a missing one",
            ));
        }
        // Keep the PDU only if its data and all data kept so far fit the length of the command.
        let end = u64::from(pdu.buffer_offset) + length_of(&pdu);
        let kept: u64 = self.ahead.iter().map(length_of).sum();
        if end > self.expected.into()
            || kept + length_of(&pdu) > u64::from(self.expected - self.received)
        {
            return Err(TOO_MUCH);
        }
        self.ahead.insert(place, pdu);
        Ok(self.expect(data_sn, 1))
    }

    pub(super) fn received(&self) -> u32 {
        self.received
    }

    /// Returns the DataSN that the next Data-In PDU must have.
    pub(super) fn next_data_sn(&self) -> u32 {
        self.data_sn
    }

    /// Counts an R2T of a bidirectional command, whose R2Ts and Data-In PDUs have one sequence of
    /// numbers (RFC 7143, 4.2.2.4). `r2t_sn` is the next number, unless any number is accepted.
    pub(super) fn take_r2t(&mut self, r2t_sn: u32) -> Result<(), InitiatorSessionError> {
        self.jump_to(r2t_sn);
        self.data_sn = r2t_sn.wrapping_add(1);
        self.append_ahead()
    }

    /// Accepts the next PDU whatever its number is: after a TASK REASSIGN, the target may continue
    /// a bidirectional command with any number.
    pub(super) fn accept_any_number(&mut self) {
        self.any_number = true;
    }

    fn jump_to(&mut self, data_sn: u32) {
        if self.any_number {
            self.any_number = false;
            (self.data_sn, self.sent) = (data_sn, data_sn);
        }
    }

    /// Appends the data of the PDUs that arrived early and whose turn has come.
    fn append_ahead(&mut self) -> Result<(), InitiatorSessionError> {
        while self.ahead.first().is_some_and(|pdu| pdu.data_sn == self.data_sn) {
            let next = self.ahead.remove(0);
            self.append(next)?;
        }
        self.sent = self.sent.max(self.data_sn);
        Ok(())
    }

    /// Records that the target has sent the PDU with this DataSN and that its data was lost.
    pub(super) fn lose(&mut self, data_sn: u32) -> DataInArrival {
        self.expect(data_sn.saturating_add(1), 0)
    }

    /// Records that the target has sent `sent` PDUs before this one, and `more` PDUs that have
    /// arrived. Returns the PDUs that this shows to be lost.
    pub(super) fn expect(&mut self, sent: u32, more: u32) -> DataInArrival {
        let first = self.sent.max(self.data_sn);
        self.sent = first.max(sent.saturating_add(more));
        if sent > first {
            DataInArrival::After { first, count: sent - first }
        } else {
            DataInArrival::New
        }
    }

    /// Returns true if no PDU is missing.
    pub(super) fn is_whole(&self) -> bool {
        self.data_sn >= self.sent
    }

    /// Returns the first gap: the DataSN of the first missing PDU and the number of missing PDUs.
    pub(super) fn missing(&self) -> Option<(u32, u32)> {
        let end = self.ahead.first().map_or(self.sent, |pdu| pdu.data_sn);
        (end > self.data_sn).then(|| (self.data_sn, end - self.data_sn))
    }

    /// Records that the target requests an acknowledgment of all data sent so far.
    pub(super) fn request_acknowledgment(&mut self, ttt: Ttt, lun: Lun) {
        self.requested = Some((ttt, lun));
    }

    /// Returns the data acknowledgment that the target has requested, once no PDU is missing. The
    /// number is the DataSN before which all PDUs have arrived.
    pub(super) fn acknowledgment(&mut self) -> Option<(Ttt, Lun, u32)> {
        if self.requested.is_none() || !self.is_whole() {
            return None;
        }
        self.requested.take().map(|(ttt, lun)| (ttt, lun, self.data_sn))
    }

    /// Prepares for a TASK REASSIGN. On the new connection, the target sends all PDUs after the
    /// first gap again (RFC 7143, 11.5.6). Returns the DataSN of the first PDU that has not
    /// arrived.
    pub(super) fn change_connection(&mut self) -> u32 {
        self.ahead.clear();
        self.requested = None;
        self.sent = self.data_sn;
        self.data_sn
    }

    /// Discards all received data, because the command is sent to the target again.
    pub(super) fn start_again(&mut self) {
        *self = Self::new(self.expected);
    }

    fn append(&mut self, pdu: DataIn) -> Result<(), InitiatorSessionError> {
        self.data_sn = self.data_sn.wrapping_add(1);
        let length = length_of(&pdu);
        // Skip a PDU without data, which may carry only the status: its offset is not valid.
        if length == 0 {
            return Ok(());
        }
        if pdu.buffer_offset != self.received {
            return Err(InitiatorSessionError::Protocol("a Data-In with an offset out of order"));
        }
        if length > u64::from(self.expected - self.received) {
            return Err(TOO_MUCH);
        }
        self.received += length as u32;
        pdu.data.into_iter().filter(|piece| !piece.is_empty()).for_each(|piece| self.add(piece));
        Ok(())
    }

    fn add(&mut self, piece: Bytes) {
        if self.pieces.len() >= FREE_PIECES && piece.len() < SMALL_PIECE {
            self.small.extend_from_slice(&piece);
            return;
        }
        self.join_small();
        self.pieces.push(piece);
    }

    fn join_small(&mut self) {
        if !self.small.is_empty() {
            self.pieces.push(self.small.split().freeze());
        }
    }

    /// Takes all data that has arrived.
    pub(super) fn finish(&mut self) -> DataSegment {
        self.join_small();
        std::mem::take(&mut self.pieces)
    }
}

fn length_of(pdu: &DataIn) -> u64 {
    pdu.data.iter().map(|piece| piece.len() as u64).sum()
}

const TOO_MUCH: InitiatorSessionError =
    InitiatorSessionError::Protocol("more Data-In than the command expects");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Itt, Ttt, pdu::Numbers};

    fn data_in(data_sn: u32, buffer_offset: u32, data: &'static [u8]) -> DataIn {
        DataIn {
            is_final: false,
            acknowledge: false,
            status: None,
            lun: scsi::Lun(0),
            itt: Itt(1),
            ttt: Ttt::NONE,
            numbers: Numbers::default(),
            data_sn,
            buffer_offset,
            data: DataSegment::from_elem(Bytes::from_static(data), 1),
        }
    }

    #[test]
    fn pieces_in_order_read_as_one_run() {
        let mut gather = DataInGather::new(5);
        gather.take(data_in(0, 0, b"ab"), false).unwrap();
        gather.take(data_in(1, 2, b"cde"), false).unwrap();
        assert_eq!(gather.finish().concat(), b"abcde");
    }

    #[test]
    fn data_in_that_does_not_fit_is_an_error() {
        let wrong = [
            (data_in(0, 0, b"abcdef"), "more than there is room for"),
            (data_in(0, 1, b"a"), "an offset ahead"),
            (data_in(1, 0, b"a"), "a DataSN ahead"),
            (data_in(0, u32::MAX, b"a"), "an offset far away"),
        ];
        for (pdu, what) in wrong {
            assert!(DataInGather::new(5).take(pdu, false).is_err(), "{what}");
        }
    }

    #[test]
    fn lost_data_in_is_reported_and_filled_in() {
        let mut gather = DataInGather::new(6);
        gather.take(data_in(0, 0, b"a"), true).unwrap();
        let after = gather.take(data_in(3, 3, b"d"), true).unwrap();
        assert_eq!(after, DataInArrival::After { first: 1, count: 2 });
        assert_eq!(gather.take(data_in(4, 4, b"e"), true).unwrap(), DataInArrival::New);
        assert_eq!(gather.lose(5), DataInArrival::After { first: 5, count: 1 });
        assert_eq!(gather.missing(), Some((1, 2)));
        gather.take(data_in(2, 2, b"c"), true).unwrap();
        assert_eq!(gather.missing(), Some((1, 1)));
        gather.take(data_in(1, 1, b"b"), true).unwrap();
        assert_eq!(gather.missing(), Some((5, 1)));
        for repeated in [data_in(0, 0, b"a"), data_in(3, 3, b"d")] {
            assert_eq!(gather.take(repeated, true).unwrap(), DataInArrival::Repeated);
        }
        gather.take(data_in(5, 5, b"f"), true).unwrap();
        assert!(gather.is_whole());
        assert_eq!(gather.finish().concat(), b"abcdef");
    }

    #[test]
    fn early_data_in_is_kept_as_far_as_it_may_fit() {
        let mut gather = DataInGather::new(6);
        assert!(gather.take(data_in(1, 4, b"abc"), true).is_err(), "beyond the end");
        assert!(gather.take(data_in(1, u32::MAX, b"a"), true).is_err(), "far beyond the end");
        gather.take(data_in(1, 1, b"bcd"), true).unwrap();
        gather.take(data_in(2, 4, b"ef"), true).unwrap();
        assert!(gather.take(data_in(3, 4, b"ef"), true).is_err(), "the same bytes again and again");
        gather.take(data_in(0, 0, b"a"), true).unwrap();
        assert_eq!(gather.finish().concat(), b"abcdef");
    }

    #[test]
    fn a_data_acknowledgment_waits_for_missing_pdus() {
        let mut gather = DataInGather::new(3);
        gather.take(data_in(1, 1, b"b"), true).unwrap();
        gather.request_acknowledgment(Ttt(7), scsi::Lun(0));
        assert_eq!(gather.acknowledgment(), None);
        gather.take(data_in(0, 0, b"a"), true).unwrap();
        assert_eq!(gather.acknowledgment(), Some((Ttt(7), scsi::Lun(0), 2)));
        assert_eq!(gather.acknowledgment(), None);
    }

    #[test]
    fn after_a_reassignment_a_bidirectional_command_continues_with_any_number() {
        let moved = || {
            let mut gather = DataInGather::new(3);
            gather.take_r2t(0).unwrap();
            gather.take(data_in(1, 0, b"a"), true).unwrap();
            assert_eq!(gather.change_connection(), 2);
            gather.accept_any_number();
            gather
        };
        let mut gather = moved();
        gather.take_r2t(9).unwrap();
        assert_eq!(gather.take(data_in(10, 1, b"b"), true).unwrap(), DataInArrival::New);
        let mut gather = moved();
        assert_eq!(gather.take(data_in(5, 1, b"b"), true).unwrap(), DataInArrival::New);
        assert_eq!(gather.next_data_sn(), 6);
        let mut gather = moved();
        let lost = gather.take(data_in(3, 2, b"c"), true).unwrap();
        assert_eq!(lost, DataInArrival::After { first: 2, count: 1 }, "its offset shows a loss");
    }

    #[test]
    fn single_byte_pieces_are_merged() {
        let mut gather = DataInGather::new(4000);
        for at in 0..4000 {
            gather.take(data_in(at, at, b"x"), false).unwrap();
        }
        let pieces = gather.finish();
        assert_eq!(pieces.len(), FREE_PIECES + 1);
        assert_eq!(pieces.concat().len(), 4000);
    }
}
