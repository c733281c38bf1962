//! Opens the stack of a unit, bottom first: the bottom, the filters (layers that are no cache), and the caches with the
//! filters above them. On top come a recorder of changes, if the volume has a name and may be moved, and the check of
//! all calls ([`CheckedVolume`]).
//!
//! The log of a cache over a remote bottom is opened before the bottom: the log may know the size and the name of the
//! far volume, and then the unit can be served from it while the node cannot be reached.
//!
//! All units of a common cache are opened together; `common` uses [`OpeningStack`] for each of them.

use std::sync::{Arc, Weak};

use config::{CacheLayerSettings, IscsiName, Layer, Unit};
use initiator::RemoteVolume;
use volume::{CheckedVolume, Mirror, Stack, Watched};

use crate::{
    cache_log::{UnopenedCacheLog, open_recorded_log},
    layers::{
        CacheLayer, FarVolume, FarWrites, FileUse, OpenedFarVolume, OpenedLayer, StackLayer,
        open_far_volume, open_file, open_filter, open_half, open_memory,
    },
    not_opened::NotOpened,
    opened_stack::{OpenedStack, StackParts},
    parts::SlicedFiles,
    plan::{BottomPlan, StackPlan, known_as},
    records::{Recorder, Records},
    remote::{FindFarVolume, RecordedFarVolume},
};

pub struct StackContext<'a> {
    /// The iSCSI name with which this process logs in to far volumes.
    pub initiator_name: &'a IscsiName,
    /// Finds far volumes that have a name and no address, if there is a naming service.
    pub names: Option<Arc<dyn FindFarVolume>>,
    /// The files in which several units have slices.
    pub files: &'a SlicedFiles,
    /// The records that say which file or device was in use at each path.
    pub records: &'a Records,
}

/// Input of [`open`] that the settings do not contain: a volume that the caller passes to the stack, or a fact about
/// the writers of the volume.
#[derive(Clone)]
pub enum StackInput {
    /// The settings are the only input.
    Nothing,
    /// All writes come from one writer, which flushes the data that must survive. No volume is passed.
    OneWriter,
    /// The leg of a pair's log, to be exported to the partner.
    Half(Stack),
    /// The log of a pair, to be used by the cache.
    Log(Arc<Mirror>),
}

/// Opens the layers of a unit of a target, bottom first.
///
/// # Errors
/// A layer cannot be opened.
pub async fn open(
    target: &IscsiName,
    unit: &Unit,
    context: &StackContext<'_>,
    given: StackInput,
) -> Result<OpenedStack, NotOpened> {
    let recorder = context.records.recorder(format!("{target}/{}", unit.lun));
    let plan = StackPlan::of(target, unit, context.initiator_name, None);
    let mut stack = OpeningStack::new(target, unit, context, recorder);
    let log = stack.open_bottom(plan.bottom, given).await?;
    stack.add_filters(plan.below_cache)?;
    stack.add_caches(plan.from_cache, log).await?;
    Ok(stack.finish())
}

/// The layers of a unit that are open so far.
pub(crate) struct OpeningStack<'a> {
    pub target: &'a IscsiName,
    pub unit: &'a Unit,
    context: &'a StackContext<'a>,
    recorder: Recorder,
    /// True if the unit belongs to a common cache.
    is_common: bool,
    /// The record of the unit's volume in the log of the common cache.
    known: Option<RecordedFarVolume>,
    layers: Vec<StackLayer>,
    parts: StackParts,
    top: Option<Stack>,
    /// The name of the topmost volume so far. A cache records it in its log, so that the log is never used with another
    /// volume.
    pub identity: String,
}

impl<'a> OpeningStack<'a> {
    /// Begins the stack of a unit that has a cache of its own, or none. No layer is open yet.
    pub fn new(
        target: &'a IscsiName,
        unit: &'a Unit,
        context: &'a StackContext<'a>,
        recorder: Recorder,
    ) -> Self {
        Self {
            target,
            unit,
            context,
            recorder,
            is_common: false,
            known: None,
            layers: Vec::new(),
            parts: StackParts::default(),
            top: None,
            identity: String::new(),
        }
    }

    /// Begins the stack of a unit of a common cache. No layer is open yet. `known` is the record of the unit's volume
    /// in the log of the cache.
    pub fn in_common(
        target: &'a IscsiName,
        unit: &'a Unit,
        context: &'a StackContext<'a>,
        recorder: Recorder,
        known: Option<RecordedFarVolume>,
    ) -> Self {
        Self { is_common: true, known, ..Self::new(target, unit, context, recorder) }
    }

