//! Collects the data of one write, in pieces of any size (RFC 7143, 4.2.4.2, 11.7, 11.8).

use bytes::{Bytes, BytesMut};
use scsi::Sense;
use smallvec::SmallVec;

use crate::{DataSegment, Ttt, codec::LARGE, pdu::DataOut};

/// Collects the data of one write.
///
/// An error does not end the collection at once: the initiator still sends the data that it was
/// asked for, and the status must wait until then (RFC 7143, 11.4.2). After a failure, the gather
/// therefore *drains*: it drops all data and only waits for the F bits that end the open sequences.
///
/// From error recovery level 1 on, lost data is requested again instead (RFC 7143, 7.8). The data
/// of a sequence before the loss is kept, and the rest is dropped until the F bit. The missing part
/// then becomes a sequence of its own, which a recovery R2T requests.
#[derive(Debug)]
pub(crate) struct DataOutGather {
    /// Expected data transfer length, in bytes.
    length: u32,
    /// The most unsolicited data in bytes, immediate data included.
    unsolicited: u32,
    /// The sequences in the order of their offsets: the unsolicited data, then one sequence for
    /// each R2T. Each Data-Out searches all of them, so ended ones are merged when there are more
    /// than [`SEQUENCES`].
    sequences: SmallVec<[Sequence; 2]>,
    /// The offset of the first byte that was never requested.
    next_offset: u32,
    r2t_sn: u32,
    failure: Option<Sense>,
    /// True if arriving data is dropped, because the command failed or was refused.
    drains: bool,
    /// The number of losses that were recovered, at most [`RECOVERIES`].
    recoveries: u32,
}

/// A sequence of Data-Out PDUs that ends with an F bit.
#[derive(Debug)]
struct Sequence {
    /// The tag of the R2T; NONE for unsolicited data.
    ttt: Ttt,
    offset: u32,
    /// The length of the sequence in bytes; for unsolicited data, the most bytes that may arrive.
    limit: u32,
    received: u32,
    next_data_sn: u32,
    state: DataOutSequenceState,
    /// The R2TSN of the R2T that has requested this sequence; undefined for unsolicited data.
    r2t_sn: u32,
    /// True if the R2T was sent a second time because no data had arrived.
    repeated: bool,
    pieces: SmallVec<[Bytes; 1]>,
    /// Short pieces of data at the end of the sequence, which are joined here by copying.
    tail: BytesMut,
}

/// ```text
/// Unasked ── R2T ──▶ Open ── F bit ──▶ Ended
///                     └── loss ──▶ Damaged ── F bit or time-out ──▶ Ended, the rest Unasked
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum DataOutSequenceState {
    /// The data of this sequence was lost, and no R2T has requested it again yet.
    Unasked,
    Open,
    /// A part of the data was lost. Later data of the sequence is dropped until the F bit.
    Damaged,
    Ended,
}

impl DataOutSequenceState {
    /// Returns true if more data of this sequence may arrive.
    fn is_open(self) -> bool {
        matches!(self, Self::Open | Self::Damaged)
    }
}

/// The most losses of one command that are recovered before the command fails: on a path that loses
/// that much, further attempts would not help.
const RECOVERIES: u32 = 8;

/// Returns data that is kept for some time. Copies the data if it is a piece of a larger receive
/// buffer, which would otherwise stay in memory as long.
pub(crate) fn unshared(data: Bytes, is_shared: bool) -> Bytes {
    if is_shared { Bytes::copy_from_slice(&data) } else { data }
}

/// When a write has more sequences than this, ended ones are merged. A write of 4 MiB with the
/// bursts that we offer needs fewer; with the shortest bursts, the longest write has 65,536
/// sequences.
const SEQUENCES: usize = 16;

impl Sequence {
    fn new(ttt: Ttt, offset: u32, limit: u32) -> Self {
        Self {
            ttt,
            offset,
            limit,
            received: 0,
            next_data_sn: 0,
            state: DataOutSequenceState::Open,
            r2t_sn: 0,
            repeated: false,
            pieces: SmallVec::new(),
            tail: BytesMut::new(),
        }
    }

