//! Busy polling: a session asks the kernel for input again and again instead of sleeping.
//!
//! Falling asleep and being woken takes longer than a short command, so polling shortens the latency of a host that has
//! few commands in flight. Polling occupies a processor, and therefore has three limits:
//!
//! - A session polls only for a time after its last input.
//! - At most as many sessions poll as the runtime has threads: two sessions that take turns on one thread would delay
//!   each other.
//! - A session pauses if another thread of the machine needs the processor.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    sync::Arc,
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use crate::counted_limit::{CountedLimit, Permit};

pub(crate) struct BusyPolling {
    limit: Duration,
    places: Arc<CountedLimit>,
    most: usize,
    permit: Option<Permit>,
    /// Number of checks of the sockets since the session began to poll.
    rounds: u32,
    stint: Option<Stint>,
    contention: Contention,
}

/// A stint: a time of polling without sleep on one thread, for which contention is measured.
struct Stint {
    thread: ThreadId,
    begun: Instant,
    /// The result of [`waited`] at the beginning of the stint.
    waited: Duration,
}

/// Decides when a session has to pause polling, because other threads compete for its processor.
#[derive(Debug)]
struct Contention {
    resume_at: Option<Instant>,
    pause: Duration,
    /// Number of stints (measured times of polling) in a row without contention.
    undisturbed: u32,
}

/// A stint (a measured time of polling) begins after the sockets were checked this many times, which takes at least 128
/// us. Polling for a shorter time does not disturb other threads, so it is not measured.
const ROUNDS_BEFORE_STINT: u32 = 64;
/// The length of a stint, the time of polling after which contention is measured. The Linux scheduler gives each of two
/// busy threads turns of about three milliseconds, so a stint contains at most one turn of another thread.
const STINT: Duration = Duration::from_millis(2);
/// Divisor of the stint: a session stops polling for a while if its thread had to wait for the processor for more than
/// a quarter of a stint.
const WAITED_PART: u32 = 4;
/// Length of the first pause in polling after contention. Before the pause the session has polled for at most one turn
/// of the scheduler and one stint, which is 5 % of the pause.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Length of the longest pause in polling. Each pause is twice as long as the one before it. With the longest one,
/// polling takes 0.3 % of the time.
const LONGEST_PAUSE: Duration = Duration::from_millis(1600);
/// After this many stints in a row without contention, the next pause has the length `FIRST_PAUSE` again.
const UNDISTURBED_STINTS: u32 = 10;

impl BusyPolling {
    /// Polls for `limit` after the last input of a session, or not at all if `limit` is zero. At most `most`
    /// of the sessions that share `places` poll at the same time.
    pub(crate) fn new(limit: Duration, places: &Arc<CountedLimit>, most: usize) -> Self {
        Self {
            limit,
            places: Arc::clone(places),
            most,
            permit: None,
            rounds: 0,
            stint: None,
            contention: Contention::default(),
        }
    }

    /// Returns for how long the session polls after its last input; zero if it does not poll.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns true if this session may poll its sockets for another round instead of sleeping.
    pub(crate) fn goes_on(&mut self, now: Instant) -> bool {
        !self.contention.is_paused(now) && self.has_place() && !self.is_in_the_way(now)
    }

    /// Ends polling until the next input arrives. The thread may sleep meanwhile.
    pub(crate) fn stop(&mut self) {
        self.permit = None;
        self.rounds = 0;
        self.stint = None;
    }

    fn has_place(&mut self) -> bool {
        if self.permit.is_none() {
            self.permit = Permit::take(&self.places, self.most);
        }
        self.permit.is_some()
    }

    /// Returns true if the thread had to wait for the processor so long that the session must stop polling, because
    /// other threads need the processor.
    fn is_in_the_way(&mut self, now: Instant) -> bool {
        self.rounds = self.rounds.saturating_add(1);
        let is_under_way = |stint: &Stint| now.duration_since(stint.begun) < STINT;
        if self.rounds < ROUNDS_BEFORE_STINT || self.stint.as_ref().is_some_and(is_under_way) {
            return false;
        }
        // A kernel without CONFIG_SCHED_INFO does not report waiting times. The session then never pauses its polling.
        let Some(waited) = waited() else { return false };
        let thread = thread::current().id();
        let next = Stint { thread, begun: now, waited };
        match self.stint.replace(next) {
            Some(ended) if ended.thread == thread => {
                let waited = waited.saturating_sub(ended.waited);
                self.contention.note(now, now.duration_since(ended.begun), waited)
            }
            // The session has moved to another thread, whose waiting time counts from another start, so the two times
            // cannot be compared.
            _ => false,
        }
    }
}

