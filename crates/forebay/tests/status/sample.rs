//! Recorded responses of `forebay status --json`, and a comparison of field names and types.
//!
//! Programs read the JSON by field name, so a field must keep its name and type. The samples in `samples/` were written
//! by a version of the program whose status had no types yet. `FOREBAY_RECORD_STATUS=1` makes the tests write the
//! samples again; do that only for a new field.

use std::{collections::BTreeSet, path::PathBuf};

use control::{LayerFigures, ServingStatus};
use serde_json::{Map, Value};

use crate::support::{Place, Serving};

/// Objects whose field names depend on the run (counted commands, volumes of a common cache).
const OPEN_OBJECTS: [&str; 3] = ["commands_by_kind", "volumes", "given_up_bytes"];
/// Lists whose order and number of elements follow from the settings.
const FIXED_LISTS: [&str; 4] = ["targets", "units", "layers", "log_halves"];

/// Compares the status of a process with the sample with that name.
#[track_caller]
pub fn check(name: &str, place: &Place, serving: &Serving) {
    let status = serving.status();
    let path = path(name);
    if std::env::var_os("FOREBAY_RECORD_STATUS").is_some() {
        let text = serde_json::to_string_pretty(&status).expect("JSON");
        let folder = place.folder.path().canonicalize().expect("a folder");
        let folder = folder.to_str().expect("a plain path");
        // The status shows the path of a file in lower case.
        let text = text.replace(folder, "/srv").replace(&folder.to_lowercase(), "/srv");
        std::fs::write(&path, text + "\n").expect("written");
    }
    let mut differences = Vec::new();
    compare(name, &read(name), &status, &mut differences);
    assert!(differences.is_empty(), "{}\nin {status}", differences.join("\n"));
}

pub fn read(name: &str) -> Value {
    let text = std::fs::read_to_string(path(name)).expect("a sample");
    serde_json::from_str(&text).expect("JSON")
}

fn path(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/status/samples");
    PathBuf::from(folder).join(format!("{name}.json"))
}

/// Collects differences in field names or types. A value that is null may have any other type in the sample.
fn compare(at: &str, sample: &Value, found: &Value, differences: &mut Vec<String>) {
    match (sample, found) {
        (Value::Object(sample), Value::Object(found)) => objects(at, sample, found, differences),
        (Value::Array(sample), Value::Array(found)) => lists(at, sample, found, differences),
        _ if kind(sample) == kind(found) || sample.is_null() || found.is_null() => {}
        _ => differences.push(format!("{at}: {} became {}", kind(sample), kind(found))),
    }
}

fn objects(
    at: &str,
    sample: &Map<String, Value>,
    found: &Map<String, Value>,
    differences: &mut Vec<String>,
) {
    if OPEN_OBJECTS.iter().any(|name| at.ends_with(name)) {
        // All values of an object in `OPEN_OBJECTS` have the same type.
        if let Some(sample) = sample.values().next() {
            found.iter().for_each(|(name, found)| {
                compare(&format!("{at}.{name}"), sample, found, differences)
            });
        }
        return;
    }
    for name in sample.keys().filter(|name| !found.contains_key(*name)) {
        differences.push(format!("{at}.{name} is missing"));
    }
    for (name, found) in found {
        match sample.get(name) {
            Some(sample) => compare(&format!("{at}.{name}"), sample, found, differences),
            None => differences.push(format!("{at}.{name} is not in the sample")),
        }
    }
}

fn lists(at: &str, sample: &[Value], found: &[Value], differences: &mut Vec<String>) {
    if FIXED_LISTS.iter().any(|name| at.ends_with(name)) {
        if sample.len() != found.len() {
            differences.push(format!("{at}: {} elements became {}", sample.len(), found.len()));
        }
        sample.iter().zip(found).enumerate().for_each(|(index, (sample, found))| {
            compare(&format!("{at}[{index}]"), sample, found, differences)
        });
        return;
    }
    for found in found {
        // Any element of the sample may match: sessions, for example, come in any order.
        let tried = sample.iter().map(|sample| {
            let mut differences = Vec::new();
            compare(at, sample, found, &mut differences);
            differences
        });
        if let Some(fewest) = tried.min_by_key(Vec::len) {
            differences.extend(fewest);
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(number) if number.is_f64() => "a number with a fraction",
        Value::Number(_) => "a whole number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[test]
fn names_and_types_are_compared_and_values_are_not() {
    let differs = |sample: Value, found: Value| {
        let mut differences = Vec::new();
        compare("status", &sample, &found, &mut differences);
        !differences.is_empty()
    };
    let sample =
        serde_json::json!({ "a": 1, "b": [{ "c": "x" }, { "d": null }], "volumes": { "v": 1 } });
    let same = serde_json::json!({ "volumes": { "w": 7 }, "b": [{ "d": 7 }], "a": 2 });
    assert!(!differs(sample.clone(), same.clone()));
    for (name, wrong) in [
        ("a", serde_json::json!(2.5)),
        ("b", serde_json::json!([{ "e": 1 }])),
        ("volumes", serde_json::json!({ "w": "held" })),
        ("new", serde_json::json!(1)),
    ] {
        let mut found = same.clone();
        found[name] = wrong;
        assert!(differs(sample.clone(), found), "{name}");
    }
    assert!(differs(sample, serde_json::json!({ "a": 1, "b": [] })));
}

/// The types of the control socket have every field of the samples.
#[test]
fn a_sample_is_unchanged_after_parsing_and_serializing() {
    let folder = path("any").parent().expect("a folder").to_owned();
    let mut layers = BTreeSet::new();
    for entry in std::fs::read_dir(folder).expect("samples") {
        let file = entry.expect("a file").file_name().into_string().expect("a plain name");
        let sample = read(file.strip_suffix(".json").expect("JSON"));
        let status: ServingStatus = serde_json::from_value(sample.clone()).expect("a status");
        assert_eq!(serde_json::to_value(&status).expect("JSON"), sample, "{file}");
        let serving = status.counters.serving().expect("counters with a type");
        assert!(serving.further.is_empty(), "{file}: {:?}", serving.further);
        let units = status.targets.iter().flat_map(|target| &target.units);
        for layer in units.flat_map(|unit| &unit.layers) {
            let further = match &layer.figures {
                LayerFigures::Cache(figures) => &figures.further,
                LayerFigures::File(figures) => &figures.further,
                LayerFigures::Observe(figures) => &figures.further,
                LayerFigures::Remote(figures) => &figures.further,
                LayerFigures::Untyped(figures) => figures,
            };
            assert!(further.is_empty(), "{file}: {}: {further:?}", layer.layer);
            layers.insert(layer.layer.clone());
        }
    }
    let expected = "cache delay disk encrypt fault file half memory observe read-only remote slice";
    assert_eq!(layers.into_iter().collect::<Vec<_>>().join(" "), expected);
}
