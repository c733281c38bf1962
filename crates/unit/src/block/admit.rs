//! Checks a command before its data is solicited, so that the initiator sends no data that would be refused.

use scsi::{AdmittedCommand, BlockCommand, BlockTransfer, Cdb, Command, Sense};
use volume::Geometry;

use super::{BlockUnit, bounds::writable};
use crate::{Completion, Nexus, block::access, gate, primary::check_parameter_list};

impl BlockUnit {
    /// Checks that the unit would accept a command with `data_out_length` bytes of Data-Out now. Returns the result of
    /// the checks, which the session keeps with the task.
    ///
    /// # Errors
    /// The completion that refuses the command.
    pub(super) fn check_admission(
        &self,
        nexus: &Nexus,
        cdb: &Cdb,
        data_out_length: u32,
    ) -> Result<AdmittedCommand, Completion> {
        let geometry = self.geometry();
        let (command, admitted) = gate::admit(&self.primary, self, nexus, cdb)?;
        let bytes = match command {
            Command::Block(command) => self.bytes_of(&command, data_out_length, &geometry)?,
            Command::Primary(command) => {
                check_parameter_list(&command)?;
                None
            }
            Command::Vendor(_) => None,
        };
        if let Some(bytes) = bytes {
            // The command has not changed any block yet, so BUSY is a valid answer to every failure.
            self.volume.admit(bytes as usize).map_err(access::failed_flush)?;
        }
        Ok(admitted)
    }

    /// Returns the number of bytes that the volume must have room for. `None` if the command writes no
    /// blocks, or writes blocks without Data-Out.
    fn bytes_of(
        &self,
        command: &BlockCommand,
        data_out_length: u32,
        geometry: &Geometry,
    ) -> Result<Option<u32>, Sense> {
        Ok(Some(match command {
            BlockCommand::Write(transfer) | BlockCommand::WriteAndVerify { transfer, .. } => {
                self.bytes_to_write(transfer, geometry)?.min(data_out_length)
            }
            BlockCommand::OrWrite(transfer) => {
                let bytes = self.bytes_to_write(transfer, geometry)?.min(data_out_length);
                bytes.min(access::PIECE as u32)
            }
            BlockCommand::CompareAndWrite(transfer) => {
                let extent = self.check_compare_and_write(transfer, geometry)?;
                extent.map_or(0, |e| e.blocks) * geometry.block_size
            }
            BlockCommand::WriteAtomic { transfer, boundary } => {
                let extent = self.check_write_atomic(transfer, *boundary, geometry)?;
                extent.map_or(0, |e| e.blocks) * geometry.block_size
            }
            BlockCommand::WriteSame { .. } => {
                // The unit performs WRITE SAME one piece at a time, so the volume needs room for one piece.
                let extent = self.check_write_same(command, geometry)?.extent;
                let bytes = extent.map_or(0, |e| e.blocks) * geometry.block_size;
                bytes.min(access::PIECE as u32)
            }
            BlockCommand::Sanitize(asked) => {
                self.check_sanitize(asked, geometry)?;
                return Ok(None);
            }
            BlockCommand::Unmap { anchor, .. } => {
                self.check_unmap(*anchor, geometry)?;
                return Ok(None);
            }
            _ => return Ok(None),
        }))
    }

    fn bytes_to_write(&self, transfer: &BlockTransfer, geometry: &Geometry) -> Result<u32, Sense> {
        writable(geometry)?;
        let extent = self.extent(transfer, geometry)?;
        Ok(extent.map_or(0, |extent| extent.blocks * geometry.block_size))
    }
}
