//! EXTENDED COPY and the commands that ask for its status.
//!
//! The copy manager acts as the nexus that asked for the copy. The manager sends READ to the source unit and
//! WRITE to the destination unit in that nexus. Therefore reservations, write protection and the state of
//! both units apply, and a unit that is not mapped to the nexus cannot be named. CVE-2020-28374 was a copy
//! manager that had access to more units than its initiator.

use std::sync::Arc;

use bytes::Bytes;
use scsi::{
    BlockCommand, BlockTransfer, Capacity16, Cdb, Command, Form, Lun, ScsiStatus, Sense,
    copy::{CopyList, CopyResults, CopySegment, CopyState, Cscd, operating_parameters},
};
use volume::{Data, Extent, Geometry, Lba};

use super::{BlockCommandInput, BlockUnit, bounds::list_to_do};
use crate::{
    Completion, LogicalUnit, Nexus, Task, TaskAttribute, UnitReply,
    block::{
        copies::{CopyRefusal, RunningCopy},
        patience::StepRetryWait,
    },
    primary::reply::{finished, taking, taking_with},
    sense::UnitCommandFailure,
};

/// A unit that takes part in a copy, with the nexus that asked for the copy.
pub(super) struct Party<'a> {
    unit: CopyPartyUnit<'a>,
    nexus: &'a Nexus,
}

enum CopyPartyUnit<'a> {
    Own(&'a BlockUnit),
    /// Another unit of the target. The unit is looked up for each piece, since it may be removed while the
    /// copy is running; a reference held here would delay the removal.
    Other {
        asked: &'a BlockUnit,
        naa: [u8; 16],
    },
}

impl BlockUnit {
    pub(super) fn extended_copy<'a>(
        &'a self,
        nexus: Nexus,
        long: bool,
        length: u32,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let BlockCommandInput { data, turn, .. } = work;
        let list = CopyList::parse(&list_to_do(&data, length as usize)?, long);
        let list = list.map_err(|sense| taking_with(length, sense.into()))?;
        let name = list.identified.then_some(list.list);
        let running = self.begin_copy(&nexus, name, u8::from(long))?;
        Ok(UnitReply::new(async move {
            let _turn = turn;
            let copy = self.copy(&nexus, &list, &running);
            run_copy(copy, &running, length).await
        }))
    }

    /// Registers a new copy, or refuses it because too many copies of the nexus are running.
    pub(super) fn begin_copy(
        &self,
        nexus: &Nexus,
        list: Option<u32>,
        service_action: u8,
    ) -> Result<RunningCopy, Completion> {
        self.copies.begin(nexus.number, list, service_action).map_err(|refused| match refused {
            CopyRefusal::InProgress => Sense::OPERATION_IN_PROGRESS.into(),
            CopyRefusal::Full => Completion::status(ScsiStatus::TaskSetFull),
        })
    }

    /// Performs a copy. All segments are checked before the first block is copied.
    async fn copy(
        &self,
        nexus: &Nexus,
        list: &CopyList,
        running: &RunningCopy,
    ) -> Result<(), UnitCommandFailure> {
        let mut parties = Vec::with_capacity(list.cscds.len());
        for cscd in &list.cscds {
            // LU ID TYPE must be zero in SPC-3, where it is reserved; SPC-4 ignores it.
            if self.settings.spc_3 && cscd.lu_id_type != 0 {
                return Err(Sense::invalid_field_in_parameter_list(17).into());
            }
            parties.push(self.reach(nexus, cscd));
        }
        let mut checked = Vec::with_capacity(list.segments.len());
        for segment in &list.segments {
            let party = |index: u16| {
                let party = parties.get(usize::from(index)).and_then(Option::as_ref);
                party.ok_or(Sense::UNREACHABLE_COPY_TARGET)
            };
            let (source, destination) = (party(segment.source)?, party(segment.destination)?);
            let from = source.capacity().await?;
            let to = destination.capacity().await?;
            let blocks = u64::from(segment.blocks);
            let inside = |capacity: &Capacity16, lba: u64| {
                lba.checked_add(blocks).is_some_and(|end| end <= capacity.last_lba + 1)
            };
            if !inside(&from, segment.source_lba) || !inside(&to, segment.destination_lba) {
                return Err(Sense::COPY_ABORTED.into());
            }
            // Check that the block lengths in the CSCD descriptors are those of the two units, and that they are equal.
            let told = |index: u16| list.cscds[usize::from(index)].block_size;
            let sizes = [told(segment.source), told(segment.destination), to.block_size];
            if sizes.iter().any(|size| *size != from.block_size) {
                return Err(Sense::INCORRECT_COPY_TARGET_DEVICE_TYPE.into());
            }
            checked.push((source, destination, segment, from.block_size));
        }
        let mut patience = StepRetryWait::default();
        for (source, destination, segment, block_size) in checked {
            let order = pieces_of(segment, block_size, source.is(destination));
            for (at, blocks) in order {
                let lba = segment.destination_lba + at;
                let piece = || async {
                    let data = source.read(segment.source_lba + at, blocks).await?;
                    destination.write(lba, blocks, data).await
                };
                patience.step(lba, piece).await.map_err(aborted)?;
                running.note(|status| status.blocks += u64::from(blocks));
            }
            running.note(|status| status.segments += 1);
        }
        Ok(())
    }

    /// Returns the unit that `cscd` designates, if the nexus has access to it.
    pub(super) fn reach<'a>(&'a self, nexus: &'a Nexus, cscd: &Cscd) -> Option<Party<'a>> {
        // The NUL bit of SPC-3 says that no unit is meant. Later standards have it reserved.
        let naa = cscd.naa.filter(|_| !(cscd.null && self.settings.spc_3))?;
        let unit = if naa == self.primary.identity().naa {
            CopyPartyUnit::Own(self)
        } else {
            self.primary.neighbour(nexus, &naa)?;
            CopyPartyUnit::Other { asked: self, naa }
        };
        Some(Party { unit, nexus })
    }

    /// COPY OPERATION ABORT of a copy of this nexus. Ends with GOOD when the copy has ended.
    pub(super) fn abort_copy<'a>(
        &'a self,
        nexus: &Nexus,
        list: u32,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let ended = self.copies.abort(nexus.number, list);
        let ended = ended.ok_or(Sense::invalid_field_in_cdb(2))?;
        let wait = async move {
            ended.await;
            Ok(())
        };
        Ok(finished(wait, 0, work.turn))
    }

    pub(super) fn receive_copy_results(
        &self,
        nexus: &Nexus,
        asked: CopyResults,
        allocation_length: u32,
        geometry: &Geometry,
    ) -> Result<Completion, Sense> {
        let unknown = Sense::invalid_field_in_cdb(2);
        let status = |list| self.copies.status(nexus.number, list).ok_or(unknown);
        let bytes = match asked {
            CopyResults::Status1(list) => status(list.into())?.to_short_bytes(),
            CopyResults::OperatingParameters => operating_parameters(geometry.block_size),
            CopyResults::FailedSegment1(list) => status(list.into())?.to_failed_segment(),
            CopyResults::Status4(list) => status(list)?.to_long_bytes(false),
            CopyResults::RodTokens(list) => status(list)?.to_long_bytes(true),
        };
        let mut bytes = Bytes::from(bytes);
        bytes.truncate(allocation_length as usize);
        Ok(Completion::good(bytes.into()))
    }
}

