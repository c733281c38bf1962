//! The right to change the blocks of a unit: all initiators have it, or the exclusive writer that has claimed
//! the unit, or the gateways that share it.

use std::{io, sync::Arc};

use scsi::Command;
use volume::Stack;

use crate::{
    block::{flush_gate::FlushGate, limits::Settings, ownership::Ownership, sharing::UnitSharing},
    sense::UnitCommandFailure,
    store::UnitStore,
};

/// The claims on a unit, and the flushes of the claim's owner that are running.
#[derive(Default)]
pub(super) struct BlockWriters {
    /// The claim of the exclusive writer; `None` for a unit without a store, which cannot be claimed.
    pub(super) ownership: Option<Ownership>,
    /// The gateways that share the unit; `None` if the settings do not allow sharing.
    pub(super) sharing: Option<UnitSharing>,
    pub(super) flush_gate: FlushGate,
}

impl BlockWriters {
    /// Loads the claims from `store`.
    ///
    /// # Errors
    /// A record is damaged, or the settings contradict the claims in it.
    pub(super) fn load(
        settings: &Settings,
        volume: &Stack,
        store: &Arc<dyn UnitStore>,
    ) -> io::Result<Self> {
        let ownership = Ownership::load(Arc::clone(store))?;
        let geometry = volume.geometry();
        let sharing = match settings.share {
            Some(_) if geometry.epoch_blocks > 0 => {
                let message = "the unit cannot be shared: its own cache makes writes stable only with the next flush";
                return Err(io::Error::other(message));
            }
            Some(share) => {
                Some(UnitSharing::load(share, &geometry, Arc::clone(store), ownership.last())?)
            }
            None if UnitSharing::is_left(&**store)? => {
                let message =
                    "several gateways still share the unit: stop them first, or share it again";
                return Err(io::Error::other(message));
            }
            None => None,
        };
        Ok(Self { ownership: Some(ownership), sharing, flush_gate: FlushGate::default() })
    }

    /// Returns the failure to report if the unit's writers exclude this command of this session, and `None` if not.
    /// `reads_beside`: sessions other than the claim owner's may read. `has_epochs`: such a read gets the last flushed
    /// epoch.
    pub(super) fn bar(
        &self,
        nexus: u64,
        command: &Command,
        reads_beside: bool,
        has_epochs: impl FnOnce() -> bool,
    ) -> Option<UnitCommandFailure> {
        match (&self.sharing, &self.ownership) {
            (Some(sharing), _) => sharing.bar(nexus, command, reads_beside),
            (None, Some(ownership)) => ownership.bar(nexus, command, reads_beside, has_epochs),
            (None, None) => None,
        }
    }

    /// Returns a number that changes whenever the outcome of [`Self::bar`] may change for this session. Returns
    /// `None` if the outcome depends on more: on coherence tokens of a shared unit, or on the open epoch of another
    /// session.
    pub(super) fn generation(&self, nexus: u64) -> Option<u64> {
        match (&self.sharing, &self.ownership) {
            (Some(_), _) => None,
            (None, Some(ownership)) => ownership.generation(nexus),
            (None, None) => Some(0),
        }
    }

    /// Records that a session has ended. The claim that the session has presented stays in force.
    pub(super) fn close(&self, nexus: u64) {
        if let Some(ownership) = &self.ownership {
            ownership.close(nexus);
        }
        if let Some(sharing) = &self.sharing {
            sharing.close(nexus);
        }
    }

    /// Notes that a command of the claim's owner begins to change blocks that a flush has to follow.
    pub(super) fn note_change(&self, nexus: u64, command: &Command) {
        if let Some(ownership) = &self.ownership
            && crate::block::ownership::needs_a_flush(command)
        {
            ownership.note_change(nexus);
        }
    }
}
