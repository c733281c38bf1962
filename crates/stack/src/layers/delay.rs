//! The layer `delay`: makes calls to the volume below slower.

use std::{num::NonZeroU64, sync::Arc};

use config::DelayLayerSettings;
use volume::{DelayVolume, Latency, Stack};

use super::running::OpenedLayer;

pub fn open(settings: &DelayLayerSettings, lower: Stack) -> OpenedLayer {
    let (read, write, flush) = (settings.read, settings.write, settings.flush);
    let latency = Latency { read: read.0, write: write.0, flush: flush.0 };
    let what = format!("read {read}, write {write}, flush {flush}");
    let on = match settings.every {
        None => what,
        Some(every) => format!("{what}, one of {every} calls"),
    };
    let every = settings.every.unwrap_or(NonZeroU64::MIN);
    OpenedLayer::plain("delay", on, Arc::new(DelayVolume::of_every(every, lower, latency)))
}
