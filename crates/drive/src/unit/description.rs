//! The properties that an object unit reports: INQUIRY, VPD pages, supported commands, mode
//! parameters.

use object::{Command, FlushScope, ObjectRequest};
use osd::{
    OPERATION_CODE, ServiceAction,
    security::{SYSTEM_ID_BYTES, SecurityMethod, SystemId},
};
use scsi::{
    OperationCodeEntry, Sense,
    inquiry::{OBJECT_STORAGE, StandardInquiry, ascii},
    mode::{BlockDescriptor, ModePage, ModeParameters},
};
use unit::{Completion, DeviceModes, DeviceType, Modes, PrimaryUnit, UnitFuture, UnitIdentity};

use super::{ObjectUnit, operations::OPERATIONS};
use crate::backing::DriveBacking;

/// Length in bytes of the security token of a nexus.
pub const TOKEN_BYTES: usize = 16;

/// The values from which the unit answers INQUIRY and REPORT SUPPORTED OPERATION CODES.
pub struct Description<'a> {
    pub primary: &'a PrimaryUnit,
    pub system: SystemId,
    pub least: SecurityMethod,
    /// The security token of the nexus that sends the INQUIRY.
    pub token: [u8; TOKEN_BYTES],
    /// A function that returns true for the service actions which the store performs.
    pub serves: Box<dyn Fn(ServiceAction) -> bool + 'a>,
}

impl DeviceType for Description<'_> {
    fn inquiry(&self) -> StandardInquiry {
        let UnitIdentity { vendor, product, revision, .. } = self.primary.identity();
        StandardInquiry::object_storage(ascii(vendor), ascii(product), ascii(revision))
    }

    fn vpd_pages(&self) -> Vec<u8> {
        vec![INFORMATION, TOKEN]
    }

    fn vpd_page(&self, page: u8) -> Option<Vec<u8>> {
        let body = match page {
            // The layout of this page is our definition: the weakest accepted method, the supported methods as bits,
            // the OSD SYSTEM ID.
            INFORMATION => {
                let mut body = vec![self.least as u8, 0x0f, 0, 0];
                body.extend_from_slice(&self.system);
                debug_assert_eq!(body.len(), 4 + SYSTEM_ID_BYTES);
                body
            }
            TOKEN => self.token.to_vec(),
            _ => return None,
        };
        let mut bytes = vec![OBJECT_STORAGE, page];
        bytes.extend_from_slice(&(body.len() as u16).to_be_bytes());
        bytes.extend_from_slice(&body);
        Some(bytes)
    }

    fn operations(&self) -> Vec<&'static OperationCodeEntry> {
        let mut operations: Vec<_> = self.primary.operations().collect();
        operations.extend(MODE_COMMANDS.iter().filter_map(|opcode| {
            scsi::PrimaryCommand::operations().find(|operation| operation.opcode == *opcode)
        }));
        operations.extend(OPERATIONS.iter());
        operations.sort_by_key(|operation| (operation.opcode, operation.service_action));
        operations
    }

    fn serves(&self, operation: &OperationCodeEntry) -> bool {
        match operation.service_action.and_then(ServiceAction::from_code) {
            Some(action) if operation.opcode == OPERATION_CODE => (self.serves)(action),
            _ => true,
        }
    }
}

impl<S: DriveBacking> DeviceModes for ObjectUnit<S> {
    fn mode_header(&self, modes: Modes, _long_lba: bool) -> ModeParameters {
        ModeParameters {
            write_protected: modes.write_protect,
            dpo_fua: true,
            block: None,
            pages: Vec::new(),
        }
    }

    fn takes_block_descriptor(&self, _wanted: &BlockDescriptor) -> bool {
        false
    }

    fn mode_pages(&self, _modes: Modes) -> Vec<ModePage> {
        Vec::new()
    }

    fn with_mode_page(&self, modes: Modes, _page: &ModePage) -> Modes {
        modes
    }

    /// Makes all acknowledged changes stable before the unit becomes write-protected.
    fn before_mode_change(
        &self,
        _nexus: u64,
        before: Modes,
        wanted: Modes,
    ) -> UnitFuture<'_, Result<(), Completion>> {
        Box::pin(async move {
            if wanted.write_protect && !before.write_protect {
                let scope = FlushScope::RangeOrEverything;
                let flush = ObjectRequest::new(Command::FlushOsd { scope });
                let flushed = self.store().perform(flush).await;
                flushed.map_err(|_| Completion::from(Sense::INTERNAL_TARGET_FAILURE))?;
            }
            Ok(())
        })
    }
}

/// Page codes of the VPD pages OSD Information and Security Token (SPC-4, 7.8; content in OSD-2).
const INFORMATION: u8 = 0xb0;
const TOKEN: u8 = 0xb1;
/// MODE SELECT and MODE SENSE, which [`PrimaryUnit::operations`] leaves to the device type.
const MODE_COMMANDS: [u8; 4] = [0x15, 0x1a, 0x55, 0x5a];
