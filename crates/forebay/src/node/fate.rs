//! What has become of a move: what the node that a volume leaves answers, and what the one that it comes to does then.

use std::{sync::Arc, time::Duration};

use ::names::VolumeName;

use super::{Node, ServedUnit, reload::put_away};
use crate::{
    failure::Failure,
    moves::{self, Answer, Blocked, Come, CopyStage, Fate, Frame, Kept, MoveId, Request},
    plan::Plan,
};

/// How often the node that a volume comes from is asked what it has decided.
const ASK_EVERY: Duration = Duration::from_secs(2);

impl Node {
    /// What has become of a move from here.
    pub(super) fn fate(&self, volume: &VolumeName, id: &MoveId) -> Fate {
        // In this order: what has ended since is in the record.
        let leaving = self.moving.lock().leaving.get(volume).cloned();
        let Kept { gone, tried, .. } = self.moves.of(volume);
        if gone.is_some_and(|gone| gone.id == *id) {
            return Fate::Yours;
        }
        if leaving.is_some_and(|leaving| leaving.under_way() == Some(id)) {
            return Fate::Undecided;
        }
        // Whoever was put back from a backup has no say in what came after it.
        if tried.contains(id) { Fate::Undone } else { Fate::Unknown }
    }

    /// It is ours: served from now on, and told of. False if it cannot be yet.
    pub(super) async fn take(&self, name: &VolumeName, come: &Come) -> bool {
        let _one_at_a_time = self.changing.lock().await;
        if !self.is_current(name, &come.id) {
            return false;
        }
        let here = Come { stage: CopyStage::Here, ..come.clone() };
        let kept = Kept { come: Some(here), gone: None, ..self.moves.of(name) };
        let taken = match self.moves.keep(name, kept) {
            Ok(()) => self.put_moves_in_force().await,
            Err(failure) => Err(failure),
        };
        let blocked = self.blocked().into_iter().find(|(blocked, _)| blocked == name);
        let taken = taken.and(blocked.map_or(Ok(()), |(_, failure)| Err(failure)));
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
            let mut told = None;
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
                if told.replace(fate) != Some(fate) {
                    node.tell_of_fate(&name, &come, fate);
                }
                drop(node);
                tokio::time::sleep(ASK_EVERY).await;
            }
        });
    }

    /// Why a whole copy is neither served nor thrown away.
    fn tell_of_fate(&self, name: &VolumeName, come: &Come, fate: Fate) {
        let Come { from_node, file, .. } = come;
        let mut waiting = self.moving.lock();
        if fate != Fate::Unknown {
            waiting.unknown.remove(name);
            tracing::warn!(volume = %name, from = %from_node, "whose the volume is, that node decides: it is asked");
            return;
        }
        let why = format!(
            "{from_node} knows nothing of this move: it was put back from a backup, or has lost its `state` folder. The copy in \
             {} is whole, and may be newer than what {from_node} serves: look at both, and keep the right one",
            file.display()
        );
        tracing::error!(volume = %name, "{why}");
        waiting.unknown.insert(name.clone(), why);
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

    /// What cannot be served though it has come.
    pub(super) fn blocked(&self) -> Vec<Blocked> {
        let base = Arc::clone(&self.inner.lock().base);
        self.moves.apply(&mut (*base).clone())
    }

    /// Serves what has come, and no more what has gone. One at a time.
    pub(super) async fn put_moves_in_force(&self) -> Result<(), Failure> {
        let removed = self.exchange_moves().await?;
        put_away(&removed).await;
        Ok(())
    }

    /// The same; what is no longer served is still to be put away.
    pub(super) async fn exchange_moves(&self) -> Result<Vec<ServedUnit>, Failure> {
        let (old, base) = {
            let inner = self.inner.lock();
            (Arc::clone(&inner.settings), Arc::clone(&inner.base))
        };
        let mut new = (*base).clone();
        for (volume, failure) in self.moves.apply(&mut new) {
            tracing::error!(%volume, %failure, "a volume that has come is not served");
        }
        self.leave_out_refused(&mut new);
        let plan = Plan::between(&old, &new);
        if let [why, ..] = &plan.changes.refused[..] {
            return Err(Failure::new(why));
        }
        self.change_to(&plan, &new, &base).await
    }
}
