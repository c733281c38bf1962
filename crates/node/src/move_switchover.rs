//! The switch of a volume to another node. This node owns the volume until the record of the move is stable here;
//! from then on the other node owns it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use ::names::VolumeName;
use control::{Failure, MoveStage};
use stack::{records::Records, unit_state};
use target::Redirect;
use tokio::time::{sleep, timeout};
use volume::{ChangedRegions, ConditionChange, OngoingCondition};

use super::{
    Node, ServedUnit,
    copy_out::{MoveOutChannel, broken},
    move_checks::not_sanitizing,
    outgoing_move::{Leaving, Move},
    reload::close_units,
};
use crate::moves::{
    MoveCopyPace, MoveFrame, MoveOutRecord, MoveRequest, MoveResponse, VolumeMoveRecord,
};

/// Longest wait for commands in progress to end. Hosts wait 30 s for the answer to a command.
pub(super) const HOLD_WITHIN: Duration = Duration::from_secs(5);
/// Longest time for the other node to make the unit's records stable, while no host is served. Together with the last
/// pass and the end of sessions, this is less than the 30 s that hosts give a command.
const PREPARE_WITHIN: Duration = Duration::from_secs(5);
/// The pause between two attempts to make a record stable.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Interval of the checks whether the other node serves a volume that has left a file here.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The failure of a switchover, after which hosts continue to use the volume at this node.
pub(super) enum Switch {
    /// The switch of the volume to the destination has failed. Repeat it after another pass of the copy.
    Later(Failure),
    Never(Failure),
}

impl Node {
    /// Switches the volume over to the other node. Commands of hosts wait from here on, until hosts find the volume at
    /// the other node, or again at this node after a failure.
    pub(super) async fn switch(
        self: &Arc<Self>,
        leaving: &Leaving,
        moved: &Move,
        changes: &ChangedRegions,
        line: &mut MoveOutChannel,
    ) -> Result<Option<Failure>, Switch> {
        // The lock prevents other changes during the switch, such as a reload or a growth.
        let one_at_a_time = self.changing.lock().await;
        if !self.is_served(moved) {
            let message = format!("{} was changed while it was copied", moved.described.volume);
            return Err(Switch::Never(Failure::new(message).remedy("move it again")));
        }
        let begun = Instant::now();
        leaving.tell(|progress| progress.stage = MoveStage::Switching);
        let unit = moved.served.movable().map_err(Switch::Never)?;
        let held = timeout(HOLD_WITHIN.min(moved.pause), unit.hold()).await;
        let held = held.map_err(|_| Switch::Later(busy(&moved.described.volume)))?;
        not_sanitizing(moved).map_err(Switch::Never)?;
        let last = async {
            changes.settle().await;
            line.pass(moved.watched.below(), changes, &mut MoveCopyPace::new(None), leaving)
                .await?;
            line.flush(moved.watched.below()).await
        };
        // Commands that wait continue when `held` is dropped.
        let last = timeout(moved.pause.saturating_sub(begun.elapsed()), last).await;
        last.map_err(|_| Switch::Never(slow(moved)))?.map_err(Switch::Never)?;
        let redirect = match self.hand_over(leaving, moved, changes, line).await {
            Ok(address) => Redirect { address, permanent: false },
            Err(failure) => {
                self.serve_again(moved).await;
                return Err(Switch::Never(failure));
            }
        };
        let shown = self.shown(&moved.settings, &moved.target);
        // Crash order: end the sessions here with a redirect before the other node serves the volume.
        let gone = target::Target { units: Vec::new(), redirect: Some(redirect), ..shown };
        if let Err(error) = self.server.turn_away(gone).await {
            tracing::error!(
                %error,
                remedy = "restart this process; if the event comes again, report it with the settings",
                "a target is invalid, although the settings were accepted"
            );
        }
        drop(held);
        let removed = self.exchange_moves().await.unwrap_or_else(|failure| {
            tracing::error!(%failure, "cannot remove the remains of a moved volume");
            Vec::new()
        });
        // Release the lock on moves before the commit. The other node may be moving a volume to this one meanwhile, and
        // its request waits for the lock here: each node would wait for the other.
        drop(one_at_a_time);
        // Send the commit before the units are closed here, which may take time. If the message is lost, the other node
        // asks for the outcome.
        let committed = line.ask(MoveRequest::Commit).await;
        let failure = committed.err().map(|failure| {
            Failure::new(format!("the node {} does not serve it yet: {failure}", moved.to_node))
                .remedy("it will after asking this node for the decision: keep both running")
        });
        leaving.tell(|progress| progress.pause_seconds = Some(begun.elapsed().as_secs_f64()));
        close_units(&removed).await;
        match failure {
            None => self.remove_left(&moved.described.volume),
            Some(_) => self.remove_left_later(moved.described.volume.clone()),
        }
        Ok(failure)
    }

