//! The trait that every volume implements.

use std::sync::Arc;

use crate::{Data, Durability, Error, Extensions, Extent, FlushBegunCallback, Geometry, Io, Lba};

/// An array of blocks that behaves like a SCSI disk with a volatile write cache: between two flushes, writes may reach
/// stable storage in any order.
///
/// Every call must be *in range and whole*: extents inside [`Geometry::blocks`], data a multiple of the block size,
/// never empty. [`CheckedVolume`](crate::CheckedVolume) checks this.
///
/// Dropping a returned future abandons the call: the call may have been performed, or not, or in part (but never a
/// part of a block). It does not affect other calls or blocks outside of its extent.
pub trait Volume: Send + Sync + 'static {
    /// Returns the size and abilities of the volume. They change only when the volume is resized.
    fn geometry(&self) -> Geometry;

    /// Reads the blocks of `extent`. A block that was never written reads as zeros.
    fn read(&self, extent: Extent) -> Io<'_, Data>;

    /// Replaces the blocks from `lba` on. With [`Durability::Stable`] they are on stable storage
    /// when the call returns; otherwise after the next [`Volume::flush`].
    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()>;

    /// Makes every write and discard stable that was answered before this call.
    fn flush(&self) -> Io<'_, ()>;

    /// Makes the blocks read as zeros, and frees their space if the storage can do that.
    fn discard(&self, extent: Extent) -> Io<'_, ()>;

    /// Returns `Ok` if a write of `bytes` bytes would be accepted now. Called before the data of a write is solicited
    /// (R2T). A layer asks the volume below it, unless the layer itself decides when writes are accepted.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Away`] or another error that the write would fail with now.
    fn admit(&self, bytes: usize) -> Result<(), Error>;

    /// Returns the optional abilities of this volume. A layer lists here each ability that it passes on from the
    /// volume below it. Each call creates a new list, without an allocation.
    fn extensions(&self) -> Extensions<'_>;
}

/// A volume that may consist of several layers, each over the volume below it.
pub type Stack = Arc<dyn Volume>;

/// Flushes `volume` as [`OrderedFlush::flush_ahead`](crate::OrderedFlush::flush_ahead) does. If the volume does not
/// have this ability, never calls `begun`.
pub fn flush_ahead<'a>(volume: &'a dyn Volume, begun: FlushBegunCallback<'a>) -> Io<'a, ()> {
    match volume.extensions().ordered_flush {
        Some(ordered) => ordered.flush_ahead(begun),
        None => {
            drop(begun);
            volume.flush()
        }
    }
}

/// Examines `extent` as [`RedundantCopies::examine`](crate::RedundantCopies::examine) does. If the volume does not
/// have this ability, reads the only copy and judges it.
pub fn examine<'a>(
    volume: &'a dyn Volume,
    extent: Extent,
    is_right: &'a (dyn Fn(&Data) -> bool + Sync),
) -> Io<'a, Option<Data>> {
    if let Some(copies) = volume.extensions().copies {
        return copies.examine(extent, is_right);
    }
    let read = volume.read(extent);
    Io::new(async move { Ok(Some(read.await?).filter(is_right)) })
}
