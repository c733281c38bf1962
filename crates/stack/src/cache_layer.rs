//! The cache of a gateway as a layer: opens its log and NVRAM, and runs its destage.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use cache::{
    Cache, CacheOpenError, Coherent, CommonMember, InspectError, KeyRefusal, LogInfo, LogKey,
    LogVolumeIdentity, MappedFile, MemberRecord, NvramWatch, Parts, ResizeError, StableMemory,
    WriteMode, WriteOrderMark,
};
use config::quantity::{Size, about};
use control::{
    CacheControlCommand, CacheControlStatus, CacheFigures, CommonCacheFigures, Exported, Failure,
};
use initiator::RemoteVolume;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use volume::{Holding, Mirror, Stack};

use super::{
    cache_events, cache_figures,
    cache_refusal::{not_opened, refusal},
    log_disk::LogDisk,
    nvram,
    pacing::Pacing,
    read_tier,
    remote::RecordedFarVolume,
    watch,
};
use crate::{
    confirmed_writes, key_file,
    not_opened::NotOpened,
    records::{KeptLog, LogRecords, Recorder},
};

/// A cache at work.
pub struct CacheLayer {
    cache: Arc<Cache>,
    destage: Mutex<Option<JoinHandle<()>>>,
    /// Tokens, if the lower volume is shared; and who speaks with the node of them.
    coherent: Option<(Arc<Coherent>, JoinHandle<()>)>,
    pacing: Arc<Pacing>,
    log: PathBuf,
    disk: LogDisk,
    /// The log's record of storage; `None` for the log of a pair.
    record: Option<Arc<KeptLog>>,
    /// Serializes resizes of the log.
    resizing: tokio::sync::Mutex<()>,
    /// True once a stop has begun. Each unit of a common cache stops the cache; only the first call does it.
    is_stopped: tokio::sync::Mutex<bool>,
    /// The volumes of a common cache, each with its name.
    volumes: Vec<(String, Stack)>,
    /// Those that were given up, with how many bytes.
    given_up: Vec<(String, u64)>,
}

/// A log disk before its cache is opened.
pub struct UnopenedCacheLog {
    disk: LogDisk,
    /// Its `LogInfo`; `None` if it was never used.
    info: Option<LogInfo>,
    /// The mirror of a pair's log, whose other leg is at the partner.
    pair: Option<Arc<Mirror>>,
    /// The records of the log, if it is to be served.
    records: Option<LogRecords>,
}

impl UnopenedCacheLog {
    /// Whether a cache was ever opened with it.
    pub fn is_used(&self) -> bool {
        self.info.is_some()
    }

    /// The volume that its data belongs to.
    pub fn known(&self) -> Option<RecordedFarVolume> {
        self.info.as_ref().map(owner)
    }

    /// What it knows of its volumes, if it is for several.
    pub fn members(&self) -> &[MemberRecord] {
        self.info.as_ref().map_or(&[], |info| &info.members)
    }

    /// What they call themselves.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.members().iter().map(|member| member.name.clone())
    }

    /// Its blocks.
    pub fn volume(&self) -> Stack {
        self.disk.volume()
    }

    /// The one of several that was known by `key` when it was opened last.
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
    settings: &config::CacheLayerSettings,
    log: &Stack,
) -> Result<Option<RecordedFarVolume>, NotOpened> {
    Ok(look(settings, log).await?.as_ref().map(owner))
}

/// Returns the instance id of the log in `log`; `None` if it was never used.
pub async fn instance(
    settings: &config::CacheLayerSettings,
    log: &Stack,
) -> Result<Option<String>, NotOpened> {
    Ok(look(settings, log).await?.map(|info| info.instance.to_string()))
}

