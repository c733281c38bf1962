//! TOKEN OUT and TOKEN IN: the requests of the gateways that share a unit, and the answers to them.

use std::time::Duration;

use coherence::{CoherenceRequest, MOST_LIST_BYTES, read_requests};
use scsi::Sense;
use volume::{Data, Extent, Geometry};

use super::{BlockCommandInput, BlockUnit};
use crate::{
    Completion, UnitReply,
    block::sharing::UnitSharing,
    primary::reply::{parameter_list, taking, taking_with},
    sense::UnitCommandFailure,
};

impl BlockUnit {
    /// Checks that the coherence tokens of a session let it change these blocks now. Call this with the
    /// blocks locked.
    pub(super) fn check_token(&self, nexus: u64, extent: Extent) -> Result<(), UnitCommandFailure> {
        self.writers.sharing.as_ref().map_or(Ok(()), |sharing| sharing.check(nexus, extent))
    }

    fn sharing(&self) -> Result<&UnitSharing, Sense> {
        self.writers.sharing.as_ref().ok_or(Sense::INVALID_COMMAND_OPERATION_CODE)
    }

    pub(super) fn token_out<'a>(
        &'a self,
        length: u32,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let sharing = self.sharing()?;
        if length as usize > MOST_LIST_BYTES {
            return Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into());
        }
        let list = parameter_list(&work.data, length as usize)?;
        let requests = read_requests(&list)
            .map_err(|_| taking_with(length, Sense::invalid_field_in_parameter_list(0).into()))?;
        let (nexus, turn) = (work.nexus, work.turn);
        Ok(UnitReply::new(async move {
            // Release this command's turn before waiting. Otherwise a command that waits until all others have ended
            // would wait for this one, while this one may wait for the same point: a deadlock.
            drop(turn);
            for request in requests {
                if let Err(sense) = self.ask_tokens(sharing, nexus, request).await {
                    return taking_with(length, sense.into());
                }
            }
            taking(length)
        }))
    }

    /// Passes one request to the grantor. Before a released range is granted to another gateway, all writes
    /// to it must have ended, those of sessions that have ended included.
    async fn ask_tokens(
        &self,
        sharing: &UnitSharing,
        nexus: u64,
        request: CoherenceRequest,
    ) -> Result<(), Sense> {
        let Geometry { blocks, block_size, .. } = self.volume.geometry();
        match request {
            CoherenceRequest::Join { .. } => {
                let _nothing_else = self.when_all_has_ended().await;
                sharing.ask(nexus, request, blocks)
            }
            CoherenceRequest::Release { range, .. } => {
                let _exclusive = self.claims.alone(sharing.extent(range), block_size).await;
                sharing.ask(nexus, request, blocks)
            }
            CoherenceRequest::Acquire { .. } | CoherenceRequest::Renew { .. } => {
                sharing.ask(nexus, request, blocks)
            }
        }
    }

    pub(super) fn token_in<'a>(
        &'a self,
        wait_ms: u16,
        most: u32,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let sharing = self.sharing()?;
        let (nexus, turn) = (work.nexus, work.turn);
        Ok(UnitReply::new(async move {
            drop(turn);
            let wait = Duration::from_millis(wait_ms.into());
            match sharing.hear(nexus, wait, most as usize).await {
                Ok(list) => Completion::good(Data::from(bytes::Bytes::from(list))),
                Err(sense) => sense.into(),
            }
        }))
    }
}
