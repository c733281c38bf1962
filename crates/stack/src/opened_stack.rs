//! The open stack of a unit: its volumes and the run-time operations of its layers, apart from reads and writes.

use std::sync::Arc;

use config::{File, Layer, Unit};
use control::{Exported, Failure, LayerStatus};
use initiator::RemoteVolume;
use volume::{Stack, Watched};

use crate::layers::{CacheLayer, FileLayer, StackLayer};

pub struct OpenedStack {
    /// The topmost layer of the stack, which hosts read and write.
    pub top: Stack,
    /// The name of the volume at the bottom, by which a second use of it is noticed: it is the same over every path.
    /// `None` if the volume exists only in the memory of this process.
    pub identity: Option<String>,
    /// The layer below the top that records changes. It exists if the volume has a name: such a volume may be moved to
    /// another node while it is used.
    pub watched: Option<Arc<Watched>>,
    pub(crate) layers: Vec<StackLayer>,
    /// The layers that other code calls directly, which are also in `layers`.
    pub(crate) parts: StackParts,
}

/// The layers of a stack that other code calls directly; `None` where the stack has no such layer.
#[derive(Clone, Default)]
pub(crate) struct StackParts {
    /// The file or block device at the bottom.
    pub file: Option<Arc<FileLayer>>,
    /// The far volume at the bottom of the stack; `None` if its bottom is local.
    pub session: Option<Arc<RemoteVolume>>,
    pub cache: Option<Arc<CacheLayer>>,
}

impl OpenedStack {
    pub fn status(&self) -> Vec<LayerStatus> {
        self.layers.iter().map(StackLayer::status).collect()
    }

    pub fn cache(&self) -> Option<&CacheLayer> {
        self.parts.cache.as_deref()
    }

    /// Grows the file at the bottom to `bytes`, or takes the present size of the device if `bytes` is `None`. Returns
    /// the size of the unit in bytes.
    ///
    /// # Errors
    /// There is no file at the bottom, or it or a slice of it cannot grow.
    pub async fn grow(&self, bytes: Option<u64>) -> Result<u64, Failure> {
        let Some(file) = &self.parts.file else {
            return Err(Failure::new("only a file or a block device can grow").remedy(
                "grow a far volume at its node, with `forebay resize` there: the gateway \
                 follows",
            ));
        };
        file.grow(bytes).await?;
        self.grow_with_bottom()?;
        Ok(self.top.geometry().bytes())
    }

    /// Grows each layer whose end is the end of the layer below it.
    fn grow_with_bottom(&self) -> Result<(), Failure> {
        self.layers.iter().try_for_each(|layer| layer.running().grow_with_lower())
    }

    /// Applies the settings that a reload may change, bottom first: files and slices grow, and caches destage at
    /// another rate.
    ///
    /// # Errors
    /// A file or a slice cannot grow.
    pub async fn follow(&self, unit: &Unit) -> Result<(), Failure> {
        for (at, (layer, settings)) in self.layers.iter().zip(&unit.stack).enumerate() {
            let below = at.checked_sub(1).map(|below| self.layers[below].running());
            layer.running().follow(settings, below).await?;
            if matches!(settings, Layer::File(File { size: Some(_), .. })) {
                self.grow_with_bottom()?;
            }
        }
        Ok(())
    }

    /// Stops the layers without another write to the volumes below, because the log has another owner now. `reason`
    /// says why.
    pub async fn abandon(&self, reason: &str) {
        for layer in self.layers.iter().rev() {
            layer.running().abandon(reason).await;
        }
    }

    /// Returns true if this unit and `other` use the same common cache.
    pub fn shares_cache_with(&self, other: &Self) -> bool {
        let of = |opened: &Self| opened.cache().map(std::ptr::from_ref);
        of(self).is_some() && of(self) == of(other)
    }

    /// Closes the log for another host, with everything in it, and ends the session below the cache. `serial` is the
    /// serial number that hosts see.
    ///
    /// # Errors
    /// The unit has no cache, or the log could not be closed.
    pub async fn export(&self, serial: &str) -> Result<Exported, Failure> {
        let cache = self.cache().ok_or_else(|| {
            Failure::new("there is no cache")
                .remedy("name a unit that has a cache in `forebay status`")
        })?;
        let exported = cache.export(serial).await?;
        self.close().await;
        Ok(exported)
    }

    /// Ends the session with the node.
    pub async fn close(&self) {
        if let Some(session) = &self.parts.session {
            session.close().await;
        }
    }

    /// Saves all data that must not be lost: stops caches first, because they use the layers below, then sessions.
    /// Returns the first failure after all layers were stopped.
    ///
    /// # Errors
    /// The log of a cache could not be closed cleanly.
    pub async fn stop(&self) -> Result<(), Failure> {
        let mut result = Ok(());
        for layer in self.layers.iter().rev() {
            result = result.and(layer.running().stop().await);
        }
        result
    }
}
