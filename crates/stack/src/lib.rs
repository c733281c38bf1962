//! Settings to a stack of layers: one function, bottom first.

pub mod atomic_file;
pub mod state_folder;
mod not_opened;
pub mod confirmed_writes;
pub mod unit_state;
pub mod records;
pub mod congestion;
pub mod key_file;
pub mod figures;
mod pacing;
mod cache_events;
mod cache_refusal;
mod cache_figures;
mod watch;
mod space;
mod file;
mod parts;
mod log_disk;
mod nvram;
mod half;
mod read_tier;
mod read_only;
mod remote;
mod remote_figures;
mod cache_layer;
mod unflushed;
mod resend;
mod write_through;
mod common;
mod orders;

use std::{
    num::NonZeroU64,
    ops::Range,
    os::unix::fs::FileTypeExt,
    path::Path,
    sync::{Arc, Weak},
};

use config::{FaultError, FaultOperationSetting, IscsiName, Layer, Unit};
use control::{Exported, Failure, FileFigures, LayerFigures, LayerStatus, ObserveFigures};
use initiator::RemoteVolume;
use volume::{
    CheckedVolume, DelayVolume, DiskVolume, EncryptVolume, FaultCallKind, FaultRule, FaultVolume,
    FileVolume, Geometry, Latency, Lba, MemVolume, Mirror, ObserveVolume, SliceVolume, Stack,
    Symptom, Volume, VolumeCallCounters, Watched,
};

use crate::records::{KeptVolume, Recorder, Records};
pub use cache_layer::{
    CacheLayer, UnopenedCacheLog, check_nvram, describe_log, dirty_of, instance, known, open_log,
};
pub use common::{known_as_unit, known_by, open_common};
pub use file::{io_remedy, log_options, open as open_file, options, refusal};
pub use half::{LocalHalf, check as check_half};
pub use log_disk::{exists as log_exists, half, look as look_at_log};
pub use not_opened::NotOpened;
use parts::FilePart;
pub use parts::SlicedFiles;
use read_only::ReadOnly;
pub use read_tier::{options as tier_options, refusal as refused_tier};
pub use remote::{FindFarVolume, Us, digest, may_pass, refusal as refused_far_side, session};
use resend::Resend;
use write_through::WriteThrough;

/// A unit's volumes, and what is to be asked and stopped apart from them.
pub struct OpenedStack {
    /// The top.
    pub top: Stack,
    /// The layers, bottom first.
    pub layers: Vec<StackLayer>,
    /// What the volume below all layers calls itself, whatever way leads to it; `None` if it is in this
    /// process only.
    pub identity: Option<String>,
    /// Under the top: whose changes can be watched, if the volume has a name.
    pub watched: Option<Arc<Watched>>,
}

/// One layer as it runs.
pub struct StackLayer {
    layer: &'static str,
    on: String,
    handle: Handle,
}

/// What a layer can be asked for beside reads and writes.
enum Handle {
    Nothing,
    /// With the record of the file; `None` if the file is only read.
    File(Arc<FileVolume>, Option<Arc<KeptVolume>>),
    /// A file of which other units may have slices, too.
    FilePart(Arc<FilePart>),
    /// True if the slice extends to the end of the layer below.
    Slice(Arc<SliceVolume>, bool),
    Counters(Arc<VolumeCallCounters>),
    Remote(Arc<RemoteVolume>),
    Cache(Arc<CacheLayer>),
}

/// What a stack is given that its settings do not make.
#[derive(Clone)]
pub enum StackInput {
    /// Nothing.
    Nothing,
    /// Nothing, but that all writes come from one who flushes what has to last.
    OneWriter,
    /// The half of a pair's log, for the partner.
    Half(Stack),
    /// The log of a pair.
    Log(Arc<Mirror>),
}

/// Opens the layers of a unit of a target, bottom first.
pub async fn open(
    target: &IscsiName,
    unit: &Unit,
    initiator_name: &IscsiName,
    names: Option<Arc<dyn FindFarVolume>>,
    files: &SlicedFiles,
    given: StackInput,
    records: &Records,
) -> Result<OpenedStack, NotOpened> {
    let recorder = records.recorder(format!("{target}/{}", unit.lun));
    let mut building = Building::new(target, unit, initiator_name, names, files, (given, recorder));
    building.add(0..unit.stack.len()).await?;
    Ok(building.finish())
}

