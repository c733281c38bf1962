//! The congestion control that sessions are given: what the settings say, made of what this host allows.

use parking_lot::Mutex;

use crate::settings::CongestionSetting;

/// What the settings mean. Where the kernel allows no ensemble, sessions have what it gives them, and one
/// event says so.
pub fn congestion(wanted: &CongestionSetting) -> transport::CongestionControl {
    let CongestionSetting(choice) = wanted;
    let Some(options) = choice.options() else { return load(choice).unwrap_or_default() };
    let mut loaded = LOADED.lock();
    if let Some((_, known)) = loaded.iter().find(|(other, _)| *other == options) {
        return known.clone();
    }
    let congestion = load(choice).unwrap_or_default();
    loaded.push((options, congestion.clone()));
    congestion
}

/// Loaded when it is wanted first, and as long as the process lives: it is registered in the kernel, once
/// for whatever this process serves. Four at most: who shares a window, and how it grows.
static LOADED: Mutex<Vec<(fairtcp::EnsembleOptions, transport::CongestionControl)>> =
    Mutex::new(Vec::new());

fn load(choice: &transport::CongestionChoice) -> Option<transport::CongestionControl> {
    match choice.load() {
        Ok(congestion) => {
            if choice.options().is_some() {
                tracing::info!(%choice, ?congestion, "loaded a congestion control");
            }
            Some(congestion)
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
    }
}
