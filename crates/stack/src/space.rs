//! Reports that a file system has no room for a volume's file: one event when that begins and one when it
//! ends, however many writes are refused in between.

use std::{
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use volume::{FileVolume, Volume};

/// The condition ends when no call was refused for this long and there is room. A successful write does not
/// end it, because writes to allocated blocks always succeed. A cache above repeats a refused round only after
/// 5 s plus the time of the round, and that pause must not look like an end.
const QUIET: Duration = Duration::from_secs(30);

/// Interval of the checks whether the condition has ended.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A file's storage begins or ceases to be full.
#[derive(Debug, Eq, PartialEq)]
enum FileSpaceChange {
    Begins { free: Option<u64> },
    Ends { refused: u64, free: Option<u64> },
}

/// The free space in the file system of a volume's file.
enum FileSystemSpace {
    Closed,
    /// Free space of the file system in bytes; `None` if the system does not report it.
    Free(Option<u64>),
}

/// Reports when a file has no room and when that ends, until the file is closed.
pub fn watch(file: &Arc<FileVolume>, path: PathBuf) {
    let (refusals, file) = (file.refusals(), Arc::downgrade(file));
    tokio::spawn(async move {
        let tell = |change| match change {
            FileSpaceChange::Begins { free } => tracing::warn!(
                path = %path.display(), free_bytes = free,
                remedy = "make room on its file system: writes then succeed again, without a restart",
                "no space left for the file of a volume: writes that need new blocks are refused \
                 (7/27/07)"
            ),
            FileSpaceChange::Ends { refused, free } => tracing::info!(
                path = %path.display(),
                refused,
                free_bytes = free,
                "there is space for the file of the volume again"
            ),
        };
        follow(refusals, || room(&file), tell).await;
    });
}

fn room(file: &Weak<FileVolume>) -> FileSystemSpace {
    match file.upgrade() {
        None => FileSystemSpace::Closed,
        Some(file) => FileSystemSpace::Free(file.extensions().usage().map(|usage| usage.available)),
    }
}

/// Calls `tell` when the lack of space begins and when it ends, until the file is closed.
async fn follow(
    mut refusals: watch::Receiver<u64>,
    room: impl Fn() -> FileSystemSpace,
    mut tell: impl FnMut(FileSpaceChange),
) {
    let mut before = 0;
    while refusals.changed().await.is_ok() {
        let FileSystemSpace::Free(free) = room() else { return };
        tell(FileSpaceChange::Begins { free });
        let mut last = Instant::now();
        loop {
            sleep(LOOK_EVERY).await;
            match refusals.has_changed() {
                Err(_) => return,
                Ok(true) => {
                    refusals.mark_unchanged();
                    last = Instant::now();
                }
                Ok(false) => {}
            }
            let FileSystemSpace::Free(free) = room() else { return };
            // Wait for a time without refused calls, too: the free space of the file system does not show an exhausted
            // quota.
            if last.elapsed() >= QUIET && free != Some(0) {
                let count = *refusals.borrow();
                tell(FileSpaceChange::Ends { refused: count - before, free });
                before = count;
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use parking_lot::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_full_file_system_is_reported_once_and_its_end_once() {
        let (refusals, told) = (watch::Sender::new(0), Arc::new(Mutex::new(Vec::new())));
        let (free, tell) = (Arc::new(AtomicU64::new(0)), Arc::clone(&told));
        let room = Arc::clone(&free);
        let following = tokio::spawn(follow(
            refusals.subscribe(),
            move || FileSystemSpace::Free(Some(room.load(Ordering::Relaxed))),
            move |change| tell.lock().push(change),
        ));
        // Ten writes are refused in ten seconds, and none later. The file system still has no room, so the condition
        // does not end.
        for _ in 0..10 {
            refusals.send_modify(|count| *count += 1);
            sleep(Duration::from_secs(1)).await;
        }
        sleep(QUIET * 4).await;
        assert_eq!(*told.lock(), [FileSpaceChange::Begins { free: Some(0) }]);
        free.store(4096, Ordering::Relaxed);
        sleep(LOOK_EVERY * 2).await;
        assert_eq!(told.lock()[1..], [FileSpaceChange::Ends { refused: 10, free: Some(4096) }]);
        refusals.send_modify(|count| *count += 1);
        sleep(LOOK_EVERY).await;
        assert_eq!(told.lock()[2..], [FileSpaceChange::Begins { free: Some(4096) }]);
        drop(refusals);
        following.await.unwrap();
        assert_eq!(told.lock().len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_quota_that_refuses_every_destage_round_is_reported_once() {
        let (refusals, told) = (watch::Sender::new(0), Arc::new(Mutex::new(Vec::new())));
        let tell = Arc::clone(&told);
        // The file system reports free space, but the quota is used up.
        let room = || FileSystemSpace::Free(Some(1 << 30));
        let changed = move |change| tell.lock().push(change);
        tokio::spawn(follow(refusals.subscribe(), room, changed));
        for _ in 0..20 {
            refusals.send_modify(|count| *count += 1);
            sleep(Duration::from_secs(8)).await;
        }
        assert_eq!(*told.lock(), [FileSpaceChange::Begins { free: Some(1 << 30) }]);
        sleep(QUIET).await;
        assert_eq!(told.lock()[1..], [FileSpaceChange::Ends { refused: 20, free: Some(1 << 30) }]);
    }
}
