//! Asks a unit for its capacity during a session, so that a unit that has grown can be used at its new size.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use iscsi::session::initiator::DataPhase;
use scsi::BlockCommand;
use tokio::{
    sync::{mpsc, oneshot},
    time::sleep,
};
use tracing::info;
use volume::Geometry;

use crate::{
    CommandError, UnitDescription,
    driver::Message,
    pending_commands::{CommandRepetition, Job},
    session_state::RemoteSessionState,
    unit_description::Capacity,
};

/// Asks the unit for its capacity whenever a caller requests this, until the session is closed. Accepts a unit that has
/// grown. Any other change makes the driver verify the unit in a new session.
pub(crate) async fn follow(messages: mpsc::WeakSender<Message>, shared: Arc<RemoteSessionState>) {
    loop {
        shared.look_at_size.notified().await;
        // An object drive has no blocks, and does not support READ CAPACITY.
        if shared.facts.lock().as_ref().is_some_and(|facts| facts.object_drive.is_some()) {
            if messages.upgrade().is_none_or(|messages| messages.is_closed()) {
                return;
            }
            continue;
        }
        let Some(messages) = messages.upgrade() else { return };
        let told = shared.size_changed.swap(false, Ordering::AcqRel);
        let found = match ask(&messages).await {
            Some(Ok(found)) => found,
            // The session was lost. The driver reads the capacity again when it opens the next session.
            Some(Err(CommandError::Away(_) | CommandError::Unreachable(_))) => continue,
            Some(Err(_)) => None,
            None => return,
        };
        let known = shared.facts.lock().as_deref().cloned();
        let Some(known) = known else { continue };
        let Geometry { blocks, block_size, .. } = known.geometry;
        match found {
            Some(found) if found.block_size == block_size && found.blocks > blocks => {
                info!(unit = known.identity, blocks = found.blocks, "the remote unit has grown");
                let geometry = Geometry { blocks: found.blocks, ..known.geometry };
                shared.set_facts(UnitDescription { geometry, ..known });
            }
            Some(found) if (found.block_size, found.blocks) == (block_size, blocks) => {}
            // The unit did not report its capacity. Verify it in a new session only if it has reported a change.
            None if !told => {}
            _ => {
                let _ = messages.send(Message::Judge).await;
            }
        }
        drop(messages);
        // Ignore requests during this pause: the capacity that callers see is at most this old.
        sleep(PAUSE).await;
    }
}

/// Sends READ CAPACITY (16). Returns `None` if the session was closed. The inner `None` means that the unit's answer is
/// invalid.
async fn ask(messages: &mpsc::Sender<Message>) -> Option<Result<Option<Capacity>, CommandError>> {
    let cdb = BlockCommand::ReadCapacity16 { allocation_length: CAPACITY_BYTES }.encode();
    let (reply, answer) = oneshot::channel();
    let job = Job::new(cdb, DataPhase::In(CAPACITY_BYTES), reply, CommandRepetition::Allowed);
    messages.send(Message::Job(job)).await.ok()?;
    Some(answer.await.ok()?.map(|answer| {
        let data: volume::Data = answer.data_in.into_iter().collect();
        Capacity::parse16(&data.into_bytes()).ok()
    }))
}

/// The length of the READ CAPACITY (16) parameter data in bytes (SBC-3, 5.16.2).
const CAPACITY_BYTES: u32 = 32;
/// The shortest time between two requests: path checkers of several hosts each ask every few seconds.
const PAUSE: Duration = Duration::from_millis(500);
