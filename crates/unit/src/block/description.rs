//! What a block unit says of itself: INQUIRY, capacity, commands.

use scsi::{
    Capacity10, Capacity16, OPERATIONS, OperationCodeEntry, Reporting, Sense, TaskFunctions,
    inquiry::{StandardInquiry, ascii},
    supported_operation, supported_operations,
    vpd::{
        Association, BlockDeviceCharacteristics, BlockLimitsPage, Designator, DeviceIdentification,
        ExtendedInquiry, ForebayVolume, LogicalBlockProvisioning, ProvisioningType, ScsiPorts,
        SharedModePages, SupportedPages, TargetPort, ThirdPartyCopy, UnitSerialNumber,
    },
};
use smallvec::SmallVec;
use volume::Geometry;

use crate::{
    block::limits::{TOKEN_BYTES_MOST, TOKEN_TIMEOUT_S, TOKEN_TIMEOUT_S_MOST, UnitBlockLimits},
    identity::UnitIdentity,
};

/// The facts that the answers are made from.
pub(crate) struct Description<'a> {
    pub(crate) identity: &'a UnitIdentity,
    pub(crate) geometry: Geometry,
    pub(crate) limits: UnitBlockLimits,
    /// RMB.
    pub(crate) removable: bool,
    /// The target port through which it is asked.
    pub(crate) target_port: u16,
    /// All target ports through which it is reached, ascending.
    pub(crate) target_ports: SmallVec<[u16; 4]>,
    /// THRESHOLD EXPONENT of page B2; 0 where nothing is known of the space.
    pub(crate) threshold_exponent: u8,
    /// See [`crate::Settings::spc_3`].
    pub(crate) spc_3: bool,
    /// The unit keeps records over a restart.
    pub(crate) has_store: bool,
    /// Several gateways change it.
    pub(crate) is_shared: bool,
    /// See [`crate::Settings::is_one_of_many`].
    pub(crate) is_one_of_many: bool,
}

impl Description<'_> {
    pub(crate) fn inquiry(&self, page: Option<u8>) -> Result<Vec<u8>, Sense> {
        let Some(page) = page else { return Ok(self.standard_inquiry().to_bytes()) };
        Ok(match page {
            SupportedPages::PAGE => {
                let mut pages = PAGES.to_vec();
                pages.retain(|page| *page != ThirdPartyCopy::PAGE || self.has_tokens());
                pages.extend(self.has_epochs().then_some(ForebayVolume::PAGE));
                SupportedPages(pages).to_bytes()
            }
            ForebayVolume::PAGE if self.has_epochs() => {
                let epoch_blocks = self.geometry.epoch_blocks;
                // The order is kept for the owner of a claim, and a unit without a store has no claims.
                ForebayVolume { epoch_blocks, orders_flushes: self.has_store }.to_bytes()
            }
            UnitSerialNumber::PAGE => UnitSerialNumber(self.serial()).to_bytes(),
            DeviceIdentification::PAGE => self.identification().to_bytes(),
            ExtendedInquiry::PAGE => self.extended().to_bytes(),
            SharedModePages::PAGE => SharedModePages.to_bytes(),
            ScsiPorts::PAGE => self.ports().to_bytes(),
            BlockLimitsPage::PAGE => self.block_limits().to_bytes(),
            BlockDeviceCharacteristics::PAGE => {
                // It does not rotate: seeks cost nothing.
                // After a BLOCK ERASE every block reads as zeros.
                BlockDeviceCharacteristics {
                    rotation_rate: 1,
                    reads_after_block_erase: self.geometry.in_place,
                    reads_after_key_erase: self.geometry.in_place && self.geometry.key_erasable,
                }
                .to_bytes()
            }
            ThirdPartyCopy::PAGE if self.has_tokens() => self.third_party_copy().to_bytes(),
            LogicalBlockProvisioning::PAGE => self.provisioning().to_bytes(),
            _ => return Err(Sense::invalid_field_in_cdb(2)),
        })
    }

    fn has_epochs(&self) -> bool {
        self.geometry.epoch_blocks > 0
    }

    fn standard_inquiry(&self) -> StandardInquiry {
        let UnitIdentity { vendor, product, revision, .. } = self.identity;
        StandardInquiry {
            removable: self.removable,
            // Implicit and explicit: both managements are served, and change nothing.
            target_port_groups: 3,
            ..StandardInquiry::disk(ascii(vendor), ascii(product), ascii(revision))
        }
        .with_spc_3(self.spc_3)
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
            names.push(port_name(target, self.target_port));
            names.push(Designator::relative_target_port(self.target_port));
            names.push(Designator::target_port_group(TARGET_PORT_GROUP));
            names.push(Designator::iscsi_name(Association::Target, target));
        }
        DeviceIdentification(names)
    }

    fn ports(&self) -> ScsiPorts {
        let target = self.identity.target_name.as_deref();
        let port = |number: &u16| TargetPort {
            number: *number,
            names: target.map(|target| port_name(target, *number)).into_iter().collect(),
        };
        ScsiPorts(self.target_ports.iter().map(port).collect())
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

    /// Tokens that stand for blocks as they were: of several gateways one does not know what is written at the
    /// others.
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
            threshold_exponent: self.threshold_exponent,
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

    pub(crate) fn supported(&self, asked: Reporting, timeouts: bool) -> Result<Vec<u8>, Sense> {
        let find =
            |opcode, action| OperationCodeEntry::find(opcode, action).filter(|o| self.serves(o));
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
            MAINTENANCE_IN if operation.service_action == Some(REPORT_IDENTIFYING) => {
                self.has_store
            }
            MAINTENANCE_OUT if operation.service_action == Some(SET_IDENTIFYING) => self.has_store,
            CLAIM_IN | CLAIM_OUT => self.has_store,
            ROLL_BACK => self.has_epochs(),
            TOKEN_IN | TOKEN_OUT => self.is_shared,
            _ => true,
        }
    }
}

