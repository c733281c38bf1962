//! Opens the file or device of a cache's read tier, and converts errors to remedies.

use std::{path::Path, sync::Arc};

use cache::{Cache, CacheStatistics, TierError};
use control::{Failure, ReadTierFigures};
use volume::{FileVolumeOpenError, FileVolumeOptions, Stack, UntrustedLink};

use super::{file, watch};
use crate::not_opened::NotOpened;

/// Returns the options for the disk of a read tier. An existing file keeps its size. A new file is not
/// preallocated, because blocks are read only after they were written.
pub fn options(cache: &config::CacheLayerSettings, path: &Path) -> FileVolumeOptions {
    let is_there = path.metadata().is_ok_and(|found| !found.is_file() || found.len() > 0);
    FileVolumeOptions {
        create: cache.read_tier_size.map(|size| size.0).filter(|_| !is_there),
        preallocate: false,
        direct: true,
        ..file::log_options(cache, path)
    }
}

/// Opens the read tier of the cache, if the settings name one. If its disk is missing or broken, an event
/// reports it, and the cache runs without a tier. If the file holds other data, the units of this cache are
/// not served.
pub async fn open(
    settings: &config::CacheLayerSettings,
    cache: &Arc<Cache>,
) -> Result<(), NotOpened> {
    let Some(path) = &settings.read_tier else { return Ok(()) };
    let disk = match file::try_open(options(settings, path)).await? {
        Ok(volume) => Arc::new(volume),
        Err(FileVolumeOpenError::Io { doing, source, .. })
            if UntrustedLink::of(&source).is_none() =>
        {
            cache.go_without_tier(format!("cannot {doing} it: {source}").into());
            return Ok(());
        }
        Err(error) => return Err(NotOpened::Refused(file::refusal(&error))),
    };
    watch::tier(cache, &disk);
    let used = cache.use_tier(disk as Stack).await;
    used.map_err(|error| NotOpened::Refused(refusal(path, &error)))
}

/// Returns the message and the remedy for a disk that cannot be used as a read tier.
pub fn refusal(path: &Path, error: &TierError) -> Failure {
    let name = path.display();
    let remedy = match error {
        TierError::Clear | TierError::OtherLog(_) => format!(
            "remove the file, or discard the device (blkdiscard -z {name}), if nothing else uses it: the far \
             volume has all data of a read tier"
        ),
        TierError::NotATier => format!(
            "name the right file or device; if the content of this one is not needed, write zeros over its \
             first 128 KiB (dd if=/dev/zero of={name} bs=128K count=1 conv=notrunc)"
        ),
        TierError::Means(_) => {
            "use a smaller one: its index needs 20 bytes of memory for each 4 KiB".into()
        }
        TierError::Size => "give it another `read_tier_size`, or another device".into(),
        TierError::Version(_) => "use the newer Forebay, or remove the file".into(),
    };
    Failure::new(format!("cannot use {name} as read tier: {error}")).remedy(remedy)
}

pub fn figures(
    settings: &config::CacheLayerSettings,
    counted: &CacheStatistics,
) -> Option<ReadTierFigures> {
    settings.read_tier.as_ref()?;
    Some(ReadTierFigures {
        tier_used_bytes: counted.tier.used_bytes,
        tier_bytes: counted.tier.bytes,
        tier_admitted_slots: counted.tier.admitted_slots,
        tier_dropped_slots: counted.tier.dropped_slots,
        tier_rotten_slots: counted.tier.rotten_slots,
        tier_error: counted.tier.error.clone(),
    })
}
