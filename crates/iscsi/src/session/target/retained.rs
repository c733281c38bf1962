//! The statuses that one connection has sent and the initiator has not acknowledged. They are kept
//! from error recovery level 1 on, to be sent again (RFC 7143, 7.1.3, 11.16).

use std::collections::VecDeque;

use crate::{Itt, Pdu, Serial, Ttt};

use super::response::CommandResponse;

/// A PDU or response that consumed a StatSN.
#[derive(Debug)]
pub(super) enum SentStatus {
    Response(CommandResponse),
    /// A PDU that consumed a StatSN but is no response to a SCSI command.
    Other(Box<Pdu>),
    /// A PDU other than the response to a command. Its data was discarded, so it cannot be sent
    /// again.
    Forgotten,
}

/// Statuses in the order of StatSN, without gaps. `Settings::unacknowledged_statuses` limits their
/// number, and `Settings::retained_bytes` limits the data in them.
#[derive(Debug)]
pub(super) struct Retained {
    /// The StatSN of the first entry of `sent`.
    first: Serial,
    sent: VecDeque<SentStatus>,
    /// The number of bytes of data that are kept.
    bytes: usize,
    /// The number of entries at the front of `sent` whose data was discarded or that have none.
    forgotten: usize,
}

impl Retained {
    /// Makes an empty queue; `first` is the next StatSN.
    pub(super) fn new(first: Serial) -> Self {
        Self { first, sent: VecDeque::new(), bytes: 0, forgotten: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.sent.len()
    }

    /// Appends the status with the next StatSN. While more than `limit` bytes are kept, discards
    /// the data of the oldest status, but never that of the newest one.
    pub(super) fn push(&mut self, sent: SentStatus, limit: usize) {
        self.bytes += sent.bytes();
        self.sent.push_back(sent);
        while self.bytes > limit && self.forgotten + 1 < self.sent.len() {
            let sent = &mut self.sent[self.forgotten];
            self.bytes -= sent.bytes();
            match sent {
                SentStatus::Response(response) => response.forget(),
                SentStatus::Other(pdu) if data_of(pdu) > 0 => *sent = SentStatus::Forgotten,
                SentStatus::Other(_) | SentStatus::Forgotten => {}
            }
            self.forgotten += 1;
        }
    }

    /// Removes the statuses before `stat_sn`, which the initiator has acknowledged.
    pub(super) fn acknowledge(&mut self, stat_sn: Serial) {
        while self.first.is_before(stat_sn)
            && let Some(sent) = self.sent.pop_front()
        {
            self.bytes -= sent.bytes();
            self.forgotten = self.forgotten.saturating_sub(1);
            self.first = self.first.next();
        }
    }

    /// Returns `run` statuses from StatSN `begin` on, or all later ones if `run` is 0. Returns
    /// `None` if one of them was not sent or is already acknowledged.
    pub(super) fn run(
        &self,
        begin: Serial,
        run: u32,
    ) -> Option<impl Iterator<Item = (Serial, &SentStatus)>> {
        let skipped = begin.distance_from(self.first) as usize;
        let count = if run == 0 { self.sent.len().checked_sub(skipped)? } else { run as usize };
        let end = skipped.checked_add(count).filter(|end| *end <= self.sent.len())?;
        let numbers = (0..).map(move |n| begin.add(n));
        Some(numbers.zip(self.sent.range(skipped..end)))
    }

    pub(super) fn first(&self) -> Serial {
        self.first
    }

    /// Returns the newest retained response to the command `itt`, with its StatSN.
    pub(super) fn response(&mut self, itt: Itt) -> Option<(Serial, &mut CommandResponse)> {
        self.find(|response| response.itt == itt)
    }

    /// Records that the initiator has all data before `data_sn` of the response with this tag.
    /// Returns false if there is no such response or PDU.
    pub(super) fn acknowledge_data(&mut self, ttt: Ttt, data_sn: u32) -> bool {
        let Some((_, response)) = self.find(|response| response.ttt == ttt) else { return false };
        let before = response.kept();
        let is_known = response.acknowledge(data_sn);
        let freed = before - response.kept();
        self.bytes -= freed;
        is_known
    }

    fn find(
        &mut self,
        is_meant: impl Fn(&CommandResponse) -> bool,
    ) -> Option<(Serial, &mut CommandResponse)> {
        let first = self.first;
        self.sent.iter_mut().enumerate().rev().find_map(|(at, sent)| match sent {
            SentStatus::Response(response) if is_meant(response) => {
                Some((first.add(at as u32), response))
            }
            _ => None,
        })
    }

    /// Returns the retained responses to SCSI commands, and drops all other PDUs.
    pub(super) fn into_responses(self) -> impl Iterator<Item = CommandResponse> {
        self.sent.into_iter().filter_map(|sent| match sent {
            SentStatus::Response(response) => Some(response),
            SentStatus::Other(_) | SentStatus::Forgotten => None,
        })
    }
}

impl SentStatus {
    fn bytes(&self) -> usize {
        match self {
            Self::Response(response) => response.kept(),
            Self::Other(pdu) => data_of(pdu),
            Self::Forgotten => 0,
        }
    }
}

/// Returns the number of bytes of data in a PDU other than the response to a command. The header
/// that a Reject returns does not count.
fn data_of(pdu: &Pdu) -> usize {
    match pdu {
        Pdu::NopIn(pdu) => pdu.data.len(),
        Pdu::TextResponse(pdu) => pdu.text.len(),
        _ => 0,
    }
}
