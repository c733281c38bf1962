//! What has become of a move: what the node that a volume leaves answers, and what the one that it comes to does then.

use std::{sync::Arc, time::Duration};

use ::names::VolumeName;

use super::Node;
use crate::{
    failure::Failure,
    moves::{self, Answer, Come, CopyStage, Fate, Frame, Kept, MoveId, Request},
    plan::Plan,
};

/// How often the node that a volume comes from is asked what it has decided.
const ASK_EVERY: Duration = Duration::from_secs(2);

impl Node {
    /// What has become of a move from here.
    pub(super) fn fate(&self, volume: &VolumeName, id: &MoveId) -> Fate {
        // In this order: what has ended since is in the record.
        let leaving = self.moving.lock().leaving.get(volume).cloned();
        if leaving.is_some_and(|leaving| leaving.under_way() == Some(id)) {
            return Fate::Undecided;
        }
        match self.moves.of(volume).gone {
            Some(gone) if gone.id == *id => Fate::Yours,
            _ => Fate::Undone,
        }
    }

    /// It is ours: served from now on, and told of. False if it cannot be yet.
    pub(super) async fn take(&self, name: &VolumeName, come: &Come) -> bool {
        let _one_at_a_time = self.changing.lock().await;
        if !self.is_current(name, &come.id) {
            return false;
        }
        let here = Come { stage: CopyStage::Here, ..come.clone() };
        let taken = match self.moves.keep(name, Kept { come: Some(here), gone: None }) {
            Ok(()) => self.put_moves_in_force().await,
            Err(failure) => Err(failure),
        };
        match &taken {
            Ok(()) => {
                tracing::info!(volume = %name, from = %come.from_node, "a volume has come, and is served")
            }
            Err(failure) => {
                tracing::error!(volume = %name, %failure, "a volume has come, and cannot be served yet")
            }
        }
        taken.is_ok()
    }

    /// Whether it is this move by which the volume comes, or came.
    fn is_current(&self, name: &VolumeName, id: &MoveId) -> bool {
        self.moves.of(name).come.is_some_and(|come| come.id == *id)
    }

    /// Asks the node that the volume comes from until it has decided.
    pub(super) fn ask_for_fate(self: &Arc<Self>, name: VolumeName, come: Come) {
        let node = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut is_told = false;
            loop {
                let Some(node) = node.upgrade() else { return };
                // Another move of it may have begun meanwhile.
                if !node.is_current(&name, &come.id) {
                    return;
                }
                let fate = node.fate_of(&name, &come).await;
                match (fate, node.berth(&name)) {
                    (Fate::Yours, Some(_berth)) if node.take(&name, &come).await => return,
                    (Fate::Undone, Some(_berth)) => {
                        tracing::info!(volume = %name, "the node that it comes from has kept it");
                        node.discard(&name, &come.id);
                        let _one_at_a_time = node.changing.lock().await;
                        if let Err(failure) = node.put_moves_in_force().await {
                            tracing::error!(volume = %name, %failure, "a target that nobody has");
                        }
                        return;
                    }
                    _ => {}
                }
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(volume = %name, from = %come.from_node, "whose the volume is, that node decides: it is asked");
                }
                drop(node);
                tokio::time::sleep(ASK_EVERY).await;
            }
        });
    }

    /// What the node that it comes from says; that it has not decided, if it says nothing.
    pub(super) async fn fate_of(&self, name: &VolumeName, come: &Come) -> Fate {
        if self.moves.of(name).come.is_some_and(|now| now.stage == CopyStage::Here) {
            return Fate::Yours;
        }
        let Some(naming) = &self.naming else { return Fate::Undecided };
        let mut nodes = naming.find(&come.from.to_string()).await;
        // A copy of it knows what it knew once.
        nodes.retain(|node| !node.twins);
        for address in nodes.iter().flat_map(|node| &node.addresses) {
            let asking = async {
                let (mut says, mut hears) = moves::call(naming.secret(), address).await?;
                let (id, volume) = (come.id.clone(), name.clone());
                says.say(&Frame::Request(Request::Ask { to: come.from, id, volume })).await?;
                hears.hear().await
            };
            // Only who has its number answers.
            if let Ok(Frame::Answer(Answer::Fate(fate))) = asking.await {
                return fate;
            }
        }
        Fate::Undecided
    }

    /// Serves what has come, and no more what has gone. One at a time.
    pub(super) async fn put_moves_in_force(&self) -> Result<(), Failure> {
        let (old, base) = {
            let inner = self.inner.lock();
            (Arc::clone(&inner.settings), Arc::clone(&inner.base))
        };
        let mut new = (*base).clone();
        self.moves.apply(&mut new)?;
        let plan = Plan::between(&old, &new);
        if let [why, ..] = &plan.changes.refused[..] {
            return Err(Failure::new(why));
        }
        self.change_to(&plan, &new, &base).await
    }
}
