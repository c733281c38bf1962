//! The outcome of a move: the source node decides it, and the destination asks for it.

use std::sync::Arc;

use ::names::VolumeName;

use super::Node;
use crate::moves::{
    self, Blocked, Come, CopyStage, MoveFrame, MoveId, MoveOutcome, MoveRequest, MoveResponse,
    VolumeMoveRecord,
};

impl Node {
    pub(super) fn fate(&self, volume: &VolumeName, id: &MoveId) -> MoveOutcome {
        // Read the running moves before the records: a move that ends in between has its outcome in the record by then.
        let leaving = self.moving.lock().leaving.get(volume).cloned();
        let VolumeMoveRecord { gone, tried, .. } = self.moves.of(volume);
        if gone.is_some_and(|gone| gone.id == *id) {
            return MoveOutcome::Yours;
        }
        if leaving.is_some_and(|leaving| leaving.under_way() == Some(id)) {
            return MoveOutcome::Undecided;
        }
        // Answer "undone" only for a move in the record. After a restore from a backup, this node does not know later
        // moves, and the volume may have moved.
        if tried.contains(id) { MoveOutcome::Undone } else { MoveOutcome::Unknown }
    }

    /// Returns true if `id` is the last move of the volume to this node.
    pub(super) fn is_current(&self, name: &VolumeName, id: &MoveId) -> bool {
        self.moves.of(name).come.is_some_and(|come| come.id == *id)
    }

    /// Logs the reason why a complete copy can be neither served nor removed.
    pub(super) fn report_outcome(&self, name: &VolumeName, come: &Come, fate: MoveOutcome) {
        let Come { from_node, file, .. } = come;
        let mut waiting = self.moving.lock();
        if fate != MoveOutcome::Unknown {
            waiting.unknown.remove(name);
            tracing::warn!(
                volume = %name, from = %from_node,
                remedy = "keep both nodes running; if it lasts, start the source node: `forebay volume list` \
                 shows the state",
                "asking the source node whether it or this node has the volume"
            );
            return;
        }
        let why = format!(
            "{from_node} has no record of this move: it was restored from a backup, or its `state` folder is \
             lost. The copy in {} is complete, and may be newer than the volume that {from_node} serves: \
             compare both, and keep the right one",
            file.display()
        );
        tracing::error!(volume = %name, "{why}");
        waiting.unknown.insert(name.clone(), why);
    }

    /// Asks the source node for the outcome of a move. The outcome is "undecided" if the node does not answer.
    pub(super) async fn fate_of(&self, name: &VolumeName, come: &Come) -> MoveOutcome {
        if self.moves.of(name).come.is_some_and(|now| now.stage == CopyStage::Here) {
            return MoveOutcome::Yours;
        }
        let Some(naming) = &self.naming else { return MoveOutcome::Undecided };
        let mut nodes = naming.find(&come.from.to_string()).await;
        // Skip nodes restored from a copy (the same GLN twice): their record of the move may be out of date.
        nodes.retain(|node| !node.twins);
        for address in nodes.iter().flat_map(|node| &node.addresses) {
            let asking = async {
                let (mut says, mut hears) = moves::call(naming.secret(), address).await?;
                let (id, volume) = (come.id.clone(), name.clone());
                says.say(&MoveFrame::Request(MoveRequest::Ask { to: come.from, id, volume }))
                    .await?;
                hears.hear().await
            };
            // Accept the first answer: only the node with this GLN answers the question.
            if let Ok(MoveFrame::Answer(MoveResponse::Fate(fate))) = asking.await {
                return fate;
            }
        }
        MoveOutcome::Undecided
    }

    /// Returns the volumes that were received and cannot be served, with the reasons.
    pub(super) fn blocked(&self) -> Vec<Blocked> {
        let base = Arc::clone(&self.inner.lock().base);
        self.moves.apply(&mut (*base).clone())
    }
}
