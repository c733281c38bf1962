//! The layer `disk`.

use std::sync::Arc;

use config::DiskLayerSettings;
use volume::{DiskVolume, Stack};

use super::running::OpenedLayer;

/// Gives `lower` the service times of the disk.
///
/// # Panics
/// The settings name no known model, which their check excludes.
pub fn open(settings: &DiskLayerSettings, lower: Stack) -> OpenedLayer {
    let profile = settings.profile().expect("the settings are checked");
    OpenedLayer::plain("disk", settings.model.clone(), Arc::new(DiskVolume::new(lower, profile)))
}
