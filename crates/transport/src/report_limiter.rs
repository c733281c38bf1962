//! Limits how many log events peers can cause before they have authenticated themselves.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::connection_quota::party;

/// Limits the number of events that peers cause, per address and for all addresses together.
#[derive(Debug)]
pub struct ReportLimiter {
    per_party: u32,
    in_all: u32,
    inner: Mutex<ReportLimiterState>,
}

#[derive(Debug, Default)]
struct ReportLimiterState {
    /// The events of all addresses in the current period.
    all: Period,
    parties: HashMap<IpAddr, PeerReportCount>,
}

#[derive(Debug, Default)]
struct PeerReportCount {
    period: Period,
    /// The number of events that were suppressed since the last reported event.
    unreported: u64,
}

#[derive(Debug, Default)]
struct Period {
    began: Option<Instant>,
    reported: u32,
}

const PERIOD: Duration = Duration::from_secs(10);

/// The maximum number of addresses that are remembered: 4,096 records of some 60 bytes. If there
/// are more, the record with the oldest period is dropped, with its count of suppressed events.
const RECORDS: usize = 4096;

impl ReportLimiter {
    /// Allows n events per period of ten seconds: `per_party` of one IPv4 address or one /64
    /// network of IPv6, and `in_all` of all addresses together.
    #[must_use]
    pub fn new(per_party: u32, in_all: u32) -> Self {
        Self { per_party, in_all, inner: Mutex::default() }
    }

    /// Decides if an event of `address` may be reported now. If so, returns how many events of that
    /// address were suppressed since the last reported one. Otherwise returns `None`.
    pub fn report(&self, address: IpAddr, now: Instant) -> Option<u64> {
        let key = party(address);
        let mut inner = self.inner.lock();
        let ReportLimiterState { all, parties } = &mut *inner;
        if parties.len() >= RECORDS && !parties.contains_key(&key) {
            let oldest = parties.iter().min_by_key(|(_, record)| record.period.began);
            let oldest = oldest.map(|(key, _)| *key);
            oldest.map(|oldest| parties.remove(&oldest));
        }
        let record = parties.entry(key).or_default();
        if record.period.has_room(self.per_party, now) && all.has_room(self.in_all, now) {
            record.period.reported += 1;
            all.reported += 1;
            return Some(std::mem::take(&mut record.unreported));
        }
        record.unreported += 1;
        None
    }
}

impl Period {
    fn has_room(&mut self, limit: u32, now: Instant) -> bool {
        let is_over = |began: Instant| now.saturating_duration_since(began) >= PERIOD;
        if self.began.is_none_or(is_over) {
            *self = Self { began: Some(now), reported: 0 };
        }
        self.reported < limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    #[test]
    fn an_address_cannot_fill_the_events() {
        let reports = ReportLimiter::new(10, 1000);
        let now = Instant::now();
        for _ in 0..10 {
            assert_eq!(reports.report(HERE, now), Some(0));
        }
        assert_eq!(reports.report(HERE, now), None);
        assert_eq!(reports.report(HERE, now), None);
        assert_eq!(reports.report([192, 0, 2, 2].into(), now), Some(0));
        assert_eq!(reports.report(HERE, now + PERIOD), Some(2));
        assert_eq!(reports.report(HERE, now + PERIOD), Some(0));
    }

    #[test]
    fn many_addresses_cannot_fill_the_events_or_the_table() {
        let reports = ReportLimiter::new(10, 1000);
        let now = Instant::now();
        let address = |number: usize| IpAddr::V4((number as u32).into());
        let told = (0..2 * RECORDS).filter(|n| reports.report(address(*n), now).is_some());
        assert_eq!(told.count(), 1000);
        assert_eq!(reports.inner.lock().parties.len(), RECORDS);
        assert!(reports.report(address(0), now + PERIOD).is_some());
    }
}
