//! What all connections of a server share.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use parking_lot::RwLock;
use tokio::sync::watch;
use transport::{Places, Reports};

use crate::{
    access::Security, door::Door, guard::Guard, names::Names, pool::Pool, portal::Portals,
    registry::Registry, repeats::Repeats, settings::Settings,
};

/// Shared by the server, its portals and its connections.
pub(crate) struct Surroundings {
    pub(crate) settings: Settings,
    pub(crate) names: Arc<Names>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) portals: Arc<Portals>,
    pub(crate) security: RwLock<Arc<Security>>,
    /// Connections that have not logged in.
    pub(crate) logins: Arc<Places>,
    /// Discovery sessions.
    pub(crate) discoveries: Arc<Places>,
    /// Room for waiting writes beyond the shares of connections.
    pub(crate) pool: Arc<Pool>,
    pub(crate) guard: Guard,
    /// Events about logins that fail and connections that are refused.
    pub(crate) login_reports: Reports,
    /// Refused logins that were told lately.
    pub(crate) repeats: Repeats,
    /// Events about discovery sessions.
    pub(crate) discovery_reports: Reports,
    /// Events about normal sessions and their connections.
    pub(crate) session_reports: Reports,
    /// True when the server stops: nobody is let in any more.
    pub(crate) stopping: watch::Sender<bool>,
}

impl Surroundings {
    /// What one sees who came from `peer` in at this address of ours.
    pub(crate) fn door(&self, local: SocketAddr, peer: IpAddr) -> Door {
        let (names, portals) = (self.names.clone(), self.portals.clone());
        Door { names, portals, security: self.security.read().clone(), local, peer }
    }

    /// Whether an event about a session of this address is to be reported: then how many were left out since
    /// the last one, if any.
    pub(crate) fn session_report(&self, address: IpAddr) -> Option<Option<u64>> {
        let unreported = self.session_reports.report(address, Instant::now())?;
        Some((unreported > 0).then_some(unreported))
    }

    /// One connection's part of what all connections of normal sessions together may hold, `all`.
    pub(crate) fn share(&self, all: usize) -> usize {
        all / self.registry.members.get().max(1)
    }
}
