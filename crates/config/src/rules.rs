//! Checks the rules between several keys of the settings, each of which is valid by itself.

use std::{collections::HashMap, path::Path};

use cache::WriteMode;
use volume::JoinedVolume;

use super::{
    Address, CommonCache, FarVolumeAddress, Iscsi, IscsiTargetSettings, Layer, PortalSettings,
    Settings, Unit,
    access::Allow,
    connection_rules::{chap, one_secret, proof, socket_buffer},
    layers::LayerFiles,
    names::has_port,
    object_drive::kind_of_unit,
    portal::COMMON_TAG,
    problem::KeyPath,
    rule::{
        BrokenSettingsRule, SettingsRuleResult, UniqueSettingValues, range, required, whole, wrong,
    },
    tls::PortalTls,
};
use crate::quantity::{Size, TimeSpan};

/// Returns the first rule that the settings break, if any.
pub fn broken(settings: &Settings) -> Option<BrokenSettingsRule> {
    check(settings).err()
}

fn check(settings: &Settings) -> SettingsRuleResult {
    let top = KeyPath::default();
    range(&top, "threads", settings.threads, 0, 1024)?;
    iscsi(&top.key("iscsi"), &settings.iscsi)?;
    users(settings, &top)?;
    naming(settings, &top)?;
    accepting(settings, &top)?;
    if settings.target.is_empty() && settings.accept.is_none() {
        let remedy = "add a [[target]] table with a name and a unit, or [accept] to accept \
                      volumes that other nodes move here";
        return wrong(top, "there is no target", remedy);
    }
    each_portal(settings)?;
    let mut names = UniqueSettingValues::default();
    let mut files = LayerFiles::default();
    let mut common_names = UniqueSettingValues::default();
    for (index, target) in settings.target.iter().enumerate() {
        let at = top.key("target").index(index);
        required(&at, "name", target.name.0.is_empty(), "\"iqn.2026-11.com.example:disk1\"")?;
        names.once(&target.name.0, &at.key("name"), "target name", "give each target its own")?;
        listen(settings, target, &at)?;
        allowed(settings, target.allow.as_deref(), &at.key("allow"))?;
        target.mutual.iter().try_for_each(|mutual| proof(mutual, &at.key("mutual")))?;
        units(target, &at, &mut files)?;
    }
    for (index, common) in settings.common_cache.iter().enumerate() {
        let at = top.key("common_cache").index(index);
        required(&at, "name", common.name.is_empty(), "\"db\"")?;
        let own = "give each common cache its own";
        common_names.once(&common.name, &at.key("name"), "common cache", own)?;
        common_cache(settings, common, &at, &mut files)?;
    }
    in_common(settings)?;
    halves(settings)?;
    portals(settings)
}

/// Checks each unit that names a `[[common_cache]]`: the settings have this table, and the unit has no own cache.
fn in_common(settings: &Settings) -> SettingsRuleResult {
    let top = KeyPath::default();
    for (index, target) in settings.target.iter().enumerate() {
        let at = top.key("target").index(index).key("unit");
        for (index, unit) in target.unit.iter().enumerate() {
            let at = at.index(index).key("stack");
            let is_cache =
                |layer: &&Layer| matches!(layer, Layer::Cache(_) | Layer::CommonCache(_));
            let common = unit.stack.iter().enumerate().find_map(|(index, layer)| match layer {
                Layer::CommonCache(common) => Some((index, common)),
                _ => None,
            });
            let Some((index, common)) = common else { continue };
            let at = at.index(index).key("common-cache");
            required(&at, "name", common.name.is_empty(), "\"db\"")?;
            if settings.common_cache(&common.name).is_none() {
                let message = format!("there is no common cache {}", common.name);
                return wrong(
                    at.key("name"),
                    message,
                    "add a [[common_cache]] table with that name",
                );
            }
            if unit.stack.iter().filter(is_cache).count() > 1 {
                let message = "the unit has another cache, too";
                return wrong(at, message, "keep one of the two");
            }
        }
    }
    Ok(())
}

