//! A layer of a volume with its figures.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct LayerStatus {
    /// The word for the layer in the settings; `cache` for a common cache, too.
    pub layer: String,
    /// What the layer stands on: a path, a URL or a name.
    pub on: String,
    /// Counters and present values by name; the units are in the names.
    pub figures: Map<String, Value>,
}