    /// Refuses logins, lets the other node prepare, and makes the record of the move stable. Returns the address to
    /// which initiators are redirected.
    async fn hand_over(
        &self,
        leaving: &Leaving,
        moved: &Move,
        changes: &ChangedRegions,
        line: &mut MoveOutChannel,
    ) -> Result<String, Failure> {
        // From here on logins fail with "service unavailable", and hosts try again. Commands that have already arrived
        // are held.
        leaving.is_decided.store(true, Ordering::Release);
        let away =
            target::Target { is_unavailable: true, ..self.shown(&moved.settings, &moved.target) };
        let redirect = match self.server.turn_away(away).await {
            Ok(true) if changes.is_still() => {
                let prepared = timeout(PREPARE_WITHIN, self.prepare_other(moved, line)).await;
                prepared.unwrap_or_else(|_| Err(broken(&"it timed out")))?
            }
            Ok(_) => return Err(busy(&moved.described.volume)),
            Err(error) => return Err(Failure::new(error)),
        };
        self.decide(leaving, moved, redirect).await
    }

    /// Serves the volume at this node again after a failed switch to the destination.
    async fn serve_again(&self, moved: &Move) {
        let shown = self.shown(&moved.settings, &moved.target);
        if let Err(error) = self.server.change(shown).await {
            tracing::error!(
                %error,
                remedy = "restart this process; if the event comes again, report it with the settings",
                "a target is invalid, although the settings were accepted"
            );
        }
    }

    /// Sends the records of the unit. Returns the address to which initiators are redirected.
    async fn prepare_other(
        &self,
        moved: &Move,
        line: &mut MoveOutChannel,
    ) -> Result<String, Failure> {
        let unit = moved.served.movable()?;
        if let Some(state) = &moved.settings.state {
            let mut records = unit_state::records(state, unit.identity()).map_err(Failure::new)?;
            records.retain(|(name, _)| *name != unit::UnitRecordKind::Reservations.name());
            records.push((unit::UnitRecordKind::Reservations.name(), unit.reservations_to_move()));
            for (name, bytes) in records {
                let frame = MoveFrame::Record { name: name.to_owned(), bytes: bytes.into() };
                line.says.say(&frame).await.map_err(|lost| broken(&lost))?;
            }
        }
        match line.exchange(MoveRequest::Prepare).await? {
            MoveResponse::Kept { redirect } => Ok(redirect),
            _ => Err(broken(&"it sent an unexpected answer")),
        }
    }

