//! The layer `half`: exports this gateway's leg of a pair's log to the partner gateway.

use config::MirrorLegLayerSettings;
use control::Failure;
use volume::Stack;

use super::running::OpenedLayer;

/// Uses the leg `half`, which the process has opened.
///
/// # Errors
/// `half` is `None`: the leg is open only while `forebay serve` runs.
pub fn open(
    settings: &MirrorLegLayerSettings,
    half: Option<Stack>,
) -> Result<OpenedLayer, Failure> {
    let volume = half.ok_or_else(|| {
        Failure::new(format!("the leg of the log of {} is not open here", settings.of))
            .remedy("it is open while `forebay serve` runs")
    })?;
    Ok(OpenedLayer::plain("half", settings.of.to_string(), volume))
}
