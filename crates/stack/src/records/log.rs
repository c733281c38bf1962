//! Records of cache logs: they prevent a lost log from being replaced by an empty one or by another log.
//!
//! A log is refused in these cases; `accept_loss` lifts the first three:
//!
//! - It is missing or blank, and its record says that it may hold acknowledged data.
//! - Another log is at its path.
//! - The settings no longer name a path at which this unit had a log that may hold acknowledged data.
//! - The path is recorded as a volume.
//!
//! While the log is open, its dirty bytes are recorded at intervals. The record also says whether the log was drained
//! and stopped, and whether it was exported.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use config::{CacheLayerSettings, UNMOUNT_REMEDY, quantity::about};
use control::Failure;
use parking_lot::Mutex;

use super::{
    folder::{Recorder, Renewal, absolute, is_absent},
    storage_record::{LogIdentity, Storage, StorageRecord, now},
};
use crate::not_opened::NotOpened;

/// The records of a log that is about to be opened: one for each file or device.
pub struct LogRecords {
    recorder: Recorder,
    /// The path of the log, followed by that of its second mirror leg if it has one.
    paths: Vec<PathBuf>,
    /// Instance ids in the records of the paths in `paths`.
    known: Vec<String>,
    /// Records of the paths in `paths` that say that the log may hold acknowledged data.
    expected: Vec<(StorageRecord, LogIdentity)>,
    /// Records of the paths in `paths` that say that the log was drained and stopped. Such a log may be created
    /// again, but another log in its place could send older data of the same volume to the node.
    drained: Vec<(StorageRecord, LogIdentity)>,
    /// The records of other logs of the same unit or common cache in the same settings file, at paths that no cache in
    /// the settings names any more. Each of these logs may hold acknowledged data that the far volume lacks.
    elsewhere: Vec<(StorageRecord, LogIdentity)>,
    /// Mirror legs that the log had before and no longer has.
    former: Vec<PathBuf>,
    accept_loss: bool,
}

pub struct KeptLog {
    recorder: Recorder,
    paths: Vec<PathBuf>,
    state: Mutex<RecordedLogState>,
}

struct RecordedLogState {
    log: LogIdentity,
    opened: String,
    /// True when the cache has stopped: later notes of dirty bytes must not replace the final one.
    is_closed: bool,
}

impl Recorder {
    /// Reads the records of a cache's log. Fails if no file of the log exists although the records say that it,
    /// or a log at a former path, may hold acknowledged data. Changes nothing.
    pub fn look_at_log(&self, cache: &CacheLayerSettings) -> Result<LogRecords, NotOpened> {
        let mut paths = Vec::new();
        let (mut expected, mut drained) = (Vec::new(), Vec::new());
        let (mut former, mut known) = (Vec::new(), Vec::new());
        for path in [Some(&cache.log), cache.log_mirror.as_ref()].into_iter().flatten() {
            paths.push(absolute(path)?);
            let Some(record) = self.records.load(path)? else { continue };
            let log = match &record.storage {
                Storage::Log(log) => log.clone(),
                Storage::Volume(_) => return Err(self.another_kind(&record, "the volume")),
            };
            former.extend(log.mirror.clone());
            known.push(log.instance.clone());
            // Ignore the record of an exported log that another log replaces now: the exported log was taken to another
            // host, and `takes_over` adopts the one that is here.
            let is_replaced = log.is_exported && cache.takes_over;
            if cache.accept_loss || is_replaced {
                continue;
            }
            if record.may_hold_data() {
                expected.push((record, log));
            } else if !log.is_exported && !cache.takes_over {
                drained.push((record, log));
            }
        }
        former.retain(|path| !paths.contains(path));
        let elsewhere = self.logs_elsewhere(&paths);
        let (recorder, accept_loss) = (self.clone(), cache.accept_loss);
        let records = LogRecords {
            recorder,
            paths,
            known,
            expected,
            drained,
            elsewhere,
            former,
            accept_loss,
        };
        if records.paths.iter().all(|path| is_missing(path)) {
            records.refuse("is missing")?;
            records.refuse_elsewhere("is missing")?;
        }
        Ok(records)
    }

