//! Records of cache logs.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    folder::{Recorder, absolute, is_absent},
    record::{LogIdentity, Record, Storage, now},
};
use crate::{
    failure::{Failure, NotOpened},
    quantity::about,
    settings::Cache,
};

/// The records of a log that is about to be opened: one for each file or device.
pub struct LogRecords {
    recorder: Recorder,
    /// The log, and the other half of its mirror.
    paths: Vec<PathBuf>,
    /// Instance ids in the records of these paths.
    known: Vec<String>,
    /// Records of these paths that say that the log may hold acknowledged data.
    expected: Vec<(Record, LogIdentity)>,
    /// Records of other paths that no cache of the settings names: each is of a log that the same user of the same
    /// settings file had there, and that may hold acknowledged data.
    elsewhere: Vec<(Record, LogIdentity)>,
    /// Mirror legs that the log had before and no longer has.
    former: Vec<PathBuf>,
    accept_loss: bool,
}

/// The records of a log that is open.
pub struct KeptLog {
    recorder: Recorder,
    paths: Vec<PathBuf>,
    state: Mutex<State>,
}

struct State {
    log: LogIdentity,
    opened: String,
    /// The cache has stopped: a later note must not replace the last one.
    is_closed: bool,
}

impl Recorder {
    /// The records of a cache's log. Refuses if they say that it holds data, or that a log under a former path
    /// does, and no file of it is there. Changes nothing.
    pub fn look_at_log(&self, cache: &Cache) -> Result<LogRecords, NotOpened> {
        let mut paths = Vec::new();
        let (mut expected, mut former, mut known) = (Vec::new(), Vec::new(), Vec::new());
        for path in [Some(&cache.log), cache.log_mirror.as_ref()].into_iter().flatten() {
            paths.push(absolute(path)?);
            let Some(record) = self.records.load(path)? else { continue };
            let log = match &record.storage {
                Storage::Log(log) => log.clone(),
                Storage::Volume(_) => return Err(self.another_kind(&record, "the volume")),
            };
            former.extend(log.mirror.clone());
            known.push(log.instance.clone());
            // The exported log was taken elsewhere, and the log that is adopted here replaces it.
            let is_replaced = log.is_exported && cache.takes_over;
            if record.may_hold_data() && !cache.accept_loss && !is_replaced {
                expected.push((record, log));
            }
        }
        former.retain(|path| !paths.contains(path));
        let elsewhere = self.logs_elsewhere(&paths);
        let (recorder, accept_loss) = (self.clone(), cache.accept_loss);
        let records =
            LogRecords { recorder, paths, known, expected, elsewhere, former, accept_loss };
        if records.paths.iter().all(|path| is_missing(path)) {
            records.refuse("is missing")?;
            records.refuse_elsewhere("is missing")?;
        }
        Ok(records)
    }

    /// See [`LogRecords`].
    fn logs_elsewhere(&self, paths: &[PathBuf]) -> Vec<(Record, LogIdentity)> {
        let is_named = |path: &PathBuf| paths.contains(path) || self.records.logs.contains(path);
        // Two gateways of one target may have their settings, and so their records, in one folder.
        let Some(settings) = self.records.settings() else { return Vec::new() };
        let lost = self.records.all().into_iter().filter_map(|record| {
            let Storage::Log(log) = &record.storage else { return None };
            let is_it = record.used_by == self.used_by
                && record.settings.as_ref() == Some(&settings)
                && record.may_hold_data()
                && !log.is_exported
                && !is_named(&record.path);
            let log = log.clone();
            is_it.then_some((record, log))
        });
        lost.collect()
    }
}

impl LogRecords {
    /// Compares the instance id of the log that was found with the records; `None`: the log is blank.
    pub fn check(&self, found: Option<&str>) -> Result<(), NotOpened> {
        match found {
            None => {
                self.refuse("is blank")?;
                self.refuse_elsewhere("is blank")
            }
            Some(found) if self.expected.iter().any(|(_, log)| log.instance != found) => {
                self.refuse(&format!("was replaced by another log, instance {found}"))
            }
            // The log was in use here before: it did not take the place of one elsewhere.
            Some(found) if self.known.iter().any(|instance| instance == found) => Ok(()),
            // The log was moved here.
            Some(found) if self.elsewhere.iter().all(|(_, log)| log.instance == found) => Ok(()),
            Some(found) => self.refuse_elsewhere(&format!("is another log, instance {found}")),
        }
    }

    /// Fails if a log under a former path may hold acknowledged data. `what` says what is under the path of now.
    fn refuse_elsewhere(&self, what: &str) -> Result<(), NotOpened> {
        let Some((record, log)) = self.elsewhere.first().filter(|_| !self.accept_loss) else {
            return Ok(());
        };
        let (former, now) = (&record.path, &self.paths[0]);
        let failure = Failure::new(format!(
            "the log {} of {} {what}, and the log that was at {} before is not named any more: its record \
             says instance {}, last opened {}, {}",
            now.display(),
            record.used_by,
            former.display(),
            log.instance,
            record.opened,
            held(log)
        ));
        let remedy = format!(
            "name {} as the log again, or move that file to {}, and {}; to give up what it holds: `{}`",
            former.display(),
            now.display(),
            self.recorder.again(),
            self.recorder.records.forget_command(former, true)
        );
        Err(NotOpened::Refused(failure.remedy(remedy)))
    }

