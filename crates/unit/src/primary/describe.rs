//! Commands of SPC that report on the unit.

use scsi::{
    OperationCodeEntry, PrimaryCommand, Reporting, Sense, TargetPortGroup, TaskFunctions,
    identifying_information, identifying_types,
    inquiry::{OBJECT_STORAGE, ascii},
    supported_operation, supported_operations,
    vpd::{
        Association, Designator, DeviceIdentification, ScsiPorts, SupportedPages, TargetPort,
        UnitSerialNumber,
    },
};

use super::{
    PrimaryUnit, device::DeviceType, identifying::Identifying, log_pages::log_sense, reply::answer,
};
use crate::{Completion, Nexus};

impl PrimaryUnit {
    /// Performs a command that only reports properties or states of the unit.
    pub(super) fn describe(
        &self,
        device: &impl DeviceType,
        nexus: &Nexus,
        command: &PrimaryCommand,
    ) -> Result<Completion, Sense> {
        let (bytes, allocation_length) = match *command {
            PrimaryCommand::TestUnitReady => {
                device.check_ready()?;
                (Vec::new(), 0)
            }
            PrimaryCommand::RequestSense { descriptor_format, allocation_length } => {
                let sense = self.take_attention(nexus.number);
                let sense = sense.or_else(|| device.condition()).unwrap_or(Sense::NO_SENSE);
                // Object storage devices have no sense data in fixed format (OSD-2).
                let is_object_storage = device.inquiry().device_type == OBJECT_STORAGE;
                let bytes = if descriptor_format || is_object_storage {
                    sense.to_descriptor_bytes()
                } else {
                    sense.to_fixed_bytes()
                };
                (bytes, u32::from(allocation_length))
            }
            PrimaryCommand::Inquiry { page, allocation_length } => {
                (self.inquiry(device, nexus, page)?, u32::from(allocation_length))
            }
            PrimaryCommand::LogSense(asked) => {
                (log_sense(&asked, device.log_pages())?, u32::from(asked.allocation_length))
            }
            PrimaryCommand::PersistentReserveIn(asked) => {
                (self.reservations.report(asked.report), u32::from(asked.allocation_length))
            }
            PrimaryCommand::ReportTargetPortGroups(asked) => {
                let ports = self.target_ports(nexus).to_vec();
                let group = TargetPortGroup { group: TARGET_PORT_GROUP, ports };
                (asked.answer(&[group]), asked.allocation_length)
            }
            PrimaryCommand::ReportTimestamp { allocation_length } => {
                (self.clock.now().to_bytes().to_vec(), allocation_length)
            }
            PrimaryCommand::ReportIdentifying { kind, allocation_length } => {
                let known = self.identifying()?;
                let one = |kind| identifying_information(&known.of(kind));
                (kind.map_or_else(identifying_types, one), allocation_length)
            }
            PrimaryCommand::ReportTaskFunctions { extended, allocation_length } => {
                (task_functions(extended), allocation_length)
            }
            PrimaryCommand::ReportSupportedOperationCodes {
                reporting,
                timeouts,
                allocation_length,
            } => (supported(device, reporting, timeouts)?, allocation_length),
            // REPORT LUNS does not get here: the target answers it, because only the target has the list of its units.
            _ => return Err(Sense::INVALID_COMMAND_OPERATION_CODE),
        };
        Ok(answer(bytes, allocation_length))
    }

