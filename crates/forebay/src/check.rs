//! `forebay check`: reads settings and looks at what they name, without changing anything.

use std::{io::ErrorKind, path::Path, sync::Arc};

use cache::MappedFile;
use target::Listener;
use transport::SocketOptions;
use volume::{FileVolume, Mirror, OpenError, Options, Stack};

use crate::{
    control::{self, Request, Response},
    failure::{FAILED, Failure},
    key_file,
    naming::Naming,
    node,
    output::print_line,
    quantity::about,
    settings::{self, Far, Layer, Settings, Target, Unit},
    stack,
    status::Status,
};

/// Prints a line for each thing looked at; fails if one of them would stop `serve`, or a reload of
/// the process that serves.
pub async fn run(config: &Path) -> Result<(), Failure> {
    let settings = Settings::load(config)?;
    let mut report = Report::default();
    print_line(format_args!("{}: the settings are right", config.display()))?;
    let running = running(&settings);
    portals(&settings, running.as_ref(), &mut report)?;
    for target in &settings.target {
        for unit in &target.unit {
            let place = format!("{} LUN {}", target.name, unit.lun);
            look_at(&settings, target, unit, &place, &mut report).await?;
        }
    }
    for common in &settings.common_cache {
        let place = format!("common cache {}", common.name);
        look_at_cache(&common.cache, &place, &mut report).await?;
    }
    if let Some(running) = &running {
        reload(&settings, config, running, &mut report)?;
    }
    report.end()
}

/// What was found so far.
#[derive(Default)]
struct Report {
    wrong: usize,
}

impl Report {
    fn say(&mut self, place: &str, found: Result<String, Failure>) -> Result<(), Failure> {
        match found {
            Ok(found) => print_line(format_args!("{place}: {found}")),
            Err(failure) => {
                self.wrong += 1;
                print_line(format_args!("{place}: {failure}"))
            }
        }
    }

    fn end(self) -> Result<(), Failure> {
        if self.wrong == 0 {
            return Ok(());
        }
        let message = format!("{} of these things cannot be used as they are", self.wrong);
        Err(Failure { message, remedy: Some("see the lines above".into()), code: FAILED })
    }
}

/// The process that serves with the control socket of these settings.
fn running(settings: &Settings) -> Option<Status> {
    let path = control::path(settings).ok()?;
    match control::ask(&path, Request::Status) {
        Ok(Response::Status(status)) => Some(*status),
        _ => None,
    }
}

/// Takes each address for a moment.
fn portals(
    settings: &Settings,
    running: Option<&Status>,
    report: &mut Report,
) -> Result<(), Failure> {
    for group in settings.groups() {
        for (address, _) in &group.portals {
            let place = format!("portal {address}");
            let is_open = |status: &&Status| {
                status.portals.iter().any(|portal| portal.address == address.to_string())
            };
            let found = match Listener::bind(address.0.into(), &SocketOptions::default()) {
                Ok(_) => Ok("it is free".to_owned()),
                Err(error) => match running.filter(is_open) {
                    Some(status) if error.kind() == ErrorKind::AddrInUse => {
                        Ok(format!("it is open in process {}", status.pid))
                    }
                    _ => Err(node::cannot_listen(*address, &error)),
                },
            };
            report.say(&place, found)?;
        }
    }
    Ok(())
}

/// The layers of a unit that stand on something.
async fn look_at(
    settings: &Settings,
    target: &Target,
    unit: &Unit,
    place: &str,
    report: &mut Report,
) -> Result<(), Failure> {
    for layer in &unit.stack {
        match layer {
            Layer::File(file) => report.say(place, look_at_file(file))?,
            Layer::Encrypt(encrypt) => report.say(place, look_at_key(encrypt))?,
            Layer::Cache(cache) => look_at_cache(cache, place, report).await?,
            Layer::Remote(remote) => {
                let cache = stack::cache_over(&unit.stack[1..]);
                report.say(place, look_at_far_side(settings, target, remote, cache).await)?;
            }
            _ => {}
        }
    }
    Ok(())
}

