//! Commands that need no call on the volume.

use bytes::Bytes;
use scsi::{Command, Sense};
use volume::Geometry;

use super::BlockUnit;
use crate::{Completion, Nexus, description::Description};

impl BlockUnit {
    /// The commands that need no call on the volume.
    pub(super) fn describe(
        &self,
        nexus: &Nexus,
        command: &Command,
        geometry: Geometry,
    ) -> Result<Completion, Sense> {
        let limits = self.limits(&geometry);
        let description = Description { identity: &self.identity, geometry, limits };
        let (bytes, allocation_length) = match *command {
            Command::TestUnitReady => (Vec::new(), 0),
            Command::RequestSense { descriptor_format, allocation_length } => {
                let sense = self.attentions.take(nexus.number);
                let sense = sense.or_else(|| self.sanitizer.sense()).unwrap_or(Sense::NO_SENSE);
                let bytes = if descriptor_format {
                    sense.to_descriptor_bytes()
                } else {
                    sense.to_fixed_bytes()
                };
                (bytes, u32::from(allocation_length))
            }
            Command::Inquiry { page, allocation_length } => {
                (description.inquiry(page)?, u32::from(allocation_length))
            }
            Command::ModeSense(asked) => {
                (description.mode_sense(&asked)?, u32::from(asked.allocation_length))
            }
            Command::ReadDefectData(asked) => (asked.no_defects(), asked.allocation_length),
            Command::ReadCapacity10 => (description.capacity_10(), u32::MAX),
            Command::ReadCapacity16 { allocation_length } => {
                (description.capacity_16(), allocation_length)
            }
            Command::ReportSupportedOperationCodes { reporting, timeouts, allocation_length } => {
                (description.supported(reporting, timeouts)?, allocation_length)
            }
            // REPORT LUNS is the target's to answer: only it knows which units there are.
            _ => return Err(Sense::INVALID_COMMAND_OPERATION_CODE),
        };
        let mut bytes = Bytes::from(bytes);
        bytes.truncate(allocation_length as usize);
        Ok(Completion::good(bytes.into()))
    }
}
