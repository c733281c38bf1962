//! A node or gateway of a stage: `forebay serve` with settings of its own.

use std::{
    fs,
    path::Path,
    process::Command,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use program::WaitLimit;
use rig::node::ServeProcess;
use rustix::process::Signal;
use serde_json::Value;

use super::process::{StageNamespace, enter};
use crate::Error;

/// From start to listening: a volume or log of some gigabytes is filled with zeros first.
const READY: Duration = Duration::from_secs(300);
/// One question over the control socket.
const ANSWER: Duration = Duration::from_secs(20);
/// It waits for commands under way and for its log.
const END: Duration = Duration::from_secs(60);
/// Some hundred megabytes over a line with little room.
const DRAIN: Duration = Duration::from_secs(300);
/// How often a gateway is asked whether it has dirty data still.
const LOOK: Duration = Duration::from_millis(100);

/// A node or a gateway that listens.
pub(crate) struct LabForebayServer {
    pub name: String,
    process: ServeProcess,
}

impl LabForebayServer {
    /// Starts it, and waits until it listens.
    pub fn start(
        name: &str,
        program: &Path,
        folder: &Path,
        namespace: &StageNamespace,
        settings: &str,
        stop: &AtomicBool,
    ) -> Result<Self, Error> {
        let path = folder.join(format!("{}.toml", name.replace(' ', "-")));
        fs::write(&path, settings).map_err(Error::file("write", &path))?;
        let mut command = Command::new(program);
        enter(&mut command, namespace).map_err(Error::system(format!("start {name}")))?;
        let wait = WaitLimit { limit: READY, stop };
        let process = ServeProcess::launch(name, command, &path, Signal::TERM, wait, |_| ())?;
        Ok(Self { name: name.to_owned(), process })
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The URL of unit 0 of a target there.
    pub fn url(&self, target: &str) -> String {
        self.process.url(target, 0)
    }

    /// Returns what `forebay status --json` prints.
    pub fn status(&self, stop: &AtomicBool) -> Result<Value, Error> {
        Ok(self.process.status_within(WaitLimit { limit: ANSWER, stop })?)
    }

    /// Waits until no cache of it has dirty data. How long it took, or `None` if there still is some after
    /// [`DRAIN`].
    pub fn drain(&self, stop: &AtomicBool) -> Result<Option<Duration>, Error> {
        let begun = Instant::now();
        while dirty(&self.status(stop)?) > 0 {
            if begun.elapsed() > DRAIN {
                return Ok(None);
            }
            std::thread::sleep(LOOK);
        }
        Ok(Some(begun.elapsed()))
    }

    /// Ends it in order.
    pub fn end(self) -> Result<(), Error> {
        Ok(self.process.end(END)?)
    }
}

/// Bytes that caches of a process have and what is below them does not.
fn dirty(status: &Value) -> u64 {
    let of = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let units = of(status, "targets").into_iter().flat_map(|target| of(&target, "units"));
    let layers = units.flat_map(|unit| of(&unit, "layers"));
    layers.filter_map(|layer| layer["figures"]["dirty_bytes"].as_u64()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_data_of_all_units_is_counted() {
        let unit = |bytes: u64| {
            serde_json::json!({ "layers": [
                { "layer": "remote", "figures": {} }, { "layer": "cache", "figures": { "dirty_bytes": bytes } } ] })
        };
        let status = serde_json::json!({ "targets": [
            { "units": [unit(4096)] }, { "units": [unit(8192), unit(0)] } ] });
        assert_eq!(dirty(&status), 12288);
        assert_eq!(dirty(&Value::Null), 0);
    }
}
