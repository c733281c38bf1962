//! The layer `fault`: makes calls to the volume below fail.

use std::sync::Arc;

use config::{FaultError, FaultLayerSettings, FaultOperationSetting};
use volume::{Error, Extent, FaultCallKind, FaultRule, FaultVolume, Lba, Stack, Symptom};

use super::running::OpenedLayer;

/// Puts a layer in front of `lower` that makes calls fail as the settings say.
pub fn open(settings: &FaultLayerSettings, lower: Stack) -> OpenedLayer {
    let volume = FaultVolume::new(lower);
    volume.faults().add(rule(settings));
    let what = format!("{:?} of {:?}", settings.error, settings.operation);
    OpenedLayer::plain("fault", what.to_lowercase(), Arc::new(volume))
}

fn rule(settings: &FaultLayerSettings) -> FaultRule {
    let call = match settings.operation {
        FaultOperationSetting::Any => FaultCallKind::Any,
        FaultOperationSetting::Read => FaultCallKind::Read,
        FaultOperationSetting::Write => FaultCallKind::Write,
        FaultOperationSetting::Flush => FaultCallKind::Flush,
        FaultOperationSetting::Discard => FaultCallKind::Discard,
    };
    let reason = "a fault layer says so";
    let symptom = match settings.error {
        FaultError::Medium => Symptom::Fails(Error::Medium {
            extent: Extent { lba: Lba(0), blocks: 1 },
            reason: reason.into(),
        }),
        FaultError::NoSpace => Symptom::Fails(Error::NoSpace),
        FaultError::Busy => Symptom::Fails(Error::Busy(reason)),
        FaultError::Unreachable => Symptom::Fails(Error::Away(reason.into())),
        FaultError::Device => Symptom::Fails(Error::Device(reason.into())),
        FaultError::Hang => Symptom::Hangs,
    };
    let rule = FaultRule::always(call, symptom).after(settings.after);
    if settings.count == 0 { rule } else { rule.times(settings.count) }
}
