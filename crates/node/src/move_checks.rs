//! Checks whether a volume can be moved.

use std::sync::Arc;

use ::names::MOST_COUNT;
use config::{IscsiTargetSettings, Layer, Unit};
use control::Failure;
use volume::Watched;

use super::{Node, ServedUnit, outgoing_move::Move};

impl Node {
    pub(super) async fn find_volume(
        &self,
        named: &str,
    ) -> Result<(IscsiTargetSettings, Unit, ServedUnit), Failure> {
        let name = named.strip_prefix("gln:").unwrap_or(named);
        let is_it = |target: &IscsiTargetSettings, unit: &Unit| {
            target.name.0 == named || unit.volume.as_ref().is_some_and(|v| v.as_str() == name)
        };
        let found = {
            let inner = self.inner.lock();
            let targets = inner.settings.target.iter();
            let mut all =
                targets.flat_map(|target| target.unit.iter().map(move |unit| (target, unit)));
            all.find(|(target, unit)| is_it(target, unit)).and_then(|(target, unit)| {
                let served = inner.targets.iter().find(|served| served.name == target.name.0)?;
                let served = served.units.iter().find(|served| served.lun == unit.lun)?;
                Some((target.clone(), unit.clone(), served.clone()))
            })
        };
        if let Some(found) = found {
            return Ok(found);
        }
        let failure = Failure::new(format!("there is no volume {named} here"));
        let place = match name.parse() {
            Ok(volume) => self.naming()?.locate(&volume).await.ok(),
            Err(_) => None,
        };
        Err(match place {
            Some(place) if place.gln != self.naming()?.gln() => failure.remedy(format!(
                "it is on the node {} ({}): use the command there",
                place.node, place.gln
            )),
            _ => failure.remedy("`forebay names` shows the volumes that are known, and where"),
        })
    }
}

/// Checks whether the unit can move. Returns the layer that records which blocks change meanwhile.
pub(super) fn movable(
    target: &IscsiTargetSettings,
    unit: &Unit,
    served: &ServedUnit,
) -> Result<Arc<Watched>, Failure> {
    let name = &target.name;
    let refused = |what: &str, remedy: &str| {
        Err(Failure::new(format!("{name} cannot be moved: {what}")).remedy(remedy))
    };
    served.movable()?;
    if target.unit.len() != 1 {
        return refused("it has several units", "give the volume a target of its own, and restart");
    }
    if unit.generation.saturating_add(1) >= MOST_COUNT {
        return refused(
            "its move counter is at its maximum (2^52)",
            "give it another name (`volume`), with a `generation` of 0",
        );
    }
    if let Some((what, remedy)) = unit.stack.iter().find_map(Layer::prevents_move) {
        return refused(what, remedy);
    }
    if served.unit.abilities().claims.is_some_and(|unit| !unit.sharers().is_empty()) {
        return refused(
            "several gateways share it",
            "stop those gateways, and start them after the move",
        );
    }
    if served.movable()?.is_sanitizing() {
        return refused("it is being sanitized", "wait until that is done");
    }
    served.opened.watched.clone().ok_or_else(|| unnamed(target))
}

/// Fails if a sanitize operation runs. It continues after its command has ended, and may have begun since the last
/// check.
pub(super) fn not_sanitizing(moved: &Move) -> Result<(), Failure> {
    match moved.served.movable()?.is_sanitizing() {
        true => Err(Failure::new(format!("{} is being sanitized", moved.described.volume))
            .remedy("wait until that is done")),
        false => Ok(()),
    }
}

pub(super) fn unnamed(target: &IscsiTargetSettings) -> Failure {
    Failure::new(format!("the volume of {} has no name", target.name)).remedy(
        "add `volume = \"NAME\"` to its unit, and restart: others find it by that name after the move",
    )
}
