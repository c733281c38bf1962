//! Delays the answers to wrong CHAP proofs.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
    net::IpAddr,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use transport::party;

/// Delays the answers to wrong CHAP proofs, so that secrets cannot be guessed quickly. Wrong proofs from one address,
/// or for one user name, are answered one after the other, however many connections they arrive on. Each proof is
/// checked at once, so a correct proof never waits.
#[derive(Default)]
pub(crate) struct ChapFailureDelay<S = RandomState> {
    addresses: Lines<S>,
    users: Lines<S>,
}

/// A table of queues. The key is a hash of the address or of the user name, which cannot be predicted from
/// outside of the process.
#[derive(Default)]
struct Lines<S> {
    lines: Mutex<HashMap<u16, ChapFailureQueue>>,
    hasher: S,
}

/// Failed CHAP responses from one address, or for one user name. The login responses to them are delayed.
struct ChapFailureQueue {
    /// Number of failed CHAP responses; reset to 0 after [`FORGOTTEN_AFTER`] without a failure.
    failures: u32,
    /// The time at which the server answers the newest failed CHAP response of this queue.
    end: Instant,
    last_failure: Instant,
}

/// Maximum number of queues in a table; each has about 48 bytes. Addresses (or names) with the same hash share a queue,
/// so wrong proofs of one also delay the answers to wrong proofs of the other. Right proofs are not delayed. An
/// attacker who fills the table cannot remove a queue from it.
const LINES: u64 = 4096;

/// The delay of the first wrong proof. The delay doubles with each further one, up to `PAUSE_MAX`.
const PAUSE: Duration = Duration::from_millis(250);

/// The longest delay of a wrong proof. Two of these delays and a login fit into the 15 s that
/// initiators wait for a login.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The longest wait for an answer, which bounds the effect of a flood of wrong proofs after the flood has ended. A
/// login may last as long by default, so a connection that would have to wait longer is closed without an answer.
const LONGEST_LINE: Duration = Duration::from_secs(15);

/// A queue without a wrong proof for this time starts again with the first delay.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

impl<S: BuildHasher> ChapFailureDelay<S> {
    /// Notes a wrong proof of `user` from `address`. Returns the time when it may be answered.
    pub(crate) fn failed(&self, address: IpAddr, user: &str, now: Instant) -> Instant {
        let of_address = self.addresses.append(party(address), now);
        let of_user = self.users.append(user, now);
        of_address.max(of_user)
    }
}

impl<S: BuildHasher> Lines<S> {
    /// Adds a wrong proof to the queue of `key`. Returns the time when the queue lets it be answered.
    fn append(&self, key: impl Hash, now: Instant) -> Instant {
        let key = (self.hasher.hash_one(key) % LINES) as u16;
        let new = ChapFailureQueue { failures: 0, end: now, last_failure: now };
        self.lines.lock().entry(key).or_insert(new).append(now)
    }
}

impl ChapFailureQueue {
    /// Adds a wrong proof to the queue. Returns the time when it may be answered.
    fn append(&mut self, now: Instant) -> Instant {
        if now.saturating_duration_since(self.last_failure) >= FORGOTTEN_AFTER {
            self.failures = 0;
        }
        self.last_failure = now;
        let pause = PAUSE.saturating_mul(1 << self.failures.min(16)).min(PAUSE_MAX);
        self.failures = self.failures.saturating_add(1);
        self.end = (self.end.max(now) + pause).min(now + LONGEST_LINE);
        self.end
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasherDefault, DefaultHasher};

    use super::*;

    /// The delays with a hash that is the same in each run: with a random hash, two keys of a test could share a queue
    /// by chance.
    type ChapFailureDelay = super::ChapFailureDelay<BuildHasherDefault<DefaultHasher>>;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    #[test]
    fn each_wrong_chap_response_doubles_the_pause_up_to_a_bound() {
        let chap_delay = ChapFailureDelay::default();
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let until = chap_delay.failed(HERE, "alice", now);
            pauses.push((until - now).as_millis());
            now = until;
        }
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 5000, 5000]);
        now += FORGOTTEN_AFTER;
        assert_eq!(chap_delay.failed(HERE, "alice", now), now + PAUSE);
    }

    #[test]
    fn wrong_chap_responses_that_arrive_together_are_answered_one_after_the_other() {
        let now = Instant::now();
        // All wrong proofs come from one address with different names, or from different addresses with one name.
        for (begin, end) in [(1, 1), (1, 40)] {
            let chap_delay = ChapFailureDelay::default();
            let last = |number: u8| if end == 1 { begin } else { number };
            let user = |number: u8| if end == 1 { format!("user{number}") } else { "alice".into() };
            let answered = (1..=40).map(|number| {
                let address = IpAddr::from([192, 0, 2, last(number)]);
                chap_delay.failed(address, &user(number), now) - now
            });
            let answered: Vec<_> = answered.map(|wait| wait.as_millis()).collect();
            assert_eq!(answered[..6], [250, 750, 1750, 3750, 7750, 12_750]);
            assert!(answered[6..].iter().all(|wait| *wait == LONGEST_LINE.as_millis()));
        }
    }

    #[test]
    fn a_queue_of_delays_belongs_to_one_ipv4_address_or_ipv6_network() {
        let chap_delay = ChapFailureDelay::default();
        let now = Instant::now();
        let waits = |address: &str, user: &str| {
            (chap_delay.failed(address.parse().unwrap(), user, now) - now).as_millis()
        };
        assert_eq!(waits("2001:db8::1", "a"), 250);
        assert_eq!(waits("2001:db8::ffff:1", "b"), 750);
        assert_eq!(waits("192.0.2.1", "c"), 250);
        assert_eq!(waits("::ffff:192.0.2.1", "d"), 750);
    }

    #[test]
    fn the_table_of_delays_is_bounded_and_a_flood_does_not_reset_a_delay() {
        let chap_delay = ChapFailureDelay::default();
        let now = Instant::now();
        chap_delay.failed(HERE, "alice", now);
        for number in 0..3 * LINES as u32 {
            chap_delay.failed(IpAddr::V4(number.into()), &number.to_string(), now);
        }
        assert!(chap_delay.addresses.lines.lock().len() <= LINES as usize);
        assert!(chap_delay.users.lines.lock().len() <= LINES as usize);
        assert!(chap_delay.failed(HERE, "bob", now) >= now + 3 * PAUSE);
    }

    #[test]
    fn an_address_and_a_name_with_the_same_hash_do_not_count_a_failure_twice() {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let line = |key: u64| key % LINES;
        let address = line(hasher.hash_one(party(HERE)));
        let mut names = (0..).map(|number: u32| number.to_string());
        let user = names.find(|name| line(hasher.hash_one(name)) == address).unwrap();
        let chap_delay = ChapFailureDelay::default();
        let now = Instant::now();
        assert_eq!(chap_delay.failed(HERE, &user, now), now + PAUSE);
    }
}