    /// Fails if a record says that the log may hold acknowledged data.
    fn refuse(&self, what: &str) -> Result<(), NotOpened> {
        let Some((record, log)) = self.expected.first() else { return Ok(()) };
        let path = record.path.display();
        let failure = Failure::new(format!(
            "the log {path} of {} {what}: its record says instance {}, last opened {}, {}",
            record.used_by,
            log.instance,
            record.opened,
            held(log)
        ));
        let forget = self.recorder.records.forget_command(&record.path, true);
        let remedy = match log.is_exported {
            true => format!(
                "it was exported to be taken up on another host: take the unit out of these \
                 settings; or bring the log back; to start with a new one, and lose what that holds: \
                 `{forget}`"
            ),
            false => format!(
                "mount its disk or put the log back, and {}; to give up \
                 what it held, and start with a new one: `{forget}`, and if the node has a claim of \
                 that log, there `forebay claim drop TARGET/LUN --lose-dirty-data`",
                self.recorder.again()
            ),
        };
        Err(NotOpened::Refused(failure.remedy(remedy)))
    }

    /// Records the log, which is open: stable when this returns, and before anything of it is served.
    /// If it `writes_back`, acknowledged data may be in it alone from now on.
    pub fn keep(
        self,
        instance: String,
        dirty_bytes: u64,
        writes_back: bool,
    ) -> Result<Arc<KeptLog>, Failure> {
        let Self { recorder, paths, elsewhere, mut former, accept_loss, .. } = self;
        let is_settled = |log: &LogIdentity| accept_loss || log.instance == instance;
        let settled = elsewhere.into_iter().filter(|(_, log)| is_settled(log));
        former.extend(settled.map(|(record, _)| record.path));
        let log = LogIdentity {
            instance,
            dirty_bytes,
            is_drained: dirty_bytes == 0 && !writes_back,
            noted: now(),
            ..LogIdentity::default()
        };
        let state = State { log, opened: now(), is_closed: false };
        let kept = KeptLog { recorder, paths, state: Mutex::new(state) };
        kept.write(&kept.state.lock())?;
        for path in former {
            kept.recorder.records.forget(&path)?;
        }
        Ok(Arc::new(kept))
    }
}

impl KeptLog {
    /// Notes from time to time how much only the log has, by `dirty_bytes`; that gives none when the
    /// cache is gone.
    pub fn note_dirty(
        self: &Arc<Self>,
        dirty_bytes: impl Fn() -> Option<u64> + Send + Sync + 'static,
    ) {
        let kept = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(NOTE_EVERY).await;
                let (Some(kept), Some(dirty)) = (kept.upgrade(), dirty_bytes()) else { return };
                let note = move || {
                    kept.change(|log| {
                        log.dirty_bytes = dirty;
                        log.is_drained &= dirty == 0;
                    })
                };
                if let Ok(Err(failure)) = tokio::task::spawn_blocking(note).await {
                    tracing::warn!(%failure, "a log's record is not renewed");
                }
            }
        });
    }

    /// The cache has stopped, and only the log has so much.
    pub fn close(&self, dirty_bytes: u64) -> Result<(), Failure> {
        let closed = self.change(|log| {
            log.dirty_bytes = dirty_bytes;
            log.is_drained = dirty_bytes == 0;
        });
        self.state.lock().is_closed = true;
        closed
    }

    /// The log was put away, to be taken up on another host.
    pub fn export(&self, dirty_bytes: u64) -> Result<(), Failure> {
        let exported = self.change(|log| {
            log.dirty_bytes = dirty_bytes;
            log.is_drained = dirty_bytes == 0;
            log.is_exported = true;
        });
        self.state.lock().is_closed = true;
        exported
    }

    fn change(&self, change: impl FnOnce(&mut LogIdentity)) -> Result<(), Failure> {
        let mut state = self.state.lock();
        let mut log = state.log.clone();
        change(&mut log);
        if state.is_closed || log == state.log {
            return Ok(());
        }
        state.log = LogIdentity { noted: now(), ..log };
        self.write(&state)
    }

    fn write(&self, state: &State) -> Result<(), Failure> {
        for path in &self.paths {
            let mirror = self.paths.iter().find(|other| *other != path).cloned();
            let log = LogIdentity { mirror, ..state.log.clone() };
            let record = self.recorder.record(path.clone(), Storage::Log(log));
            let record = Record { opened: state.opened.clone(), ..record };
            self.recorder.records.keep(&record)?;
        }
        Ok(())
    }
}

/// Says what only a log had when its record was written.
fn held(log: &LogIdentity) -> String {
    match log.dirty_bytes {
        0 => "acknowledged writes may be in it alone".to_owned(),
        bytes => format!(
            "at least {} ({bytes} bytes) of acknowledged writes were in it alone (noted {})",
            about(bytes),
            log.noted
        ),
    }
}

/// An empty file is as good as none: it would be filled.
fn is_missing(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(found) => found.is_file() && found.len() == 0,
        Err(error) => is_absent(&error),
    }
}

/// The dirty bytes are noted at this interval. Each note writes and syncs a file of half a kilobyte.
const NOTE_EVERY: Duration = Duration::from_secs(60);
