//! Moves a volume to another node. It is copied while hosts use it; then hosts wait, the rest is copied, and the
//! other node takes over. This node owns the volume until the record of the move is stable here; from then on the
//! other node owns it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use ::names::{Gln, NodeName, VolumeName};
use control::{Failure, KnownNode, MoveStage, VolumeMoveProgress};
use tokio::time::{sleep, timeout};

use super::{
    Node,
    copy_out::{MoveOutChannel, mark_used},
    move_checks::{movable, not_sanitizing, unnamed},
    move_switchover::{HOLD_WITHIN, Switch, busy},
    outgoing_move::{Leaving, Move, cancelled},
};
use crate::moves::{Described, MoveCopyPace, MoveId, TargetAccessRules};

/// Number of attempts to switch over; an attempt fails if the commands of hosts do not end in time.
const SWITCHES: u32 = 3;

/// Maximum number of moves from this node at once: each reads 2 MiB ahead, and a node accepts no more.
const MOST_LEAVING: usize = 16;

impl Node {
    /// Starts to move a volume, given as `gln:NAME`, as `NAME` or by its target, to a node given by its number or
    /// name. Returns the progress if that move is running already.
    pub async fn move_volume(
        self: &Arc<Self>,
        volume: &str,
        to: &str,
        rate: Option<u64>,
        pause: Duration,
    ) -> Result<VolumeMoveProgress, Failure> {
        let _one_at_a_time = self.changing.lock().await;
        let node = self.destination(to).await?;
        let (target, unit, served) = self.find_volume(volume).await?;
        let name = unit.volume.clone().ok_or_else(|| unnamed(&target))?;
        // Check the record of moves: the volume may still be open here after a move, if the settings without it could
        // not be put in force.
        let gone = self.moves.of(&name).gone;
        if let Some(gone) = gone.filter(|gone| gone.generation >= unit.generation) {
            return Err(Failure::new(format!("{name} was moved to {}", gone.to_node))
                .remedy("move it from there"));
        }
        if let Some(leaving) = self.leaving(&name).filter(|leaving| leaving.under_way().is_some()) {
            let progress = leaving.progress();
            if progress.to == describe(&node.node, node.gln) {
                return Ok(progress);
            }
            return Err(Failure::new(format!("{name} is being moved to {} already", progress.to))
                .remedy(format!("wait for it, or `forebay volume cancel {name}`")));
        }
        self.can_receive(&node, &name)?;
        let watched = movable(&target, &unit, &served)?;
        let access = TargetAccessRules::of(&self.settings(), &target)?;
        let lower = &**watched.below();
        let described = Described::new((&target, access), &unit, &served.serial, lower);
        let described = described.ok_or_else(|| unnamed(&target))?;
        let to = describe(&node.node, node.gln);
        let leaving =
            Arc::new(Leaving::new(MoveId::random()?, name.clone(), to, described.bytes()));
        self.begin_leaving(name, &leaving)?;
        let moved = Move {
            settings: self.settings(),
            target,
            served,
            watched,
            described,
            to: node.gln,
            to_node: node.node.clone(),
            addresses: node.addresses.clone(),
            pace: rate,
            pause,
        };
        let progress = leaving.progress();
        let node = Arc::clone(self);
        tokio::spawn(async move { node.leave(&leaving, moved).await });
        Ok(progress)
    }

    async fn destination(&self, to: &str) -> Result<KnownNode, Failure> {
        let nodes = match <[KnownNode; 1]>::try_from(self.naming()?.find(to).await) {
            Ok([node]) => return Ok(node),
            Err(nodes) => nodes,
        };
        let what = if nodes.is_empty() { "no node is" } else { "several nodes are" };
        Err(Failure::new(format!("{what} known as {to}"))
            .remedy("`forebay names` shows the nodes that are known; name one by its number (GLN)"))
    }

    /// Fails if the node is this one, or if this node cannot connect to it.
    fn can_receive(&self, node: &KnownNode, volume: &VolumeName) -> Result<(), Failure> {
        if node.gln == self.naming()?.gln() {
            return Err(Failure::new(format!("{volume} is on that node already"))
                .remedy("name another node; `forebay names` shows the nodes and their volumes"));
        }
        if node.stale || node.twins || node.addresses.is_empty() {
            let message = format!("the node {} is stale, or has no address for queries", node.node);
            return Err(Failure::new(message).remedy("`forebay names` shows what is known of it"));
        }
        Ok(())
    }

