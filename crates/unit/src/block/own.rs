//! The commands CLAIM OUT and CLAIM IN, and the operator's call that drops a claim.

use scsi::{ClaimAction, ClaimParameters, ClaimReport, Sense};
use volume::{Extensions, Extent, Lba};

use super::{BlockCommandInput, BlockUnit, bounds::writable};
use crate::{
    Completion, Nexus, TaskAttribute, UnitIdentity, UnitReply,
    abilities::{ClaimedUnit, HeldUnit, MovableUnit, NotDropped, Sharer, UnitFuture},
    block::{access, claim::BlockRangeGuard, ownership::Ownership, sharing::UnitSharing},
    primary::{
        order::TaskTurn,
        reply::{answer, parameter_list, taking, taking_with},
    },
    sense::UnitCommandFailure,
};

impl BlockUnit {
    /// CLAIM OUT. The claim is stable before the status is sent. For CLAIM and RELEASE, all commands that had
    /// begun have ended by then.
    pub(super) fn claim_out<'a>(
        &'a self,
        nexus: &Nexus,
        action: ClaimAction,
        length: u16,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        if self.writers.sharing.is_none() {
            self.ownership()?;
        }
        let taken = u32::from(length);
        let list = parameter_list(&work.data, usize::from(length))?;
        let asked = ClaimParameters::from_bytes(&list);
        let asked = asked.map_err(|sense| taking_with(taken, sense.into()))?;
        if action == ClaimAction::Claim {
            writable(&work.geometry).map_err(|sense| taking_with(taken, sense.into()))?;
        }
        let (from, turn) = (nexus.clone(), work.turn);
        if let Some(sharing) = &self.writers.sharing {
            return Ok(finished(
                self.claim_beside_others(sharing, from, action, asked, turn),
                taken,
            ));
        }
        let ownership = self.ownership().map_err(|sense| taking_with(taken, sense.into()))?;
        let has_epochs = work.geometry.epoch_blocks > 0;
        let claim = self.claim_for_one(ownership, from, action, asked, turn, has_epochs);
        Ok(finished(claim, taken))
    }

    /// Performs CLAIM OUT on a unit that several gateways share.
    async fn claim_beside_others(
        &self,
        sharing: &UnitSharing,
        from: Nexus,
        action: ClaimAction,
        asked: ClaimParameters,
        turn: TaskTurn<'_>,
    ) -> Result<(), UnitCommandFailure> {
        match action {
            ClaimAction::Claim => {
                let done = sharing.claim(&from, asked).await;
                drop(turn);
                // Wait for commands that an earlier session of the same log has begun: they must not take effect after
                // the claim.
                self.await_what_has_begun().await;
                done?;
            }
            ClaimAction::Release => {
                drop(turn);
                // The release makes the session's ranges available to other gateways at once, so none of its writes may
                // still be in progress.
                let _nothing_else = self.when_all_has_ended().await;
                sharing.release(from.number, &asked).await?;
            }
            ClaimAction::Advance => {
                // Release the turn before the number is saved: saving takes a disk sync, and other commands must not
                // wait for it.
                drop(turn);
                sharing.advance(from.number, &asked).await?;
            }
        }
        Ok(())
    }

    /// Performs CLAIM OUT on a unit that has at most one writer.
    async fn claim_for_one(
        &self,
        ownership: &Ownership,
        from: Nexus,
        action: ClaimAction,
        asked: ClaimParameters,
        turn: TaskTurn<'_>,
        has_epochs: bool,
    ) -> Result<(), UnitCommandFailure> {
        match action {
            ClaimAction::Claim => ownership.claim(from.number, asked).await?,
            ClaimAction::Release => ownership.release(from.number, &asked).await?,
            ClaimAction::Advance => {
                // Release the turn before the number is saved: saving takes a disk sync, and other commands must not
                // wait for it.
                drop(turn);
                return Ok(ownership.advance(from.number, &asked).await?);
            }
        }
        drop(turn);
        self.await_what_has_begun().await;
        if has_epochs
            && action == ClaimAction::Claim
            && let Some(follows) = ownership.unbegun()
        {
            self.begin_epoch(follows).await.map_err(access::failed_flush)?;
            ownership.note_begun();
        }
        Ok(())
    }

    /// Performs CLAIM IN, which reports the claim in force.
    pub(super) fn claim_in(
        &self,
        nexus: &Nexus,
        allocation_length: u16,
    ) -> Result<Completion, Sense> {
        let report = match &self.writers.sharing {
            Some(sharing) => sharing.report(nexus.number),
            None => self.ownership()?.report(),
        };
        Ok(answer(report.to_bytes(), u32::from(allocation_length)))
    }

    /// Returns the claim's record. A unit without a store would lose claims, so it does not support these
    /// commands.
    pub(super) fn ownership(&self) -> Result<&Ownership, Sense> {
        self.writers.ownership.as_ref().ok_or(Sense::INVALID_COMMAND_OPERATION_CODE)
    }

    /// Begins the first epoch of a new claim. `follows` says that another claim was in force before it: then
    /// the open epoch is incomplete and is rolled back. Otherwise the open epoch holds writes of initiators
    /// without a claim, and is flushed.
    async fn begin_epoch(&self, follows: bool) -> Result<(), volume::Error> {
        let abilities: Extensions<'_> = self.volume.extensions();
        if follows { abilities.roll_back().await } else { self.volume.flush().await }
    }

    /// Waits until all commands that have begun have ended.
    pub(super) async fn await_what_has_begun(&self) {
        drop(self.when_all_has_ended().await);
    }

    /// Waits until all commands that have begun have ended. While the caller holds both results, no other
    /// command changes a block.
    pub(super) async fn when_all_has_ended(&self) -> (TaskTurn<'_>, BlockRangeGuard<'_>) {
        let turn = self.primary.order.turn(TaskAttribute::Ordered).await;
        // The commands of a copy have no turn, but lock the blocks that they write, as all others do. An
        // extent of `u32::MAX` blocks covers every lock, so no write is missed on a larger volume.
        let geometry = self.volume.geometry();
        let blocks = u32::try_from(geometry.blocks).unwrap_or(u32::MAX).max(1);
        let whole = Extent { lba: Lba(0), blocks };
        (turn, self.claims.alone(whole, geometry.block_size).await)
    }
}

