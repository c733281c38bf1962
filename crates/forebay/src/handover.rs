//! `forebay gateway export` and `adopt`: move the log of a cache from one host to another.

use std::{fmt::Write as _, path::Path};

use config::{CacheLayerSettings, IscsiTargetSettings, Layer, Settings, Unit, quantity::about};
use control::{ControlRequest, ControlResponse, Exported, Failure, UnitName};
use stack::OpenedStack;
use volume::Holding;

use crate::{
    cli::{Adopt, Export},
    control_socket,
    output::{print, print_line},
};

/// Closes the log of a unit, either in the process that serves it or directly, and prints the settings that the other
/// host needs.
pub async fn export(args: Export) -> Result<(), Failure> {
    let settings = Settings::load(&args.config)?;
    let (target, unit) = find(&settings, &args.unit)?;
    let cache = cache_of(&settings, &args.unit, unit)?;
    let path = control_socket::path(&settings)?;
    let exported = match control_socket::ask(&path, ControlRequest::Status) {
        Ok(_) => {
            match control_socket::ask(&path, ControlRequest::Export { unit: args.unit.clone() })? {
                ControlResponse::Exported(exported) => exported,
                other => return Err(other.unexpected()),
            }
        }
        // No process answers. If one serves the unit nevertheless, opening the log fails because it is in use.
        Err(_) => {
            must_be_there(cache)?;
            let opened = node::open_stack(&settings, target, unit, false).await?;
            let exported = opened[0].export(&node::serial(target, unit)).await;
            stop(&opened).await?;
            exported?
        }
    };
    let text = fragment(&args.config, &settings, &args.unit, cache, &exported)?;
    match &args.to {
        None => print(text),
        Some(to) => {
            std::fs::write(to, text).map_err(|error| {
                Failure::new(format!("cannot write {}: {error}", to.display())).remedy(
                    "name another file with --to, and export again; the log is exported already",
                )
            })?;
            print_line(format_args!(
                "{} is exported with {} that the far volume lacks; move {} and adopt it with {}",
                args.unit,
                about(exported.dirty_bytes),
                cache.log.display(),
                to.display()
            ))
        }
    }
}

/// Checks a log that was brought to this host, claims its volume, and leaves the log ready to be served.
pub async fn adopt(args: Adopt) -> Result<(), Failure> {
    let settings = Settings::load(&args.config)?;
    let (target, unit) = find(&settings, &args.unit)?;
    let cache = cache_of(&settings, &args.unit, unit)?;
    must_be_there(cache)?;
    if !stack::open_log(cache).await?.is_used() {
        return Err(Failure::new(format!("the log {} is blank", cache.log.display()))
            .remedy("bring the log of the other host here, or correct `log`"));
    }
    let all = node::open_stack(&settings, target, unit, true).await?;
    let opened = &all[0];
    let adopted = match opened.cache() {
        Some(cache) => holds(cache.holding(), &args.unit),
        None => Ok(()),
    };
    let state = match opened.cache() {
        Some(cache) => Some(cache.instance().await),
        None => None,
    };
    let dirty = opened.cache().map_or(0, |cache| cache.dirty_bytes());
    stop(&all).await?;
    adopted?;
    let (log, generation) = state.unwrap_or_default();
    print_line(format_args!(
        "{}: log {log} is adopted as generation {generation}, with {} that the far volume lacks; \
         its former gateway is fenced. Serve it with `forebay serve --config {}`",
        args.unit,
        about(dirty),
        args.config.display()
    ))
}

async fn stop(opened: &[OpenedStack]) -> Result<(), Failure> {
    let stopped = opened.iter().map(OpenedStack::stop);
    futures_util::future::join_all(stopped).await.into_iter().collect()
}

/// Fails unless the claim at the node is valid, because only the claim fences the former gateway of the log.
fn holds(holding: Holding, name: &UnitName) -> Result<(), Failure> {
    match holding {
        Holding::Held | Holding::Reserved => Ok(()),
        Holding::Waiting => Err(Failure::new(format!(
            "{name}: its node does not answer, so the former owner of the log is not fenced"
        ))
        .remedy(
            "make the node available, and try again; or, if the former owner has certainly \
             stopped, serve it",
        )),
        Holding::Refused(reason) => Err(Failure::new(format!("{name}: {reason}"))),
        Holding::Nothing | Holding::Unsupported => Err(Failure::new(format!(
            "{name}: the far volume does not support claims, so the former owner of the log is \
             not fenced"
        ))
        .remedy(
            "give the node a `state` folder, or the remote layer `reserve`; or make sure that the \
             former owner has stopped, and serve it",
        )),
    }
}

pub fn find<'a>(
    settings: &'a Settings,
    name: &UnitName,
) -> Result<(&'a IscsiTargetSettings, &'a Unit), Failure> {
    let target = settings.target.iter().find(|target| target.name.0 == name.target);
    let unit = target.and_then(|target| target.unit.iter().find(|unit| unit.lun == name.lun));
    target.zip(unit).ok_or_else(|| {
        Failure::settings(format!("the settings do not contain {name}"))
            .remedy("name one of their targets, or TARGET/LUN")
    })
}

