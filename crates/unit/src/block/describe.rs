//! Commands that need no call on the volume.

use bytes::Bytes;
use scsi::{
    BlockCommand, Command, LogSense, PageControl, PrimaryCommand, Sense, TargetPortGroup,
    VendorCommand, identifying_information, identifying_types,
    log::{
        InformationalExceptions, ProvisioningCounts, supported_log_pages, supported_log_subpages,
    },
};
use smallvec::SmallVec;
use volume::{Geometry, Holding};

use super::BlockUnit;
use crate::{
    Completion, Nexus,
    block::{
        description::{Description, TARGET_PORT_GROUP, task_functions},
        mode_pages::ModePages,
        space::{self, Space},
    },
};

impl BlockUnit {
    pub(super) fn describe(
        &self,
        nexus: &Nexus,
        command: &Command,
        geometry: Geometry,
    ) -> Result<Completion, Sense> {
        let description = self.description(nexus, geometry);
        let (bytes, allocation_length) = match *command {
            // Hosts with several paths ask this: one to a gateway that is shut out is none.
            Command::Primary(PrimaryCommand::TestUnitReady) => {
                match self.volume.extensions().holding() {
                    Holding::Refused(_) => return Err(Sense::MANUAL_INTERVENTION_REQUIRED),
                    _ => (Vec::new(), 0),
                }
            }
            Command::Primary(PrimaryCommand::RequestSense {
                descriptor_format,
                allocation_length,
            }) => {
                let sense = self.attentions.take(nexus.number);
                let sense = sense.or_else(|| self.sanitizer.sense()).unwrap_or(Sense::NO_SENSE);
                let bytes = if descriptor_format {
                    sense.to_descriptor_bytes()
                } else {
                    sense.to_fixed_bytes()
                };
                (bytes, u32::from(allocation_length))
            }
            Command::Primary(PrimaryCommand::Inquiry { page, allocation_length }) => {
                (description.inquiry(page)?, u32::from(allocation_length))
            }
            Command::Primary(PrimaryCommand::ModeSense(asked)) => {
                let pages = self.mode_pages(self.volume.geometry());
                (pages.sense(&asked)?, u32::from(asked.allocation_length))
            }
            Command::Primary(PrimaryCommand::LogSense(asked)) => {
                (self.log_sense(&asked)?, u32::from(asked.allocation_length))
            }
            Command::Primary(PrimaryCommand::PersistentReserveIn(asked)) => {
                (self.reservations.report(asked.report), u32::from(asked.allocation_length))
            }
            Command::Vendor(VendorCommand::ClaimIn { allocation_length }) => {
                (self.claim_in(nexus)?.to_bytes(), u32::from(allocation_length))
            }
            Command::Block(BlockCommand::ReadDefectData(asked)) => {
                (asked.no_defects(), asked.allocation_length)
            }
            Command::Block(BlockCommand::ReadCapacity10) => (description.capacity_10(), u32::MAX),
            Command::Block(BlockCommand::ReadCapacity16 { allocation_length }) => {
                (description.capacity_16(), allocation_length)
            }
            Command::Primary(PrimaryCommand::ReportTargetPortGroups(asked)) => {
                let ports = description.target_ports.to_vec();
                let group = TargetPortGroup { group: TARGET_PORT_GROUP, ports };
                (asked.answer(&[group]), asked.allocation_length)
            }
            Command::Primary(PrimaryCommand::ReportTimestamp { allocation_length }) => {
                (self.clock.now().to_bytes().to_vec(), allocation_length)
            }
            Command::Primary(PrimaryCommand::ReportIdentifying { kind, allocation_length }) => {
                let known = self.identifying()?;
                let one = |kind| identifying_information(&known.of(kind));
                (kind.map_or_else(identifying_types, one), allocation_length)
            }
            Command::Primary(PrimaryCommand::ReportTaskFunctions {
                extended,
                allocation_length,
            }) => (task_functions(extended), allocation_length),
            Command::Primary(PrimaryCommand::ReportSupportedOperationCodes {
                reporting,
                timeouts,
                allocation_length,
            }) => (description.supported(reporting, timeouts)?, allocation_length),
            // REPORT LUNS is the target's to answer: only it knows which units there are.
            _ => return Err(Sense::INVALID_COMMAND_OPERATION_CODE),
        };
        let mut bytes = Bytes::from(bytes);
        bytes.truncate(allocation_length as usize);
        Ok(Completion::good(bytes.into()))
    }

