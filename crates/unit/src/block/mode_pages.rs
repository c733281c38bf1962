//! What MODE SENSE returns: pages with the values that are asked for.

use scsi::{
    ModeSense, PageControl, Sense,
    mode::{
        BlockDescriptor, CachingModePage, ControlModePage, ModePage, ModeParameters,
        ProvisioningThreshold,
    },
};
use volume::Geometry;

use crate::primary::modes::Modes;

/// The facts that the pages are made from.
pub(crate) struct ModePages {
    pub(crate) geometry: Geometry,
    pub(crate) current: Modes,
    /// `None` where nothing is ever saved.
    pub(crate) saved: Option<Modes>,
    /// Where a soft threshold is set on the space of a thin volume.
    pub(crate) threshold: Option<ProvisioningThreshold>,
}

impl ModePages {
    /// MODE SENSE.
    pub(crate) fn sense(&self, asked: &ModeSense) -> Result<Vec<u8>, Sense> {
        let mut pages = match asked.control {
            PageControl::Current => self.with(self.current),
            PageControl::Changeable => self.changeable(),
            PageControl::Default => self.with(Modes::default()),
            PageControl::Saved => {
                self.with(self.saved.ok_or(Sense::SAVING_PARAMETERS_NOT_SUPPORTED)?)
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
        let block = BlockDescriptor {
            blocks: self.geometry.blocks,
            block_size: self.geometry.block_size,
            long: asked.long_lba,
        };
        let parameters = ModeParameters {
            write_protected: self.geometry.read_only || self.current.write_protect,
            dpo_fua: true,
            block: (!asked.no_block_descriptors).then_some(block),
            pages,
        };
        Ok(if asked.ten { parameters.to_bytes_10() } else { parameters.to_bytes_6() })
    }

    /// All pages with these values, ascending.
    pub(crate) fn with(&self, modes: Modes) -> Vec<ModePage> {
        self.around(modes.pages(&self.geometry))
    }

    /// All pages with ones where something can be changed.
    pub(crate) fn changeable(&self) -> Vec<ModePage> {
        let changeable = Modes::changeable(&self.geometry);
        let can_change = [CachingModePage::PAGE, ControlModePage::PAGE];
        let mut pages = self.around(changeable);
        for page in pages.iter_mut().filter(|page| !can_change.contains(&page.code)) {
            page.parameters.fill(0);
        }
        pages
    }

    /// The two pages that change among the others.
    fn around(&self, pages: [ModePage; 2]) -> Vec<ModePage> {
        let [mut caching, mut control] = pages;
        caching.saveable = self.saved.is_some();
        control.saveable = self.saved.is_some();
        let mut pages = vec![
            ModePage::error_recovery(),
            caching,
            control,
            ModePage::no_informational_exceptions(),
        ];
        pages.extend(self.threshold.map(ProvisioningThreshold::to_page));
        pages
    }
}

impl Modes {
    /// Returns the two pages of these parameters. WCE of a unit with epochs is always 1 and cannot be changed. With
    /// WCE=0 each write of a gateway would end an epoch, so that a part of the gateway's epoch would become stable.
    pub(crate) fn pages(self, geometry: &Geometry) -> [ModePage; 2] {
        let caching = CachingModePage {
            write_cache: geometry.volatile_cache
                && (!self.write_through || geometry.epoch_blocks > 0),
            read_cache_disabled: false,
        };
        let control = ControlModePage {
            descriptor_sense: self.descriptor_sense,
            unrestricted_reordering: true,
            write_protect: self.write_protect,
            // How long a lower volume stays away nobody knows.
            busy_timeout: 0xffff,
        };
        [caching.to_page(), control.to_page()]
    }

    /// What of the two pages can be changed, as MODE SENSE shows it: ones.
    pub(crate) fn changeable(geometry: &Geometry) -> [ModePage; 2] {
        let everything = Self { write_through: true, write_protect: true, descriptor_sense: true };
        let (none, all) = (Self::default().pages(geometry), everything.pages(geometry));
        let mut pages = none.clone();
        for ((page, none), all) in pages.iter_mut().zip(none).zip(all) {
            let bits = none.parameters.iter().zip(all.parameters).map(|(a, b)| a ^ b);
            page.parameters = bits.collect();
        }
        pages
    }

    /// These values with those of a page that an initiator wants.
    pub(crate) fn with_page(self, page: &ModePage, geometry: &Geometry) -> Self {
        if let Some(caching) = CachingModePage::from_page(page) {
            // Without a write cache there is nothing to turn off, and nothing is remembered.
            let write_through =
                if geometry.volatile_cache { !caching.write_cache } else { self.write_through };
            return Self { write_through, ..self };
        }
        match ControlModePage::from_page(page) {
            Some(control) => Self {
                write_protect: control.write_protect,
                descriptor_sense: control.descriptor_sense,
                ..self
            },
            None => self,
        }
    }
}

/// PAGE CODE of MODE SENSE.
const ALL_PAGES: u8 = 0x3f;
/// SUBPAGE CODE of MODE SENSE.
const ALL_SUBPAGES: u8 = 0xff;
