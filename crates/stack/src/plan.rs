//! The plan of a unit's stack: which layers are opened in which order. It is made from the settings alone and opens
//! nothing.

use std::path::Path;

use config::{
    CacheLayerSettings, File, IscsiName, IscsiTargetSettings, Layer, MemoryLayerSettings,
    MirrorLegLayerSettings, RemoteLayerSettings, Slice, Unit,
};
use control::UnitName;

#[derive(Debug, PartialEq)]
pub struct StackPlan<'a> {
    /// The first layer, which needs no layer below.
    pub bottom: BottomPlan<'a>,
    /// The layers between the bottom and the first cache, lowest first.
    pub below_cache: &'a [Layer],
    /// The first cache and the layers above it, lowest first; empty if the stack has no cache.
    pub from_cache: &'a [Layer],
}

#[derive(Debug, PartialEq)]
pub enum BottomPlan<'a> {
    Memory(&'a MemoryLayerSettings),
    /// A file, with the slice directly above it: other units may have other slices of the file.
    File(&'a File, Option<&'a Slice>),
    /// The local leg of a pair's log.
    Half(&'a MirrorLegLayerSettings),
    /// The bottom is a far volume: a unit of another target.
    Remote {
        settings: &'a RemoteLayerSettings,
        /// The cache whose log is opened before the far volume, since the log may have a record of that volume.
        log: Option<&'a CacheLayerSettings>,
        has_cache: bool,
        /// The name of the session with the target, which is the same after every start.
        lasting: String,
    },
}

impl<'a> StackPlan<'a> {
    /// Plans the stack of a unit of `target`. `us` is our iSCSI name. `common_log` is the log of the unit's common
    /// cache, if it has one.
    ///
    /// # Panics
    /// The unit has no layers, or the first one is no bottom, which the check of the settings excludes.
    pub fn of(
        target: &IscsiName,
        unit: &'a Unit,
        us: &IscsiName,
        common_log: Option<&Path>,
    ) -> Self {
        let (bottom, above) = unit.stack.split_first().expect("settings want a layer");
        let is_cache = |layer: &Layer| matches!(layer, Layer::Cache(_) | Layer::CommonCache(_));
        let cache = above.iter().position(is_cache).unwrap_or(above.len());
        let (below_cache, from_cache) = above.split_at(cache);
        let bottom = match bottom {
            Layer::Memory(settings) => BottomPlan::Memory(settings),
            Layer::File(settings) => {
                BottomPlan::File(settings, unit.file_part().map(|(_, slice)| slice))
            }
            Layer::Half(settings) => BottomPlan::Half(settings),
            Layer::Remote(settings) => BottomPlan::Remote {
                settings,
                log: cache_over(above),
                has_cache: !from_cache.is_empty(),
                lasting: lasting(target, unit, us, common_log),
            },
            _ => unreachable!("settings put a bottom first"),
        };
        Self { bottom, below_cache, from_cache }
    }
}

/// Returns the cache over a bottom layer if no layer between the two changes the size. `above` has the layers above
/// the bottom.
pub fn cache_over(above: &[Layer]) -> Option<&CacheLayerSettings> {
    match above.iter().find(|layer| !layer.keeps_size()) {
        Some(Layer::Cache(cache)) => Some(cache),
        _ => None,
    }
}

/// Returns the name of a unit's far session. It is the same after every start, and no other unit has it. A log is
/// opened by one process at a time, so with a cache the name contains the path of the log; else it contains the names
/// that hosts see.
fn lasting(
    target: &IscsiName,
    unit: &Unit,
    initiator_name: &IscsiName,
    common_log: Option<&Path>,
) -> String {
    if let Some(log) = common_log {
        // Add the target and the LUN to the path of the log: all units of a common cache have one log and a session
        // each.
        return format!("{initiator_name} {} {target} {}", log.display(), unit.lun);
    }
    let log = unit.stack.iter().find_map(|layer| match layer {
        Layer::Cache(cache) => Some(&cache.log),
        _ => None,
    });
    match log {
        Some(log) => format!("{initiator_name} {}", log.display()),
        None => format!("{initiator_name} {target} {}", unit.lun),
    }
}

/// Returns the name by which a log knows a volume: one of `known`, the names in the log, or else `identity`. Earlier
/// versions included the size of a slice in its name; such a name in the log matches as well.
pub fn known_as(identity: &str, mut known: impl Iterator<Item = String>) -> String {
    let without_size = |part: &str| match part.split_once(" bytes from ") {
        Some((size, start)) if size.parse::<u64>().is_ok() => format!("from {start}"),
        _ => part.to_owned(),
    };
    let now = |name: &String| {
        let parts: Vec<_> = name.split(" [").map(without_size).collect();
        parts.join(" [") == identity
    };
    known.find(now).unwrap_or_else(|| identity.to_owned())
}

/// Returns the key by which a log of several units identifies a unit before its node has answered. It depends on the
/// target's name and the LUN only.
pub fn known_by(target: &IscsiTargetSettings, unit: &Unit) -> u64 {
    known_as_unit(&UnitName { target: target.name.0.clone(), lun: unit.lun })
}

/// Returns the key of a unit like [`known_by`]. The unit need not be in the settings any more.
pub fn known_as_unit(name: &UnitName) -> u64 {
    // FNV-1a: the key is stored in the log, so it must not depend on the compiler.
    let name = name.to_string();
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use config::Settings;

    use super::*;

    fn unit(stack: &str) -> Unit {
        let text = format!("[[target]]\nname = 'iqn.a:t'\n[[target.unit]]\nstack = {stack}\n");
        let settings = Settings::parse(Path::new("f.toml"), &text);
        settings.unwrap_or_else(|problem| panic!("{problem}")).target.remove(0).unit.remove(0)
    }

    fn plan(unit: &Unit) -> StackPlan<'_> {
        StackPlan::of(&IscsiName("iqn.a:t".into()), unit, &IscsiName("iqn.a:us".into()), None)
    }

    const FAR: &str = "{ remote = { url = 'iscsi://h/iqn.a:far/0' } }";

    #[test]
    fn the_log_over_a_far_volume_is_opened_first_if_both_have_one_size() {
        let cache = "{ cache = { log = 'l' } }";
        let delayed = unit(&format!("[ {FAR}, {{ delay = {{}} }}, {cache}, 'read-only' ]"));
        let planned = plan(&delayed);
        let BottomPlan::Remote { log, has_cache, lasting, .. } = &planned.bottom else {
            panic!("{planned:?}")
        };
        assert_eq!(log.map(|cache| cache.log.as_path()), Some(Path::new("l")));
        assert!(has_cache);
        assert_eq!(lasting, "iqn.a:us l");
        assert_eq!(planned.below_cache, &delayed.stack[1..2]);
        assert_eq!(planned.from_cache, &delayed.stack[2..]);
        let sliced = unit(&format!("[ {FAR}, {{ slice = {{ size = '1MiB' }} }}, {cache} ]"));
        let planned = plan(&sliced);
        let BottomPlan::Remote { log: None, has_cache: true, .. } = planned.bottom else {
            panic!("{planned:?}")
        };
        let alone = unit(&format!("[ {FAR} ]"));
        let planned = plan(&alone);
        let BottomPlan::Remote { log: None, has_cache: false, lasting, .. } = planned.bottom else {
            panic!("{planned:?}")
        };
        assert_eq!(lasting, "iqn.a:us iqn.a:t 0");
        assert!(planned.below_cache.is_empty() && planned.from_cache.is_empty());
    }

    #[test]
    fn a_file_is_shared_only_by_slices_directly_above_it() {
        let file = "{ file = { path = 'p' } }";
        let slice = "{ slice = { size = '1MiB' } }";
        let is_part = |stack: String| {
            let unit = unit(&stack);
            match plan(&unit).bottom {
                BottomPlan::File(_, slice) => slice.is_some(),
                other => panic!("{other:?}"),
            }
        };
        assert!(is_part(format!("[ {file}, {slice} ]")));
        assert!(!is_part(format!("[ {file} ]")));
        assert!(!is_part(format!("[ {file}, 'read-only', {slice} ]")));
    }

    #[test]
    fn a_slice_that_has_grown_is_the_same_volume_to_its_log() {
        let known = |name: &str, log: &str| known_as(name, std::iter::once(log.to_owned()));
        assert_eq!(known("file a [from 512]", "file a [from 512]"), "file a [from 512]");
        let former = "file a [4096 bytes from 512]";
        assert_eq!(known("file a [from 512]", former), former);
        let twice = "file a [8192 bytes from 512] [512 bytes from 0]";
        assert_eq!(known("file a [from 512] [from 0]", twice), twice);
        for other in ["file a [4096 bytes from 51]", "file b [4096 bytes from 512]", "file a"] {
            assert_eq!(known("file a [from 512]", other), "file a [from 512]");
        }
    }

    #[test]
    fn each_session_with_a_far_volume_has_a_lasting_name_of_its_own() {
        let (a, b) = (IscsiName("iqn.a:a".into()), IscsiName("iqn.b:b".into()));
        let unit = |lun| Unit { lun, ..Unit::default() };
        let names = [
            lasting(&a, &unit(0), &b, None),
            lasting(&a, &unit(1), &b, None),
            lasting(&b, &unit(0), &b, None),
            lasting(&a, &unit(0), &a, None),
            lasting(&a, &unit(0), &b, Some(Path::new("log"))),
            lasting(&a, &unit(1), &b, Some(Path::new("log"))),
        ];
        assert_eq!(names[0], lasting(&a, &unit(0), &b, None));
        for (at, name) in names.iter().enumerate() {
            assert!(!names[..at].contains(name), "{name}");
        }
    }
}
