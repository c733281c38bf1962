//! The layer `file`: a file or block device of one unit, or one of which several units have slices.

use std::{os::unix::fs::FileTypeExt, sync::Arc};

use config::{File, Layer, Slice};
use control::{Failure, FileFigures, LayerFigures};
use volume::{FileVolume, Stack, Volume};

use super::running::{LayerFuture, OpenedLayer, RunningLayer, StackLayer};
use crate::{
    file,
    not_opened::NotOpened,
    parts::{FilePart, SlicedFiles},
    records::{KeptVolume, Recorder},
};

pub struct FileUse<'a> {
    pub settings: &'a File,
    /// The slice layer directly above the file; `None` if the unit uses the whole file.
    pub slice: Option<&'a Slice>,
    /// Name of the unit in messages.
    pub unit: String,
    /// True if the file is under a common cache.
    pub is_common: bool,
}

/// Opens the file. If other units have slices of it, all of them share one open file.
///
/// # Errors
/// The file cannot be used, does not agree with its record, or another unit uses some of its bytes.
pub async fn open(
    wanted: FileUse<'_>,
    files: &SlicedFiles,
    recorder: &Recorder,
) -> Result<(OpenedLayer, Arc<FileLayer>), NotOpened> {
    let FileUse { settings, slice, unit, is_common } = wanted;
    let path = settings.path.canonicalize().unwrap_or_else(|_| settings.path.clone());
    let described =
        |file: &FileVolume| format!("{} ({:?})", path.display(), file.engine()).to_lowercase();
    let (volume, running): (Stack, FileLayer) = match slice {
        None => {
            let (file, record) = file::open_recorded(settings, recorder).await?;
            let on = described(&file);
            (Arc::clone(&file) as Stack, FileLayer { file, record, part: None, on })
        }
        Some(slice) => {
            let part = files.open(settings, recorder, slice.range(), unit).await?;
            let part = Arc::new(part);
            let (file, record) = (Arc::clone(part.file()), part.record().cloned());
            let on = described(&file);
            (Arc::clone(&part) as Stack, FileLayer { file, record, part: Some(part), on })
        }
    };
    // Device numbers change with each boot. Under a common cache, a device that is named by a link keeps the name of
    // the link, so that it is not mistaken for another device of the same log.
    let is_device = path.metadata().is_ok_and(|found| found.file_type().is_block_device());
    let name = if is_common && is_device { &settings.path } else { &path };
    let identity = Some(format!("file {}", name.display()));
    let running = Arc::new(running);
    let layer = StackLayer::new("file", running.on.clone(), Arc::clone(&running) as _);
    Ok((OpenedLayer { volume, layer, identity }, running))
}

pub struct FileLayer {
    file: Arc<FileVolume>,
    /// The record of the file; `None` if the file is only read.
    record: Option<Arc<KeptVolume>>,
    /// The bytes of the file that this unit uses; `None` if no other unit can have a slice of the file.
    part: Option<Arc<FilePart>>,
    /// The text that `forebay status` shows for the storage of the layer.
    on: String,
}

impl FileLayer {
    /// Grows the file to `bytes`, or to the present size of its device if `bytes` is `None`.
    ///
    /// # Errors
    /// The file cannot grow.
    pub async fn grow(&self, bytes: Option<u64>) -> Result<(), Failure> {
        let file = Arc::clone(&self.file);
        // Run on a blocking thread, because filling a preallocated file may take long.
        let grown = tokio::task::spawn_blocking(move || file.grow(bytes)).await;
        grown.map_err(Failure::new)?.map_err(|error| {
            Failure::new(format!("{} cannot grow: {error}", self.on))
                .remedy("request more than the present size, in whole blocks, and make room for it")
        })?;
        // An error of the record is only reported. An outdated record does no harm, because a volume may be larger than
        // recorded.
        self.note().await;
        Ok(())
    }

    /// Updates the record of the file: its present size, and whether it holds data.
    async fn note(&self) {
        let Some(record) = self.record.clone() else { return };
        if let Ok(Err(failure)) = tokio::task::spawn_blocking(move || record.note()).await {
            tracing::warn!(%failure, "the record of a volume cannot be renewed");
        }
    }
}

impl RunningLayer for FileLayer {
    fn figures(&self) -> LayerFigures {
        // For a block device, `usage` returns `None`: all its space is allocated.
        let usage = self.file.extensions().usage();
        LayerFigures::File(FileFigures {
            refused_no_space: *self.file.refusals().borrow(),
            allocated_bytes: usage.map(|usage| usage.used),
            free_bytes: usage.map(|usage| usage.available),
            ..FileFigures::default()
        })
    }

    fn follow<'a>(
        &'a self,
        settings: &'a Layer,
        _below: Option<&'a dyn RunningLayer>,
    ) -> LayerFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            match settings {
                // Grow only if the file is smaller than its setting: another unit with a slice of the file may have
                // grown it already.
                Layer::File(File { size: Some(size), .. })
                    if size.0 > self.file.geometry().bytes() =>
                {
                    self.grow(Some(size.0)).await
                }
                _ => Ok(()),
            }
        })
    }

    fn reserve_for_slice(&self, bytes: u64) -> Result<(), Failure> {
        self.part.as_ref().map_or(Ok(()), |part| part.extend(bytes))
    }

    fn stop(&self) -> LayerFuture<'_, Result<(), Failure>> {
        Box::pin(async {
            self.note().await;
            Ok(())
        })
    }
}
