//! The properties that a block unit reports: INQUIRY, capacity, supported commands.

use scsi::{
    Capacity10, Capacity16, OPERATIONS, OperationCodeEntry, Sense,
    inquiry::{StandardInquiry, ascii},
    log::LogPage,
    vpd::{
        BlockDeviceCharacteristics, BlockLimitsPage, ExtendedInquiry, ForebayVolume,
        LogicalBlockProvisioning, ProvisioningType, SharedModePages, ThirdPartyCopy,
    },
};
use volume::{Geometry, Holding, Volume};

use crate::{
    block::{
        limits::{TOKEN_BYTES_MOST, TOKEN_TIMEOUT_S, TOKEN_TIMEOUT_S_MOST, UnitBlockLimits},
        sanitizer::Sanitizer,
        space::{self, Space},
    },
    identity::UnitIdentity,
    primary::{DeviceType, is_identifying},
};

/// The facts that INQUIRY, READ CAPACITY and the list of supported commands are made from.
pub(crate) struct Description<'a> {
    pub(crate) identity: &'a UnitIdentity,
    pub(crate) volume: &'a dyn Volume,
    pub(crate) sanitizer: &'a Sanitizer,
    pub(crate) geometry: Geometry,
    pub(crate) limits: UnitBlockLimits,
    /// RMB: the medium can be removed.
    pub(crate) removable: bool,
    /// The free and used space below a thin volume; `None` if the volume does not report it.
    pub(crate) space: Option<Space>,
    /// True if INQUIRY claims SPC-3, see [`crate::Settings::spc_3`].
    pub(crate) spc_3: bool,
    /// True if the unit has a store, so that its records survive a restart.
    pub(crate) has_store: bool,
    /// True if several gateways write to the unit.
    pub(crate) is_shared: bool,
    /// True if several gateways serve this unit; see [`crate::Settings::is_one_of_many`].
    pub(crate) is_one_of_many: bool,
}

impl DeviceType for Description<'_> {
    fn inquiry(&self) -> StandardInquiry {
        let UnitIdentity { vendor, product, revision, .. } = self.identity;
        StandardInquiry {
            removable: self.removable,
            // 3 means implicit and explicit ALUA: the unit serves the commands of both, but they change no state.
            target_port_groups: 3,
            ..StandardInquiry::disk(ascii(vendor), ascii(product), ascii(revision))
        }
        .with_spc_3(self.spc_3)
    }

    fn vpd_pages(&self) -> Vec<u8> {
        let mut pages = PAGES.to_vec();
        pages.extend(self.has_tokens().then_some(ThirdPartyCopy::PAGE));
        pages.extend(self.has_epochs().then_some(ForebayVolume::PAGE));
        pages
    }

    fn vpd_page(&self, page: u8) -> Option<Vec<u8>> {
        Some(match page {
            ForebayVolume::PAGE if self.has_epochs() => {
                let epoch_blocks = self.geometry.epoch_blocks;
                // The unit orders flushes only for the owner of a claim, and a unit without a store has no
                // claims.
                ForebayVolume { epoch_blocks, orders_flushes: self.has_store }.to_bytes()
            }
            ExtendedInquiry::PAGE => self.extended().to_bytes(),
            SharedModePages::PAGE => SharedModePages.to_bytes(),
            BlockLimitsPage::PAGE => self.block_limits().to_bytes(),
            BlockDeviceCharacteristics::PAGE => {
                // Report a medium that does not rotate, since seeks cost nothing. After a BLOCK ERASE every block reads
                // as zeros.
                BlockDeviceCharacteristics {
                    rotation_rate: 1,
                    reads_after_block_erase: self.geometry.in_place,
                    reads_after_key_erase: self.geometry.in_place && self.geometry.key_erasable,
                }
                .to_bytes()
            }
            ThirdPartyCopy::PAGE if self.has_tokens() => self.third_party_copy().to_bytes(),
            LogicalBlockProvisioning::PAGE => self.provisioning().to_bytes(),
            _ => return None,
        })
    }

    fn log_pages(&self) -> Vec<LogPage> {
        self.space.map(|space| space.to_log().to_page()).into_iter().collect()
    }

    fn operations(&self) -> Vec<&'static OperationCodeEntry> {
        OPERATIONS.iter().collect()
    }

    fn serves(&self, operation: &OperationCodeEntry) -> bool {
        match operation.opcode {
            opcode if self.is_one_of_many && FOR_ALL.contains(&opcode) => false,
            EXTENDED_COPY
                if matches!(operation.service_action, Some(POPULATE_TOKEN | WRITE_USING_TOKEN)) =>
            {
                self.has_tokens()
            }
            UNMAP => self.geometry.thin,
            WRITE_ATOMIC => self.limits.atomic_blocks > 0,
            SANITIZE if operation.service_action == Some(CRYPTOGRAPHIC_ERASE) => {
                self.geometry.in_place && self.geometry.key_erasable
            }
            SANITIZE => self.geometry.in_place,
            CLAIM_IN | CLAIM_OUT => self.has_store,
            ROLL_BACK => self.has_epochs(),
            TOKEN_IN | TOKEN_OUT => self.is_shared,
            _ => self.has_store || !is_identifying(operation),
        }
    }

    /// A gateway that has been fenced reports NOT READY, so that hosts with several paths, which check them
    /// with TEST UNIT READY, use another path.
    fn check_ready(&self) -> Result<(), Sense> {
        match self.volume.extensions().holding() {
            Holding::Refused(_) => Err(Sense::MANUAL_INTERVENTION_REQUIRED),
            _ => Ok(()),
        }
    }

    fn condition(&self) -> Option<Sense> {
        self.sanitizer.sense()
    }
}

