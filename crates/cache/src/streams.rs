//! Detects sequential readers, and decides how far to read ahead of each.
//!
//! The read-ahead window has to cover the time of a fetch. A reader that never waits gets twice as much as it
//! reads in that time; its speed is measured again with each window that it reads. A reader that has to wait
//! would read faster with more data: its window doubles, up to four times what it reads in the time of a
//! fetch. Then the link is full, and a larger window would only make the queue of the link longer.

use std::{ops::Range, time::Duration};

use tokio::time::Instant;

use crate::slots::replacement::Ahead;

/// The sequential readers that have read recently.
#[derive(Default)]
pub(crate) struct Streams {
    list: Vec<SequentialStream>,
    clock: u64,
    fetch_time: FetchTime,
    /// The maximum number of slots that are read ahead at once. Before the first fetch it is 0,
    /// which stands for [`MOST_PIECE`].
    most_piece: u64,
    trust: Trust,
}

struct SequentialStream {
    /// The first sector of the reader's first read.
    first: u64,
    /// The sector after the reader's last read.
    next: u64,
    /// The reads beyond `next` that arrived before the reads between: a reader with several requests in flight may send
    /// them on several connections. Sorted, at most [`EARLY_READS`].
    early: Vec<Range<u64>>,
    /// Number of reads of this stream that began at the end of the previous read.
    reads: u32,
    /// The number of slots ahead of the reader that should be in memory or being fetched.
    window: u64,
    /// Number of the first slot of this stream that was not read ahead yet.
    ahead: u64,
    /// The reader's position when its speed was last measured, and the time. `None` until its second read:
    /// most single reads are random, and reading the clock takes a noticeable part of their time.
    marked: Option<(u64, Instant)>,
    /// True if one of the reader's reads had to wait for data since its speed was last measured.
    waited: bool,
    /// The value of `Streams::clock` at the last read.
    used: u64,
}

/// The time of a fetch that does not wait behind others: the shortest one of the last ten to twenty seconds.
#[derive(Default)]
struct FetchTime {
    now: Option<(Instant, Duration)>,
    before: Option<Duration>,
}

/// How much of the read-ahead was used by readers, and how much was not.
#[derive(Default)]
struct Trust {
    seen: Ahead,
    used: u64,
    wasted: u64,
}

/// The result of [`Streams::note`], which looks for sequential reads.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Noted {
    /// True if the read continues a known sequential stream.
    pub continues: bool,
    /// The slots that the cache should read ahead after this read; `None` if it should not read ahead.
    pub ahead: Option<Range<u64>>,
}

impl Streams {
    /// Records a read of `sectors`. `waits` is true if the data is not in memory. `most` is the longest
    /// read-ahead window in slots; 0 suppresses read-ahead. `ahead` returns how much of earlier read-ahead
    /// was used.
    pub fn note(
        &mut self,
        sectors: Range<u64>,
        waits: bool,
        most: u64,
        ahead: impl FnOnce() -> Ahead,
    ) -> Noted {
        self.clock += 1;
        let Some(at) = self.find(sectors.start) else {
            self.begin(sectors);
            return Noted::default();
        };
        Noted { continues: true, ahead: self.read_on(at, sectors, waits, most, ahead) }
    }

    /// Records a read that continues the stream at `at`. Returns the slots to read ahead.
    fn read_on(
        &mut self,
        at: usize,
        sectors: Range<u64>,
        waits: bool,
        most: u64,
        ahead: impl FnOnce() -> Ahead,
    ) -> Option<Range<u64>> {
        let used = self.clock;
        self.list[at].take(sectors);
        let at = self.join(at);
        let stream = &mut self.list[at];
        stream.used = used;
        stream.waited |= waits;
        let position = stream.next.div_ceil(8);
        stream.ahead = stream.ahead.max(position);
        if most == 0 {
            return None;
        }
        if stream.reads < FAITHFUL_READS && stream.reads < self.trust.reads(ahead()) {
            return None;
        }
        let window = stream.window.min(most);
        let most_piece = if self.most_piece == 0 { MOST_PIECE } else { self.most_piece };
        let piece = (window / 2).clamp(1, most_piece.min(MOST_PIECE));
        let end = position + window;
        // Read ahead only when the whole next piece fits into the window of this stream.
        if end < stream.ahead + piece {
            return None;
        }
        stream.adapt(position, self.fetch_time.shortest(), most.max(LEAST_WINDOW));
        let range = stream.ahead..end;
        stream.ahead = end;
        Some(range)
    }

