//! The log of a cache before the cache is opened: the log's records of its volumes, and the checks that a start
//! performs.

use std::sync::Arc;

use cache::{
    CacheOpenError, InspectError, KeyRefusal, LogInfo, MappedFile, MemberRecord, StableMemory,
};
use config::{CacheLayerSettings, quantity::about};
use control::Failure;
use volume::{Mirror, Stack};

use crate::{
    cache_refusal::{not_opened, refusal},
    cache_settings::behaviour,
    confirmed_writes,
    log_disk::LogDisk,
    not_opened::NotOpened,
    nvram,
    records::{LogRecords, Recorder},
    remote::RecordedFarVolume,
};

/// The log of a cache before the cache is opened: its disk and the records about it.
pub struct UnopenedCacheLog {
    pub(crate) disk: LogDisk,
    info: Option<LogInfo>,
    /// The mirrored log of a pair of gateways. The partner gateway holds its other leg.
    pub(crate) pair: Option<Arc<Mirror>>,
    /// The records of the log; `None` for the log of a pair, and for a log that is opened without being served.
    pub(crate) records: Option<LogRecords>,
}

impl UnopenedCacheLog {
    /// Returns true if a cache was ever opened with this log before.
    pub fn is_used(&self) -> bool {
        self.info.is_some()
    }

    /// Returns the volume to which the data in the log belongs.
    pub fn known(&self) -> Option<RecordedFarVolume> {
        self.info.as_ref().map(owner)
    }

    /// Returns the records of the volumes in a log for several volumes.
    pub fn members(&self) -> &[MemberRecord] {
        self.info.as_ref().map_or(&[], |info| &info.members)
    }

    /// Returns the names of the volumes in a log for several volumes.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.members().iter().map(|member| member.name.clone())
    }

    /// Returns the log disk as a volume of blocks.
    pub fn volume(&self) -> Stack {
        self.disk.volume()
    }

    /// Returns the far volume that had this key when a log for several volumes was last opened; `None` if there is
    /// none.
    pub fn known_by(&self, key: u64) -> Option<RecordedFarVolume> {
        let is_it = |member: &&MemberRecord| member.key == key && member.counts();
        let member = self.members().iter().find(is_it)?;
        Some(RecordedFarVolume { identity: member.name.clone(), geometry: member.geometry })
    }
}

fn owner(info: &LogInfo) -> RecordedFarVolume {
    RecordedFarVolume { identity: info.identity.name.clone(), geometry: info.identity.geometry }
}

/// Returns the volume whose data the log in `log` holds.
pub async fn known(
    settings: &CacheLayerSettings,
    log: &Stack,
) -> Result<Option<RecordedFarVolume>, NotOpened> {
    Ok(look(settings, log).await?.as_ref().map(owner))
}

/// Returns the instance id of the log in `log`; `None` if it was never used.
pub async fn instance(
    settings: &CacheLayerSettings,
    log: &Stack,
) -> Result<Option<String>, NotOpened> {
    Ok(look(settings, log).await?.map(|info| info.instance.to_string()))
}

/// Opens or creates the log, and reads its [`LogInfo`].
pub async fn open_log(settings: &CacheLayerSettings) -> Result<UnopenedCacheLog, NotOpened> {
    let disk = LogDisk::open(settings).await?;
    let info = look(settings, &disk.volume()).await?;
    Ok(UnopenedCacheLog { disk, info, pair: None, records: None })
}

/// Opens or creates the log to serve from it. Fails if the log does not agree with its record.
pub async fn open_recorded_log(
    settings: &CacheLayerSettings,
    recorder: &Recorder,
) -> Result<UnopenedCacheLog, NotOpened> {
    let records = recorder.look_at_log(settings)?;
    let log = open_log(settings).await?;
    let instance = log.info.as_ref().map(|info| info.instance.to_string());
    records.check(instance.as_deref())?;
    Ok(UnopenedCacheLog { records: Some(records), ..log })
}

pub async fn log_of_pair(
    settings: &CacheLayerSettings,
    mirror: Arc<Mirror>,
) -> Result<UnopenedCacheLog, NotOpened> {
    let info = look(settings, &(Arc::clone(&mirror) as Stack)).await?;
    let disk = LogDisk::of_pair(settings, Arc::clone(&mirror));
    // The legs of a pair's log need no record of storage: the pair's claim at the node names the log.
    Ok(UnopenedCacheLog { disk, info, pair: Some(mirror), records: None })
}

/// Returns the bytes of a volume that only the log and its NVRAM hold, and not the far volume.
pub async fn dirty_of(
    settings: &CacheLayerSettings,
    log: &UnopenedCacheLog,
    member: &MemberRecord,
) -> Result<u64, Failure> {
    // Open the NVRAM only if its file exists, because opening would create a missing file.
    let nvram = match &settings.nvram {
        Some(path) if path.exists() => nvram::open(settings)?.map(|(nvram, _)| nvram),
        _ => None,
    };
    let slots = cache::dirty_of(&log.volume(), nvram, member, settings.accept_loss).await;
    slots.map(|slots| slots * 4096).map_err(|error| refusal(settings, &error))
}

