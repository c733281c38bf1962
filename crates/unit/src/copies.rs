//! Copies that a nexus asked for: how far they came, for as long as it may ask.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use scsi::copy::{CONCURRENT, CopyState, CopyStatus};

/// The copies of all nexuses of one unit. What is known of them goes with the nexus.
#[derive(Default)]
pub(crate) struct Copies {
    nexuses: Mutex<HashMap<u64, Kept>>,
}

/// Oldest first, by list identifier; at most [`CONCURRENT`].
type Kept = VecDeque<(u32, Arc<Mutex<CopyStatus>>)>;

/// A copy as long as it goes on; dropped before its end it counts as aborted.
pub(crate) struct Running(Arc<Mutex<CopyStatus>>);

/// Why a copy cannot begin.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Refused {
    /// One of this identifier goes on.
    InProgress,
    /// As many go on as there may be.
    Full,
}

impl Copies {
    /// A copy begins, known as `list` if it has an identifier.
    pub(crate) fn begin(
        &self,
        nexus: u64,
        list: Option<u32>,
        service_action: u8,
    ) -> Result<Running, Refused> {
        let status = Arc::new(Mutex::new(CopyStatus {
            service_action,
            state: CopyState::Running,
            segments: 0,
            blocks: 0,
            token: None,
        }));
        let Some(list) = list else { return Ok(Running(status)) };
        let mut nexuses = self.nexuses.lock();
        let kept = nexuses.entry(nexus).or_default();
        let goes_on = |status: &Mutex<CopyStatus>| status.lock().state == CopyState::Running;
        if kept.iter().any(|(known, status)| *known == list && goes_on(status)) {
            return Err(Refused::InProgress);
        }
        kept.retain(|(known, _)| *known != list);
        if kept.len() == CONCURRENT {
            let ended = kept.iter().position(|(_, status)| !goes_on(status));
            kept.remove(ended.ok_or(Refused::Full)?);
        }
        kept.push_back((list, Arc::clone(&status)));
        Ok(Running(status))
    }

    /// What is known of a copy.
    pub(crate) fn status(&self, nexus: u64, list: u32) -> Option<CopyStatus> {
        let nexuses = self.nexuses.lock();
        let (_, status) = nexuses.get(&nexus)?.iter().find(|(known, _)| *known == list)?;
        let status = status.lock().clone();
        Some(status)
    }

    /// A nexus ended.
    pub(crate) fn close(&self, nexus: u64) {
        self.nexuses.lock().remove(&nexus);
    }
}

impl Running {
    /// Changes what is known.
    pub(crate) fn note(&self, change: impl FnOnce(&mut CopyStatus)) {
        change(&mut self.0.lock());
    }

    /// The copy ends.
    pub(crate) fn end(self, state: CopyState) {
        self.note(|status| status.state = state);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut status = self.0.lock();
        if status.state == CopyState::Running {
            status.state = CopyState::Aborted;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_kept_for_their_nexus_and_not_too_many() {
        let copies = Copies::default();
        let first = copies.begin(1, Some(7), 0).unwrap_or_else(|_| panic!("free"));
        assert_eq!(copies.begin(1, Some(7), 0).err(), Some(Refused::InProgress));
        assert_eq!(copies.status(2, 7), None, "of another nexus");
        first.end(CopyState::Done);
        assert_eq!(copies.status(1, 7).map(|s| s.state), Some(CopyState::Done));
        drop(copies.begin(1, Some(7), 0));
        assert_eq!(copies.status(1, 7).map(|s| s.state), Some(CopyState::Aborted));
        let all: Vec<_> = (0..16).map(|list| copies.begin(1, Some(100 + list), 0)).collect();
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(copies.status(1, 7), None, "the oldest made room");
        assert_eq!(copies.begin(1, Some(1), 0).err(), Some(Refused::Full));
        copies.close(1);
        assert_eq!(copies.status(1, 100), None);
    }
}