    /// Returns the stream that ends where a read begins, or else one that ends shortly before.
    fn find(&self, start: u64) -> Option<usize> {
        let mut shortly_before = None;
        for (at, stream) in self.list.iter().enumerate() {
            let left_out = start.wrapping_sub(stream.next);
            if left_out == 0 {
                return Some(at);
            }
            // A stream of only one read is not known to be sequential, so a read near it does not continue it.
            if left_out <= EARLY_SECTORS && stream.reads > 0 && shortly_before.is_none() {
                shortly_before = Some(at);
            }
        }
        shortly_before
    }

    /// Joins a stream with another one that began at its present end. Returns the index of the joined stream.
    fn join(&mut self, at: usize) -> usize {
        let next = self.list[at].next;
        let Some(other) = self.list.iter().position(|stream| stream.first == next) else {
            return at;
        };
        let other = self.list.remove(other);
        let at = self.list.iter().position(|stream| stream.next == next).unwrap_or(0);
        let stream = &mut self.list[at];
        stream.reads = stream.reads.saturating_add(other.reads);
        stream.go_on(other.next);
        other.early.into_iter().for_each(|early| stream.take(early));
        at
    }

    fn begin(&mut self, sectors: Range<u64>) {
        let Range { start, end } = sectors;
        let new = SequentialStream {
            first: start,
            next: end,
            early: Vec::new(),
            reads: 0,
            window: FIRST_WINDOW,
            ahead: 0,
            marked: None,
            waited: false,
            used: self.clock,
        };
        if self.list.len() < STREAMS {
            self.list.push(new);
        } else if let Some(oldest) = self.list.iter_mut().min_by_key(|stream| stream.used) {
            *oldest = new;
        }
    }

    /// Records the time of a fetch, and the most slots that should be read ahead at once from now on.
    pub fn fetched_in(&mut self, time: Duration, most_piece: u64) {
        self.fetch_time.note(time);
        self.most_piece = most_piece.max(1);
    }
}

impl FetchTime {
    fn note(&mut self, time: Duration) {
        let now = Instant::now();
        match &mut self.now {
            Some((since, shortest)) if now - *since < FORGOTTEN => *shortest = time.min(*shortest),
            other => self.before = other.replace((now, time)).map(|(_, shortest)| shortest),
        }
    }

    /// Returns the shortest time of the recent fetches; zero before the first fetch.
    fn shortest(&self) -> Duration {
        let now = self.now.map(|(_, time)| time);
        now.into_iter().chain(self.before).min().unwrap_or_default()
    }
}

impl SequentialStream {
    fn take(&mut self, sectors: Range<u64>) {
        if sectors.start == self.next {
            self.go_on(sectors.end);
        } else {
            let at = self.early.partition_point(|early| early.start < sectors.start);
            self.early.insert(at, sectors);
            if self.early.len() > EARLY_READS {
                // Too many reads are early: treat the sectors before the first of them as skipped by the
                // reader.
                self.next = self.early[0].start;
            }
        }
        while let Some(first) = self.early.first()
            && first.start <= self.next
        {
            let end = first.end;
            self.early.remove(0);
            if end > self.next {
                self.go_on(end);
            }
        }
    }

    fn go_on(&mut self, end: u64) {
        self.next = end;
        self.reads = self.reads.saturating_add(1);
    }

