//! Rules between the keys of a cache: a cache of its own, a common cache, or a shared one.

use volume::JoinedVolume;

use super::{
    CacheLayerSettings, CommonCache, Layer, PairPartnerSettings, Settings, Unit,
    problem::KeyPath,
    remote_rules::remote_unit,
    rule::{SettingsRuleResult, range, whole, wrong},
    schedule::Hours,
    used_files::{UsedFiles, path},
    value_types::{
        DestageOrderSetting, LogErrorPolicySetting, NvramSurvivalSetting, WriteModeSetting,
    },
};
use crate::quantity::{Size, TimeSpan};

/// Checks the keys that depend on `order` in a common cache.
pub(super) fn common_cache<'a>(
    settings: &Settings,
    common: &'a CommonCache,
    at: &KeyPath,
    files: &mut UsedFiles<'a>,
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
    let at = at.key("cache");
    let cache_settings = &common.cache;
    cache(cache_settings, &at, files)?;
    let only = |name: &str, holds: bool, message: &str| match holds {
        true => Ok(()),
        false => {
            wrong(at.key(name), message, format!("leave `{name}` out, or give each unit a cache"))
        }
    };
    let is_logged = matches!(
        cache_settings.report,
        WriteModeSetting::AfterComplete | WriteModeSetting::Immediate
    );
    only(
        "report",
        is_logged,
        "the order of all volumes is that of the log, and all writes go there",
    )?;
    let is_strict = cache_settings.order == DestageOrderSetting::Strict;
    only("order", is_strict, "writes that overtake the log have no order with the other volumes")?;
    let stops = cache_settings.on_log_error == LogErrorPolicySetting::StopWrites;
    only("on_log_error", stops, "writes that bypass the log have no order with the other volumes")?;
    only("share", !cache_settings.share, "the tokens of a node are for one volume alone")?;
    only("pair", cache_settings.pair.is_none(), "a pair hands over the log of one target alone")
}

pub(super) fn shared_cache(
    unit: &Unit,
    index: usize,
    cache: &CacheLayerSettings,
    at: &KeyPath,
) -> SettingsRuleResult {
    let is_like = |layer: &Layer| {
        matches!(
            layer,
            Layer::Delay(_)
                | Layer::Disk(_)
                | Layer::Observe(_)
                | Layer::Fault(_)
                | Layer::Encrypt(_)
        )
    };
    let below = &unit.stack[..index];
    if !matches!(below.first(), Some(Layer::Remote(_))) || !below[1..].iter().all(is_like) {
        let message = "only the volume of a node is shared, as a whole";
        return wrong(at.key("share"), message, "put the cache right above `remote`");
    }
    if !matches!(cache.report, WriteModeSetting::AfterComplete | WriteModeSetting::Immediate) {
        let message = "there is nothing to share in this way of reporting";
        return wrong(at.key("report"), message, "use \"after-complete\" or \"immediate\"");
    }
    if cache.order != DestageOrderSetting::Strict {
        let message =
            "writes that overtake the log could reach the volume after its token is released";
        return wrong(at.key("order"), message, "leave `order` out");
    }
    if cache.on_log_error != LogErrorPolicySetting::StopWrites {
        let message =
            "writes that bypass the log could reach the volume after its token is released";
        return wrong(at.key("on_log_error"), message, "leave `on_log_error` out");
    }
    Ok(())
}

