//! `forebay check`: reads settings and checks everything that they name, without changing anything.

mod report;
mod state_checks;
mod free_space;
mod lock_holder;
mod object_drive;

use std::{io::ErrorKind, path::Path, sync::Arc};

use cache::{MappedFile, StableMemory as _};
use config::{
    FarVolumeAddress, IscsiTargetSettings, Layer, Settings, UNMOUNT_REMEDY, Unit, UnitKind,
    quantity::about,
};
use control::{ClaimStatus, ControlRequest, ControlResponse, Failure, ServingStatus};
use node::naming::Naming;
use stack::{
    figures, key_file,
    records::{Recorder, Records},
    unit_state,
};
use target::Listener;
use transport::{CongestionControl, SocketOptions};
use unit::UnitIdentity;
use volume::{FileVolume, FileVolumeOpenError, FileVolumeOptions, Mirror, Stack};

use self::report::SettingsCheckReport;
use crate::control_socket;

/// Prints a line for each check. Fails if a check found a problem that would stop `serve`, or a reload of the running
/// process.
pub async fn run(config: &Path, json: bool) -> Result<(), Failure> {
    let mut settings = Settings::load(config)?;
    let running = running(&settings);
    let pid = running.as_ref().map(|running| running.pid);
    let mut report = SettingsCheckReport::new(json, pid);
    report.say(&config.display().to_string(), Ok("the settings are right".to_owned()))?;
    if running.is_none() {
        let free = control_socket::path(&settings)
            .and_then(|path| control_socket::check(&path).map(|()| path));
        report.say("control", free.map(|path| format!("{} is free", path.display())))?;
    }
    portals(&settings, running.as_ref(), &mut report)?;
    state_checks::folders(&settings, &mut report)?;
    state_checks::names(&settings, running.as_ref(), &mut report)?;
    state_checks::moves(&mut settings, &mut report)?;
    let settings = settings;
    free_space::room(&settings, &mut report)?;
    for target in &settings.target {
        if let Some(address) = open_to_all(&settings, target) {
            let warning = format!(
                "warning: every host that reaches {address} may log in, read and write; restrict \
                 access with `allow`"
            );
            report.say(&target.name.to_string(), Ok(warning))?;
        }
        for unit in &target.unit {
            let place = format!("{} LUN {}", target.name, unit.lun);
            if let Some(state) = &settings.state {
                let identity = UnitIdentity::new(&node::serial(target, unit));
                if let Err(failure) = unit_state::check(state, &identity) {
                    report.say(&place, Err(failure))?;
                }
            }
            look_at(&settings, target, unit, &place, &mut report).await?;
        }
    }
    for common in &settings.common_cache {
        let place = format!("common cache {}", common.name);
        let recorder = Records::of(&settings).recorder(&*place).in_common();
        look_at_cache(&common.cache, &place, &recorder, &mut report).await?;
    }
    if let Some(running) = &running {
        reload(&settings, config, running, &mut report)?;
    }
    report.end()
}

/// Returns the status of the process on the control socket of these settings; `None` if no process answers.
fn running(settings: &Settings) -> Option<ServingStatus> {
    let path = control_socket::path(settings).ok()?;
    match control_socket::ask(&path, ControlRequest::Status) {
        Ok(ControlResponse::Status(status)) => Some(*status),
        _ => None,
    }
}