    /// Sets the window according to the reader's speed over the last window.
    fn adapt(&mut self, position: u64, fetch_time: Duration, most: u64) {
        let (from, since) = *self.marked.get_or_insert_with(|| (position, Instant::now()));
        let slots = position - from.min(position);
        if slots < self.window {
            return;
        }
        let now = Instant::now();
        self.marked = Some((position, now));
        let elapsed = (now - since).as_secs_f64();
        let fetch_time = fetch_time.as_secs_f64();
        // If no measurable time has passed, treat the speed of the reader as unlimited.
        let fetched_meanwhile =
            if elapsed > 0.0 { slots as f64 * fetch_time / elapsed } else { f64::INFINITY };
        let times = if std::mem::take(&mut self.waited) { 4.0 } else { 2.0 };
        let wanted = (times * fetched_meanwhile).ceil() as u64;
        // A single measurement may be wrong, so the window changes by at most a factor of two.
        let least = (self.window / 2).max(LEAST_WINDOW);
        self.window = wanted.clamp(least, (self.window * 2).max(least)).min(most);
    }
}

impl Trust {
    /// Returns the number of sequential reads after which the cache should begin to read ahead.
    fn reads(&mut self, ahead: Ahead) -> u32 {
        self.used += ahead.used - self.seen.used;
        self.wasted += ahead.wasted - self.seen.wasted;
        self.seen = ahead;
        while self.used + self.wasted > REMEMBERED {
            self.used /= 2;
            self.wasted /= 2;
        }
        if self.wasted > self.used && self.wasted > LEAST_WINDOW { FAITHFUL_READS } else { 1 }
    }
}

