//! The units of a common cache, opened together: their lower layers, one cache over all of them, and
//! what lies on that in each.

use std::sync::Arc;

use cache::CommonMember;
use config::{IscsiName, IscsiTargetSettings, Layer, Unit};
use control::{Failure, UnitName};

use super::{
    Building, FindFarVolume, Handle, OpenedStack, SlicedFiles, StackInput, StackLayer,
    cache_layer::{self, CacheLayer},
    known_as,
};
use crate::{not_opened::NotOpened, records::Records};

/// Opens all units of a common cache, bottom first.
pub async fn open_common(
    settings: &config::CacheLayerSettings,
    units: &[(&IscsiTargetSettings, &Unit)],
    initiator_name: &IscsiName,
    names: Option<Arc<dyn FindFarVolume>>,
    files: &SlicedFiles,
    records: &Records,
) -> Result<Vec<OpenedStack>, NotOpened> {
    let name = units.iter().find_map(|(_, unit)| unit.in_common()).unwrap_or_default();
    let recorder = records.recorder(format!("common cache {name}")).in_common();
    let log = cache_layer::open_recorded_log(settings, &recorder).await?;
    let mut buildings = Vec::new();
    for (target, unit) in units {
        let recorder = records.recorder(format!("{}/{}", target.name, unit.lun)).in_common();
        let mut building = Building::new(
            &target.name,
            unit,
            initiator_name,
            names.clone(),
            files,
            (StackInput::Nothing, recorder),
        );
        building.common_log = Some(&settings.log);
        let below = below(unit);
        if below.iter().skip(1).all(Layer::keeps_size) {
            building.known = log.known_by(known_by(target, unit));
        }
        building.add(0..below.len()).await?;
        building.identity = known_as(&building.identity, log.names());
        buildings.push(building);
    }
    for (at, building) in buildings.iter().enumerate() {
        let same = buildings[..at].iter().find(|other| other.identity == building.identity);
        if let Some(same) = same {
            let name = |b: &Building| format!("{}/{}", b.target, b.unit.lun);
            let (one, other) = (name(same), name(building));
            let what = format!("{one} and {other} are the same volume ({})", building.identity);
            let failure = Failure::new(what);
            return Err(failure.remedy("take one of them out of the common cache").into());
        }
    }
    let members = buildings.iter().zip(units).map(|(building, (target, unit))| CommonMember {
        name: building.identity.clone(),
        key: known_by(target, unit),
        lower: building.below.clone().expect("settings put a bottom first"),
    });
    let opened = CacheLayer::open_common(settings, members.collect(), log, &initiator_name.0);
    let (cache, above) = opened.await?;
    let cache = Arc::new(cache);
    let names: Vec<_> = buildings.iter().map(|building| building.identity.as_str()).collect();
    cache.watch(names.join(", "), buildings.iter().flat_map(Building::links).collect());
    let mut opened = Vec::new();
    for (mut building, stack) in buildings.into_iter().zip(above) {
        let name = building.unit.in_common().unwrap_or_default();
        let on = format!("{} (common cache {name})", settings.log.display());
        building.put(
            stack,
            StackLayer { layer: "cache", on, handle: Handle::Cache(Arc::clone(&cache)) },
        );
        let next = below(building.unit).len() + 1;
        building.add(next..building.unit.stack.len()).await?;
        opened.push(building.finish());
    }
    Ok(opened)
}

/// The layers below the common cache.
fn below(unit: &Unit) -> &[Layer] {
    let is_common = |layer: &Layer| matches!(layer, Layer::CommonCache(_));
    let end = unit.stack.iter().position(is_common).unwrap_or(unit.stack.len());
    &unit.stack[..end]
}

/// By what a log for several units knows one before its far side has answered: a number that lasts as
/// long as the target's name and the unit's.
pub fn known_by(target: &IscsiTargetSettings, unit: &Unit) -> u64 {
    known_as_unit(&UnitName { target: target.name.0.clone(), lun: unit.lun })
}

/// The same of a unit that the settings may not have any more.
pub fn known_as_unit(name: &UnitName) -> u64 {
    // FNV-1a: the same with every compiler.
    let name = name.to_string();
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