/// Opens or creates the log and reads its `LogInfo`.
pub async fn open_log(
    settings: &config::CacheLayerSettings,
) -> Result<UnopenedCacheLog, NotOpened> {
    let disk = LogDisk::open(settings).await?;
    let info = look(settings, &disk.volume()).await?;
    Ok(UnopenedCacheLog { disk, info, pair: None, records: None })
}

/// Opens or creates the log to serve from it. Fails if the log does not agree with its record.
pub async fn open_recorded_log(
    settings: &config::CacheLayerSettings,
    recorder: &Recorder,
) -> Result<UnopenedCacheLog, NotOpened> {
    let records = recorder.look_at_log(settings)?;
    let log = open_log(settings).await?;
    let instance = log.info.as_ref().map(|info| info.instance.to_string());
    records.check(instance.as_deref())?;
    Ok(UnopenedCacheLog { records: Some(records), ..log })
}

/// Returns the assembled log of a pair, with its `LogInfo`.
pub async fn log_of_pair(
    settings: &config::CacheLayerSettings,
    mirror: Arc<Mirror>,
) -> Result<UnopenedCacheLog, NotOpened> {
    let info = look(settings, &(Arc::clone(&mirror) as Stack)).await?;
    let disk = LogDisk::of_pair(settings, Arc::clone(&mirror));
    // A pair has a claim at the node, which names the log, so its mirror legs need no record.
    Ok(UnopenedCacheLog { disk, info, pair: Some(mirror), records: None })
}

impl CacheLayer {
    /// Opens the cache over `lower` and starts its destage.
    pub async fn open(
        settings: &config::CacheLayerSettings,
        lower: Stack,
        log: UnopenedCacheLog,
        identity: &str,
        owner: &str,
    ) -> Result<Self, NotOpened> {
        // In a pair, the NVRAM is in front of the half of the log, and was opened with it.
        let found = if settings.pair.is_none() { nvram::open(settings)? } else { None };
        let (nvram, watched) = found.unzip();
        let identity = LogVolumeIdentity { name: identity.to_owned(), geometry: lower.geometry() };
        let below = Arc::clone(&lower);
        let behaviour = behaviour(settings, owner)?;
        let opened = match log.pair {
            Some(mirror) => Cache::open_pair(behaviour, lower, mirror, identity).await,
            None => {
                let parts = Parts { lower, log: log.disk.volume(), nvram };
                Cache::open(behaviour, parts, identity).await
            }
        };
        let cache = opened.map_err(|error| not_opened(settings, &error))?;
        let record = keep_record(log.records, settings, &cache).await?;
        read_tier::open(settings, &cache).await?;
        watch_files(&cache, settings, &log.disk, watched);
        Ok(Self::begin(cache, settings, (log.disk, record), below))
    }

    /// Opens the cache of several volumes. Gives them as upper layers see them, in the same order.
    pub async fn open_common(
        settings: &config::CacheLayerSettings,
        members: Vec<CommonMember>,
        log: UnopenedCacheLog,
        owner: &str,
    ) -> Result<(Self, Vec<Stack>), NotOpened> {
        let (nvram, watched) = nvram::open(settings)?.unzip();
        let behaviour = behaviour(settings, owner)?;
        let volumes: Vec<_> =
            members.iter().map(|member| (member.name.clone(), Arc::clone(&member.lower))).collect();
        let opened = Cache::open_common(behaviour, members, log.disk.volume(), nvram).await;
        let (cache, above) = opened.map_err(|error| not_opened(settings, &error))?;
        let record = keep_record(log.records, settings, &cache).await?;
        let below = Arc::clone(&above[0]);
        read_tier::open(settings, &cache).await?;
        watch_files(&cache, settings, &log.disk, watched);
        let given_up = cache.given_up().await;
        for (volume, bytes) in &given_up {
            tracing::warn!(
                volume, bytes, log = %settings.log.display(),
                "a volume of this log was given up, with acknowledged writes that only the log had"
            );
        }
        let mut layer = Self::begin(cache, settings, (log.disk, record), below);
        (layer.volumes, layer.given_up) = (volumes, given_up);
        Ok((layer, above))
    }