pub(super) fn cache<'a>(
    cache: &'a CacheLayerSettings,
    at: &KeyPath,
    files: &mut UsedFiles<'a>,
) -> SettingsRuleResult {
    path(at, "log", &cache.log, files)?;
    if let Some(mirror) = &cache.log_mirror {
        path(at, "log_mirror", mirror, files)?;
    }
    if let Some(key) = &cache.log_key {
        path(at, "log_key", key, files)?;
        let remedy =
            "add log_secret_file = \"FILE\", made with `forebay secret FILE --characters 64`";
        if cache.log_secret_file.is_none() {
            return wrong(at.key("log_key"), "there is no secret that unlocks it", remedy);
        }
    } else if cache.log_secret_file.is_some() {
        let message = "a secret, and no key that it unlocks";
        return wrong(
            at.key("log_secret_file"),
            message,
            "add log_key = \"FILE\", made with `forebay key FILE`",
        );
    }
    if let Some(nvram) = &cache.nvram {
        path(at, "nvram", nvram, files)?;
    } else if cache.report == WriteModeSetting::Immediate {
        return wrong(
            at.key("report"),
            "immediate report needs NVRAM, and there is none",
            "add `nvram = \"FILE\"` on storage that survives what you need it to survive, or use \
             \"after-complete\"",
        );
    }
    if cache.nvram_survives == NvramSurvivalSetting::PowerLoss && cache.nvram.is_none() {
        let message = "there is no NVRAM that could survive a loss of power";
        return wrong(at.key("nvram_survives"), message, "add `nvram = \"FILE\"`");
    }
    if let Some(tier) = &cache.read_tier {
        path(at, "read_tier", tier, files)?;
    } else if cache.read_tier_size.is_some() {
        let message = "the size of a read tier, and there is none";
        return wrong(at.key("read_tier_size"), message, "add read_tier = \"FILE\"");
    }
    whole(at, "read_tier_size", cache.read_tier_size, Size(4096))?;
    if let Some(size) = cache.read_tier_size {
        range(at, "read_tier_size", size, Size::mib(1), Size(1 << 44))?;
    }
    if cache.report == WriteModeSetting::AtFlush {
        at_flush(cache, at)?;
    }
    if let Some(pair) = &cache.pair {
        paired(cache, pair, at)?;
    }
    let least = Size::mib(1);
    whole(at, "log_size", cache.log_size, Size(4096))?;
    if let Some(size) = cache.log_size {
        range(at, "log_size", size, Size::mib(8), Size(1 << 44))?;
    }
    range(at, "log_scrub", cache.log_scrub, Size(0), Size(1 << 40))?;
    range(at, "dram", cache.dram, least, Size(1 << 42))?;
    range(at, "nvram_size", cache.nvram_size, Size::kib(64), Size(cache.dram.0 / 2))?;
    range(at, "destage_run", cache.destage_run, Size(4096), least)?;
    range(at, "destage_in_flight", cache.destage_in_flight, 1, 2048)?;
    if let Some(rate) = cache.destage_rate {
        range(at, "destage_rate", rate, Size::kib(4), Size(1 << 40))?;
    }
    rates(at, &cache.destage_rates)?;
    range(at, "destage_idle", cache.destage_idle, TimeSpan::millis(1), TimeSpan::seconds(60))?;
    range(at, "dirty_age", cache.dirty_age, TimeSpan::millis(1), TimeSpan::seconds(86_400))?;
    range(at, "busy_after", cache.busy_after, TimeSpan::default(), TimeSpan::seconds(25))?;
    range(at, "read_ahead", cache.read_ahead, Size(0), Size::mib(512))?;
    if !(0.05..=0.9).contains(&cache.destage_threshold) {
        return wrong(
            at.key("destage_threshold"),
            "not between 0.05 and 0.9",
            "write a share of the log such as 0.5",
        );
    }
    Ok(())
}

/// Checks the keys that depend on writes that become stable with a flush.
pub(super) fn at_flush(cache: &CacheLayerSettings, at: &KeyPath) -> SettingsRuleResult {
    if cache.order != DestageOrderSetting::Strict {
        return wrong(
            at.key("order"),
            "what overtakes the log breaks what is between two flushes",
            "leave `order` out, or use another `report`",
        );
    }
    if cache.on_log_error != LogErrorPolicySetting::StopWrites {
        return wrong(
            at.key("on_log_error"),
            "what goes past the log breaks what is between two flushes",
            "leave `on_log_error` out, or use another `report`",
        );
    }
    Ok(())
}

/// Checks the keys that depend on a pair.
pub(super) fn paired(
    cache: &CacheLayerSettings,
    pair: &PairPartnerSettings,
    at: &KeyPath,
) -> SettingsRuleResult {
    let only = |name: &str, holds: bool, message: &str| match holds {
        true => Ok(()),
        false => wrong(at.key(name), message, format!("leave `{name}` out, or `pair`")),
    };
    only(
        "report",
        matches!(cache.report, WriteModeSetting::AfterComplete | WriteModeSetting::Immediate),
        "the partner has only what is in the log",
    )?;
    only(
        "nvram",
        cache.report == WriteModeSetting::Immediate || cache.nvram.is_none(),
        "a pair uses it with report = \"immediate\" alone",
    )?;
    only(
        "order",
        cache.order == DestageOrderSetting::Strict,
        "what overtakes the log is not known to the partner",
    )?;
    let stops = cache.on_log_error == LogErrorPolicySetting::StopWrites;
    only("on_log_error", stops, "what goes past the log is not known to the partner")?;
    only("share", !cache.share, "the partner does not know what others are granted")?;
    only(
        "log_mirror",
        cache.log_mirror.is_none(),
        "the other half of the log is with the partner",
    )?;
    let at = at.key("pair");
    remote_unit(&pair.partner, &at.key("partner"))?;
    range(&at, "dead_after", pair.dead_after, TimeSpan::seconds(1), TimeSpan::seconds(60))
}

/// Checks the times of the day with other destage rates: each has an end, and a rate that is not too small.
pub(super) fn rates(at: &KeyPath, rates: &[Hours]) -> SettingsRuleResult {
    for (index, hours) in rates.iter().enumerate() {
        let at = at.key("destage_rates").index(index);
        if hours.from == hours.to {
            let message = format!("it ends when it begins, at {}", hours.to);
            return wrong(at.key("to"), message, "write \"00:00\" to \"24:00\" for a whole day");
        }
        if hours.rate.0 > 0 {
            range(&at, "rate", hours.rate, Size::kib(4), Size(1 << 40))?;
        }
    }
    Ok(())
}
