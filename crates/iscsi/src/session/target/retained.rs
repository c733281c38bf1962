//! Statuses of one connection that were sent and not acknowledged, from recovery level 1 on
//! (RFC 7143, 7.1.3, 11.16).

use std::collections::VecDeque;

use crate::{Itt, Pdu, Serial, Ttt};

use super::response::CommandResponse;

/// What carried a StatSN.
#[derive(Debug)]
pub(super) enum SentStatus {
    Response(CommandResponse),
    /// Anything else.
    Other(Box<Pdu>),
    /// Anything else, which carried data that was let go.
    Forgotten,
}

/// In order of StatSN, without gaps. Bounded by `Settings::unacknowledged_statuses`, the data among
/// them by `Settings::retained_bytes`.
#[derive(Debug)]
pub(super) struct Retained {
    /// The StatSN of the first.
    first: Serial,
    sent: VecDeque<SentStatus>,
    /// Bytes of data that are kept.
    bytes: usize,
    /// So many at the front keep no data any more.
    forgotten: usize,
}

impl Retained {
    /// Nothing was sent; this StatSN comes first.
    pub(super) fn new(first: Serial) -> Self {
        Self { first, sent: VecDeque::new(), bytes: 0, forgotten: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.sent.len()
    }

    /// Keeps what has just been sent with the next StatSN. Lets the oldest data go if more than
    /// `limit` bytes are kept; the newest stays.
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

    /// Those before `stat_sn` have arrived.
    pub(super) fn acknowledge(&mut self, stat_sn: Serial) {
        while self.first.is_before(stat_sn)
            && let Some(sent) = self.sent.pop_front()
        {
            self.bytes -= sent.bytes();
            self.forgotten = self.forgotten.saturating_sub(1);
            self.first = self.first.next();
        }
    }

    /// Those from `begin` on: `run` of them, or all with 0. `None` if one was not sent or is
    /// acknowledged.
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

    /// The StatSN of the first that is kept.
    pub(super) fn first(&self) -> Serial {
        self.first
    }

    /// The last answer to this command that is kept, with its StatSN.
    pub(super) fn response(&mut self, itt: Itt) -> Option<(Serial, &mut CommandResponse)> {
        self.find(|response| response.itt == itt)
    }

    /// Data of the answer with this tag has arrived, before the PDU with this number. False if
    /// there is no such answer or PDU.
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

    /// All answers to commands.
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

/// Bytes of data that a PDU carries, other than the answer to a command. No more than a header, as
/// of a Reject, counts for nothing.
fn data_of(pdu: &Pdu) -> usize {
    match pdu {
        Pdu::NopIn(pdu) => pdu.data.len(),
        Pdu::TextResponse(pdu) => pdu.text.len(),
        _ => 0,
    }
}
