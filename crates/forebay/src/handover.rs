//! `forebay gateway export` and `adopt`: a log leaves one host, whole, and is taken up on another.

use std::{fmt::Write as _, path::Path};

use volume::Holding;

use crate::{
    cli::{Adopt, Export},
    control::{self, Request, Response},
    failure::Failure,
    node,
    orders::{Exported, UnitName},
    output::{print, print_line},
    quantity::about,
    settings::{Cache, Layer, Settings, Target, Unit},
    stack,
};

/// Puts the log of a unit away, in the process that serves it or without one, and tells what the
/// other host needs.
pub async fn export(args: Export) -> Result<(), Failure> {
    let settings = Settings::load(&args.config)?;
    let (target, unit) = find(&settings, &args.unit)?;
    let cache = cache_of(&args.unit, unit)?;
    let path = control::path(&settings)?;
    let exported = match control::ask(&path, Request::Status) {
        Ok(_) => match control::ask(&path, Request::Export { unit: args.unit.clone() })? {
            Response::Exported(exported) => exported,
            other => return Err(other.unexpected()),
        },
        // Nobody serves it; if somebody does all the same, the log is in use.
        Err(_) => {
            must_be_there(cache)?;
            let opened = node::open_stack(&settings, target, unit).await?;
            let exported = opened.export(&node::serial(target, unit)).await;
            opened.stop().await?;
            exported?
        }
    };
    let text = fragment(&args.config, &args.unit, cache, &exported)?;
    match &args.to {
        None => print(text),
        Some(to) => {
            std::fs::write(to, text).map_err(|error| {
                Failure::new(format!("cannot write {}: {error}", to.display()))
                    .remedy("name another file with --to; the log is exported, ask again")
            })?;
            print_line(format_args!(
                "{} is exported, {} of it not at the far side; move {} and take it up with {}",
                args.unit,
                about(exported.dirty_bytes),
                cache.log.display(),
                to.display()
            ))
        }
    }
}

/// Looks at a log that was brought here, takes its volume's claim, and leaves it ready to be served.
pub async fn adopt(args: Adopt) -> Result<(), Failure> {
    let settings = Settings::load(&args.config)?;
    let (target, unit) = find(&settings, &args.unit)?;
    let cache = cache_of(&args.unit, unit)?;
    must_be_there(cache)?;
    let mut unit = unit.clone();
    for layer in &mut unit.stack {
        if let Layer::Cache(cache) = layer {
            cache.takes_over = true;
        }
    }
    if !stack::open_log(cache).await?.is_used() {
        return Err(Failure::new(format!("the log {} is blank", cache.log.display()))
            .remedy("bring the log of the other host here, or correct `log`"));
    }
    let opened = node::open_stack(&settings, target, &unit).await?;
    let adopted = match opened.cache() {
        Some(cache) => holds(cache.holding(), &args.unit),
        None => Ok(()),
    };
    let state = match opened.cache() {
        Some(cache) => Some(cache.instance().await),
        None => None,
    };
    let dirty = opened.cache().map_or(0, |cache| cache.dirty_bytes());
    opened.stop().await?;
    adopted?;
    let (log, generation) = state.unwrap_or_default();
    print_line(format_args!(
        "{}: log {log} is taken up as generation {generation}, with {} that the far side does not have; \
         whoever had it is shut out. Serve it with `forebay serve --config {}`",
        args.unit,
        about(dirty),
        args.config.display()
    ))
}

/// A log is taken up only if whoever had it is shut out.
fn holds(holding: Holding, name: &UnitName) -> Result<(), Failure> {
    match holding {
        Holding::Held | Holding::Reserved => Ok(()),
        Holding::Waiting => Err(Failure::new(format!(
            "{name}: its node is away, and nothing shuts out whoever had the log"
        ))
        .remedy("bring the node back, and ask again; or, if the former owner is gone for sure, serve it")),
        Holding::Refused(reason) => Err(Failure::new(format!("{name}: {reason}"))),
        Holding::Nothing | Holding::Unsupported => Err(Failure::new(format!(
            "{name}: the volume below has no claims, and nothing shuts out whoever had the log"
        ))
        .remedy("give the node a `state` folder, or the remote layer `reserve`; or see that the former owner is stopped, and serve it")),
    }
}

/// The unit of that name.
pub fn find<'a>(
    settings: &'a Settings,
    name: &UnitName,
) -> Result<(&'a Target, &'a Unit), Failure> {
    let target = settings.target.iter().find(|target| target.name.0 == name.target);
    let unit = target.and_then(|target| target.unit.iter().find(|unit| unit.lun == name.lun));
    target.zip(unit).ok_or_else(|| {
        Failure::settings(format!("the settings have no {name}"))
            .remedy("name a target of theirs, or TARGET/LUN")
    })
}

fn cache_of<'a>(name: &UnitName, unit: &'a Unit) -> Result<&'a Cache, Failure> {
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

/// A log that is not there would be made.
fn must_be_there(cache: &Cache) -> Result<(), Failure> {
    if cache.log.exists() {
        return Ok(());
    }
    Err(Failure::new(format!("there is no log at {}", cache.log.display()))
        .remedy("bring the log of the other host there first, or correct `log`"))
}

/// The target with this unit as the settings have it, with the serial number that hosts know.
fn fragment(
    config: &Path,
    name: &UnitName,
    cache: &Cache,
    exported: &Exported,
) -> Result<String, Failure> {
    let text = std::fs::read_to_string(config).map_err(Failure::new)?;
    let mut settings: toml::Table = toml::from_str(&text).map_err(Failure::new)?;
    let targets = settings.remove("target").unwrap_or(toml::Value::Array(Vec::new()));
    let mut target = toml::Table::new();
    for found in targets.as_array().into_iter().flatten().filter_map(toml::Value::as_table) {
        if found.get("name").and_then(toml::Value::as_str) == Some(&name.target) {
            target = found.clone();
        }
    }
    if let Some(units) = target.get_mut("unit").and_then(toml::Value::as_array_mut) {
        let lun = |unit: &toml::Value| unit.get("lun").and_then(toml::Value::as_integer);
        units.retain(|unit| lun(unit).unwrap_or_default() == i64::from(name.lun));
        for unit in units.iter_mut().filter_map(toml::Value::as_table_mut) {
            unit.insert("serial".to_owned(), exported.serial.clone().into());
        }
    }
    let mut whole = toml::Table::new();
    whole.insert("target".to_owned(), toml::Value::Array(vec![target.into()]));
    let mut out = format!(
        "# {name}, exported from {}: log {}, generation {}, {} not at the far side.\n\
         # Move {} to the other host, put this into its settings, correct paths and secrets, and\n\
         # there: forebay gateway adopt {name} --config FILE, then forebay serve --config FILE.\n",
        stack::name_of_host(),
        exported.log,
        exported.generation,
        about(exported.dirty_bytes),
        cache.log.display(),
    );
    if cache.nvram.is_some() {
        let _ = writeln!(
            out,
            "# What the NVRAM held is in the log: a new, empty NVRAM file will do there."
        );
    }
    let body = toml::to_string(&whole).map_err(Failure::new)?;
    let _ = write!(out, "\n{body}");
    Ok(out)
}