/// The layers of a unit, as far as they are open.
struct Building<'a> {
    target: &'a IscsiName,
    unit: &'a Unit,
    us: &'a IscsiName,
    names: Option<Arc<dyn FindFarVolume>>,
    files: &'a SlicedFiles,
    given: StackInput,
    recorder: Recorder,
    layers: Vec<StackLayer>,
    below: Option<Stack>,
    /// What a cache calls the volume below it, so that its log never meets another one.
    identity: String,
    /// The log of a cache is opened before the remote volume below it: it may know that one.
    log: Option<cache_layer::UnopenedCacheLog>,
    /// The log that is for several units, and what it knows of this one's volume.
    common_log: Option<&'a Path>,
    known: Option<remote::RecordedFarVolume>,
}

impl<'a> Building<'a> {
    fn new(
        target: &'a IscsiName,
        unit: &'a Unit,
        us: &'a IscsiName,
        names: Option<Arc<dyn FindFarVolume>>,
        files: &'a SlicedFiles,
        (given, recorder): (StackInput, Recorder),
    ) -> Self {
        Self {
            target,
            unit,
            us,
            names,
            files,
            given,
            recorder,
            layers: Vec::new(),
            below: None,
            identity: String::new(),
            log: None,
            common_log: None,
            known: None,
        }
    }

