//! What all connections of a server share.

use std::{net::SocketAddr, sync::Arc};

use tokio::sync::watch;

use crate::{door::Door, names::Names, portal::Portals, registry::Registry, settings::Settings};

/// Shared by the server, its portals and its connections.
pub(crate) struct Surroundings {
    pub(crate) settings: Settings,
    pub(crate) names: Arc<Names>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) portals: Arc<Portals>,
    /// True when the server stops: nobody is let in any more.
    pub(crate) stopping: watch::Sender<bool>,
}

impl Surroundings {
    /// What one sees who came in at this address of ours.
    pub(crate) fn door(&self, local: SocketAddr) -> Door {
        Door { names: self.names.clone(), portals: self.portals.clone(), local }
    }
}
