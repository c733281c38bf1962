//! Checks the free space for the files that a start would create.

use std::{collections::HashMap, os::unix::fs::MetadataExt};

use config::{Layer, Settings};
use control::Failure;
use volume::FileVolumeOptions;

use super::report::SettingsCheckReport;

/// Checks, for each file system, that there is space for all files together that a start would create and fill. Each
/// file alone may fit although all of them do not.
pub(super) fn room(settings: &Settings, report: &mut SettingsCheckReport) -> Result<(), Failure> {
    let units = settings.target.iter().flat_map(|target| &target.unit);
    let mut wanted = Vec::new();
    let mut log = |cache: &config::CacheLayerSettings| {
        let paths = [Some(&cache.log), cache.log_mirror.as_ref()];
        wanted.extend(paths.into_iter().flatten().map(|path| stack::log_options(cache, path)));
    };
    settings.common_cache.iter().for_each(|common| log(&common.cache));
    let layers: Vec<_> = units.flat_map(|unit| &unit.stack).collect();
    for layer in &layers {
        if let Layer::Cache(cache) = layer {
            log(cache);
        }
    }
    // Count the space of a file once, even if several units have slices of it.
    let files = layers.iter().filter_map(|layer| match layer {
        Layer::File(file) if !file.read_only => Some(stack::options(file)),
        _ => None,
    });
    wanted.extend(files);
    wanted.sort_by(|a, b| a.path.cmp(&b.path));
    wanted.dedup_by(|a, b| a.path == b.path);
    let mut by_device: HashMap<u64, (u64, Vec<String>, u64)> = HashMap::new();
    for FileVolumeOptions { path, create, preallocate, .. } in wanted {
        let is_there = path.metadata().is_ok_and(|found| !found.is_file() || found.len() > 0);
        let Some(needed) = create.filter(|_| preallocate && !is_there) else { continue };
        let folder = path.parent().and_then(|folder| folder.metadata().ok());
        let (Some(folder), Ok(free)) = (folder, volume::free_bytes(&path)) else { continue };
        let (all, paths, _) = by_device.entry(folder.dev()).or_insert((0, Vec::new(), free));
        *all = all.saturating_add(needed);
        paths.push(path.display().to_string());
    }
    for (all, paths, free) in by_device.into_values() {
        if paths.len() > 1 && all > free {
            let message = format!(
                "{} would be made and need {all} bytes together, but their file system has {free} \
                 free",
                paths.join(" and ")
            );
            let failure = Failure::new(message)
                .remedy("free space on their file system, or reduce the sizes");
            report.say("room", Err(failure))?;
        }
    }
    Ok(())
}