/// Checks a common cache: at least one unit uses it, at most as many as a log has room for, and its keys fit together.
fn common_cache<'a>(
    settings: &Settings,
    common: &'a CommonCache,
    at: &KeyPath,
    files: &mut LayerFiles<'a>,
) -> SettingsRuleResult {
    let units = settings.units_of(&common.name).len();
    let name = &common.name;
    if units == 0 {
        let message = format!("no unit has {name} in its stack");
        let remedy = format!(
            "put {{ common-cache = {{ name = \"{name}\" }} }} into the stacks of its units"
        );
        return wrong(at.key("name"), message, remedy);
    }
    if units > JoinedVolume::PLACES {
        let message = format!("{units} units are more than {}", JoinedVolume::PLACES);
        return wrong(at.key("name"), message, "give some of them another common cache");
    }
    common.check(&at.key("cache"), files)
}

/// Checks the mirror legs of pairs: a pair's unit is on a remote volume, and a `half` layer names the target of a pair.
fn halves(settings: &Settings) -> SettingsRuleResult {
    let top = KeyPath::default();
    for (index, target) in settings.target.iter().enumerate() {
        let at = top.key("target").index(index);
        for (index, unit) in target.unit.iter().enumerate() {
            let at = at.key("unit").index(index).key("stack");
            if unit.pair().is_some() && !matches!(unit.stack.first(), Some(Layer::Remote(_))) {
                let message = "a pair needs a volume of a node, but there is no remote layer";
                return wrong(at, message, "put `remote` first in the stack");
            }
            if let Some(Layer::Half(half)) = unit.stack.first() {
                let named = settings.target.iter().find(|target| target.name == half.of);
                if !named.is_some_and(|target| target.unit.iter().any(|u| u.pair().is_some())) {
                    let message = format!("{} has no cache with `pair`", half.of);
                    return wrong(
                        at.index(0).key("half").key("of"),
                        message,
                        "name the target of a pair",
                    );
                }
            }
        }
    }
    Ok(())
}

fn each_portal(settings: &Settings) -> SettingsRuleResult {
    for (index, portal) in settings.portal.iter().enumerate() {
        let at = KeyPath::default().key("portal").index(index);
        required(&at, "address", portal.address.is_none(), "\"192.0.2.1:3260\"")?;
        range(&at, "group", portal.group, 1, u16::MAX)?;
        redirect(&at, portal.redirect.is_some(), portal.redirect_permanently)?;
        portal.tls.iter().try_for_each(|tls| portal_tls(tls, &at.key("tls")))?;
    }
    Ok(())
}

fn portal_tls(tls: &PortalTls, at: &KeyPath) -> SettingsRuleResult {
    let is_missing = |path: &Path| path.as_os_str().is_empty();
    required(at, "certificate", is_missing(&tls.certificate), "\"node.pem\"")?;
    required(at, "key", is_missing(&tls.key), "\"node.key\"")?;
    required(at, "client_ca", is_missing(&tls.client_ca), "\"ca.pem\"")
}