/// Reads the `LogInfo` of a log; `None` if the log was never used.
async fn look(settings: &CacheLayerSettings, log: &Stack) -> Result<Option<LogInfo>, NotOpened> {
    match cache::inspect(log).await {
        Ok(info) => Ok(Some(info)),
        Err(InspectError::Blank) => Ok(None),
        Err(InspectError::Open(error)) => Err(not_opened(settings, &error)),
    }
}

/// Describes a log in words, for `forebay check`.
///
/// # Errors
/// `serve` would refuse the log.
pub async fn describe_log(settings: &CacheLayerSettings, log: &Stack) -> Result<String, Failure> {
    let path = settings.log.display();
    let Some(info) = look(settings, log).await? else {
        return Ok(format!("the log {path} was never used"));
    };
    let stopped = if info.clean { "stopped cleanly" } else { "not stopped cleanly" };
    let encrypted = if info.encrypted { " and is encrypted" } else { "" };
    let owners = match &info.members[..] {
        [] => {
            format!("volume \"{}\" ({})", info.identity.name, about(info.identity.geometry.bytes()))
        }
        members => {
            let each = members.iter().zip(&info.dirty_of_members).map(|(member, dirty)| {
                let what = match member.given_up {
                    Some(given_up) => {
                        format!("removed, with {} discarded", about(given_up.slots * 4096))
                    }
                    None if *dirty > 0 => format!(
                        "{}, {} not destaged yet",
                        about(member.geometry.bytes()),
                        about(dirty * 4096)
                    ),
                    None => about(member.geometry.bytes()),
                };
                format!("\"{}\" ({what})", member.name)
            });
            format!("volumes {}", each.collect::<Vec<_>>().join(", "))
        }
    };
    let text = format!(
        "the log {path} belongs to {owners}{encrypted}, opened {} times, last {stopped}; {} of {} in use, {} \
         not destaged yet",
        info.generation,
        about(info.used_blocks * 4096),
        about(info.log_blocks * 4096),
        about(info.dirty_slots * 4096),
    );
    if let Some(refusal) = key_refusal(settings, &info) {
        return Err(refusal);
    }
    if !settings.accept_loss {
        check_older(settings, &info).map_err(|error| refusal(settings, &error))?;
    }
    match info.loss {
        Some(loss) if !settings.accept_loss => {
            Err(refusal(settings, &CacheOpenError::Missing(loss)))
        }
        Some(_) => {
            Ok(format!("{text}; acknowledged writes are missing from it, and accept_loss is set"))
        }
        None => Ok(text),
    }
}

/// Fails if `serve` would refuse this log because an older copy has replaced it.
fn check_older(settings: &CacheLayerSettings, info: &LogInfo) -> Result<(), CacheOpenError> {
    let Some(folder) = &settings.state else { return Ok(()) };
    let confirmed =
        confirmed_writes::recorded(folder, info.instance).map_err(CacheOpenError::Confirmed)?;
    let Some(confirmed) = confirmed else { return Ok(()) };
    let nvram = nvram::existing(settings);
    let nvram = nvram.as_ref().map(|nvram| nvram as &dyn StableMemory);
    cache::check_older(info, nvram, confirmed, confirmed_writes::boot_id())
}

/// Fails if `serve` would refuse the NVRAM together with this log. `log` is `None` if the log does not exist yet.
/// Changes nothing.
pub async fn check_nvram(
    settings: &CacheLayerSettings,
    log: Option<&Stack>,
) -> Result<(), Failure> {
    let memory: Option<Box<dyn StableMemory>> = match &settings.nvram {
        None => None,
        Some(path) => match MappedFile::inspect(path, settings.nvram_size.0) {
            Ok(Some(memory)) => Some(Box::new(memory)),
            Ok(None) => Some(Box::new(nvram::Blank(
                cache::length_for(settings.nvram_size.0 / 4096) as usize,
            ))),
            // Ignore an error here: `forebay check` reports it when it checks the NVRAM file itself.
            Err(_) => return Ok(()),
        },
    };
    let behaviour = behaviour(settings, "")?;
    let judged = cache::check_nvram(&behaviour, log, memory).await;
    judged.map_err(|error| refusal(settings, &error))
}

/// Refuses a log with dirty data that is encrypted although no key is given, or the reverse. A wrong key is
/// found when the log is opened.
fn key_refusal(settings: &CacheLayerSettings, info: &LogInfo) -> Option<Failure> {
    let how = match (&settings.log_key, info.encrypted) {
        _ if info.dirty_slots == 0 => return None,
        (None, true) => KeyRefusal::Missing,
        (Some(_), false) => KeyRefusal::Needless,
        _ => return None,
    };
    Some(refusal(settings, &CacheOpenError::Key(how)))
}
