//! Limits the number of connections whose peers have not authenticated themselves yet.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A limit on connections that hold resources before their peers have authenticated.
///
/// A peer that keeps connections open and sends nothing must not lock out other peers. A new
/// connection therefore gets a permit even if none is free: the party (an IPv4 address or an IPv6
/// /64 network) with the most permits loses its oldest one. Honest peers need a permit only for
/// some milliseconds, and keep it that long even during such an attack. Connections whose login has
/// failed lose their permits first.
#[derive(Debug, Default)]
pub struct ConnectionQuota {
    inner: Mutex<ConnectionQuotaState>,
}

#[derive(Debug, Default)]
struct ConnectionQuotaState {
    /// The permits in use, in order of arrival.
    taken: BTreeMap<u64, PermitHolder>,
    /// The number of permits that each party holds. No entry is zero.
    held: HashMap<IpAddr, usize>,
    next: u64,
}

#[derive(Debug)]
struct PermitHolder {
    party: IpAddr,
    lost: Arc<Notify>,
    rank: Rank,
}

/// How far the login of a connection is, which decides whether the connection can lose its permit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Rank {
    /// The login has failed, and the response is being sent. Such connections lose their permits
    /// first.
    Failed,
    /// The peer has not authenticated itself yet.
    Stranger,
    /// The peer has authenticated itself, so its connection keeps its permit.
    Kept,
}

/// The permit of a connection to log in. Dropping this frees the permit for another connection.
#[derive(Debug)]
pub struct ConnectionPermit {
    places: Arc<ConnectionQuota>,
    number: u64,
    lost: Arc<Notify>,
}

impl ConnectionQuota {
    /// Returns a permit for a connection from `address`. At most `limit` permits exist, at most
    /// `per_party` of one party. If they are all in use, another connection loses its permit.
    /// Returns `None` if none can lose it, because all of them have called
    /// [`ConnectionPermit::keep`].
    pub fn enter(
        self: &Arc<Self>,
        address: IpAddr,
        limit: usize,
        per_party: usize,
    ) -> Option<ConnectionPermit> {
        let party = party(address);
        let mut inner = self.inner.lock();
        if inner.held.get(&party).is_some_and(|held| *held >= per_party) {
            let own = |taken: &PermitHolder| taken.party == party;
            let oldest = inner.oldest(Rank::Failed, own).or(inner.oldest(Rank::Stranger, own))?;
            inner.displace(oldest);
        } else if inner.taken.len() >= limit {
            let failed = inner.oldest(Rank::Failed, |_| true);
            let oldest = failed.or(inner.oldest_of_busiest(party))?;
            inner.displace(oldest);
        }
        inner.next += 1;
        let (number, lost) = (inner.next, Arc::new(Notify::new()));
        let taken = PermitHolder { party, lost: Arc::clone(&lost), rank: Rank::Stranger };
        inner.taken.insert(number, taken);
        *inner.held.entry(party).or_default() += 1;
        Some(ConnectionPermit { places: Arc::clone(self), number, lost })
    }

    #[must_use]
    pub fn taken(&self) -> usize {
        self.inner.lock().taken.len()
    }
}

impl ConnectionQuotaState {
    /// Returns the oldest permit that has this rank and for which `is_meant` returns true.
    fn oldest(&self, rank: Rank, is_meant: impl Fn(&PermitHolder) -> bool) -> Option<u64> {
        let found = self.taken.iter().find(|(_, taken)| taken.rank == rank && is_meant(taken));
        found.map(|(number, _)| *number)
    }

    /// Returns the oldest permit of the party that has the most permits. The new connection already
    /// counts for its party.
    fn oldest_of_busiest(&self, newcomer: IpAddr) -> Option<u64> {
        let held = |party: &IpAddr| {
            self.held.get(party).copied().unwrap_or(0) + usize::from(*party == newcomer)
        };
        let mut busiest = None;
        let strangers = self.taken.iter().filter(|(_, taken)| taken.rank == Rank::Stranger);
        for (number, taken) in strangers {
            let held = held(&taken.party);
            if busiest.is_none_or(|(most, _)| held > most) {
                busiest = Some((held, *number));
            }
        }
        busiest.map(|(_, number)| number)
    }

