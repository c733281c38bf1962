//! The data of one write on its way in: immediate, unsolicited and solicited bursts, in whatever
//! portions the initiator sends them (RFC 7143, 4.2.4.2, 11.7, 11.8).

use bytes::{Bytes, BytesMut};
use scsi::Sense;
use smallvec::SmallVec;

use crate::{DataSegment, Ttt, codec::LARGE, pdu::DataOut};

/// Gathers the data of one write.
///
/// A fault does not end it at once: the initiator still sends what it was asked for, and the
/// status has to wait until then (RFC 7143, 11.4.2). So a gather with a `failure` *drains*: it
/// drops data and only looks for the F bits that end the open sequences.
///
/// From recovery level 1 on, data that was lost is asked for again instead (RFC 7143, 7.8): what
/// came of a sequence before the loss is kept, the rest of it is dropped until the F bit, and then
/// becomes a sequence of its own that a recovery R2T asks for.
#[derive(Debug)]
pub(crate) struct DataOutGather {
    /// Expected data transfer length, in bytes.
    length: u32,
    /// How much of it may come unasked.
    unsolicited: u32,
    /// Unsolicited data first, then one sequence for each R2T, in order of offset. Those that have
    /// ended are joined when there are more than [`SEQUENCES`]: all are looked through for each
    /// PDU.
    sequences: SmallVec<[Sequence; 2]>,
    /// The first byte that nobody asked for yet.
    next_offset: u32,
    r2t_sn: u32,
    failure: Option<Sense>,
    /// Data is dropped as it comes: the command failed or was refused.
    drains: bool,
    /// How often lost data was asked for again, at most [`RECOVERIES`].
    recoveries: u32,
}

/// A run of Data-Out PDUs that ends with an F bit.
#[derive(Debug)]
struct Sequence {
    /// NONE for unsolicited data.
    ttt: Ttt,
    offset: u32,
    /// The most that may come.
    limit: u32,
    received: u32,
    next_data_sn: u32,
    state: DataOutSequenceState,
    /// The number of its R2T; means nothing for unsolicited data.
    r2t_sn: u32,
    /// Its R2T was sent a second time, and still nothing has come.
    repeated: bool,
    pieces: SmallVec<[Bytes; 1]>,
    /// Short pieces at the end of the sequence, copied together into one piece.
    tail: BytesMut,
}

/// ```text
/// Unasked ── R2T ──▶ Open ── F bit ──▶ Ended
///                     └── loss ──▶ Damaged ── F bit or time ──▶ Ended, the rest Unasked
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum DataOutSequenceState {
    /// Was lost and must be asked for.
    Unasked,
    Open,
    /// Something of it was lost: what comes until the F bit is dropped.
    Damaged,
    Ended,
}

impl DataOutSequenceState {
    /// More may come.
    fn is_open(self) -> bool {
        matches!(self, Self::Open | Self::Damaged)
    }
}

/// Lost data of one command is asked for so often, then the command fails: a path that damages
/// that much will not get better by itself.
const RECOVERIES: u32 = 8;

/// Returns data that has to wait; copied if it is a piece of a larger receive buffer, so that it does not keep
/// that buffer in memory.
pub(crate) fn unshared(data: Bytes, is_shared: bool) -> Bytes {
    if is_shared { Bytes::copy_from_slice(&data) } else { data }
}

/// More sequences than a write of 4 MiB takes with the bursts that we offer, so that theirs are
/// never joined; with the shortest bursts there are 65,536 in the longest write.
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

    /// Takes the data of the one that follows it. Both have ended.
    fn append(&mut self, next: Self) {
        self.limit = self.received + next.received;
        self.received = self.limit;
        next.pieces.into_iter().for_each(|piece| self.push(piece));
        self.tail.extend_from_slice(&next.tail);
    }

    /// As an R2T asks for it.
    fn burst(&self) -> R2tBurst {
        let (ttt, r2t_sn) = (self.ttt, self.r2t_sn);
        R2tBurst { ttt, r2t_sn, offset: self.offset, length: self.limit }
    }
}

/// A burst to be asked for with an R2T.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct R2tBurst {
    pub(crate) ttt: Ttt,
    pub(crate) r2t_sn: u32,
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// A Data-Out belongs to no open sequence of its command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct UnknownTransfer;

impl DataOutGather {
    /// A write of `length` bytes that came with `immediate` data, all of it within the limits;
    /// `unsolicited_limit` is how many unsolicited bytes there may be, immediate data included,
    /// or `None` if no unsolicited Data-Out follows.
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

    /// The command fails with this, once everything on its way has come.
    pub(crate) fn fail(&mut self, sense: Sense) {
        self.failure.get_or_insert(sense);
        self.drain();
    }

    /// Drops what has come and what comes from now on.
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

    /// Returns the number of bytes that have come.
    pub(crate) fn received(&self) -> u32 {
        self.sequences.iter().map(|sequence| sequence.received).sum()
    }

    /// Returns true if data is dropped as it comes.
    pub(crate) fn is_draining(&self) -> bool {
        self.drains
    }

    /// Why the command fails, if it does.
    pub(crate) fn failure(&self) -> Option<Sense> {
        self.failure
    }

    /// R2Ts sent for the command.
    pub(crate) fn r2t_sn(&self) -> u32 {
        self.r2t_sn
    }

    /// How many bytes must be asked for with R2Ts, all together, but for what gets lost.
    pub(crate) fn to_solicit(&self) -> u32 {
        self.length - self.unsolicited
    }

