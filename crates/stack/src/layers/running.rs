//! The run-time operations of an open layer, apart from reads and writes.

use std::{fmt::Display, future::ready, pin::Pin, sync::Arc};

use config::Layer;
use control::{Failure, LayerFigures, LayerStatus};
use volume::Stack;

pub type LayerFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The run-time operations of an open layer. The default of each method suits a layer that does not have the operation.
pub trait RunningLayer: Send + Sync {
    fn figures(&self) -> LayerFigures {
        LayerFigures::default()
    }

    /// Returns the text that `forebay status` shows for the storage of the layer; `None` if it has not changed since
    /// the layer was opened.
    fn on(&self) -> Option<String> {
        None
    }

    /// Applies the settings that a reload may change. `below` is the layer directly below, if there is one.
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

    /// Called before a slice directly above this layer grows to `bytes` bytes: reserves the bytes up to the new end of
    /// the slice.
    ///
    /// # Errors
    /// Another unit uses some of these bytes.
    fn reserve_for_slice(&self, _bytes: u64) -> Result<(), Failure> {
        Ok(())
    }

    /// Grows with the layer below, if this layer extends to its end.
    ///
    /// # Errors
    /// The layer cannot grow.
    fn grow_with_lower(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Saves all data that must not be lost.
    ///
    /// # Errors
    /// The log of a cache could not be closed cleanly.
    fn stop(&self) -> LayerFuture<'_, Result<(), Failure>> {
        Box::pin(ready(Ok(())))
    }

    /// Stops the layer without another write to the volume below, because the log has another owner now. `reason`
    /// says why.
    fn abandon<'a>(&'a self, _reason: &'a str) -> LayerFuture<'a, ()> {
        Box::pin(ready(()))
    }
}

pub struct StackLayer {
    layer: &'static str,
    on: String,
    running: Arc<dyn RunningLayer>,
}

struct PlainLayer;

impl RunningLayer for PlainLayer {}

impl StackLayer {
    /// Makes a layer. `layer` is its name in the settings. `on` names the storage of the layer for `forebay status`.
    pub fn new(layer: &'static str, on: String, running: Arc<dyn RunningLayer>) -> Self {
        Self { layer, on, running }
    }

    /// Makes a layer without run-time operations.
    pub fn plain(layer: &'static str, on: String) -> Self {
        Self::new(layer, on, Arc::new(PlainLayer))
    }

    pub fn running(&self) -> &dyn RunningLayer {
        &*self.running
    }

    pub fn status(&self) -> LayerStatus {
        LayerStatus {
            layer: self.layer.to_owned(),
            on: self.running.on().unwrap_or_else(|| self.on.clone()),
            figures: self.running.figures(),
        }
    }
}

pub fn cannot_grow(layer: &str, on: &str, why: &dyn Display) -> Failure {
    Failure::new(format!("the {layer} of {on} cannot grow: {why}"))
        .remedy("grow the layer below first, or request a smaller size")
}

pub struct OpenedLayer {
    /// The volume for the layers above.
    pub volume: Stack,
    /// The entry of the layer in the list of the stack.
    pub layer: StackLayer,
    /// The name that a log above uses for the volume, if it differs from the name of the volume below.
    pub identity: Option<String>,
}

impl OpenedLayer {
    /// Makes a layer without run-time operations that keeps the name of the volume below.
    pub fn plain(layer: &'static str, on: String, volume: Stack) -> Self {
        Self { volume, layer: StackLayer::plain(layer, on), identity: None }
    }
}
