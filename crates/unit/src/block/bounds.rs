//! What a command may ask for and bring, and completions that say how much of it was taken.

use std::future::Future;

use bytes::Bytes;
use scsi::{Form, Sense};
use volume::{Data, Geometry};

use super::BlockUnit;
use crate::{
    Completion, UnitReply, block::limits::UnitBlockLimits, primary::order::TaskTurn,
    sense::UnitCommandFailure,
};

impl BlockUnit {
    /// Returns the limits on the lengths of commands.
    pub(super) fn limits(&self, geometry: &Geometry) -> UnitBlockLimits {
        UnitBlockLimits::new(&self.settings, geometry)
    }
}

pub(super) fn at_once<'a>(completion: Completion) -> UnitReply<'a> {
    UnitReply::done(completion)
}

/// Work that ends in GOOD or a failure, of a command that takes so many bytes.
pub(super) fn finished<'a>(
    work: impl Future<Output = Result<(), UnitCommandFailure>> + Send + 'a,
    taken: u32,
    turn: TaskTurn<'a>,
) -> UnitReply<'a> {
    UnitReply::new(async move {
        let _turn = turn;
        match work.await {
            Ok(()) => taking(taken),
            Err(failure) => taking_with(taken, failure),
        }
    })
}

/// GOOD, of a command that takes so many bytes.
pub(super) fn taking(bytes: u32) -> Completion {
    Completion { data_out_length: Some(bytes), ..Completion::good(Data::new()) }
}

/// A failure of a command that takes so many bytes.
pub(super) fn taking_with(bytes: u32, failure: UnitCommandFailure) -> Completion {
    Completion { data_out_length: Some(bytes), ..failure.into() }
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

/// More blocks than a command may ask for: 5/24/00, pointing at the length.
pub(super) fn too_long(form: Form) -> Sense {
    Sense::invalid_field_in_cdb(match form {
        Form::Six => 4,
        Form::Ten => 7,
        Form::Twelve => 6,
        Form::Sixteen => 10,
    })
}

/// The first `taken` bytes of what came. Less is fine as long as it is whole blocks, since the
/// initiator announced no more and hears of the rest as a residual; of a part of a block nobody
/// could say where it belongs.
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

/// Exactly one block.
pub(super) fn one_block(data: Data, geometry: &Geometry) -> Result<Bytes, Sense> {
    if data.len() == geometry.block_size as usize {
        Ok(data.into_bytes())
    } else {
        Err(Sense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT)
    }
}

/// A parameter list of this length, whole.
pub(super) fn parameter_list(data: &Data, length: usize) -> Result<Bytes, Completion> {
    if data.len() < length {
        return Err(taking_with(length as u32, Sense::PARAMETER_LIST_LENGTH_ERROR.into()));
    }
    Ok(data.slice(0, length).into_bytes())
}

/// A parameter list, of a command for which none is no error and nothing to do (SPC-4, 6.4.1;
/// SBC-3, 5.28.1).
pub(super) fn list_to_do(data: &Data, length: usize) -> Result<Bytes, Completion> {
    if length == 0 { Err(taking(0)) } else { parameter_list(data, length) }
}

/// That a parameter list is short enough to be held in memory.
pub(super) fn check_list_length(length: u32) -> Result<(), Sense> {
    if length <= LONGEST_LIST { Ok(()) } else { Err(Sense::PARAMETER_LIST_LENGTH_ERROR) }
}

/// What the lists whose length has 16 bits can have; also 256 TransportIDs of the longest names.
const LONGEST_LIST: u32 = 1 << 16;
