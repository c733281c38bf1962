//! The layer `disk`: simulates the service times of a disk.

use std::sync::Arc;

use config::DiskLayerSettings;
use volume::{DiskVolume, Stack};

use super::running::OpenedLayer;

/// Puts the service times of the configured disk model in front of `lower`.
///
/// # Panics
/// The settings name no known model, which their check excludes.
pub fn open(settings: &DiskLayerSettings, lower: Stack) -> OpenedLayer {
    let profile = settings.profile().expect("the settings are checked");
    OpenedLayer::plain("disk", settings.model.clone(), Arc::new(DiskVolume::new(lower, profile)))
}
