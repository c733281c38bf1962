//! The layer `cache`: opens the cache with its NVRAM over its log, runs its destage, and stops it.
//!
//! An opening has this order: NVRAM, cache (which recovers the log and requests the claim), record of the log, read
//! tier. Then these tasks run until the end of the cache: destage, its rate, the polls of the claim, the notes of dirty
//! bytes in the record, the checks of the files, the events, and for a shared volume the exchange of tokens with the
//! node.
//!
//! A stop ends the exchange of tokens, closes the cache, ends destage, and updates the record. Dirty data stays in the
//! log.

mod control;

use std::{
    future::ready,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use ::cache::{Cache, Coherent, CommonMember, LogVolumeIdentity, NvramWatch, Parts, WriteMode};
use ::control::{CommonCacheFigures, Exported, Failure, LayerFigures};
use config::{CacheLayerSettings, Layer, UNMOUNT_REMEDY, quantity::about};
use initiator::RemoteVolume;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use volume::{Holding, Stack};

use super::running::{LayerFuture, RunningLayer};
use crate::{
    cache_events, cache_figures,
    cache_log::UnopenedCacheLog,
    cache_refusal::not_opened,
    cache_settings::behaviour,
    log_disk::LogDisk,
    not_opened::NotOpened,
    nvram,
    pacing::Pacing,
    read_tier,
    records::{KeptLog, LogRecords},
    watch,
};

/// An open cache, and the task that runs its destage.
pub struct CacheLayer {
    cache: Arc<Cache>,
    destage: Mutex<Option<JoinHandle<()>>>,
    /// The token layer and its task that talks to the node, if several gateways share the lower volume.
    coherent: Option<(Arc<Coherent>, JoinHandle<()>)>,
    pacing: Arc<Pacing>,
    log: PathBuf,
    disk: LogDisk,
    /// The record of storage of the log; `None` for the log of a pair.
    record: Option<Arc<KeptLog>>,
    /// Held during a resize of the log: one resize runs at a time.
    resizing: tokio::sync::Mutex<()>,
    /// True once the stop of the cache has begun. Each unit of a common cache calls for the stop; only the first call
    /// performs it.
    is_stopped: tokio::sync::Mutex<bool>,
    /// The volumes of a common cache with their names; empty for a cache of one volume.
    volumes: Vec<(String, Stack)>,
    /// The names of removed volumes, with the bytes that were discarded.
    given_up: Vec<(String, u64)>,
}

impl CacheLayer {
    /// Opens a cache over the volume `lower`, and starts its destage.
    pub async fn open(
        settings: &CacheLayerSettings,
        lower: Stack,
        log: UnopenedCacheLog,
        identity: &str,
        owner: &str,
    ) -> Result<Self, NotOpened> {
        // In a pair, the NVRAM is in front of the log's leg, and was opened with it.
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

    /// Opens a common cache of several volumes. Returns their volumes as upper layers see them, in the order
    /// of `members`.
    pub async fn open_common(
        settings: &CacheLayerSettings,
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
                remedy = "nothing has to be done if `forebay gateway give-up` was intended; see \
                 docs/reference/storage.md#a-volume-of-a-common-cache",
                "a volume was removed from this log, and acknowledged writes to it that only the log \
                 had were discarded"
            );
        }
        let mut layer = Self::begin(cache, settings, (log.disk, record), below);
        (layer.volumes, layer.given_up) = (volumes, given_up);
        Ok((layer, above))
    }

    fn begin(
        cache: Arc<Cache>,
        settings: &CacheLayerSettings,
        (disk, record): (LogDisk, Option<Arc<KeptLog>>),
        below: Stack,
    ) -> Self {
        let pacing = Pacing::begin(Arc::clone(&cache), settings.schedule());
        let destage = tokio::spawn(cache.run());
        let counted = cache.statistics();
        if counted.recovery.slots + counted.recovery.nvram > 0 {
            tracing::info!(
                log = %settings.log.display(),
                slots = counted.recovery.slots,
                nvram = counted.recovery.nvram,
                "recovered acknowledged writes that had not reached the far volume"
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
            record.note_dirty(move || Some(cache.upgrade()?.statistics().destage.dirty_bytes));
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

    /// Starts the events about a log that fills and a far volume that does not answer. `volume` names the volume in the
    /// events, or all volumes of a common cache. `links` are the sessions with these volumes.
    pub fn watch(&self, volume: String, links: Vec<Weak<RemoteVolume>>) {
        let (cache, log) = (Arc::downgrade(&self.cache), self.log.clone());
        tokio::spawn(cache_events::watch(cache, volume, log, links));
    }

    pub fn cache(&self) -> Arc<Cache> {
        Arc::clone(&self.cache)
    }

    /// Returns the volume that upper layers use.
    pub fn volume(&self) -> Stack {
        match &self.coherent {
            Some((coherent, _)) => Arc::clone(coherent) as Stack,
            None => Arc::clone(&self.cache) as Stack,
        }
    }

    /// Returns whether the far volume has granted this cache the exclusive right to write it (claim).
    pub fn holding(&self) -> Holding {
        self.cache.holding()
    }

    /// Returns the instance id of the log, and its generation (the number of times that it was opened).
    pub async fn instance(&self) -> (String, u64) {
        let (instance, generation) = self.cache.instance().await;
        (instance.to_string(), generation)
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns the number of bytes that the far volume does not have.
    pub fn dirty_bytes(&self) -> u64 {
        self.cache.statistics().destage.dirty_bytes
    }

    /// Closes the log so that another host can adopt it. `serial` is the serial number of the unit that hosts see.
    pub async fn export(&self, serial: &str) -> Result<Exported, Failure> {
        self.cache.export().await.map_err(|error| {
            Failure::new(format!("the log {} is not exported: {error}", self.log.display())).remedy(
                "do not move it to another host; remove the cause and repeat the command. The unit accepts no \
                 more commands: to serve it here again, restart the gateway",
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

    /// Stops the cache, unless another unit of the same common cache has stopped it already.
    async fn stop_once(&self) -> Result<(), Failure> {
        let mut is_stopped = self.is_stopped.lock().await;
        if std::mem::replace(&mut *is_stopped, true) {
            return Ok(());
        }
        // Stop the token task before the cache, so that no token changes any more: the cache then releases its claim
        // together with its tokens, or keeps both.
        if let Some((_, speaking)) = &self.coherent {
            speaking.abort();
        }
        let stopped = self.cache.stop().await;
        // Destage ends by itself when the cache has stopped; abort it if it does not.
        let destage = self.destage.lock().take();
        if let Some(mut destage) = destage
            && tokio::time::timeout(Duration::from_millis(200), &mut destage).await.is_err()
        {
            destage.abort();
        }
        let dirty = self.cache.statistics().destage.dirty_bytes;
        tracing::info!(log = %self.log.display(), dirty_bytes = dirty, "the cache has stopped");
        // Update the record only after a successful stop. Otherwise the record still says that the log is in use.
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
                .remedy(format!(
                    "restore a copy of the present log if there is one; otherwise {UNMOUNT_REMEDY}; then give \
                     the log up: docs/guide/recover.md, \"Give up a log\""
                ));
            }
            Failure::new(format!("the log {log} could not be closed cleanly: {error}"))
                .remedy("it has all acknowledged writes: the next start recovers them")
        })
    }
}

impl RunningLayer for CacheLayer {
    fn figures(&self) -> LayerFigures {
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
        LayerFigures::Cache(Box::new(figures))
    }

    fn follow<'a>(
        &'a self,
        settings: &'a Layer,
        _below: Option<&'a dyn RunningLayer>,
    ) -> LayerFuture<'a, Result<(), Failure>> {
        if let Layer::Cache(settings) = settings {
            self.pacing.follow(settings.schedule());
        }
        Box::pin(ready(Ok(())))
    }

    /// Stops destage and closes the log. Dirty data stays in the log.
    fn stop(&self) -> LayerFuture<'_, Result<(), Failure>> {
        Box::pin(self.stop_once())
    }

    fn abandon<'a>(&'a self, reason: &'a str) -> LayerFuture<'a, ()> {
        self.cache.abandon(reason);
        if let Some(destage) = self.destage.lock().take() {
            destage.abort();
        }
        Box::pin(ready(()))
    }
}

/// Polls the claim while it is held. A cache that answers hosts from memory would otherwise not notice that
/// another gateway has taken the claim.
async fn watch_claim(cache: Weak<Cache>) {
    while let Some(cache) = cache.upgrade() {
        if !matches!(cache.holding(), Holding::Held | Holding::Waiting) {
            return;
        }
        drop(cache);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Interval of the polls; the initiator asks the node as often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Starts the checks of the files that the cache uses: the log and the NVRAM.
fn watch_files(
    cache: &Arc<Cache>,
    settings: &CacheLayerSettings,
    log: &LogDisk,
    nvram: Option<NvramWatch>,
) {
    log.watch(cache);
    if let Some((watch, path)) = nvram.zip(settings.nvram.as_deref()) {
        watch::nvram(cache, watch, path, |cache| cache.is_closed());
    }
}

/// Writes the record of an open log, before the log is served.
async fn keep_record(
    records: Option<LogRecords>,
    settings: &CacheLayerSettings,
    cache: &Cache,
) -> Result<Option<Arc<KeptLog>>, Failure> {
    let Some(records) = records else { return Ok(None) };
    let (instance, _) = cache.instance().await;
    let writes_back = !matches!(settings.report, WriteMode::Through | WriteMode::Around);
    let dirty_bytes = cache.statistics().destage.dirty_bytes;
    records.keep(instance.to_string(), dirty_bytes, writes_back).map(Some)
}