/// Checks that every portal has an address of its own and that at least one target uses it.
fn portals(settings: &Settings) -> SettingsRuleResult {
    let top = KeyPath::default();
    let mut seen: HashMap<Address, KeyPath> = HashMap::new();
    let mut once = |address: Address, at: KeyPath| match seen.insert(address, at.clone()) {
        // With port 0 the kernel chooses a free port for each portal, so equal addresses do not conflict.
        Some(first) if address.0.port() != 0 => {
            let message = format!("{address} is already used at {first}");
            wrong(at, message, "give each portal an address of its own")
        }
        _ => Ok(()),
    };
    for (index, address) in settings.listen().iter().enumerate() {
        once(*address, top.key("listen").index(index))?;
    }
    for (index, portal) in settings.portal.iter().enumerate() {
        let at = top.key("portal").index(index);
        once(portal.address.unwrap_or(Address::LOOPBACK), at.key("address"))?;
        let tags = |target: &IscsiTargetSettings| match (&target.listen, &target.groups) {
            (Some(_), _) => false,
            (None, tags) => tags.as_ref().is_none_or(|tags| tags.contains(&portal.group)),
        };
        if !settings.awaits_targets() && !settings.target.iter().any(tags) {
            return wrong(
                at,
                format!("no target is reached through portal group {}", portal.group),
                "remove the portal, or add its group to the `groups` of a target",
            );
        }
    }
    for (index, target) in settings.target.iter().enumerate() {
        let Some(own) = &target.listen else { continue };
        let at = top.key("target").index(index).key("listen");
        if target.groups.is_some() {
            let message =
                "a target with `listen` has only these portals, but `groups` names others";
            return wrong(at, message, "remove one of the two");
        }
        if settings.target[..index].iter().any(|earlier| earlier.listen.as_ref() == Some(own)) {
            continue;
        }
        // A target may have the same `listen` as the top of the file if no target uses the portals of the top.
        let is_common = !settings.awaits_targets()
            && settings.target.iter().all(|target| target.listen.is_some());
        for (index, address) in own.iter().enumerate() {
            if !(is_common && settings.listen().contains(address)) {
                once(*address, at.index(index))?;
            }
        }
    }
    Ok(())
}

/// Checks that initiators can reach this target through at least one portal group.
fn listen(settings: &Settings, target: &IscsiTargetSettings, at: &KeyPath) -> SettingsRuleResult {
    redirect(at, target.redirect.is_some(), target.redirect_permanently)?;
    for (index, tag) in target.groups.iter().flatten().enumerate() {
        let is_it = |portal: &PortalSettings| portal.group == *tag;
        let is_common = *tag == COMMON_TAG && !settings.listen().is_empty();
        if !is_common && !settings.portal.iter().any(is_it) {
            return wrong(
                at.key("groups").index(index),
                format!("there is no portal in group {tag}"),
                "add a [[portal]] with this `group`, or name another group",
            );
        }
    }
    if settings.groups().iter().any(|group| target.is_reached_through(group)) {
        return Ok(());
    }
    wrong(
        at.clone(),
        "no initiator can reach this target: it listens on no address",
        "add an address to `listen`, as in [\"127.0.0.1:3260\"]",
    )
}

fn redirect(at: &KeyPath, redirects: bool, permanently: bool) -> SettingsRuleResult {
    if permanently && !redirects {
        let remedy = "add redirect = \"HOST:PORT\", or remove it";
        return wrong(at.key("redirect_permanently"), "there is no `redirect`", remedy);
    }
    Ok(())
}

fn iscsi(at: &KeyPath, iscsi: &Iscsi) -> SettingsRuleResult {
    range(at, "max_connections", iscsi.max_connections, 1, 65_536)?;
    range(at, "max_logins", iscsi.max_logins, 1, 4096)?;
    range(at, "max_logins_per_address", iscsi.max_logins_per_address, 1, iscsi.max_logins)?;
    let most = iscsi.max_discovery_sessions;
    range(at, "max_discovery_sessions", most, 1, 4096)?;
    let own = iscsi.max_discovery_sessions_per_address;
    range(at, "max_discovery_sessions_per_address", own, 1, most)?;
    let idle = iscsi.discovery_timeout;
    range(at, "discovery_timeout", idle, TimeSpan::seconds(1), TimeSpan::seconds(3600))?;
    // 64 MiB of `waiting_data` are for the longest writes. A smaller value would leave too little for the shares of
    // the connections.
    range(at, "waiting_data", iscsi.waiting_data, Size::mib(128), Size::mib(1 << 20))?;
    chap(&iscsi.chap, at)?;
    range(at, "queue_depth", iscsi.queue_depth, 1, 1024)?;
    range(at, "max_outstanding_r2t", iscsi.max_outstanding_r2t, 1, 64)?;
    // RFC 7143, 13.12 to 13.14: 512 to 2^24 - 1. The limit is lower here because a burst is held in memory.
    let (least, most) = (Size(512), Size::mib(8));
    range(at, "max_recv_data_segment_length", iscsi.max_recv_data_segment_length, least, most)?;
    range(at, "max_burst_length", iscsi.max_burst_length, least, most)?;
    range(at, "first_burst_length", iscsi.first_burst_length, least, most)?;
    if iscsi.first_burst_length > iscsi.max_burst_length {
        return wrong(
            at.key("first_burst_length"),
            format!("more than max_burst_length, {} (RFC 7143, 13.14)", iscsi.max_burst_length),
            "make it smaller, or max_burst_length larger",
        );
    }
    let second = TimeSpan::seconds(1);
    range(at, "login_timeout", iscsi.login_timeout, second, TimeSpan::seconds(600))?;
    range(at, "batch_commands", iscsi.batch_commands, 1, 1024)?;
    socket_buffer(at, iscsi.socket_buffer)?;
    range(at, "busy_poll", iscsi.busy_poll, TimeSpan::default(), TimeSpan::millis(1))?;
    if iscsi.ping_interval != TimeSpan::default() {
        range(at, "ping_interval", iscsi.ping_interval, second, TimeSpan::seconds(3600))?;
    }
    Ok(())
}