    /// Opens the bottom layer. If the bottom is remote and a cache lies above, opens the cache's log first and returns
    /// it.
    ///
    /// # Errors
    /// The bottom or the log cannot be opened.
    pub async fn open_bottom(
        &mut self,
        bottom: BottomPlan<'_>,
        given: StackInput,
    ) -> Result<Option<UnopenedCacheLog>, NotOpened> {
        match bottom {
            BottomPlan::Memory(settings) => self.put(open_memory(settings)),
            BottomPlan::File(settings, slice) => {
                let unit = format!("{} LUN {}", self.target, self.unit.lun);
                let wanted = FileUse { settings, slice, unit, is_common: self.is_common };
                let (opened, file) = open_file(wanted, self.context.files, &self.recorder).await?;
                self.parts.file = Some(file);
                self.put(opened);
            }
            BottomPlan::Half(settings) => {
                let half = match given {
                    StackInput::Half(volume) => Some(volume),
                    _ => None,
                };
                self.put(open_half(settings, half)?);
            }
            BottomPlan::Remote { settings, log, has_cache, lasting } => {
                let far = FarVolume {
                    settings,
                    log,
                    known: self.known.take(),
                    initiator_name: self.context.initiator_name,
                    lasting,
                    writes: match given {
                        _ if has_cache => FarWrites::UnderCache,
                        StackInput::OneWriter => FarWrites::OneWriter,
                        _ => FarWrites::ManyWriters,
                    },
                    pair_log: match given {
                        StackInput::Log(mirror) => Some(mirror),
                        _ => None,
                    },
                };
                let names = self.context.names.clone();
                let OpenedFarVolume { opened, session, log } =
                    open_far_volume(far, names, &self.recorder).await?;
                self.parts.session = Some(session);
                self.put(opened);
                return Ok(log);
            }
        }
        Ok(None)
    }

    /// Opens layers that are neither a bottom nor a cache.
    ///
    /// # Errors
    /// A layer cannot be opened.
    pub fn add_filters(&mut self, layers: &[Layer]) -> Result<(), NotOpened> {
        for layer in layers {
            let opened = open_filter(layer, self.top(), &self.identity)?;
            self.put(opened);
        }
        Ok(())
    }

    /// Opens the cache of this unit and the layers above it, which may include another cache. `log` is the log of the
    /// first cache, if it is open.
    ///
    /// # Errors
    /// A layer cannot be opened.
    pub async fn add_caches(
        &mut self,
        layers: &[Layer],
        mut log: Option<UnopenedCacheLog>,
    ) -> Result<(), NotOpened> {
        for layer in layers {
            match layer {
                Layer::Cache(settings) => self.add_cache(settings, log.take()).await?,
                filter => self.add_filters(std::slice::from_ref(filter))?,
            }
        }
        Ok(())
    }

    async fn add_cache(
        &mut self,
        settings: &CacheLayerSettings,
        log: Option<UnopenedCacheLog>,
    ) -> Result<(), NotOpened> {
        let log = match log {
            Some(log) => log,
            None => open_recorded_log(settings, &self.recorder).await?,
        };
        let known = log.known().into_iter().map(|known| known.identity);
        self.identity = known_as(&self.identity, known);
        let owner = &self.context.initiator_name.0;
        let cache = CacheLayer::open(settings, self.top(), log, &self.identity, owner).await?;
        let cache = Arc::new(cache);
        cache.watch(format!("{}/{}", self.target, self.unit.lun), self.links());
        let volume = cache.volume();
        self.put_cache(cache, volume, settings.log.display().to_string());
        Ok(())
    }

    /// Adds an open cache. `volume` is the volume for the layers above.
    pub fn put_cache(&mut self, cache: Arc<CacheLayer>, volume: Stack, on: String) {
        let layer = StackLayer::new("cache", on, Arc::clone(&cache) as _);
        self.parts.cache = Some(cache);
        self.put(OpenedLayer { volume, layer, identity: None });
    }

    fn put(&mut self, opened: OpenedLayer) {
        self.top = Some(opened.volume);
        self.layers.push(opened.layer);
        if let Some(identity) = opened.identity {
            self.identity = identity;
        }
    }

    /// Returns the topmost layer that is open so far.
    ///
    /// # Panics
    /// No layer is open yet.
    pub fn top(&self) -> Stack {
        self.top.clone().expect("settings put a bottom first")
    }

    pub fn links(&self) -> Vec<Weak<RemoteVolume>> {
        self.parts.session.iter().map(Arc::downgrade).collect()
    }

    /// Puts the check of all calls on top, and for a volume with a name the recorder of changes. Returns the open
    /// stack.
    pub fn finish(self) -> OpenedStack {
        let mut top = self.top();
        // A volume with a name may be moved to another node while it is used.
        let is_named = self.unit.volume.is_some();
        let watched = is_named.then(|| Arc::new(Watched::new(Arc::clone(&top))));
        if let Some(watched) = &watched {
            top = Arc::clone(watched) as Stack;
        }
        let is_elsewhere = !matches!(self.unit.stack.first(), Some(Layer::Memory(_)));
        OpenedStack {
            top: Arc::new(CheckedVolume::new(top)),
            identity: is_elsewhere.then_some(self.identity),
            watched,
            layers: self.layers,
            parts: self.parts,
        }
    }
}
