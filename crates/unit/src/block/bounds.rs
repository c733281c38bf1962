//! Limits on the extent of a command about blocks, and on the data that it brings.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use scsi::{Form, Sense};
use volume::{Data, Geometry};

use super::BlockUnit;
use crate::{
    Completion,
    block::limits::UnitBlockLimits,
    primary::reply::{parameter_list, taking},
};

impl BlockUnit {
    /// Returns the volume's geometry, which is read-only with software write protect. Raises a unit attention
    /// condition for every nexus if the capacity has changed.
    pub(super) fn geometry(&self) -> Geometry {
        let mut geometry = self.volume.geometry();
        geometry.read_only |= self.primary.modes.current().write_protect;
        if self.known_blocks.load(Ordering::Relaxed) != geometry.blocks
            && self.known_blocks.swap(geometry.blocks, Ordering::Relaxed) != geometry.blocks
        {
            self.primary.raise(Sense::CAPACITY_DATA_HAS_CHANGED, None);
        }
        geometry
    }

    pub(super) fn limits(&self, geometry: &Geometry) -> UnitBlockLimits {
        UnitBlockLimits::new(&self.settings, geometry)
    }
}

pub(super) fn writable(geometry: &Geometry) -> Result<(), Sense> {
    if geometry.read_only { Err(Sense::WRITE_PROTECTED) } else { Ok(()) }
}

pub(super) fn in_range(lba: u64, blocks: u64, geometry: &Geometry) -> Result<(), Sense> {
    match lba.checked_add(blocks) {
        Some(end) if end <= geometry.blocks => Ok(()),
        _ => Err(Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE),
    }
}

/// Returns the sense data of a command that asks for more blocks than one command may: 5/24/00, with a
/// pointer to the length field.
pub(super) fn too_long(form: Form) -> Sense {
    Sense::invalid_field_in_cdb(match form {
        Form::Six => 4,
        Form::Ten => 7,
        Form::Twelve => 6,
        Form::Sixteen => 10,
    })
}

/// Returns the first `taken` bytes of the data. Accepts less data than `taken` if it is whole blocks: the initiator
/// announced no more, and the residual count reports the missing part. Data that ends inside a block is an error.
pub(super) fn whole_blocks(data: Data, taken: u32, geometry: &Geometry) -> Result<Data, Sense> {
    let taken = taken as usize;
    if data.len() == taken {
        return Ok(data);
    }
    if data.len() > taken {
        return Ok(data.slice(0, taken));
    }
    if data.len().is_multiple_of(geometry.block_size as usize) {
        Ok(data)
    } else {
        Err(Sense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT)
    }
}

/// Returns the data if its length is exactly one block; otherwise fails.
pub(super) fn one_block(data: Data, geometry: &Geometry) -> Result<Bytes, Sense> {
    if data.len() == geometry.block_size as usize {
        Ok(data.into_bytes())
    } else {
        Err(Sense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT)
    }
}

/// Returns the parameter list of a command. A list of no bytes is no error, but ends the command at once with
/// GOOD (SPC-4, 6.4.1; SBC-3, 5.28.1).
pub(super) fn list_to_do(data: &Data, length: usize) -> Result<Bytes, Completion> {
    if length == 0 { Err(taking(0)) } else { parameter_list(data, length) }
}
