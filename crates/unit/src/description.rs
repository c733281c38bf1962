//! What a block unit says of itself: INQUIRY, mode pages, capacity, commands.

use scsi::{
    Capacity10, Capacity16, ModeSense, OPERATIONS, Operation, PageControl, Reporting, Sense,
    inquiry::{StandardInquiry, ascii},
    mode::{BlockDescriptor, Caching, Control, ModePage, ModeParameters},
    supported_operation, supported_operations,
    vpd::{
        Association, BlockDeviceCharacteristics, BlockLimits, Designator, DeviceIdentification,
        ExtendedInquiry, LogicalBlockProvisioning, ProvisioningType, SupportedPages,
        ThirdPartyCopy, UnitSerialNumber,
    },
};
use volume::Geometry;

use crate::{
    identity::Identity,
    limits::{Limits, TOKEN_BYTES_MOST, TOKEN_TIMEOUT_S, TOKEN_TIMEOUT_S_MOST},
};

/// The facts that the answers are made from.
pub(crate) struct Description<'a> {
    pub(crate) identity: &'a Identity,
    pub(crate) geometry: Geometry,
    pub(crate) limits: Limits,
}

impl Description<'_> {
    pub(crate) fn inquiry(&self, page: Option<u8>) -> Result<Vec<u8>, Sense> {
        let Some(page) = page else { return Ok(self.standard_inquiry().to_bytes()) };
        Ok(match page {
            SupportedPages::PAGE => SupportedPages(PAGES.to_vec()).to_bytes(),
            UnitSerialNumber::PAGE => UnitSerialNumber(self.serial()).to_bytes(),
            DeviceIdentification::PAGE => self.identification().to_bytes(),
            ExtendedInquiry::PAGE => self.extended().to_bytes(),
            BlockLimits::PAGE => self.block_limits().to_bytes(),
            BlockDeviceCharacteristics::PAGE => {
                // It does not rotate: seeks cost nothing.
                // After a BLOCK ERASE every block reads as zeros.
                let reads_after_block_erase = self.geometry.in_place;
                BlockDeviceCharacteristics { rotation_rate: 1, reads_after_block_erase }.to_bytes()
            }
            ThirdPartyCopy::PAGE => self.third_party_copy().to_bytes(),
            LogicalBlockProvisioning::PAGE => self.provisioning().to_bytes(),
            _ => return Err(Sense::invalid_field_in_cdb(2)),
        })
    }

    fn standard_inquiry(&self) -> StandardInquiry {
        StandardInquiry::disk(
            ascii(&self.identity.vendor),
            ascii(&self.identity.product),
            ascii(&self.identity.revision),
        )
    }

    fn serial(&self) -> String {
        let printable = |c: char| if matches!(c, ' '..='~') { c } else { '?' };
        self.identity.serial.chars().take(SERIAL_CHARACTERS).map(printable).collect()
    }

    fn identification(&self) -> DeviceIdentification {
        let mut names = vec![
            Designator::naa(&self.identity.naa),
            Designator::t10(ascii(&self.identity.vendor), &self.serial()),
        ];
        if let Some(target) = &self.identity.target_name {
            // A target port of iSCSI is a portal group of a target (RFC 7143, 4.4.1).
            let port = format!("{target},t,0x{:04x}", self.identity.portal_group);
            names.push(Designator::iscsi_name(Association::TargetPort, &port));
            names.push(Designator::relative_target_port(self.identity.portal_group));
            names.push(Designator::iscsi_name(Association::Target, target));
        }
        DeviceIdentification(names)
    }

    fn extended(&self) -> ExtendedInquiry {
        ExtendedInquiry {
            head_of_queue: true,
            ordered: true,
            simple: true,
            volatile_cache: self.geometry.volatile_cache,
        }
    }

    fn block_limits(&self) -> BlockLimits {
        let limits = self.limits;
        BlockLimits {
            write_same_nonzero: !limits.write_same_to_end,
            compare_and_write_blocks: limits.compare_and_write_blocks,
            granularity_blocks: u16::try_from(limits.physical_blocks).unwrap_or(0),
            maximum_blocks: limits.maximum_blocks,
            optimal_blocks: limits.optimal_blocks,
            unmap_blocks: limits.unmap_blocks,
            unmap_descriptors: limits.unmap_descriptors,
            unmap_granularity_blocks: if self.geometry.thin { limits.unmap_granularity } else { 0 },
            unmap_alignment: self.geometry.thin.then_some(0),
            write_same_blocks: u64::from(limits.maximum_blocks),
            atomic_blocks: limits.atomic_blocks,
            atomic_granularity_blocks: if limits.atomic_blocks > 0 {
                limits.physical_blocks
            } else {
                0
            },
        }
    }

    fn third_party_copy(&self) -> ThirdPartyCopy {
        let block_size = self.geometry.block_size;
        let token_blocks = TOKEN_BYTES_MOST / u64::from(block_size);
        ThirdPartyCopy {
            block_size,
            token_blocks,
            optimal_blocks: token_blocks,
            default_timeout_s: TOKEN_TIMEOUT_S,
            maximum_timeout_s: TOKEN_TIMEOUT_S_MOST,
        }
    }

    fn provisioning(&self) -> LogicalBlockProvisioning {
        let thin = self.geometry.thin;
        LogicalBlockProvisioning {
            unmap: thin,
            write_same_16: thin,
            write_same_10: thin,
            reads_zeros: thin,
            anchor: false,
            provisioning: if thin { ProvisioningType::Thin } else { ProvisioningType::Full },
        }
    }

    pub(crate) fn mode_sense(&self, asked: &ModeSense) -> Result<Vec<u8>, Sense> {
        if asked.control == PageControl::Saved {
            return Err(Sense::SAVING_PARAMETERS_NOT_SUPPORTED);
        }
        // Subpage 00h is the page itself, FFh all its subpages: the same, where there are none.
        if !matches!(asked.subpage, 0x00 | 0xff) {
            return Err(Sense::invalid_field_in_cdb(3));
        }
        let mut pages = self.mode_pages();
        if asked.page != ALL_PAGES {
            pages.retain(|page| page.code == asked.page);
        }
        if pages.is_empty() {
            return Err(Sense::invalid_field_in_cdb(2));
        }
        if asked.control == PageControl::Changeable {
            pages = pages.into_iter().map(ModePage::nothing_changeable).collect();
        }
        let block = BlockDescriptor {
            blocks: self.geometry.blocks,
            block_size: self.geometry.block_size,
            long: asked.long_lba,
        };
        let parameters = ModeParameters {
            write_protected: self.geometry.read_only,
            dpo_fua: true,
            block: (!asked.no_block_descriptors).then_some(block),
            pages,
        };
        Ok(if asked.ten { parameters.to_bytes_10() } else { parameters.to_bytes_6() })
    }

    /// Current values and defaults are the same: nothing can be changed.
    fn mode_pages(&self) -> Vec<ModePage> {
        let caching =
            Caching { write_cache: self.geometry.volatile_cache, read_cache_disabled: false };
        let control = Control {
            descriptor_sense: false,
            unrestricted_reordering: true,
            write_protect: false,
            // How long a lower volume stays away nobody knows.
            busy_timeout: 0xffff,
        };
        vec![
            ModePage::error_recovery(),
            caching.to_page(),
            control.to_page(),
            ModePage::no_informational_exceptions(),
        ]
    }

    pub(crate) fn capacity_10(&self) -> Vec<u8> {
        let last_lba = u32::try_from(self.last_lba()).unwrap_or(u32::MAX);
        Capacity10 { last_lba, block_size: self.geometry.block_size }.to_bytes()
    }

    pub(crate) fn capacity_16(&self) -> Vec<u8> {
        Capacity16 {
            last_lba: self.last_lba(),
            block_size: self.geometry.block_size,
            physical_exponent: self.limits.physical_blocks.trailing_zeros().min(15) as u8,
            lowest_aligned: 0,
            provisioning: self.geometry.thin,
            reads_zeros: self.geometry.thin,
        }
        .to_bytes()
    }

    fn last_lba(&self) -> u64 {
        self.geometry.blocks.saturating_sub(1)
    }

    pub(crate) fn supported(&self, asked: Reporting, timeouts: bool) -> Result<Vec<u8>, Sense> {
        let find = |opcode, action| Operation::find(opcode, action).filter(|o| self.serves(o));
        let has_actions =
            |opcode| OPERATIONS.iter().any(|o| o.opcode == opcode && o.service_action.is_some());
        let found = match asked {
            Reporting::All => {
                let served = OPERATIONS.iter().filter(|o| self.serves(o));
                return Ok(supported_operations(served, timeouts));
            }
            Reporting::OperationCode(opcode) if has_actions(opcode) => {
                return Err(Sense::invalid_bit_in_cdb(2, 2));
            }
            Reporting::OperationCode(opcode) => find(opcode, None),
            Reporting::ServiceAction(opcode, action) => {
                // Only for opcodes that have no service actions this is an error.
                if !has_actions(opcode) && find(opcode, None).is_some() {
                    return Err(Sense::invalid_bit_in_cdb(2, 2));
                }
                find(opcode, Some(action))
            }
            Reporting::Either(opcode, 0) if !has_actions(opcode) => find(opcode, None),
            Reporting::Either(opcode, action) => find(opcode, Some(action)),
        };
        Ok(supported_operation(found, timeouts))
    }

    /// Which of all commands that can be parsed this volume can serve.
    fn serves(&self, operation: &Operation) -> bool {
        match operation.opcode {
            UNMAP => self.geometry.thin,
            WRITE_ATOMIC => self.limits.atomic_blocks > 0,
            SANITIZE => self.geometry.in_place,
            _ => true,
        }
    }
}

/// VPD pages, ascending.
const PAGES: [u8; 8] = [
    SupportedPages::PAGE,
    UnitSerialNumber::PAGE,
    DeviceIdentification::PAGE,
    ExtendedInquiry::PAGE,
    ThirdPartyCopy::PAGE,
    BlockLimits::PAGE,
    BlockDeviceCharacteristics::PAGE,
    LogicalBlockProvisioning::PAGE,
];
/// PAGE CODE of MODE SENSE.
const ALL_PAGES: u8 = 0x3f;
/// Operation codes.
const UNMAP: u8 = 0x42;
const SANITIZE: u8 = 0x48;
const WRITE_ATOMIC: u8 = 0x9c;
/// What fits behind the eight of the vendor in a designator of 255 bytes.
const SERIAL_CHARACTERS: usize = 240;