    /// Opens some of the layers, on those that are open.
    async fn add(&mut self, range: Range<usize>) -> Result<(), NotOpened> {
        for index in range {
            let layer = &self.unit.stack[index];
            let below = self.below.clone();
            let lower = || below.clone().expect("settings put a bottom first");
            let (stack, part): (Stack, StackLayer) = match layer {
                Layer::Memory(memory) => {
                    let volume = MemVolume::new(geometry(memory));
                    "memory".clone_into(&mut self.identity);
                    (Arc::new(volume), StackLayer::new("memory", String::new()))
                }
                Layer::File(settings) => {
                    let (stack, handle) = self.file(settings).await?;
                    let volume = handle.file().expect("it is a file");
                    let path =
                        settings.path.canonicalize().unwrap_or_else(|_| settings.path.clone());
                    // Devices get other numbers with every start: one that is named by a link must not be
                    // taken for another of the same log.
                    let is_device =
                        path.metadata().is_ok_and(|found| found.file_type().is_block_device());
                    let is_kept = self.common_log.is_some() && is_device;
                    let name = if is_kept { &settings.path } else { &path };
                    self.identity = format!("file {}", name.display());
                    let how = format!("{} ({:?})", path.display(), volume.engine()).to_lowercase();
                    (stack, StackLayer { layer: "file", on: how, handle })
                }
                Layer::Half(half) => {
                    let StackInput::Half(volume) = &self.given else {
                        let what = format!("the half of the log of {} is not open here", half.of);
                        let failure = Failure::new(what);
                        return Err(failure
                            .remedy("it is there while `forebay serve` runs")
                            .into());
                    };
                    (Arc::clone(volume), StackLayer::new("half", half.of.to_string()))
                }
                Layer::Remote(settings) => {
                    let cache = cache_over(&self.unit.stack[index + 1..]);
                    let mut settings = settings.clone();
                    let mut known = self.known.take();
                    let lasting = Some(lasting(self.target, self.unit, self.us, self.common_log));
                    let us = Us { initiator_name: self.us.clone(), lasting };
                    let mut connected = None;
                    match (cache, &self.given) {
                        (Some(cache), StackInput::Log(mirror)) => {
                            let opened =
                                cache_layer::log_of_pair(cache, Arc::clone(mirror)).await?;
                            // A log that is alone is opened only if the node knows of it.
                            if mirror.alone().is_some() {
                                settings.start_timeout = config::quantity::TimeSpan::default();
                            } else {
                                known = opened.known();
                            }
                            self.log = Some(opened);
                        }
                        (Some(cache), _) => {
                            if !log_disk::exists(cache) {
                                // Making a log may take minutes, so first find out whether the far side admits
                                // us.
                                self.recorder.look_at_log(cache)?;
                                let opened =
                                    remote::open(&settings, &us, None, self.names.clone()).await?;
                                connected = Some(opened);
                            }
                            let opened =
                                cache_layer::open_recorded_log(cache, &self.recorder).await?;
                            known = opened.known();
                            self.log = Some(opened);
                        }
                        (None, _) => {}
                    }
                    let settings = &settings;
                    let volume = match connected {
                        Some(volume) => volume,
                        None => remote::open(settings, &us, known, self.names.clone()).await?,
                    };
                    volume.identity().clone_into(&mut self.identity);
                    let handle = Handle::Remote(Arc::clone(&volume));
                    let is_cache =
                        |layer: &Layer| matches!(layer, Layer::Cache(_) | Layer::CommonCache(_));
                    let has_cache = self.unit.stack.iter().any(is_cache);
                    let stack: Stack =
                        if has_cache { volume } else { beside_cache(volume, &self.given) };
                    (stack, StackLayer { layer: "remote", on: settings.url.clone(), handle })
                }
                Layer::Slice(settings) => {
                    let (volume, what) = slice(settings, lower())?;
                    // Not how long it is: one that has grown is the same volume, and its log's.
                    self.identity = format!("{} [from {}]", self.identity, settings.start.0);
                    let handle = Handle::Slice(Arc::clone(&volume), settings.size.is_none());
                    (volume, StackLayer { layer: "slice", on: what, handle })
                }
                Layer::Encrypt(settings) => {
                    let (key, file) = key_file::open(settings)?;
                    let volume = EncryptVolume::new(lower(), &key, file);
                    (
                        Arc::new(volume),
                        StackLayer::new("encrypt", settings.key.display().to_string()),
                    )
                }
                Layer::Delay(settings) => {
                    let (read, write, flush) = (settings.read, settings.write, settings.flush);
                    let latency = Latency { read: read.0, write: write.0, flush: flush.0 };
                    let every = settings.every.unwrap_or(NonZeroU64::MIN);
                    let what = match settings.every {
                        None => format!("read {read}, write {write}, flush {flush}"),
                        Some(every) => {
                            format!(
                                "read {read}, write {write}, flush {flush}, one of {every} calls"
                            )
                        }
                    };
                    (
                        Arc::new(DelayVolume::of_every(every, lower(), latency)),
                        StackLayer::new("delay", what),
                    )
                }
                Layer::Disk(settings) => {
                    let profile = settings.profile().expect("the settings are checked");
                    (
                        Arc::new(DiskVolume::new(lower(), profile)),
                        StackLayer::new("disk", settings.model.clone()),
                    )
                }
                Layer::Observe(settings) => {
                    let volume = ObserveVolume::new(lower());
                    let handle = Handle::Counters(Arc::clone(volume.counters()));
                    (
                        Arc::new(volume),
                        StackLayer { layer: "observe", on: settings.name.clone(), handle },
                    )
                }
                Layer::Fault(settings) => {
                    let volume = FaultVolume::new(lower());
                    volume.faults().add(rule(settings));
                    let what = format!("{:?} of {:?}", settings.error, settings.operation);
                    (Arc::new(volume), StackLayer::new("fault", what.to_lowercase()))
                }
                Layer::Cache(settings) => {
                    let log = match self.log.take() {
                        Some(log) => log,
                        None => cache_layer::open_recorded_log(settings, &self.recorder).await?,
                    };
                    let known = log.known().into_iter().map(|known| known.identity);
                    self.identity = known_as(&self.identity, known);
                    let cache =
                        CacheLayer::open(settings, lower(), log, &self.identity, &self.us.0)
                            .await?;
                    cache.watch(format!("{}/{}", self.target, self.unit.lun), self.links());
                    let on = settings.log.display().to_string();
                    (
                        cache.volume(),
                        StackLayer { layer: "cache", on, handle: Handle::Cache(Arc::new(cache)) },
                    )
                }
                Layer::CommonCache(common) => {
                    let what =
                        format!("the common cache {} is opened with all its units", common.name);
                    let failure = Failure::new(what);
                    return Err(failure.remedy("it is open while `forebay serve` runs").into());
                }
                Layer::ReadOnly => {
                    (Arc::new(ReadOnly::new(lower())), StackLayer::new("read-only", String::new()))
                }
            };
            self.put(stack, part);
        }
        Ok(())
    }