/// A target port of iSCSI is a portal group of a target (RFC 7143, 4.4.1).
fn port_name(target: &str, port: u16) -> Designator {
    Designator::iscsi_name(Association::TargetPort, &format!("{target},t,0x{port:04x}"))
}

/// What the target serves (RFC 7143, 11.5.1).
pub(crate) fn task_functions(extended: bool) -> Vec<u8> {
    TaskFunctions {
        abort_task: true,
        abort_task_set: true,
        clear_task_set: true,
        logical_unit_reset: true,
        target_reset: true,
    }
    .to_bytes(extended)
}

/// The group of all target ports: access is the same through each of them.
pub(crate) const TARGET_PORT_GROUP: u16 = 1;
/// VPD pages, ascending; one of our own may follow.
const PAGES: [u8; 10] = [
    SupportedPages::PAGE,
    UnitSerialNumber::PAGE,
    DeviceIdentification::PAGE,
    ExtendedInquiry::PAGE,
    SharedModePages::PAGE,
    ScsiPorts::PAGE,
    ThirdPartyCopy::PAGE,
    BlockLimitsPage::PAGE,
    BlockDeviceCharacteristics::PAGE,
    LogicalBlockProvisioning::PAGE,
];
/// Operation codes.
const UNMAP: u8 = 0x42;
const SANITIZE: u8 = 0x48;
const EXTENDED_COPY: u8 = 0x83;
const WRITE_ATOMIC: u8 = 0x9c;
const MAINTENANCE_IN: u8 = 0xa3;
const MAINTENANCE_OUT: u8 = 0xa4;
const CLAIM_IN: u8 = 0xc0;
const CLAIM_OUT: u8 = 0xc1;
const ROLL_BACK: u8 = 0xc2;
const TOKEN_IN: u8 = 0xc3;
const TOKEN_OUT: u8 = 0xc4;
/// Those that hold for all initiators of a unit, whichever gateway they come through: RESERVE and RELEASE,
/// SANITIZE, PERSISTENT RESERVE, COMPARE AND WRITE, ORWRITE, WRITE ATOMIC.
const FOR_ALL: [u8; 10] = [0x16, 0x17, 0x48, 0x56, 0x57, 0x5e, 0x5f, 0x89, 0x8b, WRITE_ATOMIC];
/// Service actions.
const POPULATE_TOKEN: u16 = 0x10;
const WRITE_USING_TOKEN: u16 = 0x11;
const CRYPTOGRAPHIC_ERASE: u16 = 0x03;
const REPORT_IDENTIFYING: u16 = 0x05;
const SET_IDENTIFYING: u16 = 0x06;
/// What fits behind the eight of the vendor in a designator of 255 bytes.
const SERIAL_CHARACTERS: usize = 240;
