//! The lower volume with an ear at it: how long it has said nothing though it was asked.
//!
//! A call that is lost on a broken link ends only when whoever is below gives up, which may take
//! longer than hosts wait. What the cache can refuse, it refuses sooner.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use volume::{Allocation, Data, Durability, Extent, Geometry, Io, Lba, Stack, Volume};

/// Passes every call on, and notes when an answer came last.
pub(crate) struct Heard {
    lower: Stack,
    silence: Mutex<Silence>,
}

struct Silence {
    /// Calls without an answer.
    asked: usize,
    /// Since the last answer, or since the first of those calls if that is later.
    since: Instant,
}

impl Heard {
    pub fn new(lower: Stack) -> Self {
        Self { lower, silence: Mutex::new(Silence { asked: 0, since: Instant::now() }) }
    }

    /// It was asked and has not answered anything for [`LONGEST_SILENCE`].
    pub fn is_silent(&self) -> bool {
        let silence = self.silence.lock();
        silence.asked > 0 && silence.since.elapsed() >= LONGEST_SILENCE
    }

    async fn ask<T>(&self, call: Io<'_, T>) -> Result<T, volume::Error> {
        let asked = Asked::begin(self);
        let answer = call.await;
        asked.heard.silence.lock().since = Instant::now();
        answer
    }
}

/// A call under way. One that is dropped was not answered.
struct Asked<'a> {
    heard: &'a Heard,
}

impl<'a> Asked<'a> {
    fn begin(heard: &'a Heard) -> Self {
        let mut silence = heard.silence.lock();
        if silence.asked == 0 {
            silence.since = Instant::now();
        }
        silence.asked += 1;
        Self { heard }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.heard.silence.lock().asked -= 1;
    }
}

impl Volume for Heard {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Box::pin(self.ask(self.lower.read(extent)))
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        Box::pin(self.ask(self.lower.write(lba, data, durability)))
    }

    fn flush(&self) -> Io<'_, ()> {
        Box::pin(self.ask(self.lower.flush()))
    }

    fn roll_back(&self) -> Io<'_, ()> {
        Box::pin(self.ask(self.lower.roll_back()))
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        Box::pin(self.ask(self.lower.discard(extent)))
    }

    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        Box::pin(self.ask(self.lower.allocation(extent)))
    }

    fn admit(&self, bytes: usize) -> Result<(), volume::Error> {
        self.lower.admit(bytes)
    }

    fn refresh(&self) {
        self.lower.refresh();
    }
}

/// Far longer than any link and disk that work need for one answer, far shorter than the half
/// minute after which hosts abort.
const LONGEST_SILENCE: Duration = Duration::from_millis(1500);
