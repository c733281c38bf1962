//! Examines the volume of an object drive that is not served.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use config::{IscsiTargetSettings, Layer, Unit, quantity::about};
use control::Failure;
use serde_json::json;
use stack::object_drive::{DriveExamination, DriveFinding};

use super::{open, report::SettingsCheckReport};
use crate::output::tell;

/// Examines the drive of a unit if its file or device is not in use. Another check has reported a file that is missing,
/// in use or cannot be opened.
pub(super) async fn examine(
    target: &IscsiTargetSettings,
    unit: &Unit,
    place: &str,
    report: &mut SettingsCheckReport,
) -> Result<(), Failure> {
    let Some(Layer::File(file)) = unit.stack.first() else {
        return match unit.stack.first() {
            Some(Layer::Memory(_)) => Ok(()),
            _ => report.say(place, Ok(NOT_EXAMINED.to_owned())),
        };
    };
    if unit.stack.iter().any(|layer| matches!(layer, Layer::Cache(_))) {
        return report.say(place, Ok(NOT_EXAMINED.to_owned()));
    }
    let mut options = stack::options(file);
    (options.preallocate, options.read_only) = (false, true);
    let Ok(Some(volume)) = open(&options) else { return Ok(()) };
    let identity = node::drive_identity(target, unit);
    let serial = identity.serial.clone();
    let progress = progress(place);
    match stack::object_drive::examine(unit, volume, identity, progress).await {
        Ok(None) => report.say(place, Ok("the volume is blank: a start formats it".to_owned())),
        Ok(Some(found)) => say(place, &serial, &found, report),
        Err(failure) => report.say(place, Err(failure)),
    }
}

/// Reports what an examination has found.
fn say(
    place: &str,
    serial: &str,
    found: &DriveExamination,
    report: &mut SettingsCheckReport,
) -> Result<(), Failure> {
    let DriveExamination { partitions, objects, rows, unknown_rows, bytes, .. } = found;
    let finding =
        |finding: &DriveFinding| json!({ "kind": finding.kind.name(), "text": finding.text });
    report.drives.push(json!({
        "place": place,
        "serial": serial,
        "partitions": partitions,
        "objects": objects,
        "rows": rows,
        "unknown_rows": unknown_rows,
        "bytes": bytes,
        "notes": found.notes,
        "found": found.found,
        "findings": found.findings.iter().map(finding).collect::<Vec<_>>(),
    }));
    for note in &found.notes {
        report.say(place, Ok(note.clone()))?;
    }
    if *unknown_rows > 0 {
        let text = format!("{unknown_rows} rows of unknown kinds were not examined");
        report.say(place, Ok(text))?;
    }
    let examined = format!(
        "examined {rows} rows of {partitions} partitions and {objects} objects, and {} of data",
        about(*bytes)
    );
    if found.is_sound() {
        return report.say(place, Ok(format!("the object drive is sound: {examined}")));
    }
    report.say(place, Ok(examined))?;
    if !report.json {
        for DriveFinding { kind, text } in found.findings.iter().take(MOST_LINES) {
            report.say(place, Ok(format!("damaged {}: {text}", kind.name())))?;
        }
    }
    let failure = Failure::new(format!(
        "the object drive {serial} is damaged: {} findings, with `--json` up to 1024 of them",
        found.found
    ));
    report.say(
        place,
        Err(failure.remedy(
            "restore the volume from a copy; without one, copy the objects that `forebay object get` can read to a new \
             drive",
        )),
    )
}

/// Returns a function that shows progress on stderr in intervals.
fn progress(place: &str) -> Box<dyn Fn(u64, u64) + Send> {
    let place = place.to_owned();
    let shown = Mutex::new(Instant::now());
    Box::new(move |done, all| {
        let Ok(mut shown) = shown.lock() else { return };
        if shown.elapsed() >= PROGRESS {
            *shown = Instant::now();
            tell(format_args!("{place}: compared {} of {}", about(done), about(all)));
        }
    })
}

const NOT_EXAMINED: &str =
    "the object drive is not examined: only one directly on a file or device can be";
/// Interval of the lines that show progress.
const PROGRESS: Duration = Duration::from_secs(5);
/// Findings that are printed for people.
const MOST_LINES: usize = 20;