    /// Returns the records of logs at other paths that the settings do not name any more: see `LogRecords::elsewhere`.
    fn logs_elsewhere(&self, paths: &[PathBuf]) -> Vec<(StorageRecord, LogIdentity)> {
        let is_named = |path: &PathBuf| paths.contains(path) || self.records.logs.contains(path);
        // Compare the settings file, too: two gateways of one target may have their settings, and so their records, in
        // one folder.
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
            // The record of this path names this very log, so it does not replace a log at a former path.
            Some(found) if self.known.iter().any(|instance| instance == found) => Ok(()),
            Some(found) if !self.drained.is_empty() && !self.was_elsewhere(found) => {
                self.refuse_in_place_of_drained(found)
            }
            // The only log at a former path is this one: the operator has moved it here.
            Some(found) if self.elsewhere.iter().all(|(_, log)| log.instance == found) => Ok(()),
            Some(found) => self.refuse_elsewhere(&format!("is another log, instance {found}")),
        }
    }

    fn was_elsewhere(&self, instance: &str) -> bool {
        self.elsewhere.iter().any(|(_, log)| log.instance == instance)
    }

    /// Refuses the log with instance `found` if it has replaced a log that was drained and stopped.
    fn refuse_in_place_of_drained(&self, found: &str) -> Result<(), NotOpened> {
        let Some((record, log)) = self.drained.first() else { return Ok(()) };
        let failure = Failure::new(format!(
            "the log {} of {} was replaced by another log, instance {found}: its record says instance {}, last \
             opened {}, drained and stopped; writes that the other log holds may be older than those in the volume",
            record.path.display(),
            record.used_by,
            log.instance,
            record.opened
        ));
        let remedy = format!(
            "put the log back and {}; for a new and empty log, remove the file (on a block device, write zeros over \
             the first MiB) first; to send what the other log holds to the volume, {UNMOUNT_REMEDY}; then `{}`",
            self.recorder.again(),
            self.recorder.records.forget_command(&record.path, false)
        );
        Err(NotOpened::Refused(failure.remedy(remedy)))
    }

    /// Fails if a log at a former path may hold acknowledged data. `what` describes the file at the current
    /// path.
    fn refuse_elsewhere(&self, what: &str) -> Result<(), NotOpened> {
        let Some((record, log)) = self.elsewhere.first().filter(|_| !self.accept_loss) else {
            return Ok(());
        };
        let (former, now) = (&record.path, &self.paths[0]);
        let failure = Failure::new(format!(
            "the log {} of {} {what}, and the settings no longer name the log that was at {} before: its \
             record says instance {}, last opened {}, {}",
            now.display(),
            record.used_by,
            former.display(),
            log.instance,
            record.opened,
            held(log)
        ));
        let remedy = format!(
            "name {} as the log again, or move that file to {}, and {}; to discard its content, {UNMOUNT_REMEDY}; \
             then `{}`",
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
                "it was exported to be adopted on another host: remove the unit from these settings, or put \
                 the log back; to start with a new one, and lose the content of the exported one, {UNMOUNT_REMEDY}; \
                 then `{forget}`"
            ),
            false => format!(
                "mount its disk or put the log back, and {}; to discard its content and start with a new one, \
                 {UNMOUNT_REMEDY}; then `{forget}`, and if the node has a claim of that log, there \
                 `forebay claim drop TARGET/LUN --lose-dirty-data --hosts-unmounted`",
                self.recorder.again()
            ),
        };
        Err(NotOpened::Refused(failure.remedy(remedy)))
    }

    /// Records the log, which must be open. The record is stable when this returns; call this before the log is served.
    /// If the cache `writes_back`, the record says from now on that the log may hold acknowledged data that exists
    /// nowhere else.
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
        let (opened, is_closed) = (now(), false);
        let state =
            Mutex::new(RecordedLogState { log: log.clone(), opened: opened.clone(), is_closed });
        let kept = KeptLog { recorder, paths, state };
        kept.write(&log, &opened)?;
        for path in former {
            kept.recorder.records.forget(&path)?;
        }
        Ok(Arc::new(kept))
    }
}