fn cache_of<'a>(
    settings: &'a Settings,
    name: &UnitName,
    unit: &'a Unit,
) -> Result<&'a CacheLayerSettings, Failure> {
    if let Some(cache) = unit.in_common().and_then(|common| settings.common_cache(common)) {
        return Ok(cache);
    }
    let cache = stack::cache_over(unit.stack.get(1..).unwrap_or_default());
    if unit.pair().is_some() {
        return Err(Failure::settings(format!(
            "{name} is the unit of a pair, whose log is at two gateways"
        ))
        .remedy("`forebay gateway takeover` hands it over to the partner"));
    }
    cache.filter(|_| matches!(unit.stack.first(), Some(Layer::Remote(_)))).ok_or_else(|| {
        Failure::settings(format!("{name} has no cache over a remote volume"))
            .remedy("name the unit of a gateway")
    })
}

/// Fails if the log does not exist, since opening it would create a new one.
fn must_be_there(cache: &CacheLayerSettings) -> Result<(), Failure> {
    if cache.log.exists() {
        return Ok(());
    }
    Err(Failure::new(format!("there is no log at {}", cache.log.display()))
        .remedy("bring the log of the other host there first, or correct `log`"))
}

/// Returns the `[[target]]` tables of the settings with only these units, and with the serial number by which hosts
/// recognize each unit.
fn kept_targets(
    targets: &toml::Value,
    units: &[(&IscsiTargetSettings, &Unit)],
    serial: impl Fn(&IscsiTargetSettings, &Unit) -> String,
) -> Vec<toml::Value> {
    let mut kept = Vec::new();
    for target in targets.as_array().into_iter().flatten().filter_map(toml::Value::as_table) {
        let mut target = target.clone();
        let is_its = |(other, _): &&(&IscsiTargetSettings, &Unit)| {
            target.get("name").and_then(toml::Value::as_str) == Some(&other.name.0)
        };
        let its: Vec<_> = units.iter().filter(is_its).copied().collect();
        let Some(tables) = target.get_mut("unit").and_then(toml::Value::as_array_mut) else {
            continue;
        };
        let of = |table: &toml::Value| {
            let lun = table.get("lun").and_then(toml::Value::as_integer).unwrap_or_default();
            its.iter().find(|(_, unit)| i64::from(unit.lun) == lun).copied()
        };
        tables.retain(|table| of(table).is_some());
        for table in tables.iter_mut() {
            if let Some((target, unit)) = of(table)
                && let Some(table) = table.as_table_mut()
            {
                table.insert("serial".to_owned(), serial(target, unit).into());
            }
        }
        if !tables.is_empty() {
            kept.push(target.into());
        }
    }
    kept
}

/// Returns the settings that the other host needs: the target with this unit, as TOML text. For a common cache, these
/// are all of its units and the common cache itself. The text contains the serial numbers by which hosts recognize the
/// units.
fn fragment(
    config: &Path,
    served: &Settings,
    name: &UnitName,
    cache: &CacheLayerSettings,
    exported: &Exported,
) -> Result<String, Failure> {
    let text = std::fs::read_to_string(config).map_err(Failure::new)?;
    let mut settings: toml::Table = toml::from_str(&text).map_err(Failure::new)?;
    let targets = settings.remove("target").unwrap_or(toml::Value::Array(Vec::new()));
    let (target, unit) = find(served, name)?;
    let units = match unit.in_common() {
        Some(common) => served.units_of(common),
        None => vec![(target, unit)],
    };
    let serial = |target: &IscsiTargetSettings, unit: &Unit| {
        let is_named = (&target.name.0, unit.lun) == (&name.target, name.lun);
        if is_named { exported.serial.clone() } else { node::serial(target, unit) }
    };
    let kept = kept_targets(&targets, &units, serial);
    let mut whole = toml::Table::new();
    if let Some(common) = unit.in_common()
        && let Some(tables) = settings.get_mut("common_cache").and_then(toml::Value::as_array_mut)
    {
        let its_name =
            |table: &toml::Value| table.get("name").and_then(toml::Value::as_str) == Some(common);
        tables.retain(its_name);
        whole.insert("common_cache".to_owned(), toml::Value::Array(std::mem::take(tables)));
    }
    whole.insert("target".to_owned(), toml::Value::Array(kept));
    let mut out = format!(
        "# {name}, exported from {}: log {}, generation {}, with {} that the far volume lacks.\n\
         # Move {} to the other host, put this into its settings, correct paths and secrets, and\n\
         # there: forebay gateway adopt {name} --config FILE, then forebay serve --config FILE.\n",
        config::name_of_host(),
        exported.log,
        exported.generation,
        about(exported.dirty_bytes),
        cache.log.display(),
    );
    if cache.nvram.is_some() {
        let _ = writeln!(
            out,
            "# The content of the NVRAM is in the log: a new, empty NVRAM file suffices there."
        );
    }
    let body = toml::to_string(&whole).map_err(Failure::new)?;
    let _ = write!(out, "\n{body}");
    Ok(out)
}