/// The number of sequential readers that are tracked: one for each session of a busy gateway, and some spare
/// ones.
const STREAMS: usize = 32;
/// The first window in slots: 512 KiB, so that a file of 1 MiB arrives in few round trips.
const FIRST_WINDOW: u64 = 128;
/// The smallest window in slots: 128 KiB.
const LEAST_WINDOW: u64 = 32;
/// A read that begins at most this many sectors beyond the end of a stream belongs to it: 32 requests of 64
/// KiB.
const EARLY_SECTORS: u64 = 4096;
/// The maximum number of reads of a stream that arrive too early: as many requests as a host has in
/// flight.
const EARLY_READS: usize = 32;
/// The maximum number of slots that are read ahead at once, which is the largest fetch.
const MOST_PIECE: u64 = 64;
/// A shortest fetch time that is older than this no longer counts: the path may have become longer.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// A stream of this many reads is read ahead even if the read-ahead of other streams was not used.
const FAITHFUL_READS: u32 = 8;
/// The number of slots over which used and unused read-ahead are compared.
const REMEMBERED: u64 = 4096;

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const FETCH: Duration = Duration::from_millis(8);

    #[tokio::test(start_paused = true)]
    async fn one_read_ahead_request_uses_the_full_allowed_size() {
        for (most_piece, expected) in [(MOST_PIECE, LEAST_WINDOW / 2), (6, 6)] {
            let mut streams = Streams::default();
            streams.fetched_in(FETCH, most_piece);
            let mut longest = 0;
            for slot in 0..1000 {
                advance(Duration::from_millis(1)).await;
                let sectors = slot * 8..slot * 8 + 8;
                let ahead = streams.note(sectors, false, 4096, Ahead::default).ahead;
                // By slot 500 the read-ahead window has shrunk to its smallest size.
                if let Some(range) = ahead.filter(|_| slot >= 500) {
                    longest = longest.max(range.end - range.start);
                }
            }
            assert_eq!(longest, expected, "pieces of at most {most_piece}");
        }
    }

    /// Simulates a reader of single slots. `each` gets the window and returns the time of a slot and whether
    /// the reader waits for it. Returns the window at the end.
    async fn read(
        streams: &mut Streams,
        slots: Range<u64>,
        each: impl Fn(u64) -> (Duration, bool),
    ) -> u64 {
        let mut ahead = 0;
        let mut window = 0;
        for slot in slots {
            let (time, waits) = each(window);
            let sectors = slot * 8..slot * 8 + 8;
            if let Some(range) = streams.note(sectors, waits, 4096, Ahead::default).ahead {
                assert!(ahead == 0 || range.start == ahead, "nothing twice, nothing left out");
                ahead = range.end;
                window = range.end - slot - 1;
            }
            advance(time).await;
        }
        window
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_grows_until_the_link_is_full_and_no_further() {
        let mut streams = Streams::default();
        streams.fetched_in(FETCH, MOST_PIECE);
        // A link of 1 Gbit/s transmits a slot in 33 us, and 245 slots in the time of a fetch.
        let link = Duration::from_micros(33);
        let each = |window: u64| ((FETCH / window.max(1) as u32).max(link), true);
        let window = read(&mut streams, 0..20_000, each).await;
        assert!((800..=1000).contains(&window), "{window} slots");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_has_a_small_window() {
        let mut streams = Streams::default();
        streams.fetched_in(FETCH, MOST_PIECE);
        let slow = |_| (Duration::from_millis(1), false);
        let window = read(&mut streams, 0..4000, slow).await;
        assert!(window <= LEAST_WINDOW, "{window} slots");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_slows_down_gets_less() {
        let mut streams = Streams::default();
        streams.fetched_in(FETCH, MOST_PIECE);
        let speed = |micros| move |_| (Duration::from_micros(micros), false);
        let fast = read(&mut streams, 0..20_000, speed(33)).await;
        let slow = read(&mut streams, 20_000..40_000, speed(330)).await;
        assert!(fast > 400 && slow < 80, "{fast}, then {slow} slots");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_overtake_each_other_are_one_stream() {
        let mut streams = Streams::default();
        let mut ahead = 0;
        // Send eight requests of 16 slots in each group, in an order in which later ones arrive first.
        for group in 0..100 {
            for within in [3, 0, 1, 2, 7, 6, 5, 4] {
                let first = (group * 8 + within) * 128;
                let noted = streams.note(first..first + 128, false, 4096, Ahead::default);
                if let Some(range) = noted.ahead {
                    assert!(ahead == 0 || range.start == ahead, "nothing twice, nothing left out");
                    ahead = range.end;
                }
            }
        }
        assert!(ahead > 100 * 128, "{ahead} slots");
        assert!(streams.list.iter().all(|stream| stream.early.is_empty()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_skips_a_block_is_still_a_stream() {
        let mut streams = Streams::default();
        let mut note =
            |slot: u64| streams.note(slot * 8..slot * 8 + 8, true, 256, Ahead::default).ahead;
        assert!((0..8).any(|slot| note(slot).is_some()));
        let first = (9..1000).find(|slot| note(*slot).is_some_and(|range| range.end > slot + 64));
        assert!(first.is_some_and(|slot| slot < 100), "{first:?}");
        assert!(streams.list.iter().all(|stream| stream.early.len() <= EARLY_READS));
    }

    #[tokio::test(start_paused = true)]
    async fn random_reads_cause_no_read_ahead() {
        let mut streams = Streams::default();
        let mut note = |at: u64| streams.note(at * 8..at * 8 + 8, true, 256, Ahead::default);
        assert!((0..1000).all(|i| note(i * 7919) == Noted::default()));
    }

    #[tokio::test(start_paused = true)]
    async fn after_wasted_read_ahead_only_long_streams_are_read_ahead() {
        let mut streams = Streams::default();
        let in_vain = || Ahead { unused: 0, used: 10, wasted: 1000 };
        let mut note = |slot: u64| streams.note(slot * 8..slot * 8 + 8, true, 256, in_vain).ahead;
        let reads: Vec<_> = (0..12).filter(|slot| note(*slot).is_some()).collect();
        assert_eq!(reads.first(), Some(&8));
    }
}
