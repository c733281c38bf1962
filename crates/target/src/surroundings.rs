//! What all connections of a server share.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use parking_lot::RwLock;
use tokio::sync::watch;

use crate::{
    access::Security, door::Door, guard::Guard, names::Names, portal::Portals, registry::Registry,
    settings::Settings,
};

/// Shared by the server, its portals and its connections.
pub(crate) struct Surroundings {
    pub(crate) settings: Settings,
    pub(crate) names: Arc<Names>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) portals: Arc<Portals>,
    pub(crate) security: RwLock<Arc<Security>>,
    pub(crate) guard: Arc<Guard>,
    /// True when the server stops: nobody is let in any more.
    pub(crate) stopping: watch::Sender<bool>,
}

impl Surroundings {
    /// What one sees who came from `peer` in at this address of ours.
    pub(crate) fn door(&self, local: SocketAddr, peer: IpAddr) -> Door {
        let (names, portals) = (self.names.clone(), self.portals.clone());
        Door { names, portals, security: self.security.read().clone(), local, peer }
    }

    /// One connection's part of what all together may hold, `all`.
    pub(crate) fn share(&self, all: usize) -> usize {
        all / self.registry.connections.get().max(1)
    }
}