    /// Starts what a cache does by itself.
    fn begin(
        cache: Arc<Cache>,
        settings: &config::CacheLayerSettings,
        (disk, record): (LogDisk, Option<Arc<KeptLog>>),
        below: Stack,
    ) -> Self {
        let pacing = Pacing::begin(Arc::clone(&cache), settings.schedule());
        let destage = tokio::spawn(cache.run());
        let counted = cache.statistics();
        if counted.recovered_slots + counted.recovered_nvram > 0 {
            tracing::info!(
                log = %settings.log.display(),
                slots = counted.recovered_slots,
                nvram = counted.recovered_nvram,
                "recovered acknowledged writes that had not reached the far side"
            );
        }
        let destage = Mutex::new(Some(destage));
        let coherent = settings.share.then(|| {
            let coherent = Coherent::new(Arc::clone(&cache), below);
            let speaking = tokio::spawn(coherent.run());
            (coherent, speaking)
        });
        tokio::spawn(watch_claim(Arc::downgrade(&cache)));
        if let Some(record) = &record {
            let cache = Arc::downgrade(&cache);
            record.note_dirty(move || Some(cache.upgrade()?.statistics().dirty_bytes));
        }
        Self {
            cache,
            destage,
            coherent,
            pacing,
            log: settings.log.clone(),
            disk,
            record,
            resizing: tokio::sync::Mutex::new(()),
            is_stopped: tokio::sync::Mutex::new(false),
            volumes: Vec::new(),
            given_up: Vec::new(),
        }
    }

    /// Starts the events about a log that fills and a far volume that does not answer. `volume` names the
    /// volume in the events, or all volumes of a common cache. `links` lead to these volumes.
    pub fn watch(&self, volume: String, links: Vec<Weak<RemoteVolume>>) {
        let (cache, log) = (Arc::downgrade(&self.cache), self.log.clone());
        tokio::spawn(cache_events::watch(cache, volume, log, links));
    }

    /// The cache itself.
    pub fn cache(&self) -> Arc<Cache> {
        Arc::clone(&self.cache)
    }

    /// Its log is somebody else's: nothing more is done.
    pub fn abandon(&self, reason: &str) {
        self.cache.abandon(reason);
        if let Some(destage) = self.destage.lock().take() {
            destage.abort();
        }
    }

    /// What upper layers see.
    pub fn volume(&self) -> Stack {
        match &self.coherent {
            Some((coherent, _)) => Arc::clone(coherent) as Stack,
            None => Arc::clone(&self.cache) as Stack,
        }
    }

    /// Keeps to what new settings say of the rate.
    pub fn follow(&self, settings: &config::CacheLayerSettings) {
        self.pacing.follow(settings.schedule());
    }

    /// Opens a half of the log's mirror anew and fills it.
    pub async fn renew(&self, half: u8) -> Result<(), Failure> {
        self.disk.renew(half.into()).await
    }

    /// Does what is asked, or for a second at most works at it.
    pub async fn obey(
        &self,
        order: CacheControlCommand,
    ) -> Result<CacheControlStatus, volume::Error> {
        let (mut done, mut reached) = (true, None);
        if let (
            CacheControlCommand::Flush { .. } | CacheControlCommand::Drain,
            Holding::Refused(reason),
        ) = (order, self.cache.holding())
        {
            return Err(volume::Error::Fenced(reason));
        }
        match order {
            // Done before.
            CacheControlCommand::Renew { .. } | CacheControlCommand::LogResize { .. } => {}
            CacheControlCommand::Pause => self.cache.pause(),
            CacheControlCommand::Resume => self.cache.resume(),
            CacheControlCommand::Rate(rate) => self.pacing.tell(rate),
            CacheControlCommand::Flush { mark } => {
                reached = mark;
                let flush = self.flush(&mut reached);
                done = tokio::time::timeout(WORK_AT_ONCE, flush).await.unwrap_or(Ok(false))?;
            }
            CacheControlCommand::Drain => {
                let drain = self.drain();
                done = tokio::time::timeout(WORK_AT_ONCE, drain).await.unwrap_or(Ok(false))?;
            }
        }
        Ok(self.standing(done, reached).await)
    }

