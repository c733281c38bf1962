//! MODE SELECT.

use scsi::{
    ModeSelect, Sense,
    mode::{ModePage, ModeParameters},
};
use volume::Geometry;

use super::{BlockCommandInput, BlockUnit};
use crate::{
    Completion, Nexus, UnitReply,
    primary::modes::Modes,
    primary::reply::{finished, parameter_list, taking, taking_with},
};

impl BlockUnit {
    pub(super) fn mode_select<'a>(
        &'a self,
        nexus: Nexus,
        select: ModeSelect,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let length = u32::from(select.parameter_list_length);
        if select.revert {
            return Err(Sense::invalid_bit_in_cdb(1, 1).into());
        }
        if select.save && self.primary.modes.saved().is_none() {
            return Err(Sense::invalid_bit_in_cdb(1, 0).into());
        }
        if length == 0 {
            return Err(taking(0));
        }
        // Pages of a format of our own there are none.
        if !select.page_format {
            return Err(Sense::invalid_bit_in_cdb(1, 4).into());
        }
        let list = parameter_list(&work.data, length as usize)?;
        // Whether writes are refused below does not change what the pages can be.
        let wanted = self
            .wanted_modes(&list, select.ten, self.volume.geometry())
            .map_err(|sense| taking_with(length, sense.into()))?;
        let change = async move {
            let before = self.primary.modes.current();
            if let Some(ownership) = &self.writers.ownership
                && (wanted.write_through, wanted.write_protect)
                    != (before.write_through, before.write_protect)
            {
                // The flush below would end an epoch of another nexus in the middle.
                ownership.check_modes(nexus.number)?;
            }
            // What was answered under the old values is stable before the new ones are in force.
            if wanted.write_through && !before.write_through
                || wanted.write_protect && !before.write_protect
            {
                self.flush_as(nexus.number).await?;
            }
            if select.save {
                self.primary.modes.save(wanted).await?;
            }
            if self.primary.modes.set(wanted) {
                self.primary.raise(Sense::MODE_PARAMETERS_CHANGED, Some(nexus.number));
            }
            Ok(())
        };
        Ok(finished(change, length, work.turn))
    }

    /// The values that a parameter list asks for, if each can be.
    fn wanted_modes(&self, list: &[u8], ten: bool, geometry: Geometry) -> Result<Modes, Sense> {
        let parameters = ModeParameters::from_select(list, ten)?;
        let header = if ten { 8 } else { 4 };
        let mut at = header;
        if let Some(block) = parameters.block {
            // The disk keeps its size (SBC-3, 6.5.2: 0 and all ones, too, mean "as it is").
            let most = if block.long { u64::MAX } else { u64::from(u32::MAX) };
            let same_size = [0, geometry.blocks, most].contains(&block.blocks);
            if !same_size || ![0, geometry.block_size].contains(&block.block_size) {
                return Err(Sense::invalid_field_in_parameter_list(header));
            }
            at += if block.long { 16 } else { 8 };
        }
        let mut wanted = self.primary.modes.current();
        let pages = self.mode_pages(geometry);
        let (current, changeable) = (pages.with(wanted), pages.changeable());
        for page in &parameters.pages {
            let known = current
                .iter()
                .zip(&changeable)
                .find(|(known, _)| (known.code, known.subpage) == (page.code, page.subpage));
            let start = at + if page.subpage == 0 { 2 } else { 4 };
            let Some((known, changeable)) = known else {
                return Err(Sense::invalid_field_in_parameter_list(at));
            };
            if known.parameters.len() != page.parameters.len() {
                return Err(Sense::invalid_field_in_parameter_list(at + 1));
            }
            if let Some(wrong) = first_fixed_difference(known, changeable, page) {
                return Err(Sense::invalid_field_in_parameter_list(start + wrong));
            }
            wanted = wanted.with_page(page, &geometry);
            at = start + page.parameters.len() as u16;
        }
        Ok(wanted)
    }
}

/// The first byte in which a page differs from the current one where nothing can be changed.
fn first_fixed_difference(
    current: &ModePage,
    changeable: &ModePage,
    wanted: &ModePage,
) -> Option<u16> {
    let bytes = current.parameters.iter().zip(&changeable.parameters).zip(&wanted.parameters);
    let mut fixed = bytes.map(|((current, changeable), wanted)| (current ^ wanted) & !changeable);
    fixed.position(|difference| difference != 0).map(|at| at as u16)
}