    /// Something was lost and is still to be asked for.
    pub(crate) fn is_recovering(&self) -> bool {
        self.sequences.iter().any(|sequence| sequence.state == DataOutSequenceState::Unasked)
    }

    /// No more data is on its way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.sequences.iter().all(|sequence| sequence.state == DataOutSequenceState::Ended)
    }

    /// A burst that was asked for with an R2T has not ended: its tag is valid.
    pub(crate) fn has_valid_ttt(&self) -> bool {
        self.sequences.iter().any(|sequence| sequence.state.is_open() && sequence.ttt != Ttt::NONE)
    }

    /// All data is there.
    pub(crate) fn is_complete(&self) -> bool {
        !self.drains && self.next_offset == self.length && self.is_quiet()
    }

    /// Returns true if this PDU completes the data, so that its data need not wait in the gather.
    pub(crate) fn is_completed_by(&self, data_out: &DataOut) -> bool {
        let length = self.received().checked_add(data_out.data.len() as u32);
        let is_last =
            |s: &Sequence| s.ttt == data_out.ttt || s.state == DataOutSequenceState::Ended;
        data_out.is_final && length == Some(self.length) && self.sequences.iter().all(is_last)
    }

    /// Data has come, or was lost to a data digest error. An error: reject the PDU; the command
    /// fails then. With `recovers`, lost data is asked for again.
    pub(crate) fn handle_data(
        &mut self,
        data_out: DataOut,
        digest_error: bool,
        recovers: bool,
    ) -> Result<(), UnknownTransfer> {
        let is_meant = |s: &Sequence| s.ttt == data_out.ttt && s.state.is_open();
        let Some(at) = self.sequences.iter().position(is_meant) else {
            if self.recoveries > 0 {
                // It was given up for lost, and comes after all.
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
        // A gap in DataSN is data that was lost, as with a digest error (RFC 7143, 7.9).
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

    /// What did not come of a sequence becomes one of its own, to be asked for.
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

    /// Nothing has come for a long time (RFC 7143, 7.1.4.1 b). An R2T that was not answered at all
    /// is to be sent again as it was, for it may have been lost: the return. Otherwise what is
    /// missing is asked for anew, or the command fails.
    pub(crate) fn handle_silence(&mut self) -> Option<R2tBurst> {
        let at = self.sequences.iter().position(|sequence| sequence.state.is_open())?;
        if self.drains {
            // Nobody waits for the data, only for its end.
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

    /// The connection has gone: what was on its way must be asked for again on another.
    pub(crate) fn reopen(&mut self) {
        while let Some(at) = self.sequences.iter().position(|sequence| sequence.state.is_open()) {
            if self.drains {
                self.sequences[at].state = DataOutSequenceState::Ended;
            } else {
                self.recover(at);
            }
        }
    }

    /// The R2Ts that were sent, were not answered in full, and have numbers from `begin` on: `run`
    /// of them, or all with 0. `None` if one of those that were named was not sent or was
    /// answered.
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

    /// The next burst to ask for, if fewer than `max_outstanding` are open: what was lost first;
    /// else, with `solicits`, what comes next, once unsolicited data has ended (how much of it
    /// comes is not known before).
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

    /// Makes one of sequences side by side that have ended.
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

    /// The data in order.
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
    fn immediate_unsolicited_and_solicited_data_come_together_in_order() {
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
    fn faults_drain_what_was_asked_for() {
        check(data_out(Ttt(1), 1, 0, 1000, true), false, Sense::PROTOCOL_SERVICE_CRC_ERROR);
        check(data_out(Ttt(1), 0, 0, 1000, true), true, Sense::PROTOCOL_SERVICE_CRC_ERROR);
        check(data_out(Ttt(1), 0, 4, 996, true), false, Sense::INCORRECT_AMOUNT_OF_DATA);
        check(data_out(Ttt(1), 0, 0, 999, true), false, Sense::INCORRECT_AMOUNT_OF_DATA);
        check(data_out(Ttt(1), 0, 0, 1001, true), false, Sense::INCORRECT_AMOUNT_OF_DATA);
        check(data_out(Ttt(1), 0, u32::MAX, 8, false), false, Sense::INCORRECT_AMOUNT_OF_DATA);
    }

    #[test]
    fn a_tag_that_was_not_given_fails_the_command() {
        let mut gather = DataOutGather::new(2000, Bytes::new(), None);
        burst(&mut gather, 1, 1).unwrap();
        let stranger = data_out(Ttt(7), 0, 0, 10, false);
        assert_eq!(gather.handle_data(stranger, false, false), Err(UnknownTransfer));
        let unasked = data_out(Ttt::NONE, 0, 0, 10, false);
        assert_eq!(gather.handle_data(unasked, false, false), Err(UnknownTransfer));
        assert!(gather.failure().is_some());
    }

    /// Every Data-Out looked through all sequences that there had been, and each kept a receive
    /// buffer.
    #[test]
    fn sequences_that_have_ended_are_joined() {
        const BURSTS: u32 = 32_768;
        let mut gather = DataOutGather::new(512 * BURSTS, Bytes::new(), None);
        let burst = |gather: &mut DataOutGather, ttt| gather.next_burst(true, 2, 512, || Ttt(ttt));
        for ttt in 0..2 {
            burst(&mut gather, ttt).unwrap();
        }
        for ttt in 0..BURSTS {
            // In pairs the other way round.
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
