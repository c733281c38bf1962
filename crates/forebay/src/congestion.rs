//! The congestion control that sessions are given: what the settings say, made of what this host allows.

use std::sync::{Arc, OnceLock};

use fairtcp::{Fair, Options};

use crate::settings::Congestion;

/// What the settings mean. Where the kernel allows no ensemble, sessions have what it gives them, and one
/// event says so.
pub fn congestion(wanted: &Congestion) -> transport::Congestion {
    match wanted {
        Congestion::KernelDefault => transport::Congestion::default(),
        Congestion::Named(name) => transport::Congestion::named(name.clone()),
        Congestion::Ensemble => loaded().map(transport::Congestion::ensemble).unwrap_or_default(),
    }
}

/// Loaded when it is wanted first, and as long as the process lives: it is registered in the kernel, once
/// for whatever this process serves.
fn loaded() -> Option<Arc<Fair>> {
    static LOADED: OnceLock<Option<Arc<Fair>>> = OnceLock::new();
    let load = || match Fair::load(&Options::default()) {
        Ok(fair) => {
            tracing::info!(
                name = fair.name(),
                "connections of a session share a congestion window"
            );
            Some(Arc::new(fair))
        }
        Err(error) => {
            let remedy = error.remedy();
            tracing::warn!(
                %error,
                remedy,
                "no ensembles: each connection has the kernel's own congestion control"
            );
            None
        }
    };
    LOADED.get_or_init(load).clone()
}