    fn description(&self, nexus: &Nexus, geometry: Geometry) -> Description<'_> {
        let has_space = self.space(&geometry).is_some();
        Description {
            identity: &self.identity,
            geometry,
            limits: self.limits(&geometry),
            removable: self.settings.removable,
            target_port: nexus.target_port,
            target_ports: self.target_ports(nexus),
            threshold_exponent: if has_space { space::exponent(&geometry) } else { 0 },
            spc_3: self.settings.spc_3,
            has_store: self.identifying.is_some(),
            is_shared: self.sharing.is_some(),
            is_one_of_many: self.settings.is_one_of_many,
        }
    }

    /// The target ports through which the unit is reached, ascending, that of the nexus among them:
    /// a portal group may have gone while its sessions stay.
    pub(super) fn target_ports(&self, nexus: &Nexus) -> SmallVec<[u16; 4]> {
        let reachable = self.reachable.lock();
        let target = reachable.get(&nexus.number);
        let mut ports: SmallVec<[u16; 4]> =
            target.map(|target| target.target_ports().into()).unwrap_or_default();
        if let Err(place) = ports.binary_search(&nexus.target_port) {
            ports.insert(place, nexus.target_port);
        }
        ports
    }

    pub(super) fn mode_pages(&self, geometry: Geometry) -> ModePages {
        ModePages {
            geometry,
            current: self.modes.current(),
            saved: self.modes.saved(),
            threshold: self.threshold.to_mode(self.space(&geometry).as_ref()),
        }
    }

    pub(super) fn space(&self, geometry: &Geometry) -> Option<Space> {
        Space::of(&*self.volume, geometry)
    }

    /// Log pages and subpages, ascending.
    pub(super) fn log_pages(&self) -> Vec<(u8, u8)> {
        let mut pages = vec![(0x00, 0x00), (0x00, 0xff)];
        if self.space(&self.volume.geometry()).is_some() {
            pages.push((ProvisioningCounts::PAGE, 0));
        }
        pages.push((InformationalExceptions::PAGE, 0));
        pages
    }

    fn log_sense(&self, asked: &LogSense) -> Result<Vec<u8>, Sense> {
        if asked.save {
            return Err(Sense::invalid_bit_in_cdb(1, 0));
        }
        let pages = self.log_pages();
        let has = |page, subpage| pages.contains(&(page, subpage));
        let page = match (asked.page, asked.subpage) {
            (0x00, 0x00) => {
                let codes = pages.iter().filter(|(_, subpage)| *subpage == 0);
                return Ok(supported_log_pages(&codes.map(|(page, _)| *page).collect::<Vec<_>>()));
            }
            (0x00, 0xff) => return Ok(supported_log_subpages(&pages)),
            (ProvisioningCounts::PAGE, 0) if has(asked.page, 0) => {
                let space = self.space(&self.volume.geometry());
                space.ok_or(Sense::invalid_field_in_cdb(2))?.to_log().to_page()
            }
            (InformationalExceptions::PAGE, 0) => InformationalExceptions::default().to_page(),
            (page, _) if has(page, 0) => return Err(Sense::invalid_field_in_cdb(3)),
            _ => return Err(Sense::invalid_field_in_cdb(2)),
        };
        // Thresholds and defaults of what counts nothing there are none.
        if asked.control != CUMULATIVE {
            return Err(Sense::invalid_bit_in_cdb(2, 7));
        }
        if page.parameters.iter().all(|parameter| parameter.code < asked.first_parameter) {
            return Err(Sense::invalid_field_in_cdb(5));
        }
        Ok(page.to_bytes(asked.first_parameter))
    }
}

/// PC 01b: current cumulative values.
const CUMULATIVE: PageControl = PageControl::Changeable;
