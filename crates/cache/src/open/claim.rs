//! The claim on the lower volume: after it is granted, only this opening of the log may write there.
//!
//! The superblock records the opening before the request (`openings.rs` of crate `journal`), and records the
//! grant after it.

use std::sync::Arc;

use journal::superblock::Superblock;
use volume::{Claim, Confirmed, Dirty, Error, Holding, JoinedVolume, Stack};

use crate::{
    core::write_copies, refusal::CacheOpenError, settings::Settings, slots::pages::SlotPagePool,
};

/// Requests the claim of the newest opening in the superblock, which must be on the log disk. A lower volume
/// that does not answer gets the request when it is connected. A lower volume that does not support claims is
/// accepted, unless it `must` be the arbiter of a pair.
pub(crate) async fn claim(
    (settings, writes_back): (&Settings, bool),
    (lower, joined, must): (&Stack, Option<&JoinedVolume>, bool),
    log: &Stack,
    scratch: &Arc<SlotPagePool>,
    superblock: &mut Superblock,
    (is_dirty, confirmed): (Dirty, Confirmed),
) -> Result<(), CacheOpenError> {
    let mut predecessors = superblock.predecessors();
    let opening = predecessors.pop().expect("it was noted before");
    let asked = Claim {
        owner: settings.owner.clone(),
        instance: superblock.instance.0,
        generation: superblock.generation,
        opening,
        granted: superblock.granted,
        predecessors,
        writes_back,
        is_dirty,
        accept_loss: settings.accept_loss,
        takes_over: settings.takes_over,
        shares: settings.shares,
        confirmed,
    };
    let answer = lower.extensions().claim(asked).await;
    if let Some(joined) = joined {
        superblock.note_members(joined);
    }
    let refused = match answer {
        Ok(Holding::Held) => {
            superblock.note_grant();
            None
        }
        Ok(Holding::Refused(reason)) | Err(Error::Fenced(reason)) => {
            // A volume that has not answered may still grant the claim, and a volume that has granted it
            // knows this opening. In both cases the opening must stay in the list.
            let is_waiting = |joined: &JoinedVolume| {
                joined
                    .members()
                    .any(|(_, member)| member.lower.extensions().holding() == Holding::Waiting)
            };
            let is_granted = superblock.members.iter().any(|member| member.opening == opening);
            if !is_granted && !joined.is_some_and(is_waiting) {
                superblock.forget_opening();
            }
            Some(CacheOpenError::Claim(reason))
        }
        Ok(holding @ (Holding::Nothing | Holding::Unsupported | Holding::Reserved)) if must => {
            superblock.forget_opening();
            if holding == Holding::Reserved {
                let _ = lower.extensions().release().await;
            }
            Some(CacheOpenError::NoWitness)
        }
        Err(error) if !error.may_pass() => {
            return Err(CacheOpenError::Claim(error.to_string().into()));
        }
        _ if joined.is_some() => None,
        _ => return Ok(()),
    };
    superblock.sequence += 1;
    write_copies(log, scratch, superblock).await.map_err(CacheOpenError::Log)?;
    let Some(refused) = refused else { return Ok(()) };
    // Give the claim back only after the superblock was written: volumes that have granted it know this
    // opening.
    if let Some(joined) = joined {
        joined.give_back().await;
    }
    Err(refused)
}