    /// Opens the file at the bottom: for this unit alone, or shared with the other units that have slices of
    /// it.
    async fn file(&self, settings: &config::File) -> Result<(Stack, Handle), NotOpened> {
        match self.unit.file_part() {
            None => {
                let (volume, record) = file::open_recorded(settings, &self.recorder).await?;
                Ok((Arc::clone(&volume) as Stack, Handle::File(volume, record)))
            }
            Some((_, slice)) => {
                let unit = format!("{} LUN {}", self.target, self.unit.lun);
                let part = self.files.open(settings, &self.recorder, slice.range(), unit).await?;
                let part = Arc::new(part);
                Ok((Arc::clone(&part) as Stack, Handle::FilePart(part)))
            }
        }
    }

    /// Returns the remote volumes of this stack.
    fn links(&self) -> Vec<Weak<RemoteVolume>> {
        let remote = |part: &StackLayer| match &part.handle {
            Handle::Remote(volume) => Some(Arc::downgrade(volume)),
            _ => None,
        };
        self.layers.iter().filter_map(remote).collect()
    }

    fn put(&mut self, stack: Stack, part: StackLayer) {
        self.below = Some(stack);
        self.layers.push(part);
    }

    fn finish(self) -> OpenedStack {
        let mut below = self.below.expect("settings want a layer");
        // What has a name may be moved to another node while it is used.
        let is_named = self.unit.volume.is_some();
        let watched = is_named.then(|| Arc::new(Watched::new(Arc::clone(&below))));
        if let Some(watched) = &watched {
            below = Arc::clone(watched) as Stack;
        }
        let top = Arc::new(CheckedVolume::new(below));
        let is_elsewhere = !matches!(self.unit.stack.first(), Some(Layer::Memory(_)));
        let identity = is_elsewhere.then_some(self.identity);
        OpenedStack { top, layers: self.layers, identity, watched }
    }
}

/// What a log calls a volume: as it calls itself, or as it did once, when the name of a slice had its size.
fn known_as(identity: &str, mut known: impl Iterator<Item = String>) -> String {
    let without_size = |part: &str| match part.split_once(" bytes from ") {
        Some((size, start)) if size.parse::<u64>().is_ok() => format!("from {start}"),
        _ => part.to_owned(),
    };
    let now = |name: &String| {
        let parts: Vec<_> = name.split(" [").map(without_size).collect();
        parts.join(" [") == identity
    };
    known.find(now).unwrap_or_else(|| identity.to_owned())
}

/// A remote volume without a cache above it. The far side may lose what it did not flush, and can tell one
/// caller only: a cache is one, and who is the only writer; hosts are many.
fn beside_cache(volume: Arc<RemoteVolume>, given: &StackInput) -> Stack {
    // A node at which what is between two flushes counts as a whole may refuse too much of it.
    let is_whole = volume.geometry().epoch_blocks > 0;
    if matches!(given, StackInput::OneWriter) && !is_whole {
        Arc::new(Resend::new(volume))
    } else {
        Arc::new(WriteThrough::new(volume))
    }
}

/// The cache that lies on a remote volume without anything between that changes its size.
pub fn cache_over(above: &[Layer]) -> Option<&config::CacheLayerSettings> {
    match above.iter().find(|layer| !layer.keeps_size()) {
        Some(Layer::Cache(cache)) => Some(cache),
        _ => None,
    }
}

/// What a session gets to log out whose volume is somebody else's.
const CLOSE_WITHIN: std::time::Duration = std::time::Duration::from_millis(300);

/// What a unit's far session is known by from start to start, and no other unit's is. A log is
/// opened by one process at a time, so with a cache it is that; else it is what hosts see.
fn lasting(
    target: &IscsiName,
    unit: &Unit,
    initiator_name: &IscsiName,
    common_log: Option<&Path>,
) -> String {
    if let Some(log) = common_log {
        // The sessions of all its units are there at once.
        return format!("{initiator_name} {} {target} {}", log.display(), unit.lun);
    }
    let log = unit.stack.iter().find_map(|layer| match layer {
        Layer::Cache(cache) => Some(&cache.log),
        _ => None,
    });
    match log {
        Some(log) => format!("{initiator_name} {}", log.display()),
        None => format!("{initiator_name} {target} {}", unit.lun),
    }
}

