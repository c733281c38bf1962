//! A layer of a volume with its figures.

use serde::{Deserialize, Serialize, Serializer, ser::Error as _};
use serde_json::{Map, Value};

use crate::{cache_figures::CacheFigures, remote_figures::RemoteFigures};

/// One layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(from = "UntypedLayer")]
pub struct LayerStatus {
    /// The word for the layer in the settings; `cache` for a common cache, too.
    pub layer: String,
    /// What the layer stands on: a path, a URL or a name.
    pub on: String,
    /// Counters and present values.
    #[serde(serialize_with = "in_order_of_names")]
    pub figures: LayerFigures,
}

/// The figures of a layer. The word for the layer decides which kind it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum LayerFigures {
    /// Of a `cache`.
    Cache(Box<CacheFigures>),
    /// Of a `file`: a file or a block device.
    File(FileFigures),
    /// Of an `observe` layer.
    Observe(ObserveFigures),
    /// Of a `remote` layer.
    Remote(Box<RemoteFigures>),
    /// By name: empty for a layer without figures; else the figures come from another version of the program, and
    /// this version cannot read them.
    Untyped(Map<String, Value>),
}

impl Default for LayerFigures {
    fn default() -> Self {
        Self::Untyped(Map::new())
    }
}

impl LayerFigures {
    /// All figures by their names in JSON, in alphabetical order.
    pub fn by_name(&self) -> Map<String, Value> {
        by_name(self)
    }
}

/// The fields of a value that JSON has as an object, in alphabetical order.
pub(crate) fn by_name(value: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(map)) => map,
        // Our figures are objects whose keys are strings.
        _ => Map::new(),
    }
}

/// Serializes in alphabetical order, whatever the order of fields and groups in the type: `--json` has always been
/// written so.
pub(crate) fn in_order_of_names<S: Serializer>(
    value: &impl Serialize,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serde_json::to_value(value).map_err(S::Error::custom)?.serialize(serializer)
}

/// The form of a layer in JSON before the kind of its figures is known.
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

/// Figures of a file or block device.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct FileFigures {
    /// Calls since the start that failed for lack of space.
    pub refused_no_space: u64,
    /// Bytes that the file occupies in its file system; `None` for a block device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_bytes: Option<u64>,
    /// Free bytes of that file system; `None` for a block device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Figures that this version does not know: the answer is from a newer process.
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
    /// Calls that failed, those refused with BUSY not counted.
    pub errors: u64,
    /// Calls refused with BUSY.
    pub busy: u64,
    /// Figures that this version does not know: the answer is from a newer process.
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
