//! The layers of a stack. The file of each layer holds its keys, their defaults, the rules between them and the changes
//! that a reload may make. The module `stack::layers` opens the layers.

mod reload;
mod slice;
mod file;
mod memory;
mod remote;
mod half;
mod encrypt;
mod delay;
mod disk;
mod observe;
mod fault;
mod cache;
mod common_cache;

use std::path::Path;

use serde::Deserialize;

use crate::{problem::KeyPath, rule::SettingsRuleResult};
pub use cache::{CacheLayerSettings, PairPartnerSettings};
pub use common_cache::{CommonCache, InCommon};
pub use delay::DelayLayerSettings;
pub use disk::DiskLayerSettings;
pub use encrypt::EncryptLayerSettings;
pub use fault::{FaultError, FaultLayerSettings, FaultOperationSetting};
pub use file::File;
pub(crate) use file::LayerFiles;
pub use half::MirrorLegLayerSettings;
pub use memory::MemoryLayerSettings;
pub use observe::ObserveLayerSettings;
pub use reload::LayerChange;
pub use remote::RemoteLayerSettings;
pub use slice::Slice;

/// One layer of a stack. A bottom layer ([`Layer::is_bottom`]) is the first of its stack; all other layers lie on
/// another one.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// Blocks in memory, which are lost when the process ends.
    Memory(MemoryLayerSettings),
    File(File),
    Remote(RemoteLayerSettings),
    /// The mirror leg of a pair's log at this gateway, served to the partner.
    Half(MirrorLegLayerSettings),
    Slice(Slice),
    Encrypt(EncryptLayerSettings),
    /// Adds time to calls, for tests.
    Delay(DelayLayerSettings),
    /// Imitates the service times of a disk, for tests.
    Disk(DiskLayerSettings),
    /// Counts calls and bytes for `forebay status`.
    Observe(ObserveLayerSettings),
    /// Makes calls fail, for tests.
    Fault(FaultLayerSettings),
    Cache(CacheLayerSettings),
    /// A share of a cache whose log several units have in common.
    CommonCache(InCommon),
    ReadOnly,
}

impl Layer {
    /// Returns true for a cache whose far volume several gateways cache at the same time.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Cache(cache) if cache.share)
    }

    /// Returns true if the layer is the first of its stack and needs no layer below.
    pub fn is_bottom(&self) -> bool {
        matches!(self, Self::Memory(_) | Self::File(_) | Self::Half(_) | Self::Remote(_))
    }

    /// Returns true if the volume above this layer has the size and the block size of the volume below.
    pub fn keeps_size(&self) -> bool {
        matches!(
            self,
            Self::Delay(_) | Self::Disk(_) | Self::Observe(_) | Self::Fault(_) | Self::Encrypt(_)
        )
    }

    /// Returns why a volume with this layer cannot move to another node, and the remedy; `None` if it can.
    pub fn prevents_move(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::File(file) if file.read_only => {
                Some(("it is read-only", "make it writable before the move"))
            }
            Self::ReadOnly => Some(("it is read-only", "make it writable before the move")),
            Self::Encrypt(_) => Some((
                "it is encrypted, and its key does not leave the node",
                "copy its data on a host to an encrypted volume of the other node",
            )),
            Self::Cache(_) | Self::CommonCache(_) => Some((
                "it has a cache",
                "stop it, then serve the volume without it, or move the volume below it",
            )),
            Self::Remote(_) | Self::Half(_) => {
                Some(("its data is on another node", "move it from there"))
            }
            Self::Memory(_)
            | Self::File(_)
            | Self::Slice(_)
            | Self::Delay(_)
            | Self::Disk(_)
            | Self::Observe(_)
            | Self::Fault(_) => None,
        }
    }

    /// Takes over from `new` the keys that a reload may change while the layer is in use, and returns the change.
    pub fn reload(&mut self, new: &Self) -> LayerChange {
        match (self, new) {
            (Self::File(old), Self::File(new)) => old.reload(new),
            (Self::Slice(old), Self::Slice(new)) => old.reload(new),
            (Self::Cache(old), Self::Cache(new)) => old.reload(new),
            _ => LayerChange::None,
        }
    }

    /// Checks the rules between the keys of this layer. `at` is the path of the layer in the settings, which locates an
    /// error.
    pub(crate) fn check<'a>(
        &'a self,
        at: &KeyPath,
        files: &mut LayerFiles<'a>,
    ) -> SettingsRuleResult {
        match self {
            Self::Memory(memory) => memory.check(&at.key("memory")),
            Self::File(file) => file.check(&at.key("file"), files),
            Self::Half(half) => half.check(&at.key("half")),
            Self::Remote(remote) => remote.check(&at.key("remote")),
            Self::Slice(slice) => slice.check(&at.key("slice")),
            Self::Observe(observe) => observe.check(&at.key("observe")),
            Self::Cache(cache) => cache.check(&at.key("cache"), files),
            Self::Encrypt(encrypt) => encrypt.check(&at.key("encrypt"), files),
            Self::Disk(disk) => disk.check(&at.key("disk")),
            Self::CommonCache(_) | Self::Delay(_) | Self::Fault(_) | Self::ReadOnly => Ok(()),
        }
    }

    /// Makes relative paths relative to `folder`.
    pub(crate) fn resolve(&mut self, folder: &Path) {
        match self {
            Self::File(file) => file.resolve(folder),
            Self::Encrypt(encrypt) => encrypt.resolve(folder),
            Self::Cache(cache) => cache.resolve(folder),
            _ => {}
        }
    }

    /// Returns the remote unit that the layer logs in to, and the keys that lead to its settings.
    pub fn remote_mut(&mut self) -> Option<(&'static [&'static str], &mut RemoteLayerSettings)> {
        match self {
            Self::Remote(remote) => Some((&["remote"], remote)),
            Self::Cache(cache) => {
                Some((&["cache", "pair", "partner"], &mut cache.pair.as_deref_mut()?.partner))
            }
            _ => None,
        }
    }
}
