//! The plan of a reload: the additions, changes and removals, and the settings that cannot change while they are in
//! use. Planning compares the old and the new settings and changes nothing.
//!
//! Portals are compared by address, targets by name, and units by LUN. A unit that stays may grow, get another volume
//! name, and change the keys of its layers that can change while in use, such as the destage rate. Every other
//! difference is refused with a reason, and so is each change of a setting that is read only at the start.

use config::{Address, IscsiTargetSettings, Layer, LayerChange, PortalSettings, Settings, Unit};
use control::ReloadChanges;

#[derive(Debug, Default)]
pub struct ReloadPlan<'a> {
    /// Portals that the reload opens, with the tags of their portal groups.
    pub portals_added: Vec<(Address, u16)>,
    /// Addresses of portals to be closed, as written in the settings.
    pub portals_removed: Vec<Address>,
    pub targets_added: Vec<&'a IscsiTargetSettings>,
    pub targets_removed: Vec<&'a IscsiTargetSettings>,
    pub units_added: Vec<(&'a IscsiTargetSettings, &'a Unit)>,
    pub units_removed: Vec<(&'a IscsiTargetSettings, &'a Unit)>,
    /// Units that stay, except that their file or slice is larger, or the rate of their cache has changed.
    pub units_changed: Vec<(&'a IscsiTargetSettings, &'a Unit)>,
    /// The changes in words, for messages.
    pub changes: ReloadChanges,
}

impl<'a> ReloadPlan<'a> {
    pub fn between(old: &'a Settings, new: &'a Settings) -> Self {
        let mut plan = Self::default();
        plan.process(old, new);
        plan.portals(old, new);
        plan.targets(old, new);
        plan
    }

    pub fn units_to_open(&self) -> Vec<(&'a IscsiTargetSettings, &'a Unit)> {
        let mut units = Vec::new();
        for target in &self.targets_added {
            units.extend(target.unit.iter().map(|unit| (*target, unit)));
        }
        units.extend(&self.units_added);
        units
    }

    /// Refuses a changed value of a setting that the process reads only when it starts.
    fn process(&mut self, old: &Settings, new: &Settings) {
        let fixed = [
            ("threads", old.threads != new.threads),
            ("control", old.control != new.control),
            ("state", old.state != new.state),
            ("initiator_name", old.initiator_name != new.initiator_name),
            ("[iscsi]", old.iscsi != new.iscsi),
            ("[names]", old.names != new.names),
        ];
        for (key, _) in fixed.into_iter().filter(|(_, differs)| *differs) {
            self.changes.refused.push(format!("{key}: it is read at the start only; restart"));
        }
        if (&old.user, &old.discovery) != (&new.user, &new.discovery) {
            self.changes.changed.push("users, or access to discovery".to_owned());
        }
        if old.accept != new.accept {
            self.changes.changed.push("the settings for volumes that are moved here".to_owned());
        }
        if old.log_level != new.log_level {
            let level = new.log_level.as_ref().map_or("info", |level| &level.0);
            self.changes.changed.push(format!("log level: {level}"));
        }
    }

    fn portals(&mut self, old: &Settings, new: &Settings) {
        let mut before = portals(old);
        for (address, tag, portal) in portals(new) {
            match before.iter().position(|(other, ..)| *other == address) {
                None => {
                    self.portals_added.push((address, tag));
                    self.changes.added.push(format!("portal {address} in group {tag}"));
                }
                Some(at) => {
                    let (_, old_tag, old_portal) = before.swap_remove(at);
                    if (old_tag, old_portal) != (tag, portal) {
                        self.changes.changed.push(format!("portal {address}"));
                    }
                }
            }
        }
        for (address, ..) in before {
            self.portals_removed.push(address);
            self.changes.removed.push(format!("portal {address}"));
        }
    }