fn geometry(memory: &config::MemoryLayerSettings) -> Geometry {
    let block_size = u32::try_from(memory.block_size.0).unwrap_or(512);
    let bytes = memory.size.unwrap_or_default().0;
    let blocks = bytes / u64::from(block_size);
    // What is in memory is as safe as it will ever be: there is nothing for a flush to do.
    Geometry { block_size, volatile_cache: false, ..Geometry::with_blocks(blocks) }
}

fn slice(slice: &config::Slice, lower: Stack) -> Result<(Arc<SliceVolume>, String), Failure> {
    let Geometry { block_size, blocks, .. } = lower.geometry();
    let per_block = u64::from(block_size);
    let refused = |what: &dyn std::fmt::Display| {
        Failure::settings(format!("a slice does not fit on what is below it: {what}")).remedy(
            format!("the volume below has {} bytes, in blocks of {block_size}", blocks * per_block),
        )
    };
    let size = slice.size.map_or((blocks * per_block).saturating_sub(slice.start.0), |size| size.0);
    if !slice.start.0.is_multiple_of(per_block) || !size.is_multiple_of(per_block) {
        return Err(refused(&"it does not begin or end with a block"));
    }
    let volume = SliceVolume::new(lower, Lba(slice.start.0 / per_block), size / per_block)
        .map_err(|error| refused(&error))?;
    Ok((Arc::new(volume), format!("{} bytes from {}", size, slice.start.0)))
}

fn rule(fault: &config::FaultLayerSettings) -> FaultRule {
    let call = match fault.operation {
        FaultOperationSetting::Any => FaultCallKind::Any,
        FaultOperationSetting::Read => FaultCallKind::Read,
        FaultOperationSetting::Write => FaultCallKind::Write,
        FaultOperationSetting::Flush => FaultCallKind::Flush,
        FaultOperationSetting::Discard => FaultCallKind::Discard,
    };
    let fails = |error| Symptom::Fails(error);
    let reason = "a fault layer says so";
    let symptom = match fault.error {
        FaultError::Medium => fails(volume::Error::Medium {
            extent: volume::Extent { lba: Lba(0), blocks: 1 },
            reason: reason.into(),
        }),
        FaultError::NoSpace => fails(volume::Error::NoSpace),
        FaultError::Busy => fails(volume::Error::Busy(reason)),
        FaultError::Unreachable => fails(volume::Error::Away(reason.into())),
        FaultError::Device => fails(volume::Error::Device(reason.into())),
        FaultError::Hang => Symptom::Hangs,
    };
    let rule = FaultRule::always(call, symptom).after(fault.after);
    if fault.count == 0 { rule } else { rule.times(fault.count) }
}

impl OpenedStack {
    /// What the layers say of themselves, bottom first.
    pub fn status(&self) -> Vec<LayerStatus> {
        self.layers.iter().map(StackLayer::status).collect()
    }

    /// The topmost cache.
    pub fn cache(&self) -> Option<&CacheLayer> {
        self.layers.iter().rev().find_map(|part| match &part.handle {
            Handle::Cache(cache) => Some(&**cache),
            _ => None,
        })
    }

    /// Lets the file or device at the bottom grow, to what it has by now if `bytes` is `None`.
    /// Returns the size of the whole.
    pub async fn grow(&self, bytes: Option<u64>) -> Result<u64, Failure> {
        let bottom = self.layers.first();
        let Some((StackLayer { on, handle, .. }, file)) =
            bottom.and_then(|part| Some((part, part.handle.file()?)))
        else {
            return Err(Failure::new("only a file or a block device can grow"));
        };
        let file = Arc::clone(file);
        // A preallocated file is filled, which takes its time.
        let grown = tokio::task::spawn_blocking(move || file.grow(bytes)).await;
        grown.map_err(Failure::new)?.map_err(|error| {
            Failure::new(format!("{on} cannot grow: {error}"))
                .remedy("ask for more than it has, in whole blocks, and have room for it")
        })?;
        // An outdated record does no harm: a volume may be larger than recorded.
        note(handle.record()).await;
        self.grow_slices()?;
        Ok(self.top.geometry().bytes())
    }

