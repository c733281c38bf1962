//! The pauses between attempts to connect.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use iscsi::session::initiator::MOST_PATIENCE;

use crate::Settings;

/// The pauses between attempts to connect. Each pause is twice as long as the one before, and is lengthened at random,
/// so that many initiators do not reconnect at the same moment.
pub(crate) struct Backoff {
    next: Duration,
    most: Duration,
}

/// The longest pause if the unit may be served at several portals. The gateway of a pair that takes over serves the
/// unit within a few seconds, so the initiator must try the other portal often.
const MOST_BESIDE_OTHERS: Duration = Duration::from_secs(1);

/// After a connection that lasted this long, the pauses start again with the first one.
pub(crate) const GOOD_CONNECTION: Duration = Duration::from_secs(5);

impl Backoff {
    pub(crate) fn new(settings: &Settings) -> Self {
        let most = if settings.has_choice() { MOST_BESIDE_OTHERS } else { Duration::MAX };
        Self { next: settings.back_off, most: settings.back_off_max.min(most) }
    }

    /// Makes all further pauses have the maximum length.
    pub(crate) fn longest(&mut self) {
        self.next = self.most;
    }

    /// Returns the next pause, or the pause `asked` that the target has requested if that is longer, up to
    /// [`MOST_PATIENCE`].
    pub(crate) fn next_after(&mut self, asked: Duration) -> Duration {
        self.next().max(asked.min(MOST_PATIENCE))
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.next.min(self.most);
        self.next = pause * 2;
        let random = RandomState::new().hash_one(0) % 256;
        pause + pause * random as u32 / 1024
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::new(&Settings::new("node", "iqn.x:y", 0));
        for expected in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let ms = backoff.next().as_millis();
            assert!((expected..=expected * 5 / 4).contains(&ms), "{ms} for {expected}");
        }
    }

    #[test]
    fn with_several_portals_the_pauses_stay_short() {
        let mut settings = Settings::new("node", "iqn.x:y", 0);
        settings.other_portals.push("other".into());
        let mut backoff = Backoff::new(&settings);
        let longest = (0..8).map(|_| backoff.next()).max();
        assert!(longest.is_some_and(|longest| longest <= Duration::from_millis(1250)));
    }

    #[test]
    fn a_pause_requested_by_a_target_is_bounded() {
        let mut backoff = Backoff::new(&Settings::new("node", "iqn.x:y", 0));
        assert_eq!(backoff.next_after(Duration::from_secs(3)), Duration::from_secs(3));
        assert_eq!(backoff.next_after(Duration::from_secs(65_535)), MOST_PATIENCE);
    }
}