    fn targets(&mut self, old: &'a Settings, new: &'a Settings) {
        let find = |settings: &'a Settings, target: &IscsiTargetSettings| {
            settings.target.iter().find(|other| other.name == target.name)
        };
        // Units of a common cache share one log, so they can only be opened together.
        let in_common = |settings: &'a Settings| -> Vec<_> {
            let names = settings.common_cache.iter().map(|common| &common.name);
            names
                .flat_map(|name| settings.units_of(name))
                .map(|(t, unit)| (&t.name, unit))
                .collect()
        };
        if old.common_cache != new.common_cache || in_common(old) != in_common(new) {
            let what = "common caches and their units are read at the start only; restart";
            self.changes.refused.push(what.to_owned());
        }
        // A pair cannot change: its legs stay open as long as the process runs, because partners use them.
        let is_paired = |target: &IscsiTargetSettings| {
            let half = |unit: &Unit| matches!(unit.stack.first(), Some(Layer::Half(_)));
            target.unit.iter().any(|unit| unit.pair().is_some() || half(unit))
        };
        for target in new.target.iter().filter(|target| is_paired(target)) {
            if find(old, target) != Some(target) {
                let what =
                    format!("target {}: a pair is read at the start only; restart", target.name);
                self.changes.refused.push(what);
            }
        }
        for target in old.target.iter().filter(|target| is_paired(target)) {
            if find(new, target).is_none_or(|new| !is_paired(new)) {
                let what = format!("target {}: a pair ends with the process; restart", target.name);
                self.changes.refused.push(what);
            }
        }
        for target in &new.target {
            match find(old, target) {
                Some(before) => self.target(before, target),
                None => {
                    let units = target.unit.len();
                    self.changes.added.push(format!("target {}, {units} units", target.name));
                    self.targets_added.push(target);
                }
            }
        }
        for target in old.target.iter().filter(|target| find(new, target).is_none()) {
            self.changes.removed.push(format!("target {} and its sessions", target.name));
            self.targets_removed.push(target);
        }
    }

    fn target(&mut self, old: &'a IscsiTargetSettings, new: &'a IscsiTargetSettings) {
        let without_units = |target: &IscsiTargetSettings| IscsiTargetSettings {
            unit: Vec::new(),
            ..target.clone()
        };
        if without_units(old) != without_units(new) {
            self.changes.changed.push(format!("target {}", new.name));
        }
        let find = |target: &'a IscsiTargetSettings, lun: u16| {
            target.unit.iter().find(|unit| unit.lun == lun)
        };
        for unit in &new.unit {
            let place = format!("{} LUN {}", new.name, unit.lun);
            match find(old, unit.lun).map(|before| change(before, unit)) {
                None => {
                    self.changes.added.push(place);
                    self.units_added.push((new, unit));
                }
                Some(UnitReloadChange::Nothing) => {}
                Some(UnitReloadChange::Small(what)) => {
                    self.changes.changed.push(format!("{place}: {what}"));
                    self.units_changed.push((new, unit));
                }
                Some(UnitReloadChange::Refused(why)) => {
                    self.changes.refused.push(format!("{place}: {why}"))
                }
            }
        }
        for unit in old.unit.iter().filter(|unit| find(new, unit.lun).is_none()) {
            self.changes.removed.push(format!("{} LUN {}", old.name, unit.lun));
            self.units_removed.push((old, unit));
        }
    }
}

/// The difference between the old and the new settings of a unit.
enum UnitReloadChange {
    Nothing,
    /// The difference in words: the layers and keys that have changed.
    Small(String),
    Refused(String),
}

fn change(old: &Unit, new: &Unit) -> UnitReloadChange {
    if old == new {
        return UnitReloadChange::Nothing;
    }
    let refused = |why: &str| UnitReloadChange::Refused(why.to_owned());
    if (old.removable, old.soft_threshold) != (new.removable, new.soft_threshold) {
        return refused("`removable` and `soft_threshold` are read at the start only; restart");
    }
    if (&old.serial, &old.product) != (&new.serial, &new.product) {
        return refused("initiators know a disk by its serial number and product; restart");
    }
    if (old.kind, &old.object) != (new.kind, &new.object) {
        return refused("the table of an object drive is read at the start only; restart");
    }
    // Convert the old unit into one that may differ in sizes, rates and the volume's name only. If it then differs from
    // the new unit, the change is refused.
    let mut same = old.clone();
    let (mut grown, mut paced) = (Vec::new(), Vec::new());
    if (&same.volume, same.generation) != (&new.volume, new.generation) {
        same.volume.clone_from(&new.volume);
        same.generation = new.generation;
        paced.push("the name of its volume".to_owned());
    }
    for (was, is) in same.stack.iter_mut().zip(&new.stack) {
        match was.reload(is) {
            LayerChange::None => {}
            LayerChange::Grows(what) => grown.push(what),
            LayerChange::Other(what) => paced.push(what),
            LayerChange::Shrinks => {
                return refused("a volume cannot shrink: the data at its end would be lost");
            }
        }
    }
    if same != *new || (grown.is_empty() && paced.is_empty()) {
        return refused(OTHER_DATA);
    }
    grown.append(&mut paced);
    UnitReloadChange::Small(grown.join(", "))
}

