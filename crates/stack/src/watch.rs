//! Detects files that are removed, renamed, replaced or truncated while they are in use.
//!
//! An open file can be read and written after it has lost its name, but a restart does not find it: writes that
//! are acknowledged there are lost when the process ends. A truncated file has lost data, and a write behind its
//! new end would fill the gap with zeros. Each file is therefore checked twice a second. The name of a block
//! device may disappear without harm, so only the size of a device is checked.

use std::{
    path::Path,
    sync::{Arc, Weak},
    time::Duration,
};

use cache::{Cache, NvramWatch};
use config::quoted;
use volume::{FileVolume, Holding, OpenFileChange};

use crate::atomic_file;

/// Interval of the checks: a file that is lost must be noticed within one second.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Default)]
struct LastFileChange(Option<OpenFileChange>);

/// The difference between two checks of a file in a row.
enum FileWatchTransition {
    Lost(OpenFileChange),
    Back,
}

impl LastFileChange {
    fn turn(&mut self, change: Option<OpenFileChange>) -> Option<FileWatchTransition> {
        match (self.0, change) {
            (None, Some(change)) => {
                self.0 = Some(change);
                Some(FileWatchTransition::Lost(change))
            }
            (Some(before), None) if before.may_pass() => {
                self.0 = None;
                Some(FileWatchTransition::Back)
            }
            (Some(before), Some(change)) if before.may_pass() => {
                self.0 = Some(change);
                None
            }
            // Report nothing else: a file that was removed or truncated does not become whole again.
            _ => None,
        }
    }
}

/// Refuses writes to a file while another file, or none, has its name, and for ever after the file was truncated.
/// Forebay never makes a volume smaller while it is served. When Forebay itself makes a log smaller, this does not
/// count as a truncation.
pub fn fence(file: &Arc<FileVolume>) {
    let file = Arc::downgrade(file);
    tokio::spawn(async move {
        let mut seen = LastFileChange::default();
        while let Some((file, change)) = next(&file).await {
            let path = file.path().display();
            match seen.turn(change) {
                Some(FileWatchTransition::Lost(change)) => {
                    file.fence(&format!("{path}: {change}"));
                    report_fence(&file, change);
                }
                Some(FileWatchTransition::Back) => {
                    file.unfence();
                    tracing::warn!(%path, "the file has its name back and accepts writes again");
                }
                None => {}
            }
        }
    });
}

fn report_fence(file: &FileVolume, change: OpenFileChange) {
    let path = file.path().display();
    match change {
        OpenFileChange::CutShort { .. } => tracing::error!(
            %path,
            what = %change,
            remedy = "stop its hosts and this process, and put a complete copy in its place; the next start \
                      refuses the truncated file, and names the command that accepts the loss",
            "the file accepts no more writes: the bytes behind its new end are lost"
        ),
        OpenFileChange::Removed | OpenFileChange::Renamed | OpenFileChange::Replaced => {
            tracing::error!(
                %path,
                what = %change,
                remedy = copy_remedy(file),
                "the file accepts no more writes: its content is lost when this process ends"
            )
        }
    }
}

/// Stops a cache from acknowledging writes that are only in a log that has lost its name.
pub fn log(cache: &Arc<Cache>, file: &Arc<FileVolume>) {
    let (cache, file) = (Arc::downgrade(cache), Arc::downgrade(file));
    tokio::spawn(async move {
        let mut seen = LastFileChange::default();
        while let Some((file, change)) = next(&file).await {
            let Some(cache) = cache.upgrade() else { return };
            // Skip the check of an exported log: it takes no more writes, and is about to be moved away.
            if matches!(cache.holding(), Holding::Refused(_)) {
                continue;
            }
            let path = file.path().display();
            match seen.turn(change) {
                Some(FileWatchTransition::Lost(change)) => {
                    cache.lose_log(&format!("the log {path}: {change}"));
                    tracing::error!(
                        log = %path, what = %change,
                        dirty_bytes = cache.statistics().destage.dirty_bytes,
                        remedy = "let this process run until an event says that the far volume has everything, and \
                         restart it then; see docs/guide/recover.md#log-lost-while-in-use",
                        "the log is lost: no more writes are acknowledged, and destage sends the data \
                         of the log to the far volume"
                    );
                }
                Some(FileWatchTransition::Back) if cache.regain_log() => {
                    tracing::warn!(log = %path, "the log has its name back, and is used again");
                }
                Some(FileWatchTransition::Back) => {
                    tracing::warn!(
                        log = %path,
                        remedy = "let this process run until `forebay status` shows no dirty data, and \
                         restart it then",
                        "the log has its name back, but a part of it could not be read: it is used \
                         again after a restart"
                    );
                }
                None => {}
            }
        }
    });
}

/// Switches off the read tier of a cache when the file of the tier is renamed, replaced, removed or truncated.
pub fn tier(cache: &Arc<Cache>, file: &Arc<FileVolume>) {
    let (cache, file) = (Arc::downgrade(cache), Arc::downgrade(file));
    tokio::spawn(async move {
        while let Some((_, change)) = next(&file).await {
            let Some(cache) = cache.upgrade() else { return };
            if let Some(change) = change {
                return cache.go_without_tier(change.to_string().into());
            }
        }
    });
}

/// Ends the use of an NVRAM when its file was removed, replaced, truncated or overwritten. `user` is the cache or
/// buffer that writes to the NVRAM. `is_closed` returns true when the user was stopped, and has cleared the NVRAM
/// itself.
pub fn nvram<T: Send + Sync + 'static>(
    user: &Arc<T>,
    mut watch: NvramWatch,
    path: &Path,
    is_closed: impl Fn(&T) -> bool + Send + 'static,
) {
    let (user, path) = (Arc::downgrade(user), path.to_owned());
    tokio::spawn(async move {
        while user.strong_count() > 0 {
            tokio::time::sleep(LOOK_EVERY).await;
            let look = tokio::task::spawn_blocking(move || (watch.look(), watch)).await;
            let Ok((why, again)) = look else { return };
            watch = again;
            if let Some(why) = why {
                if user.upgrade().is_some_and(|user| !is_closed(&user)) {
                    report_lost_nvram(&path, &why);
                }
                return;
            }
        }
    });
}

fn report_lost_nvram(path: &Path, why: &str) {
    tracing::error!(
        nvram = %path.display(), what = why,
        remedy = "make room for the NVRAM file, or name another with `nvram`, and \
         restart this process",
        "the NVRAM is lost: from now on writes wait for the log disk"
    );
}

/// Waits for [`LOOK_EVERY`], then returns the file and the change that was found. Returns `None` when the file is
/// no longer in use.
async fn next(file: &Weak<FileVolume>) -> Option<(Arc<FileVolume>, Option<OpenFileChange>)> {
    tokio::time::sleep(LOOK_EVERY).await;
    let file = file.upgrade()?;
    // Ask on a blocking thread, because a file system may take long to answer.
    tokio::task::spawn_blocking(move || {
        let change = file.change();
        (file, change)
    })
    .await
    .ok()
}

/// Returns the remedy that saves the content of a file that has lost its name. Only the owner can read the
/// copy, like the file itself.
fn copy_remedy(file: &FileVolume) -> String {
    let (process, descriptor) = (std::process::id(), file.descriptor());
    let copy = atomic_file::beside(file.path(), "saved");
    format!(
        "stop its hosts, copy it (`(umask 077; cp --sparse=always /proc/{process}/fd/{descriptor} {})`), stop this \
         process, and put the copy in its place; or give it its own name back",
        quoted(&copy)
    )
}
