//! Starts the commands of a block device: everything up to the first call on the volume.

use scsi::{BlockCommand, Command, PrimaryCommand, VendorCommand};

use super::{BlockCommandInput, BlockUnit};
use crate::{
    Completion, Nexus, Task, UnitReply, gate,
    primary::{PrimaryCommandInput, TaskTurn, reply::taking},
};

impl BlockUnit {
    /// Begins a task.
    ///
    /// # Errors
    /// The completion of a task that ends at once, because it is refused or has nothing to do.
    pub(super) fn start<'a>(
        &'a self,
        task: Task,
        turn: TaskTurn<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        if matches!(task.cdb.first(), Some(0x00 | 0x25 | 0x9e)) {
            // Ask the volume for a new size before TEST UNIT READY and READ CAPACITY: initiators send them
            // before they use a disk, and path checkers send them regularly.
            self.volume.extensions().refresh();
        }
        let geometry = self.geometry();
        let command = gate::begin(&self.primary, self, &task)?;
        let Task { nexus, data_out, data_in_capacity, .. } = task;
        self.writers.note_change(nexus.number, &command);
        let work = BlockCommandInput { data: data_out, geometry, turn, nexus: nexus.number };
        match command {
            Command::Block(command) => self.start_block(nexus, command, data_in_capacity, work),
            Command::Primary(command) => self.start_primary(nexus, command, work),
            Command::Vendor(command) => self.start_vendor(&nexus, command, data_in_capacity, work),
        }
    }

    /// `room`: bytes of Data-In that the initiator can take.
    fn start_block<'a>(
        &'a self,
        nexus: Nexus,
        command: BlockCommand,
        room: u32,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        match command {
            BlockCommand::Read(transfer) => self.read(transfer, room, work),
            BlockCommand::Write(transfer) => self.write(transfer, work),
            BlockCommand::WriteAndVerify { transfer, byte_check } => {
                self.write_and_verify(transfer, byte_check, work)
            }
            BlockCommand::Verify { transfer, byte_check } => {
                self.verify(transfer, byte_check, work)
            }
            BlockCommand::CompareAndWrite(transfer) => self.compare_and_write(transfer, work),
            BlockCommand::OrWrite(transfer) => self.or_write(transfer, work),
            BlockCommand::WriteAtomic { transfer, boundary } => {
                self.write_atomic(transfer, boundary, work)
            }
            BlockCommand::PreFetch { transfer, immediate } => {
                self.pre_fetch(transfer, immediate, work)
            }
            BlockCommand::GetLbaStatus { lba, allocation_length } => {
                self.get_lba_status(lba, allocation_length, work)
            }
            BlockCommand::Sanitize(asked) => self.sanitize(asked, work),
            BlockCommand::PopulateToken { list, parameter_list_length } => {
                self.populate_token(nexus, list, parameter_list_length, work)
            }
            BlockCommand::WriteUsingToken { list, parameter_list_length } => {
                self.write_using_token(nexus, list, parameter_list_length, work)
            }
            BlockCommand::SynchronizeCache { transfer, .. } => {
                self.synchronize_cache(&nexus, transfer, work)
            }
            BlockCommand::Unmap { anchor, parameter_list_length } => {
                self.check_unmap(anchor, &work.geometry)?;
                self.unmap(usize::from(parameter_list_length), work)
            }
            BlockCommand::WriteSame { .. } => {
                let write_same = self.check_write_same(&command, &work.geometry)?;
                self.write_same(write_same, work)
            }
            BlockCommand::StartStop(start_stop) => self.start_stop(&nexus, start_stop, work),
            BlockCommand::PreventAllow { prevent } => {
                self.medium.keep(nexus.number, prevent);
                Err(taking(0))
            }
            BlockCommand::ReadDefectData(_)
            | BlockCommand::ReadCapacity10
            | BlockCommand::ReadCapacity16 { .. } => Err(self.describe(&command, work.geometry)),
        }
    }

    fn start_primary<'a>(
        &'a self,
        nexus: Nexus,
        command: PrimaryCommand,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        match command {
            PrimaryCommand::ExtendedCopy { long, parameter_list_length } => {
                self.extended_copy(nexus, long, parameter_list_length, work)
            }
            PrimaryCommand::CopyOperationAbort { list } => self.abort_copy(&nexus, list, work),
            PrimaryCommand::ReceiveCopyResults { results, allocation_length } => Err(
                self.receive_copy_results(&nexus, results, allocation_length, &work.geometry)?
            ),
            PrimaryCommand::ModeSelect(select) => {
                self.primary.mode_select(self, nexus, select, &work.data, work.turn)
            }
            PrimaryCommand::ModeSense(asked) => Err(self.primary.mode_sense(self, &asked)?),
            _ => {
                let BlockCommandInput { data, geometry, turn, .. } = work;
                let input = PrimaryCommandInput { nexus, data, turn };
                self.primary.start(&self.description(geometry), &command, input)
            }
        }
    }

    fn start_vendor<'a>(
        &'a self,
        nexus: &Nexus,
        command: VendorCommand,
        room: u32,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        match command {
            VendorCommand::RollBack => self.roll_back(work),
            VendorCommand::ClaimIn { allocation_length } => {
                Err(self.claim_in(nexus, allocation_length)?)
            }
            VendorCommand::ClaimOut { action, parameter_list_length } => {
                self.claim_out(nexus, action, parameter_list_length, work)
            }
            VendorCommand::TokenIn { wait_ms, allocation_length } => {
                self.token_in(wait_ms, allocation_length.min(room), work)
            }
            VendorCommand::TokenOut { parameter_list_length } => {
                self.token_out(parameter_list_length, work)
            }
        }
    }
}