impl Description<'_> {
    fn has_epochs(&self) -> bool {
        self.geometry.epoch_blocks > 0
    }

    fn extended(&self) -> ExtendedInquiry {
        ExtendedInquiry {
            head_of_queue: true,
            ordered: true,
            simple: true,
            volatile_cache: self.geometry.volatile_cache,
        }
    }

    fn block_limits(&self) -> BlockLimitsPage {
        let limits = self.limits;
        BlockLimitsPage {
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
                limits.atomic_granularity
            } else {
                0
            },
        }
    }

    /// Returns true if the unit offers ROD tokens. A token represents blocks at a point in time. A unit that is one of
    /// several gateways cannot offer tokens, because it does not see the writes through the other gateways.
    fn has_tokens(&self) -> bool {
        !self.is_one_of_many
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
            threshold_exponent: self.space.map_or(0, |_| space::exponent(&self.geometry)),
        }
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
}

/// VPD pages of block units, in addition to those of all device types.
const PAGES: [u8; 5] = [
    ExtendedInquiry::PAGE,
    SharedModePages::PAGE,
    BlockLimitsPage::PAGE,
    BlockDeviceCharacteristics::PAGE,
    LogicalBlockProvisioning::PAGE,
];
const UNMAP: u8 = 0x42;
const SANITIZE: u8 = 0x48;
const EXTENDED_COPY: u8 = 0x83;
const WRITE_ATOMIC: u8 = 0x9c;
const CLAIM_IN: u8 = 0xc0;
const CLAIM_OUT: u8 = 0xc1;
const ROLL_BACK: u8 = 0xc2;
const TOKEN_IN: u8 = 0xc3;
const TOKEN_OUT: u8 = 0xc4;
/// Operation codes of commands that take effect for all initiators of a unit, through whichever gateway they
/// come: RESERVE and RELEASE, SANITIZE, PERSISTENT RESERVE, COMPARE AND WRITE, ORWRITE, WRITE ATOMIC.
const FOR_ALL: [u8; 10] = [0x16, 0x17, 0x48, 0x56, 0x57, 0x5e, 0x5f, 0x89, 0x8b, WRITE_ATOMIC];
const POPULATE_TOKEN: u16 = 0x10;
const WRITE_USING_TOKEN: u16 = 0x11;
const CRYPTOGRAPHIC_ERASE: u16 = 0x03;
