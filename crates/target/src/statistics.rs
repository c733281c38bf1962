//! The counters and the state of a server, for status reports.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use iscsi::session::target::TargetPduCounters;
use scsi::CommandCode;
use transport::{CongestionStatistics, LinkBytes, SessionCongestion};
use volume::TimeHistogramSnapshot;

use crate::command_times::CommandKind;

/// The state and the counters of a server at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetStatistics {
    /// The open sessions, including discovery sessions.
    pub sessions: Vec<SessionStatistics>,
    /// Open connections, logged in or not.
    pub connections: usize,
    /// Connections whose login has not ended.
    pub logins_in_progress: usize,
    pub discovery_sessions: usize,
    /// Connections that were refused because there were too many: closed at once, or answered with login
    /// status 0302.
    pub refused_connections: u64,
    /// Logins and discovery sessions that were closed to make room for newer connections.
    pub displaced_connections: u64,
    /// Logins that were refused, were broken off or timed out.
    pub failed_logins: u64,
    /// Sessions opened since the start, discovery sessions included.
    pub opened_sessions: u64,
    /// Sums over all sessions since the start, open and closed.
    pub total: TargetPduCounters,
    /// `total` for each target to which a session was ever open.
    pub by_target: HashMap<String, TargetPduCounters>,
    /// Commands since the start by operation code or service action, without those that never occurred.
    pub commands: Vec<(CommandCode, u64)>,
    /// How long units took to execute commands, for each kind of command.
    pub times: Vec<(CommandKind, TimeHistogramSnapshot)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SessionStatistics {
    pub initiator_name: String,
    /// The address from which the first connection of the session came.
    pub address: SocketAddr,
    /// The target's name; `None` for a discovery session.
    pub target_name: Option<String>,
    /// The tag of the portal group through which the initiator logged in.
    pub portal_group: Option<u16>,
    /// The session's TSIH (target session identifying handle).
    pub tsih: u16,
    /// Sums over all connections that the session has had.
    pub counters: TargetPduCounters,
    /// The congestion control of the connections and the state that they share.
    pub congestion: Option<CongestionStatistics>,
    /// The open connections. The list is empty while the session waits for its initiator to reconnect and take over
    /// its tasks.
    pub connections: Vec<TargetConnectionStats>,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TargetConnectionStats {
    /// The connection's CID, chosen by the initiator.
    pub cid: u16,
    pub address: Option<SocketAddr>,
    /// The target's address of the connection: that of the portal, or one of the addresses on which the portal listens.
    pub local: Option<SocketAddr>,
    pub counters: TargetPduCounters,
    /// Bytes before and after compression; `None` without compression.
    pub link_bytes: Option<LinkBytes>,
}

/// The state of a session, as its driver publishes it for status reports.
#[derive(Default)]
pub(crate) struct SessionSnapshot {
    /// The congestion state that the connections share; `None` until the driver of the session runs.
    pub(crate) congestion: Option<Arc<SessionCongestion>>,
    pub(crate) counters: TargetPduCounters,
    pub(crate) connections: Vec<TargetConnectionStats>,
}

/// Counters of events outside of sessions, such as refused connections.
#[derive(Default)]
pub(crate) struct ServerEventCounters {
    pub(crate) refused_connections: AtomicU64,
    pub(crate) displaced_connections: AtomicU64,
    pub(crate) failed_logins: AtomicU64,
    pub(crate) opened_sessions: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