/// Converts the failure of one step into the failure of the whole copy. RECEIVE COPY RESULTS reports how many
/// blocks were copied.
pub(super) fn aborted(failure: UnitCommandFailure) -> UnitCommandFailure {
    match failure {
        UnitCommandFailure::Check(sense)
            if sense.is(Sense::LOGICAL_UNIT_COMMUNICATION_TIME_OUT) =>
        {
            Sense::COPY_ABORTED.into()
        }
        failure => failure,
    }
}

/// Runs a copy until it ends or is aborted. Records its last status and returns the completion of the
/// command.
pub(super) async fn run_copy(
    copy: impl Future<Output = Result<(), UnitCommandFailure>>,
    running: &RunningCopy,
    length: u32,
) -> Completion {
    let done = tokio::select! {
        biased;
        () = running.aborted() => None,
        done = copy => Some(done),
    };
    let Some(done) = done else {
        running.note(|status| status.state = CopyState::Aborted);
        return taking_with(length, Sense::COPY_ABORTED.into());
    };
    match done {
        Ok(()) => {
            running.note(|status| status.state = CopyState::Done);
            taking(length)
        }
        Err(failure) => {
            if let UnitCommandFailure::Check(sense) = failure {
                running.note(|status| status.state = CopyState::Failed(sense));
            }
            taking_with(length, failure)
        }
    }
}