async fn look_at_cache(
    cache: &settings::Cache,
    place: &str,
    report: &mut Report,
) -> Result<(), Failure> {
    if let Some(key) = cache.key() {
        report.say(place, look_at_key(&key))?;
    }
    report.say(place, look_at_log(cache).await)?;
    if let Some(nvram) = &cache.nvram {
        report.say(place, look_at_nvram(nvram, cache.nvram_size.0))?;
    }
    if let Some(tier) = &cache.read_tier {
        report.say(place, look_at_tier(cache, tier).await)?;
    }
    Ok(())
}

fn look_at_key(key: &settings::Encrypt) -> Result<String, Failure> {
    let unlocked = key_file::open(key);
    unlocked.map(|_| format!("the key {} is unlocked by its secret", key.key.display()))
}

fn look_at_file(file: &settings::File) -> Result<String, Failure> {
    let mut options = stack::options(file);
    if !file.path.exists() && file.size.is_some() {
        return Ok(format!("{} would be made", file.path.display()));
    }
    options.preallocate = false;
    options.read_only = true;
    let Some(volume) = open(&options)? else { return Ok(in_use(&file.path)) };
    Ok(format!("{} holds {}", file.path.display(), about(volume.geometry().bytes())))
}

async fn look_at_log(cache: &settings::Cache) -> Result<String, Failure> {
    if cache.pair.is_some() && cache.log.exists() {
        return look_at_half(cache).await;
    }
    if !stack::log_exists(cache) && cache.log_size.is_some() {
        return Ok(format!("the log {} would be made", cache.log.display()));
    }
    let Some(log) = stack::look_at_log(cache, open).await? else { return Ok(in_use(&cache.log)) };
    stack::describe_log(cache, &log).await
}

/// The half of a pair's log.
async fn look_at_half(cache: &settings::Cache) -> Result<String, Failure> {
    let name = cache.log.display();
    let mut options = stack::log_options(cache, &cache.log);
    (options.preallocate, options.read_only) = (false, true);
    let Some(half) = open(&options)? else { return Ok(in_use(&cache.log)) };
    let label = Mirror::label_of(&half).await.map_err(|error| {
        Failure::new(format!("{name} cannot be the half of a log: {error}"))
            .remedy("name the right file or device")
    })?;
    Ok(match label {
        None => format!("{name} is blank, for the half of a new log"),
        Some(label) if label.epoch == 0 => {
            format!("{name} is the half of a log, was being filled, and holds nothing yet")
        }
        Some(label) => {
            let alone = if label.alone { ", and went on without the partner's" } else { "" };
            format!("{name} is the half of a log, of epoch {}{alone}", label.epoch)
        }
    })
}

async fn look_at_tier(cache: &settings::Cache, path: &Path) -> Result<String, Failure> {
    let name = path.display();
    let mut options = stack::tier_options(cache, path);
    if options.create.take().is_some() {
        return Ok(format!("the read tier {name} would be made"));
    }
    options.read_only = true;
    let Some(volume) = open(&options)? else { return Ok(in_use(path)) };
    // Of one half of a pair's log it is not known which log that is.
    if cache.pair.is_none() {
        let log = match stack::log_exists(cache) {
            true => stack::look_at_log(cache, open).await?,
            false => None,
        };
        let log = match &log {
            Some(log) => cache::inspect(log).await.ok().map(|log| log.instance),
            None => None,
        };
        let fits = cache::inspect_tier(&volume, log, cache.log_key.is_some()).await;
        fits.map_err(|error| stack::refused_tier(path, &error))?;
    }
    Ok(format!("the read tier {name} has {}", about(volume.geometry().bytes())))
}

fn look_at_nvram(path: &Path, bytes: u64) -> Result<String, Failure> {
    let name = path.display();
    match std::fs::metadata(path) {
        Ok(found) if found.len() > 0 => match MappedFile::open(path, bytes) {
            Ok(_) => Ok(format!("the NVRAM file {name} has {}", about(found.len()))),
            Err(error) if error.kind() == ErrorKind::ResourceBusy => Ok(in_use(path)),
            Err(error) => Err(Failure::new(format!("cannot use the NVRAM file {name}: {error}"))
                .remedy(stack::io_remedy(&error, path))),
        },
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Failure::new(format!("cannot use the NVRAM file {name}: {error}"))
                .remedy(stack::io_remedy(&error, path)))
        }
        _ => Ok(format!("the NVRAM file {name} would be made")),
    }
}

