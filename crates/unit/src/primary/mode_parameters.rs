//! MODE SENSE and MODE SELECT (SPC-4, 6.11 to 6.14): the pages of every device type, and the checks of a list of pages.

use scsi::{
    ModeSelect, ModeSense, PageControl, Sense,
    mode::{ControlModePage, ModePage, ModeParameters},
};
use volume::Data;

use super::{
    PrimaryUnit,
    device::DeviceModes,
    modes::Modes,
    order::TaskTurn,
    reply::{answer, parameter_list, taking, taking_with},
};
use crate::{Completion, Nexus, UnitReply};

impl PrimaryUnit {
    /// MODE SENSE of a device type with mode parameters.
    ///
    /// # Errors
    /// 5/24/00 for a page that the unit does not have; 5/39/00 for saved values of a unit that saves none.
    pub fn mode_sense(
        &self,
        device: &impl DeviceModes,
        asked: &ModeSense,
    ) -> Result<Completion, Sense> {
        let current = self.modes.current();
        let mut pages = match asked.control {
            PageControl::Current => self.mode_pages(device, current),
            PageControl::Changeable => self.changeable_pages(device),
            PageControl::Default => self.mode_pages(device, Modes::default()),
            PageControl::Saved => {
                let saved = self.modes.saved().ok_or(Sense::SAVING_PARAMETERS_NOT_SUPPORTED)?;
                self.mode_pages(device, saved)
            }
        };
        let all = asked.page == ALL_PAGES;
        pages.retain(|page| all || page.code == asked.page);
        if pages.is_empty() {
            return Err(Sense::invalid_field_in_cdb(2));
        }
        pages.retain(|page| asked.subpage == ALL_SUBPAGES || page.subpage == asked.subpage);
        if pages.is_empty() || all && !matches!(asked.subpage, 0 | ALL_SUBPAGES) {
            return Err(Sense::invalid_field_in_cdb(3));
        }
        let can_save = self.modes.saved().is_some();
        pages.iter_mut().for_each(|page| page.saveable &= can_save);
        let header = device.mode_header(current, asked.long_lba);
        let block = header.block.filter(|_| !asked.no_block_descriptors);
        let parameters = ModeParameters { block, pages, ..header };
        let bytes = if asked.ten { parameters.to_bytes_10() } else { parameters.to_bytes_6() };
        Ok(answer(bytes, u32::from(asked.allocation_length)))
    }

    /// MODE SELECT of a device type with mode parameters. `data` is the parameter list.
    ///
    /// # Errors
    /// The completion of a command that ends at once, because it is refused or its list is empty.
    pub fn mode_select<'a>(
        &'a self,
        device: &'a impl DeviceModes,
        nexus: Nexus,
        select: ModeSelect,
        data: &Data,
        turn: TaskTurn<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let length = u32::from(select.parameter_list_length);
        if select.revert {
            return Err(Sense::invalid_bit_in_cdb(1, 1).into());
        }
        if select.save && self.modes.saved().is_none() {
            return Err(Sense::invalid_bit_in_cdb(1, 0).into());
        }
        if length == 0 {
            return Err(taking(0));
        }
        // PF=0 announces a vendor-specific page format, which the unit does not have.
        if !select.page_format {
            return Err(Sense::invalid_bit_in_cdb(1, 4).into());
        }
        let list = parameter_list(data, length as usize)?;
        let wanted = self
            .wanted_modes(device, &list, select.ten)
            .map_err(|sense| taking_with(length, sense.into()))?;
        Ok(UnitReply::new(async move {
            let _turn = turn;
            match self.change_modes(device, nexus.number, wanted, select.save).await {
                Ok(()) => taking(length),
                Err(failed) => Completion { data_out_length: Some(length), ..failed },
            }
        }))
    }

    async fn change_modes(
        &self,
        device: &impl DeviceModes,
        nexus: u64,
        wanted: Modes,
        saves: bool,
    ) -> Result<(), Completion> {
        device.before_mode_change(nexus, self.modes.current(), wanted).await?;
        if saves {
            self.modes.save(wanted).await?;
        }
        if self.modes.set(wanted) {
            self.raise(Sense::MODE_PARAMETERS_CHANGED, Some(nexus));
        }
        Ok(())
    }

    /// Returns the values that a parameter list asks for, if the unit can have each of them.
    fn wanted_modes(
        &self,
        device: &impl DeviceModes,
        list: &[u8],
        ten: bool,
    ) -> Result<Modes, Sense> {
        let parameters = ModeParameters::from_select(list, ten)?;
        let header = if ten { 8 } else { 4 };
        let mut at = header;
        if let Some(block) = parameters.block {
            if !device.takes_block_descriptor(&block) {
                return Err(Sense::invalid_field_in_parameter_list(header));
            }
            at += if block.long { 16 } else { 8 };
        }
        let mut wanted = self.modes.current();
        let (current, changeable) =
            (self.mode_pages(device, wanted), self.changeable_pages(device));
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
            wanted = match ControlModePage::from_page(page) {
                Some(control) => Modes {
                    write_protect: control.write_protect,
                    descriptor_sense: control.descriptor_sense,
                    ..wanted
                },
                None => device.with_mode_page(wanted, page),
            };
            at = start + page.parameters.len() as u16;
        }
        Ok(wanted)
    }

    /// Returns all pages with these values, ascending. `saveable` is set in each page that has values of [`Modes`].
    fn mode_pages(&self, device: &impl DeviceModes, modes: Modes) -> Vec<ModePage> {
        let control = ControlModePage {
            descriptor_sense: modes.descriptor_sense,
            unrestricted_reordering: true,
            write_protect: modes.write_protect,
            // FFFFh means no limit: the unit cannot know how long a lower volume stays unreachable.
            busy_timeout: 0xffff,
        };
        let mut pages = device.mode_pages(modes);
        pages.push(ModePage { saveable: true, ..control.to_page() });
        pages.push(ModePage::no_informational_exceptions());
        pages.sort_by_key(|page| (page.code, page.subpage));
        pages
    }

    /// Returns all mode pages. A bit is 1 if MODE SELECT can change it.
    fn changeable_pages(&self, device: &impl DeviceModes) -> Vec<ModePage> {
        let everything = Modes { write_through: true, write_protect: true, descriptor_sense: true };
        let mut pages = self.mode_pages(device, Modes::default());
        for (page, changed) in pages.iter_mut().zip(self.mode_pages(device, everything)) {
            if !page.saveable {
                page.parameters.fill(0);
                continue;
            }
            for (byte, changed) in page.parameters.iter_mut().zip(changed.parameters) {
                *byte ^= changed;
            }
        }
        pages
    }
}

/// Returns the offset of the first byte in which `wanted` changes a bit that cannot be changed.
fn first_fixed_difference(
    current: &ModePage,
    changeable: &ModePage,
    wanted: &ModePage,
) -> Option<u16> {
    let bytes = current.parameters.iter().zip(&changeable.parameters).zip(&wanted.parameters);
    let mut fixed = bytes.map(|((current, changeable), wanted)| (current ^ wanted) & !changeable);
    fixed.position(|difference| difference != 0).map(|at| at as u16)
}

/// PAGE CODE of MODE SENSE for all pages.
const ALL_PAGES: u8 = 0x3f;
/// SUBPAGE CODE of MODE SENSE for all subpages.
const ALL_SUBPAGES: u8 = 0xff;
