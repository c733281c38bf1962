//! The layer `observe`: counts the calls to the volume below.

use std::sync::Arc;

use config::ObserveLayerSettings;
use control::{LayerFigures, ObserveFigures};
use volume::{ObserveVolume, Stack, VolumeCallCounters};

use super::running::{OpenedLayer, RunningLayer, StackLayer};

pub fn open(settings: &ObserveLayerSettings, lower: Stack) -> OpenedLayer {
    let volume = ObserveVolume::new(lower);
    let running = Arc::new(ObserveLayer(Arc::clone(volume.counters())));
    OpenedLayer {
        volume: Arc::new(volume),
        layer: StackLayer::new("observe", settings.name.clone(), running),
        identity: None,
    }
}

struct ObserveLayer(Arc<VolumeCallCounters>);

impl RunningLayer for ObserveLayer {
    fn figures(&self) -> LayerFigures {
        let counts = self.0.counts();
        LayerFigures::Observe(ObserveFigures {
            reads: counts.reads,
            writes: counts.writes,
            flushes: counts.flushes,
            discards: counts.discards,
            read_bytes: counts.bytes_read,
            written_bytes: counts.bytes_written,
            discarded_bytes: counts.bytes_discarded,
            errors: counts.errors,
            busy: counts.busy,
            ..ObserveFigures::default()
        })
    }
}
