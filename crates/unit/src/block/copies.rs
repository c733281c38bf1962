//! Status of the copy operations that a nexus has started, kept while the nexus may ask for it.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use scsi::copy::{CONCURRENT, CopyState, CopyStatus};
use tokio::sync::watch;

/// The copy operations of all nexuses of one unit. The end of a nexus removes the status of its copies.
#[derive(Default)]
pub(crate) struct Copies {
    nexuses: Mutex<HashMap<u64, NexusCopyList>>,
}

/// The copy operations of one nexus with their list identifiers, oldest first; at most
/// [`CONCURRENT`].
type NexusCopyList = VecDeque<(u32, Arc<Copying>)>;

/// A copy, shared by the task that performs it and the commands that ask for its status.
struct Copying {
    status: Mutex<CopyStatus>,
    /// Set to true when a command or the end of the task asks for the end of the copy.
    abort: watch::Sender<bool>,
    /// Becomes true when the copy has ended.
    ended: watch::Sender<bool>,
}

/// Handle of a running copy. If it is dropped before the copy has ended, the copy is recorded as aborted.
pub(crate) struct RunningCopy(Arc<Copying>);

/// The reason why a copy command is refused before it begins.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CopyRefusal {
    /// A copy with the same list identifier is running already.
    InProgress,
    /// The nexus has [`CONCURRENT`] copies running, which is the maximum.
    Full,
}

impl Copies {
    /// Registers a copy that begins. With a list identifier, other commands can ask for its status.
    pub(crate) fn begin(
        &self,
        nexus: u64,
        list: Option<u32>,
        service_action: u8,
    ) -> Result<RunningCopy, CopyRefusal> {
        let status = CopyStatus {
            service_action,
            state: CopyState::Running,
            segments: 0,
            blocks: 0,
            token: None,
        };
        let copying = Arc::new(Copying {
            status: Mutex::new(status),
            abort: watch::Sender::new(false),
            ended: watch::Sender::new(false),
        });
        let Some(list) = list else { return Ok(RunningCopy(copying)) };
        let mut nexuses = self.nexuses.lock();
        let kept = nexuses.entry(nexus).or_default();
        let goes_on = |copying: &Copying| copying.status.lock().state == CopyState::Running;
        if kept.iter().any(|(known, copying)| *known == list && goes_on(copying)) {
            return Err(CopyRefusal::InProgress);
        }
        kept.retain(|(known, _)| *known != list);
        if kept.len() == CONCURRENT {
            let ended = kept.iter().position(|(_, copying)| !goes_on(copying));
            kept.remove(ended.ok_or(CopyRefusal::Full)?);
        }
        kept.push_back((list, Arc::clone(&copying)));
        Ok(RunningCopy(copying))
    }

    /// Returns the status of copy `list` of this nexus; `None` if the list identifier is unknown.
    pub(crate) fn status(&self, nexus: u64, list: u32) -> Option<CopyStatus> {
        let copying = self.find(nexus, list)?;
        let status = copying.status.lock().clone();
        Some(status)
    }

    /// Asks a copy to end if it is running. The returned future completes when the copy has ended. `None` if
    /// the identifier is unknown.
    pub(crate) fn abort(
        &self,
        nexus: u64,
        list: u32,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let copying = self.find(nexus, list)?;
        let mut ended = copying.ended.subscribe();
        copying.abort.send_replace(true);
        Some(async move {
            let _ = ended.wait_for(|ended| *ended).await;
        })
    }

    fn find(&self, nexus: u64, list: u32) -> Option<Arc<Copying>> {
        let nexuses = self.nexuses.lock();
        let (_, copying) = nexuses.get(&nexus)?.iter().find(|(known, _)| *known == list)?;
        Some(Arc::clone(copying))
    }

    /// Removes the statuses of all copies of a nexus that has ended.
    pub(crate) fn close(&self, nexus: u64) {
        self.nexuses.lock().remove(&nexus);
    }
}

impl RunningCopy {
    pub(crate) fn note(&self, change: impl FnOnce(&mut CopyStatus)) {
        change(&mut self.0.status.lock());
    }

    /// Waits until a command requests that the copy ends.
    pub(crate) async fn aborted(&self) {
        let mut abort = self.0.abort.subscribe();
        if abort.wait_for(|abort| *abort).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for RunningCopy {
    fn drop(&mut self) {
        self.note(|status| {
            if status.state == CopyState::Running {
                status.state = CopyState::Aborted;
            }
        });
        self.0.ended.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_results_are_kept_for_their_nexus_and_their_number_is_bounded() {
        let copies = Copies::default();
        let first = copies.begin(1, Some(7), 0).unwrap_or_else(|_| panic!("free"));
        assert_eq!(copies.begin(1, Some(7), 0).err(), Some(CopyRefusal::InProgress));
        assert_eq!(copies.status(2, 7), None, "of another nexus");
        first.note(|status| status.state = CopyState::Done);
        drop(first);
        assert_eq!(copies.status(1, 7).map(|s| s.state), Some(CopyState::Done));
        drop(copies.begin(1, Some(7), 0));
        assert_eq!(copies.status(1, 7).map(|s| s.state), Some(CopyState::Aborted));
        let all: Vec<_> = (0..16).map(|list| copies.begin(1, Some(100 + list), 0)).collect();
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(copies.status(1, 7), None, "the oldest made room");
        assert_eq!(copies.begin(1, Some(1), 0).err(), Some(CopyRefusal::Full));
        copies.close(1);
        assert_eq!(copies.status(1, 100), None);
    }
}