    /// Grows the slices that reach to the end of the layer below them.
    fn grow_slices(&self) -> Result<(), Failure> {
        for part in &self.layers {
            if let Handle::Slice(slice, true) = &part.handle {
                slice.grow(None).map_err(|error| part.cannot_grow(&error))?;
            }
        }
        Ok(())
    }

    /// Lets files and slices grow, and caches keep, to what new settings of the same layers say,
    /// bottom first.
    pub async fn follow(&self, unit: &Unit) -> Result<(), Failure> {
        for (at, (part, layer)) in self.layers.iter().zip(&unit.stack).enumerate() {
            match (&part.handle, layer) {
                (
                    handle @ (Handle::File(..) | Handle::FilePart(_)),
                    Layer::File(config::File { size: Some(size), .. }),
                ) => match handle.file() {
                    Some(file) if size.0 > file.geometry().bytes() => {
                        self.grow(Some(size.0)).await?;
                    }
                    // Another unit that has a slice of the file has grown it.
                    _ => self.grow_slices()?,
                },
                (Handle::Slice(slice, _), Layer::Slice(config::Slice { size: Some(size), .. })) => {
                    let block_size = u64::from(slice.geometry().block_size);
                    if !size.0.is_multiple_of(block_size) {
                        return Err(part.cannot_grow(&"it would not end with a block"));
                    }
                    // Reserve the bytes before the slice grows: they may belong to another unit.
                    if let (1, Some(Handle::FilePart(file))) = (at, self.bottom()) {
                        file.extend(size.0)?;
                    }
                    let grown = slice.grow(Some(size.0 / block_size));
                    grown.map_err(|error| part.cannot_grow(&error))?;
                }
                (Handle::Cache(cache), Layer::Cache(settings)) => cache.follow(settings),
                _ => {}
            }
        }
        Ok(())
    }

    fn bottom(&self) -> Option<&Handle> {
        self.layers.first().map(|part| &part.handle)
    }

    /// Its log is somebody else's: ends without another word to what is below.
    pub async fn abandon(&self, reason: &str) {
        for part in self.layers.iter().rev() {
            match &part.handle {
                Handle::Cache(cache) => cache.abandon(reason),
                Handle::Remote(remote) => {
                    // Whoever is fenced has nothing to wait for.
                    let _ = tokio::time::timeout(CLOSE_WITHIN, remote.close()).await;
                }
                Handle::Nothing
                | Handle::File(..)
                | Handle::FilePart(_)
                | Handle::Slice(..)
                | Handle::Counters(_) => {}
            }
        }
    }

    /// Whether both are units of one cache.
    pub fn shares_cache_with(&self, other: &Self) -> bool {
        let of = |opened: &Self| opened.cache().map(std::ptr::from_ref);
        of(self).is_some() && of(self) == of(other)
    }

    /// Ends what the cache does, with everything in its log, and the session below it.
    pub async fn export(&self, serial: &str) -> Result<Exported, Failure> {
        let cache = self.cache().ok_or_else(|| Failure::new("there is no cache"))?;
        let exported = cache.export(serial).await?;
        self.close().await;
        Ok(exported)
    }

    /// Ends the session with the far side.
    pub async fn close(&self) {
        for part in &self.layers {
            if let Handle::Remote(remote) = &part.handle {
                remote.close().await;
            }
        }
    }

    /// Puts away what must not be lost: caches first, as they use what is below, then sessions.
    pub async fn stop(&self) -> Result<(), Failure> {
        let mut result = Ok(());
        for part in self.layers.iter().rev() {
            match &part.handle {
                Handle::Cache(cache) => result = result.and(cache.stop().await),
                Handle::Remote(remote) => remote.close().await,
                handle @ (Handle::File(..) | Handle::FilePart(_)) => note(handle.record()).await,
                Handle::Nothing | Handle::Slice(..) | Handle::Counters(_) => {}
            }
        }
        result
    }
}

impl Handle {
    /// Returns the file, if the layer is one.
    fn file(&self) -> Option<&Arc<FileVolume>> {
        match self {
            Self::File(file, _) => Some(file),
            Self::FilePart(part) => Some(part.file()),
            _ => None,
        }
    }

