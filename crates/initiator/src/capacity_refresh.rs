//! A unit that grows while the session lasts: it is asked for its size, and goes on being used.

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
    CommandError, UnitDescription, driver::Message, pending_commands::Job,
    session_state::RemoteSessionState, unit_description::Capacity,
};

/// Asks for the size whenever somebody wants to know, until the session ends. A unit that is
/// larger than it was is taken as it is; any other change is judged by way of a new session.
pub(crate) async fn follow(messages: mpsc::WeakSender<Message>, shared: Arc<RemoteSessionState>) {
    loop {
        shared.look_at_size.notified().await;
        let Some(messages) = messages.upgrade() else { return };
        let told = shared.size_changed.swap(false, Ordering::AcqRel);
        let found = match ask(&messages).await {
            Some(Ok(found)) => found,
            // A new session asks anyway.
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
            // A unit that cannot be asked so may tell a new session.
            None if !told => {}
            _ => {
                let _ = messages.send(Message::Judge).await;
            }
        }
        drop(messages);
        // Whoever asks often gets an answer that is so old.
        sleep(PAUSE).await;
    }
}

/// READ CAPACITY (16); `None` in its place: the unit says nothing that makes sense. `None`: the
/// session has ended.
async fn ask(messages: &mpsc::Sender<Message>) -> Option<Result<Option<Capacity>, CommandError>> {
    let cdb = BlockCommand::ReadCapacity16 { allocation_length: CAPACITY_BYTES }.encode();
    let (reply, answer) = oneshot::channel();
    let job = Job { cdb, transfer: DataPhase::In(CAPACITY_BYTES), reply, only_in: None };
    messages.send(Message::Job(job)).await.ok()?;
    Some(answer.await.ok()?.map(|answer| {
        let data: volume::Data = answer.data_in.into_iter().collect();
        Capacity::parse16(&data.into_bytes()).ok()
    }))
}

/// The whole answer (SBC-3, 5.16.2).
const CAPACITY_BYTES: u32 = 32;
/// Path checkers of hosts ask every few seconds, all of them.
const PAUSE: Duration = Duration::from_millis(500);
