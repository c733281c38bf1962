//! Checks that a log, or an NVRAM without a log, may be used for a volume.

use journal::{identity::LogVolumeIdentity, superblock::Superblock};
use volume::{Geometry, Stack};

use crate::{
    inspect::check_size,
    nvram::{StableMemory, owner},
    refusal::CacheOpenError,
    settings::Settings,
};

/// Fails if the NVRAM is in use by a log. The log is missing then, and formatting the blank one would hide the
/// loss.
pub(super) fn check_new(
    nvram: Option<&dyn StableMemory>,
    settings: &Settings,
) -> Result<(), CacheOpenError> {
    match nvram.and_then(owner) {
        Some(found) if !settings.accept_loss => Err(CacheOpenError::LogMissing { found }),
        _ => Ok(()),
    }
}

/// Fails if the log does not belong to this volume, or is smaller than its superblock says.
pub(super) fn check_belongs(
    log: &Stack,
    superblock: &Superblock,
    identity: &LogVolumeIdentity,
    lower: Geometry,
) -> Result<(), CacheOpenError> {
    check_size(log, superblock)?;
    let recorded = &superblock.identity;
    if recorded.name != identity.name {
        return Err(CacheOpenError::OtherVolume {
            expected: identity.name.clone(),
            found: recorded.name.clone(),
        });
    }
    check_geometry(recorded, identity.geometry)?;
    check_geometry(recorded, lower)
}

/// Fails if `geometry` shows that the volume is not the one to which the log belongs.
pub(super) fn check_geometry(
    identity: &LogVolumeIdentity,
    geometry: Geometry,
) -> Result<(), CacheOpenError> {
    if identity.fits(geometry) {
        return Ok(());
    }
    Err(CacheOpenError::Geometry {
        recorded_blocks: identity.geometry.blocks,
        recorded_size: identity.geometry.block_size,
        blocks: geometry.blocks,
        size: geometry.block_size,
    })
}