/// Logs in, and compares what is there with what the log over it belongs to.
async fn look_at_far_side(
    settings: &Settings,
    target: &Target,
    remote: &settings::Remote,
    cache: Option<&settings::Cache>,
) -> Result<String, Failure> {
    if is_own(settings, target, &remote.url.parse().map_err(Failure::settings)?) {
        return Ok(format!("{} is a target of these settings", remote.url));
    }
    let known = match cache {
        Some(cache) if cache.pair.is_none() && stack::log_exists(cache) => {
            match stack::look_at_log(cache, open).await? {
                Some(log) => stack::known(cache, &log).await?,
                None => None,
            }
        }
        _ => None,
    };
    let initiator_name = settings.initiator_name.clone().unwrap_or_else(stack::name_of_host);
    let naming = Naming::guest(settings)?.map(Arc::new);
    let us = stack::Us { initiator_name, lasting: None };
    let session = stack::session(remote, &us, naming.as_ref())?;
    let (lun, units) = match list(&session).await {
        Ok(found) => found,
        Err(error) if known.is_some() && stack::may_pass(&error) => {
            return Ok(format!("{} is away ({error}); a start goes on with the log", remote.url));
        }
        Err(error) => return Err(stack::refused_far_side(&remote.url, &error)),
    };
    let unit = units.into_iter().find(|unit| unit.lun == lun);
    let facts = match unit.map(|unit| unit.facts) {
        Some(Ok(facts)) => facts,
        Some(Err(error)) => return Err(stack::refused_far_side(&remote.url, &error)),
        None => {
            return Err(Failure::new(format!("{}: there is no such unit", remote.url))
                .remedy("see which units there are: forebay ls iscsi://HOST"));
        }
    };
    let what =
        format!("{} is \"{}\" ({})", remote.url, facts.identity, about(facts.geometry.bytes()));
    match known {
        Some(known) if known.identity != facts.identity => Err(Failure::new(format!(
            "{what}, but the log over it belongs to \"{}\"",
            known.identity
        ))
        .remedy("point `url` at the volume that the log belongs to, or name that volume's log")),
        Some(_) => Ok(format!("{what}, the volume that the log belongs to")),
        None => Ok(what),
    }
}

/// Whether a far side is another target of the same settings.
fn is_own(settings: &Settings, target: &Target, far: &Far) -> bool {
    let others = || settings.target.iter().filter(|other| other.name != target.name);
    match far {
        Far::At(url) => others().any(|other| Some(&other.name.0) == url.target.as_ref()),
        Far::Named(volume) => {
            others().flat_map(|other| &other.unit).any(|unit| unit.volume.as_ref() == Some(volume))
        }
    }
}

/// The units of the target where the session's unit is, and the number of that.
async fn list(
    session: &initiator::Settings,
) -> Result<(u16, Vec<initiator::ListedUnit>), initiator::Error> {
    let mut failed = initiator::Error::Closed;
    for place in session.places().await? {
        match initiator::list_units(&place).await {
            Ok(units) => return Ok((place.lun, units)),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// What a reload would do in the process that serves.
fn reload(
    settings: &Settings,
    config: &Path,
    running: &Status,
    report: &mut Report,
) -> Result<(), Failure> {
    let place = format!("a reload in process {}", running.pid);
    let config = std::path::absolute(config).map_err(Failure::new)?;
    let found = match control::ask(&control::path(settings)?, Request::Compare { config })? {
        Response::Changes(changes) if changes.is_empty() => Ok("nothing is different".to_owned()),
        Response::Changes(changes) if changes.refused.is_empty() => {
            Ok(format!("\n{}", changes.for_people().trim_end()))
        }
        Response::Changes(changes) => {
            Err(Failure::new(format!("it would be refused\n{}", changes.for_people().trim_end())))
        }
        other => Err(other.unexpected()),
    };
    report.say(&place, found)
}

/// The file for reading; nothing if somebody serves it.
fn open(options: &Options) -> Result<Option<Stack>, Failure> {
    match FileVolume::open(options) {
        Ok(volume) => Ok(Some(Arc::new(volume))),
        Err(OpenError::InUse(_)) => Ok(None),
        Err(error) => Err(stack::refusal(&error)),
    }
}

fn in_use(path: &Path) -> String {
    format!("{} is in use: ask who serves it with `forebay status`", path.display())
}