const OTHER_DATA: &str = "its layers differ, and initiators would see other data on the same disk; remove the \
                          unit with one reload and add it with the next, or restart";

/// Returns the reason why a unit cannot grow; `None` if it can.
pub fn fixed_size(unit: &Unit) -> Option<String> {
    let sized = |layer: &Layer| matches!(layer, Layer::Slice(slice) if slice.size.is_some());
    unit.stack.iter().any(sized).then(|| "the settings specify the size of its slice".to_owned())
}

/// Returns all portals of the settings, with the tags of their portal groups.
fn portals(settings: &Settings) -> Vec<(Address, u16, PortalSettings)> {
    let groups = settings.groups().into_iter();
    let portals = groups.flat_map(|group| {
        let tag = group.tag;
        group.portals.into_iter().map(move |(address, portal)| (address, tag, portal))
    });
    portals.collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const DISK: &str = "{ file = { path = 'a.img', size = '1MiB' } }";

    fn settings(text: &str) -> Settings {
        Settings::parse(Path::new("f.toml"), text).unwrap_or_else(|problem| panic!("{problem}"))
    }

    fn target(name: &str, stack: &str) -> String {
        format!("[[target]]\nname = 'iqn.a:{name}'\n[[target.unit]]\nstack = [ {stack} ]\n")
    }

    #[track_caller]
    fn check(old: &str, new: &str, expected: &str) {
        let (old, new) = (settings(old), settings(new));
        let changes = ReloadPlan::between(&old, &new).changes;
        assert_eq!(changes.is_empty(), expected.is_empty());
        assert!(changes.for_people().starts_with(expected), "{}", changes.for_people());
        if expected.is_empty() {
            assert_eq!(changes, ReloadChanges::default());
        }
    }

    #[test]
    fn unchanged_settings_change_nothing() {
        check(&target("a", DISK), &target("a", DISK), "");
        // A different notation of the same settings is no change.
        check(&target("a", DISK), &(format!("listen = ['127.0.0.1']\n{}", target("a", DISK))), "");
    }

    #[test]
    fn targets_units_and_portals_are_added_and_removed() {
        let (a, b) = (target("a", DISK), target("b", "{ memory = { size = 512 } }"));
        check(&a, &(a.clone() + &b), "added: target iqn.a:b, 1 units\n");
        check(&(a.clone() + &b), &a, "removed: target iqn.a:b and its sessions\n");
        let unit = "[[target.unit]]\nlun = 3\nstack = [ { memory = { size = 512 } } ]\n";
        check(&a, &(a.clone() + unit), "added: iqn.a:a LUN 3\n");
        check(&(a.clone() + unit), &a, "removed: iqn.a:a LUN 3\n");
        let on = |listen: &str| format!("listen = [{listen}]\n{a}");
        check(
            &on("'127.0.0.1:1'"),
            &on("'127.0.0.1:1', '[::1]:1'"),
            "added: portal [::1]:1 in group 1\n",
        );
        check(
            &on("'127.0.0.1:1'"),
            &on("'127.0.0.1:2'"),
            "added: portal 127.0.0.1:2 in group 1\nremoved: portal 127.0.0.1:1\n",
        );
        check(
            &on("'127.0.0.1:0', '127.0.0.1:0'"),
            &on("'127.0.0.1:0'"),
            "removed: portal 127.0.0.1:0\n",
        );
    }

    #[test]
    fn properties_of_a_target_and_the_log_level_change() {
        let a = target("a", DISK);
        for key in ["alias = 'x'", "redirect = 'h:1'"] {
            let changed = a.replacen("name", &format!("{key}\nname"), 1);
            check(&a, &changed, "changed: target iqn.a:a\n");
        }
        check(&a, &format!("log_level = 'debug'\n{a}"), "changed: log level: debug\n");
    }

    #[test]
    fn a_file_may_grow() {
        let sized = |size: &str| target("a", &DISK.replace("1MiB", size));
        check(&sized("1MiB"), &sized("2MiB"), "changed: iqn.a:a LUN 0: its file grows to 2MiB\n");
        check(&sized("2MiB"), &sized("1MiB"), "refused: iqn.a:a LUN 0: a volume cannot shrink");
        let sliced = |size: &str| {
            target("a", &format!("{}, {{ slice = {{ size = 512 }} }}", DISK.replace("1MiB", size)))
        };
        check(&sliced("1MiB"), &sliced("2MiB"), "changed: iqn.a:a LUN 0: its file grows to 2MiB\n");
    }

    #[test]
    fn a_slice_may_grow_below_a_cache_too() {
        let sliced = |file: &str, size: &str, more: &str| {
            let slice = format!("{{ slice = {{ start = 512{size} }} }}");
            target("a", &format!("{}, {slice}{more}", DISK.replace("1MiB", file)))
        };
        let of = |size: &str| format!(", size = '{size}'");
        let small = sliced("1MiB", &of("4KiB"), "");
        let larger = sliced("1MiB", &of("8KiB"), "");
        check(&small, &larger, "changed: iqn.a:a LUN 0: its slice grows to 8KiB\n");
        check(&larger, &small, "refused: iqn.a:a LUN 0: a volume cannot shrink");
        let both = sliced("2MiB", &of("8KiB"), "");
        let text = "changed: iqn.a:a LUN 0: its file grows to 2MiB, its slice grows to 8KiB\n";
        check(&small, &both, text);
        let to_end = sliced("1MiB", "", "");
        check(&small, &to_end, "refused: iqn.a:a LUN 0: its layers differ");
        let cache = ", { cache = { log = 'log', log_size = '8MiB' } }";
        let (before, after) = (sliced("1MiB", "", cache), sliced("2MiB", "", cache));
        check(&before, &after, "changed: iqn.a:a LUN 0: its file grows to 2MiB\n");
    }

    #[test]
    fn the_rate_of_destage_may_change_and_nothing_else_of_a_cache() {
        let cached = |more: &str| {
            target(
                "a",
                &format!("{DISK}, {{ cache = {{ log = 'log', log_size = '8MiB'{more} }} }}"),
            )
        };
        let rates = ", destage_rates = [ { from = '08:00', to = '18:00', rate = '1MiB' } ]";
        for rate in [", destage_rate = '1MiB'", rates] {
            let text = "changed: iqn.a:a LUN 0: its destage rate\n";
            check(&cached(""), &cached(rate), text);
            check(&cached(rate), &cached(""), text);
            let more = format!("{rate}, dirty_age = '1s'");
            check(&cached(""), &cached(&more), "refused: iqn.a:a LUN 0: its layers differ");
        }
    }

    #[test]
    fn an_object_drive_grows_and_its_table_cannot_change() {
        let drive = |size: &str, keys: &str| {
            let unit = target("a", &DISK.replace("1MiB", size));
            let unit = unit.replacen("stack", "kind = 'object'\nstack", 1);
            format!("{unit}[target.unit.object]\nsecurity = 'nosec'\n{keys}")
        };
        let small = drive("16MiB", "");
        let text = "refused: iqn.a:a LUN 0: the table of an object drive is read at the start";
        check(&small, &drive("16MiB", "nonces = 2000\n"), text);
        check(&small, &drive("32MiB", ""), "changed: iqn.a:a LUN 0: ");
        let text = "refused: iqn.a:a LUN 0: a volume cannot shrink";
        check(&drive("32MiB", ""), &small, text);
    }

    #[test]
    fn settings_that_cannot_change_are_refused_with_the_reason() {
        let a = target("a", DISK);
        check(&a, &format!("threads = 1\n{a}"), "refused: threads: it is read at the start only");
        check(&a, &format!("{a}[iscsi]\nqueue_depth = 1\n"), "refused: [iscsi]: ");
        check(
            &a,
            &target("a", "{ memory = { size = 512 } }"),
            "refused: iqn.a:a LUN 0: its layers",
        );
        check(
            &a,
            &a.replacen("stack", "serial = 'x'\nstack", 1),
            "refused: iqn.a:a LUN 0: initiators",
        );
    }
}
