//! What all connections of a server share.

use std::{net::SocketAddr, sync::Arc};

use parking_lot::RwLock;
use tokio::sync::watch;

use crate::{names::Names, registry::Registry, settings::Settings};

/// Shared by the server, its portals and its connections.
pub(crate) struct Surroundings {
    pub(crate) settings: Settings,
    pub(crate) names: Arc<Names>,
    pub(crate) registry: Arc<Registry>,
    /// Where the server listens.
    pub(crate) portals: RwLock<Vec<SocketAddr>>,
    /// True when the server stops: nobody is let in any more.
    pub(crate) stopping: watch::Sender<bool>,
}