    /// Records that the volume is being moved. Fails if too many volumes are.
    fn begin_leaving(&self, volume: VolumeName, leaving: &Arc<Leaving>) -> Result<(), Failure> {
        let mut moving = self.moving.lock();
        let others = moving.leaving.values().filter(|other| other.under_way().is_some());
        if others.count() >= MOST_LEAVING {
            return Err(Failure::new(format!(
                "{MOST_LEAVING} volumes are being moved from here already"
            ))
            .remedy(
                "wait until one of them has moved: `forebay volume list` shows how far they are",
            ));
        }
        moving.leaving.insert(volume, Arc::clone(leaving));
        Ok(())
    }

    /// Returns the progress of the running move of `volume`, or the result of the last move.
    pub fn move_of(&self, volume: &VolumeName) -> Result<VolumeMoveProgress, Failure> {
        let leaving = self.leaving(volume);
        leaving.map(|leaving| leaving.progress()).ok_or_else(|| {
            Failure::new(format!("no move of {volume} has begun here since the start"))
                .remedy("`forebay volume list` shows what is known of moves")
        })
    }

    pub async fn cancel_move(&self, volume: &VolumeName) -> Result<VolumeMoveProgress, Failure> {
        let leaving = self.leaving(volume).filter(|leaving| leaving.under_way().is_some());
        let leaving = leaving.ok_or_else(|| {
            Failure::new(format!("{volume} is not being moved from here"))
                .remedy("`forebay volume list` shows what is known of moves")
        })?;
        if leaving.is_decided.load(Ordering::Acquire) {
            return Err(Failure::new(format!("{volume} is being handed over at this moment"))
                .remedy("wait for the result, which `forebay volume list` shows"));
        }
        leaving.cancel.notify_one();
        while leaving.under_way().is_some() {
            sleep(Duration::from_millis(10)).await;
        }
        Ok(leaving.progress())
    }

    fn leaving(&self, volume: &VolumeName) -> Option<Arc<Leaving>> {
        self.moving.lock().leaving.get(volume).cloned()
    }

    /// Moves a volume to another node and records the result.
    async fn leave(self: Arc<Self>, leaving: &Leaving, moved: Move) {
        let volume = moved.described.volume.clone();
        tracing::info!(%volume, to = %moved.to_node, "a volume is being moved");
        let left = tokio::select! {
            left = self.leave_to(leaving, &moved) => left,
            // A cancellation has an effect only while the volume is copied.
            () = cancelled(leaving) => Err(Failure::new("it was cancelled")),
        };
        moved.watched.unwatch();
        let failure = match left {
            Ok(failure) => {
                tracing::info!(%volume, to = %moved.to_node, "a volume was moved");
                leaving
                    .tell(|progress| (progress.stage, progress.left_bytes) = (MoveStage::Moved, 0));
                failure
            }
            Err(failure) => {
                tracing::error!(%volume, %failure, "the move of a volume failed, and it stays here");
                leaving.tell(|progress| progress.stage = MoveStage::Undone);
                Some(failure)
            }
        };
        leaving.tell(|progress| progress.failure = failure);
    }

    /// Copies the volume and switches over. Returns `Ok` once the other node owns the volume, with a failure if
    /// work is left to do.
    async fn leave_to(
        self: &Arc<Self>,
        leaving: &Leaving,
        moved: &Move,
    ) -> Result<Option<Failure>, Failure> {
        // Flush before hosts have to wait: this flush may take long, and makes the later ones short.
        moved.watched.below().flush().await.map_err(Failure::new)?;
        let mut line = MoveOutChannel::agree(self, leaving, moved).await?;
        let changes = {
            let held = timeout(HOLD_WITHIN, moved.served.movable()?.hold()).await;
            let _nothing_under_way = held.map_err(|_| busy(&moved.described.volume))?;
            not_sanitizing(moved)?;
            moved.watched.watch()
        };
        mark_used(moved.watched.below(), &changes).await?;
        leaving.tell(|progress| progress.left_bytes = changes.bytes());
        let mut pace = MoveCopyPace::new(moved.pace);
        let mut switches = 0;
        loop {
            line.catch_up(leaving, moved, &changes, &mut pace).await?;
            if switches == 0 {
                // Record the attempt before the switch, after which the destination may have a complete copy. The
                // destination discards the copy only if this record says that the move did not succeed.
                let kept = self.moves.of(&moved.described.volume);
                let volume = &moved.described.volume;
                self.moves.keep(volume, kept.with_tried(leaving.id.clone()))?;
            }
            switches += 1;
            match self.switch(leaving, moved, &changes, &mut line).await {
                Ok(left) => return Ok(left),
                Err(Switch::Later(_)) if switches < SWITCHES => {
                    leaving.tell(|progress| progress.stage = MoveStage::Copying);
                }
                Err(Switch::Later(failure) | Switch::Never(failure)) => return Err(failure),
            }
        }
    }
}

fn describe(node: &NodeName, gln: Gln) -> String {
    format!("{node} ({gln})")
}