    fn push(&mut self, piece: Bytes) {
        if piece.len() < LARGE {
            self.tail.extend_from_slice(&piece);
        } else {
            self.close_tail();
            self.pieces.push(piece);
        }
    }

    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            self.pieces.push(self.tail.split().freeze());
        }
    }

    /// Appends the data of the sequence that follows this one. Both sequences must have ended.
    fn append(&mut self, next: Self) {
        self.limit = self.received + next.received;
        self.received = self.limit;
        next.pieces.into_iter().for_each(|piece| self.push(piece));
        self.tail.extend_from_slice(&next.tail);
    }

    /// Returns the offset and length that the R2T of this sequence requests.
    fn burst(&self) -> R2tBurst {
        let (ttt, r2t_sn) = (self.ttt, self.r2t_sn);
        R2tBurst { ttt, r2t_sn, offset: self.offset, length: self.limit }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct R2tBurst {
    pub(crate) ttt: Ttt,
    pub(crate) r2t_sn: u32,
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// A Data-Out PDU belongs to no open sequence of its command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct UnknownTransfer;

impl DataOutGather {
    /// Starts to collect the data of a write of `length` bytes that came with `immediate` data. The
    /// caller has checked the limits. `unsolicited_limit` is the most unsolicited data in bytes,
    /// immediate data included, or `None` if no unsolicited Data-Out follows.
    pub(crate) fn new(length: u32, immediate: Bytes, unsolicited_limit: Option<u32>) -> Self {
        let received = immediate.len() as u32;
        let limit = unsolicited_limit.unwrap_or(received).min(length).max(received);
        let mut first = Sequence::new(Ttt::NONE, 0, limit);
        if unsolicited_limit.is_none() {
            first.state = DataOutSequenceState::Ended;
        }
        if received > 0 {
            first.push(immediate);
            first.received = received;
        }
        let mut sequences = SmallVec::new();
        sequences.push(first);
        Self {
            length,
            unsolicited: limit,
            sequences,
            next_offset: limit,
            r2t_sn: 0,
            failure: None,
            drains: false,
            recoveries: 0,
        }
    }

    /// Makes the command fail with this sense data. The status is sent after all data on its way
    /// has arrived.
    pub(crate) fn fail(&mut self, sense: Sense) {
        self.failure.get_or_insert(sense);
        self.drain();
    }

    /// Discards all data of the write: the data that has arrived, and the data that arrives later.
    pub(crate) fn drain(&mut self) {
        self.drains = true;
        for sequence in &mut self.sequences {
            sequence.pieces.clear();
            sequence.tail = BytesMut::new();
            if sequence.state == DataOutSequenceState::Unasked {
                sequence.state = DataOutSequenceState::Ended;
            }
        }
    }

    /// Returns the number of bytes that have arrived.
    pub(crate) fn received(&self) -> u32 {
        self.sequences.iter().map(|sequence| sequence.received).sum()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.drains
    }

    /// Returns the sense data with which the command fails.
    pub(crate) fn failure(&self) -> Option<Sense> {
        self.failure
    }

    /// Returns the R2TSN of the next R2T, which is the number of R2Ts sent.
    pub(crate) fn r2t_sn(&self) -> u32 {
        self.r2t_sn
    }

    /// Returns the number of bytes that R2Ts must request in all, without repeated requests for
    /// lost data.
    pub(crate) fn to_solicit(&self) -> u32 {
        self.length - self.unsolicited
    }

    /// Returns true if data of the write was lost and no R2T has requested it again yet.
    pub(crate) fn is_recovering(&self) -> bool {
        self.sequences.iter().any(|sequence| sequence.state == DataOutSequenceState::Unasked)
    }

    /// Returns true if all sequences of the write have ended, so that no more data is in flight.
    pub(crate) fn is_quiet(&self) -> bool {
        self.sequences.iter().all(|sequence| sequence.state == DataOutSequenceState::Ended)
    }

    /// Returns true if a burst that an R2T requested has not ended, so that its target transfer tag
    /// is still valid.
    pub(crate) fn has_valid_ttt(&self) -> bool {
        self.sequences.iter().any(|sequence| sequence.state.is_open() && sequence.ttt != Ttt::NONE)
    }

    /// Returns true if all data of the write has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        !self.drains && self.next_offset == self.length && self.is_quiet()
    }

    /// Returns true if this PDU is the last one of the write, so that its data need not wait in the
    /// gather.
    pub(crate) fn is_completed_by(&self, data_out: &DataOut) -> bool {
        let length = self.received().checked_add(data_out.data.len() as u32);
        let is_last =
            |s: &Sequence| s.ttt == data_out.ttt || s.state == DataOutSequenceState::Ended;
        data_out.is_final && length == Some(self.length) && self.sequences.iter().all(is_last)
    }

    /// Adds a Data-Out; with `digest_error` its data is lost. With `recovers`, lost data is
    /// requested again.
    ///
    /// # Errors
    /// The PDU must be rejected, and the command fails.
    pub(crate) fn handle_data(
        &mut self,
        data_out: DataOut,
        digest_error: bool,
        recovers: bool,
    ) -> Result<(), UnknownTransfer> {
        let is_meant = |s: &Sequence| s.ttt == data_out.ttt && s.state.is_open();
        let Some(at) = self.sequences.iter().position(is_meant) else {
            if self.recoveries > 0 {
                // Ignore this data, which arrived although it had been considered lost.
                return Ok(());
            }
            self.fail(Sense::INCORRECT_AMOUNT_OF_DATA);
            return Err(UnknownTransfer);
        };
        let sequence = &mut self.sequences[at];
        let length = data_out.data.len() as u32;
        let in_place = sequence.offset.checked_add(sequence.received)
            == Some(data_out.buffer_offset)
            && length <= sequence.limit - sequence.received;
        // A gap in DataSN means lost data, like a digest error (RFC 7143, 7.9).
        let lost = digest_error
            || sequence.state == DataOutSequenceState::Damaged
            || data_out.data_sn != sequence.next_data_sn;
        let ended = data_out.is_final;
        let fault = if lost {
            if recovers && !self.drains && self.recoveries < RECOVERIES {
                sequence.state = DataOutSequenceState::Damaged;
                if ended {
                    self.recover(at);
                }
                return Ok(());
            }
            Some(Sense::PROTOCOL_SERVICE_CRC_ERROR)
        } else if !in_place {
            Some(Sense::INCORRECT_AMOUNT_OF_DATA)
        } else {
            sequence.next_data_sn = sequence.next_data_sn.wrapping_add(1);
            if !self.drains && length > 0 {
                sequence.push(data_out.data);
            }
            sequence.received += length;
            let short = ended && sequence.received < sequence.limit;
            short.then_some(Sense::INCORRECT_AMOUNT_OF_DATA)
        };
        if ended {
            sequence.state = DataOutSequenceState::Ended;
        }
        if let Some(sense) = fault {
            self.fail(sense);
        }
        Ok(())
    }

    /// Ends a sequence that lost data. The missing part becomes a new sequence, which a later R2T
    /// requests.
    fn recover(&mut self, at: usize) {
        self.recoveries += 1;
        let sequence = &mut self.sequences[at];
        sequence.state = DataOutSequenceState::Ended;
        let (received, missing) = (sequence.received, sequence.limit - sequence.received);
        sequence.limit = received;
        let offset = sequence.offset + received;
        if missing > 0 {
            let mut rest = Sequence::new(Ttt::NONE, offset, missing);
            rest.state = DataOutSequenceState::Unasked;
            self.sequences.insert(at + 1, rest);
        }
    }

    /// Handles a time-out without data (RFC 7143, 7.1.4.1 b). If no data has followed an R2T, the
    /// R2T itself may have been lost: returns its burst, so that the caller sends the same R2T
    /// again. Otherwise lets a new R2T request the missing data, or makes the command fail.
    pub(crate) fn handle_silence(&mut self) -> Option<R2tBurst> {
        let at = self.sequences.iter().position(|sequence| sequence.state.is_open())?;
        if self.drains {
            // The data is dropped anyway, so do not wait for the end of the bursts any longer.
            self.sequences
                .iter_mut()
                .for_each(|sequence| sequence.state = DataOutSequenceState::Ended);
            return None;
        }
        let sequence = &mut self.sequences[at];
        let is_untouched = sequence.state == DataOutSequenceState::Open
            && sequence.next_data_sn == 0
            && sequence.ttt != Ttt::NONE;
        if is_untouched && !sequence.repeated {
            sequence.repeated = true;
            return Some(sequence.burst());
        }
        if self.recoveries < RECOVERIES {
            self.recover(at);
        } else {
            self.fail(Sense::PROTOCOL_SERVICE_CRC_ERROR);
            self.sequences
                .iter_mut()
                .for_each(|sequence| sequence.state = DataOutSequenceState::Ended);
        }
        None
    }

    /// Handles the end of the connection: data that was on its way is lost, and must be requested
    /// again on another connection.
    pub(crate) fn reopen(&mut self) {
        while let Some(at) = self.sequences.iter().position(|sequence| sequence.state.is_open()) {
            if self.drains {
                self.sequences[at].state = DataOutSequenceState::Ended;
            } else {
                self.recover(at);
            }
        }
    }

    /// Returns the bursts of `run` R2Ts from R2TSN `begin` on, or of all later ones if `run` is 0.
    /// Returns `None` if one of the `run` R2Ts was not sent, or was answered completely.
    pub(crate) fn open_bursts(&self, begin: u32, run: u32) -> Option<SmallVec<[R2tBurst; 2]>> {
        let is_meant = |r2t_sn: u32| r2t_sn >= begin && (run == 0 || r2t_sn - begin < run);
        let bursts: SmallVec<[R2tBurst; 2]> = self
            .sequences
            .iter()
            .filter(|s| s.state.is_open() && s.ttt != Ttt::NONE && is_meant(s.r2t_sn))
            .map(Sequence::burst)
            .collect();
        let all_there = run == 0 && begin <= self.r2t_sn || bursts.len() as u32 == run;
        all_there.then_some(bursts)
    }

    /// Returns the next burst to request, if fewer than `max_outstanding` are open. Lost data comes
    /// first. With `solicits`, data that was never requested follows, but only after the end of the
    /// unsolicited data: before, its amount is not known.
    pub(crate) fn next_burst(
        &mut self,
        solicits: bool,
        max_outstanding: u16,
        max_burst_length: u32,
        ttt: impl FnOnce() -> Ttt,
    ) -> Option<R2tBurst> {
        let open = self.sequences.iter().filter(|sequence| sequence.state.is_open()).count();
        if self.drains || open >= usize::from(max_outstanding.max(1)) {
            return None;
        }
        let max_burst_length = max_burst_length.max(1);
        let lost = self
            .sequences
            .iter()
            .position(|sequence| sequence.state == DataOutSequenceState::Unasked);
        let at = match lost {
            Some(at) => {
                let Sequence { offset, limit, .. } = self.sequences[at];
                if limit > max_burst_length {
                    let mut rest = Sequence::new(
                        Ttt::NONE,
                        offset + max_burst_length,
                        limit - max_burst_length,
                    );
                    rest.state = DataOutSequenceState::Unasked;
                    self.sequences[at].limit = max_burst_length;
                    self.sequences.insert(at + 1, rest);
                }
                at
            }
            None if solicits
                && self.next_offset < self.length
                && self.sequences[0].state == DataOutSequenceState::Ended =>
            {
                if self.sequences.len() >= SEQUENCES {
                    self.join_ended();
                }
                let offset = self.next_offset;
                let length = (self.length - offset).min(max_burst_length);
                self.sequences.push(Sequence::new(Ttt::NONE, offset, length));
                self.next_offset += length;
                self.sequences.len() - 1
            }
            None => return None,
        };
        let sequence = &mut self.sequences[at];
        (sequence.ttt, sequence.r2t_sn, sequence.state) =
            (ttt(), self.r2t_sn, DataOutSequenceState::Open);
        self.r2t_sn += 1;
        Some(self.sequences[at].burst())
    }

    /// Merges adjacent sequences that have ended.
    fn join_ended(&mut self) {
        for sequence in std::mem::take(&mut self.sequences) {
            match self.sequences.last_mut() {
                Some(last)
                    if last.state == DataOutSequenceState::Ended
                        && sequence.state == DataOutSequenceState::Ended =>
                {
                    last.append(sequence);
                }
                _ => self.sequences.push(sequence),
            }
        }
    }

    pub(crate) fn into_data(self) -> DataSegment {
        let pieces = |mut sequence: Sequence| {
            sequence.close_tail();
            sequence.pieces
        };
        self.sequences.into_iter().flat_map(pieces).collect()
    }
}

#[cfg(test)]
mod tests {
    use scsi::Lun;

    use super::*;
    use crate::{Itt, Serial};

    fn data_out(ttt: Ttt, data_sn: u32, offset: u32, length: usize, is_final: bool) -> DataOut {
        DataOut {
            is_final,
            lun: Lun(0),
            itt: Itt(1),
            ttt,
            exp_stat_sn: Serial(0),
            data_sn,
            buffer_offset: offset,
            data: vec![offset as u8; length].into(),
        }
    }

    fn burst(gather: &mut DataOutGather, ttt: u32, outstanding: u16) -> Option<R2tBurst> {
        gather.next_burst(true, outstanding, 1000, || Ttt(ttt))
    }

    #[test]
    fn immediate_unsolicited_and_solicited_data_are_joined_in_order() {
        let mut gather = DataOutGather::new(3000, vec![9; 100].into(), Some(500));
        assert_eq!(gather.to_solicit(), 2500);
        assert_eq!(burst(&mut gather, 1, 8), None, "unsolicited data has not ended");
        gather.handle_data(data_out(Ttt::NONE, 0, 100, 200, false), false, false).unwrap();
        gather.handle_data(data_out(Ttt::NONE, 1, 300, 200, true), false, false).unwrap();
        let bursts: Vec<_> = (1..5).map_while(|ttt| burst(&mut gather, ttt, 2)).collect();
        assert_eq!(bursts.len(), 2);
        assert_eq!((bursts[1].offset, bursts[1].length, bursts[1].r2t_sn), (1500, 1000, 1));
        gather.handle_data(data_out(Ttt(1), 0, 500, 1000, true), false, false).unwrap();
        let last = burst(&mut gather, 3, 2).unwrap();
        assert_eq!((last.offset, last.length), (2500, 500));
        gather.handle_data(data_out(Ttt(3), 0, 2500, 500, true), false, false).unwrap();
        gather.handle_data(data_out(Ttt(2), 0, 1500, 400, false), false, false).unwrap();
        gather.handle_data(data_out(Ttt(2), 1, 1900, 600, true), false, false).unwrap();
        assert!(gather.is_complete());
        let data = gather.into_data().concat();
        assert_eq!(data.len(), 3000);
        for (at, mark) in
            [(0, 9), (100, 100), (300, 300), (500, 500), (1500, 1500), (1900, 1900), (2500, 2500)]
        {
            assert_eq!(data[at], mark as u8);
        }
    }

    #[track_caller]
    fn check(faulty: DataOut, digest_error: bool, sense: Sense) {
        let mut gather = DataOutGather::new(2000, Bytes::new(), None);
        burst(&mut gather, 1, 2).unwrap();
        burst(&mut gather, 2, 2).unwrap();
        gather.handle_data(faulty.clone(), digest_error, false).unwrap();
        assert_eq!(gather.failure(), Some(sense));
        assert!(!gather.is_complete());
        if !faulty.is_final {
            gather.handle_data(data_out(Ttt(1), 1, 999, 1, true), false, false).unwrap();
        }
        assert!(!gather.is_quiet(), "the other burst is still on its way");
        gather.handle_data(data_out(Ttt(2), 0, 1000, 1000, true), false, false).unwrap();
        assert!(gather.is_quiet() && !gather.is_complete());
        assert_eq!(burst(&mut gather, 3, 2), None);
        assert!(gather.into_data().is_empty());
    }

    #[test]
    fn after_a_fault_the_requested_data_is_drained() {
        check(data_out(Ttt(1), 1, 0, 1000, true), false, Sense::PROTOCOL_SERVICE_CRC_ERROR);
        check(data_out(Ttt(1), 0, 0, 1000, true), true, Sense::PROTOCOL_SERVICE_CRC_ERROR);
        check(data_out(Ttt(1), 0, 4, 996, true), false, Sense::INCORRECT_AMOUNT_OF_DATA);
        check(data_out(Ttt(1), 0, 0, 999, true), false, Sense::INCORRECT_AMOUNT_OF_DATA);
        check(data_out(Ttt(1), 0, 0, 1001, true), false, Sense::INCORRECT_AMOUNT_OF_DATA);
        check(data_out(Ttt(1), 0, u32::MAX, 8, false), false, Sense::INCORRECT_AMOUNT_OF_DATA);
    }

    #[test]
    fn an_unknown_transfer_tag_fails_the_command() {
        let mut gather = DataOutGather::new(2000, Bytes::new(), None);
        burst(&mut gather, 1, 1).unwrap();
        let stranger = data_out(Ttt(7), 0, 0, 10, false);
        assert_eq!(gather.handle_data(stranger, false, false), Err(UnknownTransfer));
        let unasked = data_out(Ttt::NONE, 0, 0, 10, false);
        assert_eq!(gather.handle_data(unasked, false, false), Err(UnknownTransfer));
        assert!(gather.failure().is_some());
    }

    /// A regression test. Each Data-Out used to search all sequences of the write, and each
    /// sequence kept a receive buffer in memory.
    #[test]
    fn sequences_that_have_ended_are_joined() {
        const BURSTS: u32 = 32_768;
        let mut gather = DataOutGather::new(512 * BURSTS, Bytes::new(), None);
        let burst = |gather: &mut DataOutGather, ttt| gather.next_burst(true, 2, 512, || Ttt(ttt));
        for ttt in 0..2 {
            burst(&mut gather, ttt).unwrap();
        }
        for ttt in 0..BURSTS {
            // The bursts arrive in pairs with the order reversed.
            let ttt = ttt ^ 1;
            let mut data = data_out(Ttt(ttt), 0, 512 * ttt, 512, true);
            data.data = vec![ttt as u8; 512].into();
            gather.handle_data(data, false, false).unwrap();
            if ttt % 2 == 0 && ttt + 2 < BURSTS {
                burst(&mut gather, ttt + 2).unwrap();
                burst(&mut gather, ttt + 3).unwrap();
            }
            assert!(gather.sequences.len() <= SEQUENCES + 2);
        }
        assert!(gather.is_complete());
        let data = gather.into_data();
        assert!(data.len() <= SEQUENCES, "{} pieces", data.len());
        let data = data.concat();
        assert!((0..BURSTS as usize).all(|at| data[512 * at..][..512] == [at as u8; 512]));
    }

    #[test]
    fn an_empty_final_data_out_ends_a_sequence() {
        let mut gather = DataOutGather::new(100, vec![1; 100].into(), Some(100));
        assert!(!gather.is_complete());
        gather.handle_data(data_out(Ttt::NONE, 0, 100, 0, true), false, false).unwrap();
        assert!(gather.is_complete());
    }

    #[test]
    fn too_little_unsolicited_data_fails_the_command() {
        let mut gather = DataOutGather::new(1000, Bytes::new(), Some(500));
        gather.handle_data(data_out(Ttt::NONE, 0, 0, 100, true), false, false).unwrap();
        assert_eq!(gather.failure(), Some(Sense::INCORRECT_AMOUNT_OF_DATA));
    }
}
