//! Loads the congestion control that the settings request, as far as the host allows it.

use config::CongestionSetting;
use parking_lot::Mutex;

/// Returns the congestion control of the settings. If the kernel does not allow an ensemble, sessions have the
/// kernel's default, and one event reports it.
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

/// The congestion control programs (BPF) that were loaded. Each is loaded at its first use, and stays for the lifetime
/// of the process, because it is registered in the kernel once for all sessions. At most four exist: one for each
/// combination of the sharing and the growth of the window.
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
                "no ensembles: each connection uses the kernel's default congestion control"
            );
            None
        }
    }
}
