//! The drive's clock as the initiator knows it, and the nonces of commands.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use object::Timestamp;
use osd::{RequestTag, security::Nonce};
use parking_lot::Mutex;

use crate::{Error, clock::now};

/// The drive's clock as the initiator estimates it. At first, the clock of this host.
pub(crate) struct DriveTime {
    /// A time of the drive in ms since 1970, and the moment at which it was valid.
    known: Mutex<(u64, Instant)>,
    /// Makes nonces unique in this process. The counter begins at a random number, so that two processes differ, too.
    counter: AtomicU64,
}

impl DriveTime {
    pub(crate) fn new() -> Result<Self, Error> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| Error::Io(error.to_string().into()))?;
        let counter = AtomicU64::new(u64::from_ne_bytes(random));
        Ok(Self { known: Mutex::new((host_ms(), now())), counter })
    }

    pub(crate) fn learn(&self, time: Timestamp) {
        *self.known.lock() = (time.as_ms(), now());
    }

    /// Assumes that the drive's clock is ahead of this host's by `ms`.
    pub(crate) fn assume_ahead(&self, ms: i64) {
        *self.known.lock() = (host_ms().saturating_add_signed(ms), now());
    }

    pub(crate) fn now(&self) -> Timestamp {
        let (ms, at) = *self.known.lock();
        let elapsed = now().saturating_duration_since(at).as_millis();
        Timestamp::from_ms(ms.saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX)))
    }

    pub(crate) fn nonce(&self) -> Nonce {
        let [_, _, random @ ..] = self.next().to_be_bytes();
        Nonce { time: self.now(), random }
    }

    pub(crate) fn tag(&self) -> RequestTag {
        let mut random = [0; 10];
        random[..8].copy_from_slice(&self.next().to_be_bytes());
        RequestTag { time: self.now(), random }
    }

    fn next(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }
}

fn host_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonces_differ_and_follow_the_clock_of_the_drive() {
        let time = DriveTime::new().unwrap();
        time.learn(Timestamp::from_ms(1_000_000));
        let nonces: std::collections::HashSet<_> = (0..1000).map(|_| time.nonce()).collect();
        assert_eq!(nonces.len(), 1000);
        let first = nonces.iter().min().unwrap();
        assert!((1_000_000..1_060_000).contains(&first.time.as_ms()));
        assert_ne!(time.tag(), time.tag());
    }
}