impl Default for Contention {
    fn default() -> Self {
        Self { resume_at: None, pause: FIRST_PAUSE, undisturbed: 0 }
    }
}

impl Contention {
    fn is_paused(&self, now: Instant) -> bool {
        self.resume_at.is_some_and(|resume_at| now < resume_at)
    }

    /// Records a stint of this length, during which the thread waited for the processor for `waited`. Returns true if
    /// the session must pause polling now.
    fn note(&mut self, now: Instant, length: Duration, waited: Duration) -> bool {
        if waited <= length / WAITED_PART {
            self.undisturbed += 1;
            if self.undisturbed >= UNDISTURBED_STINTS {
                *self = Self::default();
            }
            return false;
        }
        self.undisturbed = 0;
        self.resume_at = Some(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }
}

/// Returns how long this thread was ready to run and waited for a processor since it was started: the second number of
/// `/proc/thread-self/schedstat`, in nanoseconds.
fn waited() -> Option<Duration> {
    thread_local! {
        static TIMES: Option<File> = File::open("/proc/thread-self/schedstat").ok();
    }
    TIMES.with(|times| {
        let mut line = [0; 64];
        let length = times.as_ref()?.read_at(&mut line, 0).ok()?;
        let line = std::str::from_utf8(&line[..length]).ok()?;
        line.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_session_pauses_while_other_threads_want_its_processor() {
        let mut contention = Contention::default();
        let mut now = Instant::now();
        let mut polled = Duration::ZERO;
        let begin = now;
        while now < begin + 20_000 * MS {
            if contention.is_paused(now) {
                now += MS;
                continue;
            }
            // During each 2 ms of polling, another thread runs on this processor for 3 ms.
            now += 5 * MS;
            polled += 2 * MS;
            contention.note(now, 5 * MS, 3 * MS);
        }
        assert!(polled <= 40 * MS, "{polled:?} of 20 s");
        assert_eq!(contention.pause, LONGEST_PAUSE);
    }

    #[test]
    fn a_session_polls_again_when_its_processor_is_free() {
        let mut contention = Contention::default();
        let mut now = Instant::now();
        for _ in 0..10 {
            assert!(contention.note(now, 5 * MS, 3 * MS));
            assert!(contention.is_paused(now));
            now += contention.pause;
        }
        for _ in 0..UNDISTURBED_STINTS {
            now += 2 * MS;
            assert!(!contention.is_paused(now));
            assert!(!contention.note(now, 2 * MS, MS / 10));
        }
        assert!(contention.note(now, 5 * MS, 3 * MS));
        assert!(!contention.is_paused(now + FIRST_PAUSE), "the pause is a short one again");
    }

    #[test]
    fn no_more_sessions_busy_poll_than_there_are_threads() {
        let places = Arc::default();
        let now = Instant::now();
        let mut sessions = [0; 3].map(|_| BusyPolling::new(MS, &places, 2));
        assert_eq!(sessions.each_mut().map(|session| session.goes_on(now)), [true, true, false]);
        sessions[0].stop();
        assert_eq!(sessions.each_mut().map(|session| session.goes_on(now)), [true, true, false]);
        sessions[1].stop();
        assert!(sessions[2].goes_on(now));
    }

    #[test]
    fn a_thread_that_shares_its_processor_waits_for_it() {
        // Pin both threads to one processor, so that they take turns.
        let confined = || {
            let mut one = rustix::thread::CpuSet::new();
            let all = rustix::thread::sched_getaffinity(None).expect("the set of this thread");
            let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu));
            one.set(first.expect("this thread runs on one"));
            rustix::thread::sched_setaffinity(None, &one).expect("a smaller set");
        };
        let is_done = std::sync::atomic::AtomicBool::new(false);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        thread::scope(|scope| {
            scope.spawn(|| {
                confined();
                while !is_done.load(relaxed) {
                    std::hint::spin_loop();
                }
            });
            let paused = scope.spawn(|| {
                confined();
                let mut polling = BusyPolling::new(MS, &Arc::default(), 1);
                let begin = Instant::now();
                while polling.goes_on(Instant::now()) {
                    assert!(begin.elapsed() < Duration::from_secs(10), "it polls on");
                    std::hint::spin_loop();
                }
            });
            let ended = paused.join();
            is_done.store(true, relaxed);
            ended.expect("it pauses");
        });
    }
}
