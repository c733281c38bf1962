//! The layer `slice`: a contiguous part of the volume below.

use std::{fmt::Display, sync::Arc};

use config::{Layer, Slice};
use control::Failure;
use volume::{Geometry, Lba, SliceVolume, Stack, Volume};

use super::running::{LayerFuture, OpenedLayer, RunningLayer, StackLayer, cannot_grow};

/// Opens the slice of `lower`. A log above knows `lower` by the name `identity`.
///
/// # Errors
/// The slice does not fit on `lower`.
pub fn open(settings: &Slice, lower: Stack, identity: &str) -> Result<OpenedLayer, Failure> {
    let Geometry { block_size, blocks, .. } = lower.geometry();
    let per_block = u64::from(block_size);
    let refused = |what: &dyn Display| {
        Failure::settings(format!("a slice does not fit on the layer below: {what}")).remedy(
            format!("the volume below has {} bytes, in blocks of {block_size}", blocks * per_block),
        )
    };
    let start = settings.start.0;
    let size = settings.size.map_or((blocks * per_block).saturating_sub(start), |size| size.0);
    if !start.is_multiple_of(per_block) || !size.is_multiple_of(per_block) {
        return Err(refused(&"it does not begin or end with a block"));
    }
    let volume = SliceVolume::new(lower, Lba(start / per_block), size / per_block)
        .map_err(|error| refused(&error))?;
    let volume = Arc::new(volume);
    let on = format!("{size} bytes from {start}");
    let running = SliceLayer {
        volume: Arc::clone(&volume),
        start,
        on: on.clone(),
        reaches_end: settings.size.is_none(),
    };
    Ok(OpenedLayer {
        volume,
        layer: StackLayer::new("slice", on, Arc::new(running)),
        // Leave the size out of the name: a slice that has grown is still the same volume and belongs to the same log.
        identity: Some(format!("{identity} [from {start}]")),
    })
}

struct SliceLayer {
    volume: Arc<SliceVolume>,
    /// Offset of the slice in bytes.
    start: u64,
    /// Where the slice is, as text for `forebay status`, from the time when it was opened.
    on: String,
    /// True if the slice extends to the end of the volume below it.
    reaches_end: bool,
}

impl SliceLayer {
    fn grow_to(&self, bytes: u64, below: Option<&dyn RunningLayer>) -> Result<(), Failure> {
        let block_size = u64::from(self.volume.geometry().block_size);
        if !bytes.is_multiple_of(block_size) {
            return Err(cannot_grow("slice", &self.on, &"it would not end with a block"));
        }
        // Reserve the bytes before the slice grows, which fails if they belong to another unit.
        if let Some(below) = below {
            below.reserve_for_slice(bytes)?;
        }
        let grown = self.volume.grow(Some(bytes / block_size));
        grown.map_err(|error| cannot_grow("slice", &self.on, &error))
    }
}

impl RunningLayer for SliceLayer {
    fn on(&self) -> Option<String> {
        Some(format!("{} bytes from {}", self.volume.geometry().bytes(), self.start))
    }

    fn follow<'a>(
        &'a self,
        settings: &'a Layer,
        below: Option<&'a dyn RunningLayer>,
    ) -> LayerFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            match settings {
                Layer::Slice(Slice { size: Some(size), .. }) => self.grow_to(size.0, below),
                _ => Ok(()),
            }
        })
    }

    fn grow_with_lower(&self) -> Result<(), Failure> {
        if !self.reaches_end {
            return Ok(());
        }
        let grown = self.volume.grow(None);
        grown.map_err(|error| cannot_grow("slice", &self.on, &error))
    }
}
