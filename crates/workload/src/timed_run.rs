//! Runs many workers for a given time, and collects their results. A run has a warm-up and a measured part.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use crate::Error;

/// Time between progress reports. A worker that pauses also checks at this interval whether another worker has failed.
const LOOK: Duration = Duration::from_millis(250);

/// The schedule of a run, which all workers share.
pub(crate) struct RunWatch {
    begun: Instant,
    measured_from: Instant,
    until: Instant,
    /// True if a worker has failed, which makes the other workers end early.
    has_failed: AtomicBool,
}

impl RunWatch {
    /// Begins a run now: a warm-up of this many seconds, then this many seconds that are measured.
    pub(crate) fn start(warm_up: u32, seconds: u32) -> Self {
        let [warm_up, seconds] = [warm_up, seconds].map(|s| Duration::from_secs(s.into()));
        let begun = Instant::now();
        let measured_from = begun + warm_up;
        Self { begun, measured_from, until: measured_from + seconds, has_failed: false.into() }
    }

    /// Returns true if workers must not start new work.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.until || self.has_failed.load(Ordering::Relaxed)
    }

    /// Returns true if an operation that ends at `now` belongs to the measured time.
    pub(crate) fn is_measured(&self, now: Instant) -> bool {
        (self.measured_from..=self.until).contains(&now)
    }

    /// Lets the calling worker sleep for `seconds`, but not beyond the end of the run.
    pub(crate) fn pause(&self, seconds: f64) {
        let longest = self.until.saturating_duration_since(self.begun);
        let pause = Duration::try_from_secs_f64(seconds).unwrap_or(longest).min(longest);
        let until = (Instant::now() + pause).min(self.until);
        while !self.is_over() && Instant::now() < until {
            thread::sleep(LOOK.min(until.saturating_duration_since(Instant::now())));
        }
    }

    /// Runs each worker in its own thread, and returns when all have ended.
    ///
    /// # Errors
    /// The error of a worker; if several fail, the error of the first one in the list. When a
    /// worker fails, the others end early.
    pub(crate) fn run<T: Send>(
        &self,
        workers: Vec<impl FnOnce(&Self) -> Result<T, Error> + Send>,
        progress: &dyn Fn(f64),
    ) -> Result<Vec<T>, Error> {
        thread::scope(|scope| {
            // This channel carries no messages. It is closed when the last worker has dropped its
            // sender.
            let (running, all_ended) = mpsc::channel::<()>();
            let start = |worker| {
                let running = running.clone();
                scope.spawn(move || self.one(worker, running))
            };
            let started: Vec<_> = workers.into_iter().map(start).collect();
            drop(running);
            let whole = self.until - self.begun;
            while let Err(mpsc::RecvTimeoutError::Timeout) = all_ended.recv_timeout(LOOK) {
                progress(self.begun.elapsed().div_duration_f64(whole).min(1.0));
            }
            let found = started.into_iter().map(|one| one.join().expect("it does not panic"));
            found.collect()
        })
    }

    /// Runs a worker. `running` is dropped when the worker has ended.
    fn one<T>(
        &self,
        worker: impl FnOnce(&Self) -> Result<T, Error>,
        running: mpsc::Sender<()>,
    ) -> Result<T, Error> {
        let found = worker(self);
        if found.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        drop(running);
        found
    }
}

/// Returns the smallest of the values such that at least the share `share` of all values are not larger (a quantile),
/// or `None` if there are no values. The values must be sorted.
pub(crate) fn within(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_worker_ends_the_others() {
        let watch = RunWatch::start(0, 1000);
        let begun = Instant::now();
        let worker = |number: u32| {
            move |watch: &RunWatch| {
                if number == 3 {
                    return Err(Error::Settings("no".to_owned()));
                }
                watch.pause(f64::INFINITY);
                Ok(number)
            }
        };
        let error = watch.run((0..5).map(worker).collect(), &|_| ()).unwrap_err();
        assert_eq!(error.to_string(), "no");
        assert!(begun.elapsed() < Duration::from_secs(100));
    }

    #[test]
    fn percentiles_use_the_nearest_rank() {
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!(
            [0.0, 0.5, 0.9, 0.91, 1.0].map(|s| within(&ten, s)),
            [1.0, 5.0, 9.0, 10.0, 10.0].map(Some)
        );
        assert_eq!(within(&[], 0.5), None);
    }
}