impl KeptLog {
    /// Records at intervals the dirty bytes that `dirty_bytes` returns. Ends when it returns `None` because the
    /// cache no longer exists.
    pub fn note_dirty(
        self: &Arc<Self>,
        dirty_bytes: impl Fn() -> Option<u64> + Send + Sync + 'static,
    ) {
        let kept = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut renewal = Renewal::default();
            loop {
                tokio::time::sleep(NOTE_EVERY).await;
                let (Some(kept), Some(dirty)) = (kept.upgrade(), dirty_bytes()) else { return };
                let note = move || {
                    kept.change(|log| {
                        log.dirty_bytes = dirty;
                        log.is_drained &= dirty == 0;
                    })
                };
                if let Ok(renewed) = tokio::task::spawn_blocking(note).await {
                    renewal.tell(&renewed);
                }
            }
        });
    }

    /// Records that the cache has stopped, and that only the log holds `dirty_bytes`.
    pub fn close(&self, dirty_bytes: u64) -> Result<(), Failure> {
        let closed = self.change(|log| {
            log.dirty_bytes = dirty_bytes;
            log.is_drained = dirty_bytes == 0;
        });
        self.state.lock().is_closed = closed.is_ok();
        closed
    }

    /// Records that the log was exported and may be adopted on another host.
    pub fn export(&self, dirty_bytes: u64) -> Result<(), Failure> {
        let exported = self.change(|log| {
            log.dirty_bytes = dirty_bytes;
            log.is_drained = dirty_bytes == 0;
            log.is_exported = true;
        });
        self.state.lock().is_closed = exported.is_ok();
        exported
    }

    fn change(&self, change: impl FnOnce(&mut LogIdentity)) -> Result<(), Failure> {
        let mut state = self.state.lock();
        let mut log = state.log.clone();
        change(&mut log);
        if state.is_closed || log == state.log {
            return Ok(());
        }
        let log = LogIdentity { noted: now(), ..log };
        self.write(&log, &state.opened)?;
        // Change the state only after the record was written: after a failure, the next call must write it again.
        state.log = log;
        Ok(())
    }

    fn write(&self, log: &LogIdentity, opened: &str) -> Result<(), Failure> {
        for path in &self.paths {
            let mirror = self.paths.iter().find(|other| *other != path).cloned();
            let log = LogIdentity { mirror, ..log.clone() };
            let record = self.recorder.record(path.clone(), Storage::Log(log));
            let record = StorageRecord { opened: opened.to_owned(), ..record };
            self.recorder.records.keep(&record)?;
        }
        Ok(())
    }
}

/// Describes for a message how much acknowledged data only the log held when its record was written.
fn held(log: &LogIdentity) -> String {
    match log.dirty_bytes {
        0 => "it may have acknowledged writes that exist nowhere else".to_owned(),
        bytes => format!(
            "{} ({bytes} bytes) of acknowledged writes existed only in it when that was noted, {}; the amount is noted \
             once a minute and may have changed since",
            about(bytes),
            log.noted
        ),
    }
}

/// Returns true if the file does not exist or is empty: opening the log would format it.
fn is_missing(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(found) => found.is_file() && found.len() == 0,
        Err(error) => is_absent(&error),
    }
}

/// Interval of the notes of dirty bytes. Each note writes and syncs a file of half a kilobyte.
const NOTE_EVERY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::{super::Records, *};
    use config::Settings;

    #[test]
    fn a_note_that_could_not_be_written_is_written_by_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { file: folder.path().join("node.toml"), ..Settings::default() };
        let recorder = Records::of(&settings).recorder("iqn.a:b/0");
        let path = folder.path().join("l.log");
        let cache = CacheLayerSettings { log: path.clone(), ..CacheLayerSettings::default() };
        let kept = recorder.look_at_log(&cache).unwrap().keep("1".into(), 0, true).unwrap();
        let (records, away) = (recorder.records.folder(), folder.path().join("away"));
        fs::rename(records, &away).unwrap();
        fs::write(records, "no folder").unwrap();
        kept.close(4096).unwrap_err();
        fs::remove_file(records).unwrap();
        fs::rename(&away, records).unwrap();
        let dirty = || match recorder.records.load(&path).unwrap().unwrap().storage {
            Storage::Log(log) => log.dirty_bytes,
            Storage::Volume(_) => panic!("another kind"),
        };
        assert_eq!(dirty(), 0);
        kept.export(4096).unwrap();
        assert_eq!(dirty(), 4096);
    }
}
