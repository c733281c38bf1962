//! Admission of reads to the link to the far volume.
//!
//! A random read is sent at once. Sequential reads and read-ahead wait while the window is full: more of them
//! would only lengthen the queue of the link, and random reads of other hosts would wait in that queue, too.
//! Sequential reads of hosts go before read-ahead.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use crate::lower::window::{Estimate, Window, WindowTicket};

/// The purpose of a read of the far volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ReadPurpose {
    /// A read of a host that does not continue a stream.
    Random,
    /// A read of a host that continues a sequential stream.
    Stream,
    /// A read-ahead: the cache fetches data that no host has requested yet.
    Ahead,
}

impl ReadPurpose {
    pub fn is_of_host(self) -> bool {
        self != Self::Ahead
    }
}

/// Limits the reads of one far volume: the reads in flight, and those that wait.
pub(crate) struct Flow(Mutex<Reads>);

struct Reads {
    window: Window,
    /// The number of sequential reads and read-ahead in flight. If it is 0, one is admitted although random
    /// reads fill the window, so that random reads cannot starve a stream.
    paced: usize,
    stream: VecDeque<WaitingFarRead>,
    ahead: VecDeque<WaitingFarRead>,
    next_number: u64,
}

struct WaitingFarRead {
    number: u64,
    fetch: u32,
    bytes: u64,
    turn: Arc<Notify>,
}

/// Bytes of the reads that wait for room in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Backlog {
    /// Bytes of the hosts' sequential reads that wait.
    pub stream: u64,
    /// Bytes of the read-ahead that waits.
    pub ahead: u64,
}

/// A read of the far volume that is in flight. Dropping this before [`FarReadPassage::answered`] counts it as failed.
#[must_use]
pub(crate) struct FarReadPassage<'a> {
    flow: &'a Flow,
    ticket: Option<WindowTicket>,
    is_paced: bool,
}

/// The place of a waiting read in its queue. Dropping it removes the read from the queue.
struct FarReadQueuePlace<'a> {
    flow: &'a Flow,
    number: u64,
    turn: Arc<Notify>,
    is_over: bool,
}

impl Flow {
    pub fn new(now: Instant) -> Self {
        Self(Mutex::new(Reads {
            window: Window::new(now),
            paced: 0,
            stream: VecDeque::new(),
            ahead: VecDeque::new(),
            next_number: 0,
        }))
    }

    /// Waits until a read of `bytes` for the fetch with the number `fetch` may be sent.
    pub async fn admit(&self, purpose: ReadPurpose, fetch: u32, bytes: u64) -> FarReadPassage<'_> {
        let mut place = match self.begin(purpose, fetch, bytes) {
            Ok(passage) => return passage,
            Err(place) => place,
        };
        loop {
            // Wake at intervals: a late read stops counting as in flight, and no answer announces that.
            let _ = timeout(LOOK, place.turn.notified()).await;
            if let Some(passage) = self.send_if_first(place.number) {
                place.is_over = true;
                return passage;
            }
        }
    }

    /// Moves a waiting read-ahead to the end of the queue of the hosts' reads, because a host has asked for
    /// its data.
    pub fn hasten(&self, fetch: u32) {
        let mut reads = self.0.lock();
        let Some(at) = reads.ahead.iter().position(|waiting| waiting.fetch == fetch) else {
            return;
        };
        if let Some(waiting) = reads.ahead.remove(at) {
            reads.stream.push_back(waiting);
        }
    }

    /// Returns the maximum size in bytes of one sequential read or read-ahead of the far volume.
    pub fn longest_request(&self) -> u64 {
        self.0.lock().window.longest_request(Instant::now())
    }

    /// Returns the maximum number of bytes that the cache should read ahead at once.
    pub fn longest_burst(&self) -> u64 {
        self.0.lock().window.longest_burst(Instant::now())
    }

    pub fn estimate(&self) -> Estimate {
        self.0.lock().window.estimate()
    }

    pub fn backlog(&self) -> Backlog {
        let reads = self.0.lock();
        let sum =
            |queue: &VecDeque<WaitingFarRead>| queue.iter().map(|waiting| waiting.bytes).sum();
        Backlog { stream: sum(&reads.stream), ahead: sum(&reads.ahead) }
    }

    fn begin(
        &self,
        purpose: ReadPurpose,
        fetch: u32,
        bytes: u64,
    ) -> Result<FarReadPassage<'_>, FarReadQueuePlace<'_>> {
        let mut reads = self.0.lock();
        let is_paced = purpose != ReadPurpose::Random;
        if !is_paced {
            reads.window.note_short(Instant::now());
        }
        let is_next =
            reads.stream.is_empty() && (purpose == ReadPurpose::Stream || reads.ahead.is_empty());
        if !is_paced || (is_next && reads.has_room()) {
            return Ok(self.sent(&mut reads, bytes, is_paced));
        }
        let number = reads.next_number;
        reads.next_number += 1;
        let turn = Arc::new(Notify::new());
        let waiting = WaitingFarRead { number, fetch, bytes, turn: Arc::clone(&turn) };
        let queue =
            if purpose == ReadPurpose::Stream { &mut reads.stream } else { &mut reads.ahead };
        queue.push_back(waiting);
        Err(FarReadQueuePlace { flow: self, number, turn, is_over: false })
    }

    fn send_if_first(&self, number: u64) -> Option<FarReadPassage<'_>> {
        let mut reads = self.0.lock();
        let is_first = reads.first()?.number == number;
        if !is_first || !reads.has_room() {
            return None;
        }
        let first = reads.stream.pop_front().or_else(|| reads.ahead.pop_front())?;
        let passage = self.sent(&mut reads, first.bytes, true);
        reads.wake_first();
        Some(passage)
    }

    fn sent(&self, reads: &mut Reads, bytes: u64, is_paced: bool) -> FarReadPassage<'_> {
        reads.paced += usize::from(is_paced);
        let ticket = reads.window.sent(bytes, Instant::now());
        FarReadPassage { flow: self, ticket: Some(ticket), is_paced }
    }
}

