//! The layer `memory`: a volume in memory, as the bottom of a stack.

use std::sync::Arc;

use config::MemoryLayerSettings;
use volume::{Geometry, MemVolume};

use super::running::{OpenedLayer, StackLayer};

pub fn open(settings: &MemoryLayerSettings) -> OpenedLayer {
    OpenedLayer {
        volume: Arc::new(MemVolume::new(geometry(settings))),
        layer: StackLayer::plain("memory", String::new()),
        identity: Some("memory".to_owned()),
    }
}

fn geometry(settings: &MemoryLayerSettings) -> Geometry {
    let block_size = u32::try_from(settings.block_size.0).unwrap_or(512);
    let bytes = settings.size.unwrap_or_default().0;
    let blocks = bytes / u64::from(block_size);
    // Memory keeps its content until the process ends and no longer, so a flush has no effect: report
    // no volatile cache.
    Geometry { block_size, volatile_cache: false, ..Geometry::with_blocks(blocks) }
}
