//! Completions that report how much of a command's data was taken, and checks of parameter lists.

use std::future::Future;

use bytes::Bytes;
use scsi::Sense;
use volume::Data;

use crate::{Completion, UnitReply, primary::order::TaskTurn, sense::UnitCommandFailure};

/// Returns the reply of a command that ends at once.
pub(crate) fn at_once<'a>(completion: Completion) -> UnitReply<'a> {
    UnitReply::done(completion)
}

/// Returns the reply of a command with `taken` bytes of data. When `work` has ended, the command ends with GOOD or with
/// the failure of `work`. The turn is held until then.
pub(crate) fn finished<'a>(
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

/// Returns status GOOD with `bytes`, truncated to the allocation length of the command.
pub(crate) fn answer(bytes: Vec<u8>, allocation_length: u32) -> Completion {
    let mut bytes = Bytes::from(bytes);
    bytes.truncate(allocation_length as usize);
    Completion::good(bytes.into())
}

/// Returns GOOD for a command that takes `bytes` bytes of data.
pub(crate) fn taking(bytes: u32) -> Completion {
    Completion { data_out_length: Some(bytes), ..Completion::good(Data::new()) }
}

/// Returns the failure of a command that takes `bytes` bytes of data.
pub(crate) fn taking_with(bytes: u32, failure: UnitCommandFailure) -> Completion {
    Completion { data_out_length: Some(bytes), ..failure.into() }
}

/// Returns the first `length` bytes of the parameter list. Fails if the list is shorter.
pub(crate) fn parameter_list(data: &Data, length: usize) -> Result<Bytes, Completion> {
    if data.len() < length {
        return Err(taking_with(length as u32, Sense::PARAMETER_LIST_LENGTH_ERROR.into()));
    }
    Ok(data.slice(0, length).into_bytes())
}

/// Checks that a parameter list is short enough to be held in memory.
pub(crate) fn check_list_length(length: u32) -> Result<(), Sense> {
    if length <= LONGEST_LIST { Ok(()) } else { Err(Sense::PARAMETER_LIST_LENGTH_ERROR) }
}

/// The longest parameter list that a length field of 16 bits can announce; 256 TransportIDs of the longest names fit.
const LONGEST_LIST: u32 = 1 << 16;
