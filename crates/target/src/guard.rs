//! What is remembered of addresses: logins under way, wrong proofs, events told.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::access::Network;

/// Slows guessing down, address by address, and keeps one address from taking all places.
#[derive(Default)]
pub(crate) struct Guard {
    addresses: Mutex<HashMap<IpAddr, Record>>,
}

#[derive(Default)]
struct Record {
    /// Connections that have not logged in.
    logins: usize,
    /// Wrong proofs, until none came for a while.
    failures: u32,
    /// No login goes on before.
    closed_until: Option<Instant>,
    /// Events told since then.
    told: (u32, Option<Instant>),
    /// Events that were not told since the last that was.
    untold: u64,
    last_seen: Option<Instant>,
}

/// Addresses remembered beside those that log in now. A record takes about 100 bytes.
const RECORDS: usize = 4096;

/// After the first wrong proof; it doubles with each, up to `PAUSE_MAX`.
const PAUSE: Duration = Duration::from_millis(250);

/// Two of these and a login still fit into the 15 s that initiators wait for one.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Without a wrong proof for so long, those before are forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// Of one address so many events are told in `TOLD_WITHIN`, and the number of those that were not:
/// enough for who sets an initiator up, too few to fill a disk.
const TOLD: u32 = 10;
const TOLD_WITHIN: Duration = Duration::from_secs(10);

/// One of the logins of an address; dropping it gives it back.
pub(crate) struct Place {
    guard: Arc<Guard>,
    key: IpAddr,
}

impl Guard {
    /// `None` if `limit` logins are under way from there.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr, limit: usize) -> Option<Place> {
        let key = key(address);
        let mut addresses = self.addresses.lock();
        let record = record(&mut addresses, key);
        if record.logins >= limit {
            return None;
        }
        record.logins += 1;
        Some(Place { guard: self.clone(), key })
    }

    /// When a login from there may go on; `None`: now.
    pub(crate) fn closed_until(&self, address: IpAddr, now: Instant) -> Option<Instant> {
        let addresses = self.addresses.lock();
        let until = addresses.get(&key(address))?.closed_until?;
        (until > now).then_some(until)
    }

    /// A wrong proof came from there.
    pub(crate) fn failed(&self, address: IpAddr, now: Instant) {
        let mut addresses = self.addresses.lock();
        let record = record(&mut addresses, key(address));
        let is_old = |seen: Instant| now.saturating_duration_since(seen) >= FORGOTTEN_AFTER;
        if record.last_seen.is_none_or(is_old) {
            record.failures = 0;
        }
        record.last_seen = Some(now);
        let pause = PAUSE.saturating_mul(1 << record.failures.min(16)).min(PAUSE_MAX);
        record.failures = record.failures.saturating_add(1);
        record.closed_until = record.closed_until.max(Some(now + pause));
    }

    /// Whether an event of that address is to be told, and how many were not since the last one.
    pub(crate) fn tell(&self, address: IpAddr, now: Instant) -> Option<u64> {
        let mut addresses = self.addresses.lock();
        let record = record(&mut addresses, key(address));
        let (told, since) = &mut record.told;
        let is_recent = |since: Instant| now.saturating_duration_since(since) < TOLD_WITHIN;
        if !since.is_some_and(is_recent) {
            (*told, *since) = (0, Some(now));
        }
        if *told == TOLD {
            record.untold += 1;
            return None;
        }
        *told += 1;
        record.last_seen = record.last_seen.max(Some(now));
        Some(std::mem::take(&mut record.untold))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut addresses = self.guard.addresses.lock();
        if let Some(record) = addresses.get_mut(&self.key) {
            record.logins -= 1;
            if record.logins == 0 && record.last_seen.is_none() {
                addresses.remove(&self.key);
            }
        }
    }
}

fn key(address: IpAddr) -> IpAddr {
    Network::of_one_party(address).address()
}

/// The record of an address. A new one may take the place of the one that was seen longest ago.
fn record(addresses: &mut HashMap<IpAddr, Record>, key: IpAddr) -> &mut Record {
    if addresses.len() >= RECORDS && !addresses.contains_key(&key) {
        let resting = addresses.iter().filter(|(_, record)| record.logins == 0);
        let oldest = resting.min_by_key(|(_, record)| record.last_seen).map(|(key, _)| *key);
        oldest.map(|oldest| addresses.remove(&oldest));
    }
    addresses.entry(key).or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    #[test]
    fn each_wrong_proof_doubles_the_pause_up_to_a_bound() {
        let guard = Guard::default();
        let mut now = Instant::now();
        assert_eq!(guard.closed_until(HERE, now), None);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            guard.failed(HERE, now);
            let until = guard.closed_until(HERE, now).unwrap();
            pauses.push((until - now).as_millis());
            now = until;
            assert_eq!(guard.closed_until(HERE, now), None);
        }
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 5000, 5000]);
        now += FORGOTTEN_AFTER;
        guard.failed(HERE, now);
        assert_eq!(guard.closed_until(HERE, now), Some(now + PAUSE));
    }

    #[test]
    fn a_pause_concerns_one_address_or_one_network_of_ipv6() {
        let guard = Guard::default();
        let now = Instant::now();
        let closed = |address: &str| guard.closed_until(address.parse().unwrap(), now).is_some();
        guard.failed("2001:db8::1".parse().unwrap(), now);
        guard.failed("::ffff:192.0.2.1".parse().unwrap(), now);
        assert!(closed("2001:db8::ffff:1") && closed("192.0.2.1"));
        assert!(!closed("2001:db8:0:1::1") && !closed("192.0.2.2"));
    }

    #[test]
    fn one_address_has_so_many_places() {
        let guard = Arc::new(Guard::default());
        let places: Vec<_> = (0..3).map_while(|_| guard.enter(HERE, 2)).collect();
        assert_eq!(places.len(), 2);
        assert!(guard.enter([192, 0, 2, 2].into(), 2).is_some());
        drop(places);
        assert!(guard.addresses.lock().is_empty());
        assert!(guard.enter(HERE, 2).is_some());
    }

    #[test]
    fn the_table_stays_small_and_forgets_the_oldest() {
        let guard = Arc::new(Guard::default());
        let begin = Instant::now();
        let place = guard.enter(HERE, 1);
        for number in 0..2 * RECORDS as u32 {
            let address = IpAddr::V4(number.into());
            guard.failed(address, begin + Duration::from_millis(number.into()));
        }
        assert_eq!(guard.addresses.lock().len(), RECORDS);
        assert!(guard.addresses.lock().contains_key(&HERE), "who logs in stays");
        let newest = IpAddr::V4((2 * RECORDS as u32 - 1).into());
        assert!(guard.addresses.lock().contains_key(&newest));
        drop(place);
        assert_eq!(guard.addresses.lock().len(), RECORDS - 1);
    }

    #[test]
    fn an_address_cannot_fill_the_events() {
        let guard = Guard::default();
        let now = Instant::now();
        for _ in 0..TOLD {
            assert_eq!(guard.tell(HERE, now), Some(0));
        }
        assert_eq!(guard.tell(HERE, now), None);
        assert_eq!(guard.tell(HERE, now), None);
        assert_eq!(guard.tell([192, 0, 2, 2].into(), now), Some(0));
        assert_eq!(guard.tell(HERE, now + TOLD_WITHIN), Some(2));
        assert_eq!(guard.tell(HERE, now + TOLD_WITHIN), Some(0));
    }
}
