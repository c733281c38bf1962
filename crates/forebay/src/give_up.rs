//! `forebay gateway give-up` and `take-in`: removes a volume that is permanently lost from the log of a common cache,
//! or admits it again. The log must not be in use.

use cache::MemberRecord;
use config::{CacheLayerSettings, Settings, quantity::about};
use control::{Failure, UnitName};
use serde_json::json;
use stack::UnopenedCacheLog;

use crate::{
    cli::{GiveUp, OfLog},
    output::print_line,
};

/// Removes a volume from the log. Fails if this loses data and the user has not confirmed it.
pub async fn give_up(args: GiveUp) -> Result<(), Failure> {
    let OfLog { unit, config, json } = &args.of;
    let settings = Settings::load_without_secrets(config)?;
    let found = OfflineCommonLog::of(&settings, unit).await?;
    let Some(member) = found.members.iter().find(|member| member.counts()) else {
        let bytes = found.members.iter().filter_map(|member| member.given_up);
        let bytes = bytes.map(|given_up| given_up.slots * 4096).max().unwrap_or(0);
        let what = format!("{unit} was given up before, with {}", about(bytes));
        return Err(Failure::new(what).remedy("remove it from the settings, and serve the others"));
    };
    let path = found.cache.log.display();
    let (name, bytes) = (&member.name, stack::dirty_of(found.cache, &found.log, member).await?);
    if bytes > 0 && !args.lose_dirty_data {
        return Err(Failure::new(format!(
            "{unit}: only the log {path} has {} ({bytes} bytes) of acknowledged writes to volume \
             \"{name}\"",
            about(bytes)
        ))
        .remedy(
            "make the volume available again, and it gets this data; if it is permanently lost, \
             unmount it at every host, then use --lose-dirty-data --hosts-unmounted",
        ));
    }
    if bytes > 0 && !args.hosts_unmounted {
        let config = config.display();
        let command = format!(
            "forebay gateway give-up {unit} --config {config} --lose-dirty-data --hosts-unmounted"
        );
        return Err(stack::hosts_may_be_mounted(unit, &command));
    }
    if bytes > 0 {
        let given_up = cache::give_up(&found.log.volume(), member, bytes / 4096).await;
        given_up.map_err(Failure::new)?;
    }
    if *json {
        let (unit, lost) = (unit.to_string(), bytes);
        return print_line(
            json!({ "unit": unit, "volume": name, "log": found.cache.log, "lost_bytes": lost }),
        );
    }
    match bytes {
        0 => print_line(format_args!(
            "{unit}: the log {path} has no data that volume \"{name}\" lacks; remove the unit \
             from the settings"
        )),
        _ => print_line(format_args!(
            "{unit}: {} ({bytes} bytes) of volume \"{name}\" are discarded; remove the unit from \
             the settings and serve the others, which lose nothing",
            about(bytes)
        )),
    }
}

/// Adds a volume to the log of a common cache again, from which `give_up` had removed it.
pub async fn take_in(args: OfLog) -> Result<(), Failure> {
    let OfLog { unit, config, json } = &args;
    let settings = Settings::load_without_secrets(config)?;
    let found = OfflineCommonLog::of(&settings, unit).await?;
    let member = found.members.iter().find_map(|member| Some((member, member.given_up?)));
    let Some((MemberRecord { name, .. }, given_up)) = member else {
        return Err(Failure::new(format!("{unit} was not given up"))
            .remedy("serve it with the others of its common cache"));
    };
    cache::take_in(&found.log.volume(), name).await.map_err(Failure::new)?;
    let bytes = given_up.slots * 4096;
    if *json {
        let (unit, log) = (unit.to_string(), &found.cache.log);
        return print_line(
            json!({ "unit": unit, "volume": name, "log": log, "missing_bytes": bytes }),
        );
    }
    print_line(format_args!(
        "{unit}: volume \"{name}\" is added at the next start, with its present content: {} of \
         acknowledged writes are missing there. Check its content before you use it",
        about(bytes)
    ))
}

/// A log that is not in use, and the record of one of its volumes.
struct OfflineCommonLog<'a> {
    cache: &'a CacheLayerSettings,
    log: UnopenedCacheLog,
    members: Vec<MemberRecord>,
}

impl<'a> OfflineCommonLog<'a> {
    /// Opens the log of the unit's common cache. If the settings do not contain the unit any more, finds the common
    /// cache whose log has recorded it.
    async fn of(settings: &'a Settings, name: &UnitName) -> Result<Self, Failure> {
        let target = settings.target.iter().find(|target| target.name.0 == name.target);
        let unit = target.and_then(|target| target.unit.iter().find(|unit| unit.lun == name.lun));
        let named = unit.and_then(|unit| unit.in_common());
        if unit.is_some() && named.is_none() {
            return Err(Failure::settings(format!("{name} has no common cache"))
                .remedy("name a unit of a common cache"));
        }
        let is_asked =
            |common: &&config::CommonCache| named.is_none_or(|named| named == common.name);
        let key = stack::known_as_unit(name);
        for common in settings.common_cache.iter().filter(is_asked) {
            let cache = &common.cache;
            // Skip a log that does not exist: opening it would create a new one.
            if !stack::log_exists(cache) {
                continue;
            }
            let log = stack::open_log(cache).await?;
            let members = log.members().iter().filter(|member| member.key == key);
            let members: Vec<_> = members.cloned().collect();
            if !members.is_empty() {
                return Ok(Self { cache, log, members });
            }
        }
        Err(Failure::new(format!(
            "no log of a common cache in these settings has a record of {name}"
        ))
        .remedy(
            "name a unit as it was served, TARGET or TARGET/LUN; `forebay check` shows the volumes",
        ))
    }
}
