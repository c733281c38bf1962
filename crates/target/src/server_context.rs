//! The state that a server shares with all its connections.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use parking_lot::RwLock;
use tokio::sync::watch;
use transport::{ConnectionQuota, ReportLimiter};

use crate::{
    chap_delay::ChapFailureDelay, counted_limit::CountedLimit, login_access::Security,
    portal::Portals, portal_view::PortalView, repeated_refusals::RepeatedRefusals,
    session_registry::SessionRegistry, settings::Settings, target_table::TargetTable,
    write_data_pool::WriteDataPool,
};

/// The state that a server shares with its portals and connections.
pub(crate) struct ServerContext {
    pub(crate) settings: Settings,
    pub(crate) names: Arc<TargetTable>,
    pub(crate) registry: Arc<SessionRegistry>,
    pub(crate) portals: Arc<Portals>,
    pub(crate) security: RwLock<Arc<Security>>,
    /// Quota of connections that have not logged in.
    pub(crate) logins: Arc<ConnectionQuota>,
    pub(crate) discoveries: Arc<ConnectionQuota>,
    /// Memory for waiting writes beyond the shares of the connections.
    pub(crate) pool: Arc<WriteDataPool>,
    /// Number of sessions that are polling their sockets instead of sleeping, see `busy_polling.rs`.
    pub(crate) pollers: Arc<CountedLimit>,
    pub(crate) chap_delay: ChapFailureDelay,
    /// Limits the events about failed logins and refused connections.
    pub(crate) login_reports: ReportLimiter,
    /// Refused logins that were reported recently.
    pub(crate) repeated_refusals: RepeatedRefusals,
    /// Limits the events about discovery sessions.
    pub(crate) discovery_reports: ReportLimiter,
    /// Limits how many log events report normal sessions and their connections.
    pub(crate) session_reports: ReportLimiter,
    /// True once the server is stopping, which makes it refuse all logins.
    pub(crate) stopping: watch::Sender<bool>,
}

impl ServerContext {
    /// Returns the view of an initiator at address `peer` that is connected to our address `local`.
    pub(crate) fn view(&self, local: SocketAddr, peer: IpAddr) -> PortalView {
        let (names, portals) = (self.names.clone(), self.portals.clone());
        PortalView { names, portals, security: self.security.read().clone(), local, peer }
    }

    /// Returns `None` if an event about a session of this address must not be reported now. Otherwise returns the
    /// number of events that were left out since the last one, or `Some(None)` if none was.
    pub(crate) fn session_report(&self, address: IpAddr) -> Option<Option<u64>> {
        let unreported = self.session_reports.report(address, Instant::now())?;
        Some((unreported > 0).then_some(unreported))
    }

    /// Returns the share of `all` that each connection of a normal session may hold.
    pub(crate) fn share(&self, all: usize) -> usize {
        all / self.registry.members.get().max(1)
    }
}