/// Checks the CHAP users and the access to discovery.
fn users(settings: &Settings, top: &KeyPath) -> SettingsRuleResult {
    let mut names = UniqueSettingValues::default();
    for (index, user) in settings.user.iter().enumerate() {
        let at = top.key("user").index(index);
        proof(user, &at)?;
        names.once(&user.name, &at.key("name"), "user", "give each user a name of its own")?;
    }
    let at = top.key("discovery");
    settings.discovery.mutual.iter().try_for_each(|mutual| proof(mutual, &at.key("mutual")))?;
    allowed(settings, settings.discovery.allow.as_deref(), &at.key("allow"))
}

/// Checks `[names]`: volume names and `gln:` addresses need the table, and its keys fit together.
fn naming(settings: &Settings, top: &KeyPath) -> SettingsRuleResult {
    let Some(names) = &settings.names else { return unnamed(settings, top) };
    let at = top.key("names");
    if settings.state.is_none() {
        let message = "there is no `state` folder for the number of this node";
        return wrong(at, message, "add `state = \"FOLDER\"` at the top");
    }
    if names.listen.is_empty() && names.seeds.is_empty() {
        let message = "there is neither `listen` nor `seeds`";
        return wrong(at, message, "add `listen`, or `seeds`, or both");
    }
    one_secret(names.secret_file.as_deref(), names.secret_env.as_deref(), &at)?;
    if let Some(host) = names.host.as_ref().filter(|host| has_port(&host.0)) {
        let message = format!("{host} has a port, and each portal has its own");
        return wrong(at.key("host"), message, "leave the port out");
    }
    range(&at, "stale_after", names.stale_after, TimeSpan::seconds(5), TimeSpan::seconds(3600))?;
    for (key, count) in [("seeds", names.seeds.len()), ("listen", names.listen.len())] {
        if count > names::MOST_ADDRESSES {
            let message = format!("more than {}", names::MOST_ADDRESSES);
            return wrong(
                at.key(key),
                message,
                "name fewer: each node passes on all entries that it has received",
            );
        }
    }
    let mut seen = UniqueSettingValues::default();
    for (index, target) in settings.target.iter().enumerate() {
        let at = top.key("target").index(index).key("unit");
        for (index, unit) in target.unit.iter().enumerate() {
            let Some(volume) = &unit.volume else { continue };
            let at = at.index(index).key("volume");
            seen.once(volume.as_str(), &at, "volume", "give each volume a name of its own")?;
        }
    }
    if seen.count() > names::MOST_VOLUMES {
        let message = format!("more than {} volumes have names", names::MOST_VOLUMES);
        return wrong(at, message, "serve some of them by another process");
    }
    Ok(())
}