    async fn standing(&self, done: bool, mark: Option<u64>) -> CacheControlStatus {
        let counted = self.cache.statistics();
        CacheControlStatus {
            done,
            dirty_bytes: counted.dirty_bytes,
            sent_bytes: counted.round_sent_bytes,
            paused_since: counted.paused_ms.map(cache_figures::since),
            rate_limit: counted.destage_rate_limit,
            rate: counted.destage_rate,
            lower_error: counted.lower_error,
            mark,
            log_bytes: self.cache.log_blocks().await * 4096,
        }
    }

    /// Gives the log so many bytes, or as many as its device has; or for a second at most works at
    /// it.
    pub async fn resize(&self, bytes: Option<u64>) -> Result<CacheControlStatus, Failure> {
        let _turn = self.resizing.lock().await;
        self.disk.can_be_resized()?;
        let wrong = |bytes: &u64| {
            !bytes.is_multiple_of(4096) || !(LEAST_LOG..=MOST_LOG).contains(&Size(*bytes))
        };
        if let Some(bytes) = bytes.filter(wrong) {
            let asked = Size(bytes);
            let message = format!("a log of {asked} is not between {LEAST_LOG} and {MOST_LOG}");
            return Err(Failure::new(message).remedy("name another size, a multiple of 4KiB"));
        }
        // As `log_size` it is that of the file, or of each of two.
        let beside = self.disk.bytes_beside();
        let now = self.cache.log_blocks().await * 4096 + beside;
        let blocks = match bytes {
            Some(bytes) if bytes < now => (bytes - beside) / 4096,
            bytes => {
                let there = self.disk.grow(bytes).await?;
                bytes.map_or(there, |bytes| (bytes - beside) / 4096)
            }
        };
        let resized = tokio::time::timeout(WORK_AT_ONCE, self.cache.resize(blocks)).await;
        let done = match resized {
            Ok(Ok(())) => true,
            Ok(Err(error)) => return Err(self.not_resized(error).await),
            Err(_) => false,
        };
        if done {
            self.disk.shrink(blocks * 4096).await?;
            tracing::info!(log = %self.log.display(), bytes = blocks * 4096, "the log has another size");
        }
        Ok(self.standing(done, None).await)
    }

    /// Gives back what its file has got in vain.
    async fn not_resized(&self, error: ResizeError) -> Failure {
        let remedy = match &error {
            ResizeError::Size { .. } => "name another size",
            ResizeError::TooOften => "`forebay gateway drain` it, then say it again",
            ResizeError::AtFlush => "stop, and make a new log while nothing is in it",
            ResizeError::Volume(_) => "see what `forebay status` says, then say it again",
        };
        let mut text = format!("the log {} does not get another size: {error}", self.log.display());
        // As it is now: what was asked before and given up may have been done meanwhile.
        if let Err(shrunk) = self.disk.shrink(self.cache.log_blocks().await * 4096).await {
            text += &format!("; {shrunk}");
        }
        Failure::new(text).remedy(remedy)
    }

    async fn flush(&self, mark: &mut Option<u64>) -> Result<bool, volume::Error> {
        let to = match *mark {
            Some(number) => WriteOrderMark(number),
            None => self.cache.mark().await?,
        };
        *mark = Some(to.0);
        self.cache.drain_to(to).await?;
        Ok(true)
    }

    async fn drain(&self) -> Result<bool, volume::Error> {
        loop {
            self.cache.drain().await?;
            if self.cache.is_drained() {
                return Ok(true);
            }
        }
    }

