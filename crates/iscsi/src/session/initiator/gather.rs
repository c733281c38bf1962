//! Data-In PDUs of one command, joined without copying.

use bytes::{Bytes, BytesMut};

use super::Error;
use crate::{DataSegment, pdu::DataIn};

/// What has arrived of a command's Data-In.
///
/// Both DataPDUInOrder and DataSequenceInOrder are always negotiated to Yes (we ask for it, and
/// one Yes decides), so the next byte's offset is the number of bytes that are here.
#[derive(Debug)]
pub(super) struct Gather {
    /// Room for so many bytes.
    expected: u32,
    received: u32,
    data_sn: u32,
    pieces: DataSegment,
    /// Small pieces after the first few are copied together here.
    small: BytesMut,
}

/// A piece keeps the receive buffer that it was cut from alive. A target that sends a megabyte
/// byte by byte would make us hold 84 bytes for each; so from the ninth piece on, what is shorter
/// than 2 KiB is copied. An honest target sends its MaxRecvDataSegmentLength, 8 KiB or more.
const FREE_PIECES: usize = 8;
const SMALL_PIECE: usize = 2048;

impl Gather {
    /// Nothing arrived of at most `expected` bytes.
    pub(super) fn new(expected: u32) -> Self {
        Self {
            expected,
            received: 0,
            data_sn: 0,
            pieces: DataSegment::new(),
            small: BytesMut::new(),
        }
    }

    /// Takes the data of one PDU, or says what is wrong with it.
    pub(super) fn take(&mut self, pdu: DataIn) -> Result<(), Error> {
        if pdu.data_sn != self.data_sn {
            return Err(Error::Protocol("a Data-In with a DataSN out of order"));
        }
        self.data_sn = self.data_sn.wrapping_add(1);
        let length: usize = pdu.data.iter().map(Bytes::len).sum();
        // A PDU without data (it may carry the status) has no offset to speak of.
        if length == 0 {
            return Ok(());
        }
        if pdu.buffer_offset != self.received {
            return Err(Error::Protocol("a Data-In with an offset out of order"));
        }
        if length > (self.expected - self.received) as usize {
            return Err(Error::Protocol("more Data-In than the command has room for"));
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

    /// Everything that arrived.
    pub(super) fn finish(&mut self) -> DataSegment {
        self.join_small();
        std::mem::take(&mut self.pieces)
    }
}

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
        let mut gather = Gather::new(5);
        gather.take(data_in(0, 0, b"ab")).unwrap();
        gather.take(data_in(1, 2, b"cde")).unwrap();
        assert_eq!(gather.finish().concat(), b"abcde");
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let wrong = [
            (data_in(0, 0, b"abcdef"), "more than there is room for"),
            (data_in(0, 1, b"a"), "an offset ahead"),
            (data_in(1, 0, b"a"), "a DataSN ahead"),
            (data_in(0, u32::MAX, b"a"), "an offset far away"),
        ];
        for (pdu, what) in wrong {
            assert!(Gather::new(5).take(pdu).is_err(), "{what}");
        }
    }

    #[test]
    fn a_byte_at_a_time_does_not_pile_up() {
        let mut gather = Gather::new(4000);
        for at in 0..4000 {
            gather.take(data_in(at, at, b"x")).unwrap();
        }
        let pieces = gather.finish();
        assert_eq!(pieces.len(), FREE_PIECES + 1);
        assert_eq!(pieces.concat().len(), 4000);
    }
}
