//! What a server has seen.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use iscsi::session::target::TargetPduCounters;
use transport::{CongestionStatistics, LinkBytes, SessionCongestion};
use volume::TimeHistogramSnapshot;

use crate::command_times::CommandKind;

/// A server at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetStatistics {
    /// Sessions that are open.
    pub sessions: Vec<SessionStatistics>,
    /// Connections that are open, logged in or not.
    pub connections: usize,
    /// Connections that have not logged in.
    pub logins_in_progress: usize,
    /// Discovery sessions that are open.
    pub discovery_sessions: usize,
    /// Connections that were refused because there were too many: closed at once, or answered with login
    /// status 0302.
    pub refused_connections: u64,
    /// Logins and discovery sessions that were closed because newcomers got their places.
    pub displaced_connections: u64,
    /// Logins that were refused, broken off or took too long.
    pub failed_logins: u64,
    /// Sessions opened since the start, discovery sessions included.
    pub opened_sessions: u64,
    /// Everything counted since the start, in sessions open and closed.
    pub total: TargetPduCounters,
    /// `total` for each target that a session was ever open to.
    pub by_target: HashMap<String, TargetPduCounters>,
    /// Commands since the start by operation code, those that occurred.
    pub commands: Vec<(u8, u64)>,
    /// What they took at their units.
    pub times: Vec<(CommandKind, TimeHistogramSnapshot)>,
}

/// One session.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionStatistics {
    /// The initiator's iSCSI name.
    pub initiator_name: String,
    /// Where its first connection came from.
    pub address: SocketAddr,
    /// Where it is logged in; `None` for discovery.
    pub target_name: Option<String>,
    /// The tag of the portal group through which it came.
    pub portal_group: Option<u16>,
    /// Our half of the session's name.
    pub tsih: u16,
    /// What was counted, on all connections that there were.
    pub counters: TargetPduCounters,
    /// The congestion control of the connections, and what they share.
    pub congestion: Option<CongestionStatistics>,
    /// The connections that are open; none for a while, if their tasks may be taken over.
    pub connections: Vec<TargetConnectionStats>,
}

/// One connection of a session.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TargetConnectionStats {
    /// The initiator's number for it.
    pub cid: u16,
    /// Where it comes from.
    pub address: Option<SocketAddr>,
    /// The address at our end: the portal, or what it listens on.
    pub local: Option<SocketAddr>,
    /// What was counted.
    pub counters: TargetPduCounters,
    /// What has passed compressed; `None` if it does not.
    pub link_bytes: Option<LinkBytes>,
}

/// What a driver shows of its session.
#[derive(Default)]
pub(crate) struct SessionSnapshot {
    /// From when its driver runs.
    pub(crate) congestion: Option<Arc<SessionCongestion>>,
    pub(crate) counters: TargetPduCounters,
    pub(crate) connections: Vec<TargetConnectionStats>,
}

/// Counters that belong to no session.
#[derive(Default)]
pub(crate) struct ServerEventCounters {
    pub(crate) refused_connections: AtomicU64,
    pub(crate) displaced_connections: AtomicU64,
    pub(crate) failed_logins: AtomicU64,
    pub(crate) opened_sessions: AtomicU64,
}

/// One more.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
