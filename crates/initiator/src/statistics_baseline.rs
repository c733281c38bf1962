//! Adds the counters of a session's connections to statistics that continue after the session.

use iscsi::{Cid, session::initiator::InitiatorPduCounters};

use crate::{InitiatorStatistics, connection_io::ConnectionTraffic, session_io::SessionIo};

/// The counters of each connection at the time when they were last added to the statistics.
#[derive(Default)]
pub(crate) struct StatisticsBaseline {
    connections: Vec<(Cid, InitiatorPduCounters)>,
    passed: ConnectionTraffic,
    lost: u64,
}

impl StatisticsBaseline {
    pub(crate) fn add_to(&mut self, statistics: &mut InitiatorStatistics, io: &SessionIo) {
        self.connections.retain(|&(cid, _)| io.session.counters(cid).is_some());
        for cid in io.session.cids() {
            let counters = io.session.counters(cid).unwrap_or_default();
            let at = self.connections.iter().position(|&(known, _)| known == cid);
            let at = at.unwrap_or_else(|| {
                self.connections.push((cid, InitiatorPduCounters::default()));
                self.connections.len() - 1
            });
            statistics.add_counters(&self.connections[at].1, &counters);
            self.connections[at].1 = counters;
        }
        let passed = io.passed();
        statistics.traffic.bytes_in += passed.bytes_in - self.passed.bytes_in;
        statistics.traffic.bytes_out += passed.bytes_out - self.passed.bytes_out;
        statistics.traffic.link_bytes_in += passed.link_in - self.passed.link_in;
        statistics.traffic.link_bytes_out += passed.link_out - self.passed.link_out;
        self.passed = passed;
        statistics.recovery.connections_lost += io.lost - self.lost;
        self.lost = io.lost;
    }
}