    fn displace(&mut self, number: u64) {
        if let Some(taken) = self.leave(number) {
            taken.lost.notify_one();
        }
    }

    fn leave(&mut self, number: u64) -> Option<PermitHolder> {
        let taken = self.taken.remove(&number)?;
        if let Some(held) = self.held.get_mut(&taken.party) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&taken.party);
            }
        }
        Some(taken)
    }
}

impl ConnectionPermit {
    /// Waits until a new connection has taken this permit. The caller must then close its own
    /// connection.
    pub async fn lost(&self) {
        self.lost.notified().await;
    }

    /// Marks the peer as authenticated, so that it keeps the permit until it is dropped. Returns
    /// false if another connection has taken the permit already.
    #[must_use]
    pub fn keep(&self) -> bool {
        self.rank(Rank::Kept)
    }

    /// Marks the login as failed. A new connection may then take this permit before all others,
    /// even while the response is still being sent.
    pub fn fail(&self) {
        self.rank(Rank::Failed);
    }

    fn rank(&self, rank: Rank) -> bool {
        let mut inner = self.places.inner.lock();
        inner.taken.get_mut(&self.number).map(|taken| taken.rank = rank).is_some()
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.places.inner.lock().leave(self.number);
    }
}

/// Returns the address that stands for the party of `address`: the IPv4 address itself, or the /64
/// network of an IPv6 address. A user usually has only one of them.
#[must_use]
pub fn party(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    async fn is_lost(place: &ConnectionPermit) -> bool {
        let mut lost = std::pin::pin!(place.lost());
        poll_fn(|context| std::task::Poll::Ready(lost.as_mut().poll(context).is_ready())).await
    }

    #[tokio::test]
    async fn the_oldest_connection_of_the_busiest_address_is_dropped() {
        let places = Arc::new(ConnectionQuota::default());
        let enter = |last| places.enter(address(last), 6, 4).unwrap();
        let quiet = enter(1);
        let busy = [enter(2), enter(2), enter(2)];
        let other = [enter(3), enter(3)];
        let newcomer = enter(4);
        assert!(is_lost(&busy[0]).await);
        for place in [&quiet, &busy[1], &busy[2], &other[0], &other[1], &newcomer] {
            assert!(!is_lost(place).await);
        }
        assert_eq!(places.taken(), 6);
        // With the new connection, its own address is the one with the most permits.
        let _more = enter(3);
        assert!(is_lost(&other[0]).await && !is_lost(&busy[1]).await);
        drop((quiet, busy, other, newcomer));
        assert_eq!(places.taken(), 1);
    }

    #[tokio::test]
    async fn an_address_above_its_share_displaces_its_own_connection() {
        let places = Arc::new(ConnectionQuota::default());
        let enter = |last| places.enter(address(last), 100, 2);
        let (first, second) = (enter(1).unwrap(), enter(1).unwrap());
        let other = enter(2).unwrap();
        let third = enter(1).unwrap();
        assert!(is_lost(&first).await && !is_lost(&second).await && !is_lost(&other).await);
        assert!(!first.keep(), "it is lost already");
        assert!(second.keep() && third.keep());
        assert!(enter(1).is_none(), "no authenticated connection is dropped");
        assert!(enter(2).is_some());
    }

    #[tokio::test]
    async fn a_connection_with_a_failed_login_is_dropped_first() {
        let places = Arc::new(ConnectionQuota::default());
        let enter = |last, own| places.enter(address(last), 3, own).unwrap();
        let (first, second, third) = (enter(1, 2), enter(1, 2), enter(2, 2));
        third.fail();
        let _newcomer = enter(3, 2);
        assert!(is_lost(&third).await && !is_lost(&first).await && !is_lost(&second).await);
        second.fail();
        let _own = enter(1, 2);
        assert!(is_lost(&second).await && !is_lost(&first).await);
    }

    #[test]
    fn a_party_is_an_address_or_a_network_of_ipv6() {
        let is_one = |a: &str, b: &str| party(a.parse().unwrap()) == party(b.parse().unwrap());
        assert!(
            is_one("2001:db8::1", "2001:db8::ffff:1") && is_one("::ffff:192.0.2.1", "192.0.2.1")
        );
        assert!(!is_one("2001:db8::1", "2001:db8:0:1::1") && !is_one("192.0.2.1", "192.0.2.2"));
    }
}