/// Checks `[accept]`: the folder for volumes that other nodes move here, and a naming service through which these nodes
/// connect.
fn accepting(settings: &Settings, top: &KeyPath) -> SettingsRuleResult {
    let Some(accept) = &settings.accept else { return Ok(()) };
    let at = top.key("accept");
    required(&at, "folder", accept.folder.as_os_str().is_empty(), "\"moved\"")?;
    required(&at, "size", accept.size.0 == 0, "\"1TiB\"")?;
    if settings.names.as_ref().is_none_or(|names| names.listen.is_empty()) {
        let remedy = "add a [names] table with `listen`, so that other nodes can connect";
        return wrong(at, "no node can move a volume here", remedy);
    }
    if settings.target.is_empty() && settings.groups().is_empty() {
        let remedy = "add an address to `listen`, as in [\"127.0.0.1:3260\"]";
        return wrong(at, "no initiator can reach the volumes: there is no portal", remedy);
    }
    allowed(settings, accept.allow.as_deref(), &at.key("allow"))
}

/// Checks that no unit has a volume name, and no remote layer a `gln:` address, without the table `[names]`.
fn unnamed(settings: &Settings, top: &KeyPath) -> SettingsRuleResult {
    let remedy = "add a [names] table with `seeds`, or `listen`, and a secret";
    for (index, target) in settings.target.iter().enumerate() {
        let at = top.key("target").index(index).key("unit");
        for (index, unit) in target.unit.iter().enumerate() {
            let at = at.index(index);
            if unit.volume.is_some() {
                return wrong(
                    at.key("volume"),
                    "the name is not announced: there is no [names] table",
                    remedy,
                );
            }
            for (index, layer) in unit.stack.iter().enumerate() {
                let Layer::Remote(remote) = layer else { continue };
                if let Ok(FarVolumeAddress::Named(volume)) = remote.url.parse() {
                    let at = at.key("stack").index(index).key("remote").key("url");
                    return wrong(
                        at,
                        format!("{volume} cannot be found: there is no [names] table"),
                        remedy,
                    );
                }
            }
        }
    }
    Ok(())
}

fn allowed(settings: &Settings, allow: Option<&[Allow]>, at: &KeyPath) -> SettingsRuleResult {
    for (index, allow) in allow.into_iter().flatten().enumerate() {
        let at = at.index(index);
        if *allow == Allow::default() {
            let message = "an entry without conditions admits every initiator";
            let remedy = "set `initiator`, `network` or `user`, or leave `allow` out";
            return wrong(at, message, remedy);
        }
        let is_user = |name: &String| settings.user.iter().any(|user| user.name == *name);
        if let Some(name) = allow.user.as_ref().filter(|name| !is_user(name)) {
            let message = format!("there is no user {name:?}");
            return wrong(at.key("user"), message, "add a [[user]] table with this name");
        }
    }
    Ok(())
}

fn units<'a>(
    target: &'a IscsiTargetSettings,
    at: &KeyPath,
    files: &mut LayerFiles<'a>,
) -> SettingsRuleResult {
    if target.unit.is_empty() && target.redirect.is_none() {
        return wrong(at.clone(), "the target has no unit", "add a [[target.unit]] table below it");
    }
    let alone = target.unit.len() == 1;
    if target.unit.iter().any(|unit| unit.pair().is_some()) && !alone {
        let message = "a pair hands over a whole target, but this one has other units";
        return wrong(at.key("unit"), message, "give the unit of a pair a target of its own");
    }
    let mut luns = HashMap::new();
    for (index, unit) in target.unit.iter().enumerate() {
        let at = at.key("unit").index(index);
        range(&at, "lun", unit.lun, 0, 16_383)?;
        range(&at, "generation", unit.generation, 0, names::MOST_COUNT - 1)?;
        if let Some(first) = luns.insert(unit.lun, index) {
            let message = format!("LUN {} is already used by unit[{first}]", unit.lun);
            return wrong(at.key("lun"), message, "give each unit of a target its own `lun`");
        }
        names_of(unit, &at)?;
        if unit.soft_threshold.is_some_and(|share| !(0.01..=1.0).contains(&share)) {
            return wrong(
                at.key("soft_threshold"),
                "not between 0.01 and 1",
                "write a share of the space such as 0.8",
            );
        }
        range(&at, "spc", unit.spc, 3, 4)?;
        if let Some(size) = unit.physical_block_size {
            physical_block_size(unit, &at, size)?;
        }
        kind_of_unit(unit, &at)?;
        stack(unit, &at.key("stack"), files)?;
        share(unit, &at)?;
    }
    Ok(())
}

