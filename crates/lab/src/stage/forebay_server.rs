//! A node or gateway of a site: a process `forebay serve` with settings of its own.

use std::{
    fs,
    path::Path,
    process::Command,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use control::ServingStatus;
use program::WaitLimit;
use rig::node::ServeProcess;
use rustix::process::Signal;

use super::process::{StageNamespace, enter};
use crate::Error;

/// Time limit from the start of the process until it prints `ready`. Before that, the process fills a volume or log of
/// some gigabytes with zeros.
const READY: Duration = Duration::from_secs(300);
/// Time limit of a command over the control socket.
const ANSWER: Duration = Duration::from_secs(20);
/// Time limit for stopping the process, which finishes commands in flight and closes the log.
const END: Duration = Duration::from_secs(60);
/// Time limit for draining some hundred megabytes over a slow link.
const DRAIN: Duration = Duration::from_secs(300);
/// The pause between two queries for the number of dirty bytes.
const LOOK: Duration = Duration::from_millis(100);

/// A running `forebay serve`, as a node or a gateway of a site.
pub(crate) struct LabForebayServer {
    pub name: String,
    process: ServeProcess,
}

impl LabForebayServer {
    /// Starts the process, and waits until it listens for initiators.
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

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the URL of LUN 0 of this target in this process.
    pub fn url(&self, target: &str) -> String {
        self.process.url(target, 0)
    }

    /// Returns what `forebay status --json` prints.
    pub fn status(&self, stop: &AtomicBool) -> Result<ServingStatus, Error> {
        let status = self.process.status_within(WaitLimit { limit: ANSWER, stop })?;
        let status = serde_json::from_value(status).map_err(|error| program::Error::Failed {
            name: format!("the status of {}", self.name),
            what: "cannot be read".to_owned(),
            said: error.to_string(),
        });
        Ok(status?)
    }

    /// Waits until no cache of the process has dirty data. Returns how long this took, or `None` if
    /// there is still dirty data after the time [`DRAIN`].
    pub fn drain(&self, stop: &AtomicBool) -> Result<Option<Duration>, Error> {
        let begun = Instant::now();
        while dirty_bytes(&self.status(stop)?) > 0 {
            if begun.elapsed() > DRAIN {
                return Ok(None);
            }
            std::thread::sleep(LOOK);
        }
        Ok(Some(begun.elapsed()))
    }

    /// Asks the process to stop, and waits until it has ended.
    pub fn end(self) -> Result<(), Error> {
        Ok(self.process.end(END)?)
    }
}

/// Returns the dirty bytes of all caches of a process together.
fn dirty_bytes(status: &ServingStatus) -> u64 {
    status.caches().map(|cache| cache.dirty.dirty_bytes).sum()
}

#[cfg(test)]
mod tests {
    use control::{CacheFigures, LayerFigures, LayerStatus, TargetStatus, UnitStatus};

    use super::*;

    #[test]
    fn dirty_data_of_all_units_is_counted() {
        let unit = |log: &str, bytes: u64| {
            let mut cache = CacheFigures::default();
            cache.dirty.dirty_bytes = bytes;
            let cache = LayerStatus {
                layer: "cache".to_owned(),
                on: log.to_owned(),
                figures: LayerFigures::Cache(Box::new(cache)),
            };
            let remote = LayerStatus { layer: "remote".to_owned(), ..LayerStatus::default() };
            UnitStatus { layers: vec![remote, cache], ..UnitStatus::default() }
        };
        let target = |units| TargetStatus { units, ..TargetStatus::default() };
        let targets =
            vec![target(vec![unit("a", 4096)]), target(vec![unit("b", 8192), unit("c", 0)])];
        let status = ServingStatus { targets, ..ServingStatus::default() };
        assert_eq!(dirty_bytes(&status), 12288);
        assert_eq!(dirty_bytes(&ServingStatus::default()), 0);
    }
}