    /// How the claim on the far volume stands.
    pub fn holding(&self) -> Holding {
        self.cache.holding()
    }

    /// The log's instance id, and how often it was opened.
    pub async fn instance(&self) -> (String, u64) {
        let (instance, generation) = self.cache.instance().await;
        (instance.to_string(), generation)
    }

    /// The path of the log.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns the number of bytes that the far volume does not have.
    pub fn dirty_bytes(&self) -> u64 {
        self.cache.statistics().dirty_bytes
    }

    /// Puts the log away for another host.
    pub async fn export(&self, serial: &str) -> Result<Exported, Failure> {
        self.cache.export().await.map_err(|error| {
            Failure::new(format!("the log {} is not exported: {error}", self.log.display())).remedy(
                "do not take it elsewhere; see to that and ask again. The unit takes nothing any \
                 more: to go on with it here, restart the gateway",
            )
        })?;
        let (log, generation) = self.instance().await;
        let (dirty_bytes, serial) = (self.dirty_bytes(), serial.to_owned());
        if let Some(record) = &self.record
            && let Err(failure) = record.export(dirty_bytes)
        {
            tracing::warn!(%failure, "the log's record does not say that it was exported");
        }
        Ok(Exported { log, generation, dirty_bytes, serial })
    }

    /// Ends destage and leaves the log in order; what is dirty stays in it.
    pub async fn stop(&self) -> Result<(), Failure> {
        let mut is_stopped = self.is_stopped.lock().await;
        if std::mem::replace(&mut *is_stopped, true) {
            return Ok(());
        }
        // Tokens go with the claim, or stay with it.
        if let Some((_, speaking)) = &self.coherent {
            speaking.abort();
        }
        let stopped = self.cache.stop().await;
        // Destage ends by itself when the cache has stopped.
        let destage = self.destage.lock().take();
        if let Some(mut destage) = destage
            && tokio::time::timeout(Duration::from_millis(200), &mut destage).await.is_err()
        {
            destage.abort();
        }
        let dirty = self.cache.statistics().dirty_bytes;
        tracing::info!(log = %self.log.display(), dirty_bytes = dirty, "the cache has stopped");
        // A stop that has failed leaves the record as of a log in use.
        if let (Ok(()), Some(record)) = (&stopped, &self.record)
            && let Err(failure) = record.close(dirty)
        {
            tracing::warn!(%failure, "the log's record does not say that it was stopped");
        }
        stopped.map_err(|error| {
            let log = self.log.display();
            if self.cache.has_lost_log() {
                return Failure::new(format!(
                    "{} of acknowledged writes were in the log only, and it is lost: {error}",
                    about(dirty)
                ))
                .remedy(
                    "bring back a copy of the log of now if there is one; without, give up its claim: \
                     see docs/operation.md, \"A log that is lost while in use\"",
                );
            }
            Failure::new(format!("the log {log} could not be left in order: {error}"))
                .remedy("what was acknowledged before is in it: the next start recovers it")
        })
    }

    /// Counters and present values.
    pub fn figures(&self) -> CacheFigures {
        let coherent = self.coherent.as_ref().map(|(coherent, _)| &**coherent);
        let mut figures = cache_figures::of(&self.cache, coherent);
        self.pacing.source().clone_into(&mut figures.destage.destage_rate_by);
        figures.mirror = self.disk.figures();
        figures.tier = read_tier::figures(self.disk.settings(), &self.cache.statistics());
        let claim = |(name, volume): &(String, Stack)| {
            (name.clone(), cache_figures::claim(&volume.extensions().holding()))
        };
        figures.members = (!self.volumes.is_empty()).then(|| CommonCacheFigures {
            volumes: self.volumes.iter().map(claim).collect(),
            given_up_bytes: self.given_up.iter().cloned().collect(),
        });
        figures
    }
}

