//! The status of a layer in the stack of a unit, with its figures.

use serde::{Deserialize, Serialize, Serializer, ser::Error as _};
use serde_json::{Map, Value};

use crate::{cache_figures::CacheFigures, remote_figures::RemoteFigures};

/// One layer of a unit's stack.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(from = "UntypedLayer")]
pub struct LayerStatus {
    /// Name of the layer in the settings; `cache` for a common cache, too.
    pub layer: String,
    /// Path, URL or name of the storage that the layer uses.
    pub on: String,
    /// Counters and present values of the layer; empty for a layer without figures.
    #[serde(serialize_with = "in_order_of_names")]
    pub figures: LayerFigures,
}

/// The figures of a layer. The field `layer` decides which variant is read.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum LayerFigures {
    Cache(Box<CacheFigures>),
    /// Figures of a `file` layer: a file or a block device.
    File(FileFigures),
    Observe(ObserveFigures),
    Remote(Box<RemoteFigures>),
    /// Figures by name. Empty for a layer without figures; otherwise they come from another version of the program, in
    /// a form that this version cannot read.
    Untyped(Map<String, Value>),
}

impl Default for LayerFigures {
    fn default() -> Self {
        Self::Untyped(Map::new())
    }
}

impl LayerFigures {
    /// Returns all figures of the layer by their JSON names, in alphabetical order.
    pub fn by_name(&self) -> Map<String, Value> {
        by_name(self)
    }
}

/// Returns the fields of a value that JSON writes as an object, in alphabetical order.
pub(crate) fn by_name(value: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(map)) => map,
        // Not reached: all our figures are objects with string keys.
        _ => Map::new(),
    }
}

/// Serializes in alphabetical order, whatever the order of fields and groups in the type: scripts rely on this order,
/// which `--json` has always had.
pub(crate) fn in_order_of_names<S: Serializer>(
    value: &impl Serialize,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serde_json::to_value(value).map_err(S::Error::custom)?.serialize(serializer)
}

/// A layer as parsed from JSON. In a second step, the name of the layer determines the type of its figures.
#[derive(Deserialize)]
struct UntypedLayer {
    layer: String,
    on: String,
    figures: Map<String, Value>,
}

impl From<UntypedLayer> for LayerStatus {
    fn from(UntypedLayer { layer, on, figures }: UntypedLayer) -> Self {
        let value = || Value::Object(figures.clone());
        let typed = match layer.as_str() {
            "cache" => serde_json::from_value(value()).ok().map(LayerFigures::Cache),
            "file" => serde_json::from_value(value()).ok().map(LayerFigures::File),
            "observe" => serde_json::from_value(value()).ok().map(LayerFigures::Observe),
            "remote" => serde_json::from_value(value()).ok().map(LayerFigures::Remote),
            _ => None,
        };
        let figures = typed.unwrap_or(LayerFigures::Untyped(figures));
        Self { layer, on, figures }
    }
}

/// Figures of a file or a block device.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct FileFigures {
    /// Calls that failed for lack of space, since the start. Hosts get sense data 7/27/07.
    pub refused_no_space: u64,
    /// Bytes that the file occupies in its file system; `None` for a block device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_bytes: Option<u64>,
    /// Free bytes of the file system that holds the file; `None` for a block device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Figures that this version of the program does not know, from a newer process.
    #[serde(flatten)]
    pub further: Map<String, Value>,
}

/// Calls that passed an `observe` layer since the start.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ObserveFigures {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes discarded.
    pub discarded_bytes: u64,
    /// Failed calls, except those refused with BUSY.
    pub errors: u64,
    /// Calls refused with BUSY.
    pub busy: u64,
    /// Figures that this version of the program does not know, from a newer process.
    #[serde(flatten)]
    pub further: Map<String, Value>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn layer(json: Value) -> LayerStatus {
        serde_json::from_value(json).expect("a layer")
    }

    #[test]
    fn figures_get_the_type_of_their_layer_and_keep_their_json() {
        let figures = json!({
            "reads": 1, "writes": 2, "flushes": 3, "discards": 4, "read_bytes": 5, "written_bytes": 6,
            "discarded_bytes": 7, "errors": 8, "busy": 9,
        });
        let json = json!({ "layer": "observe", "on": "x", "figures": figures });
        let status = layer(json.clone());
        let LayerFigures::Observe(observed) = &status.figures else { panic!("{status:?}") };
        assert_eq!((observed.reads, observed.busy), (1, 9));
        assert_eq!(serde_json::to_value(&status).unwrap(), json);
        let text = serde_json::to_string(&status).unwrap();
        assert!(text.ends_with(r#""figures":{"busy":9,"discarded_bytes":7,"discards":4,"errors":8,"flushes":3,"read_bytes":5,"reads":1,"writes":2,"written_bytes":6}}"#), "{text}");
    }

    #[test]
    fn figures_of_another_version_are_kept_as_they_are() {
        let newer =
            json!({ "layer": "file", "on": "x", "figures": { "refused_no_space": 1, "new": "y" } });
        let status = layer(newer.clone());
        assert!(
            matches!(&status.figures, LayerFigures::File(file) if file.further.len() == 1),
            "{status:?}"
        );
        assert_eq!(serde_json::to_value(&status).unwrap(), newer);
        let older = json!({ "layer": "remote", "on": "x", "figures": { "link": "up" } });
        let status = layer(older.clone());
        assert!(
            matches!(&status.figures, LayerFigures::Untyped(map) if map.len() == 1),
            "{status:?}"
        );
        assert_eq!(serde_json::to_value(&status).unwrap(), older);
    }

    #[test]
    fn a_layer_without_figures_has_an_empty_object() {
        let json = json!({ "layer": "memory", "on": "", "figures": {} });
        assert_eq!(serde_json::to_value(layer(json.clone())).unwrap(), json);
    }
}