impl Party<'_> {
    /// Returns true if both parties of the copy are the same unit.
    fn is(&self, other: &Self) -> bool {
        match (&self.unit, &other.unit) {
            (CopyPartyUnit::Own(_), CopyPartyUnit::Own(_)) => true,
            (CopyPartyUnit::Other { naa: a, .. }, CopyPartyUnit::Other { naa: b, .. }) => a == b,
            _ => false,
        }
    }

    /// Returns the blocks that a ROD token represents, if this unit has created the token.
    pub(super) fn rod(
        &self,
        token: &[u8; scsi::copy::TOKEN_BYTES],
    ) -> Result<Arc<crate::Rod>, Sense> {
        match &self.unit {
            CopyPartyUnit::Own(unit) => unit.tokens.find(token),
            CopyPartyUnit::Other { asked, naa } => {
                let unit = asked.primary.neighbour(self.nexus, naa).ok_or(Sense::TOKEN_UNKNOWN)?;
                unit.abilities().copies.ok_or(Sense::TOKEN_UNKNOWN)?.rod(token)
            }
        }
    }

    pub(super) async fn capacity(&self) -> Result<Capacity16, UnitCommandFailure> {
        let asked = Command::Block(BlockCommand::ReadCapacity16 { allocation_length: 32 });
        let told = self.perform(asked, Data::new()).await?.into_bytes();
        Capacity16::from_bytes(&told)
            .filter(|capacity| capacity.block_size > 0)
            .ok_or_else(|| Sense::THIRD_PARTY_DEVICE_FAILURE.into())
    }

    pub(super) async fn read(&self, lba: u64, blocks: u32) -> Result<Data, UnitCommandFailure> {
        let transfer = BlockTransfer { form: Form::Sixteen, ..BlockTransfer::new(lba, blocks) };
        self.perform(Command::Block(BlockCommand::Read(transfer)), Data::new()).await
    }

    pub(super) async fn write(
        &self,
        lba: u64,
        blocks: u32,
        data: Data,
    ) -> Result<(), UnitCommandFailure> {
        let transfer = BlockTransfer { form: Form::Sixteen, ..BlockTransfer::new(lba, blocks) };
        self.perform(Command::Block(BlockCommand::Write(transfer)), data).await?;
        // Yield to other tasks, since a volume in memory completes every call without waiting.
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn perform(&self, command: Command, data_out: Data) -> Result<Data, UnitCommandFailure> {
        let task = Task {
            nexus: self.nexus.clone(),
            lun: Lun(0),
            cdb: Cdb::new(&command.encode()),
            // The copy command may have to wait for other tasks. The commands that it sends must not: such a task may
            // itself wait for the copy.
            attribute: TaskAttribute::Nested,
            data_out,
            data_in_capacity: u32::MAX,
            admitted: None,
        };
        let completion = match &self.unit {
            CopyPartyUnit::Own(unit) => unit.execute(task).await,
            CopyPartyUnit::Other { asked, naa } => {
                let unit = asked.primary.neighbour(self.nexus, naa);
                unit.ok_or(Sense::UNREACHABLE_COPY_TARGET)?.execute(task).await
            }
        };
        match completion.status {
            ScsiStatus::Good => Ok(completion.data_in),
            ScsiStatus::Busy => Err(UnitCommandFailure::Busy),
            _ => Err(Sense::THIRD_PARTY_DEVICE_FAILURE.into()),
        }
    }
}

/// Splits the blocks of a segment into pieces, by offset. Returns them in descending order if the copy
/// overlaps itself such that ascending order would overwrite blocks before they are read.
fn pieces_of(segment: &CopySegment, block_size: u32, same: bool) -> Vec<(u64, u32)> {
    let blocks = u32::from(segment.blocks);
    if blocks == 0 {
        return Vec::new();
    }
    let extent = Extent { lba: Lba(0), blocks };
    let step = (PIECE / block_size).max(1);
    let count = extent.blocks.div_ceil(step);
    let piece = |index: u32| (u64::from(index * step), step.min(blocks - index * step));
    let backwards = same && segment.destination_lba > segment.source_lba;
    (0..count).map(|index| piece(if backwards { count - 1 - index } else { index })).collect()
}

/// Bytes that a copy reads, and then writes, in one step: four times the length of a typical READ, so that a far volume
/// has several requests to work on in parallel.
pub(super) const PIECE: u32 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlapping_copy_moves_blocks_before_it_overwrites_them() {
        let segment = CopySegment {
            source: 0,
            destination: 0,
            blocks: 20_000,
            source_lba: 0,
            destination_lba: 5,
        };
        let forwards = [(0, 8192), (8192, 8192), (16384, 3616)];
        assert_eq!(pieces_of(&segment, 512, false), forwards);
        let backwards: Vec<_> = forwards.into_iter().rev().collect();
        assert_eq!(pieces_of(&segment, 512, true), backwards);
        assert_eq!(pieces_of(&CopySegment { blocks: 0, ..segment }, 512, true), []);
    }
}
