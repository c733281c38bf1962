//! The commands that unmap blocks: UNMAP and WRITE SAME.

use scsi::{BlockCommand, Sense, parse_unmap_list};
use smallvec::SmallVec;
use volume::{Data, Extent, Geometry, Lba};

use super::{
    BlockCommandInput, BlockUnit,
    bounds::{in_range, list_to_do, one_block, too_long, writable},
};
use crate::{
    Completion, UnitReply,
    block::access,
    primary::reply::{at_once, finished, taking, taking_with},
};

/// The parameters of a WRITE SAME command after all checks.
pub(super) struct WriteSame {
    /// The blocks to write; `None` if the command covers none, at the very end of the unit.
    pub(super) extent: Option<Extent>,
    unmap: bool,
    no_data_out: bool,
}

impl BlockUnit {
    pub(super) fn check_unmap(&self, anchor: bool, geometry: &Geometry) -> Result<(), Sense> {
        if !geometry.thin {
            return Err(Sense::INVALID_COMMAND_OPERATION_CODE);
        }
        if anchor {
            return Err(Sense::invalid_bit_in_cdb(1, 0));
        }
        writable(geometry)
    }

    /// UNMAP. Checks every descriptor before the first block is unmapped.
    pub(super) fn unmap<'a>(
        &'a self,
        length: usize,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let list = list_to_do(&work.data, length)?;
        let taken = length as u32;
        let limits = self.limits(&work.geometry);
        let descriptors = parse_unmap_list(&list)?;
        if descriptors.len() > limits.unmap_descriptors as usize {
            return Err(Sense::invalid_field_in_parameter_list(2).into());
        }
        let mut extents = SmallVec::<[Extent; 4]>::new();
        let mut all = 0;
        for descriptor in descriptors {
            in_range(descriptor.lba, u64::from(descriptor.blocks), &work.geometry)?;
            all += u64::from(descriptor.blocks);
            if descriptor.blocks > 0 {
                extents.push(Extent { lba: Lba(descriptor.lba), blocks: descriptor.blocks });
            }
        }
        if all > u64::from(limits.unmap_blocks) {
            return Err(Sense::invalid_field_in_parameter_list(8).into());
        }
        Ok(finished(self.discard(extents, work.geometry, work.nexus), taken, work.turn))
    }

    pub(super) fn check_write_same(
        &self,
        command: &BlockCommand,
        geometry: &Geometry,
    ) -> Result<WriteSame, Sense> {
        let BlockCommand::WriteSame { transfer, unmap, anchor, no_data_out } = *command else {
            unreachable!("the caller matched it");
        };
        // An anchor reserves the space of an unmapped block, which no volume can promise.
        if anchor {
            return Err(Sense::invalid_bit_in_cdb(1, 4));
        }
        if unmap && !geometry.thin {
            return Err(Sense::invalid_bit_in_cdb(1, 3));
        }
        writable(geometry)?;
        let asked = u64::from(transfer.blocks);
        in_range(transfer.lba, asked, geometry)?;
        if asked == 0 && !self.settings.write_same_to_end {
            return Err(too_long(transfer.form));
        }
        // With WSNZ=0, a length of zero means all blocks up to the end of the unit.
        let blocks = if asked == 0 { geometry.blocks - transfer.lba } else { asked };
        if blocks > u64::from(self.limits(geometry).maximum_blocks) {
            return Err(too_long(transfer.form));
        }
        let extent =
            (blocks > 0).then_some(Extent { lba: Lba(transfer.lba), blocks: blocks as u32 });
        Ok(WriteSame { extent, unmap, no_data_out })
    }

    pub(super) fn write_same<'a>(
        &'a self,
        asked: WriteSame,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let BlockCommandInput { data, geometry, turn, nexus } = work;
        let (taken, block) = if asked.no_data_out {
            (0, Ok(Data::zeros(geometry.block_size as usize).into_bytes()))
        } else {
            (geometry.block_size, one_block(data, &geometry))
        };
        let block = match block {
            Ok(block) => block,
            Err(sense) => return Err(taking_with(taken, sense.into())),
        };
        let Some(extent) = asked.extent else { return Ok(at_once(taking(taken))) };
        // Unmap the blocks only if they then read as the data that was to be written, which is zeros.
        if asked.unmap && block.iter().all(|byte| *byte == 0) {
            let extents = SmallVec::from_slice(&[extent]);
            return Ok(finished(self.discard(extents, geometry, nexus), taken, turn));
        }
        self.watch_space(u64::from(extent.blocks) * u64::from(geometry.block_size), &geometry);
        let durability = self.durability(false, &geometry);
        let write = async move {
            let _claim = self.claim(extent, &geometry).await;
            self.check_token(nexus, extent)?;
            access::write_same(&*self.volume, extent, block, durability).await
        };
        Ok(finished(write, taken, turn))
    }
}