/// Binds each portal address for a moment to test it, unless the running process has bound it.
fn portals(
    settings: &Settings,
    running: Option<&ServingStatus>,
    report: &mut SettingsCheckReport,
) -> Result<(), Failure> {
    // Keep each socket open until all addresses are bound: two addresses of these settings may conflict with each
    // other.
    let mut held = Vec::new();
    for group in settings.groups() {
        for (address, _) in &group.portals {
            let place = format!("portal {address}");
            let is_open = |status: &&ServingStatus| {
                status.portals.iter().any(|portal| portal.address == address.to_string())
            };
            let found = match Listener::bind(
                address.0.into(),
                &SocketOptions::default(),
                &CongestionControl::default(),
            ) {
                Ok(listener) => {
                    held.push(listener);
                    Ok("it is free".to_owned())
                }
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

/// Returns the first address at which any host can log in to the target, if there is one. A portal that requires
/// certificates does not count, because it admits only initiators that have one.
fn open_to_all(settings: &Settings, target: &IscsiTargetSettings) -> Option<config::Address> {
    if target.allow.is_some() {
        return None;
    }
    let groups = settings.groups();
    let reached = groups.iter().filter(|group| target.is_reached_through(group));
    let portals = reached.flat_map(|group| &group.portals);
    let is_open = |(address, portal): &&(config::Address, config::PortalSettings)| {
        !address.0.ip().is_loopback() && portal.tls.is_none()
    };
    portals.into_iter().find(is_open).map(|(address, _)| *address)
}

/// Checks the layers of a unit that use storage.
async fn look_at(
    settings: &Settings,
    target: &IscsiTargetSettings,
    unit: &Unit,
    place: &str,
    report: &mut SettingsCheckReport,
) -> Result<(), Failure> {
    let mut recorder = Records::of(settings).recorder(format!("{}/{}", target.name, unit.lun));
    recorder.is_opened_at_start_only = unit.in_common().is_some();
    for layer in &unit.stack {
        match layer {
            Layer::File(file) => {
                report.say(place, look_at_file(file, &recorder, report.running))?;
            }
            Layer::Encrypt(encrypt) => report.say(place, look_at_key(encrypt))?,
            Layer::Cache(cache) => look_at_cache(cache, place, &recorder, report).await?,
            Layer::Remote(remote) => {
                let cache = stack::cache_over(&unit.stack[1..]);
                let found = look_at_far_volume(settings, target, remote, cache).await;
                let is_usable = found.is_ok();
                report.say(place, found)?;
                let common = unit.in_common().and_then(|common| settings.common_cache(common));
                if let Some(cache) = cache.or(common)
                    && is_usable
                    && let Some(failure) = look_at_claim(settings, target, remote, cache).await
                {
                    report.say(place, Err(failure))?;
                }
            }
            _ => {}
        }
    }
    match unit.kind {
        UnitKind::Block => Ok(()),
        UnitKind::Object => object_drive::examine(target, unit, place, report).await,
    }
}

async fn look_at_cache(
    cache: &config::CacheLayerSettings,
    place: &str,
    recorder: &Recorder,
    report: &mut SettingsCheckReport,
) -> Result<(), Failure> {
    if let Some(key) = cache.key() {
        report.say(place, look_at_key(&key))?;
    }
    report.say(place, look_at_log(cache, recorder, report.running).await)?;
    if let Some(nvram) = &cache.nvram {
        report.say(place, look_at_nvram(nvram, cache.nvram_size.0, report.running))?;
    }
    if let Some(tier) = &cache.read_tier {
        report.say(place, look_at_tier(cache, tier, report.running).await)?;
    }
    Ok(())
}

fn look_at_key(key: &config::EncryptLayerSettings) -> Result<String, Failure> {
    let unlocked = key_file::open(key);
    unlocked.map(|_| format!("the secret unwraps the key {}", key.key.display()))
}

fn look_at_file(
    file: &config::File,
    recorder: &Recorder,
    running: Option<u32>,
) -> Result<String, Failure> {
    recorder.look_at_volume(&file.path)?;
    let mut options = stack::options(file);
    if !file.path.exists() && file.size.is_some() {
        return would_be_made(&options, &file.path.display().to_string());
    }
    options.preallocate = false;
    options.read_only = true;
    let Some(volume) = open(&options)? else { return in_use(&file.path, running) };
    Ok(format!("{} holds {}", file.path.display(), about(volume.geometry().bytes())))
}

async fn look_at_log(
    cache: &config::CacheLayerSettings,
    recorder: &Recorder,
    running: Option<u32>,
) -> Result<String, Failure> {
    if cache.pair.is_some() && cache.log.exists() {
        return look_at_half(cache, running).await;
    }
    // The log of a pair has no record of storage.
    let records = match cache.pair {
        None => Some(recorder.look_at_log(cache)?),
        Some(_) => None,
    };
    if !stack::log_exists(cache) && cache.log_size.is_some() {
        stack::check_nvram(cache, None).await?;
        if let Some(second) = &cache.log_mirror {
            would_be_made(&stack::log_options(cache, second), "")?;
        }
        let options = stack::log_options(cache, &cache.log);
        return would_be_made(&options, &format!("the log {}", cache.log.display()));
    }
    let Some(log) = stack::look_at_log(cache, open).await? else {
        return in_use(&cache.log, running);
    };
    if let Some(records) = records {
        records.check(stack::instance(cache, &log).await?.as_deref())?;
    }
    let found = stack::describe_log(cache, &log).await?;
    stack::check_nvram(cache, Some(&log)).await?;
    Ok(found)
}

/// Checks this gateway's mirror leg of a pair's log.
async fn look_at_half(
    cache: &config::CacheLayerSettings,
    running: Option<u32>,
) -> Result<String, Failure> {
    let name = cache.log.display();
    let mut options = stack::log_options(cache, &cache.log);
    (options.preallocate, options.read_only) = (false, true);
    let Some(half) = open(&options)? else { return in_use(&cache.log, running) };
    stack::check_half(cache, &half).await?;
    let label = Mirror::label_of(&half).await.map_err(|error| {
        Failure::new(format!("{name} cannot be a mirror leg of a log: {error}"))
            .remedy("name the right file or device")
    })?;
    Ok(match label {
        None => format!("{name} is blank, and can become the mirror leg of a new log"),
        Some(label) if label.epoch == 0 => {
            format!(
                "{name} is a mirror leg of a log whose filling had just begun, so it has no data \
                 yet"
            )
        }
        Some(label) => {
            let alone =
                if label.alone { ", which continued without the partner's leg" } else { "" };
            let lacks =
                if label.has_lost { "; it lacks writes that its NVRAM has lost" } else { "" };
            format!("{name} is a mirror leg of a log, of epoch {}{alone}{lacks}", label.epoch)
        }
    })
}

async fn look_at_tier(
    cache: &config::CacheLayerSettings,
    path: &Path,
    running: Option<u32>,
) -> Result<String, Failure> {
    let name = path.display();
    let mut options = stack::tier_options(cache, path);
    if options.create.is_some() {
        return would_be_made(&options, &format!("the read tier {name}"));
    }
    options.read_only = true;
    let Some(volume) = open(&options)? else { return in_use(path, running) };
    // One mirror leg of a pair's log does not show which log it belongs to.
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

fn look_at_nvram(path: &Path, bytes: u64, running: Option<u32>) -> Result<String, Failure> {
    let name = path.display();
    match MappedFile::inspect(path, bytes) {
        Ok(Some(found)) => Ok(format!("the NVRAM file {name} has {}", about(found.len() as u64))),
        Ok(None) => match MappedFile::can_be_made(path, bytes) {
            Ok(()) => Ok(format!("the NVRAM file {name} would be made")),
            Err(error) => Err(Failure::new(format!("cannot make the NVRAM file {name}: {error}"))
                .remedy(stack::io_remedy(&error, path))),
        },
        Err(error) if error.kind() == ErrorKind::ResourceBusy => in_use(path, running),
        Err(error) => Err(Failure::new(format!("cannot use the NVRAM file {name}: {error}"))
            .remedy(stack::io_remedy(&error, path))),
    }
}

/// Reports that `serve` would create a missing file, or returns the error if it could not.
fn would_be_made(options: &FileVolumeOptions, what: &str) -> Result<String, Failure> {
    match FileVolume::can_be_made(options) {
        Ok(()) => Ok(format!("{what} would be made")),
        Err(error) => Err(stack::refusal(&error)),
    }
}

/// Logs in to the far target, and compares the unit with the one that the log belongs to.
async fn look_at_far_volume(
    settings: &Settings,
    target: &IscsiTargetSettings,
    remote: &config::RemoteLayerSettings,
    cache: Option<&config::CacheLayerSettings>,
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
    let initiator_name = settings.initiator_name.clone().unwrap_or_else(config::name_of_host);
    let naming = Naming::guest(settings)?.map(Arc::new);
    let us = stack::Us { initiator_name, lasting: None };
    let session = stack::session(remote, &us, Naming::for_stacks(naming.as_ref()))?;
    let (lun, units) = match list(&session).await {
        Ok(found) => found,
        Err(error) if known.is_some() && stack::may_pass(&error) => {
            return Ok(format!(
                "{} does not answer ({error}); a start continues with the log",
                remote.url
            ));
        }
        Err(error) => return Err(stack::refused_far_volume(remote, &error)),
    };
    let unit = units.into_iter().find(|unit| unit.lun == lun);
    let facts = match unit.map(|unit| unit.facts) {
        Some(Ok(facts)) => facts,
        Some(Err(error)) => return Err(stack::refused_far_volume(remote, &error)),
        None => {
            return Err(Failure::new(format!("{}: there is no such unit", remote.url))
                .remedy("list the units: `forebay ls iscsi://HOST`"));
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

/// Compares the node's claim on the volume with the local log, because a start refuses this log if another log has the
/// claim. Returns `None` if the claim does not prevent a start. Also returns `None` if the node does not answer, which
/// another check has reported.
async fn look_at_claim(
    settings: &Settings,
    target: &IscsiTargetSettings,
    remote: &config::RemoteLayerSettings,
    cache: &config::CacheLayerSettings,
) -> Option<Failure> {
    let far: FarVolumeAddress = remote.url.parse().ok()?;
    // Other logs may also have claims on a shared volume or on the unit of a pair. A start does not refuse this log
    // because of such a claim.
    if is_own(settings, target, &far) || cache.share || cache.pair.is_some() {
        return None;
    }
    let here = match stack::log_exists(cache) {
        // If another process uses the log, return without a finding: that process has presented the claim of this log to
        // the node already.
        true => stack::instance(cache, &stack::look_at_log(cache, open).await.ok()??).await.ok()?,
        false => None,
    };
    let initiator_name = settings.initiator_name.clone().unwrap_or_else(config::name_of_host);
    let naming = Naming::guest(settings).ok()?.map(Arc::new);
    let us = stack::Us { initiator_name, lasting: None };
    let session = stack::session(remote, &us, Naming::for_stacks(naming.as_ref())).ok()?;
    let mut claim = None;
    for place in session.places().await.ok()? {
        if let Ok(found) = initiator::claim_of(&place).await {
            claim = found;
            break;
        }
    }
    let claim = figures::claim(claim?);
    let stands_in_the_way = claim.held && (claim.dirty || claim.present);
    if !stands_in_the_way || here.as_ref() == Some(&claim.log) {
        return None;
    }
    let ClaimStatus { owner, log, generation, .. } = &claim;
    let unit = match &far {
        FarVolumeAddress::At(url) => {
            url.target.as_ref().map(|name| format!("{name}/{}", url.lun.unwrap_or(0)))
        }
        FarVolumeAddress::Named(_) => None,
    };
    let unit = unit.unwrap_or_else(|| "TARGET/LUN".to_owned());
    let path = cache.log.display();
    let here = match &here {
        Some(instance) => format!("the log {path} is another one, instance {instance}"),
        None => format!("the log {path} is missing or blank"),
    };
    let drop =
        format!("at the node: `forebay claim drop {unit} --lose-dirty-data --hosts-unmounted`");
    let claimed = format!("{} is claimed for log {log} (generation {generation})", remote.url);
    Some(match *owner == us.initiator_name.0 {
        true => Failure::new(format!("{claimed} of this gateway ({owner}), but {here}"))
            .remedy(format!(
                "put that log back under {path}; if it is permanently lost, {UNMOUNT_REMEDY}; then {drop}"
            )),
        false => Failure::new(format!("{claimed} of {owner}, so this gateway cannot write to it"))
            .remedy(format!(
                "let that gateway drain and stop, or bring its log here and adopt it with \
                 `forebay gateway adopt`; if it is permanently lost, {UNMOUNT_REMEDY}; then {drop}"
            )),
    })
}

/// Returns true if the far volume is a unit of another target of the same settings.
fn is_own(settings: &Settings, target: &IscsiTargetSettings, far: &FarVolumeAddress) -> bool {
    let others = || settings.target.iter().filter(|other| other.name != target.name);
    match far {
        FarVolumeAddress::At(url) => {
            others().any(|other| Some(&other.name.0) == url.target.as_ref())
        }
        FarVolumeAddress::Named(volume) => {
            others().flat_map(|other| &other.unit).any(|unit| unit.volume.as_ref() == Some(volume))
        }
    }
}

/// Returns the units of the session's target, and the LUN of the session's unit.
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

/// Reports the changes that a reload of the running process would make.
fn reload(
    settings: &Settings,
    config: &Path,
    running: &ServingStatus,
    report: &mut SettingsCheckReport,
) -> Result<(), Failure> {
    let place = format!("a reload in process {}", running.pid);
    if let Some(attached) = &running.attached {
        let device = attached.device.display();
        let found = format!(
            "it has attached {} as {device}, and reads its settings at the start only",
            attached.volume
        );
        return report.say(&place, Ok(found));
    }
    let config = std::path::absolute(config).map_err(Failure::new)?;
    let found = match control_socket::ask(
        &control_socket::path(settings)?,
        ControlRequest::Compare { config },
    )? {
        ControlResponse::Changes(changes) if changes.is_empty() => {
            Ok("nothing is different".to_owned())
        }
        ControlResponse::Changes(changes) if changes.refused.is_empty() => {
            Ok(format!("\n{}", changes.for_people().trim_end()))
        }
        ControlResponse::Changes(changes) => {
            Err(Failure::new(format!("it would be refused\n{}", changes.for_people().trim_end()))
                .remedy("undo these changes in the settings, or restart the process"))
        }
        other => Err(other.unexpected()),
    };
    report.say(&place, found)
}

/// Opens a file for reading. Returns `None` if a process is serving it.
fn open(options: &FileVolumeOptions) -> Result<Option<Stack>, Failure> {
    match FileVolume::open(options) {
        Ok(volume) => Ok(Some(Arc::new(volume))),
        Err(FileVolumeOpenError::InUse(_)) => Ok(None),
        Err(error) => Err(stack::refusal(&error)),
    }
}

/// Returns the line for a file that a process has locked. Fails unless it is the process that answers on the control
/// socket of these settings: `serve` would not get the file.
fn in_use(path: &Path, running: Option<u32>) -> Result<String, Failure> {
    let holder = lock_holder::process(path);
    let by = match holder {
        Some(process) => format!("process {}", lock_holder::describe(process)),
        None => "a process that cannot be seen from here".to_owned(),
    };
    let held = format!("{} is in use by {by}", path.display());
    let is_own = running.is_some_and(|running| {
        holder.is_none_or(|process| lock_holder::has_number(process, running))
    });
    match is_own {
        true => Ok(held),
        false => Err(Failure::new(held).remedy(
            "stop that process, or name another file; a process that serves these settings answers on their control \
             socket",
        )),
    }
}