    /// The commands of SPC that [`Self::start`] performs, ascending by operation code and service action: all but MODE
    /// SENSE, MODE SELECT and third-party copy.
    pub fn operations(&self) -> impl Iterator<Item = &'static OperationCodeEntry> + use<> {
        let has_store = self.has_store();
        PrimaryCommand::operations().filter(move |operation| match operation.opcode {
            MODE_SELECT_6 | MODE_SENSE_6 | MODE_SELECT_10 | MODE_SENSE_10 => false,
            THIRD_PARTY_COPY_OUT | THIRD_PARTY_COPY_IN => false,
            _ => has_store || !is_identifying(operation),
        })
    }

    /// Returns the identifying information.
    ///
    /// # Errors
    /// 5/24/00 if the unit has no store, which could keep the information.
    pub(super) fn identifying(&self) -> Result<&Identifying, Sense> {
        self.identifying.as_ref().ok_or(Sense::invalid_bit_in_cdb(1, 4))
    }

    fn inquiry(
        &self,
        device: &impl DeviceType,
        nexus: &Nexus,
        page: Option<u8>,
    ) -> Result<Vec<u8>, Sense> {
        let standard = device.inquiry();
        let Some(page) = page else { return Ok(standard.to_bytes()) };
        let mut bytes = match page {
            SupportedPages::PAGE => {
                let mut pages = PAGES.to_vec();
                pages.extend(device.vpd_pages());
                pages.sort_unstable();
                SupportedPages(pages).to_bytes()
            }
            UnitSerialNumber::PAGE => UnitSerialNumber(self.serial()).to_bytes(),
            DeviceIdentification::PAGE => self.identification(nexus).to_bytes(),
            ScsiPorts::PAGE => self.ports(nexus).to_bytes(),
            page => device.vpd_page(page).ok_or(Sense::invalid_field_in_cdb(2))?,
        };
        // The first byte of every VPD page is the device type, as in standard INQUIRY data (SPC-4, 7.8.1).
        bytes[0] = standard.peripheral();
        Ok(bytes)
    }

    fn serial(&self) -> String {
        let printable = |c: char| if matches!(c, ' '..='~') { c } else { '?' };
        self.identity.serial.chars().take(SERIAL_CHARACTERS).map(printable).collect()
    }

    fn identification(&self, nexus: &Nexus) -> DeviceIdentification {
        let mut names = vec![
            Designator::naa(&self.identity.naa),
            Designator::t10(ascii(&self.identity.vendor), &self.serial()),
        ];
        if let Some(target) = &self.identity.target_name {
            names.push(port_name(target, nexus.target_port));
            names.push(Designator::relative_target_port(nexus.target_port));
            names.push(Designator::target_port_group(TARGET_PORT_GROUP));
            names.push(Designator::iscsi_name(Association::Target, target));
        }
        DeviceIdentification(names)
    }

    fn ports(&self, nexus: &Nexus) -> ScsiPorts {
        let target = self.identity.target_name.as_deref();
        let port = |number: &u16| TargetPort {
            number: *number,
            names: target.map(|target| port_name(target, *number)).into_iter().collect(),
        };
        ScsiPorts(self.target_ports(nexus).iter().map(port).collect())
    }
}

/// REPORT SUPPORTED OPERATION CODES (SPC-4, 6.35).
fn supported(device: &impl DeviceType, asked: Reporting, timeouts: bool) -> Result<Vec<u8>, Sense> {
    let all = device.operations();
    let find = |opcode, action| {
        let is_it = |o: &&OperationCodeEntry| (o.opcode, o.service_action) == (opcode, action);
        all.iter().copied().find(is_it).filter(|o| device.serves(o))
    };
    let has_actions = |opcode| all.iter().any(|o| o.opcode == opcode && o.service_action.is_some());
    let found = match asked {
        Reporting::All => {
            let served = all.iter().copied().filter(|o| device.serves(o));
            return Ok(supported_operations(served, timeouts));
        }
        Reporting::OperationCode(opcode) if has_actions(opcode) => {
            return Err(Sense::invalid_bit_in_cdb(2, 2));
        }
        Reporting::OperationCode(opcode) => find(opcode, None),
        Reporting::ServiceAction(opcode, action) => {
            // Refuse a service action of a known operation code that has none. An unknown operation code is no error:
            // it is reported as not supported.
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

/// Returns true for REPORT and SET IDENTIFYING INFORMATION.
pub(crate) fn is_identifying(operation: &OperationCodeEntry) -> bool {
    matches!(
        (operation.opcode, operation.service_action),
        (MAINTENANCE_IN, Some(REPORT_IDENTIFYING)) | (MAINTENANCE_OUT, Some(SET_IDENTIFYING))
    )
}

/// Returns the name of a target port. In iSCSI this is a portal group of a target (RFC 7143, 4.4.1).
fn port_name(target: &str, port: u16) -> Designator {
    Designator::iscsi_name(Association::TargetPort, &format!("{target},t,0x{port:04x}"))
}

/// The task management functions that the target performs (RFC 7143, 11.5.1).
fn task_functions(extended: bool) -> Vec<u8> {
    TaskFunctions {
        abort_task: true,
        abort_task_set: true,
        clear_task_set: true,
        logical_unit_reset: true,
        target_reset: true,
    }
    .to_bytes(extended)
}

/// The only target port group: access to the unit is the same through all ports.
pub(super) const TARGET_PORT_GROUP: u16 = 1;
/// VPD pages of all device types.
const PAGES: [u8; 4] =
    [SupportedPages::PAGE, UnitSerialNumber::PAGE, DeviceIdentification::PAGE, ScsiPorts::PAGE];
const MODE_SELECT_6: u8 = 0x15;
const MODE_SENSE_6: u8 = 0x1a;
const MODE_SELECT_10: u8 = 0x55;
const MODE_SENSE_10: u8 = 0x5a;
const THIRD_PARTY_COPY_OUT: u8 = 0x83;
const THIRD_PARTY_COPY_IN: u8 = 0x84;
const MAINTENANCE_IN: u8 = 0xa3;
const MAINTENANCE_OUT: u8 = 0xa4;
const REPORT_IDENTIFYING: u16 = 0x05;
const SET_IDENTIFYING: u16 = 0x06;
/// Number of characters of the serial number that fit after the eight of the vendor in a designator of 255 bytes.
const SERIAL_CHARACTERS: usize = 240;
