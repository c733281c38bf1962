//! The layer `half`: the half of a pair's log that is at this gateway, for the partner.

use config::MirrorLegLayerSettings;
use control::Failure;
use volume::Stack;

use super::running::OpenedLayer;

/// Takes the half that the node has opened.
///
/// # Errors
/// The half is `None`: it is open while `forebay serve` runs only.
pub fn open(
    settings: &MirrorLegLayerSettings,
    half: Option<Stack>,
) -> Result<OpenedLayer, Failure> {
    let volume = half.ok_or_else(|| {
        Failure::new(format!("the half of the log of {} is not open here", settings.of))
            .remedy("it is there while `forebay serve` runs")
    })?;
    Ok(OpenedLayer::plain("half", settings.of.to_string(), volume))
}