impl Reads {
    fn has_room(&mut self) -> bool {
        let is_held_up = self.paced == 0 && !self.window.is_draining();
        self.window.has_room(Instant::now()) || is_held_up
    }

    fn first(&self) -> Option<&WaitingFarRead> {
        self.stream.front().or_else(|| self.ahead.front())
    }

    fn wake_first(&mut self) {
        if self.first().is_some()
            && self.has_room()
            && let Some(first) = self.first()
        {
            first.turn.notify_one();
        }
    }
}

impl FarReadPassage<'_> {
    /// Records that the read was answered. The window uses the time that the read took.
    pub fn answered(mut self) {
        self.end(true);
    }

    fn end(&mut self, is_answered: bool) {
        let Some(ticket) = self.ticket.take() else { return };
        let mut reads = self.flow.0.lock();
        reads.paced -= usize::from(self.is_paced);
        if is_answered {
            reads.window.answered(ticket, Instant::now());
        } else {
            reads.window.failed(ticket);
        }
        reads.wake_first();
    }
}

impl Drop for FarReadPassage<'_> {
    fn drop(&mut self) {
        self.end(false);
    }
}

impl Drop for FarReadQueuePlace<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut reads = self.flow.0.lock();
        reads.stream.retain(|waiting| waiting.number != self.number);
        reads.ahead.retain(|waiting| waiting.number != self.number);
        // The dropped read may have been woken just now. Wake the next read in its stead.
        reads.wake_first();
    }
}

/// How often a waiting read looks whether late reads have left room in the window.
const LOOK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    const PIECE: u64 = 64 << 10;

    /// Fills the window of the flow with read-ahead.
    fn full(flow: &Flow) -> Vec<FarReadPassage<'_>> {
        let mut passages = Vec::new();
        while let Ok(passage) = flow.begin(ReadPurpose::Ahead, 0, PIECE) {
            passages.push(passage);
        }
        passages
    }

    #[tokio::test(start_paused = true)]
    async fn a_random_read_is_sent_at_once() {
        let flow = Flow::new(Instant::now());
        let _passages = full(&flow);
        assert!(flow.admit(ReadPurpose::Random, 1, 4096).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn random_reads_do_not_delay_a_sequential_stream() {
        let flow = Flow::new(Instant::now());
        let random: Vec<_> =
            (0..1000).map(|fetch| flow.begin(ReadPurpose::Random, fetch, PIECE).ok()).collect();
        let stream = flow.admit(ReadPurpose::Stream, 1000, PIECE).now_or_never();
        assert!(stream.is_some() && random.iter().all(Option::is_some));
        let second = flow.admit(ReadPurpose::Stream, 1001, PIECE).now_or_never();
        assert!(second.is_none(), "one at a time");
    }

    #[tokio::test(start_paused = true)]
    async fn reads_that_a_host_waits_for_are_sent_before_read_ahead() {
        let flow = Flow::new(Instant::now());
        let mut passages = full(&flow);
        let mut ahead = pin!(flow.admit(ReadPurpose::Ahead, 1, PIECE));
        let mut hastened = pin!(flow.admit(ReadPurpose::Ahead, 2, PIECE));
        let mut stream = pin!(flow.admit(ReadPurpose::Stream, 3, PIECE));
        for waiting in [&mut ahead, &mut hastened] {
            assert!(waiting.as_mut().now_or_never().is_none());
        }
        assert!(stream.as_mut().now_or_never().is_none());
        flow.hasten(2);
        assert_eq!(flow.backlog(), Backlog { stream: 2 * PIECE, ahead: PIECE });
        passages.pop();
        assert!(ahead.as_mut().now_or_never().is_none());
        assert!(hastened.as_mut().now_or_never().is_none());
        let stream = stream.as_mut().now_or_never();
        assert!(stream.is_some());
        passages.pop();
        assert!(ahead.as_mut().now_or_never().is_none());
        assert!(hastened.as_mut().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_read_leaves_its_slot_in_flight_to_the_next_read() {
        let flow = Flow::new(Instant::now());
        let mut passages = full(&flow);
        let mut first = Box::pin(flow.admit(ReadPurpose::Stream, 1, PIECE));
        let mut second = pin!(flow.admit(ReadPurpose::Stream, 2, PIECE));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        passages.pop();
        drop(first);
        assert!(second.as_mut().now_or_never().is_some());
        assert_eq!(flow.backlog(), Backlog::default());
    }

    #[tokio::test(start_paused = true)]
    async fn unanswered_reads_stop_blocking_others_after_a_while() {
        let flow = Flow::new(Instant::now());
        let _lost = full(&flow);
        let waiting = timeout(Duration::from_secs(120), flow.admit(ReadPurpose::Ahead, 1, PIECE));
        assert!(waiting.await.is_ok());
    }
}