/// As for `log_size`.
const LEAST_LOG: Size = Size::mib(8);
/// Blocks are counted in 31 bits.
const MOST_LOG: Size = Size(1 << 42);

/// How long a question on the control socket works at a flush or drain: whoever asks tells how far
/// it is and asks again, and one that is gone keeps destage hurrying no longer than this.
const WORK_AT_ONCE: Duration = Duration::from_millis(500);

/// Has a cache that answers from memory alone notice that its volume has become somebody else's.
async fn watch_claim(cache: Weak<Cache>) {
    while let Some(cache) = cache.upgrade() {
        if !matches!(cache.holding(), Holding::Held | Holding::Waiting) {
            return;
        }
        drop(cache);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// As often as the initiator asks the far side.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Starts the checks of the files under the cache: of its log and its NVRAM.
fn watch_files(
    cache: &Arc<Cache>,
    settings: &config::CacheLayerSettings,
    log: &LogDisk,
    nvram: Option<NvramWatch>,
) {
    log.watch(cache);
    if let Some((watch, path)) = nvram.zip(settings.nvram.as_deref()) {
        watch::nvram(cache, watch, path, |cache| cache.is_closed());
    }
}

fn behaviour(
    settings: &config::CacheLayerSettings,
    owner: &str,
) -> Result<cache::Settings, NotOpened> {
    let key = settings.key().map(|key| key_file::open(&key)).transpose();
    let key = key.map_err(NotOpened::Refused)?;
    let millis = |span: config::quantity::TimeSpan| {
        u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX).max(1)
    };
    let bytes = |size: config::quantity::Size| u32::try_from(size.0).unwrap_or(u32::MAX);
    Ok(cache::Settings {
        dram_bytes: settings.dram.0,
        nvram_bytes: settings.nvram_size.0,
        report: match settings.report {
            // To the cache of a pair, a write is in the log when the NVRAMs in front of both halves hold it.
            WriteMode::Immediate if settings.pair.is_some() => WriteMode::AfterComplete,
            report => report,
        },
        nvram_survives: settings.nvram_survives,
        log_buffer: (settings.pair.is_some() && settings.report == WriteMode::Immediate)
            .then_some(settings.nvram_survives),
        order: settings.order,
        too_large: settings.epoch_too_large,
        on_log_error: settings.on_log_error,
        scrub_rate: settings.log_scrub.0,
        destage_threshold: settings.destage_threshold,
        idle_ms: millis(settings.destage_idle),
        destage_run_bytes: bytes(settings.destage_run),
        destage_in_flight: settings.destage_in_flight.into(),
        max_dirty_age_ms: millis(settings.dirty_age),
        busy_after_ms: u64::try_from(settings.busy_after.0.as_millis()).unwrap_or(u64::MAX),
        // What is read ahead of its token may be older than what others have written.
        read_ahead_bytes: if settings.share { 0 } else { bytes(settings.read_ahead) },
        shares: settings.share,
        owner: owner.to_owned(),
        takes_over: settings.takes_over,
        accept_loss: settings.accept_loss,
        log_key: key.map(|(key, _)| LogKey::new(key.bytes())),
        confirmed_in: settings.state.as_deref().map(confirmed_writes::store),
        boot: confirmed_writes::boot_id(),
        ..cache::Settings::default()
    })
}

/// How many bytes the log alone has, or its NVRAM, of one of its volumes.
pub async fn dirty_of(
    settings: &config::CacheLayerSettings,
    log: &UnopenedCacheLog,
    member: &MemberRecord,
) -> Result<u64, Failure> {
    // One that is not there would be made.
    let nvram = match &settings.nvram {
        Some(path) if path.exists() => nvram::open(settings)?.map(|(nvram, _)| nvram),
        _ => None,
    };
    let slots = cache::dirty_of(&log.volume(), nvram, member, settings.accept_loss).await;
    slots.map(|slots| slots * 4096).map_err(|error| refusal(settings, &error))
}

/// What a log says of itself; nothing if it was never used.
async fn look(
    settings: &config::CacheLayerSettings,
    log: &Stack,
) -> Result<Option<LogInfo>, NotOpened> {
    match cache::inspect(log).await {
        Ok(info) => Ok(Some(info)),
        Err(InspectError::Blank) => Ok(None),
        Err(InspectError::Open(error)) => Err(not_opened(settings, &error)),
    }
}

/// The same in words, for `forebay check`; an error if `serve` would refuse the log.
pub async fn describe_log(
    settings: &config::CacheLayerSettings,
    log: &Stack,
) -> Result<String, Failure> {
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
                    Some(given_up) => format!("given up, with {}", about(given_up.slots * 4096)),
                    None if *dirty > 0 => format!(
                        "{}, {} of it not there yet",
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
        "the log {path} belongs to {owners}{encrypted}, opened {} times, last {stopped}; {} of {} \
         in \
         use, {} not at the lower volume yet",
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

/// Fails if `serve` would refuse the log as an older copy of itself.
fn check_older(
    settings: &config::CacheLayerSettings,
    info: &LogInfo,
) -> Result<(), CacheOpenError> {
    let Some(folder) = &settings.state else { return Ok(()) };
    let confirmed =
        confirmed_writes::recorded(folder, info.instance).map_err(CacheOpenError::Confirmed)?;
    let Some(confirmed) = confirmed else { return Ok(()) };
    let nvram = nvram::existing(settings);
    let nvram = nvram.as_ref().map(|nvram| nvram as &dyn StableMemory);
    cache::check_older(info, nvram, confirmed, confirmed_writes::boot_id())
}

/// Fails if `serve` would refuse the NVRAM beside this log, or the log beside it. `log` is `None` if the log is
/// not there yet. Changes nothing.
pub async fn check_nvram(
    settings: &config::CacheLayerSettings,
    log: Option<&Stack>,
) -> Result<(), Failure> {
    let memory: Option<Box<dyn StableMemory>> = match &settings.nvram {
        None => None,
        Some(path) => match MappedFile::inspect(path, settings.nvram_size.0) {
            Ok(Some(memory)) => Some(Box::new(memory)),
            Ok(None) => Some(Box::new(nvram::Blank(
                cache::length_for(settings.nvram_size.0 / 4096) as usize,
            ))),
            // `forebay check` reports a file that another process uses, or that it cannot open, when it
            // checks the file itself.
            Err(_) => return Ok(()),
        },
    };
    let behaviour = behaviour(settings, "")?;
    let judged = cache::check_nvram(&behaviour, log, memory).await;
    judged.map_err(|error| refusal(settings, &error))
}

/// Refuses a log with dirty data that is encrypted although no key is given, or the reverse. A wrong key is
/// found when the log is opened.
fn key_refusal(settings: &config::CacheLayerSettings, info: &LogInfo) -> Option<Failure> {
    let how = match (&settings.log_key, info.encrypted) {
        _ if info.dirty_slots == 0 => return None,
        (None, true) => KeyRefusal::Missing,
        (Some(_), false) => KeyRefusal::Needless,
        _ => return None,
    };
    Some(refusal(settings, &CacheOpenError::Key(how)))
}

/// Records the log of a cache that is open, before it is served.
async fn keep_record(
    records: Option<LogRecords>,
    settings: &config::CacheLayerSettings,
    cache: &Cache,
) -> Result<Option<Arc<KeptLog>>, Failure> {
    let Some(records) = records else { return Ok(None) };
    let (instance, _) = cache.instance().await;
    let writes_back = !matches!(settings.report, WriteMode::Through | WriteMode::Around);
    let dirty_bytes = cache.statistics().dirty_bytes;
    records.keep(instance.to_string(), dirty_bytes, writes_back).map(Some)
}