    /// Returns the record of the file; `None` if the file is only read.
    fn record(&self) -> Option<&Arc<KeptVolume>> {
        match self {
            Self::File(_, record) => record.as_ref(),
            Self::FilePart(part) => part.record(),
            _ => None,
        }
    }
}

impl StackLayer {
    fn new(layer: &'static str, on: String) -> Self {
        Self { layer, on, handle: Handle::Nothing }
    }

    fn cannot_grow(&self, why: &dyn std::fmt::Display) -> Failure {
        Failure::new(format!("the {} of {} cannot grow: {why}", self.layer, self.on))
            .remedy("let what is below it grow first, or ask for less")
    }

    fn status(&self) -> LayerStatus {
        let figures = match &self.handle {
            Handle::Nothing | Handle::Slice(..) => LayerFigures::default(),
            Handle::File(file, _) => LayerFigures::File(file_figures(file)),
            Handle::FilePart(part) => LayerFigures::File(file_figures(part.file())),
            Handle::Counters(counters) => {
                LayerFigures::Observe(observe_figures(&counters.counts()))
            }
            Handle::Remote(remote) => LayerFigures::Remote(Box::new(remote_figures::of(remote))),
            Handle::Cache(cache) => LayerFigures::Cache(Box::new(cache.figures())),
        };
        let on = match (&self.handle, self.on.split_once(" bytes from ")) {
            // It may have grown.
            (Handle::Slice(slice, _), Some((_, start))) => {
                format!("{} bytes from {start}", slice.geometry().bytes())
            }
            _ => self.on.clone(),
        };
        LayerStatus { layer: self.layer.to_owned(), on, figures }
    }
}

/// Brings the record of a volume up to date.
async fn note(record: Option<&Arc<KeptVolume>>) {
    let Some(record) = record.cloned() else { return };
    if let Ok(Err(failure)) = tokio::task::spawn_blocking(move || record.note()).await {
        tracing::warn!(%failure, "a volume's record is not renewed");
    }
}

fn file_figures(file: &FileVolume) -> FileFigures {
    // A block device has no usage: all its space is allocated.
    let usage = file.extensions().usage();
    FileFigures {
        refused_no_space: *file.refusals().borrow(),
        allocated_bytes: usage.map(|usage| usage.used),
        free_bytes: usage.map(|usage| usage.available),
        ..FileFigures::default()
    }
}

fn observe_figures(counts: &volume::VolumeCallCounts) -> ObserveFigures {
    ObserveFigures {
        reads: counts.reads,
        writes: counts.writes,
        flushes: counts.flushes,
        discards: counts.discards,
        read_bytes: counts.bytes_read,
        written_bytes: counts.bytes_written,
        discarded_bytes: counts.bytes_discarded,
        errors: counts.errors,
        busy: counts.busy,
        ..ObserveFigures::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_that_has_grown_is_the_same_volume_to_its_log() {
        let known = |name: &str, log: &str| known_as(name, std::iter::once(log.to_owned()));
        assert_eq!(known("file a [from 512]", "file a [from 512]"), "file a [from 512]");
        let former = "file a [4096 bytes from 512]";
        assert_eq!(known("file a [from 512]", former), former);
        let twice = "file a [8192 bytes from 512] [512 bytes from 0]";
        assert_eq!(known("file a [from 512] [from 0]", twice), twice);
        for other in ["file a [4096 bytes from 51]", "file b [4096 bytes from 512]", "file a"] {
            assert_eq!(known("file a [from 512]", other), "file a [from 512]");
        }
    }

    #[test]
    fn a_far_session_is_known_again_and_no_other_is_taken_for_it() {
        let (a, b) = (IscsiName("iqn.a:a".into()), IscsiName("iqn.b:b".into()));
        let unit = |lun| Unit { lun, ..Unit::default() };
        let names = [
            lasting(&a, &unit(0), &b, None),
            lasting(&a, &unit(1), &b, None),
            lasting(&b, &unit(0), &b, None),
            lasting(&a, &unit(0), &a, None),
            lasting(&a, &unit(0), &b, Some(Path::new("log"))),
            lasting(&a, &unit(1), &b, Some(Path::new("log"))),
        ];
        assert_eq!(names[0], lasting(&a, &unit(0), &b, None));
        for (at, name) in names.iter().enumerate() {
            assert!(!names[..at].contains(name), "{name}");
        }
    }
}