    /// Makes the record of the move stable: from then on the other node owns the volume.
    async fn decide(
        &self,
        leaving: &Leaving,
        moved: &Move,
        redirect: String,
    ) -> Result<String, Failure> {
        let described = &moved.described;
        let gone = MoveOutRecord {
            id: leaving.id.clone(),
            target: described.target.clone(),
            lun: described.lun,
            generation: described.generation,
            to: moved.to,
            to_node: moved.to_node.clone(),
            redirect: redirect.clone(),
            // Only a file that an earlier move has created here is removed; a file that the operator has created is
            // kept.
            left: self.moves.of(&described.volume).come.map(|come| come.file),
        };
        let VolumeMoveRecord { mut tried, .. } = self.moves.of(&described.volume);
        tried.retain(|tried| *tried != leaving.id);
        let kept = VolumeMoveRecord { gone: Some(gone), come: None, tried };
        // Reserve the space for the record while the move can still fail: later, saving it must succeed.
        self.moves.try_to_keep(&described.volume, &kept)?;
        let mut failing = OngoingCondition::default();
        while let Err(failure) = self.moves.keep(&described.volume, kept.clone()) {
            // After a crash the record might or might not be there: neither node serves the volume until the record
            // is certainly stable.
            if failing.turn(true).is_some() {
                tracing::error!(%failure, "the volume is not served until the decision about its move is written");
            }
            leaving.tell(|progress| progress.failure = Some(failure));
            sleep(AGAIN_AFTER).await;
        }
        if let Some(ConditionChange::Ends(lasted)) = failing.turn(false) {
            let volume = &described.volume;
            tracing::info!(%volume, lasted_s = lasted.as_secs(), "the decision about a move is written");
        }
        Ok(redirect)
    }

    /// Returns true if the unit that began to move is still served with the same size.
    fn is_served(&self, moved: &Move) -> bool {
        let inner = self.inner.lock();
        let served = inner.targets.iter().find(|served| served.name == moved.target.name.0);
        let is_it = |unit: &ServedUnit| Arc::ptr_eq(&unit.unit, &moved.served.unit);
        served.is_some_and(|served| served.units.iter().any(is_it))
            && inner.settings.target.contains(&moved.target)
            && moved.watched.below().geometry().blocks == moved.described.blocks
    }

    /// Removes the file of a volume that the destination node serves now.
    fn remove_left(&self, volume: &VolumeName) {
        // Do nothing if the volume is moving back at this moment, into the same file.
        let Some(_berth) = self.berth(volume) else { return };
        let kept = self.moves.of(volume);
        let (Some(gone), None) = (&kept.gone, &kept.come) else { return };
        let Some(file) = &gone.left else { return };
        let removed = match std::fs::remove_file(file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Failure::new(error)),
            _ => {
                let gone = Some(MoveOutRecord { left: None, ..gone.clone() });
                let forgotten = Records::of(&self.settings()).forget(file);
                forgotten.and_then(|_| {
                    self.moves.keep(volume, VolumeMoveRecord { gone, ..kept.clone() })
                })
            }
        };
        if let Err(failure) = removed {
            tracing::warn!(path = %file.display(), %failure, "cannot remove the remains of a moved volume");
        }
    }

    /// Waits until the other node announces the volume, and then removes the file that the volume has left here.
    pub(super) fn remove_left_later(self: &Arc<Self>, volume: VolumeName) {
        let node = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                sleep(LOOK_EVERY).await;
                let Some(node) = node.upgrade() else { return };
                let kept = node.moves.of(&volume);
                let (Some(gone), None, Some(naming)) = (kept.gone, kept.come, &node.naming) else {
                    return;
                };
                if gone.left.is_none() {
                    return;
                }
                if naming.locate(&volume).await.is_ok_and(|place| place.gln == gone.to) {
                    return node.remove_left(&volume);
                }
            }
        });
    }
}

/// Returns the failure of a move whose last pass would block hosts for too long.
fn slow(moved: &Move) -> Failure {
    let (volume, seconds) = (&moved.described.volume, moved.pause.as_secs_f64());
    Failure::new(format!(
        "the last part of the copy of {volume} takes longer than {seconds} s, while hosts wait; it stays here"
    ))
    .remedy(
        "check the load of both nodes' disks and of the network between them, or let hosts write less, and \
         move it again; with a longer --pause hosts wait longer",
    )
}

/// Returns the failure of a move during which commands of hosts did not end in time.
pub(super) fn busy(volume: &VolumeName) -> Failure {
    Failure::new(format!("commands of hosts on {volume} did not end in time"))
        .remedy("check its disk (`forebay status`), and move it again")
}
