//! Opens files and block devices: converts settings to options, and errors to remedies.

use std::{path::Path, sync::Arc, time::Duration};

use config::{CacheLayerSettings, File, FileEngineSetting};
use control::Failure;
use tokio::time::Instant;
use volume::{EngineKind, FileVolume, FileVolumeOpenError, FileVolumeOptions, UntrustedLink};

use super::{space, watch};
use crate::{
    not_opened::NotOpened,
    records::{KeptVolume, Recorder},
};

/// Converts the settings of a `file` layer to the options of the crate `volume`.
pub fn options(file: &File) -> FileVolumeOptions {
    FileVolumeOptions {
        path: file.path.clone(),
        block_size: u32::try_from(file.block_size.0).unwrap_or(u32::MAX),
        create: file.size.map(|size| size.0),
        preallocate: file.preallocate,
        direct: file.direct,
        engine: engine(file.engine),
        read_only: file.read_only,
    }
}

/// Returns the options for the log of a cache, or for the leg of its mirror at `path`. The file is
/// preallocated: a durable write to blocks that were never written takes twice as long.
///
/// An existing file keeps its size, because it may have been resized. A new leg gets the size of the other
/// one.
pub fn log_options(cache: &CacheLayerSettings, path: &Path) -> FileVolumeOptions {
    let size_of = |path: &Path| {
        let found = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
        (found.len() > 0).then_some(found.len())
    };
    let other = [Some(&cache.log), cache.log_mirror.as_ref()]
        .into_iter()
        .flatten()
        .find_map(|p| size_of(p));
    let create = match size_of(path) {
        Some(_) => None,
        None => other.or(cache.log_size.map(|size| size.0)),
    };
    FileVolumeOptions {
        path: path.to_owned(),
        block_size: 4096,
        create,
        preallocate: true,
        direct: cache.log_direct,
        engine: engine(cache.log_engine),
        read_only: false,
    }
}

/// Longest wait for the lock of a file. The kernel holds the files and locks of a killed process until its
/// last writes have ended: some milliseconds longer than the process itself, more on a busy disk.
pub const RELEASED_WITHIN: Duration = Duration::from_secs(2);
/// Interval of the attempts to lock a file that is in use.
pub const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Opens a volume file or device to serve it. Fails if it does not agree with its record. Creates a file only
/// where none is recorded. A file that is only read is not recorded.
pub async fn open_recorded(
    settings: &File,
    recorder: &Recorder,
) -> Result<(Arc<FileVolume>, Option<Arc<KeptVolume>>), NotOpened> {
    let before = recorder.look_at_volume(&settings.path)?;
    let volume = try_open(options(settings)).await?.map_err(|error| not_opened(&error))?;
    let volume = Arc::new(volume);
    space::watch(&volume, settings.path.clone());
    if settings.read_only {
        return Ok((volume, None));
    }
    watch::fence(&volume);
    before.warn_if_unrecorded();
    let kept = before.keep(&volume)?;
    kept.note_first_write();
    Ok((volume, Some(kept)))
}

/// Decides which units an error affects. If a volume cannot be opened, only its own unit is not served. A wrong setting
/// ends the start of the process.
fn not_opened(error: &FileVolumeOpenError) -> NotOpened {
    let failure = refusal(error);
    match error {
        FileVolumeOpenError::BlockSize(_) => NotOpened::Failed(failure),
        FileVolumeOpenError::Empty(_)
        | FileVolumeOpenError::InUse(_)
        | FileVolumeOpenError::Io { .. }
        | FileVolumeOpenError::NoRoom { .. }
        | FileVolumeOpenError::NoStorage(_)
        | FileVolumeOpenError::WrongSize { .. } => NotOpened::Refused(failure),
    }
}

/// Opens a volume file. If another process is using it, waits a moment and tries again.
pub async fn open(options: FileVolumeOptions) -> Result<FileVolume, Failure> {
    try_open(options).await?.map_err(|error| refusal(&error))
}

/// Opens a file as [`open`] does, for a caller that handles the errors of the volume itself.
pub async fn try_open(
    options: FileVolumeOptions,
) -> Result<Result<FileVolume, FileVolumeOpenError>, Failure> {
    let deadline = Instant::now() + RELEASED_WITHIN;
    loop {
        match open_once(options.clone()).await? {
            Err(FileVolumeOpenError::InUse(_)) if Instant::now() < deadline => {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            opened => return Ok(opened),
        }
    }
}

/// Opens a volume file once, on a blocking thread, because filling a new file may take long.
async fn open_once(
    options: FileVolumeOptions,
) -> Result<Result<FileVolume, FileVolumeOpenError>, Failure> {
    let path = options.path.clone();
    let mut told = 0;
    let mut is_filled = false;
    let mut progress = move |done: u64, all: u64| {
        // Report nothing for a file that has all its blocks already: for such a file, the first call has `done` equal
        // to `all`.
        is_filled |= done < all;
        let tenth = done * 10 / all.max(1);
        if is_filled && tenth > told {
            told = tenth;
            tracing::info!(path = %path.display(), percent = tenth * 10, "filling");
        }
    };
    let open = move || FileVolume::open_with_progress(&options, &mut progress);
    tokio::task::spawn_blocking(open).await.map_err(Failure::new)
}

/// Returns the message and the remedy for a file that cannot be opened.
pub fn refusal(error: &FileVolumeOpenError) -> Failure {
    let remedy = match error {
        FileVolumeOpenError::BlockSize(_) => "change `size`, `log_size` or `block_size`".into(),
        FileVolumeOpenError::Empty(_) => "set `size` (or `log_size`), and it is created".into(),
        FileVolumeOpenError::InUse(path) => format!(
            "stop the other process that uses it (`fuser {}` names it), or name another file",
            path.display()
        ),
        FileVolumeOpenError::Io { source, path, .. } => io_remedy(source, path),
        FileVolumeOpenError::NoRoom { .. } => {
            "make room on its file system, or set a smaller size".into()
        }
        FileVolumeOpenError::NoStorage(_) => "name a file or a block device".into(),
        FileVolumeOpenError::WrongSize { found, .. } => format!(
            "omit `size` (or `log_size`) to use its present size, write \"{}\", or name another file",
            config::quantity::Size(*found)
        ),
    };
    Failure::new(error).remedy(remedy)
}

/// Returns the remedy for an error of the system.
pub fn io_remedy(error: &std::io::Error, path: &Path) -> String {
    if let Some(link) = UntrustedLink::of(error) {
        return link.remedy();
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match error.kind() {
        std::io::ErrorKind::NotFound if folder.is_some_and(|folder| !folder.exists()) => {
            format!("create its folder first: mkdir -p {}", folder.unwrap_or(path).display())
        }
        std::io::ErrorKind::NotFound => "set `size` (or `log_size`), and it is created".into(),
        std::io::ErrorKind::PermissionDenied => {
            "run as a user who may read and write it, or change its mode".into()
        }
        std::io::ErrorKind::StorageFull => {
            "make room on its file system, or set a smaller size".into()
        }
        _ => "remove the cause that the system reports".into(),
    }
}

fn engine(engine: FileEngineSetting) -> EngineKind {
    match engine {
        FileEngineSetting::Auto => EngineKind::Auto,
        FileEngineSetting::Uring => EngineKind::Uring,
        FileEngineSetting::Threads => EngineKind::Psync,
    }
}