impl ClaimedUnit for BlockUnit {
    fn claim_report(&self) -> Option<ClaimReport> {
        let report = match &self.writers.sharing {
            // `report` prefers the claim of the given session. No session has the number `u64::MAX`, so this call
            // prefers a gateway without a session.
            Some(sharing) => sharing.report(u64::MAX),
            None => self.writers.ownership.as_ref()?.report(),
        };
        (!report.owner.is_empty()).then_some(report)
    }

    fn sharers(&self) -> Vec<Sharer> {
        self.writers.sharing.as_ref().map_or_else(Vec::new, UnitSharing::sharers)
    }

    fn drop_claim(&self) -> UnitFuture<'_, Result<(), NotDropped>> {
        Box::pin(async move {
            if let Some(sharing) = &self.writers.sharing {
                // Dropping the absent gateways makes their ranges available to other gateways at once, so none of their
                // writes may still be in progress.
                let _nothing_else = self.when_all_has_ended().await;
                return sharing.drop_absent().await.map_err(|_| NotDropped::NotSaved);
            }
            let Some(ownership) = &self.writers.ownership else { return Ok(()) };
            // No other command may run between the roll-back and the end of the claim: a read would return
            // half an epoch, and new writes would be rolled back with it.
            let _nothing_else = self.when_all_has_ended().await;
            if self.volume.geometry().epoch_blocks > 0 {
                // Roll back first. If that fails, the claim still keeps other initiators from reading and
                // from flushing the half epoch. Fence the owner first: it must not flush the rest of an epoch
                // whose first half was discarded.
                ownership.shut_holder_out();
                self.begin_epoch(true).await.map_err(NotDropped::NotRolledBack)?;
            }
            ownership.drop_claim().await.map_err(|_| NotDropped::NotSaved)
        })
    }
}

impl MovableUnit for BlockUnit {
    fn identity(&self) -> &UnitIdentity {
        self.primary.identity()
    }

    fn hold(&self) -> UnitFuture<'_, HeldUnit<'_>> {
        Box::pin(async move { HeldUnit::new(self.when_all_has_ended().await) })
    }

    fn reservations_to_move(&self) -> Vec<u8> {
        self.primary.reservations_to_move()
    }

    fn is_sanitizing(&self) -> bool {
        self.sanitizer.sense().is_some()
    }
}

/// Returns the reply of a command with `taken` bytes of data. When `work` has ended, the command ends with GOOD or with
/// the failure of `work`. The turn is released by `work` itself.
fn finished<'a>(
    work: impl Future<Output = Result<(), UnitCommandFailure>> + Send + 'a,
    taken: u32,
) -> UnitReply<'a> {
    UnitReply::new(async move {
        match work.await {
            Ok(()) => taking(taken),
            Err(failure) => taking_with(taken, failure),
        }
    })
}
