//! What an open layer can be asked for beside reads and writes.

use std::{fmt::Display, future::ready, pin::Pin, sync::Arc};

use config::Layer;
use control::{Failure, LayerFigures, LayerStatus};
use volume::Stack;

/// A future of a layer.
pub type LayerFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An open layer. The default of each method is right for a layer that has nothing of the kind.
pub trait RunningLayer: Send + Sync {
    /// Returns the counters and present values of the layer.
    fn figures(&self) -> LayerFigures {
        LayerFigures::default()
    }

    /// Returns what the layer is on, if that is no longer what it was when the layer was opened.
    fn on(&self) -> Option<String> {
        None
    }

    /// Takes over what a reload may change. `below` is the layer directly below, if there is one.
    ///
    /// # Errors
    /// The layer cannot grow.
    fn follow<'a>(
        &'a self,
        _settings: &'a Layer,
        _below: Option<&'a dyn RunningLayer>,
    ) -> LayerFuture<'a, Result<(), Failure>> {
        Box::pin(ready(Ok(())))
    }

    /// Reserves the bytes up to the end of a slice directly above that grows to `bytes`.
    ///
    /// # Errors
    /// Another unit uses some of these bytes.
    fn reserve_for_slice(&self, _bytes: u64) -> Result<(), Failure> {
        Ok(())
    }

    /// Grows with the layer below, if this one reaches to its end.
    ///
    /// # Errors
    /// The layer cannot grow.
    fn grow_with_lower(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Puts away what must not be lost.
    ///
    /// # Errors
    /// The log of a cache could not be left in order.
    fn stop(&self) -> LayerFuture<'_, Result<(), Failure>> {
        Box::pin(ready(Ok(())))
    }

    /// Ends without another write to what is below, because the log has another owner now. `reason` says why.
    fn abandon<'a>(&'a self, _reason: &'a str) -> LayerFuture<'a, ()> {
        Box::pin(ready(()))
    }
}

/// One layer of an open stack.
pub struct StackLayer {
    layer: &'static str,
    on: String,
    running: Arc<dyn RunningLayer>,
}

/// A layer that cannot be asked for anything.
struct PlainLayer;

impl RunningLayer for PlainLayer {}

impl StackLayer {
    /// Returns a layer with its name in settings, and what it is on.
    pub fn new(layer: &'static str, on: String, running: Arc<dyn RunningLayer>) -> Self {
        Self { layer, on, running }
    }

    /// Returns a layer that cannot be asked for anything.
    pub fn plain(layer: &'static str, on: String) -> Self {
        Self::new(layer, on, Arc::new(PlainLayer))
    }

    /// Returns what the layer can be asked for.
    pub fn running(&self) -> &dyn RunningLayer {
        &*self.running
    }

    /// Returns what `forebay status` shows of the layer.
    pub fn status(&self) -> LayerStatus {
        LayerStatus {
            layer: self.layer.to_owned(),
            on: self.running.on().unwrap_or_else(|| self.on.clone()),
            figures: self.running.figures(),
        }
    }
}

/// Returns the failure of a layer that cannot grow.
pub fn cannot_grow(layer: &str, on: &str, why: &dyn Display) -> Failure {
    Failure::new(format!("the {layer} of {on} cannot grow: {why}"))
        .remedy("let what is below it grow first, or ask for less")
}

/// A layer that has just been opened.
pub struct OpenedLayer {
    /// The volume as the layers above see it.
    pub volume: Stack,
    /// The layer in the list of the stack.
    pub layer: StackLayer,
    /// What a log above calls the volume, if that is not the name of the volume below.
    pub identity: Option<String>,
}

impl OpenedLayer {
    /// Returns a layer that cannot be asked for anything, and that keeps the name of the volume below.
    pub fn plain(layer: &'static str, on: String, volume: Stack) -> Self {
        Self { volume, layer: StackLayer::plain(layer, on), identity: None }
    }
}
