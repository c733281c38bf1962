//! Refusals that an initiator gets repeatedly, such as a gateway that logs in every five seconds with a wrong
//! secret. Each refusal is reported once, and again after ten minutes with a count.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Refused logins and connections that were logged recently, so that repetitions are only counted.
#[derive(Debug, Default)]
pub(crate) struct RepeatedRefusals {
    /// The hash of the keys in `reported`. Strangers choose the names in a key, so the table stores a hash with a
    /// random seed instead of the names.
    hasher: RandomState,
    reported: Mutex<HashMap<u64, ReportedRefusal>>,
}

#[derive(Debug)]
struct ReportedRefusal {
    /// A hash of the failure's text.
    failure: u64,
    at: Instant,
    /// Number of times that the refusal has occurred since it was logged.
    repeated: u64,
}

/// A refusal that continues is logged again after this time.
const AGAIN_AFTER: Duration = Duration::from_secs(600);

/// Maximum number of refusals that are remembered: 1,024 entries of some 50 bytes. Beyond it, the entry that
/// was reported first is removed. If that refusal occurs again, it is reported again, within the limits of
/// [`transport::ReportLimiter`].
const ENTRIES: usize = 1024;

/// The address, initiator name and target name of a refused login.
pub(crate) type RefusedLoginKey<'a> = (IpAddr, &'a str, &'a str);

impl RepeatedRefusals {
    /// Returns the number of times that this failure has occurred since it was last reported; `None` if it
    /// must not be reported now.
    pub(crate) fn note(
        &self,
        refused: RefusedLoginKey<'_>,
        failure: &str,
        now: Instant,
    ) -> Option<u64> {
        let key = self.hasher.hash_one(refused);
        let failure = self.hasher.hash_one(failure);
        let mut reported = self.reported.lock();
        let before = reported.get_mut(&key).filter(|before| before.failure == failure);
        let mut repeated = 0;
        if let Some(before) = before {
            if now.saturating_duration_since(before.at) < AGAIN_AFTER {
                before.repeated += 1;
                return None;
            }
            repeated = before.repeated;
        }
        if reported.len() >= ENTRIES && !reported.contains_key(&key) {
            let oldest = reported.iter().min_by_key(|(_, refusal)| refusal.at).map(|(key, _)| *key);
            oldest.map(|oldest| reported.remove(&oldest));
        }
        reported.insert(key, ReportedRefusal { failure, at: now, repeated: 0 });
        Some(repeated)
    }

    /// Forgets a refusal, so that the next one is reported again. Call this when a login has succeeded.
    pub(crate) fn end(&self, refused: RefusedLoginKey<'_>) {
        self.reported.lock().remove(&self.hasher.hash_one(refused));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    #[test]
    fn a_repeated_refusal_is_reported_once_in_ten_minutes_with_a_count() {
        let (repeated_refusals, now) = (RepeatedRefusals::default(), Instant::now());
        let gateway = (HERE, "gateway", "vol0");
        let wrong = "AuthenticationFailure";
        assert_eq!(repeated_refusals.note(gateway, wrong, now), Some(0));
        for seconds in (5..600).step_by(5) {
            let later = now + Duration::from_secs(seconds);
            assert_eq!(repeated_refusals.note(gateway, wrong, later), None);
        }
        assert_eq!(repeated_refusals.note((HERE, "other", "vol0"), wrong, now), Some(0));
        assert_eq!(repeated_refusals.note(gateway, wrong, now + AGAIN_AFTER), Some(119));
        assert_eq!(
            repeated_refusals.note(gateway, "NotFound", now + AGAIN_AFTER),
            Some(0),
            "another failure"
        );
        repeated_refusals.end(gateway);
        let reported = repeated_refusals.note(gateway, "NotFound", now + AGAIN_AFTER);
        assert_eq!(reported, Some(0), "it was admitted meanwhile");
    }

    #[test]
    fn the_table_of_refusals_is_bounded() {
        let (repeated_refusals, now) = (RepeatedRefusals::default(), Instant::now());
        for number in 0..2 * ENTRIES {
            let name = number.to_string();
            assert_eq!(repeated_refusals.note((HERE, &name, "vol0"), "NotFound", now), Some(0));
        }
        assert_eq!(repeated_refusals.reported.lock().len(), ENTRIES);
    }
}
