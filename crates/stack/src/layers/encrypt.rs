//! The layer `encrypt`: encrypts the volume below with the key in a key file.

use std::sync::Arc;

use config::EncryptLayerSettings;
use control::Failure;
use volume::{EncryptVolume, Stack};

use super::running::OpenedLayer;
use crate::key_file;

/// Opens the key file and encrypts `lower`.
///
/// # Errors
/// The key file or the secret that unlocks it cannot be used.
pub fn open(settings: &EncryptLayerSettings, lower: Stack) -> Result<OpenedLayer, Failure> {
    let (key, file) = key_file::open(settings)?;
    let volume = EncryptVolume::new(lower, &key, file);
    Ok(OpenedLayer::plain("encrypt", settings.key.display().to_string(), Arc::new(volume)))
}
