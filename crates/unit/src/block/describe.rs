//! READ CAPACITY and READ DEFECT DATA, which the unit answers without a call on the volume.

use scsi::{BlockCommand, Sense};
use volume::Geometry;

use super::BlockUnit;
use crate::{
    Completion,
    block::{description::Description, space::Space},
    primary::reply::answer,
};

impl BlockUnit {
    pub(super) fn describe(&self, command: &BlockCommand, geometry: Geometry) -> Completion {
        let (bytes, allocation_length) = match *command {
            BlockCommand::ReadDefectData(asked) => (asked.no_defects(), asked.allocation_length),
            BlockCommand::ReadCapacity10 => (self.description(geometry).capacity_10(), u32::MAX),
            BlockCommand::ReadCapacity16 { allocation_length } => {
                (self.description(geometry).capacity_16(), allocation_length)
            }
            _ => return Sense::INVALID_COMMAND_OPERATION_CODE.into(),
        };
        answer(bytes, allocation_length)
    }

    pub(super) fn description(&self, geometry: Geometry) -> Description<'_> {
        Description {
            identity: self.primary.identity(),
            volume: &*self.volume,
            sanitizer: &self.sanitizer,
            geometry,
            limits: self.limits(&geometry),
            removable: self.settings.removable,
            space: self.space(&geometry),
            spc_3: self.settings.spc_3,
            has_store: self.primary.has_store(),
            is_shared: self.writers.sharing.is_some(),
            is_one_of_many: self.settings.is_one_of_many,
        }
    }

    pub(super) fn space(&self, geometry: &Geometry) -> Option<Space> {
        Space::of(&*self.volume, geometry)
    }
}