/// Checks the keys of a volume that several gateways change.
fn share(unit: &Unit, at: &KeyPath) -> SettingsRuleResult {
    if let Some(grain) = unit.share_grain {
        range(at, "share_grain", grain, Size::kib(64), Size(1 << 30))?;
        whole(at, "share_grain", Some(grain), Size(4096))?;
        let by_flush = |layer: &Layer| matches!(layer, Layer::Cache(cache) if cache.report == WriteMode::AtFlush);
        if unit.stack.iter().any(by_flush) {
            let message = "the cache with report at flush cannot be shared: a flush of one \
                           gateway would end the epoch of another";
            let remedy = "leave out the cache, or `share_grain`";
            return wrong(at.key("share_grain"), message, remedy);
        }
    }
    range(at, "share_lease", unit.share_lease, TimeSpan::seconds(1), TimeSpan::seconds(3600))?;
    for (index, layer) in unit.stack.iter().enumerate() {
        if let Layer::Cache(cache) = layer
            && cache.share
        {
            let at = at.key("stack").index(index).key("cache");
            cache.check_share(&unit.stack[..index], &at)?;
        }
    }
    Ok(())
}

/// Checks texts for INQUIRY data, which are ASCII with a fixed length (SPC-4, 4.4.1).
fn names_of(unit: &Unit, at: &KeyPath) -> SettingsRuleResult {
    let printable = |text: &str| text.bytes().all(|c| (0x20..0x7f).contains(&c));
    if unit.product.len() > 16 || !printable(&unit.product) {
        return wrong(at.key("product"), "longer than 16 characters or not ASCII", "shorten it");
    }
    match &unit.serial {
        Some(serial) if serial.is_empty() || serial.len() > 36 || !printable(serial) => {
            wrong(at.key("serial"), "not 1 to 36 ASCII characters", "shorten it, or leave it out")
        }
        _ => Ok(()),
    }
}

fn stack<'a>(unit: &'a Unit, at: &KeyPath, files: &mut LayerFiles<'a>) -> SettingsRuleResult {
    if unit.stack.is_empty() {
        return wrong(
            at.clone(),
            "the unit has no stack",
            "write its layers, bottom first, as in stack = [ { memory = { size = \"1GiB\" } } ]",
        );
    }
    for (index, layer) in unit.stack.iter().enumerate() {
        let at = at.index(index);
        if layer.is_bottom() != (index == 0) {
            return wrong(
                at,
                if index == 0 {
                    "this layer needs another below it"
                } else {
                    "this layer must be the bottom layer"
                },
                "put exactly one of memory, file, half and remote first in the stack",
            );
        }
        match (index, unit.file_part()) {
            (0, Some((file, slice))) => file.check_part(slice, &at.key("file"), files)?,
            _ => layer.check(&at, files)?,
        }
    }
    Ok(())
}

/// Checks a physical block size: a power of two, at least the logical block size if it is known here, at most the limit
/// of volumes.
fn physical_block_size(unit: &Unit, at: &KeyPath, size: Size) -> SettingsRuleResult {
    let least = match unit.stack.first() {
        Some(Layer::Memory(memory)) => memory.block_size,
        Some(Layer::File(file)) => file.block_size,
        _ => Size(4096),
    };
    if size.0.is_power_of_two() && size >= least && size <= Size(4096) {
        return Ok(());
    }
    let message = format!("{size} is not a power of two from {least} to 4KiB");
    wrong(at.key("physical_block_size"), message, "leave it out, or write 512 or 4096")
}
